// Checks that a graph means something: whoever runs or changes one relies on every line here.
#include <algorithm>

#include "graph/graph.h"
#include "graph/text.h"
#include "runtime/errors.h"

namespace magneto::graph {
namespace {

using c10::IValue;
using c10::TypeKind;

struct Fault {
  std::string what;
};

std::string ref(ValueId id) { return "%" + std::to_string(id); }

bool is_tensor(const c10::Type& type) { return inner_type(type).kind() == TypeKind::TensorType; }

bool is_tensor_list(const c10::Type& type) {
  const c10::Type& list = inner_type(type);
  return list.kind() == TypeKind::ListType && is_tensor(*list.containedType(0));
}

bool is_number(const IValue& value) {
  return value.isBool() || value.isInt() || value.isDouble() || value.isComplexDouble();
}

// Whether an argument without tensors may stand where the schema has `declared`.
bool accepts(const c10::Type& declared, const IValue& value) {
  const c10::Type& type = inner_type(declared);
  if (value.isNone()) return declared.kind() == TypeKind::OptionalType || type.kind() == TypeKind::TensorType;
  switch (type.kind()) {
    case TypeKind::TensorType: return false;
    case TypeKind::BoolType: return value.isBool();
    case TypeKind::IntType:
    case TypeKind::SymIntType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType: return value.isInt() || value.isBool();
    case TypeKind::FloatType: return value.isDouble();
    case TypeKind::ComplexType:
    case TypeKind::NumberType: return is_number(value);
    case TypeKind::StringType: return value.isString();
    case TypeKind::DeviceObjType: return value.isDevice();
    case TypeKind::GeneratorType: return value.isGenerator();
    case TypeKind::ListType: {
      if (!value.isList()) return false;
      const c10::Type& item = *type.containedType(0);
      const auto items = value.toListRef();
      return std::all_of(items.begin(), items.end(), [&](const IValue& each) { return accepts(item, each); });
    }
    default: return true;
  }
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), made_(graph.values.size(), false) {}

  void run() {
    for (ValueId id = 0; id < graph_.values.size(); ++id) check_value(id);
    define_all(graph_.inputs, [](Role role) { return role == Role::Argument || role == Role::Size; });
    define_all(graph_.states, is_state);
    define_all(graph_.constants, [](Role role) { return role == Role::Constant; });
    check_constants();
    if (graph_.symbols) check_symbols();
    for (const Op& op : graph_.ops) check_op(op);
    op_ = nullptr;
    for (ValueId output : graph_.outputs) {
      if (output < graph_.values.size() && graph_.values[output].role == Role::Size) continue;
      check_use(output);
      if (graph_.values[output].role == Role::Constant) fail("the constant " + ref(output) + " is returned");
    }
  }

 private:
  [[noreturn]] void fail(std::string what) const {
    if (op_) what += ", in operation " + std::to_string(op_ - graph_.ops.data()) + " (" + op_->info->name + ")";
    throw Fault{std::move(what)};
  }

  // ---- values

  void check_value(ValueId id) const {
    const Value& value = graph_.values[id];
    if (value.role == Role::Size) {
      if (value.shape.size() != 1 || !value.sizes.empty()) fail(ref(id) + " is a size, but not one number");
      return check_computable(value.shape[0]);
    }
    if (value.sizes.size() != value.strides.size()) fail(ref(id) + " has not as many strides as sizes");
    if (!value.shape.empty() && value.shape.size() != 2 * value.sizes.size()) {
      fail(ref(id) + " has not as many expressions as sizes and strides");
    }
    for (ExprId expr : value.shape) check_expr(expr);
    if (value.memory >= graph_.values.size()) fail(ref(id) + " lives in the memory of no value");
    ValueId first = value.memory;
    if (graph_.values[first].memory != first)
      fail(ref(id) + " lives in " + ref(first) + ", which is not the first there");
  }

  void check_expr(ExprId expr) const {
    if (!graph_.symbols || expr >= graph_.symbols->size()) fail("a size is an expression that does not exist");
  }

  void check_computable(ExprId expr) const {
    check_expr(expr);
    if (!graph_.symbols->can_compute(expr)) fail("the size " + graph_.symbols->text(expr) + " is unknown to runs");
  }

  void check_symbols() const {
    for (const Symbol& symbol : graph_.symbols->symbols()) {
      auto [input, dimension, _] = symbol.source;
      if (dimension == SymbolSource::kUnknown) continue;
      const Value* from = input < graph_.inputs.size() ? &graph_.values[graph_.inputs[input]] : nullptr;
      bool is_number = dimension == SymbolSource::kNumber;
      bool found = from && is_number == (from->role == Role::Size) &&
                   (is_number || static_cast<uint64_t>(dimension) < from->sizes.size());
      if (!found) {
        fail("the symbol " + symbol.name + (is_number ? " is a number" : " is a dimension") + " that no input has");
      }
    }
    for (ValueId input : graph_.inputs) {
      for (ExprId expr : graph_.values[input].shape) check_computable(expr);
    }
  }

  void define_all(const std::vector<ValueId>& ids, bool (*fits)(Role)) {
    for (ValueId id : ids) {
      if (id >= made_.size()) fail(ref(id) + " does not exist");
      if (made_[id]) fail(ref(id) + " is made twice");
      if (!fits(graph_.values[id].role)) fail(ref(id) + " has the wrong role");
      made_[id] = true;
    }
  }

