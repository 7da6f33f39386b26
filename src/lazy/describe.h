// What is found out about a call when it is met for the first time.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "lazy/steps.h"
#include "record/lines.h"

namespace magneto::lazy {

// The kernels of the device below.
c10::DispatchKey key_of(c10::Device backing);

// What the call returns, and which of the operands, which live in `memories`, it changes. `next_id`: of the next value.
// None if that cannot be told without contents.
std::optional<Call> describe(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args, const Operands& operands,
                             const std::vector<Memory>& memories, uint32_t next_id, c10::Device backing);

// The places in the user's program. Owned by the GIL, which note() takes.
class CallLines {
 public:
  void note(Call& call);

 private:
  record::Lines finder_;
  std::vector<graph::Line> lines_;
  std::vector<std::shared_ptr<const graph::Line>> shared_;  // parallel to `lines_`
};

}  // namespace magneto::lazy
