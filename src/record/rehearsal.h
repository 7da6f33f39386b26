// Asks the real kernel of an operator what its results look like: a rehearsal on dummies instead of trace tensors.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "graph/schema_info.h"

namespace magneto::record {

enum class Dummies : uint8_t {
  Memory,  // real tensors with arbitrary contents on the same device: exact, and costs what the operator costs
  Meta,    // meta tensors: what torch's meta kernels say, many of which are written in Python; may be turned off
};

// Whether the arguments are small enough for Dummies::Memory, and the operator draws no random numbers by itself.
bool fits_memory(const c10::OperatorHandle& op, const graph::SchemaInfo& info, const c10::Stack& stack);

// Runs the operator on dummies for the trace tensors on the stack, which it replaces by the results: trace tensors
// that alias the arguments as the real results do. An argument whose layout changed gets the new one.
void rehearse(const c10::OperatorHandle& op, const graph::SchemaInfo& info, Dummies kind, c10::Stack* stack);

}  // namespace magneto::record
