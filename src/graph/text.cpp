// Prints graphs as text; parse.cpp says what the text looks like and why.
#include "graph/text.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <ranges>
#include <span>

#include "graph/contents.h"

namespace magneto::graph {
namespace {

constexpr std::pair<c10::ScalarType, std::string_view> kShortNames[] = {
    {c10::ScalarType::Float, "f32"},        {c10::ScalarType::Double, "f64"},        {c10::ScalarType::Half, "f16"},
    {c10::ScalarType::BFloat16, "bf16"},    {c10::ScalarType::Long, "i64"},          {c10::ScalarType::Int, "i32"},
    {c10::ScalarType::Short, "i16"},        {c10::ScalarType::Char, "i8"},           {c10::ScalarType::Byte, "u8"},
    {c10::ScalarType::ComplexFloat, "c64"}, {c10::ScalarType::ComplexDouble, "c128"}};

// As the parser reads it.
template <typename Number>
Number read_number(const char* text) {
  double number = std::strtod(text, nullptr);
  if constexpr (std::is_same_v<Number, double>) {
    return number;
  } else {
    return static_cast<Number>(static_cast<float>(number));
  }
}

template <typename Number>
std::string shortest(Number number) {
  char buffer[40];
  constexpr int kMostDigits = std::is_same_v<Number, double> ? 17 : 9;
  for (int digits = 1; digits <= kMostDigits; ++digits) {
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, static_cast<double>(number));
    if (read_number<Number>(buffer) == number) break;
  }
  std::string text = buffer;
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

template <typename Items, typename Text>
std::string join(const Items& items, Text text) {
  std::string joined;
  for (const auto& item : items) joined += (joined.empty() ? "" : ", ") + text(item);
  return joined;
}

std::string number(int64_t value) { return std::to_string(value); }

class Printer {
 public:
  Printer(const Graph& graph, Style style) : graph_(graph), style_(style) {
    if (style == Style::Structure) number_values();
  }

  std::string graph() {
    choose_mode();
    std::string text = mode_ ? "mode " + flags_text(mode_) + "\n" : "";
    if (graph_.symbols) text += symbols();
    for (const auto* ids : {&graph_.inputs, &graph_.states}) {
      for (ValueId id : *ids) text += role_text(graph_.values[id].role) + " " + definition(id) + "\n";
    }
    for (size_t i = 0; i < graph_.constants.size(); ++i) text += constant(i) + "\n";
    for (const Op& op : graph_.ops) text += this->op(op) + "\n";
    if (graph_.symbols) {
      for (const std::string& guard : graph_.symbols->guards()) text += "guard " + guard + "\n";
    }
    auto output = [&](ValueId id) { return graph_.values[id].role == Role::Size ? type(graph_.values[id]) : ref(id); };
    return text + (graph_.outputs.empty() ? "return" : "return " + join(graph_.outputs, output)) + "\n";
  }

  std::string op(const Op& op) const {
    std::string name = op.info->name;
    if (size_t colon = name.find("::"); colon != std::string::npos) name.replace(colon, 2, ".");
    std::string results = this->results(op);
    std::string text = (results.empty() ? "" : results + " = ") + name + "(" + arguments(op) + ")";
    if (!op.expected.isNone()) text += " == " + argument_text(op.expected, *c10::NumberType::get());
    if (unsigned flags = flags_of(op); flags != mode_) text += " [" + flags_text(flags) + "]";
    if (op.line == Op::kNoLine || style_ == Style::Structure) return text;
    const Line& line = graph_.lines[op.line];
    return text + "  # " + escaped(line.file, "") + ":" + std::to_string(line.number) + " " +
           escaped(line.function, " ");
  }

  OpWords words(const Op& op) const {
    size_t colon = op.info->name.find("::");
    return {op.info->name.substr(colon == std::string::npos ? 0 : colon + 2), arguments(op), results(op)};
  }

  std::string type(const Value& value) const {
    if (value.role == Role::Size) return graph_.symbols->text(value.shape[0]);
    std::string text = dtype_text(value.dtype) + "[";
    if (value.shape.empty()) {
      text += join(value.sizes, number) + "]";
      if (value.strides != dense_strides(value.sizes)) text += "{" + join(value.strides, number) + "}";
    } else {
      auto sizes = std::span(value.shape).first(value.sizes.size());
      auto strides = std::span(value.shape).subspan(value.sizes.size());
      auto expression = [&](ExprId expr) { return graph_.symbols->text(expr); };
      bool dense = std::ranges::equal(strides, dense_strides(*graph_.symbols, sizes));
      text += join(sizes, expression) + "]";
      if (!dense) text += "{" + join(strides, expression) + "}";
    }
    return value.device.is_cpu() ? text : text + " " + value.device.str();
  }

