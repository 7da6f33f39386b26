// Torch behind the interface runtime::TensorPlug.
#include "record/torch_plug.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "record/call_table.h"
#include "record/global_state.h"
#include "record/live_recorder.h"
#include "record/plain_tensor.h"
#include "record/recorder_kernels.h"
#include "record/symbolic_recording.h"
#include "record/tensor_checks.h"
#include "record/tensor_properties.h"
#include "runtime/errors.h"
#include "runtime/tensor_plug.h"
#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

using runtime::CallKind;
using std::string_view;

bool starts_with(string_view text, string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// The qualified name that C types carry: "torch._C.TensorBase".
bool is_torch_type(PyTypeObject* type) { return starts_with(type->tp_name, "torch."); }

string_view text_of(PyObject* object) {
  if (!object || !PyUnicode_Check(object)) return {};
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (!data) PyErr_Clear();
  return data ? string_view(data, static_cast<size_t>(size)) : string_view();
}

py::Ref get_attribute(PyObject* object, const char* name) {
  py::Ref value = py::Ref::steal(PyObject_GetAttrString(object, name));
  if (!value) throw InternalError(std::string("torch has no ") + name);
  return value;
}

class TorchPlug final : public runtime::TensorPlug {
 public:
  TorchPlug();

  std::string why_not_plain(PyObject* tensor) const override { return record::why_not_plain(tensor); }
  CallKind classify_call(PyObject* callable) const override;
  CallKind classify_attribute(PyObject* tensor, PyObject* name) const override;
  bool only_calls(PyObject* callable, PyObject* const* args, size_t count) const override;
  bool leads_to_unknown(PyObject* method, PyObject* const* args, size_t count) const override;
  bool may_be_left_out(PyObject* function) const override;
  bool hands_to_python() const override { return has_foreign_function_mode(); }
  bool is_part_of_operator(PyObject* function, PyObject* const* args) const override;
  bool is_call_context(PyObject* object) const override { return PyObject_TypeCheck(object, function_base_); }
  bool may_be_set(PyObject* name) const override;
  bool ignores_errors(PyObject* handler) const override;
  bool selects_by_contents(PyObject* key) const override;
  bool is_immutable(PyTypeObject* type) const override;
  bool is_mode(PyTypeObject* type) const override { return std::ranges::find(modes_, type) != modes_.end(); }
  std::string why_not_record() const override;
  std::unique_ptr<runtime::Recording> record(std::function<void(std::string)> on_fail) const override;
  std::unique_ptr<runtime::SymbolicRecording> record_symbolic(std::function<void(std::string)> on_fail) const override;
  std::vector<int> openable(PyObject* tensor) const override;
  runtime::SizeMarks size_marks(PyObject* tensor) const override;
  std::unique_ptr<runtime::TensorChecks> tensor_checks() const override { return make_tensor_checks(); }
  std::unique_ptr<runtime::GlobalState> global_state() const override { return snapshot_global_state(); }
  std::string why_not_checked(PyObject* tensor) const override { return record::why_not_checked(tensor); }
  const std::vector<std::string>& tensor_properties() const override { return property_names(); }
  PyObject* tensor_property(PyObject* tensor, size_t index) const override { return property_of(tensor, index); }
  std::unique_ptr<runtime::GlobalState> whole_state() const override { return snapshot_whole_state(); }

 private:
  void note_balanced(PyTypeObject* type, const char* name);
  void find_harmless_handlers(PyObject* torch);
  void find_default_device_code();
  CallKind classify_c_function(PyObject* callable) const;
  CallKind classify_new_c_function(PyObject* callable) const;
  CallKind classify_script_function(PyObject* callable) const;
  CallKind classify_type(PyTypeObject* type) const;
  CallKind classify_descriptor(PyObject* descriptor) const;
  bool need_gradients(PyObject* const* args, size_t count) const;
  bool is_tensor_base(PyTypeObject* type) const { return type == tensor_base_ || type == tensor_type; }

  PyTypeObject* tensor_base_;             // torch._C.TensorBase
  PyTypeObject* script_function_;         // torch._C.ScriptFunction
  std::vector<PyTypeObject*> modes_;      // torch._C._InferenceMode, ...
  PyTypeObject* function_base_;           // torch._C._FunctionBase
  py::Ref apply_;                         // its method
  py::Ref function_apply_;                // torch.autograd.Function.apply, unbound: Python that calls it
  py::Ref default_device_code_;           // of torch.utils._device.DeviceContext.__torch_function__, or null
  PyTypeObject* variable_functions_;      // the class behind torch.add and friends
  std::vector<PyTypeObject*> immutable_;  // dtype, device, ...
  // Classes whose objects guard a `with` block, with the code of their __exit__; or null, with code that has handlers.
  std::vector<std::pair<PyTypeObject*, PyObject*>> harmless_;
  std::vector<py::Ref> held_;  // keeps the above alive
  std::string why_never_;      // why nothing can be recorded in this process

  struct Known {
    CallKind kind;
    py::Ref holder;  // keeps the address that is the key from being used again; null for static tables
  };
  // Owned by the GIL.
  mutable std::unordered_map<const void*, Known> functions_;
  mutable std::unordered_map<PyObject*, Known> attributes_;
};

TorchPlug::TorchPlug() {
  tensor_type = runtime::tensor_class();
  if (!tensor_type || !runtime::parameter_class()) throw InternalError("torch is not imported");
  py::Ref torch = py::Ref::steal(PyImport_ImportModule("torch"));
  if (!torch) throw PythonError();
  py::Ref c_module = get_attribute(torch.get(), "_C");
  auto hold_type = [&](PyObject* module, const char* name) {
    held_.push_back(get_attribute(module, name));
    if (!PyType_Check(held_.back().get())) throw InternalError(std::string("torch.") + name + " is not a type");
    return reinterpret_cast<PyTypeObject*>(held_.back().get());
  };
  tensor_base_ = hold_type(c_module.get(), "TensorBase");
  script_function_ = hold_type(c_module.get(), "ScriptFunction");
  for (const char* name : {"_InferenceMode", "DisableTorchFunctionSubclass", "DisableTorchFunction"})
    modes_.push_back(hold_type(c_module.get(), name));
  for (PyTypeObject* mode : modes_)
    for (const char* name : {"__enter__", "__exit__"}) note_balanced(mode, name);
  function_base_ = hold_type(c_module.get(), "_FunctionBase");
  apply_ = get_attribute(held_.back().get(), "apply");
  py::Ref function = get_attribute(get_attribute(torch.get(), "autograd").get(), "Function");
  py::Ref function_apply = get_attribute(function.get(), "apply");
  if (PyMethod_Check(function_apply.get()))
    function_apply_ = py::Ref::borrow(PyMethod_GET_FUNCTION(function_apply.get()));
  variable_functions_ = hold_type(c_module.get(), "_VariableFunctionsClass");
  find_harmless_handlers(torch.get());
  find_default_device_code();
  for (const char* name : {"dtype", "device", "layout", "memory_format", "Size", "finfo", "iinfo", "qscheme"}) {
    immutable_.push_back(hold_type(torch.get(), name));
  }
  immutable_.push_back(hold_type(c_module.get(), "_SDPBackend"));
  why_never_ = install_recorder();
}

void TorchPlug::note_balanced(PyTypeObject* type, const char* name) {
  py::Ref method = get_attribute(reinterpret_cast<PyObject*>(type), name);
  const void* key = nullptr;
  if (Py_TYPE(method.get()) == &PyMethodDescr_Type) {
    key = reinterpret_cast<PyMethodDescrObject*>(method.get())->d_method;
  } else if (PyInstanceMethod_Check(method.get())) {
    PyObject* function = PyInstanceMethod_GET_FUNCTION(method.get());
    if (PyCFunction_Check(function)) key = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  }
  if (key) functions_.emplace(key, Known{CallKind::Balanced, std::move(method)});
}

// ---- callables

CallKind TorchPlug::classify_call(PyObject* callable) const {
  if (PyCFunction_Check(callable)) return classify_c_function(callable);
  if (PyType_Check(callable)) return classify_type(reinterpret_cast<PyTypeObject*>(callable));
  PyTypeObject* type = Py_TYPE(callable);
  if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type) {
    return classify_descriptor(callable);
  }
  PyWrapperDescrObject* slot;
  PyObject* self;
  if (mg_method_wrapper(callable, &slot, &self)) {
    if (is_tensor(self)) return tensor_method_kind(text_of(PyDescr_NAME(slot)));
    return is_torch_type(Py_TYPE(self)) ? CallKind::Refused : CallKind::Foreign;
  }
  if (type == script_function_) return classify_script_function(callable);
  // Instances of C types. Classes of Python code carry no qualified name.
  return is_torch_type(type) ? CallKind::Refused : CallKind::Foreign;
}

