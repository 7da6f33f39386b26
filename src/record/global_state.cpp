// Reads torch's global and per-thread state in well under 100 ns.
#include "record/global_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <array>
#include <utility>

#include "record/recorder_keys.h"
#include "runtime/torch_python.h"

// From ATen/autocast_mode.h, which pulls in every operator.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API bool is_autocast_cache_enabled();
TORCH_API void clear_cache();
}  // namespace at::autocast

namespace magneto::record {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// What decides which operators a program calls. Settings that only kernels read (such as float32 precision) are read
// again by the kernels at each run.
struct State {
  // Modes, transforms, tracing, inference mode and autocast all show in the thread's dispatch keys.
  uint64_t included = 0;
  uint64_t excluded = 0;
  int64_t function_modes = 0;
  std::optional<c10::Device> default_device;
  int64_t dispatch_modes = 0;
  bool grad_mode = false;
  bool inference_mode = false;
  bool forward_grad_mode = false;
  bool forward_ad = false;
  bool anomaly = false;
  bool autocast_cache = false;
  uint8_t function_state = 0;
  uint8_t default_dtype = 0;
  uint8_t autocast_cpu = 0;
  uint8_t autocast_cuda = 0;
  uint32_t flags = 0;
  std::array<at::SDPBackend, at::num_sdp_backends> sdp_order{};

  bool operator==(const State&) const = default;
};

constexpr const char* kFlagNames[] = {"cudnn",
                                      "cudnn benchmark",
                                      "deterministic cudnn",
                                      "mkldnn",
                                      "deterministic mkldnn",
                                      "flash attention",
                                      "memory-efficient attention",
                                      "math attention",
                                      "cudnn attention",
                                      "overrideable attention",
                                      "reduced-precision math attention",
                                      "deterministic algorithms",
                                      "warning about nondeterministic algorithms",
                                      "filling of uninitialized memory"};

uint32_t read_flags(const at::Context& context) {
  uint32_t flags = 0, bit = 0;
  auto add = [&](bool value) { flags |= static_cast<uint32_t>(value) << bit++; };
  add(context.userEnabledCuDNN());
  add(context.benchmarkCuDNN());
  add(context.deterministicCuDNN());
  add(context.userEnabledMkldnn());
  add(context.deterministicMkldnn());
  add(context.userEnabledFlashSDP());
  add(context.userEnabledMemEfficientSDP());
  add(context.userEnabledMathSDP());
  add(context.userEnabledCuDNNSDP());
  add(context.userEnabledOverrideableSDP());
  add(context.allowFP16BF16ReductionMathSDP());
  add(context.deterministicAlgorithms());
  add(context.deterministicAlgorithmsWarnOnly());
  add(context.deterministicFillUninitializedMemory());
  return flags;
}

// Tensors have tangents only while a level is entered.
bool forward_ad_is_active() { return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr; }

State read_state() {
  State state;
  auto keys = c10::impl::tls_local_dispatch_key_set();
  state.included = keys.included_.raw_repr() & ~kBothKeys.raw_repr();
  state.excluded = keys.excluded_.raw_repr() & ~kBothKeys.raw_repr();
  state.function_modes = at::impl::PythonTorchFunctionTLS::stack_len();
  if (state.function_modes) state.default_device = runtime::default_device();
  state.dispatch_modes = c10::impl::TorchDispatchModeTLS::stack_len();
  const auto& autograd = c10::AutogradState::get_tls_state();
  state.grad_mode = autograd.get_grad_mode();
  state.inference_mode = autograd.get_inference_mode();
  state.forward_grad_mode = autograd.get_fw_grad_mode();
  state.forward_ad = forward_ad_is_active();
  state.anomaly = torch::autograd::AnomalyMode::is_enabled();
  state.autocast_cache = at::autocast::is_autocast_cache_enabled();
  state.function_state = static_cast<uint8_t>(at::impl::PythonTorchFunctionTLS::get_disabled_state());
  state.default_dtype = static_cast<uint8_t>(c10::get_default_dtype_as_scalartype());
  state.autocast_cpu = static_cast<uint8_t>(at::autocast::get_autocast_dtype(at::kCPU));
  state.autocast_cuda = static_cast<uint8_t>(at::autocast::get_autocast_dtype(at::kCUDA));
  auto& context = at::globalContext();
  state.flags = read_flags(context);
  state.sdp_order = context.sDPPriorityOrder();
  return state;
}

constexpr at::DeviceType kAutocastDevices[] = {at::kCPU, at::kCUDA, at::kMTIA, at::kMAIA, at::kXPU,
                                               at::kIPU, at::kHPU,  at::kXLA,  at::kMPS,  at::kPrivateUse1};

const char* on_off(bool value) { return value ? "on" : "off"; }

std::string dtype_name(uint8_t dtype) { return c10::toString(static_cast<c10::ScalarType>(dtype)); }

class Snapshot final : public runtime::GlobalState {
 public:
  bool holds() const override { return read_state() == was_; }
  std::string explain() const override;

