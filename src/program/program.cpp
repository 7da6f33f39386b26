// The small machine that runs residual programs.
#include "program/program.h"

#include <array>

#include "cpython/text.h"

namespace magneto::program {

namespace {

// References that are dropped when a run ends, on every path.
class Registers {
 public:
  explicit Registers(size_t count) : count_(count) {
    if (count > inline_.size()) heap_.resize(count);
    data_ = count > inline_.size() ? heap_.data() : inline_.data();
    std::fill(data_, data_ + count, nullptr);
  }
  ~Registers() {
    for (size_t i = 0; i < count_; ++i) Py_XDECREF(data_[i]);
  }
  PyObject** data() { return data_; }

 private:
  std::array<PyObject*, 48> inline_;
  std::vector<PyObject*> heap_;
  PyObject** data_;
  size_t count_;
};

}  // namespace

uint32_t Program::emit(Op op, uint32_t index, const std::vector<uint32_t>& operands) {
  instructions_.push_back({op, index, static_cast<uint32_t>(operands_.size()), static_cast<uint32_t>(operands.size())});
  operands_.insert(operands_.end(), operands.begin(), operands.end());
  return static_cast<uint32_t>(instructions_.size() - 1);
}

uint32_t Program::add_constant(PyObject* value) {
  constants_.push_back(py::Ref::borrow(value));
  return static_cast<uint32_t>(constants_.size() - 1);
}

uint32_t Program::add_older(PyObject* object) {
  older_.push_back(object);
  return static_cast<uint32_t>(older_.size() - 1);
}

uint32_t Program::add_recipe(Recipe recipe) {
  recipes_.push_back(std::move(recipe));
  return static_cast<uint32_t>(recipes_.size() - 1);
}

PyObject* Program::run(PyObject* const* arguments, PyObject* const* tensors) const {
  Registers outputs(segment_->output_count());
  Registers registers(instructions_.size());
  PyObject** r = registers.data();
  // While the segment runs, others may change the containers that these are borrowed from.
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (instructions_[i].op == Op::Argument) r[i] = Py_NewRef(arguments[instructions_[i].index]);
    if (instructions_[i].op == Op::Older) r[i] = Py_NewRef(older_[instructions_[i].index]);
  }
  if (!segment_->run(tensors, outputs.data())) return nullptr;
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& instruction = instructions_[i];
    switch (instruction.op) {
      case Op::Argument:
      case Op::Older: break;
      case Op::Constant: r[i] = Py_NewRef(constants_[instruction.index].get()); break;
      case Op::Output: r[i] = Py_NewRef(outputs.data()[instruction.index]); break;
      default: r[i] = build(instruction, r);
    }
    if (!r[i]) return nullptr;
  }
  return std::exchange(r[instructions_.size() - 1], nullptr);
}

PyObject* Program::build(const Instruction& instruction, PyObject* const* registers) const {
  const uint32_t* operands = operands_.data() + instruction.first_operand;
  uint32_t count = instruction.operand_count;
  switch (instruction.op) {
    case Op::Tuple:
    case Op::NamedTuple:
    case Op::Struct: {
      py::Ref tuple = py::Ref::steal(PyTuple_New(count));
      if (!tuple) return nullptr;
      for (uint32_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(registers[operands[i]]));
      if (instruction.op == Op::Tuple) return tuple.release();
      auto* type = (PyTypeObject*)constants_[instruction.index].get();
      py::Ref packed = py::Ref::steal(PyTuple_Pack(1, tuple.get()));
      newfunc make = instruction.op == Op::NamedTuple ? PyTuple_Type.tp_new : type->tp_new;
      return packed ? make(type, packed.get(), nullptr) : nullptr;
    }
    case Op::List: {
      PyObject* list = PyList_New(count);
      for (uint32_t i = 0; list && i < count; ++i) PyList_SET_ITEM(list, i, Py_NewRef(registers[operands[i]]));
      return list;
    }
    case Op::Dict: {
      py::Ref dict = py::Ref::steal(PyDict_New());
      for (uint32_t i = 0; dict && i < count; i += 2)
        if (PyDict_SetItem(dict.get(), registers[operands[i]], registers[operands[i + 1]]) < 0) return nullptr;
      return dict.release();
    }
    case Op::Set: {
      py::Ref set = py::Ref::steal(PySet_New(nullptr));
      for (uint32_t i = 0; set && i < count; ++i)
        if (PySet_Add(set.get(), registers[operands[i]]) < 0) return nullptr;
      return set.release();
    }
    default: return build_instance(recipes_[instruction.index], operands, registers);
  }
}