CallKind TorchPlug::classify_type(PyTypeObject* type) const {
  for (PyTypeObject* immutable : immutable_) {
    if (type == immutable) return CallKind::Query;
  }
  if (PyType_IsSubtype(type, tensor_base_)) return CallKind::Refused;
  return is_torch_type(type) ? CallKind::Refused : CallKind::Foreign;
}

CallKind TorchPlug::classify_descriptor(PyObject* descriptor) const {
  PyTypeObject* owner = PyDescr_TYPE(descriptor);
  if (is_tensor_base(owner)) return tensor_method_kind(text_of(PyDescr_NAME(descriptor)));
  for (PyTypeObject* immutable : immutable_) {
    if (owner == immutable) return CallKind::Query;
  }
  return is_torch_type(owner) ? CallKind::Refused : CallKind::Foreign;
}

// Without gradients it makes a context, calls forward(context, ...) and lets an argument that is returned look new.
bool TorchPlug::only_calls(PyObject* callable, PyObject* const* args, size_t count) const {
  if (!PyCFunction_Check(callable) || !PyCFunction_Check(apply_.get())) return false;
  if (((PyCFunctionObject*)callable)->m_ml != ((PyCFunctionObject*)apply_.get())->m_ml) return false;
  return !need_gradients(args, count);
}

