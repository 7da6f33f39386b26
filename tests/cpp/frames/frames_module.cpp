// The Python module `_frames`: snapshots as plain tuples, so that tests can take, change, build and resume them.
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"

using magneto::py::Ref;

namespace {

PyObject* unbound;  // stands for NULL in locals and on the stack

// (function, code, index, locals, stack, names, handled, generator, instead)
constexpr const char* kFields = "O!O!iO!O!OOOO";

Ref list_of(PyObject** values, int count) {
  Ref list = Ref::steal(PyList_New(count));
  for (int i = 0; list && i < count; ++i) PyList_SET_ITEM(list.get(), i, Py_NewRef(values[i] ? values[i] : unbound));
  return list;
}

PyObject* or_none(PyObject* object) { return object ? object : Py_None; }

Ref to_tuple(mg_snapshot* snapshot) {
  int locals = snapshot->code->co_nlocalsplus;
  Ref values = list_of(snapshot->values, locals), stack = list_of(snapshot->values + locals, snapshot->depth);
  return Ref::steal(Py_BuildValue("OOiOOOOOO", snapshot->function, snapshot->code, snapshot->index, values.get(),
                                  stack.get(), or_none(snapshot->names), or_none(snapshot->handled),
                                  or_none(snapshot->generator), or_none(snapshot->instead)));
}

void fill(PyObject** values, PyObject* list) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* value = PyList_GET_ITEM(list, i);
    values[i] = value == unbound ? nullptr : Py_NewRef(value);
  }
}

PyObject* optional(PyObject* object) { return object == Py_None ? nullptr : Py_NewRef(object); }

mg_snapshot* from_tuple(PyObject* tuple) {
  PyObject *function, *code, *locals, *stack, *names, *handled, *generator, *instead;
  int index;
  if (!PyTuple_Check(tuple)) return PyErr_SetString(PyExc_TypeError, "a snapshot is a tuple"), nullptr;
  if (!PyArg_ParseTuple(tuple, kFields, &PyFunction_Type, &function, &PyCode_Type, &code, &index, &PyList_Type, &locals,
                        &PyList_Type, &stack, &names, &handled, &generator, &instead))
    return nullptr;
  int count = reinterpret_cast<PyCodeObject*>(code)->co_nlocalsplus;
  if (PyList_GET_SIZE(locals) != count)
    return PyErr_Format(PyExc_ValueError, "the code has %d locals, cells and free variables", count), nullptr;
  mg_snapshot* snapshot =
      mg_snapshot_new(reinterpret_cast<PyFunctionObject*>(function), reinterpret_cast<PyCodeObject*>(code), index,
                      static_cast<int>(PyList_GET_SIZE(stack)));
  if (!snapshot) return nullptr;
  fill(snapshot->values, locals);
  fill(snapshot->values + count, stack);
  snapshot->names = optional(names);
  snapshot->handled = optional(handled);
  snapshot->generator = optional(generator);
  snapshot->instead = optional(instead);
  return snapshot;
}

PyObject* take(PyObject*, PyObject* args) {
  PyObject* frame;
  int count;
  if (!PyArg_ParseTuple(args, "O!i", &PyFrame_Type, &frame, &count)) return nullptr;
  if (count < 1) return PyErr_Format(PyExc_ValueError, "count must be positive"), nullptr;
  std::vector<mg_snapshot*> chain(count);
  if (!mg_snapshot_take(PyThreadState_Get(), mg_frame_of((PyFrameObject*)frame), count, chain.data())) return nullptr;
  Ref tuples = Ref::steal(PyList_New(0));
  for (mg_snapshot* snapshot : chain) {
    Ref tuple = to_tuple(snapshot);
    if (!tuple || PyList_Append(tuples.get(), tuple.get()) < 0) tuples = Ref();
    mg_snapshot_free(snapshot);
    if (!tuples) break;
  }
  return tuples.release();
}

// How many frames a chain from this one outwards can have.
PyObject* chain_length(PyObject*, PyObject* frame) {
  if (!PyFrame_Check(frame)) return PyErr_SetString(PyExc_TypeError, "expected a frame"), nullptr;
  int length = 0;
  for (mg_frame* at = mg_frame_of((PyFrameObject*)frame); at; at = mg_frame_caller(at)) ++length;
  return PyLong_FromLong(length);
}

