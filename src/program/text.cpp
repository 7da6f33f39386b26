// Programs in words, piece by piece, for listings.
#include "cpython/text.h"
#include "program/program.h"

namespace magneto::program {

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

// "f, line 3: x = r1; stack r2, r5"
std::string frame_text(const FrameState& frame) {
  auto* code = (PyCodeObject*)frame.at.code.get();
  std::vector<std::string> locals, stack;
  auto local_count = static_cast<size_t>(code->co_nlocalsplus);
  for (size_t i = 0; i < frame.slots.size(); ++i) {
    bool empty = frame.slots[i] == kNoRegister;
    std::string held = empty ? "-" : "r" + std::to_string(frame.slots[i]);
    if (i >= local_count)
      stack.push_back(held);
    else if (!empty)
      locals.push_back(py::text(PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(i))) + " = " + held);
  }
  std::string text = py::text(code->co_qualname) + ", line " + std::to_string(mg_line(code, frame.at.index));
  if (!locals.empty()) text += ": " + joined(locals);
  return stack.empty() ? text : text + "; stack " + joined(stack);
}

}  // namespace

std::vector<std::pair<uint32_t, std::string>> Program::lines(const NameOf& name_of) const {
  std::vector<std::pair<uint32_t, std::string>> all;
  for (const auto* part : {&before_, &after_})
    for (const Instruction& instruction : *part) {
      all.emplace_back(instruction.result, text(instruction));
      all.back().second.pop_back();  // the end of the line
      if (instruction.op == Op::Older) all.back().second += ": " + name_of(older_[instruction.index]);
    }
  return all;
}

std::vector<std::string> Program::end_lines() const {
  if (!cut_) return {"return r" + std::to_string(result_)};
  if (cut_->callable == kNoRegister) return {"CPython goes on"};
  std::string call = "cut: r" + std::to_string(cut_->result) + " = call r" + std::to_string(cut_->callable);
  for (uint32_t argument : cut_->arguments) call += ", r" + std::to_string(argument);
  std::vector<std::string> all{std::move(call)};
  auto add_exit = [&](const char* when, const Exit& exit) {
    all.push_back(when);
    for (const Instruction& instruction : exit.build) {
      all.push_back("  " + text(instruction));
      all.back().pop_back();
    }
    for (const FrameState& frame : exit.frames) all.push_back("  " + frame_text(frame));
  };
  add_exit("exit if it raises:", cut_->before);
  add_exit("exit if nothing fits behind it:", cut_->after);
  return all;
}

}  // namespace magneto::program
