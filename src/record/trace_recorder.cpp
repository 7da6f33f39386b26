// How real tensors and trace tensors take each other's place in a recording.
#include "record/trace_recorder.h"

#include <ATen/ScalarOps.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <numeric>

#include "record/infer.h"
#include "record/recorder_keys.h"
#include "record/rehearsal.h"
#include "record/sym_node.h"
#include "record/tensor_items.h"
#include "record/trace_tensor.h"
#include "record/trace_values.h"
#include "runtime/errors.h"
#include "runtime/torch_python.h"

namespace magneto::record {

using c10::OperatorHandle;
using c10::Stack;
using graph::SchemaInfo;

namespace {

bool is_real(const at::Tensor& tensor) { return !is_trace(tensor); }

// Strides that follow from the sizes of inner dimensions are written as their products.
c10::SymDimVector strides_over(c10::SymIntArrayRef sizes, const at::Tensor& real) {
  c10::SmallVector<int64_t, 5> order(sizes.size());  // innermost first
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t dimension) { return real.stride(dimension); });
  c10::SymDimVector strides(sizes.size());
  c10::SymInt product = 1;
  int64_t number = 1;
  for (int64_t dimension : order) {
    if (real.stride(dimension) != number) {
      number = real.stride(dimension);
      product = number;
    }
    strides[dimension] = product;
    product *= sizes[dimension];
    number *= real.size(dimension);
  }
  return strides;
}

// The dtype of a tensor without dimensions that stands for a wrapped number. Where tensors with dimensions settle the
// common dtype, it counts as little as a number does and keeps all of its value, which kernels for short dtypes use.
c10::ScalarType type_as_number(const c10::Scalar& number, const at::native::ResultTypeState& types) {
  auto common = at::native::result_type(types);
  return types.dimResult == common ? number.type() : common;
}

// As torch wraps up a number that is none of ours; from now on it is taken for granted.
at::Tensor plain_number(const c10::Scalar& number) {
  at::Tensor made = number.isFloatingPoint() ? at::scalar_to_tensor(number.toDouble())
                    : number.isBoolean()     ? at::scalar_to_tensor(number.toBool())
                                             : at::scalar_to_tensor(number.toLong());
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

}  // namespace

TraceRecorder::~TraceRecorder() {
  TraceRecorder::stop();
  if (symbols_) symbols_->freeze();
}

// Above us, torch has counted the writes that never happened.
void TraceRecorder::stop() {
  Recorder::stop();
  for (; !versions_.empty(); versions_.pop_back()) versions_.back().first.set_version(versions_.back().second);
}

// ---- real tensors

TraceRecorder::Pair& TraceRecorder::pair_for(const at::Tensor& real, c10::SymIntArrayRef sizes,
                                             c10::SymIntArrayRef strides) {
  auto [found, is_new] = pairs_.emplace(real.unsafeGetTensorImpl(), Pair{real, {}});
  Pair& pair = found->second;
  if (!is_new) return pair;
  const auto& version = real.unsafeGetTensorImpl()->version_counter();
  if (version.enabled() && !options().beside) versions_.emplace_back(version, version.current_version());
  at::Tensor& memory = memories_[real.storage().unsafeGetStorageImpl()].trace;
  if (!memory.defined()) memory = trace_of(real);
  pair.trace = make_trace_view(memory, sizes, strides, real.storage_offset(), real.scalar_type());
  pair.trace._set_conj(real.is_conj());
  pair.trace._set_neg(real.is_neg());
  return pair;
}

at::Tensor TraceRecorder::trace_for(const at::Tensor& real) {
  if (real.unsafeGetTensorImpl()->is_wrapped_number()) return trace_of(real);
  Pair& pair = pair_for(real, real.sym_sizes(), real.sym_strides());
  if (!pair.is_placed) {
    if (const graph::ValueId* value = find(real)) {
      share_memory(pair.trace, *value);
      pair.is_placed = true;
    }
  }
  return pair.trace;
}

at::Tensor TraceRecorder::stand_in(const at::Tensor& argument, const std::string& name,
                                   c10::ArrayRef<DynamicSize> dynamic) {
  c10::SymDimVector sizes(argument.sym_sizes());
  auto input = static_cast<uint32_t>(graph_.inputs.size());
  for (const auto& [dimension, symbol, range] : dynamic) {
    int64_t size = argument.size(dimension);
    if (size < 2) continue;
    auto expr = make_symbol(size, {input, static_cast<int32_t>(dimension), name}, symbol, range);
    sizes.at(dimension) = make_sym(symbols_, expr);
  }
  Pair& pair = pair_for(argument, sizes, strides_over(sizes, argument));
  pair.is_argument = pair.is_placed = true;
  at::Tensor& first = memories_.at(argument.storage().unsafeGetStorageImpl()).argument;
  if (!first.defined()) first = pair.trace;
  if (argument.requires_grad()) pair.trace.set_requires_grad(true);
  return pair.trace;
}