 private:
  // In order of appearance, so that equal graphs read the same.
  void number_values() {
    constexpr ValueId kNone = UINT32_MAX;
    numbers_.assign(graph_.values.size(), kNone);
    memories_.assign(graph_.values.size(), kNone);
    ValueId next = 0;
    auto see = [&](ValueId id) {
      if (numbers_[id] != kNone) return;
      numbers_[id] = next++;
      ValueId& first = memories_[graph_.values[id].memory];
      if (first == kNone) first = id;
      memories_[id] = first;
    };
    for (const auto* ids : {&graph_.inputs, &graph_.states, &graph_.constants}) {
      for (ValueId id : *ids) see(id);
    }
    for (const Op& op : graph_.ops) {
      for (const TensorRef& result : op.results) see(result.value);
    }
  }

  ValueId memory_of(ValueId id) const { return numbers_.empty() ? graph_.values[id].memory : memories_[id]; }

  std::string ref(ValueId id) const {
    const std::string& name = graph_.values[id].name;
    if (style_ == Style::Picture && !name.empty()) return name;
    return "%" + std::to_string(numbers_.empty() ? id : numbers_[id]);
  }

  static unsigned flags_of(const Op& op) {
    unsigned flags = 0;
    for (size_t i = 0; i < kFlags.size(); ++i) flags |= static_cast<unsigned>(op.*kFlags[i].member) << i;
    return flags;
  }

  static std::string flags_text(unsigned flags) {
    std::string text;
    for (size_t i = 0; i < kFlags.size(); ++i) {
      if (flags >> i & 1) text += (text.empty() ? "" : " ") + std::string(kFlags[i].name);
    }
    return text.empty() ? std::string(kNoFlags) : text;
  }

  // What most operators run under; the others say so themselves.
  void choose_mode() {
    std::array<size_t, 1 << kFlags.size()> counts{};
    for (const Op& op : graph_.ops) ++counts[flags_of(op)];
    mode_ = static_cast<unsigned>(std::max_element(counts.begin(), counts.end()) - counts.begin());
  }

  std::string definition(ValueId id) const {
    const Value& value = graph_.values[id];
    std::string name = value.name.empty() || style_ >= Style::Structure ? "" : " " + name_text(value.name);
    std::string where = memory_of(id) == id ? "" : " in " + ref(memory_of(id));
    return ref(id) + name + ": " + type(value) + where;
  }

  std::string constant(size_t index) const {
    const at::Tensor& tensor = graph_.constant_tensors[index];
    std::string text = "constant " + definition(graph_.constants[index]);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) text += " number";
    if (auto elements = elements_text(tensor)) return text + " = " + *elements;
    if (style_ == Style::Short) return text + " = ...";
    return text + " = base64 " + in_quotes(to_base64(element_bytes(tensor)));
  }

  // An operator may return what it was given, which is known already.
  std::string result(const Op& op, ValueId id) const {
    for (const TensorRef& tensor : op.tensors) {
      if (tensor.value == id) return ref(id);
    }
    return definition(id);
  }

  // "symbol s0 = 8 in 2.. from input 0 dimension 1 as x"
  std::string symbols() const {
    std::string text;
    for (const Symbol& symbol : graph_.symbols->symbols()) {
      const SymbolSource& source = symbol.source;
      text += "symbol " + symbol.name;
      if (style_ != Style::Structure) text += " = " + std::to_string(symbol.hint);
      text += " in " + (symbol.range.min == Range::kMin ? "" : std::to_string(symbol.range.min)) + ".." +
              (symbol.range.max == Range::kMax ? "" : std::to_string(symbol.range.max));
      if (source.dimension == SymbolSource::kUnknown) {
        text += " unknown\n";
        continue;
      }
      text += " from input " + std::to_string(source.input);
      if (source.dimension != SymbolSource::kNumber) text += " dimension " + std::to_string(source.dimension);
      if (!source.name.empty() && style_ != Style::Structure) text += " as " + name_text(source.name);
      text += "\n";
    }
    return text;
  }

