// Graphs as text for people.
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <optional>

#include "graph/graph.h"

namespace magneto::graph {
namespace {

const char* short_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float: return "f32";
    case c10::ScalarType::Double: return "f64";
    case c10::ScalarType::Half: return "f16";
    case c10::ScalarType::BFloat16: return "bf16";
    case c10::ScalarType::Long: return "i64";
    case c10::ScalarType::Int: return "i32";
    case c10::ScalarType::Short: return "i16";
    case c10::ScalarType::Char: return "i8";
    case c10::ScalarType::Byte: return "u8";
    case c10::ScalarType::Bool: return "bool";
    case c10::ScalarType::ComplexFloat: return "c64";
    case c10::ScalarType::ComplexDouble: return "c128";
    default: return c10::toString(dtype);
  }
}

std::string join(c10::ArrayRef<int64_t> numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text;
}

bool is_contiguous(const Value& value) {
  int64_t expected = 1;
  for (size_t i = value.sizes.size(); i-- > 0;) {
    if (value.sizes[i] == 0) return true;
    if (value.sizes[i] != 1 && value.strides[i] != expected) return false;
    expected *= value.sizes[i];
  }
  return true;
}

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.17g", number);
  for (int digits = 1; digits < 17; ++digits) {  // the shortest text that reads back as the same number
    char shorter[32];
    std::snprintf(shorter, sizeof shorter, "%.*g", digits, number);
    if (std::strtod(shorter, nullptr) == number) {
      std::string text = shorter;
      return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
    }
  }
  return buffer;
}

std::string ref(ValueId id) { return "%" + std::to_string(id); }

std::string constant_text(const c10::IValue& value, const c10::TypePtr& type) {
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) {
    auto inner = type && type->kind() == c10::TypeKind::OptionalType ? type->containedType(0) : type;
    if (inner && inner->kind() == c10::TypeKind::ScalarTypeType) {
      return short_name(static_cast<c10::ScalarType>(value.toInt()));
    }
    return std::to_string(value.toInt());
  }
  if (value.isDouble()) return number_text(value.toDouble());
  if (value.isComplexDouble()) {
    auto number = value.toComplexDouble();
    return "(" + number_text(number.real()) + "+" + number_text(number.imag()) + "j)";
  }
  if (value.isString()) return "'" + value.toStringRef() + "'";
  if (value.isDevice()) return value.toDevice().str();
  if (value.isGenerator()) return "<generator>";
  if (value.isList()) {
    std::string text = "[";
    for (const c10::IValue& item : value.toListRef()) {
      text += (text.size() > 1 ? ", " : "") + constant_text(item, nullptr);
    }
    return text + "]";
  }
  return "<" + value.tagKind() + ">";
}

std::optional<std::string> tensor_text(const Op& op, uint32_t position) {
  for (const TensorList& list : op.lists) {
    if (list.position != position) continue;
    std::vector<std::string> items(list.size, "None");
    for (const TensorRef& tensor : op.tensors) {
      if (tensor.position == position) items[static_cast<size_t>(tensor.item)] = ref(tensor.value);
    }
    std::string text = "[";
    for (const std::string& item : items) text += (text.size() > 1 ? ", " : "") + item;
    return text + "]";
  }
  for (const TensorRef& tensor : op.tensors) {
    if (tensor.position == position) return ref(tensor.value);
  }
  return std::nullopt;
}

// Leaves out what equals the default, and names what follows a gap.
std::string arguments_text(const Op& op) {
  const auto& arguments = op.handle.schema().arguments();
  std::string text;
  bool named = false;
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    auto tensor = tensor_text(op, i);
    std::string value = tensor ? *tensor : constant_text(op.args[i], argument.real_type());
    if (!tensor && argument.default_value() &&
        value == constant_text(*argument.default_value(), argument.real_type())) {
      named = true;
      continue;
    }
    if (!text.empty()) text += ", ";
    text += named || argument.kwarg_only() ? argument.name() + "=" + value : value;
  }
  return text;
}

std::string op_text(const Graph& graph, const Op& op) {
  std::string text;
  for (const TensorRef& result : op.results) {
    text += (text.empty() ? "" : ", ") + ref(result.value) + ": " + to_text(graph.values[result.value]);
  }
  const auto& schema = op.handle.schema();
  std::string name = schema.name();
  if (size_t colon = name.find("::"); colon != std::string::npos) name.replace(colon, 2, ".");
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  text = (text.empty() ? text : text + " = ") + name + "(" + arguments_text(op) + ")";
  return op.expected.isNone() ? text : text + " == " + constant_text(op.expected, nullptr);
}

std::string role_text(Role role) {
  switch (role) {
    case Role::Argument: return "argument";
    case Role::Parameter: return "parameter";
    case Role::Buffer: return "buffer";
    case Role::Constant: return "constant";
    case Role::Result: break;
  }
  return "result";
}

}  // namespace

std::string to_text(const Value& value) {
  std::string text = std::string(short_name(value.dtype)) + "[" + join(value.sizes) + "]";
  if (!is_contiguous(value)) text += "{" + join(value.strides) + "}";
  if (!value.device.is_cpu()) text += " " + value.device.str();
  return text;
}

std::string to_text(const Graph& graph) {
  std::string text;
  auto list = [&](const std::vector<ValueId>& ids) {
    for (ValueId id : ids)
      text += role_text(graph.values[id].role) + " " + ref(id) + ": " + to_text(graph.values[id]) + "\n";
  };
  list(graph.inputs);
  list(graph.states);
  list(graph.constants);
  for (const Op& op : graph.ops) text += op_text(graph, op) + "\n";
  text += "return";
  for (size_t i = 0; i < graph.outputs.size(); ++i) text += (i ? ", " : " ") + ref(graph.outputs[i]);
  return text + "\n";
}

}  // namespace magneto::graph
