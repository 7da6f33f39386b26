// The ways to infer the results of operators, and the choice between them.
#include "record/infer.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <iterator>
#include <memory>

#include "record/recorder_keys.h"
#include "record/rehearsal.h"
#include "record/rules.h"
#include "record/tensor_items.h"
#include "record/trace_tensor.h"

namespace magneto::record {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using c10::Stack;
using c10::SymInt;
using graph::Answer;
using graph::SchemaInfo;

// A backend without kernels of its own: on it, operators have their kernels for all backends only.
constexpr DispatchKey kBareBackend = DispatchKey::VE;

enum class Way : uint8_t {
  Kernel,      // the kernel of the device, which looks at metadata only
  Default,     // the kernel for all backends, whose parts are inferred in turn
  Structured,  // the same, made by torch from the operator's shape function
  Written,     // returns the arguments that it writes, whose layouts it keeps
  Copied,      // the same for aten::copy_
  Rehearsal,   // the real kernel on dummies
};

struct Plan {
  Rule rule = nullptr;
  Rule functional_rule = nullptr;  // of an in-place operator: that of its functional form, which also checks
  Way way = Way::Rehearsal;
};

thread_local int inferring = 0;

// What an inference needs of the thread: parts of the operator come back to us, and come below autograd.
struct InferScope {
  c10::impl::IncludeDispatchKeyGuard on{kNoteKey};
  c10::impl::ExcludeDispatchKeyGuard off{c10::autograd_dispatch_keyset_with_ADInplaceOrView | DispatchKeySet(kGateKey)};
  InferScope() { ++inferring; }
  ~InferScope() { --inferring; }
};

// ---- plans

bool has_kernel(const OperatorHandle& op, DispatchKey key) { return op.hasKernelForDispatchKey(key); }

bool is_inplace(const OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name.ends_with('_') && !name.ends_with("__");
}

// In-place operators that take whatever layout they find.
bool keeps_layouts(const OperatorHandle& op, const SchemaInfo& info) {
  if (!is_inplace(op)) return false;
  const std::string& name = op.schema().name();
  return info.random || name == "aten::zero_" || name == "aten::fill_" || name.starts_with("aten::_fused_") ||
         name.starts_with("aten::_amp_");
}

Way choose_way(const OperatorHandle& op, const SchemaInfo& info, DispatchKey backend) {
  bool own = has_kernel(op, backend) && !op.schema().name().starts_with("aten::_foreach_");
  // Beside kernels for backends torch makes these for structured operators only; a few others are written by hand.
  bool structured = own && has_kernel(op, DispatchKey::CompositeExplicitAutogradNonFunctional);
  bool for_all = has_kernel(op, DispatchKey::CompositeExplicitAutograd) ||
                 has_kernel(op, DispatchKey::CompositeExplicitAutogradNonFunctional);
  if (info.answer == Answer::Metadata) return Way::Kernel;
  if (op.schema().returns().empty() && !info.writes) return Way::Written;
  if (keeps_layouts(op, info)) return Way::Written;
  if (info.name == "aten::copy_") return Way::Copied;
  if (structured) return Way::Structured;
  if (info.returns_view || op.hasTag(at::Tag::inplace_view)) return Way::Kernel;
  if (for_all && !own) return Way::Default;
  return Way::Rehearsal;
}

Rule find_functional_rule(const OperatorHandle& op) {
  if (!is_inplace(op) || op.hasTag(at::Tag::inplace_view)) return nullptr;
  std::string name = op.schema().name();
  name.pop_back();
  const std::string& overload = op.schema().overload_name();
  auto functional = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!functional || functional->schema().arguments().size() != op.schema().arguments().size()) return nullptr;
  return find_rule(overload.empty() ? name : name + "." + overload);
}

DispatchKey backend_of(DispatchKeySet keys) {
  return keys.has_backend(c10::BackendComponent::CUDABit) ? DispatchKey::CUDA : DispatchKey::CPU;
}

