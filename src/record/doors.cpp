// What is behind a door reads a tensor's memory, replaces its gradient, or sets a generator. A recording of the calling
// thread refuses it; without one the door costs a look at a thread-local variable.
//
// A door stands in torch's own method table, in the place of the C function. So it is on every way there, from Python
// and from C; and no class changes, whose version CPython's caches and our guards rely on.
#include "record/doors.h"

#include <Python.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cpython/ref.h"
#include "record/method_table.h"
#include "record/plain_tensor.h"
#include "record/recorder.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

enum class Behind : uint8_t { Memory, Contents, Generator, GeneratorState };

struct Door {
  const char* owner;  // a class of torch._C, or null for torch._C itself
  const char* name;
  Behind what;
};

constexpr std::array kDoors = {
    Door{"TensorBase", "numpy", Behind::Memory},
    Door{"TensorBase", "data_ptr", Behind::Memory},
    Door{"TensorBase", "const_data_ptr", Behind::Memory},
    Door{"TensorBase", "untyped_storage", Behind::Memory},
    Door{nullptr, "_to_dlpack", Behind::Memory},
    Door{nullptr, "_to_dlpack_versioned", Behind::Memory},
    Door{"TensorBase", "tolist", Behind::Contents},
    Door{"Generator", "manual_seed", Behind::Generator},
    Door{"Generator", "seed", Behind::Generator},
    Door{"Generator", "set_offset", Behind::Generator},
    Door{"Generator", "graphsafe_set_state", Behind::Generator},
    Door{"Generator", "set_state", Behind::GeneratorState},
};

// Written once, at import.
std::array<PyCFunction, kDoors.size()> behind;
PyGetSetDef behind_grad;

std::string label(const Door& door) {
  std::string owner = !door.owner ? "torch._C" : std::strcmp(door.owner, "TensorBase") == 0 ? "Tensor" : door.owner;
  return owner + "." + door.name;
}

// Calls `function`. True: it raised an exception, which is now a Python error. False: a refusal that raises nothing, as
// in watched calls, has ended the recording, and the call goes on.
template <class Function>
bool raises(Function function) {
  try {
    function();
    return false;
  } catch (...) {
    runtime::set_python_error(std::current_exception());
    return true;
  }
}

void refuse(Recorder& recorder, const Door& door) {
  if (door.what == Behind::Memory || door.what == Behind::Contents) {
    recorder.refuse(Refusal::DataDependent, "the memory of a tensor was asked for (" + label(door) + ")");
  } else {
    recorder.refuse(Refusal::Unsupported,
                    "a random generator was set (" + label(door) + "). Set it before the program is called");
  }
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  for (const at::Tensor* tensor : {&a, &b}) {
    if (!is_plain(*tensor->unsafeGetTensorImpl()) || !tensor->is_cpu() || !tensor->is_contiguous()) return false;
  }
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// As torch.utils.checkpoint does: back to the state that the generator has been in since the recording began.
bool changes_nothing(const Recorder& recorder, PyObject* generator, PyObject* state) {
  if (recorder.has_drawn() || !PyObject_TypeCheck(state, runtime::tensor_class())) return false;
  py::Ref now = py::Ref::steal(PyObject_CallMethod(generator, "get_state", nullptr));
  if (!now) return PyErr_Clear(), false;
  return same_bytes(runtime::unpack_tensor(now.get()), runtime::unpack_tensor(state));
}

// Whether the call ends here: with `result`, or with a Python error.
bool stop_at(const Door& door, PyCFunction function, PyObject* self, PyObject* argument, PyObject*& result) {
  Recorder* recorder = Recorder::active();
  if (!recorder) return false;
  result = nullptr;
  if (door.what == Behind::GeneratorState && changes_nothing(*recorder, self, argument)) return false;
  std::optional<at::Tensor> contents;
  bool raised = raises([&] {
    if (door.what == Behind::Contents) contents = recorder->fixed_contents(runtime::unpack_tensor(self));
    if (!contents) refuse(*recorder, door);
  });
  if (!contents) return raised;
  py::Ref held = py::Ref::steal(runtime::wrap_tensor(std::move(*contents)));
  result = held ? function(held.get(), argument) : nullptr;
  return true;
}

template <size_t i>
PyObject* plain(PyObject* self, PyObject* argument) {
  PyObject* result;
  if (stop_at(kDoors[i], behind[i], self, argument, result)) return result;
  result = behind[i](self, argument);
  if constexpr (std::string_view(kDoors[i].name) == "manual_seed") {
    auto on_seed = runtime::process_state().on_seed;
    if (result && on_seed && !on_seed(self, argument)) Py_CLEAR(result);
  }
  return result;
}

template <size_t i>
PyObject* with_keywords(PyObject* self, PyObject* arguments, PyObject* keywords) {
  PyObject* result;
  if (stop_at(kDoors[i], behind[i], self, arguments, result)) return result;
  return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(behind[i]))(self, arguments, keywords);
}

int set_grad(PyObject* self, PyObject* value, void* closure) {
  if (Recorder* recorder = Recorder::active()) {
    py::Ref now = py::Ref::steal(behind_grad.get(self, closure));
    if (!now) return -1;
    bool changes = now.get() != (value ? value : Py_None);
    if (changes && raises([&] { recorder->refuse(Refusal::Unsupported, replaced_gradient()); })) return -1;
  }
  return behind_grad.set(self, value, closure);
}

// Each returns whether there is nothing left to stand in front of.
template <size_t i>
bool install(PyObject* module) {
  py::Ref callable = find_in(module, kDoors[i].owner, kDoors[i].name);
  if (!callable) return true;  // not in this version of torch
  PyMethodDef* method = method_table_entry(callable.get());
  if (!method) return false;
  bool keywords = method->ml_flags == (METH_VARARGS | METH_KEYWORDS);
  if (!keywords && (method->ml_flags & ~(METH_VARARGS | METH_NOARGS | METH_O)) != 0) return false;
  behind[i] = std::exchange(
      method->ml_meth,
      keywords ? reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&with_keywords<i>)) : &plain<i>);
  return true;
}

bool install_grad(PyObject* module) {
  py::Ref grad = find_in(module, "TensorBase", "grad");
  if (!grad || Py_TYPE(grad.get()) != &PyGetSetDescr_Type) return false;
  PyGetSetDef* entry = reinterpret_cast<PyGetSetDescrObject*>(grad.get())->d_getset;
  behind_grad = *entry;
  entry->set = &set_grad;
  return true;
}

}  // namespace

std::string install_doors() {
  py::Ref module = py::Ref::steal(PyImport_ImportModule("torch._C"));
  if (!module) return PyErr_Clear(), "torch is not imported";
  std::string missing = install_grad(module.get()) ? "" : "Tensor.grad";
  [&]<size_t... i>(std::index_sequence<i...>) {
    ((install<i>(module.get()) ? void() : void(missing = label(kDoors[i]))), ...);
  }(std::make_index_sequence<kDoors.size()>());
  return missing.empty() ? "" : "this version of torch calls " + missing + " in a way that recordings do not know";
}

}  // namespace magneto::record
