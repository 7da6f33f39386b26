// How a listing is gathered, instruction by instruction, and laid out.
#include "trace/listing.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <tuple>

#include "cpython/operations.h"
#include "cpython/text.h"
#include "program/operators.h"
#include "runtime/config.h"
#include "runtime/log.h"
#include "trace/watch.h"

namespace magneto::trace {

namespace {

constexpr size_t kWidth = 102;  // with the prefix of a log line 120
constexpr size_t kRight = 46;   // where the column begins that says what became of an instruction
constexpr size_t kMaxSteps = 20'000;

// ---- bytecode, as `dis` would show it

struct Opcodes {
  std::vector<std::string> names;
  long first_with_argument = 0;
};

// Imports a module: not while a call is watched.
const Opcodes& opcodes() {
  static const Opcodes& known = *[] {
    auto* opcodes = new Opcodes;
    py::Ref module = py::Ref::steal(PyImport_ImportModule("opcode"));
    py::Ref names = py::Ref::steal(module ? PyObject_GetAttrString(module.get(), "opname") : nullptr);
    py::Ref first = py::Ref::steal(names ? PyObject_GetAttrString(module.get(), "HAVE_ARGUMENT") : nullptr);
    for (Py_ssize_t i = 0; first && PyList_Check(names.get()) && i < PyList_GET_SIZE(names.get()); ++i)
      opcodes->names.push_back(py::text(PyList_GET_ITEM(names.get(), i)));
    if (first) opcodes->first_with_argument = PyLong_AsLong(first.get());
    PyErr_Clear();
    return opcodes;
  }();
  return known;
}

std::string item_text(PyObject* tuple, uint32_t index) {
  return index < static_cast<size_t>(PyTuple_GET_SIZE(tuple)) ? py::text(PyTuple_GET_ITEM(tuple, index)) : "?";
}

std::string constant_text(PyCodeObject* code, uint32_t index) {
  constexpr size_t kLongest = 24;
  PyObject* constant = PyTuple_GET_ITEM(code->co_consts, index);
  if (PyCode_Check(constant)) return "code of " + py::text(((PyCodeObject*)constant)->co_name);
  return py::repr(constant, kLongest);  // constants of code are plain values
}

std::string operand_text(PyCodeObject* code, const mg_instruction& instruction) {
  static constexpr const char* kComparisons[] = {"<", "<=", "==", "!=", ">", ">="};
  uint32_t operand = instruction.operand;
  auto local = [&](uint32_t index) { return item_text(code->co_localsplusnames, index); };
  switch (instruction.operation) {
    case MG_LOAD_FAST:
    case MG_STORE_FAST:
    case MG_DELETE_FAST:
    case MG_LOAD_FAST_AND_CLEAR:
    case MG_MAKE_CELL:
    case MG_LOAD_DEREF:
    case MG_STORE_DEREF:
    case MG_DELETE_DEREF: return local(operand);
    case MG_LOAD_FAST_LOAD_FAST:
    case MG_STORE_FAST_LOAD_FAST:
    case MG_STORE_FAST_STORE_FAST: return local(operand >> 4) + ", " + local(operand & 15);
    case MG_LOAD_ATTR:
    case MG_LOAD_METHOD:
    case MG_STORE_ATTR:
    case MG_DELETE_ATTR:
    case MG_STORE_GLOBAL:
    case MG_IMPORT_NAME:
    case MG_IMPORT_FROM: return item_text(code->co_names, operand);
    case MG_LOAD_GLOBAL: return item_text(code->co_names, operand >> 1);
    case MG_LOAD_SUPER_ATTR: return item_text(code->co_names, operand >> 2);
    case MG_LOAD_CONST:
    case MG_RETURN_CONST:
    case MG_KW_NAMES: return constant_text(code, operand);
    case MG_COMPARE_OP: return kComparisons[operand & ~MG_AS_BOOL];
    case MG_BINARY_OP: return program::kOperators[operand].text;
    default: break;
  }
  if (int target = mg_jump_target(&instruction); target >= 0) {
    int line = mg_line(code, target);
    return line < 0 ? "" : "to line " + std::to_string(line);
  }
  return instruction.opcode < opcodes().first_with_argument ? "" : std::to_string(instruction.arg);
}

std::string instruction_text(PyCodeObject* code, int index) {
  const mg_instruction& instruction = mg_decoded(code)[index];
  const auto& names = opcodes().names;
  std::string name = instruction.opcode < names.size() ? names[instruction.opcode] : "?";
  std::string operand = operand_text(code, instruction);
  return operand.empty() ? name : name + " " + operand;
}

std::string heading(PyCodeObject* code) {
  std::string file = py::text(code->co_filename);
  return py::text(code->co_qualname) + " (" + file.substr(file.find_last_of('/') + 1) + ":" +
         std::to_string(code->co_firstlineno) + ")";
}

std::vector<const guard::Read*> pointers_to(const std::vector<guard::Read>& reads) {
  std::vector<const guard::Read*> all;
  for (const guard::Read& read : reads) all.push_back(&read);
  return all;
}

size_t indentation(const std::string& line) { return std::min(line.find_first_not_of(" \t"), line.size()); }

}  // namespace

// ---- layout

// Bytecode on the left, what became of it on the right; what left nothing shares lines.
class Listing::Page {
 public:
  std::string text;

