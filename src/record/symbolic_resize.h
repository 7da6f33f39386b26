// Resizing and pooling for symbolic sizes: torch's own composites ask for all sizes as plain numbers.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace magneto::record {

// The overloads (input, output_size?, [align_corners,] scale_factors?) of the operators that resize images.
c10::ArrayRef<const char*> resizing_operators();

// Calls the operator that such an overload calls, if the input is symbolic. False: it is not; nothing was done.
bool resize_symbolically(const c10::OperatorHandle& op, c10::Stack& stack);

// Likewise for (self, kernel_size, stride, padding, dilation, ceil_mode) of max_pool1d where it needs a gradient.
bool pool_symbolically(c10::Stack& stack);

}  // namespace magneto::record