Plan& plan_of(const OperatorHandle& op, const SchemaInfo& info, DispatchKey backend) {
  // Owned by its thread.
  static thread_local ska::flat_hash_map<const SchemaInfo*, std::unique_ptr<Plan>> plans[2];
  bool cuda = backend == DispatchKey::CUDA;
  auto& plan = plans[cuda][&info];
  if (!plan) {
    bool composite = cuda ? info.composite_cuda : info.composite_cpu;
    plan = std::make_unique<Plan>(
        Plan{find_rule(info.name), find_functional_rule(op), composite ? Way::Kernel : choose_way(op, info, backend)});
  }
  return *plan;
}

// ---- symbols

// Plain numbers in place of symbols, for kernels that cannot do with less.
class Specialised {
 public:
  Specialised(Stack& stack, size_t base) {
    for (size_t i = base; i < stack.size(); ++i) specialise(stack[i]);
  }

  // The symbolic tensor for one that took its place.
  at::Tensor restore(const at::Tensor& tensor) const {
    for (const auto& [symbolic, plain] : tensors_) {
      if (plain.is_same(tensor)) return symbolic;
    }
    return tensor;
  }

  // What was resized in place is no longer symbolic.
  void copy_layouts() const {
    for (const auto& [symbolic, plain] : tensors_) {
      if (plain.sizes() == symbolic.sizes() && plain.strides() == symbolic.strides()) continue;
      symbolic.unsafeGetTensorImpl()->set_sizes_and_strides(plain.sym_sizes(), plain.sym_strides());
    }
  }

 private:
  void specialise(IValue& value) {
    if (value.isSymInt()) {
      value = value.toSymInt().guard_int(__FILE__, __LINE__);
    } else if (value.isSymFloat()) {
      value = value.toSymFloat().guard_float(__FILE__, __LINE__);
    } else if (value.isSymBool()) {
      value = value.toSymBool().guard_bool(__FILE__, __LINE__);
    } else if (value.isSymIntList()) {
      c10::List<int64_t> numbers;
      for (const SymInt& number : value.toSymIntVector()) numbers.push_back(number.guard_int(__FILE__, __LINE__));
      value = std::move(numbers);
    } else {
      map_tensors(value, [this](const at::Tensor& tensor) { return specialise(tensor); });
    }
  }

  at::Tensor specialise(const at::Tensor& tensor) {
    if (!is_symbolic(tensor)) return tensor;
    for (const auto& [symbolic, plain] : tensors_) {
      if (symbolic.is_same(tensor)) return plain;
    }
    auto plain = make_trace_view(tensor, c10::fromIntArrayRefSlow(tensor.sizes()),
                                 c10::fromIntArrayRefSlow(tensor.strides()), tensor.storage_offset());
    tensors_.emplace_back(tensor, plain);
    return plain;
  }

  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 2> tensors_;
};

// ---- one operator

// Whether a tensor of sizes `from` broadcasts to `to`.
bool broadcasts(c10::SymIntArrayRef from, c10::SymIntArrayRef to) {
  if (from.size() > to.size()) return false;
  auto wanted = to.rbegin();
  for (auto size = from.rbegin(); size != from.rend(); ++size, ++wanted) {
    if (*size != 1 && *size != *wanted) return false;
  }
  return true;
}

bool repeats_memory(const at::Tensor& tensor) {
  auto sizes = tensor.sym_sizes(), strides = tensor.sym_strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i].maybe_as_int() == 0 && sizes[i] != 1) return true;
  }
  return false;
}

// Kernels may give back what torch's view kernels made, and pass on numbers that they wrapped up.
at::Tensor as_trace(const at::Tensor& tensor) {
  if (!is_trace(tensor)) return trace_of(tensor);
  if (is_trace_impl(tensor)) return tensor;
  return make_trace_view(tensor, tensor.sym_sizes(), tensor.sym_strides(), tensor.sym_storage_offset());
}