PyObject* resume(PyObject*, PyObject* args) {
  PyObject *tuples, *raised = Py_None;
  int use_up = false;
  if (!PyArg_ParseTuple(args, "O!|Op", &PyList_Type, &tuples, &raised, &use_up)) return nullptr;
  std::vector<mg_snapshot*> chain;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tuples); ++i) {
    chain.push_back(from_tuple(PyList_GET_ITEM(tuples, i)));
    if (chain.back()) continue;
    for (mg_snapshot* snapshot : chain) mg_snapshot_free(snapshot);
    return nullptr;
  }
  if (use_up && PyList_SetSlice(tuples, 0, PyList_GET_SIZE(tuples), nullptr) < 0) PyErr_Clear();
  if (raised != Py_None) PyErr_SetObject((PyObject*)Py_TYPE(raised), raised);
  return mg_resume(PyThreadState_Get(), chain.data(), static_cast<int>(chain.size()));
}

// What sys.exc_info() tells, set from outside: a test that stops a frame between two instructions may leave it wrong.
PyObject* set_handled(PyObject*, PyObject* exception) {
  if (exception != Py_None && !PyExceptionInstance_Check(exception))
    return PyErr_SetString(PyExc_TypeError, "expected an exception or None"), nullptr;
  PyErr_SetHandledException(exception);
  Py_RETURN_NONE;
}

PyObject* suspended_generator(PyObject*, PyObject* tuple) {
  mg_snapshot* snapshot = from_tuple(tuple);
  return snapshot ? mg_suspended_generator(PyThreadState_Get(), snapshot) : nullptr;
}

PyObject* new_generator(PyObject*, PyObject* args) {
  PyObject *function, *code;
  if (!PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &function, &PyCode_Type, &code)) return nullptr;
  return mg_new_generator(PyThreadState_Get(), (PyFunctionObject*)function, (PyCodeObject*)code);
}

// [(index, opcode, arg, next, restart, line, depth, saved)] of every instruction.
PyObject* decode(PyObject*, PyObject* object) {
  if (!PyCode_Check(object)) return PyErr_SetString(PyExc_TypeError, "expected a code object"), nullptr;
  auto* code = (PyCodeObject*)object;
  const mg_instruction* decoded = mg_decoded(code);
  const mg_flow* flow = decoded ? mg_code_flow(code) : nullptr;
  if (!flow) return nullptr;
  Ref rows = Ref::steal(PyList_New(0));
  for (int i = 0; rows && i < mg_code_units(code); i = decoded[i].next) {
    Ref row = Ref::steal(Py_BuildValue("iiIiiiii", i, decoded[i].opcode, decoded[i].arg, decoded[i].next,
                                       i - decoded[i].lead, mg_line(code, i), flow[i].depth, flow[i].saved));
    if (!row || PyList_Append(rows.get(), row.get()) < 0) return nullptr;
  }
  return rows.release();
}

PyMethodDef methods[] = {
    {"take", take, METH_VARARGS, "take(frame, count): snapshots of the frame and its callers, outermost first."},
    {"chain_length", chain_length, METH_O, "How many frames can be taken from this one outwards."},
    {"resume", resume, METH_VARARGS,
     "resume(snapshots, raised=None, use_up=False): what the outermost frame returns; use_up empties the list before."},
    {"new_generator", new_generator, METH_VARARGS, "new_generator(function, code)"},
    {"suspended_generator", suspended_generator, METH_O, "A generator that stands at the snapshot."},
    {"set_handled", set_handled, METH_O, "Makes sys.exc_info() tell this."},
    {"decode", decode, METH_O, "(index, opcode, arg, next, restart, line, depth, saved) of every instruction."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_frames", "Frames, for tests.", -1, methods, 0, 0, 0, 0};

}  // namespace

PyMODINIT_FUNC PyInit__frames() {
  Ref created = Ref::steal(PyModule_Create(&module));
  unbound = created ? PyObject_CallNoArgs((PyObject*)&PyBaseObject_Type) : nullptr;
  if (!unbound || PyModule_AddObjectRef(created.get(), "UNBOUND", unbound) < 0) return nullptr;
  return created.release();
}