bool TorchPlug::leads_to_unknown(PyObject* method, PyObject* const* args, size_t count) const {
  return PyMethod_Check(method) && PyMethod_GET_FUNCTION(method) == function_apply_.get() &&
         need_gradients(args, count);
}

bool TorchPlug::need_gradients(PyObject* const* args, size_t count) const {
  return c10::GradMode::is_enabled() && std::any_of(args, args + count, [this](PyObject* arg) {
           return is_tensor(arg) && runtime::unpack_tensor(arg).requires_grad();
         });
}

// Once torch.compile has run in the process, every new module is given to this function, which holds it weakly.
bool TorchPlug::may_be_left_out(PyObject* function) const {
  static PyCodeObject* known = nullptr;
  auto* code = (PyCodeObject*)PyFunction_GET_CODE(function);
  if (known) return code == known;
  if (PyUnicode_CompareWithASCIIString(code->co_qualname, "GenerationTracker.tag") != 0) return false;
  if (!text_of(code->co_filename).ends_with("mutation_guard.py")) return false;
  known = (PyCodeObject*)Py_NewRef((PyObject*)code);
  return true;
}

// The mode of a default device, given a C function: it adds the device, where that makes a tensor.
bool TorchPlug::is_part_of_operator(PyObject* function, PyObject* const* args) const {
  if (!default_device_code_ || PyFunction_GET_CODE(function) != default_device_code_.get()) return false;
  return args[1] && !PyFunction_Check(args[1]) && !PyMethod_Check(args[1]);
}

// Tensors that it says it has changed would get another history.
bool TorchPlug::may_be_set(PyObject* name) const {
  string_view text = text_of(name);
  return text == "to_save" || text == "saved_for_forward" || text == "non_differentiable" ||
         text == "materialize_grads";
}

// The module that a C function says it belongs to, or that it is bound to.
string_view module_of(PyCFunctionObject* function) {
  if (auto name = text_of(function->m_module); !name.empty()) return name;
  if (!function->m_self || !PyModule_Check(function->m_self)) return {};
  const char* name = PyModule_GetName(function->m_self);
  if (!name) PyErr_Clear();
  return name ? name : "";
}

// A C type of torch, an instance of one, or derived from one in Python.
bool comes_from_torch(PyObject* object) {
  PyTypeObject* type = PyType_Check(object) ? reinterpret_cast<PyTypeObject*>(object) : Py_TYPE(object);
  if (!type->tp_mro) return is_torch_type(type);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    PyObject* base = PyTuple_GET_ITEM(type->tp_mro, i);
    if (PyType_Check(base) && is_torch_type(reinterpret_cast<PyTypeObject*>(base))) return true;
  }
  return false;
}

CallKind TorchPlug::classify_new_c_function(PyObject* callable) const {
  auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
  PyObject* self = function->m_self;
  string_view name = function->m_ml->ml_name ? function->m_ml->ml_name : "";
  string_view module = module_of(function);
  if (self && self == reinterpret_cast<PyObject*>(variable_functions_)) return tensor_function_kind(name);
  // Operators called by name; they have no other way than the dispatcher.
  if (starts_with(module, "torch._ops.")) return CallKind::TensorOp;
  for (string_view tensor_module : {"torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._C._special"}) {
    if (module == tensor_module) return tensor_function_kind(name);
  }
  for (string_view plain_module : {"torch", "torch._C", "torch._C._functorch"}) {
    if (module == plain_module) return module_function_kind(name);
  }
  if (module == "torch" || starts_with(module, "torch.") || (self && comes_from_torch(self))) return CallKind::Refused;
  return CallKind::Foreign;
}

