// From a result object to the instructions that build it again: fresh containers and objects field by field.
#include "trace/result.h"

#include <unordered_map>

#include "cpython/cpython.h"
#include "trace/known_types.h"

namespace magneto::trace {

namespace {

using program::Op;
using program::Recipe;

class Describer {
 public:
  Describer(Watch& watch, const guard::Arguments& arguments, program::Program* program, std::vector<PyObject*>* outputs)
      : watch_(watch), arguments_(arguments), program_(program), outputs_(outputs) {}

  uint32_t visit(PyObject* value) {
    if (!watch_.alive()) return 0;
    auto done = registers_.find(value);
    if (done != registers_.end()) {
      if (done->second == kOpen) refuse("an object that contains itself");
      return done->second;
    }
    if (++depth_ > kMaxNesting) return refuse("an object that is nested too deeply");
    registers_[value] = kOpen;
    uint32_t result = describe(value);
    --depth_;
    registers_[value] = result;
    return result;
  }

 private:
  static constexpr uint32_t kOpen = UINT32_MAX;
  static constexpr int kMaxNesting = 100;

  uint32_t refuse(const std::string& what) {
    watch_.give_up("the call returns " + what);
    return 0;
  }

  uint32_t older(PyObject* value) { return program_->emit(Op::Older, program_->add_older(value)); }

  uint32_t constant(PyObject* value) { return program_->emit(Op::Constant, program_->add_constant(value)); }

  uint32_t describe(PyObject* value) {
    if (watch_.is_tensor(value)) return tensor(value);
    if (guard::is_atom(value) || PyFloat_CheckExact(value)) return constant(value);  // NaN is no atom
    if (PySlice_Check(value)) return slice((PySliceObject*)value);
    int node = arguments_.node_of(value);
    if (node >= 0) return program_->emit(Op::Argument, static_cast<uint32_t>(node));
    PyTypeObject* type = Py_TYPE(value);
    if (PyTuple_Check(value))
      return !watch_.is_fresh(value) && watch_.guards.pins(value) ? older(value) : tuple(value);
    if (!watch_.is_fresh(value)) return older_object(value);
    if (type == &PyList_Type) return program_->emit(Op::List, 0, list_items(value));
    if (type == &PyDict_Type) return program_->emit(Op::Dict, 0, dict_items(value));
    if (type == &PySet_Type) {
      std::vector<uint32_t> items;
      py::Ref list = py::Ref::steal(PySequence_List(value));
      for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list.get()); ++i)
        items.push_back(visit(PyList_GET_ITEM(list.get(), i)));
      return program_->emit(Op::Set, 0, items);
    }
    return instance(value);
  }

  uint32_t tensor(PyObject* value) {
    std::string why = runtime::tensor_plug().why_not_plain(value);
    if (!why.empty()) return refuse(why);
    if (!watch_.recording->knows(value)) return refuse("a tensor that no recorded operation made");
    outputs_->push_back(value);
    return program_->emit(Op::Output, static_cast<uint32_t>(outputs_->size() - 1));
  }

  // Something that existed before the call: the very same object, provided that a guard pins it.
  uint32_t older_object(PyObject* value) {
    Kind kind = watch_.kind_of(Py_TYPE(value));
    bool understood = PyType_Check(value) || PyFunction_Check(value) || PyModule_Check(value) ||
                      PyCFunction_Check(value) || kind == Kind::Instance || kind == Kind::List || kind == Kind::Dict ||
                      kind == Kind::Set;
    if (!understood || !(watch_.guards.pins(value) || arguments_.holds_identity(value)))
      return refuse(std::string("a ") + Py_TYPE(value)->tp_name + ", which is not understood");
    return older(value);
  }

  uint32_t slice(PySliceObject* value) {
    for (PyObject* part : {value->start, value->stop, value->step})
      if (!guard::is_atom(part)) return refuse("a slice of objects");
    return constant((PyObject*)value);
  }

