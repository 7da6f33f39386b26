// Captures nodes that really run: which turns become a part, and what goes in and out of it.
#include "autograd/capture.h"

#include <algorithm>
#include <optional>

#include "autograd/members.h"
#include "autograd/part_builder.h"
#include "record/live_recorder.h"
#include "record/plain_tensor.h"

namespace magneto::autograd {

namespace {

class LiveCapture {
 public:
  LiveCapture(Runner& runner, const OnOpaque& on_opaque)
      : runner_(runner), task_(runner.task()), on_opaque_(on_opaque), held_(task_.tensors()) {
    for (const auto& size : task_.sizes()) backward_->sizes.push_back({size.value});
    for (const Turn& turn : task_.turns()) {
      std::vector<Size>& sizes = backward_->members.emplace_back();
      for (const c10::SymInt* size : members_of(*turn.node).sizes) sizes.push_back({size->expect_int()});
    }
  }

  std::shared_ptr<Backward> run(std::string* why_not) {
    for (size_t i = 0; i < task_.turns().size(); ++i) run_turn(i);
    end_part(task_.turns().size());
    if (!failure_.empty()) {
      *why_not = failure_;
      return nullptr;
    }
    backward_->looks = std::move(held_.looks());
    backward_->aliases = held_.aliases();
    finish(*backward_);
    return backward_;
  }

 private:
  void run_turn(size_t index);
  void record_turn(size_t index);
  void put_back(const Turn& turn, variable_list gradients);
  void add_opaque(size_t index, const std::string& reason);
  void forget_held(size_t index);
  bool can_add_up(const Turn& turn, const variable_list& results);

  void begin_part(size_t first);
  void end_part(size_t end);
  std::optional<Part::Source> find_source(const at::Tensor& tensor) const;
  void add_output(const at::Tensor& tensor, Part::Target target);

  Runner& runner_;
  Task& task_;
  const OnOpaque& on_opaque_;
  HeldTensors held_;
  size_t forgotten_ = 0;  // tensors that nodes hold and that nobody needs any more
  std::shared_ptr<Backward> backward_ = std::make_shared<Backward>();
  std::string failure_;