CallKind TorchPlug::classify_c_function(PyObject* callable) const {
  auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
  // Methods bound to an object must not keep it alive through the table.
  if (PyObject* self = function->m_self) {
    if (is_tensor(self)) return tensor_method_kind(function->m_ml->ml_name ? function->m_ml->ml_name : "");
    if (is_immutable(Py_TYPE(self))) return CallKind::Query;
  }
  auto found = functions_.find(function->m_ml);
  if (found != functions_.end()) return found->second.kind;
  CallKind kind = classify_new_c_function(callable);
  if (kind != CallKind::Foreign) functions_.emplace(function->m_ml, Known{kind, py::Ref::borrow(callable)});
  return kind;
}

// A script function works through the dispatcher, unless its code does one of these things.
constexpr string_view kRefusedInScripts[] = {
    "prim::Print", "aten::warn", "prim::RaiseException", "prim::PythonOp", "prim::IgnoredPythonOp", "^",
    // values and memory without an operator
    "prim::tolist", "aten::tensor(", "aten::as_tensor(", "prim::data", "aten::data", "aten::storage_offset",
    "aten::set_(", "::_version", "::output_nr",
    // generators
    "aten::manual_seed", "aten::seed", "aten::initial_seed",
    // other threads
    "prim::fork", "aten::wait", "prim::awaitable", "prim::rpc",
    // autograd
    "prim::grad", "aten::grad", "aten::backward", "::is_leaf", "::requires_grad_", "::set_grad_enabled",
    "::retain_grad",
    // objects and clocks
    "prim::SetAttr", "prim::CreateObject", "prim::TimePoint"};

CallKind TorchPlug::classify_script_function(PyObject* callable) const {
  if (c10::GradMode::is_enabled()) return CallKind::Refused;  // once it is warm, it has nodes of its own
  auto found = functions_.find(callable);
  if (found != functions_.end()) return found->second.kind;
  py::Ref graph = py::Ref::steal(PyObject_GetAttrString(callable, "inlined_graph"));
  py::Ref text = graph ? py::Ref::steal(PyObject_Str(graph.get())) : py::Ref();
  if (!text) PyErr_Clear();
  string_view code = text_of(text.get());
  CallKind kind = code.empty() ? CallKind::Refused : CallKind::TensorOp;
  for (string_view refused : kRefusedInScripts) {
    if (code.find(refused) != string_view::npos) kind = CallKind::Refused;
  }
  functions_.emplace(callable, Known{kind, py::Ref::borrow(callable)});
  return kind;
}

// ---- attributes

CallKind TorchPlug::classify_attribute(PyObject* tensor, PyObject* name) const {
  PyTypeObject* type = Py_TYPE(tensor);
  if (type != tensor_type && type != runtime::parameter_class()) return CallKind::Foreign;
  auto found = attributes_.find(name);
  if (found != attributes_.end()) return found->second.kind;
  CallKind kind = CallKind::Foreign;
  // On the type, descriptors answer with themselves.
  py::Ref descriptor = py::Ref::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(tensor_type), name));
  if (!descriptor) {
    PyErr_Clear();
    return CallKind::Foreign;  // the tensor's own dictionary
  }
  PyTypeObject* descriptor_type = Py_TYPE(descriptor.get());
  if (descriptor_type == &PyGetSetDescr_Type || descriptor_type == &PyMemberDescr_Type) {
    bool of_torch = is_tensor_base(PyDescr_TYPE(descriptor.get()));
    kind = of_torch ? tensor_attribute_kind(text_of(name)) : CallKind::Foreign;
  } else if (descriptor_type == &PyMethodDescr_Type || descriptor_type == &PyWrapperDescr_Type) {
    kind = is_tensor_base(PyDescr_TYPE(descriptor.get())) ? CallKind::Query : CallKind::Foreign;  // only binds it
  }
  if (PyUnicode_CHECK_INTERNED(name)) attributes_.emplace(name, Known{kind, py::Ref::borrow(name)});
  return kind;
}

// ---- handlers