  // By position; "_" stands for a result that is no tensor, or absent.
  std::string results(const Op& op) const {
    std::map<uint32_t, std::map<int32_t, ValueId>> places;
    for (const TensorRef& result : op.results) places[result.position][result.item] = result.value;
    std::string text;
    uint32_t next = 0;
    for (const auto& [position, items] : places) {
      for (; next < position; ++next) text += (text.empty() ? "_" : ", _");
      ++next;
      if (!text.empty()) text += ", ";
      if (items.begin()->first == TensorRef::kWhole) {
        text += result(op, items.begin()->second);
        continue;
      }
      std::vector<std::string> listed(static_cast<size_t>(items.rbegin()->first) + 1, "_");
      for (const auto& [item, id] : items) listed[static_cast<size_t>(item)] = result(op, id);
      text += "[" + join(listed, [](const std::string& item) { return item; }) + "]";
    }
    return text;
  }

  std::optional<std::string> tensors(const Op& op, uint32_t position) const {
    for (const TensorList& list : op.lists) {
      if (list.position != position) continue;
      std::vector<std::string> items(list.size, "None");
      for (const TensorRef& tensor : op.tensors) {
        if (tensor.position == position) items[static_cast<size_t>(tensor.item)] = ref(tensor.value);
      }
      return "[" + join(items, [](const std::string& item) { return item; }) + "]";
    }
    for (const TensorRef& tensor : op.tensors) {
      if (tensor.position == position) return ref(tensor.value);
    }
    return std::nullopt;
  }

  // With expressions in place of the numbers that depend on symbols.
  std::optional<std::string> sizes(const Op& op, uint32_t position) const {
    std::vector<std::string> items;
    for (const SizeRef& size : op.sizes) {
      if (size.position != position) continue;
      std::string text = graph_.symbols->text(size.expr);
      if (size.item == TensorRef::kWhole) return text;
      if (items.empty()) {
        for (const c10::IValue& item : op.args[position].toListRef()) {
          items.push_back(argument_text(item, *c10::NumberType::get()));
        }
      }
      items[static_cast<size_t>(size.item)] = text;
    }
    if (items.empty()) return std::nullopt;
    return "[" + join(items, [](const std::string& item) { return item; }) + "]";
  }

  // Leaves out what equals the default, and names what follows a gap.
  std::string arguments(const Op& op) const {
    const auto& arguments = op.handle.schema().arguments();
    std::string text;
    bool named = false;
    for (uint32_t i = 0; i < arguments.size(); ++i) {
      const auto& argument = arguments[i];
      const c10::Type& type = *argument.real_type();
      auto value = tensors(op, i);
      if (!value) value = sizes(op, i);
      if (!value) {
        value = argument_text(op.args[i], type);
        if (argument.default_value() && *value == argument_text(*argument.default_value(), type)) {
          named = true;
          continue;
        }
      }
      if (!text.empty()) text += ", ";
      text += named || argument.kwarg_only() ? argument.name() + "=" + *value : *value;
    }
    return text;
  }

  const Graph& graph_;
  const Style style_;
  std::vector<ValueId> numbers_;  // by value, for Style::Structure; the memory of a value in memories_
  std::vector<ValueId> memories_;
  unsigned mode_ = 0;
};

}  // namespace

std::string dtype_text(c10::ScalarType dtype) {
  for (const auto& [type, name] : kShortNames) {
    if (type == dtype) return std::string(name);
  }
  return std::string(c10::getDtypeNames(dtype).first);
}

std::optional<c10::ScalarType> find_dtype(std::string_view name) {
  for (const auto& [type, short_name] : kShortNames) {
    if (short_name == name) return type;
  }
  const auto& names = c10::getStringToDtypeMap();
  auto found = names.find(std::string(name));
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

std::string number_text(double number) {
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  if (!std::isnan(number)) return shortest(number);
  constexpr uint64_t kUsual = 0x7ff8000000000000;
  uint64_t bits = std::bit_cast<uint64_t>(number);
  if (bits == kUsual) return "nan";
  char text[32];
  std::snprintf(text, sizeof text, "nan(0x%llx)", static_cast<unsigned long long>(bits));
  return text;
}

std::string number_text(float number) {
  return std::isfinite(number) ? shortest(number) : number_text(static_cast<double>(number));
}

std::string number_text(c10::Half number) {
  return std::isfinite(static_cast<float>(number)) ? shortest(number) : number_text(static_cast<float>(number));
}

std::string number_text(c10::BFloat16 number) {
  return std::isfinite(static_cast<float>(number)) ? shortest(number) : number_text(static_cast<float>(number));
}

std::string escaped(std::string_view text, std::string_view also) {
  std::string result;
  for (char c : text) {
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\'' && also == "'") {
      result += "\\'";
    } else if (static_cast<unsigned char>(c) < ' ' || c == 127 || also.find(c) != std::string_view::npos) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(c));
      result += code;
    } else {
      result += c == '\\' ? "\\\\" : std::string(1, c);
    }
  }
  return result;
}

