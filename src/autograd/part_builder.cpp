// How tensors are recognised, and what a part says about its beginning.
#include "autograd/part_builder.h"

#include <algorithm>
#include <ranges>

#include "record/plain_tensor.h"

namespace magneto::autograd {

// ---- what nodes hold

HeldTensors::HeldTensors(const std::vector<at::Tensor>& tensors) {
  SymbolValues none;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    looks_.emplace_back(tensor);
    by_tensor_.emplace(tensor.unsafeGetTensorImpl(), i);
    weak_tensors_.emplace_back(tensor.getIntrusivePtr());
    if (!record::is_plain(*tensor.unsafeGetTensorImpl())) continue;
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    for (auto [it, end] = by_memory_.equal_range(storage); it != end; ++it) {
      const Look& other = looks_[it->second];
      if (other.offset == tensor.storage_offset() && other.fits(tensor, none)) aliases_.emplace_back(it->second, i);
    }
    by_memory_.emplace(storage, i);
    weak_storages_.push_back(tensor.storage().getWeakStorageImpl());
  }
}

std::optional<Held> HeldTensors::find(const at::Tensor& tensor) const {
  if (auto found = by_tensor_.find(tensor.unsafeGetTensorImpl()); found != by_tensor_.end()) {
    return Held{found->second};
  }
  if (!record::is_plain(*tensor.unsafeGetTensorImpl())) return std::nullopt;
  auto same_number = [](const Size& a, const Size& b) { return a.number == b.number; };
  const Look look(tensor);
  for (auto [it, end] = by_memory_.equal_range(tensor.storage().unsafeGetStorageImpl()); it != end; ++it) {
    const Look& other = looks_[it->second];
    if (look.dtype == other.dtype && look.offset == other.offset && look.strides == other.strides &&
        std::ranges::equal(look.sizes, other.sizes, same_number)) {
      return Held{it->second};
    }
  }
  return std::nullopt;
}

// ---- parts

PartBuilder::Given::Given(Waiting where, const at::Tensor& gradient)
    : place(where),
      look(gradient),
      is_exclusive(autograd::is_exclusive(gradient)),
      tensor(gradient.unsafeGetTensorImpl()),
      weak(gradient.getIntrusivePtr()) {}

PartBuilder::PartBuilder(Runner& runner, size_t first) : runner_(runner), first_(first) {
  for (uint32_t node = 0; node < runner.waiting().size(); ++node) {
    const variable_list& list = runner.waiting()[node];
    for (uint32_t i = 0; i < list.size(); ++i)
      if (list[i].defined()) given_.emplace_back(Waiting{node, i}, list[i]);
  }
}

const PartBuilder::Given* PartBuilder::find_given(const at::Tensor& tensor) const {
  auto found = std::ranges::find_if(given_, [&](const Given& given) { return given.is(tensor); });
  return found == given_.end() ? nullptr : &*found;
}

PartBuilder::Given* PartBuilder::find_given(const Waiting& place) {
  auto found = std::ranges::find(given_, place, &Given::place);
  return found == given_.end() ? nullptr : &*found;
}

bool PartBuilder::writes_held(const graph::Graph& graph) const {
  std::vector<graph::ValueId> inputs = graph.inputs;
  inputs.insert(inputs.end(), graph.states.begin(), graph.states.end());
  auto is_held = [&](graph::ValueId memory) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph.values[inputs[i]].role == graph::Role::Size || !std::holds_alternative<Held>(part_->sources[i].from))
        continue;
      if (graph.values[inputs[i]].memory == memory) return true;
    }
    return false;
  };
  return std::ranges::any_of(graph.ops, [&](const graph::Op& op) {
    return std::ranges::any_of(op.tensors, [&](const graph::TensorRef& tensor) {
      return op.info->written[tensor.position] && is_held(graph.values[tensor.value].memory);
    });
  });
}

bool PartBuilder::is_inside(uint32_t node, size_t end) const {
  auto turns = runner_.task().turns() | std::views::drop(first_) | std::views::take(end - first_);
  return std::ranges::find(turns, node, &Turn::id) != turns.end();
}

void PartBuilder::describe_arrivals(size_t end) {
  auto is_at = [](const Waiting& place) {
    return [place](const auto& variant) {
      const Waiting* waiting = std::get_if<Waiting>(&variant);
      return waiting && *waiting == place;
    };
  };
  auto concerns_us = [&](const Waiting& place) {
    return std::ranges::any_of(part_->sources, is_at(place), &Part::Source::from) ||
           std::ranges::any_of(part_->targets, is_at(place)) || is_inside(place.node, end);
  };
  std::vector<const Given*> described;
  for (const Given& given : given_) {
    if (!concerns_us(given.place)) continue;
    auto is_same = [&](const Given* earlier) { return earlier->tensor == given.tensor; };
    auto twin = std::ranges::find_if(described, is_same);
    if (twin != described.end()) part_->same.emplace_back((*twin)->place, given.place);
    described.push_back(&given);
    part_->arrived.push_back({given.place, given.look, given.is_exclusive});
    part_->arrived_inside += is_inside(given.place.node, end);
  }
  for (const Part::Target& target : part_->targets) {
    const Waiting* place = std::get_if<Waiting>(&target);
    if (place && !find_given(*place)) part_->arrived.push_back({*place, std::nullopt});
  }
}

Stage PartBuilder::finish(size_t end, graph::Graph graph) {
  describe_arrivals(end);
  part_->executor = std::make_unique<runtime::Executor>(std::move(graph), runtime::ExecutorOptions{true});
  return {first_, end, std::move(part_)};
}

void finish(Backward& backward) {
  auto takes_offset = [](const graph::Op& op) { return op.info->name.starts_with("aten::as_strided"); };
  std::vector<bool> is_taken(backward.looks.size(), false);
  for (Stage& stage : backward.stages | std::views::reverse) {
    if (!stage.part) continue;
    backward.compares_offsets |= std::ranges::any_of(stage.part->executor->graph().ops, takes_offset);
    for (Part::Source& source : stage.part->sources | std::views::reverse) {
      const Held* held = std::get_if<Held>(&source.from);
      if (!held) continue;
      source.is_last = !is_taken[held->index];
      is_taken[held->index] = true;
    }
  }
}

}  // namespace magneto::autograd