  void line(size_t depth, const std::string& words) { add(bars(depth) + words); }

  void source(size_t depth, int number, const std::string& words) {
    std::string padded = std::to_string(number);
    std::string row = std::string(padded.size() < 5 ? 5 - padded.size() : 0, ' ') + padded + "  " + words;
    size_t room = kWidth - std::min(kWidth / 2, bars(depth).size());
    line(depth, row.size() <= room ? row : row.substr(0, room - 3) + "...");
  }

  void instruction(size_t depth, const std::string& left, const std::vector<std::string>& right) {
    if (right.empty()) {
      bool fits = !folded_.empty() && depth == depth_ && folded_.size() + 2 + left.size() <= kWidth;
      if (!fits) flush();
      folded_ = fits ? folded_ + "; " + left : bars(depth) + kIndent + left;
      depth_ = depth;
      return;
    }
    flush();
    std::string row = bars(depth) + kIndent + left;
    for (const std::string& words : right) {
      std::string rest = words;
      for (bool more = true; more;) {
        if (row.size() + 2 > kRight) {
          add(row);
          row = bars(depth);
        }
        size_t end = break_at(rest);
        more = end < rest.size();
        row.resize(kRight, ' ');
        add(row + rest.substr(0, end));
        row = bars(depth);
        if (more) rest = std::string(indentation(words) + 2, ' ') + rest.substr(end + 1);
      }
    }
  }

  void flush() {
    if (!folded_.empty()) add(std::exchange(folded_, ""));
  }

 private:
  static constexpr const char* kIndent = "       ";

  static std::string bars(size_t depth) {
    std::string all;
    for (size_t i = 1; i < depth; ++i) all += "| ";
    return all;
  }

  // The blank where a line of the right column ends.
  static size_t break_at(const std::string& words) {
    constexpr size_t kColumn = kWidth - kRight;
    if (words.size() <= kColumn) return words.size();
    size_t blank = words.rfind(' ', kColumn);
    if (blank == std::string::npos || blank < 3) blank = words.find(' ', kColumn);
    return std::min(blank, words.size());
  }

  void add(const std::string& row) {
    flush();
    text.append(row, 0, row.find_last_not_of(' ') + 1).push_back('\n');
  }

