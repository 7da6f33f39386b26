// Reads operator schemas and adds what they do not say.
#include "graph/schema_info.h"

#include <ATen/core/enum_tag.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

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
constexpr std::array<string_view, 3> kUntaggedDynamic = {"aten::_pack_padded_sequence", "aten::masked_scatter.out",
                                                         "aten::_nested_tensor_from_mask"};
// Tagged, but the sizes of its results follow from its lists of lengths.
constexpr string_view kTaggedStatic = "aten::_ctc_loss";

constexpr std::array<string_view, 8> kAllocators = {
    "aten::empty",     "aten::empty_strided",     "aten::empty_like",      "aten::empty_permuted",
    "aten::new_empty", "aten::new_empty_strided", "aten::empty_quantized", "aten::_empty_affine_quantized"};

constexpr std::array<string_view, 14> kMetadataReaders = {
    "aten::empty_like",   "aten::new_empty", "aten::new_empty_strided", "aten::zeros_like",
    "aten::ones_like",    "aten::full_like", "aten::rand_like",         "aten::randn_like",
    "aten::randint_like", "aten::new_zeros", "aten::new_ones",          "aten::new_full",
    "aten::detach",       "aten::alias"};

// Beside views, allocators and elementwise operators: what never raises for some contents of its arguments, once it
// has run with others of the same shapes and types.
const std::unordered_set<string_view>& never_raising() {
  static const std::unordered_set<string_view> names = {
      // made from sizes and numbers
      "aten::zeros", "aten::ones", "aten::full", "aten::zeros_like", "aten::ones_like", "aten::full_like",
      "aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::arange", "aten::linspace", "aten::logspace",
      "aten::eye", "aten::scalar_tensor", "aten::tril_indices", "aten::triu_indices", "aten::fill",
      // copies and rearrangements
      "aten::zero", "aten::clone", "aten::_to_copy", "aten::lift_fresh", "aten::lift", "aten::detach", "aten::alias",
      "aten::cat", "aten::stack", "aten::repeat", "aten::roll", "aten::flip", "aten::tril", "aten::triu", "aten::copy",
      "aten::constant_pad_nd", "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::replication_pad1d",
      "aten::replication_pad2d", "aten::unsafe_chunk", "aten::unsafe_split", "aten::unsafe_split_with_sizes",
      "aten::_unsafe_view", "aten::pixel_shuffle", "aten::pixel_unshuffle", "aten::upsample_nearest2d",
      "aten::upsample_bilinear2d", "aten::masked_fill", "aten::where",
      // reductions and scans
      "aten::sum", "aten::nansum", "aten::mean", "aten::prod", "aten::amax", "aten::amin", "aten::aminmax", "aten::max",
      "aten::min", "aten::argmax", "aten::argmin", "aten::any", "aten::all", "aten::std", "aten::var", "aten::std_mean",
      "aten::var_mean", "aten::norm", "aten::linalg_vector_norm", "aten::logsumexp", "aten::cumsum", "aten::cumprod",
      "aten::cummax", "aten::cummin", "aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax", "aten::sort",
      "aten::argsort", "aten::topk", "aten::count_nonzero",
      // products
      "aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "aten::addmm", "aten::addbmm", "aten::baddbmm",
      "aten::addmv", "aten::addr", "aten::linear", "aten::_addmm_activation", "aten::convolution", "aten::_convolution",
      "aten::mkldnn_convolution", "aten::cudnn_convolution", "aten::_slow_conv2d_forward", "aten::thnn_conv2d",
      "aten::_scaled_dot_product_attention_math", "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_for_cpu",
      // normalisation and pooling
      "aten::native_layer_norm", "aten::native_group_norm", "aten::_fused_rms_norm", "aten::avg_pool1d",
      "aten::avg_pool2d", "aten::avg_pool3d", "aten::_adaptive_avg_pool2d", "aten::adaptive_max_pool2d",
      "aten::max_pool1d", "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::native_batch_norm",
      "aten::cudnn_batch_norm",
      // random numbers of a fixed distribution
      "aten::rand", "aten::randn", "aten::randint", "aten::randperm", "aten::rand_like", "aten::randn_like",
      "aten::randint_like", "aten::uniform", "aten::normal_", "aten::random", "aten::exponential",
      "aten::native_dropout"};
  return names;
}