PyObject* Program::build_instance(const Recipe& recipe, const uint32_t* operands, PyObject* const* registers) const {
  static constexpr PyTypeObject* kBases[] = {&PyBaseObject_Type, &PyDict_Type, &PyODict_Type, &PyList_Type};
  auto* type = (PyTypeObject*)recipe.type.get();
  py::Ref empty = py::Ref::steal(PyTuple_New(0));
  py::Ref object = py::Ref::steal(kBases[static_cast<int>(recipe.base)]->tp_new(type, empty.get(), nullptr));
  if (!object) return nullptr;
  uint32_t at = 0;
  auto next = [&] { return registers[operands[at++]]; };
  while (at < recipe.item_count) {
    int failed;
    if (recipe.base == Recipe::Base::List) {
      failed = PyList_Append(object.get(), next());
    } else {
      PyObject* key = next();
      auto set_item = recipe.base == Recipe::Base::Dict ? PyDict_SetItem : PyODict_SetItem;
      failed = set_item(object.get(), key, next());
    }
    if (failed) return nullptr;
  }
  for (const py::Ref& name : recipe.attributes)
    if (PyObject_GenericSetAttr(object.get(), name.get(), next()) < 0) return nullptr;
  for (const py::Ref& slot : recipe.slots)
    if (Py_TYPE(slot.get())->tp_descr_set(slot.get(), object.get(), next()) < 0) return nullptr;
  return object.release();
}

std::string Program::text() const {
  static constexpr const char* kNames[] = {"argument", "constant", "older object", "output", "tuple",   "list",
                                           "dict",     "set",      "named tuple",  "struct", "instance"};
  std::string text = "segment: " + std::to_string(segment_->op_count()) + " operations, " +
                     std::to_string(segment_->output_count()) + " outputs\n";
  for (size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& instruction = instructions_[i];
    text += "r" + std::to_string(i) + " = " + kNames[static_cast<int>(instruction.op)];
    switch (instruction.op) {
      case Op::Argument:
      case Op::Older:
      case Op::Output: text += " " + std::to_string(instruction.index); break;
      case Op::Constant: {
        text += " " + py::repr(constants_[instruction.index].get(), 60);
        break;
      }
      case Op::NamedTuple:
      case Op::Struct: text += std::string(" ") + ((PyTypeObject*)constants_[instruction.index].get())->tp_name; break;
      case Op::Instance:
        text += std::string(" ") + ((PyTypeObject*)recipes_[instruction.index].type.get())->tp_name;
        break;
      default: break;
    }
    for (uint32_t k = 0; k < instruction.operand_count; ++k)
      text += (k ? ", r" : " r") + std::to_string(operands_[instruction.first_operand + k]);
    text += "\n";
  }
  return text + "return r" + std::to_string(instructions_.size() - 1) + "\n";
}

int Program::traverse(visitproc visit, void* arg) const {
  for (const py::Ref& constant : constants_) Py_VISIT(constant.get());
  for (const Recipe& recipe : recipes_) {
    Py_VISIT(recipe.type.get());
    for (const py::Ref& name : recipe.attributes) Py_VISIT(name.get());
    for (const py::Ref& slot : recipe.slots) Py_VISIT(slot.get());
  }
  return 0;
}

}  // namespace magneto::program
