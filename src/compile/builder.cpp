// How an operator of a graph is called on trace tensors, and its results become values.
#include "compile/builder.h"

#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "record/infer.h"
#include "record/sym_node.h"
#include "record/tensor_items.h"
#include "record/trace_tensor.h"
#include "record/trace_values.h"

namespace magneto::compile {

using c10::IValue;
using c10::SymInt;
using graph::Op;
using graph::TensorRef;
using graph::ValueId;

Op op_like(const Op& source, const c10::OperatorHandle& handle) {
  Op op{.handle = handle,
        .info = &graph::schema_info(handle),
        .grad_mode = source.grad_mode,
        .below_inplace = source.below_inplace,
        .autocast = false,
        .inference = source.inference,
        .derives = source.derives,
        .line = source.line};
  for (const c10::Argument& argument : handle.schema().arguments()) {
    op.args.push_back(argument.default_value().value_or(IValue()));
  }
  return op;
}

Op op_like(const Op& source, const char* name, const char* overload) {
  return op_like(source, c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

// ---- numbers

IValue Builder::symbolic(graph::ExprId expr) {
  switch (graph.symbols->type(expr)) {
    case graph::Symbols::Type::Int: return record::make_sym(graph.symbols, expr);
    case graph::Symbols::Type::Float: return record::make_sym_float(graph.symbols, expr);
    case graph::Symbols::Type::Bool: return record::make_sym_bool(graph.symbols, expr);
  }
  return {};
}

SymInt Builder::number(const Op& op, uint32_t position) {
  for (const graph::SizeRef& size : op.sizes) {
    if (size.position == position) return record::make_sym(graph.symbols, size.expr);
  }
  return op.args[position].toInt();
}

std::vector<SymInt> Builder::numbers(const Op& op, uint32_t position) {
  std::vector<SymInt> numbers;
  for (const IValue& item : op.args[position].toListRef()) numbers.emplace_back(item.toInt());
  for (const graph::SizeRef& size : op.sizes) {
    if (size.position == position) {
      numbers[static_cast<size_t>(size.item)] = record::make_sym(graph.symbols, size.expr);
    }
  }
  return numbers;
}

int64_t Builder::note(Op& op, uint32_t position, int32_t item, const SymInt& number) {
  auto expr = graph.symbols ? record::expr_of(number, *graph.symbols) : std::nullopt;
  if (!expr) return number.guard_int(__FILE__, __LINE__);
  op.sizes.push_back({position, item, *expr});
  return graph.symbols->hint(*expr).integer;
}

void Builder::set(Op& op, uint32_t position, const SymInt& number) {
  op.args[position] = note(op, position, TensorRef::kWhole, number);
}

void Builder::set(Op& op, uint32_t position, c10::SymIntArrayRef numbers) {
  c10::List<int64_t> list;
  for (const SymInt& number : numbers) {
    list.push_back(note(op, position, static_cast<int32_t>(list.size()), number));
  }
  op.args[position] = std::move(list);
}

// ---- operators

c10::Stack Builder::stack_of(const Op& op) {
  c10::Stack stack(op.args.begin(), op.args.end());
  const auto& arguments = op.handle.schema().arguments();
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isNone() && arguments[i].type()->kind() == c10::TypeKind::TensorType) stack[i] = at::Tensor();
  }
  for (const graph::SizeRef& size : op.sizes) {
    if (size.item == TensorRef::kWhole) {
      stack[size.position] = symbolic(size.expr);
    } else if (!stack[size.position].isSymIntList()) {
      stack[size.position] = IValue(numbers(op, size.position));
    }
  }
  for (const graph::TensorList& list : op.lists) {
    std::vector<at::Tensor> items(list.size);
    for (const TensorRef& tensor : op.tensors) {
      if (tensor.position == list.position) items[static_cast<size_t>(tensor.item)] = trace(tensor.value);
    }
    if (!list.optional) {
      stack[list.position] = c10::List<at::Tensor>(items);
      continue;
    }
    c10::List<std::optional<at::Tensor>> optional;
    for (at::Tensor& item : items) optional.push_back(item.defined() ? std::optional(std::move(item)) : std::nullopt);
    stack[list.position] = std::move(optional);
  }
  for (const TensorRef& tensor : op.tensors) {
    if (tensor.item == TensorRef::kWhole) stack[tensor.position] = trace(tensor.value);
  }
  return stack;
}

at::Tensor Builder::trace(ValueId id) {
  if (traces_.size() <= id) traces_.resize(graph.values.size());
  at::Tensor& trace = traces_[id];
  if (trace.defined()) return trace;
  if (graph.values[id].role == graph::Role::Constant) {
    auto index = std::ranges::find(graph.constants, id) - graph.constants.begin();
    trace = record::trace_of(graph.constant_tensors[static_cast<size_t>(index)]);
  } else {
    trace = record::trace_of(graph, id);
  }
  memory_.emplace(trace.storage().unsafeGetStorageImpl(), graph.values[id].memory);
  return trace;
}

// An operator may return its own argument.
ValueId Builder::add_result(const Op& op, const at::Tensor& made) {
  for (const TensorRef& tensor : op.tensors) {
    if (trace(tensor.value).is_same(made)) return tensor.value;
  }
  ValueId id = record::add_value(graph, graph::Role::Result, made);
  graph.values[id].memory = memory_.emplace(made.storage().unsafeGetStorageImpl(), id).first->second;
  traces_.resize(graph.values.size());
  traces_[id] = made;
  return id;
}

Builder::Results Builder::append(Op op) {
  c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  for (const TensorRef& tensor : op.tensors) keys = keys | trace(tensor.value).key_set();
  for (const IValue& arg : op.args) {
    if (arg.isDevice() && arg.toDevice().is_cuda()) keys = keys | c10::DispatchKeySet(c10::DispatchKey::CUDA);
  }
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  c10::Stack stack = stack_of(op);
  record::infer(op.handle, *op.info, keys, &stack);
  for (uint32_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      if (!stack[i].toTensor().defined()) continue;
      op.results.push_back({i, TensorRef::kWhole, add_result(op, stack[i].toTensor())});
    } else if (stack[i].isTensorList()) {
      int32_t item = 0;
      for (const IValue& each : stack[i].toListRef())
        op.results.push_back({i, item++, add_result(op, each.toTensor())});
    }
  }
  Results results = op.results;
  graph.ops.push_back(std::move(op));
  return results;
}

}  // namespace magneto::compile
