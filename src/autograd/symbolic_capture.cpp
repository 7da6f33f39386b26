// Captures nodes with sizes that runs may change: symbols stand in their fields while they work on trace tensors.
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <map>
#include <optional>
#include <ranges>

#include "autograd/capture.h"
#include "autograd/members.h"
#include "autograd/part_builder.h"
#include "cpython/gil.h"
#include "record/plain_tensor.h"
#include "record/trace_recorder.h"
#include "runtime/errors.h"
#include "runtime/raw_tensors.h"

namespace magneto::autograd {

namespace {

using torch::autograd::SavedVariable;

// A node cannot be captured, and is called as it is.
struct Refused {
  std::string reason;
};

// Which sizes are symbols: those that differ from an earlier backward. Two that were equal then and are equal now are
// one symbol, and later runs must agree.
class Symbols {
 public:
  explicit Symbols(bool all) : all_(all) {}

  Size size(int64_t now, const Size* before) {
    bool stays = !all_ && (!before || (before->is_fixed() && before->number == now));
    if (now < 2 || stays) return {now};
    int64_t was = !before ? 0 : before->is_fixed() ? before->number : -1 - before->symbol;
    auto [found, is_new] = symbols_.try_emplace({was, now}, static_cast<int32_t>(values_.size()));
    if (is_new) values_.push_back(now);
    return {now, found->second};
  }

  // One that had another rank before stays as it is.
  void open(Look& look, const Look* before) {
    if (before && before->sizes.size() != look.sizes.size()) return;
    for (size_t i = 0; i < look.sizes.size(); ++i) {
      look.sizes[i] = size(look.sizes[i].number, before ? &before->sizes[i] : nullptr);
      look.is_open |= !look.sizes[i].is_fixed();
    }
  }

  SymbolValues& values() { return values_; }

 private:
  bool all_;
  std::map<std::pair<int64_t, int64_t>, int32_t> symbols_;  // by what it was and is
  SymbolValues values_;
};

// Something else in the fields of a node, for a while.
class Swapped {
 public:
  using TensorFor = std::function<at::Tensor(const at::Tensor& tensor)>;
  using SizeFor = std::function<c10::SymInt(const Size& size)>;

  Swapped(const Turn& turn, const std::vector<Size>& sizes, const TensorFor& tensor_for, const SizeFor& size_for)
      : members_(members_of(*turn.node)) {
    if (!members_.is_complete) throw Refused{"a node of a type that torch does not generate"};
    // Whatever throws does so before anything is changed.
    std::vector<std::pair<SavedVariable*, SavedVariable>> tensors;
    for (SavedVariable* saved : members_.tensors) {
      at::Tensor tensor = saved->unpack(turn.node);
      if (tensor.defined()) tensors.emplace_back(saved, SavedVariable(tensor_for(tensor), false));
    }
    std::vector<std::pair<c10::SymInt*, c10::SymInt>> numbers;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (!sizes[i].is_fixed()) numbers.emplace_back(members_.sizes[i], size_for(sizes[i]));
    tensors_ = std::move(tensors);
    sizes_ = std::move(numbers);
    for (auto& [place, instead] : tensors_) std::swap(*place, instead);
    for (auto& [place, instead] : sizes_) std::swap(*place, instead);
    recompute();
  }
  // Backwards: two edges may lead to one gradient, whose sizes are then swapped twice.
  ~Swapped() {
    for (auto& [place, original] : tensors_ | std::views::reverse) std::swap(*place, original);
    for (auto& [place, original] : sizes_ | std::views::reverse) std::swap(*place, original);
    recompute();
  }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  void recompute() {
    for (at::TensorGeometry* geometry : members_.geometries) geometry->recompute();
  }

  Members members_;
  std::vector<std::pair<SavedVariable*, SavedVariable>> tensors_;
  std::vector<std::pair<c10::SymInt*, c10::SymInt>> sizes_;
};

// One part while its nodes work on trace tensors.
class Trace {
 public:
  Trace(Runner& runner, size_t first, const HeldTensors& held, const Backward& backward, const SymbolValues& values,
        bool is_for_python)
      : runner_(runner),
        task_(runner.task()),
        held_(held),
        backward_(backward),
        values_(values),
        is_for_python_(is_for_python),
        builder_(runner, first),
        recorder_(options()) {}

  // Throws if the node cannot be traced: then all before it can be finished.
  void run(size_t index);
  Stage finish(size_t end);

 private:
  static record::RecorderOptions options() {
    record::RecorderOptions options;
    options.on_refuse = [](const record::Refusal& refusal) { throw Refused{refusal.reason}; };
    return options;
  }

