// Runs a graph by calling its operators one after the other, boxed; what a run needs is worked out once.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/size_binding.h"
#include "runtime/direct_views.h"
#include "runtime/kept_results.h"
#include "runtime/step_arguments.h"

namespace magneto::runtime {

using Slots = std::vector<at::Tensor>;       // of one run: inputs, then state, then results
using Numbers = std::vector<graph::Number>;  // by expression; empty where nothing depends on symbols

struct ExecutorOptions {
  // Inputs and state are the run's alone, and leave their slots at their last use. Otherwise they stay: dropping the
  // last reference beside that of a Python object takes the GIL.
  bool owns_inputs = false;
};

class Executor {
 public:
  struct Output {
    graph::Role role;
    uint32_t index;   // of the slot, or the expression
    int32_t same_as;  // an earlier output that is the same tensor, or -1
  };
  // Is given an output as soon as nothing in the run has to do with its memory any more, under the modes in which the
  // run began.
  using Sink = std::function<void(size_t output, at::Tensor&& tensor)>;

  explicit Executor(graph::Graph graph, ExecutorOptions options = {});

  const graph::Graph& graph() const { return graph_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  size_t slot_count() const { return slot_count_; }
  size_t op_count() const { return steps_.size(); }
  bool derives() const { return derives_; }  // autograd takes part
  bool has_symbols() const { return sizes_.has_value(); }
  const KeptResults& kept() const { return *kept_; }

  // Finds the numbers of a run by its inputs; those that are numbers stand in `given`. If what was recorded does not
  // hold for them: why, in words.
  std::optional<std::string> bind(const Slots& slots, std::span<const int64_t> given, Numbers& numbers) const;
  // False: a number that the recording relied on came out differently. With a sink, all outputs go there; otherwise
  // they stay in their slots.
  // `failed`: becomes the operator that throws, if one does.
  bool execute(Slots& slots, const Numbers& numbers, const Sink* sink = nullptr,
               const graph::Op** failed = nullptr) const;

 private:
  // A number that depends on symbols, or a constant list with such numbers in it.
  struct SizedArg {
    struct Item {
      int32_t index;  // in the list, or TensorRef::kWhole
      graph::ExprId expr;
      graph::Symbols::Type type;
    };
    uint32_t constant;  // into constants_
    std::vector<Item> items;
  };

  struct ResultTarget {
    uint32_t position;
    int32_t item;
    uint32_t slot;
  };

  struct Step {
    c10::OperatorHandle op;
    uint32_t args_end;        // in args_; the first one is where the step before ended
    uint32_t results_end;     // in results_
    uint32_t deliveries_end;  // in deliveries_: the outputs that are ready behind it
    bool grad_mode;
    bool below_inplace;
    bool autocast;
    bool inference;
    bool shared_cast;
    int32_t expected;  // in expected_: what it must return; -1 if nothing relies on that
    int32_t view;      // in views_, or -1: the operator has to be called
    int32_t kept;      // in kept_steps_, or -1
  };

  // A step that writes into kept tensors, if its other operands are as they were recorded.
  struct KeptStep {
    struct Check {
      uint32_t operand;
      graph::ValueId value;
    };
    DirectKernel kernel;
    uint32_t first;  // of its results among the kept tensors
    c10::SmallVector<Check, 2> checks;
    c10::SmallVector<uint32_t, 2> released;  // slots
  };

  void place_values();
  void flatten_kept(size_t index, size_t first_arg);
  void flatten(const graph::Op& op, size_t index, const DirectViews& views);
  std::vector<graph::TensorRef> flatten_results(const graph::Op& op, size_t index);
  Operand operand(const graph::TensorRef& tensor, size_t index);
  void plan_outputs();
  void plan_deliveries();

  // What a run works with.
  struct Run {
    Slots& slots;
    const Numbers& numbers;
    const std::vector<at::Tensor>& constants;
    at::Tensor* kept = nullptr;  // null: this run makes all results anew
    uint32_t next_arg = 0, next_result = 0, next_delivery = 0;
  };
  void push_arguments(const Step& step, Run& run, c10::Stack& stack) const;
  c10::IValue make_sized(const SizedArg& arg, const Numbers& numbers) const;
  c10::IValue make_list(const ArgSource& source, Run& run) const;
  // False: the operator has to be called after all.
  bool view_directly(const Step& step, Run& run) const;
  bool write_kept(const Step& step, Run& run) const;
  void deliver(Run& run, uint32_t end, const Sink& sink) const;

  graph::Graph graph_;
  const ExecutorOptions options_;
  std::vector<Step> steps_;
  std::vector<ArgSource> args_;
  std::vector<c10::IValue> constants_;
  std::vector<c10::IValue> expected_;
  std::vector<Operand> operands_;
  std::vector<SizedArg> sized_;
  std::vector<DirectView> views_;
  std::vector<KeptStep> kept_steps_;
  std::optional<KeptResults> kept_;
  // Those of the graph, then one for each number that an operator would cast; `ready_constants_` has these cast.
  std::vector<at::Tensor> constant_tensors_, ready_constants_;
  std::optional<graph::SizeBinding> sizes_;
  std::vector<ResultTarget> results_;
  std::vector<Output> outputs_;
  std::vector<uint32_t> deliveries_;  // outputs in the order in which they are ready
  uint32_t ready_at_once_ = 0;        // how many of these no step has to do with
  std::vector<Operand> places_;       // by value
  std::vector<size_t> last_uses_;     // by value: index of the op, or kForever
  size_t slot_count_ = 0;
  size_t max_args_ = 0;
  bool derives_ = false;
  static constexpr size_t kForever = SIZE_MAX;
  static constexpr size_t kNever = SIZE_MAX - 1;
};

// Autocast as the caller has it, turned on and off around single operators.
class Autocast {
 public:
  Autocast();
  ~Autocast() { set(true); }
  void set(bool on);

 private:
  c10::SmallVector<c10::DispatchKey, 2> keys_;
  bool on_ = true;
};

}  // namespace magneto::runtime
