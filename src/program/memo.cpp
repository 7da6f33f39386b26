// How a memo is made and used.
#include "program/memo.h"

#include "cpython/cpython.h"
#include "guard/atoms.h"

namespace magneto::program {

namespace {

bool is_leaf(Op op) { return op == Op::Constant || op == Op::Older; }
// Has no parts, and its end is nobody's business: a memo may keep it.
bool is_plain(PyObject* value) { return guard::is_atom(value) || PyFloat_CheckExact(value); }

}  // namespace

std::unique_ptr<Memo> Memo::of(const Program& program) {
  auto memo = std::make_unique<Memo>();
  enum class Role : uint8_t { Other, Leaf, Known };
  std::vector<Role> roles(program.registers_);
  std::vector<PyObject*> older(program.registers_);
  std::vector<bool> needed(program.registers_);
  guard::PointerSet versioned;
  auto operands = [&](const Instruction& instruction) {
    const uint32_t* first = program.operands_.data() + instruction.first_operand;
    return std::pair(first, first + instruction.operand_count);
  };
  auto need = [&](const Instruction& instruction) {
    auto [operand, end] = operands(instruction);
    for (; operand != end; ++operand)
      if (*operand != kNoRegister) needed[*operand] = true;
  };
  auto role_of = [&](const Instruction& instruction) {
    if (is_leaf(instruction.op)) return Role::Leaf;
    auto [operand, end] = operands(instruction);
    bool looks_at_counts = instruction.op == Op::CheckDrop || instruction.op == Op::CheckDropAttribute;
    if (instruction.op == Op::Argument || looks_at_counts) return Role::Other;
    if (instruction.op == Op::LoadKey || instruction.op == Op::LoadCell) {
      PyObject* owner = older[*operand];
      if (!owner) return Role::Other;
      if (instruction.op == Op::LoadCell) {
        memo->cells_.emplace_back(owner, py::Ref());
      } else if (const uint64_t* word = mg_dict_version_word(owner)) {
        if (versioned.insert(owner)) memo->versions_.push_back({word, 0});
      } else {
        return Role::Other;
      }
      return Role::Known;
    }
    for (; operand != end; ++operand)
      if (roles[*operand] == Role::Other) return Role::Other;
    return Role::Known;
  };
  for (const Instruction& instruction : program.before_) {
    if (instruction.op == Op::Older) older[instruction.result] = program.older_[instruction.index];
    roles[instruction.result] = role_of(instruction);
    if (roles[instruction.result] == Role::Other) need(instruction);
  }
  if (memo->versions_.empty() && memo->cells_.empty()) return nullptr;
  for (const Instruction& instruction : program.after_) need(instruction);
  for (uint32_t input : program.segment_inputs_) needed[input] = true;
  if (!program.cut_) needed[program.result_] = true;
  std::vector<Instruction> rest;
  for (const Instruction& instruction : program.before_) {
    // Programs behind a cut, and the frames there, may use any register.
    bool is_used = needed[instruction.result] || (program.cut_ && !is_check(instruction.op));
    if (roles[instruction.result] == Role::Other || (is_used && roles[instruction.result] == Role::Leaf))
      rest.push_back(instruction);
    else if (is_used)
      memo->values_.emplace_back(instruction.result, py::Ref());
  }
  memo->rest = program.steps_of(rest);
  if (program.cut_) return memo;
  for (const auto& [number, value] : memo->values_) memo->filled.push_back(number);
  for (const std::vector<Instruction>* instructions : {&std::as_const(rest), &program.after_})
    for (const Instruction& instruction : *instructions)
      if (!is_check(instruction.op)) memo->filled.push_back(instruction.result);
  return memo;
}

bool Memo::holds() const {
  bool holds = has_values_;
  for (const guard::Word& version : versions_) holds = holds && *version.address == version.expected;
  for (const auto& [cell, content] : cells_) holds = holds && PyCell_GET(cell) == content.get();
  return holds;
}

void Memo::recall(PyObject** registers) const {
  for (const auto& [number, value] : values_) registers[number] = Py_NewRef(value.get());
}

void Memo::note_versions() {
  has_values_ = false;
  for (guard::Word& version : versions_) version.expected = *version.address;
  for (auto& [cell, content] : cells_) {
    PyObject* now = PyCell_GET(cell);
    content = py::Ref::borrow(now && is_plain(now) ? now : nullptr);
  }
}

void Memo::note_values(PyObject* const* registers) {
  for (auto& [number, value] : values_) {
    if (!is_plain(registers[number])) return;
    value = py::Ref::borrow(registers[number]);
  }
  has_values_ = true;
}

}  // namespace magneto::program
