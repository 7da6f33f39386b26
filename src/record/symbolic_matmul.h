// torch.matmul for symbolic sizes: torch's own composite asks for plain numbers, and so would fix them.
#pragma once
#include <ATen/core/Tensor.h>

namespace magneto::record {

// Something is symbolic, and the product is one of batches.
bool needs_symbolic_matmul(const at::Tensor& left, const at::Tensor& right);

// Calls the operators that at::matmul calls.
at::Tensor symbolic_matmul(at::Tensor left, at::Tensor right);

}  // namespace magneto::record
