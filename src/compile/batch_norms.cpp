// Which batch norms are split, and into what.
#include "compile/batch_norms.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <optional>

#include "codegen/kernel.h"
#include "compile/rebuild.h"

namespace magneto::compile {
namespace {

using c10::SymInt;
using graph::Graph;
using graph::Op;
using graph::Value;
using graph::ValueId;

// ---- operators for the sums; kernels replace them, see codegen/batch_sums.cpp

using Moments = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
Moments batch_moments(const at::Tensor& rows, const at::Tensor& mean, const at::Tensor& variance, double momentum,
                      double eps) {
  at::Tensor x = rows.to(at::kFloat), middle = x.mean({0}), spread = (x - middle).square().mean({0});
  auto count = static_cast<double>(rows.size(0));
  return {middle, (spread + eps).rsqrt(), mean * (1 - momentum) + middle * momentum,
          variance * (1 - momentum) + spread * (momentum * count / (count - 1))};
}

std::tuple<at::Tensor, at::Tensor> batch_gradients(const at::Tensor& gradient, const at::Tensor& rows,
                                                   const at::Tensor& mean, const at::Tensor& inverse) {
  at::Tensor dy = gradient.to(at::kFloat), normal = (rows.to(at::kFloat) - mean) * inverse;
  return {dy.sum({0}), (dy * normal).sum({0})};
}

template <class Function>
c10::OperatorHandle register_op(const char* schema, Function* function) {
  auto& dispatcher = c10::Dispatcher::singleton();
  c10::FunctionSchema parsed = torch::jit::parseSchema(schema);
  c10::OperatorName name = parsed.operator_name();
  static auto definition = dispatcher.registerDef(std::move(parsed), "magneto");
  static auto kernel = dispatcher.registerImpl(name, c10::DispatchKey::CompositeExplicitAutograd,
                                               c10::KernelFunction::makeFromUnboxedRuntimeFunction(function),
                                               std::nullopt, nullptr, "magneto");
  return dispatcher.findSchemaOrThrow(name.name.c_str(), "");
}

c10::OperatorHandle moments_op() {
  static c10::OperatorHandle op = register_op(
      "magneto::batch_moments(Tensor rows, Tensor mean, Tensor variance, float momentum, float eps) -> "
      "(Tensor, Tensor, Tensor, Tensor)",
      &batch_moments);
  return op;
}

c10::OperatorHandle gradients_op() {
  static c10::OperatorHandle op = register_op(
      "magneto::batch_gradients(Tensor gradient, Tensor rows, Tensor mean, Tensor inverse) -> (Tensor, Tensor)",
      &batch_gradients);
  return op;
}

// ---- what takes their place

class Splitter {
 public:
  Splitter(Rebuild& rebuild, const Op& op) : rebuild_(rebuild), builder_(rebuild.builder), op_(op) {}

  // (input, weight, bias, mean, variance, training, momentum, eps)
  bool forward() {
    auto x = given(0), weight = given(1), bias = given(2), mean = given(3), variance = given(4);
    if (!op_.args[5].toBool() || !x || !weight || !bias || !mean || !variance || !suits({*x})) return false;
    if (!are_float({*weight, *bias, *mean, *variance})) return false;
    Op moments = op_like(op_, moments_op());
    put(moments, 0, rows(*x));
    put(moments, 1, *mean);
    put(moments, 2, *variance);
    moments.args[3] = op_.args[6];
    moments.args[4] = op_.args[7];
    Builder::Results made = builder_.append(std::move(moments));
    ValueId y = call("mul", call("sub", *x, channels(made[0].value)), channels(made[1].value));
    y = call("add", call("mul", y, channels(*weight)), channels(*bias));
    stand_in(0, cast(y, builder_.graph.values[*x].dtype));
    for (uint32_t i = 0; i < 4; ++i) stand_in(i + 1, made[i].value);
    return true;
  }

