// Walks a module as named_modules() does; the first name of a tensor is its name.
#include "python/state_names.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cpython/text.h"
#include "runtime/torch_python.h"

namespace magneto::python {
namespace {

PyObject* attribute_name(const char* text) { return PyUnicode_InternFromString(text); }

// A dict, or null.
py::Ref members_of(PyObject* module, PyObject* attribute) {
  py::Ref members = py::Ref::steal(PyObject_GetAttr(module, attribute));
  return members && PyDict_CheckExact(members.get()) ? std::move(members) : py::Ref();
}

}  // namespace

StateNames::StateNames(PyObject* module) {
  if (walk(module)) return;
  PyErr_Clear();
  named_.clear();
}

const StateNames::Named* StateNames::find(const at::Tensor& tensor) const {
  auto found = named_.find(tensor.unsafeGetTensorImpl());
  return found == named_.end() ? nullptr : &found->second;
}

bool StateNames::walk(PyObject* root) {
  static PyObject* const parameters = attribute_name("_parameters");
  static PyObject* const buffers = attribute_name("_buffers");
  static PyObject* const modules = attribute_name("_modules");
  ska::flat_hash_set<PyObject*> seen;
  std::vector<Module> todo;
  todo.push_back({"", py::Ref::borrow(root)});
  while (!todo.empty()) {
    Module module = std::move(todo.back());
    todo.pop_back();
    if (!seen.insert(module.object.get()).second) continue;
    if (!add_members(module, parameters) || !add_members(module, buffers)) return false;
    py::Ref inner = members_of(module.object.get(), modules);
    if (!inner) return false;
    size_t first = todo.size();
    PyObject *name, *child;
    for (Py_ssize_t at = 0; PyDict_Next(inner.get(), &at, &name, &child);) {
      if (child == Py_None) continue;
      if (!PyUnicode_Check(name)) return false;
      todo.push_back({module.prefix + py::text(name) + ".", py::Ref::borrow(child)});
    }
    std::reverse(todo.begin() + static_cast<ptrdiff_t>(first), todo.end());
  }
  return true;
}

bool StateNames::add_members(const Module& module, PyObject* attribute) {
  py::Ref members = members_of(module.object.get(), attribute);
  if (!members) return false;
  PyObject *name, *item;
  for (Py_ssize_t at = 0; PyDict_Next(members.get(), &at, &name, &item);) {
    if (item == Py_None) continue;
    if (!PyUnicode_Check(name) || !PyObject_TypeCheck(item, runtime::tensor_class())) return false;
    const at::Tensor& tensor = runtime::unpack_tensor(item);
    std::string path = module.prefix + py::text(name);
    add(tensor, path, PyObject_TypeCheck(item, runtime::parameter_class()));
    if (tensor.is_leaf() && tensor.grad().defined()) add(tensor.grad(), path + ".grad", false);
  }
  return true;
}

void StateNames::add(const at::Tensor& tensor, std::string name, bool is_parameter) {
  named_.emplace(tensor.unsafeGetTensorImpl(), Named{tensor, std::move(name), is_parameter});
}

}  // namespace magneto::python