graph::ExprId TraceRecorder::make_symbol(int64_t number, graph::SymbolSource source, const std::string& name,
                                         graph::Range range) {
  auto known = name.empty() ? std::nullopt : symbols()->find(name);
  if (!known) return symbols()->add_symbol(number, std::move(source), name, range);
  if (int64_t other = symbols_->hint(*known).integer; other != number) {
    throw UserError("the sizes named " + name + " are " + std::to_string(other) + " and " + std::to_string(number) +
                    ", but sizes of one name must be equal");
  }
  return *known;
}

c10::SymInt TraceRecorder::add_size(int64_t number, const std::string& name, const std::string& symbol,
                                    graph::Range range) {
  auto input = static_cast<uint32_t>(graph_.inputs.size());
  graph::ExprId expr = make_symbol(number, {input, graph::SymbolSource::kNumber, name}, symbol, range);
  graph_.inputs.push_back(graph_.add_size(expr, name));
  return make_sym(symbols_, expr);
}

graph::ExprId TraceRecorder::add_float(double number, const std::string& name) {
  auto input = static_cast<uint32_t>(graph_.inputs.size());
  graph::SymbolSource source{input, graph::SymbolSource::kNumber, name};
  graph::ExprId bits = symbols()->add_symbol(graph::bits_of(number), std::move(source), "", {});
  graph::ExprId expr = symbols_->from_bits(bits);
  graph_.inputs.push_back(graph_.add_size(expr, name));
  return expr;
}

bool TraceRecorder::add_output_size(const c10::Scalar& number) {
  if (refusal()) return false;
  auto expr = symbols_ ? expr_of(number, *symbols_) : std::nullopt;
  if (!expr) return unsupported("an output that is a size of another recording");
  return add_output_size(*expr);
}

bool TraceRecorder::add_output_size(graph::ExprId expr) {
  if (refusal() || !check_computable(expr)) return false;
  graph_.outputs.push_back(graph_.add_size(expr));
  return true;
}

const std::shared_ptr<graph::Symbols>& TraceRecorder::symbols() {
  if (!symbols_) graph_.symbols = symbols_ = std::make_shared<graph::Symbols>();
  return symbols_;
}

bool TraceRecorder::check_computable(graph::ExprId expr) {
  return symbols_->can_compute(expr) || data_dependent("a size that only the operator knows is used");
}

at::Tensor TraceRecorder::stand_in_for_gradient(const at::Tensor& output) {
  if (!is_trace(output)) return trace_of(Recorder::stand_in_for_gradient(output));
  static const auto empty_like = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_like", "");
  Stack stack{output, {}, {}, {}, {}, {}};
  infer(empty_like, graph::schema_info(empty_like), output.key_set(), &stack);
  return stack[0].toTensor();
}

std::string TraceRecorder::why_not_recordable(const at::Tensor& tensor) const {
  return is_trace(tensor) ? "" : Recorder::why_not_recordable(tensor);
}

// ---- symbols

graph::ValueId TraceRecorder::add_value(graph::Role role, const at::Tensor& tensor) {
  return record::add_value(graph_, role, tensor);
}

bool TraceRecorder::looks_like(const at::Tensor& tensor, const graph::Value& value) const {
  if (!is_symbolic(tensor)) return value.shape.empty() && Recorder::looks_like(tensor, value);
  // What was assumed since the value was made may have made its expressions equal to others.
  auto same = [&](graph::ExprId a, graph::ExprId b) { return symbols_->simplify(a) == symbols_->simplify(b); };
  auto shape = shape_of(tensor, *symbols_);
  return value.dtype == tensor.scalar_type() &&
         std::equal(value.shape.begin(), value.shape.end(), shape.begin(), shape.end(), same);
}

// The number of this call, with a note of what it depends on.
c10::IValue TraceRecorder::take_number(graph::Op& noted, uint32_t position, int32_t item, const c10::IValue& number) {
  auto take = [&](const auto& symbolic) -> std::optional<graph::Number> {
    auto expr = expr_of(symbolic, *symbols_);
    if (!expr || !check_computable(*expr)) return std::nullopt;
    noted.sizes.push_back({position, item, *expr});
    return symbols_->hint(*expr);
  };
  if (number.isSymInt()) {
    auto taken = take(number.toSymInt());
    return taken ? taken->integer : number.toSymInt().guard_int(__FILE__, __LINE__);
  }
  if (number.isSymFloat()) {
    auto taken = take(number.toSymFloat());
    return taken ? taken->real : number.toSymFloat().guard_float(__FILE__, __LINE__);
  }
  if (number.isSymBool()) return number.toSymBool().guard_bool(__FILE__, __LINE__);
  return number;
}

bool TraceRecorder::take_symbolic(graph::Op& noted, uint32_t position, const c10::IValue& value) {
  if (!symbols_) return Recorder::take_symbolic(noted, position, value);
  if (value.isSymIntList()) {
    c10::List<int64_t> numbers;
    for (const c10::SymInt& number : value.toSymIntVector()) {
      numbers.push_back(take_number(noted, position, static_cast<int32_t>(numbers.size()), number).toInt());
    }
    noted.args[position] = std::move(numbers);
    return true;
  }
  noted.args[position] = take_number(noted, position, graph::TensorRef::kWhole, value);
  return noted.args[position].isScalar() || Recorder::take_symbolic(noted, position, value);
}

