// What bytecode instructions do, as one set for all versions of CPython: the names and arguments that the interpreter
// of trace/ knows.
#pragma once
#include <Python.h>

// clang-format off
// Every version has these, under these names and with the same argument.
#define MG_COMMON_OPERATIONS(X) \
  X(NOP) X(POP_TOP) X(PUSH_NULL) X(COPY) X(SWAP) \
  X(UNARY_NEGATIVE) X(UNARY_INVERT) X(UNARY_NOT) X(BINARY_OP) X(IS_OP) X(CONTAINS_OP) \
  X(BINARY_SUBSCR) X(STORE_SUBSCR) X(DELETE_SUBSCR) X(STORE_ATTR) X(DELETE_ATTR) \
  X(LOAD_CONST) X(LOAD_FAST) X(STORE_FAST) X(DELETE_FAST) X(LOAD_GLOBAL) X(STORE_GLOBAL) \
  X(MAKE_CELL) X(COPY_FREE_VARS) X(LOAD_DEREF) X(STORE_DEREF) X(DELETE_DEREF) \
  X(BUILD_TUPLE) X(BUILD_LIST) X(BUILD_SET) X(BUILD_MAP) X(BUILD_CONST_KEY_MAP) X(BUILD_STRING) X(BUILD_SLICE) \
  X(LIST_APPEND) X(SET_ADD) X(MAP_ADD) X(LIST_EXTEND) X(SET_UPDATE) X(DICT_UPDATE) X(DICT_MERGE) \
  X(UNPACK_SEQUENCE) X(UNPACK_EX) X(MAKE_FUNCTION) X(CALL) X(CALL_FUNCTION_EX) \
  X(GET_ITER) X(GET_YIELD_FROM_ITER) X(RETURN_GENERATOR) X(RETURN_VALUE) \
  X(RAISE_VARARGS) X(RERAISE) X(PUSH_EXC_INFO) X(POP_EXCEPT) X(CHECK_EXC_MATCH) X(LOAD_ASSERTION_ERROR) \
  X(BEFORE_WITH) X(WITH_EXCEPT_START) X(IMPORT_NAME) X(IMPORT_FROM) \
  X(GET_LEN) X(MATCH_SEQUENCE) X(MATCH_MAPPING) X(MATCH_KEYS) X(MATCH_CLASS) X(CHECK_EG_MATCH) X(DELETE_GLOBAL) \
  X(LOAD_BUILD_CLASS) X(SETUP_ANNOTATIONS) X(LOAD_NAME) X(STORE_NAME) X(DELETE_NAME)

#define MG_DECLARE(name) MG_##name,
typedef enum {
  MG_UNKNOWN,  // left to CPython
  MG_COMMON_OPERATIONS(MG_DECLARE)

  // These go by several names, have different arguments, or are missing in some versions.
  MG_RESUME,       // 0: a function begins; 1: behind yield; 2: behind yield from; 3: behind await
  MG_YIELD_VALUE,  // 1: what another generator gave

  // To the index of an instruction.
  MG_JUMP,
  MG_LOOP,  // looks up from its work, as all jumps do that go back on a condition
  MG_POP_JUMP_IF_FALSE, MG_POP_JUMP_IF_TRUE, MG_POP_JUMP_IF_NONE, MG_POP_JUMP_IF_NOT_NONE,
  MG_JUMP_IF_FALSE_OR_POP, MG_JUMP_IF_TRUE_OR_POP,
  MG_FOR_ITER,  // at the end drops the iterator and goes behind the loop
  MG_SEND,      // at the end drops the inner generator and goes behind `yield from`

  MG_END_SEND,              // drops what is below the top
  MG_CLEANUP_THROW,         // (generator, value, StopIteration) become (None, its value)
  MG_STOP_ITERATION_ERROR,  // for a StopIteration that leaves a generator
  MG_COMPARE_OP,            // the operator, + MG_AS_BOOL
  MG_TO_BOOL,               // 1: of a number, the next instruction asks itself
  MG_LOAD_ATTR, MG_LOAD_METHOD,
  MG_LOAD_SUPER_ATTR,  // 4 * name, + 1: a method, + 2: of super with arguments
  MG_LOAD_FAST_AND_CLEAR,
  MG_LOAD_FAST_LOAD_FAST, MG_STORE_FAST_LOAD_FAST, MG_STORE_FAST_STORE_FAST,  // 16 * first + second
  MG_BINARY_SLICE, MG_STORE_SLICE, MG_UNARY_POSITIVE, MG_LIST_TO_TUPLE,
  MG_FORMAT_VALUE,   // 1, 2, 3: str, repr, ascii; + 4: with a format
  MG_CONVERT_VALUE,  // 1, 2, 3 likewise
  MG_SET_FUNCTION_ATTRIBUTE,
  MG_KW_NAMES,  // of the call that follows
  MG_CALL_KW,   // the names are on the stack
  MG_RETURN_CONST,
  MG_LOAD_LOCALS, MG_LOAD_FROM_DICT_OR_GLOBALS, MG_LOAD_FROM_DICT_OR_DEREF,
  MG_LOAD_CLASSDEREF,  // the same from the names of the class body itself
  MG_IMPORT_STAR,      // how many results it has
  MG_PREP_RERAISE_STAR,
  MG_TYPE_PARAMETERS,  // how many operands it has; there is one result
} mg_operation;
#undef MG_DECLARE
// clang-format on

#define MG_AS_BOOL 8

// A call finds two values below its arguments: a method and `self`, or a function and a hole, in this order from
// CPython 3.13 on; before that the hole came first.
#define MG_HOLE (PY_VERSION_HEX >= 0x030d0000 ? 1 : 0)