// Whether nothing but shapes and types decides whether it raises.
bool never_raises(const c10::OperatorHandle& op, string_view base, const SchemaInfo& info) {
  if (base == "aten::as_strided") return false;  // the memory behind its argument may be smaller
  if (base == "aten::mvlgamma") return false;    // elementwise, but has a range
  if (info.name == "aten::bernoulli_.float" || base.starts_with("aten::_foreach_")) return true;
  string_view functional = base.substr(0, base.size() - base.ends_with('_'));  // of an operator that works in place
  return info.returns_view || info.allocates || op.hasTag(at::Tag::pointwise) || never_raising().count(base) != 0 ||
         never_raising().count(functional) != 0;
}

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
  info.dynamic_shape =
      (op.hasTag(at::Tag::dynamic_output_shape) && info.name != kTaggedStatic) || contains(kUntaggedDynamic, base);
  if (op.hasTag(at::Tag::data_dependent_output)) info.answer = Answer::Value;
  if (contains(kMetadataAnswers, info.name) || base == "aten::result_type") info.answer = Answer::Metadata;
  if (contains(kMixedAnswers, base)) info.answer = Answer::None;
  if (info.name == "aten::_local_scalar_dense") info.answer = Answer::Number;

  info.lifts = base == "aten::lift_fresh" || base == "aten::lift" || base == "aten::lift_fresh_copy";
  info.copies = info.name == "aten::clone";
  info.detaches = info.name == "aten::detach_";
  info.allocates = contains(kAllocators, base);
  info.reads_metadata_only = info.returns_view || contains(kMetadataReaders, base);
  info.initialises = !contains(kResizers, base);
  info.tracks_views = op.hasKernelForDispatchKey(DispatchKey::ADInplaceOrView);
  info.composite_cpu = is_composite(op, DispatchKey::CPU);
  info.composite_cuda = is_composite(op, DispatchKey::CUDA);

  info.may_raise = !never_raises(op, base, info);
  info.divides = base == "aten::div" || base == "aten::floor_divide" || base == "aten::remainder" ||
                 base == "aten::fmod" || base == "aten::pow";
  info.foreign = !base.starts_with("aten::") && !base.starts_with("magneto::");
  info.hidden_writes = info.foreign || contains(kHiddenWrites, base);
  info.kept = info.writes || info.random || info.hidden_writes || schema.returns().empty() ||
              base.find("_assert") != string_view::npos;
  return info;
}

}  // namespace

const SchemaInfo& schema_info(const c10::OperatorHandle& op) {
  struct Entry {
    c10::OperatorName name;
    SchemaInfo info;
  };
  // Owned by its thread; the entries are shared and never destroyed.
  static thread_local ska::flat_hash_map<const void*, const Entry*> cache;
  const void* key = &op.schema();
  const Entry*& found = cache[key];
  // An operator may be deregistered and another one take its address, so the name is compared.
  if (found && found->name == op.operator_name()) return found->info;
  static std::mutex& lock = *new std::mutex;
  static auto& entries = *new std::unordered_multimap<const void*, std::unique_ptr<const Entry>>;  // owned by `lock`
  std::lock_guard<std::mutex> hold(lock);
  auto [first, last] = entries.equal_range(key);
  auto same = std::find_if(first, last, [&](const auto& entry) { return entry.second->name == op.operator_name(); });
  if (same == last) {
    same = entries.emplace(key, std::make_unique<const Entry>(Entry{op.operator_name(), make_info(op)}));
  }
  found = same->second.get();
  return found->info;
}

}  // namespace magneto::graph
