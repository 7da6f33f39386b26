// Notes the operators that arrive on this thread as a graph; how one of them runs is up to the kind of recording.
//
//   torch.add(x, 1) ─▶ autograd ─▶ views and versions ─▶ conjugation ─▶ our key ─▶ the kernel, or its shape rule
//                                                                        │ notes operator, arguments, results
// A second key, above autograd, watches the few composite operators that touch memory behind the dispatcher's back.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/symbols.h"
#include "record/fixed_contents.h"
#include "record/lines.h"

namespace magneto::record {

// Why a recording cannot go on.
struct Refusal {
  enum Kind : uint8_t {
    Unsupported,    // something that graphs cannot express
    DataDependent,  // what happens next follows from the contents of a tensor
  };
  Kind kind;
  std::string reason;
  std::optional<graph::Line> line = {};  // where in the user's program, if lines are kept
};

// Reasons.
inline std::string value_asked(const graph::SchemaInfo& info) {
  return "a value was asked from a tensor (" + info.name + ")";
}
inline std::string sizes_from_contents(const graph::SchemaInfo& info) {
  return "sizes that depend on the contents of a tensor (" + info.name + ")";
}
// Of an operator whose answer, or the sizes of whose results, follow from contents: whether from those of this
// argument.
inline bool decides(const graph::SchemaInfo& info, size_t position) {
  return position == 1 || !(info.indexing || info.name == "aten::masked_select");
}
inline std::string replaced_gradient() {
  return "the .grad of a tensor was replaced. Return what torch.autograd.grad gives, record with joint=True, or give "
         "every parameter a .grad, zero_grad(set_to_none=False), before the program is called";
}

// A tensor that existed before and that a recording may take as state.
struct State {
  graph::Role role;
  std::string name;
};

// A size of an argument that later calls may change.
struct DynamicSize {
  int64_t dimension;
  std::string name = {};  // of its symbol; sizes of one name are always equal; empty: a symbol of its own
  graph::Range range = {2, graph::Range::kMax};
};

struct RecorderOptions {
  // Told once. May throw, which ends the operator; otherwise it runs unrecorded, like all that follow.
  std::function<void(const Refusal&)> on_refuse;
  // Asked about a tensor that is neither an argument nor state nor made by a recorded operator; may be null.
  std::function<std::optional<State>(const at::Tensor&)> adopt;
  bool gradients = false;  // tensors that require gradients may be used in grad mode
  bool answers = false;    // a number asked from a tensor is noted, and runs must find the same one
  // Of a trace tensor, the number that it holds where the program really runs; null: nobody knows.
  std::function<std::optional<c10::Scalar>(const at::Tensor&)> answer;
  bool lines = false;       // note the lines of the user's program
  bool holds_state = true;  // keeps state tensors alive, for states()
  bool beside = false;      // the program also really runs, and what it does to real tensors is not ours to put back
};

class Recorder {
 public:
  virtual ~Recorder() { stop(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The recording of this thread, or null.
  static Recorder* active();

  // Whether kernels run for real, so that contents decide about errors, and people may write memory by hand.
  virtual bool is_live() const = 0;

  // Until stop(), operators on this thread are recorded.
  void start();
  void pause();  // until the next start()
  virtual void stop();
  const std::optional<Refusal>& refusal() const { return refusal_; }
  const graph::Graph& graph() const { return graph_; }
  bool knows(const at::Tensor& tensor) const { return known_.count(tensor.unsafeGetTensorImpl()) != 0; }
  bool has_drawn() const { return has_drawn_; }  // random numbers
  bool has_saved_by_hooks() const { return has_saved_by_hooks_; }
  // Whether the contents of `tensor` are the same in every run.
  bool is_fixed(const at::Tensor& tensor);
  // A tensor with these contents.
  std::optional<at::Tensor> fixed_contents(const at::Tensor& tensor);

  // What stands for an argument, or for a gradient that comes in, while the program runs: to be added as the next
  // input, by that name. A size of 0 or 1 is never dynamic, and none is where programs really run.
  virtual at::Tensor stand_in(const at::Tensor& argument, const std::string& /*name*/,
                              c10::ArrayRef<DynamicSize> /*dynamic*/) {
    return argument;
  }
  virtual at::Tensor stand_in_for_gradient(const at::Tensor& output);

  // Each returns false after refuse().
  bool add_input(const at::Tensor& tensor, std::string name = "");
  bool add_state(const at::Tensor& tensor, State state);
  bool add_output(const at::Tensor& tensor);
  // The state tensors, parallel to the graph's.
  const std::vector<at::Tensor>& states() const { return states_; }
  graph::Graph take_graph();
  // Whether a tensor is part of the recording, or may become part of its state here and now.
  bool admits(const at::Tensor& tensor);

  // While it lives, the innermost Python frame of this thread stays where it is, and so does the user's line.
  class OnOneLine {
   public:
    OnOneLine() : recorder_(active()) {
      if (recorder_) recorder_->lines_.hold();
    }
    ~OnOneLine() {
      if (recorder_) recorder_->lines_.let_go();
    }
    OnOneLine(const OnOneLine&) = delete;
    OnOneLine& operator=(const OnOneLine&) = delete;

   private:
    Recorder* recorder_;
  };

  // What nobody has any more is to be forgotten where it dies, so that its memory is used again while it is warm.
  void forget(c10::TensorImpl* tensor);
  void forget(c10::StorageImpl* storage);

  // How far the recording has come.
  struct Mark {
    size_t ops, values, states, constants, outputs;
  };
  Mark mark() const {
    return {graph_.ops.size(), graph_.values.size(), graph_.states.size(), graph_.constants.size(),
            graph_.outputs.size()};
  }
  // Drops what came later, a refusal too. After that only outputs may be added.
  void rewind(const Mark& mark);

  // The kernels on our keys.
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack);
  void call_as_leaf(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKey key,
                    c10::DispatchKeySet keys, c10::Stack* stack);
  void refuse(Refusal::Kind kind, std::string reason);

 protected:
  explicit Recorder(RecorderOptions options);

  // Replaces the arguments on the stack by the results. `key` is the one that the operator arrived on.
  virtual void execute(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKey key,
                       c10::DispatchKeySet keys, c10::Stack* stack) = 0;
  // Before the arguments on the stack are looked at.
  virtual void prepare(const graph::SchemaInfo&, c10::Stack*) {}
  // Like execute, for an operator whose answer, or the sizes of whose results, follow from contents that are fixed.
  virtual void execute_on_contents(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKey key,
                                   c10::DispatchKeySet keys, c10::Stack* stack) {
    execute(op, info, key, keys, stack);
  }
  virtual std::optional<at::Tensor> contents_of(const at::Tensor& tensor) { return tensor; }  // which are fixed
  // Nothing to note: metadata asked through an operator, or detach_ of what needs no gradient.
  virtual void pass(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKeySet keys,
                    c10::Stack* stack);
  // Replaces a tensor that was filled by hand by one that the program may see (aten::lift_fresh).
  virtual void lifted(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack);
  // An argument that is neither a constant nor holds tensors. False after refuse().
  virtual bool take_symbolic(graph::Op& noted, uint32_t position, const c10::IValue& value);
  // Empty, or what is wrong with a tensor that enters the graph: "a sparse tensor".
  virtual std::string why_not_recordable(const at::Tensor& tensor) const;
  virtual graph::ValueId add_value(graph::Role role, const at::Tensor& tensor);
  // In dtype, sizes and strides.
  virtual bool looks_like(const at::Tensor& tensor, const graph::Value& value) const;

  bool is_derived(graph::ValueId value) const;
  void note_derived(const graph::Op& noted);
  // Puts the .grad back that arguments and state had. Refuses if the program has replaced one.
  void restore_gradients();

  bool unsupported(std::string reason);     // refuses; false
  bool data_dependent(std::string reason);  // likewise
  graph::ValueId learn(const at::Tensor& tensor, graph::ValueId value);
  const graph::ValueId* find(const at::Tensor& tensor);
  // From now on the storage of `tensor` is known as the memory that `value` lives in.
  void share_memory(const at::Tensor& tensor, graph::ValueId value);
  const RecorderOptions& options() const { return options_; }
  graph::Graph graph_;

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  // The weak reference keeps the address from being used again, while the memory of the tensor is freed in time.
  struct Known {
    WeakTensor tensor;
    graph::ValueId value;
  };
  // A result that lives in some memory.
  struct User {
    User(const at::Tensor& result, graph::ValueId its_value)
        : tensor(result.unsafeGetTensorImpl()),
          value(its_value),
          offset(result.sym_storage_offset()),
          is_conj(result.is_conj()),
          is_neg(result.is_neg()) {}
    bool is_at(const at::Tensor& other) const;

    c10::TensorImpl* tensor;  // known; with gradients, perhaps forgotten
    graph::ValueId value;
    c10::SymInt offset;
    bool is_conj, is_neg;
  };
  struct StorageUsers {
    StorageUsers(WeakStorage held, graph::ValueId first) : storage(std::move(held)), memory(first) {}
    WeakStorage storage;
    graph::ValueId memory;              // the first value that lives here
    c10::SmallVector<User, 1> tensors;  // oldest first
    bool unwritten = false;             // allocated by a recorded operator, and no recorded operator wrote to it
  };

  void decompose(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKeySet keys,
                 c10::Stack* stack);
  bool lift(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack);
  graph::Op new_op(const c10::OperatorHandle& op, const graph::SchemaInfo& info);
  void add_op(graph::Op&& noted);
  bool follows_fixed_contents(const graph::SchemaInfo& info, const c10::Stack& stack);
  void refuse_quietly(std::string reason);

  // Each returns false after refuse().
  bool check_operator(const graph::SchemaInfo& info, bool follows_contents);
  bool check_memory(const graph::SchemaInfo& info, uint32_t position, const at::Tensor& tensor);
  bool take_arguments(graph::Op& noted, const c10::Stack& stack);
  bool take_tensor(graph::Op& noted, uint32_t position, int32_t item, const at::Tensor& tensor);
  bool admits_cast(const at::Tensor& tensor);
  bool is_shared_cast(const at::Tensor& parameter, const at::Tensor& cast);
  void settle_casts();
  bool take_results(graph::Op& noted, const c10::Stack& stack);
  bool take_result(graph::Op& noted, uint32_t position, int32_t item, const at::Tensor& tensor);
  bool take_number(graph::Op& noted, const c10::Stack& stack);
  bool add_outside(const at::Tensor& tensor, graph::Role role, std::string name, std::vector<graph::ValueId>& list);

  const graph::ValueId* find_by_storage(const at::Tensor& tensor);
  graph::ValueId add_constant(const at::Tensor& tensor);
  StorageUsers* users_of(const at::Tensor& tensor);  // null: its storage is not known
  StorageUsers& add_users(const at::Tensor& tensor, graph::ValueId memory);
  StorageUsers& place(const at::Tensor& tensor, graph::ValueId value);

  const RecorderOptions options_;
  std::optional<Refusal> refusal_;
  bool below_inplace_ = false;
  const uint8_t autocast_at_start_;
  const bool inference_at_start_;
  const uint64_t attention_at_start_;
  bool had_effect_ = false;  // a recorded operator changed something that outlives a run
  bool has_drawn_ = false;
  bool has_saved_by_hooks_ = false;
  bool gives_gradients_ = false;  // an output, or something older that was changed, is to be differentiated
  FixedContents fixed_;
  std::vector<at::Tensor> states_;
  std::vector<graph::ValueId> derived_;                       // results of operators that autograd took part in, sorted
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // of arguments and state, and their .grad at first
  ska::flat_hash_map<c10::TensorImpl*, Known> known_;
  ska::flat_hash_map<c10::StorageImpl*, uint32_t> storages_;  // in users_
  std::vector<StorageUsers> users_;
  size_t unwritten_ = 0;
  // The last operators, if they may be casts that autocast keeps. While it casts, it cannot be asked.
  struct UnsettledCast {
    size_t op;
    at::Tensor parameter, cast;
  };
  std::vector<UnsettledCast> unsettled_casts_;
  bool looks_for_cast_ = false;
  Lines lines_;
};

}  // namespace magneto::record
