// Translates the instructions of each CPython into the one set of operations.
#define Py_BUILD_CORE 1
#include "cpython/operations.h"

#include <opcode.h>
#if PY_VERSION_HEX >= 0x030c0000
#include "internal/pycore_intrinsics.h"
#endif

#include "cpython/code_extra.h"

// What becomes of the argument.
typedef enum { kAsItIs, kDropped, kTarget, kBehindOne, kBehindTwo } operand_kind;

typedef struct {
  uint8_t operation, operand;
} row;

// Unknown to the interpreter: what is not here.
#define COMMON(name) [name] = {MG_##name},
// clang-format off
static const row table[256] = {
    MG_COMMON_OPERATIONS(COMMON)
    [EXTENDED_ARG] = {MG_NOP},
    [RESUME] = {MG_RESUME},
    [JUMP_FORWARD] = {MG_JUMP, kTarget},
    [JUMP_BACKWARD] = {MG_LOOP, kTarget},
    [JUMP_BACKWARD_NO_INTERRUPT] = {MG_JUMP, kTarget},
    [LOAD_ATTR] = {MG_LOAD_ATTR},
    [COMPARE_OP] = {MG_COMPARE_OP},
#if PY_VERSION_HEX < 0x030c0000
    [POP_JUMP_FORWARD_IF_FALSE] = {MG_POP_JUMP_IF_FALSE, kTarget},
    [POP_JUMP_BACKWARD_IF_FALSE] = {MG_POP_JUMP_IF_FALSE, kTarget},
    [POP_JUMP_FORWARD_IF_TRUE] = {MG_POP_JUMP_IF_TRUE, kTarget},
    [POP_JUMP_BACKWARD_IF_TRUE] = {MG_POP_JUMP_IF_TRUE, kTarget},
    [POP_JUMP_FORWARD_IF_NONE] = {MG_POP_JUMP_IF_NONE, kTarget},
    [POP_JUMP_BACKWARD_IF_NONE] = {MG_POP_JUMP_IF_NONE, kTarget},
    [POP_JUMP_FORWARD_IF_NOT_NONE] = {MG_POP_JUMP_IF_NOT_NONE, kTarget},
    [POP_JUMP_BACKWARD_IF_NOT_NONE] = {MG_POP_JUMP_IF_NOT_NONE, kTarget},
    [JUMP_IF_FALSE_OR_POP] = {MG_JUMP_IF_FALSE_OR_POP, kTarget},
    [JUMP_IF_TRUE_OR_POP] = {MG_JUMP_IF_TRUE_OR_POP, kTarget},
    [FOR_ITER] = {MG_FOR_ITER, kTarget},
    [SEND] = {MG_SEND, kTarget},
    [YIELD_VALUE] = {MG_YIELD_VALUE, kDropped},
    [LOAD_METHOD] = {MG_LOAD_METHOD},
    [UNARY_POSITIVE] = {MG_UNARY_POSITIVE},
    [LIST_TO_TUPLE] = {MG_LIST_TO_TUPLE},
    [PRECALL] = {MG_NOP},  // CALL does it all
    [LOAD_CLASSDEREF] = {MG_LOAD_CLASSDEREF},
    [PREP_RERAISE_STAR] = {MG_PREP_RERAISE_STAR},
    [IMPORT_STAR] = {MG_IMPORT_STAR, kDropped},
#else
    [POP_JUMP_IF_FALSE] = {MG_POP_JUMP_IF_FALSE, kTarget},
    [POP_JUMP_IF_TRUE] = {MG_POP_JUMP_IF_TRUE, kTarget},
    [POP_JUMP_IF_NONE] = {MG_POP_JUMP_IF_NONE, kTarget},
    [POP_JUMP_IF_NOT_NONE] = {MG_POP_JUMP_IF_NOT_NONE, kTarget},
    [SEND] = {MG_SEND, kBehindOne},  // END_SEND
    [END_SEND] = {MG_END_SEND},
    [CLEANUP_THROW] = {MG_CLEANUP_THROW},
    [LOAD_SUPER_ATTR] = {MG_LOAD_SUPER_ATTR},
    [LOAD_FAST_CHECK] = {MG_LOAD_FAST},
    [LOAD_FAST_AND_CLEAR] = {MG_LOAD_FAST_AND_CLEAR},
    [BINARY_SLICE] = {MG_BINARY_SLICE},
    [STORE_SLICE] = {MG_STORE_SLICE},
    [RETURN_CONST] = {MG_RETURN_CONST},
    [LOAD_LOCALS] = {MG_LOAD_LOCALS},
    [LOAD_FROM_DICT_OR_GLOBALS] = {MG_LOAD_FROM_DICT_OR_GLOBALS},
    [LOAD_FROM_DICT_OR_DEREF] = {MG_LOAD_FROM_DICT_OR_DEREF},
#endif
#if PY_VERSION_HEX >= 0x030c0000 && PY_VERSION_HEX < 0x030d0000
    [FOR_ITER] = {MG_FOR_ITER, kBehindOne},      // END_FOR
    [YIELD_VALUE] = {MG_YIELD_VALUE, kDropped},  // how many blocks it stands in
#endif
#if PY_VERSION_HEX < 0x030d0000
    [LOAD_CLOSURE] = {MG_LOAD_FAST},
    [FORMAT_VALUE] = {MG_FORMAT_VALUE},
    [KW_NAMES] = {MG_KW_NAMES},
#else
    [FOR_ITER] = {MG_FOR_ITER, kBehindTwo},  // END_FOR, POP_TOP
    [YIELD_VALUE] = {MG_YIELD_VALUE},
    [TO_BOOL] = {MG_TO_BOOL, kDropped},
    [LOAD_FAST_LOAD_FAST] = {MG_LOAD_FAST_LOAD_FAST},
    [STORE_FAST_LOAD_FAST] = {MG_STORE_FAST_LOAD_FAST},
    [STORE_FAST_STORE_FAST] = {MG_STORE_FAST_STORE_FAST},
    [CONVERT_VALUE] = {MG_CONVERT_VALUE},
    [FORMAT_SIMPLE] = {MG_FORMAT_VALUE, kDropped},
    [FORMAT_WITH_SPEC] = {MG_FORMAT_VALUE, kDropped},  // + 4
    [SET_FUNCTION_ATTRIBUTE] = {MG_SET_FUNCTION_ATTRIBUTE},
    [CALL_KW] = {MG_CALL_KW},
#endif
};
// clang-format on
#undef COMMON