  void check_constants() const {
    if (graph_.constants.size() != graph_.constant_tensors.size()) fail("there are constants without contents");
    for (size_t i = 0; i < graph_.constants.size(); ++i) {
      const Value& value = graph_.values[graph_.constants[i]];
      const at::Tensor& tensor = graph_.constant_tensors[i];
      if (!tensor.defined() || tensor.scalar_type() != value.dtype || tensor.device() != value.device ||
          tensor.sizes() != value.sizes || tensor.strides() != value.strides) {
        fail("the contents of " + ref(graph_.constants[i]) + " are not " + to_text(value));
      }
    }
  }

  void check_use(ValueId id) const {
    if (id >= made_.size() || !made_[id]) fail(ref(id) + " is used before it is made");
  }

  // ---- operators

  void check_op(const Op& op) {
    op_ = &op;
    const auto& arguments = op.handle.schema().arguments();
    if (op.args.size() != arguments.size()) {
      fail("expected " + std::to_string(arguments.size()) + " arguments, not " + std::to_string(op.args.size()));
    }
    if (op.line != Op::kNoLine && op.line >= graph_.lines.size()) fail("its source line does not exist");
    for (const TensorList& list : op.lists) {
      if (list.position >= arguments.size() || !is_tensor_list(*arguments[list.position].type())) {
        fail("a list of tensors stands where the schema has none");
      }
    }
    for (const TensorRef& tensor : op.tensors) check_tensor(op, tensor);
    for (uint32_t i = 0; i < arguments.size(); ++i) check_argument(op, i, arguments[i]);
    for (const TensorRef& result : op.results) check_result(op, result);
    for (const SizeRef& size : op.sizes) check_size(op, size);
    check_places(op.tensors);
    check_places(op.results);
  }

  void check_places(c10::ArrayRef<TensorRef> tensors) {
    places_.clear();
    for (const TensorRef& tensor : tensors) places_.emplace_back(tensor.position, tensor.item);
    std::sort(places_.begin(), places_.end());
    if (std::adjacent_find(places_.begin(), places_.end()) != places_.end()) fail("two tensors stand in one place");
  }

  static const TensorList* find_list(const Op& op, uint32_t position) {
    for (const TensorList& list : op.lists) {
      if (list.position == position) return &list;
    }
    return nullptr;
  }

  void check_tensor(const Op& op, const TensorRef& tensor) {
    check_use(tensor.value);
    if (graph_.values[tensor.value].role == Role::Size) fail(ref(tensor.value) + " is a size, not a tensor");
    if (tensor.position >= op.args.size()) fail("a tensor stands behind the last argument");
    if (tensor.item == TensorRef::kWhole) {
      if (!is_tensor(*op.handle.schema().arguments()[tensor.position].type())) {
        fail("a tensor stands where the schema has none");
      }
      return;
    }
    const TensorList* list = find_list(op, tensor.position);
    if (!list || tensor.item < 0 || tensor.item >= static_cast<int64_t>(list->size)) fail("a list has no such item");
  }

  void check_argument(const Op& op, uint32_t position, const c10::Argument& argument) const {
    const IValue& value = op.args[position];
    if (find_list(op, position) ? value.isNone() : accepts(*argument.real_type(), value)) return;
    fail("the argument " + argument.name() + " is " + argument_text(value, *argument.real_type()) + ", expected " +
         argument.real_type()->repr_str());
  }

  void check_size(const Op& op, const SizeRef& size) const {
    check_computable(size.expr);
    if (size.position >= op.args.size()) fail("a size stands behind the last argument");
    const IValue* value = &op.args[size.position];
    if (size.item != TensorRef::kWhole) {
      if (!value->isList() || size.item < 0 || static_cast<size_t>(size.item) >= value->toListRef().size()) {
        fail("a list has no such size");
      }
      value = &value->toListRef()[static_cast<size_t>(size.item)];
    }
    if (!is_number(*value)) fail("a size stands where there is no number");
  }

  void check_result(const Op& op, const TensorRef& result) {
    const auto& returns = op.handle.schema().returns();
    if (result.position >= returns.size()) fail("a result stands behind the last one");
    const c10::Type& type = *returns[result.position].type();
    if (result.item == TensorRef::kWhole ? !is_tensor(type) : !is_tensor_list(type) || result.item < 0) {
      fail("a result is a tensor where the schema has none");
    }
    if (result.value >= made_.size()) fail(ref(result.value) + " does not exist");
    bool returned = std::any_of(op.tensors.begin(), op.tensors.end(),
                                [&](const TensorRef& tensor) { return tensor.value == result.value; });
    if (made_[result.value] && !returned) fail(ref(result.value) + " is made twice");
    if (!made_[result.value] && graph_.values[result.value].role != Role::Result) {
      fail(ref(result.value) + " is made, but is not a result");
    }
    made_[result.value] = true;
  }

  const Graph& graph_;
  const Op* op_ = nullptr;
  std::vector<bool> made_;
  std::vector<std::pair<uint32_t, int32_t>> places_;
};

}  // namespace

std::string find_fault(const Graph& graph) {
  try {
    Verifier(graph).run();
    return "";
  } catch (Fault& fault) {
    return std::move(fault.what);
  }
}

void verify(const Graph& graph) {
  if (std::string fault = find_fault(graph); !fault.empty()) MAGNETO_BUG("graph: " + fault);
}

}  // namespace magneto::graph
