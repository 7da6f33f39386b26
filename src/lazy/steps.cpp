// How calls are compared with operators of the trie, and how a way through it becomes a graph.
#include "lazy/steps.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <map>
#include <ranges>

namespace magneto::lazy {

using c10::IValue;
using graph::TensorRef;

namespace {

bool same_constant(const IValue& a, const IValue& b) {
  if (a.isInt() || a.isDouble() || a.isBool()) return graph::same_number(a, b);
  if (a.isNone()) return b.isNone() || (b.isTensor() && !b.toTensor().defined());
  if (a.isList()) return b.isList() && std::ranges::equal(a.toListRef(), b.toListRef(), same_constant);
  if (a.isComplexDouble()) return graph::same_number(a, b);
  if (a.isString()) return b.isString() && a.toStringRef() == b.toStringRef();
  if (a.isDevice()) return b.isDevice() && a.toDevice() == b.toDevice();
  return a.type() == b.type() && a == b;
}

bool may_stay_open(const c10::OperatorHandle& op, uint32_t position) {
  const auto& schema = op.schema();
  c10::TypePtr type = schema.arguments()[position].type();
  if (const auto& optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (const auto& list = type->cast<c10::ListType>()) type = list->getElementType();
  auto kind = type->kind();
  if (kind != c10::TypeKind::NumberType && kind != c10::TypeKind::FloatType) return false;
  return !schema.name().starts_with("aten::arange") && !schema.name().starts_with("aten::range");
}

bool same_type(const IValue& a, const IValue& b) {
  if (a.isList()) return b.isList() && std::ranges::equal(a.toListRef(), b.toListRef(), same_type);
  return (a.isDouble() && b.isDouble()) || (a.isInt() && b.isInt());
}

bool operator==(const TensorRef& a, const TensorRef& b) {
  return a.position == b.position && a.item == b.item && a.value == b.value;
}

}  // namespace

bool matches(const Call& call, const c10::OperatorHandle& op, c10::ArrayRef<IValue> args, const Operands& operands,
             c10::SmallVectorImpl<uint32_t>* differ) {
  differ->clear();
  if (!(*call.op == op)) return false;
  auto same = [](const auto& a, const auto& b) { return a == b; };
  if (!std::ranges::equal(call.operands.tensors, operands.tensors, same)) return false;
  for (uint32_t i = 0; i < args.size(); ++i) {
    const IValue& known = call.args[i];
    if (known.isNone() && (args[i].isTensor() || is_tensor_list(args[i]))) continue;
    if (std::ranges::find(call.open, i) != call.open.end()) {
      if (!same_type(known, args[i])) return differ->clear(), false;
      continue;
    }
    if (same_constant(known, args[i])) continue;
    if (!same_type(known, args[i]) || !may_stay_open(op, i)) return differ->clear(), false;
    differ->push_back(i);
  }
  return std::ranges::equal(
             call.operands.lists, operands.lists,
             [](const auto& a, const auto& b) { return a.position == b.position && a.size == b.size; }) &&
         differ->empty();
}

bool is_tensor_list(const IValue& value) {
  if (!value.isList() || value.isIntList()) return false;  // which is told fast
  return value.isTensorList() || value.isOptionalTensorList();
}

const at::Tensor& operand(c10::ArrayRef<IValue> args, const TensorRef& ref) {
  if (ref.item == TensorRef::kWhole) return args[ref.position].toTensor();
  return args[ref.position].toListRef()[static_cast<size_t>(ref.item)].toTensor();
}

// ---- graphs

namespace {

class GraphBuilder {
 public:
  GraphBuilder(IValue generator, c10::Device device) : generator_(std::move(generator)), device_(device) {}

