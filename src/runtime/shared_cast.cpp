// Asks torch for the casts that autocast keeps.
#include "runtime/shared_cast.h"

// From ATen/autocast_mode.h, which pulls in every operator.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API bool is_autocast_cache_enabled();
TORCH_API Tensor cached_cast(at::ScalarType to_type, const Tensor& arg, c10::DeviceType device_type);
}  // namespace at::autocast

namespace magneto::runtime {

bool autocast_keeps(const at::Tensor& tensor, c10::ScalarType dtype) {
  auto device = tensor.device().type();
  return tensor.scalar_type() == c10::kFloat && (device == c10::kCPU || device == c10::kCUDA) &&
         at::autocast::is_autocast_cache_enabled() && at::autocast::get_autocast_dtype(device) == dtype &&
         tensor.requires_grad() && tensor.is_leaf() && !tensor.is_view();
}

at::Tensor shared_cast(const at::Tensor& parameter, c10::ScalarType dtype) {
  return at::autocast::cached_cast(dtype, parameter, parameter.device().type());
}

}  // namespace magneto::runtime