class Inference {
 public:
  Inference(const OperatorHandle& op, const SchemaInfo& info, DispatchKeySet keys, Stack* stack)
      : op_(op), info_(info), backend_(backend_of(keys)), stack_(*stack), base_(stack->size() - info.written.size()) {}

  void run();

 private:
  c10::ArrayRef<IValue> values() const { return c10::ArrayRef<IValue>(stack_).slice(base_); }
  bool asks() const { return info_.answer == Answer::Number || info_.answer == Answer::Value; }
  bool is_about_real_tensors() const;
  bool is_symbolic() const;
  c10::Device common_device() const;
  void check_answer() const;

  // Each leaves the results on the stack, or the arguments and returns false.
  bool apply(Rule rule);
  bool apply_in_place(Rule functional);
  bool attempt(Way way, bool specialise);

  void go(Way way);
  void go_specialised(Way way);
  void go_structured();
  void give_written();
  void go_rehearse();

  void set_values(Stack&& values);
  void make_traces();

  const OperatorHandle& op_;
  const SchemaInfo& info_;
  const DispatchKey backend_;
  Stack& stack_;
  const size_t base_;
};

bool Inference::is_about_real_tensors() const {
  bool real = true;
  for (const IValue& value : values()) each_tensor(value, [&](const at::Tensor& tensor) { real &= !is_trace(tensor); });
  return real;
}

bool Inference::is_symbolic() const {
  bool symbolic = false;
  for (const IValue& value : values()) {
    symbolic |= value.isSymInt() || value.isSymFloat() || value.isSymBool() || value.isSymIntList();
    each_tensor(value, [&](const at::Tensor& tensor) { symbolic |= record::is_symbolic(tensor); });
  }
  return symbolic;
}

// Where a structured kernel puts its results: with the first tensor that is not a mere number.
c10::Device Inference::common_device() const {
  std::optional<c10::Device> device;
  bool is_number = true;
  for (const IValue& value : values()) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (device && (!is_number || tensor.dim() == 0)) return;
      device = storage_device(tensor);
      is_number = tensor.dim() == 0;
    });
  }
  return device.value_or(c10::kCPU);
}

void Inference::check_answer() const {
  if (asks()) throw NotInferable(Refusal::DataDependent, value_asked(info_));
  if (info_.dynamic_shape && !info_.indexing && follows_contents(info_, values())) {
    throw NotInferable(Refusal::DataDependent, sizes_from_contents(info_));
  }
}

void Inference::set_values(Stack&& values) {
  stack_.resize(base_);
  std::move(values.begin(), values.end(), std::back_inserter(stack_));
}

void Inference::make_traces() {
  auto is_other = [](const at::Tensor& tensor) { return !is_trace_impl(tensor); };
  for (size_t i = base_; i < stack_.size(); ++i) {
    if (any_tensor(stack_[i], is_other)) map_tensors(stack_[i], as_trace);
  }
}

bool Inference::apply(Rule rule) {
  static thread_local Stack kept;  // empty: its memory is used again
  Stack results = std::exchange(kept, {});
  bool covered = rule(values(), results);
  if (covered) set_values(std::move(results));
  results.clear();
  kept = std::move(results);
  return covered;
}

bool Inference::apply_in_place(Rule functional) {
  at::Tensor self = stack_[base_].toTensor();
  Stack results;
  if (repeats_memory(self) || !functional(values(), results)) return false;
  const at::Tensor& result = results[0].toTensor();
  if (result.sym_sizes() != self.sym_sizes() || !c10::canCast(result.scalar_type(), self.scalar_type())) return false;
  set_values({std::move(self)});
  return true;
}

void Inference::give_written() {
  Stack results;
  for (size_t i = 0; i < info_.written.size() && results.size() < op_.schema().returns().size(); ++i) {
    if (info_.written[i]) results.push_back(stack_[base_ + i]);
  }
  set_values(std::move(results));
}

