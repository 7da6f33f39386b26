// Recordings of operators that do not run: the program works on trace tensors, and what operators would make is
// inferred.
#pragma once
#include <c10/core/SymIntArrayRef.h>

#include "graph/symbols.h"
#include "record/recorder.h"

namespace magneto::record {

class TraceRecorder final : public Recorder {
 public:
  explicit TraceRecorder(RecorderOptions options) : Recorder(std::move(options)) {}
  ~TraceRecorder() override;

  bool is_live() const override { return false; }
  void stop() override;
  at::Tensor stand_in(const at::Tensor& argument, const std::string& name, c10::ArrayRef<DynamicSize> dynamic) override;
  at::Tensor stand_in_for_gradient(const at::Tensor& output) override;
  // An integer argument that later calls may change, as the next input: what stands for it while the program runs.
  c10::SymInt add_size(int64_t number, const std::string& name, const std::string& symbol, graph::Range range);
  // Likewise a float.
  graph::ExprId add_float(double number, const std::string& name);
  // An output that is a symbolic number. False after refuse().
  bool add_output_size(const c10::Scalar& number);
  bool add_output_size(graph::ExprId expr);
  // Of the sizes that may change; made if there are none so far.
  const std::shared_ptr<graph::Symbols>& symbols();

 private:
  // A real tensor that the program has, and the trace tensor that takes its place in operators.
  struct Pair {
    at::Tensor real, trace;
    bool is_argument = false;
    bool is_placed = false;  // the recorder knows whose memory the trace tensor shares
  };

  // Tensors that share a real storage share a trace storage.
  struct Memory {
    at::Tensor trace;
    at::Tensor argument;  // the first one that lives there; may be undefined
  };

  void execute(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKey key,
               c10::DispatchKeySet keys, c10::Stack* stack) override;
  void execute_on_contents(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKey key,
                           c10::DispatchKeySet keys, c10::Stack* stack) override;
  std::optional<at::Tensor> contents_of(const at::Tensor& tensor) override;
  void prepare(const graph::SchemaInfo& info, c10::Stack* stack) override;
  void pass(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKeySet keys,
            c10::Stack* stack) override;
  void lifted(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) override;
  std::string why_not_recordable(const at::Tensor& tensor) const override;
  graph::ValueId add_value(graph::Role role, const at::Tensor& tensor) override;
  bool looks_like(const at::Tensor& tensor, const graph::Value& value) const override;
  bool take_symbolic(graph::Op& noted, uint32_t position, const c10::IValue& value) override;

  void recover_numbers(const graph::SchemaInfo& info, c10::Stack* stack);
  Pair& pair_for(const at::Tensor& real, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides);
  at::Tensor trace_for(const at::Tensor& real);
  graph::ExprId make_symbol(int64_t number, graph::SymbolSource source, const std::string& name, graph::Range range);
  // False after refuse().
  bool check_computable(graph::ExprId expr);
  c10::IValue take_number(graph::Op& noted, uint32_t position, int32_t item, const c10::IValue& number);

  std::shared_ptr<graph::Symbols> symbols_;                          // null until something is dynamic
  ska::flat_hash_map<c10::TensorImpl*, Pair> pairs_;                 // by the real tensor
  ska::flat_hash_map<c10::StorageImpl*, Memory> memories_;           // by the storage of real tensors
  std::vector<std::pair<c10::VariableVersion, uint32_t>> versions_;  // of real tensors when they were met, oldest first
};

}  // namespace magneto::record
