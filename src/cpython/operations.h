// What bytecode instructions do, as one set for all versions of CPython: the names and arguments that the interpreter
// of trace/ knows.
#pragma once
#include <Python.h>

// Every version has these, under these names and with the same argument.
#define MG_COMMON_OPERATIONS(X)                                                                                      \
  X(NOP)                                                                                                             \
  X(POP_TOP)                                                                                                         \
  X(PUSH_NULL)                                                                                                       \
  X(COPY)                                                                                                            \
  X(SWAP) X(UNARY_NEGATIVE) X(UNARY_INVERT) X(UNARY_NOT) X(BINARY_OP) X(IS_OP) X(CONTAINS_OP) X(BINARY_SUBSCR)       \
      X(STORE_SUBSCR) X(DELETE_SUBSCR) X(STORE_ATTR) X(DELETE_ATTR) X(LOAD_CONST) X(LOAD_FAST) X(STORE_FAST)         \
          X(DELETE_FAST) X(LOAD_GLOBAL) X(STORE_GLOBAL) X(MAKE_CELL) X(COPY_FREE_VARS) X(LOAD_DEREF) X(STORE_DEREF)  \
              X(DELETE_DEREF) X(BUILD_TUPLE) X(BUILD_LIST) X(BUILD_SET) X(BUILD_MAP) X(BUILD_CONST_KEY_MAP)          \
                  X(BUILD_STRING) X(BUILD_SLICE) X(LIST_APPEND) X(SET_ADD) X(MAP_ADD) X(LIST_EXTEND) X(SET_UPDATE)   \
                      X(DICT_UPDATE) X(DICT_MERGE) X(UNPACK_SEQUENCE) X(UNPACK_EX) X(MAKE_FUNCTION) X(CALL)          \
                          X(CALL_FUNCTION_EX) X(GET_ITER) X(GET_YIELD_FROM_ITER) X(RETURN_GENERATOR) X(RETURN_VALUE) \
                              X(RAISE_VARARGS) X(RERAISE) X(PUSH_EXC_INFO) X(POP_EXCEPT) X(CHECK_EXC_MATCH)          \
                                  X(LOAD_ASSERTION_ERROR) X(BEFORE_WITH) X(WITH_EXCEPT_START) X(IMPORT_NAME)         \
                                      X(IMPORT_FROM)

// These go by several names, have different arguments, or are missing in some versions.
#define MG_OTHER_OPERATIONS(X)                                                                                        \
  X(RESUME)      /* 0: a function begins; 1: behind yield; 2: behind yield from; 3: behind await */                   \
  X(YIELD_VALUE) /* 1: from another generator */                                                                      \
  X(JUMP)                                                                                                             \
  X(LOOP) /* from here on to SEND: the index where it goes on; LOOP looks up from its work */                         \
  X(POP_JUMP_IF_FALSE)                                                                                                \
  X(POP_JUMP_IF_TRUE)                                                                                                 \
  X(POP_JUMP_IF_NONE) X(POP_JUMP_IF_NOT_NONE) X(JUMP_IF_FALSE_OR_POP) X(JUMP_IF_TRUE_OR_POP)                          \
      X(FOR_ITER)                                    /* behind the loop, the iterator is gone */                      \
      X(SEND)                                        /* behind `yield from`, the inner generator is gone */           \
      X(END_SEND)                                    /* drops what is below the top */                                \
      X(CLEANUP_THROW)                               /* (generator, value, StopIteration) become (None, its value) */ \
      X(STOP_ITERATION_ERROR) X(COMPARE_OP)          /* the operator, + MG_AS_BOOL */                                 \
      X(TO_BOOL)                                     /* 1: the next instruction asks a number itself */               \
      X(LOAD_ATTR) X(LOAD_METHOD) X(LOAD_SUPER_ATTR) /* 4 * name, + 1: a method, + 2: of super with arguments */      \
      X(LOAD_FAST_AND_CLEAR) X(LOAD_FAST_LOAD_FAST)  /* these three: 16 * first + second */                           \
      X(STORE_FAST_LOAD_FAST) X(STORE_FAST_STORE_FAST) X(BINARY_SLICE) X(STORE_SLICE) X(UNARY_POSITIVE)               \
          X(LIST_TO_TUPLE) X(FORMAT_VALUE)  /* 1, 2, 3: str, repr, ascii; + 4: with a format */                       \
      X(CONVERT_VALUE)                      /* 1, 2, 3 likewise */                                                    \
      X(SET_FUNCTION_ATTRIBUTE) X(KW_NAMES) /* of the call that follows */                                            \
      X(CALL_KW)                            /* the names are on the stack */                                          \
      X(RETURN_CONST)

#define MG_AS_BOOL 8

#define MG_DECLARE(name) MG_##name,
typedef enum {
  MG_UNKNOWN,  // left to CPython
  MG_COMMON_OPERATIONS(MG_DECLARE) MG_OTHER_OPERATIONS(MG_DECLARE)
} mg_operation;
#undef MG_DECLARE

// A call finds two values below its arguments: a method and `self`, or a function and a hole, in this order from
// CPython 3.13 on; before that the hole came first.
#define MG_HOLE (PY_VERSION_HEX >= 0x030d0000 ? 1 : 0)
