// Which turns become a part, and what goes in and out of it.
#include "autograd/capture.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <unordered_map>

#include "record/live_recorder.h"
#include "record/plain_tensor.h"

namespace magneto::autograd {

namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The tensors that nodes hold, as they are recognised: by themselves, or by their memory, because what is saved may
// come back as a shallow copy. They may die meanwhile; weak references keep their addresses from being used again.
class HeldTensors {
 public:
  explicit HeldTensors(const std::vector<at::Tensor>& tensors) {
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i];
      looks_.emplace_back(tensor);
      by_tensor_.emplace(tensor.unsafeGetTensorImpl(), i);
      weak_tensors_.emplace_back(tensor.getIntrusivePtr());
      if (!record::is_plain(*tensor.unsafeGetTensorImpl())) continue;
      c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      for (auto [it, end] = by_memory_.equal_range(storage); it != end; ++it) {
        if (looks_[it->second].fits(tensor)) aliases_.emplace_back(it->second, i);
      }
      by_memory_.emplace(storage, i);
      weak_storages_.push_back(tensor.storage().getWeakStorageImpl());
    }
  }

  std::optional<uint32_t> find(const at::Tensor& tensor) const {
    if (auto found = by_tensor_.find(tensor.unsafeGetTensorImpl()); found != by_tensor_.end()) return found->second;
    if (!record::is_plain(*tensor.unsafeGetTensorImpl())) return std::nullopt;
    for (auto [it, end] = by_memory_.equal_range(tensor.storage().unsafeGetStorageImpl()); it != end; ++it) {
      const Look look(tensor), &other = looks_[it->second];
      if (look.dtype == other.dtype && look.offset == other.offset && look.shape == other.shape) return it->second;
    }
    return std::nullopt;
  }

  std::vector<Look> looks() && { return std::move(looks_); }
  std::vector<std::pair<uint32_t, uint32_t>> aliases() && { return std::move(aliases_); }

 private:
  std::vector<Look> looks_;
  std::unordered_map<c10::TensorImpl*, uint32_t> by_tensor_;
  std::unordered_multimap<c10::StorageImpl*, uint32_t> by_memory_;
  std::vector<std::pair<uint32_t, uint32_t>> aliases_;
  std::vector<WeakTensor> weak_tensors_;
  std::vector<WeakStorage> weak_storages_;
};

class Capture {
 public:
  Capture(Runner& runner, const OnOpaque& on_opaque)
      : runner_(runner),
        task_(runner.task()),
        on_opaque_(on_opaque),
        held_(task_.tensors()),
        backward_(std::make_shared<Backward>()) {
    for (const auto& size : task_.sizes()) backward_->sizes.push_back(size.value);
  }

  std::shared_ptr<Backward> run(std::string* why_not) {
    for (size_t i = 0; i < task_.turns().size(); ++i) run_turn(i);
    end_part(task_.turns().size());
    if (!failure_.empty()) {
      *why_not = failure_;
      return nullptr;
    }
    backward_->looks = std::move(held_).looks();
    backward_->aliases = std::move(held_).aliases();
    find_last_uses();
    return backward_;
  }

 private:
  // A gradient that was there when the part began.
  struct Given {
    Waiting place;
    at::Tensor tensor;  // also keeps it from being added to in place: a later run may give one that others have, too
  };

  void run_turn(size_t index);
  void record_turn(size_t index);
  void put_back(const Turn& turn, variable_list gradients);
  void add_opaque(size_t index, const std::string& reason);
  void forget_held(size_t index);

  void begin_part(size_t first);
  void end_part(size_t end);
  void describe_arrivals(size_t end);
  bool is_inside(uint32_t node, size_t end) const;
  std::optional<Part::Source> find_source(const at::Tensor& tensor) const;
  void add_output(const at::Tensor& tensor, Part::Target target);
  bool can_add_up(const Turn& turn, const variable_list& results);
  void find_last_uses();

  Runner& runner_;
  Task& task_;
  const OnOpaque& on_opaque_;
  HeldTensors held_;
  size_t forgotten_ = 0;  // tensors that nodes hold and that nobody needs any more
  std::shared_ptr<Backward> backward_;
  std::string failure_;

  // Of the part that is being recorded, if any.
  std::optional<record::LiveRecorder> recorder_;
  size_t first_ = 0;
  std::unique_ptr<Part> part_;
  std::vector<Given> given_;
};

