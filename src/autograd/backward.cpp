// How a captured backward is checked and run.
#include "autograd/backward.h"

#include <algorithm>

#include "autograd/python_compiler.h"
#include "autograd/verify.h"

namespace magneto::autograd {

Part::Part() = default;
Part::~Part() = default;

// ---- what it relies on

bool Backward::fits(Task& task, SymbolValues& values) const {
  values.assign(symbol_count, kUnknown);
  const std::vector<at::Tensor>& tensors = task.tensors();
  if (tensors.size() != looks.size() || task.sizes().size() != sizes.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (!sizes[i].fits(task.sizes()[i].value, values)) return false;
  for (size_t i = 0; i < looks.size(); ++i) {
    if (!looks[i].fits(tensors[i], values)) return false;
    if (compares_offsets && looks[i].is_strided && tensors[i].storage_offset() != looks[i].offset) return false;
  }
  for (auto [a, b] : aliases)
    if (!tensors[a].is_alias_of(tensors[b])) return false;
  return state->holds();
}

bool Backward::differs_in_sizes(Task& task) const {
  auto differs = [](const Size& size, int64_t now) { return now != size.number && (now >= 2 || size.is_fixed()); };
  for (size_t i = 0; i < std::min(sizes.size(), task.sizes().size()); ++i)
    if (differs(sizes[i], task.sizes()[i].value)) return true;
  for (size_t i = 0; i < std::min(looks.size(), task.tensors().size()); ++i) {
    c10::IntArrayRef now = looks[i].is_strided ? task.tensors()[i].sizes() : c10::IntArrayRef();
    for (size_t k = 0; k < std::min(looks[i].sizes.size(), now.size()); ++k)
      if (differs(looks[i].sizes[k], now[k])) return true;
  }
  return false;
}

std::string Backward::why_not(Task& task) const {
  SymbolValues values(symbol_count, kUnknown);
  auto at = [&](size_t turn) {
    return " of " + task.turns()[turn].node->name() + " (node " + std::to_string(turn) + ")";
  };
  for (size_t i = 0; i < std::min(sizes.size(), task.sizes().size()); ++i) {
    int64_t now = task.sizes()[i].value;
    if (sizes[i].fits(now, values)) continue;
    return "a size" + at(task.turn_of_size(i)) + " is " + std::to_string(now) + ", was " +
           std::to_string(sizes[i].number);
  }
  for (size_t i = 0; i < std::min(looks.size(), task.tensors().size()); ++i) {
    const at::Tensor& tensor = task.tensors()[i];
    if (looks[i].fits(tensor, values)) continue;
    std::string was = looks[i].text(), now = Look(tensor).text();
    if (was == now) return "the strides, type or device of a tensor" + at(task.turn_of_tensor(i)) + " changed";
    return "the size of a tensor" + at(task.turn_of_tensor(i)) + " is " + now + ", was " + was;
  }
  return state->holds() ? "tensors share their memory, or lie in it, in another way" : state->explain();
}

// ---- running

namespace {

// The leaf takes the tensor itself as its .grad if nobody else has it.
void accumulate(Node& leaf, at::Tensor&& gradient) {
  variable_list gradients;
  gradients.push_back(std::move(gradient));
  leaf(std::move(gradients));
}

bool has_arrived(const Part& part, const Stage& stage, SymbolValues& values, Runner& runner) {
  for (const auto& [place, look, is_exclusive] : part.arrived) {
    const at::Tensor& gradient = runner.waiting(place.node, place.index);
    if (gradient.defined() != look.has_value()) return false;
    if (look && !look->fits(gradient, values)) return false;
    if (look && !part.compiled && autograd::is_exclusive(gradient) != is_exclusive) return false;
  }
  for (auto [a, b] : part.same)
    if (!runner.waiting(a.node, a.index).is_same(runner.waiting(b.node, b.index))) return false;
  size_t inside = 0;
  for (size_t i = stage.first; i < stage.end; ++i) {
    const variable_list& list = runner.waiting()[runner.task().turns()[i].id];
    inside += static_cast<size_t>(std::ranges::count_if(list, &at::Tensor::defined));
  }
  return inside == part.arrived_inside;
}

at::Tensor* find(const Part::Source& source, Runner& runner) {
  if (const auto* place = std::get_if<Waiting>(&source.from)) return &runner.waiting(place->node, place->index);
  if (const auto* held = std::get_if<Held>(&source.from)) return &runner.task().tensors()[held->index];
  return nullptr;
}

// The sources, in the first slots; those that nobody takes later are left there alone if they may be `taken`.
runtime::Slots fill(const Part& part, Runner& runner, bool taken) {
  runtime::Slots slots(part.executor->slot_count());
  for (size_t i = 0; i < part.sources.size(); ++i) {
    at::Tensor* tensor = find(part.sources[i], runner);
    if (tensor) slots[i] = taken && part.sources[i].is_last ? std::move(*tensor) : *tensor;
  }
  return slots;
}

}  // namespace

bool bind_sizes(const Part& part, const SymbolValues& values, const runtime::Slots& slots, runtime::Numbers& numbers) {
  std::vector<int64_t> given(part.sources.size());
  for (size_t i = 0; i < given.size(); ++i)
    if (const auto* symbol = std::get_if<Symbol>(&part.sources[i].from)) given[i] = values[symbol->index];
  return !part.executor->bind(slots, given, numbers);
}

void compile_part(Part& part, PyObject* factory, const SymbolValues& values, Runner& runner) {
  part.compiled = std::make_unique<CompiledPart>(factory, part, fill(part, runner, false), values);
}

bool run_part(const Part& part, const Stage& stage, SymbolValues& values, Runner& runner) {
  if (!has_arrived(part, stage, values, runner)) return false;
  runtime::Numbers numbers;
  if (part.executor->has_symbols() && !bind_sizes(part, values, fill(part, runner, false), numbers)) return false;
  Task& task = runner.task();
  std::optional<Shadow> shadow;
  if (runner.is_verified()) shadow.emplace(runner, stage.first, stage.end);
  runtime::Slots slots = fill(part, runner, true);
  for (size_t i = stage.first; i < stage.end; ++i) {
    const Turn& turn = task.turns()[i];
    runner.clear(turn.id);
    if (turn.needed && !task.keeps_graph()) turn.node->release_variables();
  }
  runtime::Executor::Sink sink = [&](size_t output, at::Tensor&& tensor) {
    const Part::Target& target = part.targets[output];
    if (shadow) shadow->compare(target, tensor);
    if (const auto* place = std::get_if<Waiting>(&target))
      runner.waiting(place->node, place->index) = std::move(tensor);
    else if (const auto* result = std::get_if<Result>(&target))
      runner.results()[result->index] = std::move(tensor);
    else
      accumulate(*task.turns()[std::get<Leaf>(target).turn].node, std::move(tensor));
  };
  if (part.compiled)
    part.compiled->run(part, slots, values, sink);
  else
    part.executor->execute(slots, numbers, &sink);
  return true;
}

bool Backward::run(Runner& runner, SymbolValues& values) const {
  const std::vector<Turn>& turns = runner.task().turns();
  for (const Stage& stage : stages) {
    if (!stage.part) {
      runner.run(turns[stage.first]);
    } else if (!run_part(*stage.part, stage, values, runner)) {
      for (size_t i = stage.first; i < turns.size(); ++i) runner.run(turns[i]);
      return true;
    }
  }
  return false;
}

// ---- for people

std::string Backward::summary() const {
  size_t graphs = 0, operators = 0, nodes = 0;
  for (const Stage& stage : stages) {
    if (!stage.part) {
      ++nodes;
      continue;
    }
    ++graphs;
    operators += stage.part->executor->op_count();
  }
  return std::to_string(graphs) + " graphs with " + std::to_string(operators) + " operators, " + std::to_string(nodes) +
         " nodes as they are";
}

std::string Backward::text() const {
  std::string text;
  for (const Stage& stage : stages) {
    if (!stage.part)
      text += "node " + std::to_string(stage.first) + " as it is: " + stage.why_opaque + "\n";
    else
      text += graph::to_text(stage.part->executor->graph(), graph::Style::Short) + "\n";
  }
  return text;
}

}  // namespace magneto::autograd
