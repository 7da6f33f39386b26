// Tables of names. Whatever is not listed as harmless is refused, except functions over tensors, which go through the
// dispatcher unless they are listed.
#include "record/call_table.h"

#include <algorithm>
#include <array>
#include <unordered_set>

namespace magneto::record {
namespace {

using runtime::CallKind;
using std::string_view;
using Names = std::unordered_set<string_view>;

// Parts of names: tensors that recordings do not understand, and helpers of torch itself.
constexpr std::array<string_view, 13> kRefusedParts = {"sparse", "nested", "quantize", "qparams",   "fbgemm",
                                                       "sobol",  "_test_", "_dual",    "batch_dim", "mkldnn_reshape",
                                                       "cslt_",  "_cufft", "dyn_quant"};

bool has_refused_part(string_view name) {
  return std::any_of(kRefusedParts.begin(), kRefusedParts.end(),
                     [&](string_view part) { return name.find(part) != string_view::npos; });
}

// They touch memory, identity, autograd or storage without an operator that a recording would see.
const Names& refused_methods() {
  static const Names names = {"requires_grad_",
                              "detach_",
                              "retain_grad",
                              "rename",
                              "rename_",
                              "names",
                              "as_subclass",
                              "_make_subclass",
                              "_make_wrapper_subclass",
                              "_dtensor__new__",
                              "set_",
                              "set_data",
                              "data_ptr",
                              "const_data_ptr",
                              "numpy",
                              "tolist",
                              "register_hook",
                              "backward",
                              "_backward",
                              "share_memory_",
                              "pin_memory",
                              "is_pinned",
                              "untyped_storage",
                              "storage",
                              "_typed_storage",
                              "storage_offset",
                              "apply_",
                              "map_",
                              "map2_",
                              "new",
                              "_fix_weakref",
                              "_view_func",
                              "_view_func_unsafe",
                              "_rev_view_func_unsafe",
                              "_use_count",
                              "_is_view",
                              "record_stream",
                              "__delitem__",
                              "__new__",
                              "is_shared",
                              "_version",
                              "is_leaf",
                              "output_nr",
                              "to_mkldnn",
                              "to_padded_tensor",
                              "coalesce",
                              "is_coalesced",
                              "_coalesced_",
                              "indices",
                              "_indices",
                              "values",
                              "_values",
                              "crow_indices",
                              "col_indices",
                              "ccol_indices",
                              "row_indices",
                              "q_scale",
                              "q_zero_point",
                              "q_per_channel_scales",
                              "q_per_channel_zero_points",
                              "q_per_channel_axis",
                              "qscheme",
                              "int_repr",
                              "dequantize",
                              "_nnz",
                              "_dimI",
                              "_dimV",
                              "sspaddmm",
                              "smm",
                              "is_set_to",
                              "is_distributed",
                              "_lazy_clone",
                              "_to_dense",
                              "to_dense"};
  return names;
}

const Names& query_methods() {
  static const Names names = {"size",       "dim",          "stride",        "numel",
                              "nelement",   "ndimension",   "is_contiguous", "is_floating_point",
                              "is_complex", "element_size", "get_device",    "is_conj",
                              "is_neg",     "is_inference", "is_signed",     "is_same_size",
                              "__len__",    "sparse_dim",   "dense_dim",     "_is_zerotensor"};
  return names;
}

const Names& refused_functions() {
  static const Names names = {"from_numpy",
                              "frombuffer",
                              "from_file",
                              "_from_blob",
                              "_make_dual",
                              "_unpack_dual",
                              "_pin_memory",
                              "get_device",
                              "_efficientzerotensor",
                              "is_vulkan_available",
                              "is_distributed",
                              "_nnpack_available",
                              "_print",
                              "_make_dep_token",
                              "_lazy_clone",
                              "_propagate_xla_data",
                              "_to_cpu",
                              "_copy_from",
                              "_copy_from_and_resize",
                              "q_scale",
                              "q_zero_point",
                              "q_per_channel_scales",
                              "q_per_channel_zero_points",
                              "q_per_channel_axis",
                              "int_repr",
                              "dequantize",
                              "saddmm",
                              "spmm",
                              "dsmm",
                              "hsmm",
                              "hspmm",
                              "smm",
                              "sspaddmm",
                              "_coalesce",
                              "_indices_copy",
                              "_values_copy",
                              "values_copy",
                              "indices_copy",
                              "crow_indices_copy",
                              "col_indices_copy",
                              "ccol_indices_copy",
                              "row_indices_copy",
                              "_convert_indices_from_coo_to_csr",
                              "_convert_indices_from_csr_to_coo",
                              "_debug_has_internal_overlap",
                              "_cudnn_init_dropout_state",
                              "_foobar"};
  return names;
}

const Names& query_functions() {
  static const Names names = {"promote_types",
                              "result_type",
                              "can_cast",
                              "is_floating_point",
                              "is_complex",
                              "numel",
                              "is_conj",
                              "is_neg",
                              "is_inference",
                              "is_signed",
                              "is_same_size",
                              "_parse_to",
                              "cudnn_is_acceptable",
                              "_has_compatible_shallow_copy_type",
                              "_is_zerotensor",
                              "_use_cudnn_rnn_flatten_weight"};
  return names;
}

// They answer from state that GlobalState compares, from their arguments, or from the build.
const Names& query_module_functions() {
  static const Names names = {"is_grad_enabled",
                              "is_inference_mode_enabled",
                              "_is_fwd_grad_enabled",
                              "_get_tracing_state",
                              "_is_tracing",
                              "_has_torch_function",
                              "_has_torch_function_unary",
                              "_has_torch_function_variadic",
                              "_is_torch_function_enabled",
                              "_is_torch_function_all_disabled",
                              "_is_torch_function_mode_enabled",
                              "_len_torch_function_stack",
                              "_get_function_stack_at",
                              "_len_torch_dispatch_stack",
                              "is_autocast_enabled",
                              "is_autocast_cpu_enabled",
                              "is_autocast_cache_enabled",
                              "get_autocast_dtype",
                              "get_autocast_gpu_dtype",
                              "get_autocast_cpu_dtype",
                              "_is_any_autocast_enabled",
                              "_is_autocast_available",
                              "_get_cudnn_enabled",
                              "_get_cudnn_benchmark",
                              "_get_cudnn_deterministic",
                              "_get_mkldnn_enabled",
                              "_get_mkldnn_deterministic",
                              "_get_deterministic_algorithms",
                              "_get_deterministic_algorithms_warn_only",
                              "_get_deterministic_fill_uninitialized_memory",
                              "_get_flash_sdp_enabled",
                              "_get_mem_efficient_sdp_enabled",
                              "_get_math_sdp_enabled",
                              "_get_cudnn_sdp_enabled",
                              "_get_overrideable_sdp_enabled",
                              "_get_math_sdp_allow_fp16_bf16_reduction",
                              "_get_sdp_priority_order",
                              "get_default_dtype",
                              "_get_privateuse1_backend_name",
                              "_log_api_usage_once",
                              "_log_api_usage_metadata",
                              "_are_functorch_transforms_active",
                              "maybe_get_level",
                              "unwrap_if_dead",
                              "maybe_current_level",
                              "is_functorch_wrapped_tensor",
                              "is_batchedtensor",
                              "is_gradtrackingtensor",
                              "is_functionaltensor",
                              "_has_storage",
                              "_is_multithreading_enabled",
                              "_get_accelerator",
                              "_cuda_isCurrentStreamCapturing",
                              "_has_mkldnn",
                              "_is_cow_tensor"};
  return names;
}

const Names& balanced_module_functions() {
  static const Names names = {
      "_set_grad_enabled",          "set_autocast_enabled",       "set_autocast_cpu_enabled",
      "set_autocast_dtype",         "set_autocast_gpu_dtype",     "set_autocast_cpu_dtype",
      "set_autocast_cache_enabled", "autocast_increment_nesting", "autocast_decrement_nesting",
      "clear_autocast_cache",       "_pop_torch_function_stack",  "_push_on_torch_function_stack",
      "_set_sdp_use_flash",         "_set_sdp_use_mem_efficient", "_set_sdp_use_math",
      "_set_sdp_use_cudnn",         "_set_sdp_use_overrideable",  "_set_sdp_priority_order"};
  return names;
}

// Numbers out of tensors, and tensors whose sizes depend on contents.
const Names& asking_names() {
  static const Names names = {"item",     "__bool__", "__int__",    "__float__",  "__index__",          "__complex__",
                              "equal",    "allclose", "is_nonzero", "nonzero",    "argwhere",           "masked_select",
                              "bincount", "_unique",  "_unique2",   "unique_dim", "unique_consecutive", "ctc_loss"};
  return names;
}

}  // namespace

CallKind tensor_method_kind(string_view name) {
  if (query_methods().count(name)) return CallKind::Query;
  if (asking_names().count(name)) return CallKind::Asks;
  if (refused_methods().count(name) || has_refused_part(name)) return CallKind::Refused;
  return CallKind::TensorOp;
}

CallKind tensor_function_kind(string_view name) {
  if (query_functions().count(name)) return CallKind::Query;
  if (asking_names().count(name)) return CallKind::Asks;
  if (refused_functions().count(name) || has_refused_part(name)) return CallKind::Refused;
  return CallKind::TensorOp;
}

CallKind module_function_kind(string_view name) {
  if (query_module_functions().count(name)) return CallKind::Query;
  if (balanced_module_functions().count(name)) return CallKind::Balanced;
  return CallKind::Refused;
}

CallKind tensor_attribute_kind(string_view name) {
  static const Names ops = {"T", "mT", "H", "mH", "real", "imag"};
  static const Names queries = {
      "shape",           "dtype",     "device",       "layout",        "ndim",      "requires_grad",
      "itemsize",        "nbytes",    "is_cuda",      "is_cpu",        "is_mtia",   "is_xla",
      "is_xpu",          "is_ipu",    "is_sparse",    "is_sparse_csr", "is_mkldnn", "is_mps",
      "is_maia",         "is_vulkan", "is_quantized", "is_meta",       "is_nested", "_has_symbolic_sizes_strides",
      "_python_dispatch"};
  if (ops.count(name)) return CallKind::TensorOp;
  if (queries.count(name)) return CallKind::Query;
  return CallKind::Refused;
}

}  // namespace magneto::record