  const c10::SymInt& symbol(int32_t index);
  at::Tensor stand_in(const at::Tensor& tensor, const Look& look, Part::Source source);
  at::Tensor stand_in(const at::Tensor& held);
  void open(PartBuilder::Given& given) const;

  // What waits for a node: undefined if nothing does.
  at::Tensor waiting(const Waiting& place);
  variable_list prepare(const Turn& turn);
  variable_list call(size_t index, variable_list gradients);
  bool may_add_in_place(const Waiting& place);
  void deliver(const Turn& turn, variable_list results);
  template <class Body>
  auto record(Body body);
  void add_output(const at::Tensor& tensor, Part::Target target);

  Runner& runner_;
  Task& task_;
  const HeldTensors& held_;
  const Backward& backward_;
  const SymbolValues& values_;
  const bool is_for_python_;
  PartBuilder builder_;
  record::TraceRecorder recorder_;
  std::map<int32_t, c10::SymInt> sizes_;        // what stands for symbols,
  std::map<uint32_t, at::Tensor> held_traces_;  // for the tensors that nodes hold,
  std::map<Waiting, at::Tensor> given_traces_;  // and for the gradients that waited at the beginning; undefined: taken
  std::map<Waiting, at::Tensor> made_;          // gradients that have come since, and wait
  variable_list given_out_;                     // held, so that no gradient is added to them in place later
};

// ---- what stands for what

const c10::SymInt& Trace::symbol(int32_t index) {
  auto found = sizes_.find(index);
  if (found == sizes_.end()) {
    std::string name = "s" + std::to_string(index);
    c10::SymInt size = recorder_.add_size(values_[static_cast<size_t>(index)], name, name, {2, graph::Range::kMax});
    builder_.part().sources.push_back({Symbol{static_cast<uint32_t>(index)}});
    found = sizes_.emplace(index, std::move(size)).first;
  }
  return found->second;
}

at::Tensor Trace::stand_in(const at::Tensor& tensor, const Look& look, Part::Source source) {
  if (!record::is_plain(*tensor.unsafeGetTensorImpl())) throw Refused{"a tensor of a kind that graphs do not have"};
  std::vector<record::DynamicSize> open;
  for (size_t i = 0; i < look.sizes.size(); ++i) {
    if (look.sizes[i].is_fixed()) continue;
    symbol(look.sizes[i].symbol);
    open.push_back({static_cast<int64_t>(i), "s" + std::to_string(look.sizes[i].symbol)});
  }
  at::Tensor instead = recorder_.stand_in(tensor.detach(), "", open);
  if (!recorder_.add_input(instead)) throw Refused{"an input that cannot be recorded"};
  builder_.part().sources.push_back(source);
  return instead;
}

at::Tensor Trace::stand_in(const at::Tensor& tensor) {
  std::optional<Held> held = held_.find(tensor);
  if (!held) throw Refused{"a tensor from nowhere"};
  at::Tensor& trace = held_traces_[held->index];
  if (!trace.defined()) trace = stand_in(tensor, backward_.looks[held->index], {*held});
  return trace;
}

// A gradient has the sizes that its node expects, which the nodes before it know.
void Trace::open(PartBuilder::Given& given) const {
  for (size_t turn = 0; turn < task_.turns().size(); ++turn) {
    const std::vector<Size>& members = backward_.members[turn];
    size_t next = members.size();
    for (const Edge& edge : task_.turns()[turn].node->next_edges() | std::views::reverse) {
      if (!edge.is_valid()) continue;
      next -= edge.function->input_metadata(edge.input_nr).shape_as_dim_vector().size();
      if (Waiting{task_.id_of(edge), edge.input_nr} != given.place) continue;
      for (size_t i = 0; i < given.look.sizes.size(); ++i) {
        if (members[next + i].number != given.look.sizes[i].number) return;
        given.look.sizes[i] = members[next + i];
        given.look.is_open |= !members[next + i].is_fixed();
      }
      return;
    }
  }
}

// ---- turns

at::Tensor Trace::waiting(const Waiting& place) {
  if (auto found = made_.find(place); found != made_.end()) return found->second;
  PartBuilder::Given* given = builder_.find_given(place);
  if (!given) return {};
  auto found = given_traces_.find(place);
  if (found == given_traces_.end()) {
    open(*given);
    at::Tensor trace = stand_in(runner_.waiting(place.node, place.index), given->look, {place});
    found = given_traces_.emplace(place, std::move(trace)).first;
  }
  return found->second;
}

// Whatever becomes an input does so before the node runs, so that the recording can be rewound to here.
variable_list Trace::prepare(const Turn& turn) {
  variable_list gradients(turn.node->num_inputs());
  for (uint32_t i = 0; i < gradients.size(); ++i) gradients[i] = waiting({turn.id, i});
  for (const Edge& edge : turn.node->next_edges())
    if (turn.needed && task_.follows(*turn.node, edge)) waiting({task_.id_of(edge), edge.input_nr});
  return gradients;
}

void Trace::run(size_t index) {
  const Turn& turn = task_.turns()[index];
  variable_list gradients = prepare(turn);
  variable_list results;
  if (turn.needed && !turn.accumulates) results = call(index, gradients);
  for (auto [which, result] : turn.asked) {
    const at::Tensor& gradient = gradients[static_cast<size_t>(which)];
    if (gradient.defined()) add_output(gradient, Result{static_cast<uint32_t>(result)});
  }
  if (turn.needed && turn.accumulates && gradients[0].defined())
    add_output(gradients[0], Leaf{static_cast<uint32_t>(index)});
  deliver(turn, std::move(results));
  for (uint32_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    if (!made_.erase({turn.id, i})) given_traces_[{turn.id, i}].reset();
  }
}

// What is recorded before something is thrown does not count.
template <class Body>
auto Trace::record(Body body) {
  record::Recorder::Mark before = recorder_.mark();
  recorder_.start();
  try {
    auto result = body();
    recorder_.pause();
    return result;
  } catch (...) {
    recorder_.pause();
    recorder_.rewind(before);
    throw;
  }
}

variable_list Trace::call(size_t index, variable_list gradients) {
  const Turn& turn = task_.turns()[index];
  if (const auto* root = dynamic_cast<torch::autograd::GraphRoot*>(turn.node.get())) {
    variable_list results;
    for (const at::Tensor& output : root->outputs) results.push_back(output.defined() ? stand_in(output) : output);
    return results;
  }
  Swapped swapped(
      turn, backward_.members[index], [this](const at::Tensor& tensor) { return stand_in(tensor); },
      [this](const Size& size) { return symbol(size.symbol); });
  return record([&] { return call_node(*turn.node, std::move(gradients)); });
}

// As the engine decides it. Nobody knows what a Python compiler does with tensors that it is given.
bool Trace::may_add_in_place(const Waiting& place) {
  if (auto found = made_.find(place); found != made_.end())
    return is_exclusive(found->second) && can_add_in_place(found->second);
  const PartBuilder::Given* given = builder_.find_given(place);
  return given && given->is_exclusive && !is_for_python_ && can_add_in_place(waiting(place));
}

void Trace::deliver(const Turn& turn, variable_list results) {
  struct Sum {
    at::Tensor tensor = {};
    bool is_own = false;  // may be added to in place
  };
  std::map<Waiting, Sum> sums;
  for (size_t i = 0; i < results.size(); ++i) {
    const Edge& edge = turn.node->next_edge(i);
    if (!results[i].defined() || !task_.follows(*turn.node, edge)) continue;
    Waiting place{task_.id_of(edge), edge.input_nr};
    auto [found, is_first] = sums.try_emplace(place);
    Sum& sum = found->second;
    if (is_first) {
      sum.is_own = may_add_in_place(place);  // asked before there is one more of it
      sum.tensor = waiting(place);
    }
    if (sum.is_own) {
      record([&] { return sum.tensor.add_(results[i]); });
      continue;
    }
    sum.tensor = sum.tensor.defined() ? record([&] { return sum.tensor.add(results[i]); }) : std::move(results[i]);
    sum.is_own = is_exclusive(sum.tensor) && can_add_in_place(sum.tensor);
  }
  for (auto& [place, sum] : sums) made_[place] = std::move(sum.tensor);
}

void Trace::add_output(const at::Tensor& tensor, Part::Target target) {
  if (!recorder_.add_output(tensor)) throw Refused{"an output that cannot be recorded"};
  builder_.part().targets.push_back(target);
  given_out_.push_back(tensor);
}

Stage Trace::finish(size_t end) {
  for (const auto& [place, tensor] : made_) add_output(tensor, place);
  return builder_.finish(end, recorder_.take_graph());
}

// ---- the whole

// Tracing counts writes that never happen.
class Versions {
 public:
  explicit Versions(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined() && !tensor.is_inference()) versions_.emplace_back(tensor, runtime::version_of(tensor));
  }
  ~Versions() {
    for (auto& [tensor, version] : versions_) runtime::set_version(tensor, version);
  }
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;

