// Rules for the fused attention kernels, whose tensors are [batch, heads, length, width].
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

bool covered(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  for (const at::Tensor* tensor : {&query, &key, &value}) {
    if (tensor->dim() != 4 || tensor->scalar_type() != query.scalar_type() || tensor->device() != query.device())
      return false;
  }
  return is(query.scalar_type(), kFloating) && product(query.sym_sizes()) != 0 && product(key.sym_sizes()) != 0;
}

// [batch, heads, length, ...] over memory of [batch, length, heads, ...]
at::Tensor make_by_length(SymIntArrayRef sizes, ScalarType type, Device device) {
  Sizes in_memory(sizes);
  std::swap(in_memory[1], in_memory[2]);
  Sizes strides = contiguous_strides(in_memory);
  std::swap(strides[1], strides[2]);
  return make_trace(sizes, strides, 0, type, device);
}

ScalarType wide(ScalarType type) { return type == ScalarType::Double ? type : ScalarType::Float; }

// (query, key, value, dropout_p, is_causal, *, attn_mask, scale)
bool flash_cpu(Args args, Stack& results) {
  const at::Tensor &query = args[0].toTensor(), &key = args[1].toTensor(), &value = args[2].toTensor();
  if (!covered(query, key, value) || !query.is_cpu() || query.sym_size(3) != value.sym_size(3)) return false;
  auto sizes = query.sym_sizes();
  return give(results, make_like(query), make_by_length(sizes.slice(0, 3), wide(query.scalar_type()), query.device()));
}

// (grad_out, query, key, value, out, logsumexp, ...)
bool flash_cpu_backward(Args args, Stack& results) {
  const at::Tensor &query = args[1].toTensor(), &key = args[2].toTensor(), &value = args[3].toTensor();
  if (!covered(query, key, value) || !query.is_cpu()) return false;
  for (const at::Tensor* tensor : {&query, &key, &value}) {
    give(results, make_by_length(tensor->sym_sizes(), tensor->scalar_type(), tensor->device()));
  }
  return true;
}

constexpr Row kRules[] = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_cpu},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_cpu_backward},
};

}  // namespace

Rows attention_rules() { return kRules; }

}  // namespace magneto::record::rules
