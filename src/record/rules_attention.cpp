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

// Whether a mask is there that goes with scores of [batch, heads, length, other length], or none.
bool mask_goes_with(const c10::IValue& asked, const c10::IValue& type, SymIntArrayRef scores) {
  if (!given(asked)) return true;
  const at::Tensor& mask = asked.toTensor();
  if (type.isNone() || !is(mask.scalar_type(), kBoolean | kFloating) || !mask.is_cpu()) return false;
  switch (type.toInt()) {
    case 0: return mask.sym_sizes() == scores.slice(2);
    case 1: return mask.dim() == 2 && mask.sym_size(0) == scores[0] && mask.sym_size(1) == scores[3];
    case 2: return mask.sym_sizes() == scores;
    default: return false;
  }
}

// (src, embed_dim, num_heads, qkv weight and bias, projection weight and bias, use_gelu, norm_first, eps, weights and
// biases of the norms (4), of the linear layers (4), mask, mask_type)
bool encoder_layer(Args args, Stack& results) {
  const at::Tensor& src = args[0].toTensor();
  const int64_t width = args[1].toInt(), heads = args[2].toInt();
  if (src.dim() != 3 || !src.is_cpu() || !is(src.scalar_type(), kFloating)) return false;
  const Sizes projection = {3 * width, width};
  if (heads < 1 || width % heads != 0 || src.sym_size(2) != width) return false;
  if (args[3].toTensor().sym_sizes() != SymIntArrayRef(projection)) return false;
  if (product(src.sym_sizes()) == 0 || !is_contiguous(src.sym_sizes(), src.sym_strides())) return false;
  const SymInt length = src.sym_size(1);
  if (!mask_goes_with(args[18], args[19], Sizes{src.sym_size(0), heads, length, length})) return false;
  const at::Tensor &up = args[14].toTensor(), &down = args[16].toTensor();
  if (up.dim() != 2 || down.dim() != 2 || up.sym_size(1) != width || down.sym_size(0) != width) return false;
  return up.sym_size(0) == down.sym_size(1) && give(results, make_for(src, src.sym_sizes()));
}

// (query, key, value, embed_dim, num_head, qkv weight and bias, projection weight and bias, mask, need_weights,
// average_attn_weights, mask_type)
bool native_attention(Args args, Stack& results) {
  const at::Tensor &query = args[0].toTensor(), &key = args[1].toTensor(), &value = args[2].toTensor();
  const int64_t width = args[3].toInt(), heads = args[4].toInt();
  const Sizes in_projection = {3 * width, width}, out_projection = {width, width};
  for (const at::Tensor* tensor : {&query, &key, &value}) {
    if (tensor->dim() != 3 || !tensor->is_cpu() || tensor->scalar_type() != query.scalar_type()) return false;
    if (tensor->sym_size(2) != width || product(tensor->sym_sizes()) == 0) return false;
  }
  if (!is(query.scalar_type(), kFloating) || heads < 1 || width % heads != 0) return false;
  if (query.sym_size(0) != key.sym_size(0) || key.sym_sizes() != value.sym_sizes()) return false;
  if (args[5].toTensor().sym_sizes() != SymIntArrayRef(in_projection)) return false;
  if (args[7].toTensor().sym_sizes() != SymIntArrayRef(out_projection)) return false;
  Sizes weights = {query.sym_size(0), heads, query.sym_size(1), key.sym_size(1)};
  if (!mask_goes_with(args[9], args[12], weights)) return false;
  if (args[11].toBool()) weights.erase(weights.begin() + 1);
  return give(results, make_for(query, query.sym_sizes()), args[10].toBool() ? make_for(query, weights) : at::Tensor());
}

constexpr Row kAttentionRules[] = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_cpu},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_cpu_backward},
    {"aten::_transformer_encoder_layer_fwd", encoder_layer},
    {"aten::_native_multi_head_attention", native_attention},
};

}  // namespace

Rows attention_rules() { return kAttentionRules; }

}  // namespace magneto::record::rules