  std::string folded_;
  size_t depth_ = 0;
};

// ---- gathering

bool Listing::is_wanted() { return runtime::config().listings || runtime::logs(runtime::Log::Program); }

Listing::Listing(Watch& watch) : watch_(watch) { opcodes(); }

std::array<size_t, Listing::kKinds> Listing::counts() const {
  const Provenance& nodes = watch_.provenance;
  return {watch_.guards.size(),
          watch_.effects.size(),
          nodes.size(),
          nodes.truths.size(),
          nodes.lengths.size(),
          nodes.settled_registers.size(),
          watch_.recording ? watch_.recording->op_count() : 0};
}

uint32_t Listing::step_of(Open& open) {
  if (open.step == kLast) {
    open.step = static_cast<uint32_t>(steps_.size());
    steps_.push_back({open.code, open.index, open.depth, {}});
  }
  return open.step;
}

void Listing::take() {
  if (!watch_.alive()) return;
  std::array<size_t, kKinds> now = counts();
  for (size_t kind = 0; kind < kKinds; ++kind) {
    Track& track = tracks_[kind];
    size_t before = track.first + track.steps.size();
    if (now[kind] < before) track.steps.resize(now[kind] > track.first ? now[kind] - track.first : 0);
    if (now[kind] <= before || open_.empty()) continue;
    uint32_t step = step_of(open_.back());
    track.steps.resize(now[kind] - track.first, step);
    if (kind == static_cast<size_t>(Noted::Read)) take_guards(steps_[step], before);
    if (kind == static_cast<size_t>(Noted::Operation)) {
      if (!steps_[step].operations) steps_[step].first_operation = before;
      steps_[step].operations = now[kind] - steps_[step].first_operation;
    }
  }
}

// In words at once: what was read may be gone later.
void Listing::take_guards(Step& step, size_t first) {
  const std::vector<guard::Read>& reads = watch_.guards.noted();
  std::vector<const guard::Read*> all = pointers_to(reads);
  guard::Names names(all, names_);
  for (size_t i = first; i < reads.size(); ++i) {
    const guard::Read& read = reads[i];
    if (read.fixed) continue;
    auto [place, state] = names.describe(read);
    step.guards.push_back({read.access, read.owner, read.key.get(), read.offset, std::move(place), std::move(state)});
  }
}

void Listing::begin(PyCodeObject* code, int index, size_t depth) {
  if (names_.empty()) names_ = watch_.roots;
  take();
  open_.push_back({py::Ref::borrow((PyObject*)code), index, depth, kLast});
  step_of(open_.back());
}

void Listing::end() {
  take();
  open_.pop_back();
}

uint32_t Listing::write_for(Noted what, size_t number, uint32_t first_register) {
  const Track& track = tracks_[static_cast<size_t>(what)];
  uint32_t before = writes_for_;
  bool known = number >= track.first && number - track.first < track.steps.size();
  write_for(known ? track.steps[number - track.first] : kLast, first_register);
  return before;
}

void Listing::write_for(uint32_t step, uint32_t first_register) {
  writes_for_ = step;
  writing_.emplace_back(first_register, step);
}

void Listing::start() {
  is_first_ = false;
  steps_.clear();
  writing_.clear();
  writes_for_ = kLast;
  for (Open& open : open_) open.step = kLast;
  std::array<size_t, kKinds> now = counts();
  for (size_t kind = 0; kind < kKinds; ++kind) tracks_[kind] = {now[kind], {}};
}

// ---- printing

const std::string& Listing::source_line(PyCodeObject* code, int line) {
  static const std::string& nothing = *new std::string;
  std::string name = py::text(code->co_filename);
  auto [lines, is_new] = sources_.try_emplace(name);
  if (is_new) {
    std::ifstream file(name);
    for (std::string text; std::getline(file, text);) lines->second.push_back(text);
  }
  bool there = line > 0 && static_cast<size_t>(line) <= lines->second.size();
  return there ? lines->second[static_cast<size_t>(line) - 1] : nothing;
}

std::vector<std::vector<std::string>> Listing::written_by_step(const program::Program& program,
                                                               const std::vector<guard::Read>& reads) {
  std::vector<std::vector<std::string>> written(steps_.size());
  if (steps_.empty()) return written;
  std::vector<const guard::Read*> all = pointers_to(reads);
  auto name_of = [&](PyObject* object) {
    std::string name = guard::Names(all, names_).name_of(object);
    names_.emplace_back(object, name);
    if (PyFunction_Check(object)) names_.emplace_back(((PyFunctionObject*)object)->func_globals, "globals()");
    return name;
  };
  for (const auto& [number, words] : program.lines(name_of)) {
    auto next = std::upper_bound(writing_.begin(), writing_.end(), number,
                                 [](uint32_t wanted, const auto& entry) { return wanted < entry.first; });
    uint32_t step = next == writing_.begin() ? kLast : std::prev(next)->second;
    written[step == kLast ? steps_.size() - 1 : step].push_back(words);
  }
  for (std::string& words : program.end_lines()) written.back().push_back(std::move(words));
  return written;
}

void Listing::print(Page& page, const Step& step, const std::vector<std::string>& written) {
  auto* code = (PyCodeObject*)step.code.get();
  std::vector<std::string> right;
  std::vector<bool> told(step.guards.size());
  for (size_t i = 0; i < step.guards.size(); ++i) {
    if (told[i]) continue;
    std::string places;
    for (size_t k = i; k < step.guards.size(); ++k) {
      if (step.guards[k].state != step.guards[i].state) continue;
      told[k] = true;
      places += (places.empty() ? "" : ", ") + step.guards[k].place;
    }
    right.push_back("guard " + places + " " + step.guards[i].state);
  }
  if (step.operations) {
    std::string number = std::to_string(step.first_operation);
    if (step.operations > 1) number += " to " + std::to_string(step.first_operation + step.operations - 1);
    right.push_back("tensor operation " + number);
  }
  right.insert(right.end(), written.begin(), written.end());
  page.instruction(step.depth, instruction_text(code, step.index), right);
}

std::string Listing::text(const program::Program& program, const std::vector<guard::Read>& reads,
                          const std::vector<std::string>& arguments) {
  std::set<std::tuple<guard::Access, PyObject*, PyObject*, int32_t>> kept;
  for (const guard::Read& read : reads) kept.emplace(read.access, read.owner, read.key.get(), read.offset);
  for (Step& step : steps_)
    std::erase_if(step.guards, [&](const Guard& guard) {
      return !kept.contains({guard.access, guard.owner, guard.key, guard.offset});
    });
  std::vector<std::vector<std::string>> written = written_by_step(program, reads);
  Page page;
  if (!is_first_) page.line(1, "behind the cut:");
  const Step* previous = nullptr;
  for (size_t i = 0; i < steps_.size() && i < kMaxSteps; previous = &steps_[i++]) {
    const Step& step = steps_[i];
    auto* code = (PyCodeObject*)step.code.get();
    bool enters = !previous || step.depth > previous->depth ||
                  (step.depth == previous->depth && step.code.get() != previous->code.get());
    if (mg_decoded(code)[step.index].operation == MG_NOP && step.guards.empty() && written[i].empty() && !enters)
      continue;
    if (enters) page.line(step.depth, heading(code));
    if (!previous && is_first_ && !arguments.empty()) page.instruction(step.depth, "arguments", arguments);
    int line = mg_line(code, step.index);
    bool same_line = !enters && step.depth == previous->depth && mg_line(code, previous->index) == line;
    if (line > 0 && !same_line) {
      const std::string& source = source_line(code, line);
      size_t margin = indentation(source_line(code, code->co_firstlineno));
      page.source(step.depth, line, source.substr(std::min(margin, indentation(source))));
    }
    print(page, step, written[i]);
  }
  page.flush();
  if (steps_.size() > kMaxSteps)
    page.line(1, "and " + std::to_string(steps_.size() - kMaxSteps) + " more instructions");
  return std::move(page.text);
}

}  // namespace magneto::trace