  void add(const Call& call) {
    for (const Layout& layout : call.inputs) graph_.inputs.push_back(add_value(graph::Role::Argument, layout));
    graph::Op op{*call.op, call.info, call.args, {}, call.operands.lists, {}, false, true, false, false, false};
    op.tensors.assign(call.operands.tensors.begin(), call.operands.tensors.end());
    op.line = line(call.line.get());
    for (const Call::Result& result : call.results) {
      if (result.layout) graph_.values[add_value(graph::Role::Result, *result.layout)].memory = result.memory.first;
      op.results.push_back({result.position, result.item, result.id});
    }
    for (uint32_t position : call.open) {
      int32_t item = call.args[position].isList() ? 0 : TensorRef::kWhole;
      each_number(call.args[position],
                  [&](const IValue&) { numbers_.push_back({graph_.ops.size(), position, item++}); });
    }
    if (call.info->random) set_generator(op);
    graph_.ops.push_back(std::move(op));
  }

  void fix_numbers(const std::vector<int64_t>& given) {
    for (size_t i = 0; i < numbers_.size(); ++i) {
      auto [op, position, item] = numbers_[i];
      IValue& argument = graph_.ops[op].args[position];
      bool is_double = hint(argument, item).isDouble();
      IValue number = is_double ? IValue(graph::float_of(given[i])) : IValue(given[i]);
      if (item == TensorRef::kWhole) {
        argument = std::move(number);
        continue;
      }
      if (item == 0) argument = argument.toList().copy();
      argument.toList().set(static_cast<size_t>(item), std::move(number));
    }
    numbers_.clear();
  }

  // Numbers come behind all tensors.
  graph::Graph finish(const std::vector<uint32_t>& outputs) {
    if (!numbers_.empty()) graph_.symbols = std::make_shared<graph::Symbols>();
    for (auto [op, position, item] : numbers_) {
      graph::ExprId expr = add_number(hint(graph_.ops[op].args[position], item));
      graph_.ops[op].sizes.push_back({position, item, expr});
    }
    graph_.outputs = outputs;
    return std::move(graph_);
  }

 private:
  struct OpenNumber {
    size_t op;
    uint32_t position;
    int32_t item;
  };

  static IValue hint(const IValue& argument, int32_t item) {
    return item == TensorRef::kWhole ? argument : argument.toListRef()[static_cast<size_t>(item)];
  }

  graph::ValueId add_value(graph::Role role, const Layout& layout) {
    auto id = static_cast<graph::ValueId>(graph_.values.size());
    graph::Value& value = graph_.values.emplace_back(graph::Value{role, layout.dtype, device_, {}, {}, id});
    value.sizes.assign(layout.sizes.begin(), layout.sizes.end());
    value.strides.assign(layout.strides.begin(), layout.strides.end());
    return id;
  }

  graph::ExprId add_number(const IValue& hint) {
    graph::SymbolSource source{static_cast<uint32_t>(graph_.inputs.size())};
    graph::Symbols& symbols = *graph_.symbols;
    graph::ExprId expr = hint.isDouble()
                             ? symbols.from_bits(symbols.add_symbol(graph::bits_of(hint.toDouble()), source, "", {}))
                             : symbols.add_symbol(hint.toInt(), source, "", {});
    graph_.inputs.push_back(graph_.add_size(expr));
    return expr;
  }

  void set_generator(graph::Op& op) const {
    const auto& arguments = op.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].name() == "generator" && op.args[i].isNone()) op.args[i] = generator_;
  }

  uint32_t line(const graph::Line* line) {
    if (!line) return graph::Op::kNoLine;
    auto [found, is_new] = lines_.try_emplace(line, static_cast<uint32_t>(graph_.lines.size()));
    if (is_new) graph_.lines.push_back(*line);
    return found->second;
  }

  graph::Graph graph_;
  std::map<const graph::Line*, uint32_t> lines_;
  IValue generator_;
  c10::Device device_;
  std::vector<OpenNumber> numbers_;
};

}  // namespace

graph::Graph build_graph(const Node& end, const std::vector<uint32_t>& outputs, const IValue& generator,
                         c10::Device device, const std::vector<int64_t>* numbers) {
  std::vector<const Node*> way;
  for (const Node* node = &end; node->parent; node = node->parent) way.push_back(node);
  GraphBuilder builder(generator, device);
  for (const Node* node : way | std::views::reverse) builder.add(*node);
  if (numbers) builder.fix_numbers(*numbers);
  return builder.finish(outputs);
}

}  // namespace magneto::lazy
