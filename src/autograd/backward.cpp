// How a captured backward is checked and run.
#include "autograd/backward.h"

#include <algorithm>

#include "autograd/verify.h"

namespace magneto::autograd {

// ---- what it relies on

Look::Look(const at::Tensor& tensor) : keys(tensor.key_set().raw_repr()), dtype(tensor.scalar_type()), offset(0) {
  if (tensor.layout() != c10::kStrided) return;
  offset = tensor.storage_offset();
  shape.append(tensor.sizes().begin(), tensor.sizes().end());
  shape.append(tensor.strides().begin(), tensor.strides().end());
}

bool Look::fits(const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.key_set().raw_repr() != keys || tensor.scalar_type() != dtype) return false;
  if (shape.empty() && tensor.layout() != c10::kStrided) return true;
  if (impl.has_symbolic_sizes_strides() || impl.storage_offset() != offset) return false;
  c10::IntArrayRef sizes = impl.sizes(), strides = impl.strides();
  return sizes.size() + strides.size() == shape.size() && std::equal(sizes.begin(), sizes.end(), shape.begin()) &&
         std::equal(strides.begin(), strides.end(), shape.begin() + static_cast<ptrdiff_t>(sizes.size()));
}

bool Backward::fits(Task& task) const {
  const std::vector<at::Tensor>& tensors = task.tensors();
  if (tensors.size() != looks.size() || task.sizes().size() != sizes.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (task.sizes()[i].value != sizes[i]) return false;
  for (size_t i = 0; i < looks.size(); ++i)
    if (!looks[i].fits(tensors[i])) return false;
  for (auto [a, b] : aliases)
    if (!tensors[a].is_alias_of(tensors[b])) return false;
  return state->holds();
}

std::string Backward::why_not(Task& task) const {
  const std::vector<at::Tensor>& tensors = task.tensors();
  auto at = [&](size_t turn) {
    return " of " + task.turns()[turn].node->name() + " (node " + std::to_string(turn) + ")";
  };
  auto shape = [](auto begin, auto end) {
    std::string text;
    for (; begin != end; ++begin) text += (text.empty() ? "" : ", ") + std::to_string(*begin);
    return "[" + text + "]";
  };
  for (size_t i = 0; i < std::min(looks.size(), tensors.size()); ++i) {
    if (looks[i].fits(tensors[i])) continue;
    if (tensors[i].layout() != c10::kStrided) return "another kind of tensor" + at(task.turn_of_tensor(i));
    auto middle = looks[i].shape.begin() + static_cast<ptrdiff_t>(looks[i].shape.size() / 2);
    std::string was = shape(looks[i].shape.begin(), middle),
                now = shape(tensors[i].sizes().begin(), tensors[i].sizes().end());
    if (was == now) return "the strides, type or device of a tensor" + at(task.turn_of_tensor(i)) + " changed";
    return "the size of a tensor" + at(task.turn_of_tensor(i)) + " is " + now + ", was " + was;
  }
  for (size_t i = 0; i < std::min(sizes.size(), task.sizes().size()); ++i) {
    if (task.sizes()[i].value == sizes[i]) continue;
    return "a size" + at(task.turn_of_size(i)) + " is " + std::to_string(task.sizes()[i].value) + ", was " +
           std::to_string(sizes[i]);
  }
  return state->holds() ? "other tensors share their memory" : state->explain();
}

// ---- running

namespace {

// The leaf takes the tensor itself as its .grad if nobody else has it.
void accumulate(Node& leaf, at::Tensor&& gradient) {
  variable_list gradients;
  gradients.push_back(std::move(gradient));
  leaf(std::move(gradients));
}

}  // namespace

bool Backward::run(Runner& runner) const {
  for (const Stage& stage : stages) {
    if (!stage.part) {
      runner.run(runner.task().turns()[stage.first]);
    } else if (has_arrived(*stage.part, stage, runner)) {
      run_part(*stage.part, stage, runner);
    } else {
      const std::vector<Turn>& turns = runner.task().turns();
      for (size_t i = stage.first; i < turns.size(); ++i) runner.run(turns[i]);
      return true;
    }
  }
  return false;
}

bool Backward::has_arrived(const Part& part, const Stage& stage, Runner& runner) const {
  for (const auto& [place, look] : part.arrived) {
    const at::Tensor& gradient = runner.waiting(place.node, place.index);
    if (look ? !gradient.defined() || !look->fits(gradient) : gradient.defined()) return false;
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

void Backward::run_part(const Part& part, const Stage& stage, Runner& runner) const {
  Task& task = runner.task();
  std::optional<Shadow> shadow;
  if (runner.is_verified()) shadow.emplace(runner, stage.first, stage.end);
  runtime::Slots slots(part.executor->slot_count());
  for (size_t i = 0; i < part.sources.size(); ++i) {
    const auto& [from, is_last] = part.sources[i];
    const Waiting* place = std::get_if<Waiting>(&from);
    at::Tensor& tensor = place ? runner.waiting(place->node, place->index) : task.tensors()[std::get<uint32_t>(from)];
    slots[i] = is_last ? std::move(tensor) : tensor;
  }
  for (size_t i = stage.first; i < stage.end; ++i) {
    const Turn& turn = task.turns()[i];
    runner.clear(turn.id);
    if (!task.keeps_graph()) turn.node->release_variables();
  }
  runtime::Executor::Sink sink = [&](size_t output, at::Tensor&& tensor) {
    const Part::Target& target = part.targets[output];
    if (shadow) shadow->compare(target, tensor);
    if (const auto* place = std::get_if<Waiting>(&target))
      runner.waiting(place->node, place->index) = std::move(tensor);
    else if (const auto* result = std::get_if<Part::Result>(&target))
      runner.results()[result->index] = std::move(tensor);
    else
      accumulate(*task.turns()[std::get<Part::Leaf>(target).turn].node, std::move(tensor));
  };
  part.executor->execute(slots, {}, &sink);
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