 private:
  std::vector<std::pair<at::Tensor, uint32_t>> versions_;
};

class SymbolicCapture {
 public:
  SymbolicCapture(Runner& runner, const SymbolicOptions& options, const OnOpaque& on_opaque)
      : runner_(runner),
        task_(runner.task()),
        factory_(options.factory),
        on_opaque_(on_opaque),
        held_(task_.tensors()),
        symbols_(options.all_sizes) {
    const Backward none{};
    describe(options.before ? *options.before : none);
    find_last_turns();
  }

  std::shared_ptr<Backward> run() {
    const std::vector<Turn>& turns = task_.turns();
    for (size_t i = 0; i < turns.size();) {
      if (turns[i].why_opaque) {
        run_opaque(i, turns[i].why_opaque);
        ++i;
      } else {
        i = run_part_from(i);
      }
    }
    finish(*backward_);
    return backward_;
  }

 private:
  template <class T>
  static const T* item(const std::vector<T>& list, size_t index) {
    return index < list.size() ? &list[index] : nullptr;
  }

  // What the backward relies on; `before` has nothing in it if there was none.
  void describe(const Backward& before) {
    for (size_t i = 0; i < task_.sizes().size(); ++i)
      backward_->sizes.push_back(symbols_.size(task_.sizes()[i].value, item(before.sizes, i)));
    for (size_t i = 0; i < held_.looks().size(); ++i) symbols_.open(held_.looks()[i], item(before.looks, i));
    for (size_t turn = 0; turn < task_.turns().size(); ++turn) {
      std::vector<Size>& sizes = backward_->members.emplace_back();
      const std::vector<Size>* earlier = item(before.members, turn);
      for (const c10::SymInt* size : members_of(*task_.turns()[turn].node).sizes)
        sizes.push_back(symbols_.size(size->expect_int(), earlier ? item(*earlier, sizes.size()) : nullptr));
    }
    backward_->looks = held_.looks();
    backward_->aliases = held_.aliases();
    backward_->symbol_count = symbols_.values().size();
  }