// At the end of these blocks grad mode and autocast are put back, which a replay keeps by itself, and the cache of
// casts is emptied, where a replay leaves nothing unless it is called in a block that is still open. Operators of
// tensors (1 - x) turn a TypeError into NotImplemented: that is for operands of a wrong type, which depends on nothing
// that the guards leave open.
void TorchPlug::find_harmless_handlers(PyObject* torch) {
  auto add = [&](PyObject* type, const py::Ref& function) {
    py::Ref code = py::Ref::steal(function ? PyObject_GetAttrString(function.get(), "__code__") : nullptr);
    PyErr_Clear();
    if (!code) return;
    harmless_.emplace_back(reinterpret_cast<PyTypeObject*>(type), code.get());
    held_.push_back(std::move(code));
    if (type) held_.push_back(py::Ref::borrow(type));
  };
  for (const char* name : {"no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast"}) {
    py::Ref type = py::Ref::steal(PyObject_GetAttrString(torch, name));
    if (type && PyType_Check(type.get()))
      add(type.get(), py::Ref::steal(PyObject_GetAttrString(type.get(), "__exit__")));
    PyErr_Clear();
  }
  for (const char* name : {"__rsub__", "__rdiv__"})
    add(nullptr, py::Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(tensor_type), name)));
}

void TorchPlug::find_default_device_code() {
  py::Ref found = py::Ref::steal(PyImport_ImportModule("torch.utils._device"));
  for (const char* name : {"DeviceContext", "__torch_function__", "__code__"})
    if (found) found = py::Ref::steal(PyObject_GetAttrString(found.get(), name));
  PyErr_Clear();
  if (found && PyCode_Check(found.get())) default_device_code_ = std::move(found);
}

bool TorchPlug::ignores_errors(PyObject* handler) const {
  PyTypeObject* type = nullptr;
  if (PyMethod_Check(handler)) {
    type = Py_TYPE(PyMethod_GET_SELF(handler));
    handler = PyMethod_GET_FUNCTION(handler);
    if (!PyFunction_Check(handler)) return false;
    handler = PyFunction_GET_CODE(handler);
  }
  return std::find(harmless_.begin(), harmless_.end(), std::pair(type, handler)) != harmless_.end();
}

bool TorchPlug::selects_by_contents(PyObject* key) const {
  if (PyTuple_CheckExact(key) || PyList_CheckExact(key)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); ++i) {
      if (selects_by_contents(PySequence_Fast_GET_ITEM(key, i))) return true;
    }
    return false;
  }
  if (!is_tensor(key)) return false;
  c10::ScalarType type = runtime::unpack_tensor(key).scalar_type();
  return type == c10::ScalarType::Bool || type == c10::ScalarType::Byte;
}

bool TorchPlug::is_immutable(PyTypeObject* type) const {
  for (PyTypeObject* immutable : immutable_) {
    if (type == immutable) return true;
  }
  return false;
}

// ---- recordings

std::string TorchPlug::why_not_record() const {
  if (!why_never_.empty()) return why_never_;
  if (Recorder::active()) return "a recording is active already";
  return why_state_forbids_recording();
}

std::unique_ptr<runtime::Recording> TorchPlug::record(std::function<void(std::string)> on_fail) const {
  MAGNETO_ASSERT(why_never_.empty() && !Recorder::active());
  return start_recording(std::move(on_fail));
}

std::vector<int> TorchPlug::openable(PyObject* tensor) const {
  std::vector<int> dimensions;
  auto sizes = runtime::unpack_tensor(tensor).sizes();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) dimensions.push_back(static_cast<int>(i));
  }
  return dimensions;
}

namespace {

// What magneto.marks keeps in this attribute of a tensor: a set of dimensions, or a dict by dimension.
std::vector<int> marked(PyObject* tensor, const char* name) {
  PyObject** dict = mg_dict_slot(tensor);
  PyObject* marks = dict && *dict ? PyDict_GetItemString(*dict, name) : nullptr;
  std::vector<int> dimensions;
  Py_ssize_t position = 0;
  PyObject *dimension, *bounds;
  auto add = [&] {
    if (PyLong_CheckExact(dimension)) dimensions.push_back(static_cast<int>(PyLong_AsLong(dimension)));
  };
  if (marks && PyDict_CheckExact(marks))
    while (PyDict_Next(marks, &position, &dimension, &bounds)) add();
  else if (marks && PyAnySet_CheckExact(marks))
    while (mg_set_next(marks, &position, &dimension)) add();
  return dimensions;
}

}  // namespace

runtime::SizeMarks TorchPlug::size_marks(PyObject* tensor) const {
  return {marked(tensor, "_magneto_dynamic"), marked(tensor, "_magneto_maybe_dynamic"),
          marked(tensor, "_magneto_static")};
}

std::unique_ptr<runtime::SymbolicRecording> TorchPlug::record_symbolic(std::function<void(std::string)> on_fail) const {
  MAGNETO_ASSERT(why_never_.empty() && !Recorder::active());
  return start_symbolic_recording(std::move(on_fail));
}

}  // namespace

void install_torch_plug() { runtime::install_tensor_plug(std::make_unique<TorchPlug>()); }

}  // namespace magneto::record
