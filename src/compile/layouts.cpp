// Convolutions get their arguments channels last; what follows keeps that.
#include "compile/layouts.h"

#include "compile/rebuild.h"

namespace magneto::compile {
namespace {

using graph::Graph;
using graph::Op;
using graph::TensorRef;
using graph::Value;
using graph::ValueId;

bool is_image(const Value& value) { return c10::isReducedFloatingType(value.dtype) && value.sizes.size() == 4; }

// The arguments, counted from the first, for which an operator is to get images channels last.
uint32_t image_arguments(const std::string& name) {
  if (name == "aten::convolution") return 2;           // input, weight
  if (name == "aten::convolution_backward") return 3;  // gradient, input, weight
  return 0;
}

// Kernels that are fast if these lie alike: the gradient, and what it is the gradient of.
bool wants_like_arguments(const std::string& name) {
  return name == "aten::native_batch_norm_backward" || name == "aten::max_pool2d_with_indices_backward";
}

bool is_channels_last(Rebuild& rebuild, ValueId id) {
  return rebuild.builder.trace(id).is_contiguous(c10::MemoryFormat::ChannelsLast);
}

ValueId channels_last(Rebuild& rebuild, const Op& like, ValueId id) {
  if (is_channels_last(rebuild, id)) return id;
  Op copy = op_like(like, "aten::clone");
  put(copy, 0, id);
  copy.args[1] = static_cast<int64_t>(c10::MemoryFormat::ChannelsLast);
  return rebuild.builder.add(std::move(copy));
}

}  // namespace

Graph with_channels_last(Graph graph) {
  return rebuilt(std::move(graph), [](Rebuild& rebuild, const Op& op) {
    const std::string& name = op.info->name;
    uint32_t count = image_arguments(name);
    if (wants_like_arguments(name) && is_channels_last(rebuild, rebuild.now(op.tensors[1].value))) count = 2;
    if (!count || !is_image(rebuild.from.values[op.tensors[0].value])) return false;
    Op again = rebuild.translated(op);
    for (TensorRef& tensor : again.tensors) {
      if (tensor.position < count) tensor.value = channels_last(rebuild, op, tensor.value);
    }
    rebuild.replace(op, rebuild.builder.append(std::move(again)));
    return true;
  });
}

}  // namespace magneto::compile
