// Recordings of operators that do not run: the program works on trace tensors, and what operators would make is
// inferred.
#pragma once
#include "record/recorder.h"

namespace magneto::record {

class TraceRecorder final : public Recorder {
 public:
  explicit TraceRecorder(RecorderOptions options) : Recorder(std::move(options)) {}

  at::Tensor stand_in(const at::Tensor& argument) override;
  at::Tensor stand_in_for_gradient(const at::Tensor& output) override;

 private:
  // A real tensor that the program has, and the trace tensor that takes its place in operators.
  struct Pair {
    at::Tensor real, trace;
    bool is_argument = false;
    bool is_placed = false;  // the recorder knows whose memory the trace tensor shares
  };

  bool is_live() const override { return false; }
  void execute(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKey key,
               c10::DispatchKeySet keys, c10::Stack* stack) override;
  void prepare(const graph::SchemaInfo& info, c10::Stack* stack) override;
  void pass(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKeySet keys,
            c10::Stack* stack) override;
  void lifted(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) override;
  std::string why_not_recordable(const at::Tensor& tensor) const override;

  Pair& pair_for(const at::Tensor& real);
  at::Tensor trace_for(const at::Tensor& real);

  ska::flat_hash_map<c10::TensorImpl*, Pair> pairs_;            // by the real tensor
  ska::flat_hash_map<c10::StorageImpl*, at::Tensor> memories_;  // of real tensors: the first trace tensor there
};

}  // namespace magneto::record
