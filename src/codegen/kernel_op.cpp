// How kernels are put into one source, and what a call of one does.
#include "codegen/kernel_op.h"

#include <ATen/core/List.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "codegen/prelude.h"
#include "runtime/errors.h"
#include "runtime/raw_tensors.h"

namespace magneto::codegen {
namespace {

struct Launch : torch::CustomClassHolder {
  std::shared_ptr<Library::Shared> shared;
  std::string function;
  std::vector<Layout> inputs, outputs;
  uint32_t blocks, threads;
  int64_t scratch;
  std::vector<int64_t> numbers;
};

Layout layout_of(const graph::Graph& graph, graph::ValueId id) {
  const graph::Value& value = graph.values[id];
  return {value.dtype, Sizes(value.sizes), Sizes(value.strides)};
}

// A kernel knows nothing of the tensors but where they begin, which is where packs of any size may.
constexpr uintptr_t kLargestPack = 16;

void check(const at::Tensor& tensor, const Layout& expected) {
  if (tensor.scalar_type() == expected.dtype && tensor.sizes() == c10::IntArrayRef(expected.sizes) &&
      tensor.strides() == c10::IntArrayRef(expected.strides)) [[likely]]
    return;
  MAGNETO_BUG("an operator gave a tensor of another layout than when it was recorded");
}

bool begins_with_a_pack(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kLargestPack == 0;
}

void run_kernel(const c10::OperatorHandle&, c10::Stack* stack) {
  auto launch = c10::static_intrusive_pointer_cast<Launch>((*stack)[0].toCapsule());
  std::vector<at::Tensor> inputs = (*stack)[1].toTensorVector();
  std::vector<void*> pointers;
  MAGNETO_ASSERT(inputs.size() == launch->inputs.size() && launch->shared->module);
  c10::Device device = launch->shared->module->device();
  c10::OptionalDeviceGuard on_device(device);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i], launch->inputs[i]);
    if (!begins_with_a_pack(inputs[i])) inputs[i] = runtime::flat(inputs[i]).clone();
    pointers.push_back(const_cast<void*>(inputs[i].const_data_ptr()));
  }
  c10::List<at::Tensor> outputs;
  for (const Layout& layout : launch->outputs) {
    auto options = at::TensorOptions().dtype(layout.dtype).device(device);
    outputs.push_back(at::empty_strided(layout.sizes, layout.strides, options));
    pointers.push_back(outputs.get(outputs.size() - 1).mutable_data_ptr());
  }
  at::Tensor scratch;
  if (launch->scratch) {
    scratch = at::empty_strided({launch->scratch}, {1}, at::TensorOptions().dtype(at::kFloat).device(device));
    pointers.push_back(scratch.mutable_data_ptr());
  }
  for (int64_t number : launch->numbers) pointers.push_back(reinterpret_cast<void*>(number));  // as large as these
  void* stream = nullptr;
  if (device.is_cuda()) stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  launch->shared->module->launch(launch->function, pointers, launch->blocks, launch->threads, stream);
  stack->clear();
  stack->emplace_back(std::move(outputs));
}

c10::OperatorHandle register_op() {
  using c10::Argument;
  auto& dispatcher = c10::Dispatcher::singleton();
  c10::FunctionSchema schema("magneto::kernel", "",
                             {Argument("kernel", c10::AnyType::get()), Argument("inputs", c10::ListType::ofTensors())},
                             {Argument("", c10::ListType::ofTensors())});
  static auto definition = dispatcher.registerDef(std::move(schema), "magneto");
  static auto kernel = dispatcher.registerImpl({"magneto::kernel", ""}, c10::DispatchKey::CompositeExplicitAutograd,
                                               c10::KernelFunction::makeFromBoxedFunction<&run_kernel>(), std::nullopt,
                                               nullptr, "magneto");
  return dispatcher.findSchemaOrThrow("magneto::kernel", "");
}

}  // namespace

c10::OperatorHandle kernel_op() {
  static c10::OperatorHandle op = register_op();
  return op;
}

c10::IValue Library::add(const graph::Graph& graph, const Kernel& kernel) {
  std::string function = "(" + kernel.parameters + ") {\n" + kernel.body + "}\n";
  std::string bounds = "__launch_bounds__(" + std::to_string(kernel.threads) + ") ";
  function = bounds + "?" + function;
  auto found = std::find(functions_.begin(), functions_.end(), function);
  auto launch = c10::make_intrusive<Launch>();
  launch->shared = shared_;
  launch->function = "k" + std::to_string(found - functions_.begin());
  if (found == functions_.end()) functions_.push_back(std::move(function));
  for (graph::ValueId input : kernel.inputs) launch->inputs.push_back(layout_of(graph, input));
  launch->outputs = kernel.layouts;
  launch->blocks = kernel.blocks;
  launch->threads = kernel.threads;
  launch->scratch = kernel.scratch;
  launch->numbers = kernel.numbers;
  return c10::IValue::make_capsule(std::move(launch));
}

std::vector<std::string> Library::sources(size_t most) const {
  std::vector<size_t> longest_first(functions_.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::ranges::sort(longest_first, std::greater(), [&](size_t i) { return functions_[i].size(); });
  std::vector<std::string> sources(std::min(most, functions_.size()), kPrelude);
  for (size_t i : longest_first) {
    std::string function = functions_[i];
    function.replace(function.find('?'), 1, "k" + std::to_string(i));
    *std::ranges::min_element(sources, {}, &std::string::size) += "\nextern \"C\" __global__ void " + function;
  }
  return sources;
}

void Library::provide(std::shared_ptr<runtime::KernelModule> module) { shared_->module = std::move(module); }

}  // namespace magneto::codegen