  // (gradient, input, weight, mean, variance, saved mean, saved inverse deviation, training, eps, wanted)
  bool backward() {
    auto dy = given(0), x = given(1), weight = given(2), mean = given(5), inverse = given(6);
    if (!op_.args[7].toBool() || !dy || !x || !weight || !mean || !inverse || !suits({*dy, *x})) return false;
    if (!are_float({*weight, *mean, *inverse})) return false;
    Op gradients = op_like(op_, gradients_op());
    put(gradients, 0, rows(*dy));
    put(gradients, 1, rows(*x));
    put(gradients, 2, *mean);
    put(gradients, 3, *inverse);
    Builder::Results sums = builder_.append(std::move(gradients));
    stand_in(1, sums[1].value);
    stand_in(2, sums[0].value);
    ValueId normal = call("mul", call("sub", *x, channels(*mean)), channels(*inverse));
    ValueId along = call("add", call("mul", normal, channels(sums[1].value)), channels(sums[0].value));
    const Value& image = builder_.graph.values[*x];
    double share = static_cast<double>(image.sizes[1]) / static_cast<double>(codegen::product(image.sizes));
    Op shared = op_like(op_, "aten::mul", "Scalar");
    put(shared, 0, along);
    shared.args[1] = share;
    ValueId rest = call("sub", *dy, builder_.add(std::move(shared)));
    ValueId dx = call("mul", call("mul", rest, channels(*inverse)), channels(*weight));
    stand_in(0, cast(dx, builder_.graph.values[*dy].dtype));
    return true;
  }

 private:
  std::optional<ValueId> given(uint32_t position) const {
    auto found = std::ranges::find(op_.tensors, position, &graph::TensorRef::position);
    return found == op_.tensors.end() ? std::nullopt : std::optional(rebuild_.now(found->value));
  }

  // Images of one size in half precision, channels last, of more than one pixel and of an even number of channels.
  bool suits(std::initializer_list<ValueId> images) {
    return std::all_of(images.begin(), images.end(), [&](ValueId id) {
      const Value &image = builder_.graph.values[id], &first = builder_.graph.values[*images.begin()];
      return c10::isReducedFloatingType(image.dtype) && image.sizes.size() == 4 && image.sizes == first.sizes &&
             image.dtype == first.dtype && codegen::product(image.sizes) > image.sizes[1] && image.sizes[1] % 2 == 0 &&
             builder_.trace(id).is_contiguous(c10::MemoryFormat::ChannelsLast);
    });
  }

  bool are_float(std::initializer_list<ValueId> ids) const {
    return std::all_of(ids.begin(), ids.end(),
                       [&](ValueId id) { return builder_.graph.values[id].dtype == c10::ScalarType::Float; });
  }

  ValueId call(const char* name, ValueId a, ValueId b) {
    Op op = op_like(op_, (std::string("aten::") + name).c_str(), "Tensor");
    put(op, 0, a);
    put(op, 1, b);
    return builder_.add(std::move(op));
  }

  ValueId cast(ValueId from, c10::ScalarType to) {
    Op op = op_like(op_, "aten::_to_copy");
    put(op, 0, from);
    op.args[1] = static_cast<int64_t>(to);
    return builder_.add(std::move(op));
  }

  ValueId view(ValueId from, std::vector<SymInt> sizes) {
    Op op = op_like(op_, "aten::view");
    put(op, 0, from);
    builder_.set(op, 1, sizes);
    return builder_.add(std::move(op));
  }
  ValueId channels(ValueId vector) { return view(vector, {1, builder_.graph.values[vector].sizes[0], 1, 1}); }

  // A row for each pixel.
  ValueId rows(ValueId image) {
    Op op = op_like(op_, "aten::permute");
    put(op, 0, image);
    builder_.set(op, 1, std::vector<SymInt>{0, 2, 3, 1});
    const graph::Value& value = builder_.graph.values[image];
    SymInt columns = value.sizes[1], count = codegen::product(value.sizes) / value.sizes[1];
    return view(builder_.add(std::move(op)), {count, columns});
  }

  void stand_in(uint32_t position, ValueId by) {
    auto result = std::ranges::find(op_.results, position, &graph::TensorRef::position);
    if (result != op_.results.end()) rebuild_.replace(result->value, by);
  }

  Rebuild& rebuild_;
  Builder& builder_;
  const Op& op_;
};

}  // namespace

Graph with_split_batch_norms(Graph graph) {
  if (graph.symbols) return graph;
  return rebuilt(std::move(graph), [](Rebuild& rebuild, const Op& op) {
    if (op.info->name == "aten::_native_batch_norm_legit_functional") return Splitter(rebuild, op).forward();
    return op.info->name == "aten::native_batch_norm_backward" && Splitter(rebuild, op).backward();
  });
}

}  // namespace magneto::compile
