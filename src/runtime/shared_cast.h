// Autocast's own store of casted parameters, which lives as long as the outermost block of autocast.
#pragma once
#include <ATen/core/Tensor.h>

namespace magneto::runtime {

// Whether autocast, where it is on, keeps what it casts this tensor to.
bool autocast_keeps(const at::Tensor& tensor, c10::ScalarType dtype);
// The cast that it keeps, made now if there is none yet.
at::Tensor shared_cast(const at::Tensor& parameter, c10::ScalarType dtype);

}  // namespace magneto::runtime