// ---- turns

void Capture::run_turn(size_t index) {
  const Turn& turn = task_.turns()[index];
  if (!failure_.empty()) {
    runner_.run(turn);
  } else if (turn.why_opaque) {
    end_part(index);
    add_opaque(index, turn.why_opaque);
    runner_.run(turn);
  } else {
    if (!recorder_) begin_part(index);
    record_turn(index);
  }
  forget_held(index);
}

void Capture::add_opaque(size_t index, const std::string& reason) {
  on_opaque_(*task_.turns()[index].node, reason);
  backward_->stages.push_back({index, index + 1, nullptr, reason});
}

// The engine drops what a node saved once it has run.
void Capture::forget_held(size_t index) {
  for (std::vector<at::Tensor>& tensors = task_.tensors();
       forgotten_ < tensors.size() && task_.turn_of_tensor(forgotten_) <= index; ++forgotten_) {
    tensors[forgotten_].reset();
  }
}

void Capture::record_turn(size_t index) {
  const Turn& turn = task_.turns()[index];
  variable_list gradients = runner_.take(turn);
  auto is_foreign = [this](const at::Tensor& gradient) { return gradient.defined() && !recorder_->admits(gradient); };
  if (std::ranges::any_of(gradients, is_foreign)) {
    put_back(turn, std::move(gradients));
    end_part(index);
    add_opaque(index, "a gradient of a kind that graphs do not have");
    return runner_.run(turn);
  }
  for (auto [which, result] : turn.asked) {
    const at::Tensor& gradient = gradients[static_cast<size_t>(which)];
    runner_.results()[static_cast<size_t>(result)] = gradient;
    if (gradient.defined()) add_output(gradient, Part::Result{static_cast<uint32_t>(result)});
  }
  if (recorder_->refusal()) failure_ = recorder_->refusal()->reason;
  if (!turn.needed) return;
  if (turn.accumulates) {
    if (gradients[0].defined()) add_output(gradients[0], Part::Leaf{static_cast<uint32_t>(index)});
    runner_.call(turn, std::move(gradients));
    return;
  }
  record::Recorder::Mark before = recorder_->mark();
  variable_list kept = gradients;
  recorder_->start();
  variable_list results = runner_.call(turn, std::move(gradients));
  recorder_->pause();
  if (can_add_up(turn, results)) {
    kept.clear();
    recorder_->start();
    runner_.deliver(turn, std::move(results));
    recorder_->pause();
    if (recorder_->refusal()) failure_ = recorder_->refusal()->reason;
    return;
  }
  std::string reason = recorder_->refusal() ? recorder_->refusal()->reason : "a gradient from nowhere";
  recorder_->rewind(before);
  put_back(turn, std::move(kept));
  end_part(index);
  runner_.clear(turn.id);
  add_opaque(index, reason);
  runner_.deliver(turn, std::move(results));
}

void Capture::put_back(const Turn& turn, variable_list gradients) {
  for (uint32_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) runner_.waiting(turn.id, i) = std::move(gradients[i]);
}

// Whether all that the node gave is known to the recording, and so is what it is added to.
bool Capture::can_add_up(const Turn& turn, const variable_list& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (recorder_->refusal()) return false;
    const Edge& edge = turn.node->next_edge(i);
    if (!results[i].defined() || !task_.follows(edge)) continue;
    if (!recorder_->admits(results[i])) return false;
    const at::Tensor& waiting = runner_.waiting(task_.id_of(edge), edge.input_nr);
    if (waiting.defined() && !recorder_->admits(waiting)) return false;
  }
  return !recorder_->refusal();
}

// ---- parts

void Capture::begin_part(size_t first) {
  first_ = first;
  part_ = std::make_unique<Part>();
  given_.clear();
  for (uint32_t node = 0; node < runner_.waiting().size(); ++node) {
    const variable_list& list = runner_.waiting()[node];
    for (uint32_t i = 0; i < list.size(); ++i)
      if (list[i].defined()) given_.push_back({{node, i}, list[i]});
  }
  record::RecorderOptions options;
  options.on_refuse = [](const record::Refusal&) {};  // looked at behind each node
  options.adopt = [this](const at::Tensor& tensor) {
    bool is_ours = record::is_plain(*tensor.unsafeGetTensorImpl()) && find_source(tensor);
    return is_ours ? std::optional(record::State{graph::Role::Buffer, ""}) : std::nullopt;
  };
  recorder_.emplace(std::move(options));
}