  std::vector<uint32_t> list_items(PyObject* list) {
    std::vector<uint32_t> items;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) items.push_back(visit(PyList_GET_ITEM(list, i)));
    return items;
  }

  std::vector<uint32_t> dict_items(PyObject* dict) {
    std::vector<uint32_t> items;
    if (PyODict_Check(dict)) {  // its own order, not that of the dict below
      py::Ref iterator = py::Ref::steal(PyODict_Type.tp_iter(dict));
      while (py::Ref key = py::Ref::steal(iterator ? PyIter_Next(iterator.get()) : nullptr)) {
        keep_.push_back(key);
        items.push_back(visit(key.get()));
        items.push_back(visit(PyDict_GetItemWithError(dict, key.get())));
      }
      return items;
    }
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &position, &key, &value)) {
      items.push_back(visit(key));
      items.push_back(visit(value));
    }
    return items;
  }

  uint32_t tuple(PyObject* value) {
    PyTypeObject* type = Py_TYPE(value);
    std::vector<uint32_t> items;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) items.push_back(visit(PyTuple_GET_ITEM(value, i)));
    if (type == &PyTuple_Type) return program_->emit(Op::Tuple, 0, items);
    if (PyObject_HasAttrString((PyObject*)type, "n_sequence_fields"))
      return program_->emit(Op::Struct, program_->add_constant((PyObject*)type), items);
    PyObject** slot = mg_dict_slot(value);
    if (!is_python_class(type) || (slot && *slot && PyDict_GET_SIZE(*slot)))
      return refuse(std::string("a ") + type->tp_name + ", which is not understood");
    return program_->emit(Op::NamedTuple, program_->add_constant((PyObject*)type), items);
  }

  // An object of a Python class that this call made: its items, its __dict__ and its slots.
  uint32_t instance(PyObject* value) {
    PyTypeObject* type = Py_TYPE(value);
    std::string name = std::string("a ") + type->tp_name;
    if (!is_python_class(type)) return refuse(name + ", which is not understood");
    Recipe recipe;
    recipe.type = py::Ref::borrow((PyObject*)type);
    std::vector<uint32_t> operands;
    PyTypeObject* solid = type;
    while (is_python_class(solid)) solid = solid->tp_base;
    if (solid == &PyODict_Type || solid == &PyDict_Type) {
      recipe.base = solid == &PyODict_Type ? Recipe::Base::OrderedDict : Recipe::Base::Dict;
      operands = dict_items(value);
    } else if (solid == &PyList_Type) {
      recipe.base = Recipe::Base::List;
      operands = list_items(value);
    } else if (solid != &PyBaseObject_Type) {
      return refuse(name + ", which is built on " + solid->tp_name);
    }
    recipe.item_count = static_cast<uint32_t>(operands.size());
    PyObject** slot = mg_dict_slot(value);
    Py_ssize_t position = 0;
    PyObject *key, *item;
    while (slot && *slot && PyDict_Next(*slot, &position, &key, &item)) {
      PyObject* descriptor = PyUnicode_Check(key) ? _PyType_Lookup(type, key) : nullptr;
      if (!PyUnicode_Check(key) || (descriptor && Py_TYPE(descriptor)->tp_descr_set))
        return refuse(name + " with an unusual attribute");
      recipe.attributes.push_back(py::Ref::borrow(key));
      operands.push_back(visit(item));
    }
    add_slots(type, value, &recipe, &operands);
    if (!watch_.alive()) return 0;
    return program_->emit(Op::Instance, program_->add_recipe(std::move(recipe)), operands);
  }

  void add_slots(PyTypeObject* type, PyObject* value, Recipe* recipe, std::vector<uint32_t>* operands) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
      auto* base = (PyTypeObject*)PyTuple_GET_ITEM(type->tp_mro, i);
      if (!is_python_class(base)) continue;
      Py_ssize_t position = 0;
      PyObject *name, *member;
      while (PyDict_Next(base->tp_dict, &position, &name, &member)) {
        if (Py_TYPE(member) != &PyMemberDescr_Type) continue;
        py::Ref content = py::Ref::steal(Py_TYPE(member)->tp_descr_get(member, value, (PyObject*)type));
        if (!content) {  // a slot that was never set
          PyErr_Clear();
          continue;
        }
        keep_.push_back(content);
        recipe->slots.push_back(py::Ref::borrow(member));
        operands->push_back(visit(content.get()));
      }
    }
  }

  Watch& watch_;
  const guard::Arguments& arguments_;
  program::Program* program_;
  std::vector<PyObject*>* outputs_;
  std::unordered_map<PyObject*, uint32_t> registers_;
  std::vector<py::Ref> keep_;
  int depth_ = 0;
};

}  // namespace

void describe_result(PyObject* result, Watch& watch, const guard::Arguments& arguments, program::Program* program,
                     std::vector<PyObject*>* outputs) {
  Describer(watch, arguments, program, outputs).visit(result);
}

}  // namespace magneto::trace
