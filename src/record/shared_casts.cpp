// How the casts of autocast are told from those of the program.
#include "record/shared_casts.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "runtime/shared_cast.h"

namespace magneto::record {

bool may_be_shared_cast(const graph::SchemaInfo& info, const c10::Stack& arguments) {
  if (info.name != "aten::_to_copy") return false;
  const auto* call = &arguments[arguments.size() - info.written.size()];
  const at::Tensor& tensor = call[0].toTensor();
  auto key = tensor.is_cpu() ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
  return c10::impl::tls_is_dispatch_key_excluded(key) && call[1].isInt() &&
         runtime::autocast_keeps(tensor, call[1].toScalarType());
}

at::Tensor parameter_of_cast(const at::Tensor& tensor) {
  const auto& cast = tensor.grad_fn();
  if (!cast || cast->name() != "ToCopyBackward0" || cast->num_outputs() != 1) return {};
  const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(cast->next_edge(0).function.get());
  return leaf && runtime::autocast_keeps(leaf->variable, tensor.scalar_type()) ? leaf->variable : at::Tensor();
}

}  // namespace magneto::record