void Capture::end_part(size_t end) {
  if (!recorder_) return;
  for (uint32_t node = 0; node < runner_.waiting().size(); ++node) {
    const variable_list& list = runner_.waiting()[node];
    for (uint32_t i = 0; i < list.size(); ++i) {
      auto is_this = [&](const Given& given) {
        return given.place == Waiting{node, i} && given.tensor.is_same(list[i]);
      };
      if (list[i].defined() && std::ranges::none_of(given_, is_this)) add_output(list[i], Waiting{node, i});
    }
  }
  for (const at::Tensor& state : recorder_->states()) part_->sources.push_back(*find_source(state));
  describe_arrivals(end);
  if (recorder_->refusal() && failure_.empty()) failure_ = recorder_->refusal()->reason;
  if (failure_.empty() && end > first_) {
    part_->executor = std::make_unique<runtime::Executor>(recorder_->take_graph(), runtime::ExecutorOptions{true});
    backward_->stages.push_back({first_, end, std::move(part_)});
  }
  recorder_.reset();
  given_.clear();
}

// What the part relies on among the gradients that wait: those of its own nodes, and all that it takes or replaces.
void Capture::describe_arrivals(size_t end) {
  auto concerns_us = [&](const Waiting& place) {
    bool is_taken = std::ranges::any_of(part_->sources, [&](const Part::Source& source) {
      return std::holds_alternative<Waiting>(source.from) && std::get<Waiting>(source.from) == place;
    });
    bool is_replaced = std::ranges::any_of(part_->targets, [&](const Part::Target& target) {
      return std::holds_alternative<Waiting>(target) && std::get<Waiting>(target) == place;
    });
    return is_taken || is_replaced || is_inside(place.node, end);
  };
  std::vector<const Given*> described;
  for (const Given& given : given_) {
    if (!concerns_us(given.place)) continue;
    auto is_same = [&](const Given* earlier) { return earlier->tensor.is_same(given.tensor); };
    auto twin = std::ranges::find_if(described, is_same);
    if (twin != described.end()) part_->same.emplace_back((*twin)->place, given.place);
    described.push_back(&given);
    part_->arrived.push_back({given.place, Look(given.tensor)});
    part_->arrived_inside += is_inside(given.place.node, end);
  }
  for (const Part::Target& target : part_->targets) {
    const Waiting* place = std::get_if<Waiting>(&target);
    auto is_there = [&](const Given& given) { return given.place == *place; };
    if (place && std::ranges::none_of(given_, is_there)) part_->arrived.push_back({*place, std::nullopt});
  }
}

bool Capture::is_inside(uint32_t node, size_t end) const {
  auto turns = task_.turns() | std::views::drop(first_) | std::views::take(end - first_);
  return std::ranges::find(turns, node, &Turn::id) != turns.end();
}

std::optional<Part::Source> Capture::find_source(const at::Tensor& tensor) const {
  for (const Given& given : given_)
    if (given.tensor.is_same(tensor)) return Part::Source{given.place, false};
  if (auto index = held_.find(tensor)) return Part::Source{*index, false};
  return std::nullopt;
}

void Capture::add_output(const at::Tensor& tensor, Part::Target target) {
  if (!recorder_->admits(tensor) || !recorder_->add_output(tensor)) return;  // the refusal is looked at later
  part_->targets.push_back(target);
}

// ---- the whole

void Capture::find_last_uses() {
  std::vector<bool> is_taken(backward_->looks.size(), false);
  for (Stage& stage : backward_->stages | std::views::reverse) {
    if (!stage.part) continue;
    for (size_t i = stage.part->sources.size(); i-- > 0;) {
      Part::Source& source = stage.part->sources[i];
      if (const uint32_t* index = std::get_if<uint32_t>(&source.from)) {
        source.is_last = !is_taken[*index];
        is_taken[*index] = true;
      }
    }
  }
}

}  // namespace

std::shared_ptr<Backward> capture(Runner& runner, std::unique_ptr<runtime::GlobalState> state,
                                  const OnOpaque& on_opaque, std::string* why_not) {
  std::shared_ptr<Backward> backward = Capture(runner, on_opaque).run(why_not);
  if (backward) backward->state = std::move(state);
  return backward;
}

}  // namespace magneto::autograd