 private:
  std::string explain_keys(const State& now) const;

  State was_ = read_state();
};

std::string Snapshot::explain_keys(const State& now) const {
  auto has = [](uint64_t keys, DispatchKey key) { return DispatchKeySet(DispatchKeySet::RAW, keys).has(key); };
  for (DispatchKey key : {DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA}) {
    bool off = has(now.excluded, key);
    if (off != has(was_.excluded, key)) {
      std::string device = key == DispatchKey::AutocastCPU ? "CPU" : "CUDA";
      return "autocast on " + device + " is " + on_off(!off) + ", was " + on_off(off);
    }
  }
  if (has(now.included, DispatchKey::Tracer) != has(was_.included, DispatchKey::Tracer)) return "jit tracing changed";
  auto differ = DispatchKeySet(DispatchKeySet::RAW, (now.included ^ was_.included) | (now.excluded ^ was_.excluded));
  if (differ.empty()) return "";
  return std::string("the dispatch key ") + c10::toString(differ.highestPriorityTypeId()) + " is set differently";
}

std::string Snapshot::explain() const {
  State now = read_state();
  auto flag = [](const char* what, bool is, bool was) {
    return std::string(what) + " is " + on_off(is) + ", was " + on_off(was);
  };
  auto dtype = [](const char* what, uint8_t is, uint8_t was) {
    return std::string(what) + " is " + dtype_name(is) + ", was " + dtype_name(was);
  };
  if (now.grad_mode != was_.grad_mode) return flag("grad mode", now.grad_mode, was_.grad_mode);
  if (now.inference_mode != was_.inference_mode) {
    return flag("inference mode", now.inference_mode, was_.inference_mode);
  }
  if (now.default_device != was_.default_device) {
    auto name = [](const std::optional<c10::Device>& device) { return device ? device->str() : "none"; };
    return "the default device is " + name(now.default_device) + ", was " + name(was_.default_device);
  }
  if (now.function_modes != was_.function_modes || now.function_state != was_.function_state) {
    return "torch function modes changed";
  }
  if (now.dispatch_modes != was_.dispatch_modes) return "torch dispatch modes changed";
  if (auto text = explain_keys(now); !text.empty()) return text;
  if (now.forward_grad_mode != was_.forward_grad_mode) {
    return flag("forward grad mode", now.forward_grad_mode, was_.forward_grad_mode);
  }
  if (now.forward_ad != was_.forward_ad) return flag("forward-mode differentiation", now.forward_ad, was_.forward_ad);
  if (now.anomaly != was_.anomaly) return flag("anomaly detection", now.anomaly, was_.anomaly);
  if (now.default_dtype != was_.default_dtype) return dtype("the default dtype", now.default_dtype, was_.default_dtype);
  if (now.autocast_cpu != was_.autocast_cpu) return dtype("autocast on CPU", now.autocast_cpu, was_.autocast_cpu);
  if (now.autocast_cuda != was_.autocast_cuda) return dtype("autocast on CUDA", now.autocast_cuda, was_.autocast_cuda);
  if (now.autocast_cache != was_.autocast_cache) {
    return flag("autocast's cache", now.autocast_cache, was_.autocast_cache);
  }
  for (size_t i = 0; i < std::size(kFlagNames); ++i) {
    bool is = now.flags >> i & 1, was = was_.flags >> i & 1;
    if (is != was) return flag(kFlagNames[i], is, was);
  }
  if (now.sdp_order != was_.sdp_order) return "the order of attention backends changed";
  return "";
}

// Settings that only kernels and other devices read.
struct Settings {
  int threads = at::get_num_threads();
  at::CuBLASReductionOption half = at::globalContext().allowFP16ReductionCuBLAS();
  at::CuBLASReductionOption bfloat = at::globalContext().allowBF16ReductionCuBLAS();
  std::optional<at::Float32MatmulPrecision> matmul = [] {
    try {
      return std::optional(at::globalContext().float32MatmulPrecision());
    } catch (const c10::Error&) {  // it was set for a single backend
      return std::optional<at::Float32MatmulPrecision>();
    }
  }();
  std::array<std::pair<bool, at::ScalarType>, std::size(kAutocastDevices)> autocast = [] {
    decltype(autocast) all;
    std::ranges::transform(kAutocastDevices, all.begin(), [](at::DeviceType device) {
      return std::pair(at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device));
    });
    return all;
  }();