  // Of the part that is being recorded, if any.
  std::optional<record::LiveRecorder> recorder_;
  std::optional<PartBuilder> builder_;
  std::vector<c10::Storage> given_out_;  // to leaves: held, so that no gradient is added to it in place later
};

// ---- turns

void LiveCapture::run_turn(size_t index) {
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

void LiveCapture::add_opaque(size_t index, const std::string& reason) {
  on_opaque_(*task_.turns()[index].node, reason);
  backward_->stages.push_back({index, index + 1, nullptr, reason});
}

// The engine drops what a node saved once it has run.
void LiveCapture::forget_held(size_t index) {
  for (std::vector<at::Tensor>& tensors = task_.tensors();
       forgotten_ < tensors.size() && task_.turn_of_tensor(forgotten_) <= index; ++forgotten_) {
    tensors[forgotten_].reset();
  }
}

void LiveCapture::record_turn(size_t index) {
  const Turn& turn = task_.turns()[index];
  variable_list gradients = runner_.take(turn);
  auto is_foreign = [this](const at::Tensor& gradient) { return gradient.defined() && !recorder_->admits(gradient); };
  if (std::ranges::any_of(gradients, is_foreign)) {
    put_back(turn, std::move(gradients));
    end_part(index);
    add_opaque(index, "a gradient of a kind that graphs do not have");
    return runner_.run(turn);
  }
  record::Recorder::Mark before = recorder_->mark();
  size_t targets = builder_->part().targets.size();
  runner_.note_asked(turn, gradients);
  for (auto [which, result] : turn.asked) {
    const at::Tensor& gradient = gradients[static_cast<size_t>(which)];
    if (gradient.defined()) add_output(gradient, Result{static_cast<uint32_t>(result)});
  }
  if (!turn.needed) return;
  if (turn.accumulates) {
    if (gradients[0].defined()) {
      add_output(gradients[0], Leaf{static_cast<uint32_t>(index)});
      given_out_.push_back(gradients[0].storage());
    }
    runner_.call(turn, std::move(gradients));
    return;
  }
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
  builder_->part().sources.resize(before.states);
  builder_->part().targets.resize(targets, Result{});
  put_back(turn, std::move(kept));
  end_part(index);
  runner_.clear(turn.id);
  add_opaque(index, reason);
  runner_.deliver(turn, std::move(results));
}

void LiveCapture::put_back(const Turn& turn, variable_list gradients) {
  for (uint32_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) runner_.waiting(turn.id, i) = std::move(gradients[i]);
}

// Whether all that the node gave is known to the recording, and so is what it is added to.
bool LiveCapture::can_add_up(const Turn& turn, const variable_list& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (recorder_->refusal()) return false;
    const Edge& edge = turn.node->next_edge(i);
    if (!results[i].defined() || !task_.follows(*turn.node, edge)) continue;
    if (!recorder_->admits(results[i])) return false;
    const at::Tensor& waiting = runner_.waiting(task_.id_of(edge), edge.input_nr);
    if (waiting.defined() && !recorder_->admits(waiting)) return false;
  }
  return !recorder_->refusal();
}

// ---- parts

void LiveCapture::begin_part(size_t first) {
  builder_.emplace(runner_, first);
  record::RecorderOptions options;
  options.on_refuse = [](const record::Refusal&) {};  // looked at behind each node
  options.adopt = [this](const at::Tensor& tensor) {
    auto source = record::is_plain(*tensor.unsafeGetTensorImpl()) ? find_source(tensor) : std::nullopt;
    if (source) builder_->part().sources.push_back(*source);
    return source ? std::optional(record::State{graph::Role::Buffer, ""}) : std::nullopt;
  };
  options.holds_state = false;  // nobody may have a gradient that a leaf can take for itself
  recorder_.emplace(std::move(options));
}

void LiveCapture::end_part(size_t end) {
  if (!recorder_) return;
  for (uint32_t node = 0; node < runner_.waiting().size(); ++node) {
    const variable_list& list = runner_.waiting()[node];
    for (uint32_t i = 0; i < list.size(); ++i) {
      const PartBuilder::Given* given = builder_->find_given(Waiting{node, i});
      bool is_untouched = given && given->is(list[i]);
      if (list[i].defined() && !is_untouched) add_output(list[i], Waiting{node, i});
    }
  }
  if (recorder_->refusal() && failure_.empty()) failure_ = recorder_->refusal()->reason;
  if (failure_.empty() && end > builder_->first()) {
    graph::Graph graph = recorder_->take_graph();
    if (builder_->writes_held(graph))
      failure_ = "a tensor that a node holds is written";
    else
      backward_->stages.push_back(builder_->finish(end, std::move(graph)));
  }
  given_out_.clear();
  recorder_.reset();
  builder_.reset();
}

std::optional<Part::Source> LiveCapture::find_source(const at::Tensor& tensor) const {
  if (const PartBuilder::Given* given = builder_->find_given(tensor)) return Part::Source{given->place};
  if (auto held = held_.find(tensor)) return Part::Source{*held};
  return std::nullopt;
}

void LiveCapture::add_output(const at::Tensor& tensor, Part::Target target) {
  if (!recorder_->admits(tensor) || !recorder_->add_output(tensor)) {
    failure_ = recorder_->refusal() ? recorder_->refusal()->reason : "a gradient from nowhere";
    return;
  }
  builder_->part().targets.push_back(target);
}

}  // namespace

std::shared_ptr<Backward> capture(Runner& runner, const OnOpaque& on_opaque, std::string* why_not) {
  return LiveCapture(runner, on_opaque).run(why_not);
}

}  // namespace magneto::autograd
