// Reads operator schemas and adds what they do not say.
#include "graph/schema_info.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

namespace magneto::graph {
namespace {

using c10::DispatchKey;
using std::string_view;

template <size_t N>
bool contains(const std::array<string_view, N>& names, string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Their answers depend on shapes, dtypes, devices and torch's settings only.
constexpr std::array<string_view, 25> kMetadataAnswers = {"aten::_fused_sdp_choice",
                                                          "aten::is_same_size",
                                                          "aten::sym_size.int",
                                                          "aten::sym_stride.int",
                                                          "aten::sym_numel",
                                                          "aten::sym_storage_offset",
                                                          "aten::sym_is_contiguous",
                                                          "aten::size.int",
                                                          "aten::stride.int",
                                                          "aten::numel",
                                                          "aten::dim",
                                                          "aten::is_contiguous",
                                                          "aten::is_contiguous.memory_format",
                                                          "aten::is_complex",
                                                          "aten::is_floating_point",
                                                          "aten::is_signed",
                                                          "aten::is_conj",
                                                          "aten::is_neg",
                                                          "aten::is_inference",
                                                          "aten::get_device",
                                                          "aten::cudnn_is_acceptable",
                                                          "aten::_use_cudnn_rnn_flatten_weight",
                                                          "aten::promote_types",
                                                          "aten::can_cast",
                                                          "aten::_has_compatible_shallow_copy_type"};

// The numbers that they return beside tensors are shapes or seeds, never contents.
constexpr std::array<string_view, 5> kMixedAnswers = {
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention",
    "aten::_efficient_attention_forward", "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_cudnn_attention_forward"};

// These write arguments that their schemas do not mark as written.
constexpr std::array<string_view, 9> kHiddenWrites = {"aten::native_batch_norm",
                                                      "aten::cudnn_batch_norm",
                                                      "aten::miopen_batch_norm",
                                                      "aten::batch_norm_update_stats",
                                                      "aten::batch_norm_gather_stats",
                                                      "aten::batch_norm_gather_stats_with_counts",
                                                      "aten::_fused_moving_avg_obs_fq_helper",
                                                      "aten::rrelu_with_noise",
                                                      "aten::_cudnn_rnn"};

// The sizes of their results follow from contents, and no tag says so.
constexpr std::array<string_view, 4> kUntaggedDynamic = {"aten::_pack_padded_sequence", "aten::masked_scatter.out",
                                                         "aten::_nested_tensor_from_mask", "aten::segment_reduce"};

constexpr std::array<string_view, 8> kAllocators = {
    "aten::empty",     "aten::empty_strided",     "aten::empty_like",      "aten::empty_permuted",
    "aten::new_empty", "aten::new_empty_strided", "aten::empty_quantized", "aten::_empty_affine_quantized"};

constexpr std::array<string_view, 14> kMetadataReaders = {
    "aten::empty_like",   "aten::new_empty", "aten::new_empty_strided", "aten::zeros_like",
    "aten::ones_like",    "aten::full_like", "aten::rand_like",         "aten::randn_like",
    "aten::randint_like", "aten::new_zeros", "aten::new_ones",          "aten::new_full",
    "aten::detach",       "aten::alias"};

constexpr std::array<string_view, 5> kResizers = {"aten::resize_", "aten::resize_as_", "aten::_resize_output_",
                                                  "aten::set_", "aten::detach_"};

bool holds_tensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return true;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType: return holds_tensors(type->containedType(0));
    default: return false;
  }
}

// For a list, the mark is on its items.
bool is_written(const c10::AliasInfo* alias) {
  if (!alias) return false;
  if (alias->isWrite()) return true;
  for (const c10::AliasInfo& item : alias->containedTypes()) {
    if (is_written(&item)) return true;
  }
  return false;
}

void read_schema(const c10::FunctionSchema& schema, SchemaInfo& info) {
  for (const auto& argument : schema.arguments()) {
    bool written = is_written(argument.alias_info());
    info.written.push_back(written);
    info.writes |= written;
    auto type = argument.type();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
    info.random |= type->kind() == c10::TypeKind::GeneratorType;
  }
  bool only_tensors = true;
  for (const auto& result : schema.returns()) {
    if (result.alias_info() && !is_written(result.alias_info())) info.returns_view = true;
    only_tensors &= holds_tensors(result.type());
  }
  if (!only_tensors) info.answer = Answer::Value;
}

// A kernel for this backend, or one for all backends, that is not made of other operators.
bool is_composite(const c10::OperatorHandle& op, DispatchKey backend) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !op.hasKernelForDispatchKey(backend) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

SchemaInfo make_info(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  SchemaInfo info;
  string_view base = schema.name();
  info.name = schema.name();
  if (!schema.overload_name().empty()) info.name += "." + schema.overload_name();
  read_schema(schema, info);

  info.random |= op.hasTag(at::Tag::nondeterministic_seeded);
  info.indexing = info.name == "aten::index.Tensor";
  info.dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape) || contains(kUntaggedDynamic, base);
  if (op.hasTag(at::Tag::data_dependent_output)) info.answer = Answer::Value;
  if (contains(kMetadataAnswers, info.name) || base == "aten::result_type") info.answer = Answer::Metadata;
  if (contains(kMixedAnswers, base)) info.answer = Answer::None;
  if (info.name == "aten::_local_scalar_dense") info.answer = Answer::Number;

  info.lifts = base == "aten::lift_fresh" || base == "aten::lift" || base == "aten::lift_fresh_copy";
  info.allocates = contains(kAllocators, base);
  info.reads_metadata_only = info.returns_view || contains(kMetadataReaders, base);
  info.initialises = !contains(kResizers, base);
  info.tracks_views = op.hasKernelForDispatchKey(DispatchKey::ADInplaceOrView);
  info.composite_cpu = is_composite(op, DispatchKey::CPU);
  info.composite_cuda = is_composite(op, DispatchKey::CUDA);

  info.foreign = base.substr(0, 6) != "aten::";
  info.hidden_writes = info.foreign || contains(kHiddenWrites, base);
  info.kept = info.writes || info.random || info.hidden_writes || schema.returns().empty() ||
              base.find("_assert") != string_view::npos;
  return info;
}

}  // namespace

const SchemaInfo& schema_info(const c10::OperatorHandle& op) {
  // Owned by its thread. An operator may be deregistered and another one take its address, so the name is compared.
  static thread_local std::unordered_map<const void*, std::pair<c10::OperatorName, SchemaInfo>> cache;
  const void* key = &op.schema();
  auto found = cache.find(key);
  if (found != cache.end() && found->second.first == op.operator_name()) return found->second.second;
  auto made = cache.insert_or_assign(key, std::make_pair(op.operator_name(), make_info(op)));
  return made.first->second.second;
}

}  // namespace magneto::graph