  bool operator==(const Settings&) const = default;
};

// Modes are told apart without keeping them alive.
class WholeSnapshot final : public runtime::GlobalState {
 public:
  WholeSnapshot() {
    for (int64_t i = 0; i < PythonTorchFunctionTLS::stack_len(); ++i)
      modes_.push_back(PythonTorchFunctionTLS::get_stack_at(i));
  }

  bool holds() const override { return state_.holds() && Settings() == settings_ && same_modes(); }

  std::string explain() const override {
    if (std::string text = state_.explain(); !text.empty()) return text;
    Settings now;
    if (now.threads != settings_.threads)
      return "the number of threads is " + std::to_string(now.threads) + ", was " + std::to_string(settings_.threads);
    if (now.matmul != settings_.matmul) return "the float32 precision of matrix products was changed";
    if (now.half != settings_.half || now.bfloat != settings_.bfloat)
      return "reductions with reduced precision in matrix products were changed";
    for (size_t i = 0; i < now.autocast.size(); ++i)
      if (now.autocast[i] != settings_.autocast[i])
        return "autocast on " + c10::DeviceTypeName(kAutocastDevices[i], true) + " was changed";
    return same_modes() ? "" : "the default device or another torch function mode was changed";
  }

 private:
  using PythonTorchFunctionTLS = at::impl::PythonTorchFunctionTLS;

  bool same_modes() const {
    if (PythonTorchFunctionTLS::stack_len() != static_cast<int64_t>(modes_.size())) return false;
    for (size_t i = 0; i < modes_.size(); ++i)
      if (modes_[i].lock() != PythonTorchFunctionTLS::get_stack_at(static_cast<int64_t>(i))) return false;
    return true;
  }

  Snapshot state_;
  Settings settings_;
  std::vector<std::weak_ptr<c10::SafePyObject>> modes_;
};

}  // namespace

std::unique_ptr<runtime::GlobalState> snapshot_global_state() { return std::make_unique<Snapshot>(); }
std::unique_ptr<runtime::GlobalState> snapshot_whole_state() { return std::make_unique<WholeSnapshot>(); }

uint64_t attention_settings() {
  const auto& context = at::globalContext();
  uint64_t settings = 1;
  for (bool is_on : {context.userEnabledFlashSDP(), context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(),
                     context.userEnabledCuDNNSDP(), context.userEnabledOverrideableSDP()})
    settings = 2 * settings + is_on;
  for (at::SDPBackend backend : at::globalContext().sDPPriorityOrder())
    settings = 8 * settings + static_cast<uint64_t>(static_cast<int>(backend) & 7);
  return settings;
}

bool has_foreign_function_mode() {
  return at::impl::PythonTorchFunctionTLS::stack_len() > 0 && !runtime::default_device();
}

std::string why_state_forbids_recording() {
  if (has_foreign_function_mode()) return "a torch function mode is active";
  if (at::impl::PythonTorchFunctionTLS::get_disabled_state() != at::impl::TorchFunctionDisabledState::ENABLED) {
    return "torch functions are disabled";
  }
  return why_operators_are_not_recordable();
}

std::string why_operators_are_not_recordable() {
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return "a torch dispatch mode is active";
  auto keys = c10::impl::tls_local_dispatch_key_set();
  if (keys.included_.has_any(
          DispatchKeySet({DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode}))) {
    return "a functorch transform is active";
  }
  if (keys.included_.has(DispatchKey::Tracer)) return "torch.jit.trace is active";
  if (keys.included_.has(DispatchKey::Functionalize)) return "functionalization is active";
  auto unusual = keys.included_ - c10::default_included_set - kBothKeys;
  if (!unusual.empty()) {
    return std::string("the dispatch key ") + c10::toString(unusual.highestPriorityTypeId()) + " is active";
  }
  if (forward_ad_is_active()) return "forward-mode differentiation is active";
  if (torch::autograd::AnomalyMode::is_enabled()) return "anomaly detection is active";
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return "saved-tensor hooks are active";
  return "";
}

void forget_autocast_casts() { at::autocast::clear_cache(); }

}  // namespace magneto::record