// In `x * x.shape[0]` torch wraps the size up as a tensor and forgets what it was. The graph makes that tensor from the
// size.
void TraceRecorder::recover_numbers(const SchemaInfo& info, Stack* stack) {
  static const auto scalar_tensor = c10::Dispatcher::singleton().findSchemaOrThrow("aten::scalar_tensor", "");
  size_t base = stack->size() - info.written.size();
  for (size_t i = base; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || is_trace(value.toTensor())) continue;
    auto number = runtime::wrapped_number(value.toTensor());
    if (!number) continue;
    at::native::ResultTypeState types;
    for (size_t k = base; k < stack->size(); ++k) {
      each_tensor((*stack)[k],
                  [&](const at::Tensor& tensor) { types = at::native::update_result_type_state(tensor, types); });
    }
    c10::ScalarType type = type_as_number(*number, types);
    if (c10::isReducedFloatingType(type)) {  // which would round it before kernels do
      (*stack)[i] = plain_number(*number);
      continue;
    }
    Stack made{*number, type, {}, c10::Device(c10::kCPU), {}};
    call_as_leaf(scalar_tensor, graph::schema_info(scalar_tensor), kNoteKey, c10::DispatchKeySet(c10::DispatchKey::CPU),
                 &made);
    (*stack)[i] = std::move(made[0]);
  }
}

// ---- operators

// The program may reach an argument, or its memory, in another way, too.
void TraceRecorder::prepare(const SchemaInfo& info, Stack* stack) {
  if (symbols_) recover_numbers(info, stack);
  for (size_t i = stack->size() - info.written.size(); i < stack->size(); ++i) {
    if (!any_tensor((*stack)[i], is_real)) continue;
    map_tensors((*stack)[i], [this](const at::Tensor& tensor) {
      if (is_trace(tensor) || !tensor.has_storage()) return tensor;
      auto memory = memories_.find(tensor.storage().unsafeGetStorageImpl());
      if (memory == memories_.end() || !memory->second.argument.defined()) return tensor;
      auto pair = pairs_.find(tensor.unsafeGetTensorImpl());
      if (pair != pairs_.end() && pair->second.is_argument) return pair->second.trace;
      share_memory(tensor, *find(memory->second.argument));
      return tensor;
    });
  }
}

void TraceRecorder::pass(const OperatorHandle& op, const SchemaInfo& info, c10::DispatchKeySet keys, Stack* stack) {
  execute(op, info, kNoteKey, keys, stack);
}

void TraceRecorder::lifted(const OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  stack->back() = trace_of(stack->back().toTensor());
}

void TraceRecorder::execute(const OperatorHandle& op, const SchemaInfo& info, c10::DispatchKey,
                            c10::DispatchKeySet keys, Stack* stack) {
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 4> replaced;
  size_t base = stack->size() - info.written.size();
  for (size_t i = base; i < stack->size(); ++i) {
    if (!any_tensor((*stack)[i], is_real)) continue;
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      if (is_trace(tensor)) return tensor;
      return replaced.emplace_back(tensor, trace_for(tensor)).second;
    });
  }
  if (info.answer == graph::Answer::Number && options().answer) {
    auto number = options().answer(stack->back().toTensor());
    if (!number) data_dependent(value_asked(info));
    stack->back() = *number;
    return;
  }
  try {
    infer(op, info, keys, stack);
  } catch (const NotInferable& error) {
    refuse(error.kind, error.what_without_backtrace());
    throw;
  }
  // The program goes on with its own tensors, where an operator returns its argument.
  for (const auto& [real, trace] : replaced) {
    if (info.writes && (trace.sizes() != real.sizes() || trace.strides() != real.strides())) {
      unsupported("a tensor that is not an argument gets another shape in place (" + info.name + ")");
    }
    for (size_t i = base; i < stack->size(); ++i) {
      map_tensors((*stack)[i], [&](const at::Tensor& result) { return result.is_same(trace) ? real : result; });
    }
  }
}

std::optional<at::Tensor> TraceRecorder::contents_of(const at::Tensor& tensor) {
  if (!is_trace(tensor)) return tensor;  // a number that was wrapped up
  auto contents = compute_fixed(graph_, {*find(tensor)});
  return contents.empty() ? std::nullopt : std::optional(contents[0]);
}

void TraceRecorder::execute_on_contents(const OperatorHandle& op, const SchemaInfo& info, c10::DispatchKey,
                                        c10::DispatchKeySet, Stack* stack) {
  size_t base = stack->size() - info.written.size();
  bool known = fits_memory(op, info, *stack);
  for (size_t i = base; i < stack->size(); ++i) {
    if (!decides(info, i - base)) continue;
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      auto contents = contents_of(tensor);
      known = known && contents;
      return contents.value_or(tensor);
    });
  }
  if (!known) data_dependent(info.answer == graph::Answer::None ? sizes_from_contents(info) : value_asked(info));
  rehearse(op, info, Dummies::Memory, stack);
}

}  // namespace magneto::record