std::string in_quotes(std::string_view text) { return "'" + escaped(text, "'") + "'"; }

std::string role_text(Role role) {
  switch (role) {
    case Role::Argument: return "argument";
    case Role::Parameter: return "parameter";
    case Role::Buffer: return "buffer";
    case Role::Constant: return "constant";
    case Role::Size: return "size";
    case Role::Result: break;
  }
  return "result";
}

std::string name_text(const std::string& name) { return is_bare_name(name) ? name : in_quotes(name); }

bool is_bare_name(std::string_view name) {
  if (name.empty() || (!std::isalpha(static_cast<unsigned char>(name[0])) && name[0] != '_')) return false;
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '[' || c == ']'; });
}

const c10::Type& inner_type(const c10::Type& type) {
  return type.kind() == c10::TypeKind::OptionalType ? *type.containedType(0) : type;
}

std::string argument_text(const c10::IValue& value, const c10::Type& real_type) {
  const c10::Type& type = inner_type(real_type);
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) {
    auto number = value.toInt();
    auto index = static_cast<size_t>(number);
    if (type.kind() == c10::TypeKind::ScalarTypeType) return dtype_text(static_cast<c10::ScalarType>(number));
    if (type.kind() == c10::TypeKind::LayoutType && index < kLayoutNames.size())
      return std::string(kLayoutNames[index]);
    if (type.kind() == c10::TypeKind::MemoryFormatType && index < kMemoryFormatNames.size()) {
      return std::string(kMemoryFormatNames[index]);
    }
    return std::to_string(number);
  }
  if (value.isDouble()) return number_text(value.toDouble());
  if (value.isComplexDouble()) {
    auto number = value.toComplexDouble();
    std::string imaginary = number_text(number.imag());
    return "(" + number_text(number.real()) + (imaginary[0] == '-' ? "" : "+") + imaginary + "j)";
  }
  if (value.isString()) return in_quotes(value.toStringRef());
  if (value.isDevice()) return value.toDevice().str();
  if (value.isList()) {
    const c10::Type& item = type.kind() == c10::TypeKind::ListType ? *type.containedType(0) : *c10::AnyType::get();
    return "[" + join(value.toListRef(), [&](const c10::IValue& each) { return argument_text(each, item); }) + "]";
  }
  return "<" + (value.isGenerator() ? "generator" : value.tagKind()) + ">";
}

c10::SmallVector<int64_t, 4> dense_strides(c10::ArrayRef<int64_t> sizes) {
  c10::SmallVector<int64_t, 4> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) {  // a text may hold any sizes, so an overflow must be harmless
    __builtin_mul_overflow(strides[i], std::max<int64_t>(sizes[i], 1), &strides[i - 1]);
  }
  return strides;
}

std::vector<ExprId> dense_strides(Symbols& symbols, std::span<const ExprId> sizes) {
  std::vector<ExprId> strides(sizes.size(), symbols.integer(1));
  ExprId zero = symbols.integer(0);
  for (size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = sizes[i] == zero ? strides[i] : symbols.mul(strides[i], sizes[i]);
  }
  return strides;
}

std::string to_text(const Graph& graph, const Value& value) { return Printer(graph, Style::Exact).type(value); }

std::string to_text(const Value& value) {
  if (value.role == Role::Size) return "a number";
  if (value.shape.empty()) return Printer(Graph(), Style::Exact).type(value);
  Value recorded = value;
  recorded.shape.clear();
  return to_text(recorded);
}

OpWords op_words(const Graph& graph, const Op& op) { return Printer(graph, Style::Picture).words(op); }

std::string to_text(const Graph& graph, const Op& op) { return Printer(graph, Style::Exact).op(op); }

std::string to_text(const Graph& graph, Style style) { return Printer(graph, style).graph(); }

}  // namespace magneto::graph
