// The casts that autocast makes of parameters, once in a block, for all operators that want them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "graph/schema_info.h"

namespace magneto::record {

// Whether a call of an operator may be such a cast: autocast turns itself off before it casts.
bool may_be_shared_cast(const graph::SchemaInfo& info, const c10::Stack& arguments);
// The parameter that `tensor` may be such a cast of; undefined if it is nothing like that.
at::Tensor parameter_of_cast(const at::Tensor& tensor);

}  // namespace magneto::record
