// Views of frames. The frame in question has not started and has no frame object; its callers have one.
#include "frame/frame_view.h"

#include <string>

#include "runtime/state.h"

namespace magneto::frame {

namespace {

struct FrameView {
  PyObject_HEAD
  bool ended;
  FrameView* root;       // owned; of a caller's view: the one of the fresh frame, with which it ends
  PyObject* caller;      // the frame object of the caller, which is the one that a caller's view shows
  PyObject* callers;     // owned; of a view without a root: a list of all such frame objects, until it ends
  mg_fresh_frame frame;  // of a view without a root
};

FrameView* as_view(PyObject* object) { return reinterpret_cast<FrameView*>(object); }

// Which attribute is asked for; the names are those of frame objects.
enum Field { kFunc, kGlobals, kBuiltins, kLocals, kCode, kLasti, kLineno, kBack, kFrameObject, kPrevious, kClosure };
constexpr const char* kNames[] = {"f_func",   "f_globals", "f_builtins", "f_locals", "f_code", "f_lasti",
                                  "f_lineno", "f_back",    "frame_obj",  "previous", "closure"};

PyObject* new_or_none(PyObject* borrowed) { return Py_NewRef(borrowed ? borrowed : Py_None); }

PyObject* closure_of(PyObject* function) {
  PyObject* closure = function ? PyFunction_GET_CLOSURE(function) : nullptr;
  return closure ? Py_NewRef(closure) : PyTuple_New(0);
}

FrameView* new_view() { return PyObject_GC_New(FrameView, runtime::process_state().frame_view_type); }

// Of a frame object; None for null and None.
PyObject* caller_view(FrameView* root, py::Ref caller) {
  if (!caller || caller.get() == Py_None) return Py_NewRef(Py_None);
  FrameView* view = PyList_Append(root->callers, caller.get()) < 0 ? nullptr : new_view();
  if (!view) return nullptr;
  view->ended = false;
  view->root = as_view(Py_NewRef(reinterpret_cast<PyObject*>(root)));
  view->caller = caller.get();
  view->callers = nullptr;
  PyObject_GC_Track(view);
  return reinterpret_cast<PyObject*>(view);
}

PyObject* field_of_caller(FrameView* view, Field field) {
  switch (field) {
    case kFunc: return new_or_none(mg_frame_object_function(view->caller));
    case kFrameObject: return Py_NewRef(view->caller);
    case kClosure: return closure_of(mg_frame_object_function(view->caller));
    case kPrevious: {
      py::Ref back = py::Ref::steal(PyObject_GetAttrString(view->caller, "f_back"));
      return back ? caller_view(view->root, std::move(back)) : nullptr;
    }
    default: return PyObject_GetAttrString(view->caller, kNames[field]);
  }
}

PyObject* field_of_frame(FrameView* view, Field field) {
  const mg_fresh_frame& frame = view->frame;
  switch (field) {
    case kFunc: return Py_NewRef(reinterpret_cast<PyObject*>(frame.function));
    case kGlobals: return Py_NewRef(frame.globals);
    case kBuiltins: return Py_NewRef(frame.builtins);
    case kLocals: return mg_fresh_frame_locals(&frame);
    case kCode: return Py_NewRef(reinterpret_cast<PyObject*>(frame.code));
    case kLasti: return PyLong_FromLong(-1);
    case kLineno: return PyLong_FromLong(frame.code->co_firstlineno);
    case kBack: return new_or_none(view->caller);
    case kFrameObject: return new_or_none(frame.frame_object);
    case kPrevious: return caller_view(view, py::Ref::borrow(view->caller));
    case kClosure: return closure_of(reinterpret_cast<PyObject*>(frame.function));
  }
  Py_UNREACHABLE();
}

PyObject* get_field(PyObject* self, void* closure) {
  auto* view = as_view(self);
  Field field = *static_cast<Field*>(closure);
  if (view->ended || (view->root && view->root->ended)) {
    PyErr_Format(PyExc_RuntimeError,
                 "%s: the frame is gone; a _PyInterpreterFrame can be used only while the callback runs that it was "
                 "passed to",
                 kNames[field]);
    return nullptr;
  }
  return view->root ? field_of_caller(view, field) : field_of_frame(view, field);
}

Field kFields[] = {kFunc,   kGlobals, kBuiltins,    kLocals,   kCode,   kLasti,
                   kLineno, kBack,    kFrameObject, kPrevious, kClosure};
#define FIELD(field, doc) {kNames[field], get_field, nullptr, doc, &kFields[field]}
PyGetSetDef kGetSets[] = {
    FIELD(kFunc, "The function."),
    FIELD(kGlobals, "The global variables."),
    FIELD(kBuiltins, "The builtins."),
    FIELD(kLocals, "A dict of the arguments and free variables; in a class body or module, the namespace."),
    FIELD(kCode, "The code object."),
    FIELD(kLasti, "The last instruction, as in frame objects: -1 if the frame has not started."),
    FIELD(kLineno, "The line number."),
    FIELD(kBack, "The frame object of the caller, or None."),
    FIELD(kFrameObject, "The frame object, or None if there is none yet."),
    FIELD(kPrevious, "The caller as such a view, or None."),
    FIELD(kClosure, "The cells of the free variables."),
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
#undef FIELD

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_view(self)->root);
  Py_VISIT(as_view(self)->callers);
  return 0;
}

int clear(PyObject* self) {
  as_view(self)->ended = true;
  Py_CLEAR(as_view(self)->callers);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_XDECREF(as_view(self)->callers);
  Py_XDECREF(as_view(self)->root);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyType_Slot kSlots[] = {{Py_tp_traverse, (void*)traverse},
                        {Py_tp_clear, (void*)clear},
                        {Py_tp_dealloc, (void*)dealloc},
                        {Py_tp_getset, kGetSets},
                        {Py_tp_doc, (void*)"A frame that is about to run, or a caller of it."},
                        {0, nullptr}};

}  // namespace

py::Ref make_frame_view(const mg_fresh_frame& frame) {
  // The frame is not linked to its caller yet: the frame that runs now is the caller.
  py::Ref caller = py::Ref::steal(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  py::Ref callers = py::Ref::steal(PyList_New(0));
  if (!callers || (caller && PyList_Append(callers.get(), caller.get()) < 0)) return {};
  FrameView* view = new_view();
  if (!view) return {};
  view->ended = false;
  view->root = nullptr;
  view->caller = caller.get();
  view->callers = callers.release();
  view->frame = frame;
  PyObject_GC_Track(view);
  return py::Ref::steal(reinterpret_cast<PyObject*>(view));
}

void end_frame_view(PyObject* view) { clear(view); }

bool make_frame_view_type(const char* module_name) {
  static std::string name = std::string(module_name) + ".InterpreterFrame";
  static PyType_Spec spec = {name.c_str(), sizeof(FrameView), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};
  runtime::process_state().frame_view_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return runtime::process_state().frame_view_type != nullptr;
}

}  // namespace magneto::frame