void Inference::go_structured() {
  MetaScope scope(common_device());
  op_.redispatchBoxed(DispatchKeySet(kBareBackend), &stack_);
}

void Inference::go_rehearse() {
  if (fits_memory(op_, info_, stack_)) {
    Stack arguments(values().begin(), values().end());
    try {
      return rehearse(op_, info_, Dummies::Memory, &stack_);
    } catch (const c10::LinAlgError&) {  // arbitrary contents do not suit it
      set_values(std::move(arguments));
    }
  }
  rehearse(op_, info_, Dummies::Meta, &stack_);
}

void Inference::go(Way way) {
  switch (way) {
    case Way::Kernel: return op_.redispatchBoxed(DispatchKeySet(backend_), &stack_);
    case Way::Default: return op_.redispatchBoxed(DispatchKeySet(kBareBackend), &stack_);
    case Way::Structured: return go_structured();
    case Way::Copied:
      TORCH_CHECK(broadcasts(values()[1].toTensor().sym_sizes(), values()[0].toTensor().sym_sizes()),
                  "copy_: the sizes do not match");
      return give_written();
    case Way::Written: return give_written();
    case Way::Rehearsal: return go_rehearse();
  }
}

void Inference::go_specialised(Way way) {
  Specialised specialised(stack_, base_);
  go(way);
  specialised.copy_layouts();
  for (size_t i = base_; i < stack_.size(); ++i) {
    map_tensors(stack_[i], [&](const at::Tensor& tensor) { return specialised.restore(tensor); });
  }
}

bool Inference::attempt(Way way, bool specialise) {
  Stack arguments(values().begin(), values().end());
  try {
    specialise ? go_specialised(way) : go(way);
    make_traces();
    return true;
  } catch (const c10::Error&) {  // it wants data, or the user made a mistake; the real kernel will tell
    set_values(std::move(arguments));
    return false;
  }
}

void Inference::run() {
  // Asked while a structured kernel runs: a result whose layout is settled already, unless just that is asked for.
  if (info_.writes && MetaScope::is_on() && !op_.hasTag(at::Tag::inplace_view)) return give_written();
  if (asks() && is_about_real_tensors()) {  // numbers that a kernel wrapped up, or a question about the machine
    c10::impl::ExcludeDispatchKeyGuard off(kBothKeys);
    return op_.redispatchBoxed(DispatchKeySet(backend_), &stack_);
  }
  check_answer();
  make_traces();
  Plan& plan = plan_of(op_, info_, backend_);
  if (plan.rule && apply(plan.rule)) return;
  if (plan.functional_rule && apply_in_place(plan.functional_rule)) return;

  InferScope scope;
  bool symbolic = is_symbolic();
  if (plan.way != Way::Rehearsal) {
    if (symbolic && plan.way != Way::Structured && attempt(plan.way, /*specialise=*/false)) return;
    if (attempt(plan.way, symbolic)) return;
  }
  symbolic ? go_specialised(Way::Rehearsal) : go(Way::Rehearsal);
  plan.way = Way::Rehearsal;
}

}  // namespace

bool follows_contents(const SchemaInfo& info, c10::ArrayRef<IValue> args) {
  if (info.answer == Answer::Value || info.answer == Answer::Number) return true;
  if (!info.dynamic_shape) return false;
  if (!info.indexing) return info.name != "aten::one_hot" || args.back().toInt() < 1;  // given a number of classes, not
  bool masked = false;
  each_tensor(args.back(), [&](const at::Tensor& index) {
    masked |= index.scalar_type() == c10::ScalarType::Bool || index.scalar_type() == c10::ScalarType::Byte;
  });
  return masked;
}

bool is_inferring() { return inferring != 0; }

void infer(const OperatorHandle& op, const SchemaInfo& info, DispatchKeySet keys, Stack* stack) {
  Inference(op, info, keys, stack).run();
}

}  // namespace magneto::record
