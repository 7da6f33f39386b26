// Works out what the results of an operator look like, from trace tensors and without their contents.
//
//   a shape rule ─▶ the kernel for all backends, on trace tensors ─▶ the real kernel, on dummies ─▶ the meta kernel
//
// The first way that covers the arguments wins; which ways an operator has is worked out once.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <string>

#include "graph/schema_info.h"
#include "record/recorder.h"

namespace magneto::record {

// The results of an operator cannot be told from what is known.
struct NotInferable : c10::Error {
  NotInferable(Refusal::Kind kind, std::string reason)
      : Error({__func__, __FILE__, __LINE__}, std::move(reason)), kind(kind) {}
  Refusal::Kind kind;
};

// Replaces the arguments on the stack by the results, as trace tensors that look like the results of the real kernel
// and alias the arguments in the same way. Errors are those of the real kernel where it checks more than contents.
void infer(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKeySet keys, c10::Stack* stack);

// Whether the operator's answer, or the sizes of its results, follow from the contents of tensors.
bool follows_contents(const graph::SchemaInfo& info, c10::ArrayRef<c10::IValue> args);

// While infer() runs on this thread: operators that reach the recorder then are parts of the one being inferred.
bool is_inferring();

}  // namespace magneto::record