  void find_last_turns() {
    for (size_t i = 0; i < task_.tensors().size(); ++i) last_turns_.push_back(task_.turn_of_tensor(i));
    for (size_t i = 0; i < task_.turns().size(); ++i) {
      const Turn& turn = task_.turns()[i];
      if (turn.why_opaque || !turn.needed) continue;
      for (const SavedVariable* saved : members_of(*turn.node).tensors) {
        at::Tensor tensor = saved->unpack(turn.node);
        if (std::optional<Held> held = tensor.defined() ? held_.find(tensor) : std::nullopt)
          last_turns_[held->index] = i;
      }
    }
  }

  void run_opaque(size_t index, const std::string& reason) {
    on_opaque_(*task_.turns()[index].node, reason);
    backward_->stages.push_back({index, index + 1, nullptr, reason});
    runner_.run(task_.turns()[index]);
  }

  // Up to the next node that is called as it is, and this one.
  size_t run_part_from(size_t first) {
    const std::vector<Turn>& turns = task_.turns();
    size_t end = first;
    std::optional<std::string> reason;
    std::optional<Stage> stage;
    {
      py::Gil gil;  // operators without a shape rule may be asked in Python
      Versions versions(task_.tensors());
      Trace trace(runner_, first, held_, *backward_, symbols_.values(), factory_ != nullptr);
      try {
        for (; end < turns.size() && !turns[end].why_opaque; ++end) trace.run(end);
      } catch (const Refused& refused) {
        reason = refused.reason;
      } catch (const c10::Error& error) {
        reason = "tracing failed: " + error.msg();
      } catch (const std::exception& error) {
        reason = "tracing failed: " + std::string(error.what());
      }
      if (end > first) stage = trace.finish(end);
    }
    if (stage) {
      if (factory_) compile_part(*stage->part, factory_, symbols_.values(), runner_);
      bool ran = run_part(*stage->part, *stage, symbols_.values(), runner_);
      MAGNETO_ASSERT(ran);
      backward_->stages.push_back(std::move(*stage));
    }
    forget_held(end);
    if (reason) run_opaque(end++, *reason);
    return end;
  }

  // No node that is still to come holds them.
  void forget_held(size_t end) {
    for (size_t i = 0; i < last_turns_.size(); ++i)
      if (last_turns_[i] < end) task_.tensors()[i].reset();
  }

  Runner& runner_;
  Task& task_;
  PyObject* factory_;
  const OnOpaque& on_opaque_;
  HeldTensors held_;
  Symbols symbols_;
  std::vector<size_t> last_turns_;  // by tensor: at which a node holds it
  std::shared_ptr<Backward> backward_ = std::make_shared<Backward>();
};

}  // namespace

std::shared_ptr<Backward> capture_symbolic(Runner& runner, const SymbolicOptions& options, const OnOpaque& on_opaque) {
  return SymbolicCapture(runner, options, on_opaque).run();
}

}  // namespace magneto::autograd
