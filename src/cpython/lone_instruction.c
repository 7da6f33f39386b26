// Lets CPython execute a single instruction, in a frame made for it.
#include "cpython/frame_layout.h"

#include <opcode.h>

// Where the instruction stands in its code; the operands are pushed before it.
static int place_of(const mg_lone_instruction* instruction) { return 1 + instruction->operands; }

static PyObject* bytecode(const mg_lone_instruction* instruction) {
  uint8_t bytes[64], *end = bytes;
#define ADD(opcode, arg) (*end++ = (uint8_t)(opcode), *end++ = (uint8_t)(arg))
  ADD(RESUME, 0);
  for (int i = 0; i < instruction->operands; ++i) ADD(LOAD_CONST, 0);
  ADD(instruction->opcode, instruction->arg);
  for (int i = 0; i < mg_opcode_caches((uint8_t)instruction->opcode); ++i) ADD(CACHE, 0);
  if (instruction->results == 0) ADD(LOAD_CONST, 0);
  if (instruction->results > 1) ADD(BUILD_TUPLE, instruction->results);
  ADD(RETURN_VALUE, 0);
#undef ADD
  return PyBytes_FromStringAndSize((const char*)bytes, end - bytes);
}

static PyCodeObject* make_code(const mg_lone_instruction* instruction) {
  PyObject* empty = (PyObject*)PyCode_NewEmpty("<instruction>", "instruction", 1);
  PyObject* replace = empty ? PyObject_GetAttrString(empty, "replace") : NULL;
  PyObject* names = instruction->name ? PyTuple_Pack(1, instruction->name) : PyTuple_New(0);
  PyObject* changes = Py_BuildValue("{s:N,s:(O),s:N,s:i}", "co_code", bytecode(instruction), "co_consts", Py_None,
                                    "co_names", names, "co_stacksize", instruction->operands + 2);
  PyObject* nothing = PyTuple_New(0);
  PyObject* code = replace && changes && nothing ? PyObject_Call(replace, nothing, changes) : NULL;
  Py_XDECREF(nothing);
  Py_XDECREF(changes);
  Py_XDECREF(replace);
  Py_XDECREF(empty);
  return (PyCodeObject*)code;
}

// Takes the frame of the instruction out of the traceback of the error that is set.
static void forget_frame(PyCodeObject* code) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyTracebackObject* outermost = (PyTracebackObject*)traceback;
  if (outermost && mg_frame_code(mg_frame_of(outermost->tb_frame)) == code) {
    PyObject* rest = Py_XNewRef((PyObject*)outermost->tb_next);
    Py_SETREF(traceback, rest);
    PyException_SetTraceback(value, rest ? rest : Py_None);
  }
  PyErr_Restore(type, value, traceback);
}

PyObject* mg_run_instruction(PyThreadState* thread, const mg_lone_instruction* instruction, PyObject* const* operands) {
  PyCodeObject* code = make_code(instruction);
  PyObject* function = code ? PyFunction_New((PyObject*)code, instruction->globals) : NULL;
  mg_snapshot* snapshot =
      function ? mg_snapshot_new((PyFunctionObject*)function, code, place_of(instruction), instruction->operands)
               : NULL;
  PyObject* result = NULL;
  if (snapshot) {
    snapshot->names = Py_XNewRef(instruction->names);
    for (int i = 0; i < instruction->operands; ++i) snapshot->values[i] = Py_NewRef(operands[i]);
    result = mg_resume(thread, &snapshot, 1);
    if (!result) forget_frame(code);
  }
  Py_XDECREF(function);
  Py_XDECREF(code);
  return result;
}