static uint32_t operand_of(const mg_instruction* instruction) {
  switch (table[instruction->opcode].operand) {
    case kDropped: return 0;
    case kTarget: return (uint32_t)mg_jump_target(instruction);
    case kBehindOne: return (uint32_t)mg_jump_target(instruction) + 1;
    case kBehindTwo: return (uint32_t)mg_jump_target(instruction) + 2;
    default: return instruction->arg;
  }
}

#if PY_VERSION_HEX >= 0x030c0000
static mg_operation intrinsic(uint32_t number) {
  switch (number) {
    case INTRINSIC_UNARY_POSITIVE: return MG_UNARY_POSITIVE;
    case INTRINSIC_LIST_TO_TUPLE: return MG_LIST_TO_TUPLE;
    case INTRINSIC_STOPITERATION_ERROR: return MG_STOP_ITERATION_ERROR;
    case INTRINSIC_IMPORT_STAR: return MG_IMPORT_STAR;
    case INTRINSIC_TYPEVAR:
    case INTRINSIC_PARAMSPEC:
    case INTRINSIC_TYPEVARTUPLE:
    case INTRINSIC_SUBSCRIPT_GENERIC:
    case INTRINSIC_TYPEALIAS: return MG_TYPE_PARAMETERS;
    default: return MG_UNKNOWN;
  }
}
#endif

static void translate_one(mg_instruction* instruction) {
  uint32_t arg = instruction->arg;
  instruction->operation = table[instruction->opcode].operation;
  instruction->operand = operand_of(instruction);
  switch (instruction->opcode) {
    case RESUME: instruction->operand = arg & 3; break;
#if PY_VERSION_HEX >= 0x030c0000
    case CALL_INTRINSIC_1:
      instruction->operation = intrinsic(arg);
      instruction->operand = 1;
      break;
    case CALL_INTRINSIC_2:
      instruction->operation = arg == INTRINSIC_PREP_RERAISE_STAR ? MG_PREP_RERAISE_STAR : MG_TYPE_PARAMETERS;
      instruction->operand = 2;
      break;
    case LOAD_ATTR:
      instruction->operation = arg & 1 ? MG_LOAD_METHOD : MG_LOAD_ATTR;
      instruction->operand = arg >> 1;
      break;
#endif
#if PY_VERSION_HEX >= 0x030d0000
    case COMPARE_OP: instruction->operand = (arg >> 5) | (arg & 16 ? MG_AS_BOOL : 0); break;
    case FORMAT_WITH_SPEC: instruction->operand = 4; break;
#elif PY_VERSION_HEX >= 0x030c0000
    case COMPARE_OP: instruction->operand = arg >> 4; break;
#endif
  }
}

static bool asks_for_truth(uint8_t operation) {
  return operation == MG_POP_JUMP_IF_FALSE || operation == MG_POP_JUMP_IF_TRUE || operation == MG_UNARY_NOT;
}

// TO_BOOL and the instruction behind it are one for the interpreter, so CPython takes over in front of both.
static void join_with_next(mg_instruction* code, int index, int count) {
  int next = code[index].next;
  while (next < count && code[next].operation == MG_NOP) next = code[next].next;
  if (next >= count || !asks_for_truth(code[next].operation)) return;
  code[index].operand = 1;
  for (int i = code[index].next; i <= next; i = code[i].next) code[i].lead = (uint16_t)(i - index + code[index].lead);
}

void translate(mg_instruction* code, int count) {
  for (int i = 0; i < count; i = code[i].next) translate_one(&code[i]);
  for (int i = 0; i < count; i = code[i].next)
    if (code[i].operation == MG_TO_BOOL) join_with_next(code, i, count);
}
