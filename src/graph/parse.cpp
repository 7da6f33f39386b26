// Reads graphs from text.
//
//   mode grad                                          what operators run under, unless they say otherwise
//   symbol s0 = 2 in 2..64 from input 0 dimension 0 as x
//   symbol s1 = 3 in .. from input 1 as n
//   argument %0 x: f32[s0, 8]
//   size %6 n: s1                                      a number that runs are given
//   parameter %1 layers.0.weight: f32[8, 8]
//   constant %2: f64[] number = 0.5                     `number`: a Python number that became a tensor
//   %3: f32[8, 8]{1, 8} in %1 = aten.t(%1)  # model.py:12 forward
//   %4: f32[s0, 8] = aten.mm(%0, %3) [plain]
//   %4 = aten.mul_.Tensor(%4, %2)
//   [%5: f32[s0 // 2, 8] in %4, _] = aten.split.Tensor(%4, s0 // 2)
//   aten._local_scalar_dense(%2) == 0.5
//   guard s0 % 2 == 0
//   return %4, %5, s0 + s1
//
// The grammar is one statement per line and one token of look-ahead: the first word says what a line is. A value is
// described once, where it is made: dtype[sizes]{strides, unless contiguous} device, unless the CPU, and whose memory
// it lives `in`, unless its own. Operators are written as Python would call them, with defaults left out; so what an
// argument means is read off the operator's schema (`f32` is a dtype only where one is expected), and its C++ type
// comes back exactly. `symbol s2 = 64 in 2.. unknown` is a size that only the operator knows. Numbers keep their kind
// (1, 1.0, True) and all their bits. A comment behind an operator that looks like "file:12 function" is where it came
// from; any other comment is skipped. Guards stand last, because what is assumed simplifies the expressions that are
// read after it.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "graph/contents.h"
#include "graph/cursor.h"
#include "graph/graph.h"
#include "graph/text.h"
#include "runtime/errors.h"

namespace magneto::graph {
namespace {

using c10::IValue;
using c10::TypeKind;

std::optional<std::string> unescaped(std::string_view text) {
  Cursor cursor(text);
  std::string result;
  while (!cursor.at_end()) {
    auto c = cursor.character();
    if (!c) return std::nullopt;
    result += *c;
  }
  return result;
}

class Parser {
 public:
  Parser(std::string_view text, const std::vector<at::Tensor>& contents) : cursor_(text), contents_(contents) {}

  Graph run() {
    while (skip_to_line()) statement();
    if (!returned_) cursor_.expected("a line that begins with return");
    if (contents_taken_ != contents_.size()) {
      cursor_.fail("expected as many constants without contents as contents were given (" +
                   std::to_string(contents_.size()) + ")");
    }
    for (auto [at, memory] : memories_) {
      if (memory >= graph_.values.size()) cursor_.fail("%" + std::to_string(memory) + " is not made anywhere", at);
    }
    if (graph_.symbols) graph_.symbols->freeze();
    if (std::string fault = find_fault(graph_); !fault.empty()) throw UserError("graph text: " + fault);
    return std::move(graph_);
  }

 private:
  // ---- lines

  // To the first character of the next statement.
  bool skip_to_line() {
    for (;;) {
      cursor_.skip_spaces();
      if (cursor_.peek() == '#') cursor_.line_rest();
      if (cursor_.peek() != '\n') return !cursor_.at_end();
      cursor_.go_to(cursor_.at() + 1);
    }
  }

  void end_line() {
    cursor_.skip_spaces();
    if (cursor_.peek() == '#') cursor_.line_rest();
    if (!cursor_.at_end() && cursor_.peek() != '\n') cursor_.expected("the end of the line");
  }

  void statement() {
    if (returned_) cursor_.expected("nothing behind the line that begins with return");
    if (cursor_.take("mode")) {
      mode_ = flags("the end of the line");
    } else if (cursor_.take("symbol")) {
      symbol();
    } else if (cursor_.take("guard")) {
      guard();
    } else if (cursor_.take("argument")) {
      graph_.inputs.push_back(definition(Role::Argument));
    } else if (cursor_.take("size")) {
      graph_.inputs.push_back(definition(Role::Size));
    } else if (cursor_.take("parameter")) {
      graph_.states.push_back(definition(Role::Parameter));
    } else if (cursor_.take("buffer")) {
      graph_.states.push_back(definition(Role::Buffer));
    } else if (cursor_.take("constant")) {
      constant();
    } else if (cursor_.take("return")) {
      outputs();
    } else {
      operation();
    }
    end_line();
  }

  void outputs() {
    returned_ = true;
    cursor_.skip_spaces();
    if (cursor_.at_end() || cursor_.peek() == '\n' || cursor_.peek() == '#') return;
    do graph_.outputs.push_back(output());
    while (cursor_.take(","));
  }

  ValueId output() {
    cursor_.skip_spaces();
    if (cursor_.peek() == '%') return use();
    auto expr = expression();
    if (!expr) cursor_.expected("a value such as %3, or a size in symbols");
    return graph_.add_size(*expr);
  }

  unsigned flags(const char* end) {
    unsigned flags = 0;
    if (cursor_.take(kNoFlags)) return flags;
    for (bool any = false;; any = true) {
      size_t found = 0;
      while (found < kFlags.size() && !cursor_.take(kFlags[found].name)) ++found;
      if (found < kFlags.size()) {
        flags |= 1u << found;
      } else if (any) {
        return flags;
      } else {
        cursor_.expected(
            std::string(
                "plain, or some of grad, below_inplace, autocast, inference, derives and shared_cast, and then ") +
            end);
      }
    }
  }

  // ---- symbols

  // Runs `work` on the table of symbols; what that refuses is an error at `at`.
  template <typename Work>
  auto with_symbols(size_t at, Work work) {
    try {
      return work(*graph_.symbols);
    } catch (const UserError& error) {
      cursor_.fail(error.what(), at);
    }
  }

  void symbol() {
    if (!graph_.symbols) graph_.symbols = std::make_shared<Symbols>();
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    Symbol symbol{std::string(cursor_.word()), 0, {}, {}, 0};
    if (symbol.name.empty()) cursor_.expected("the name of a symbol");
    cursor_.need("=", "= and the number in the recorded call");
    symbol.hint = cursor_.integer("an integer");
    cursor_.need("in", "in and a range such as 2..64");
    if (!cursor_.take("..")) {
      symbol.range.min = cursor_.integer("a range such as 2..64");
      cursor_.need("..", "two dots");
    }
    if (char c = cursor_.peek(); c == '-' || std::isdigit(static_cast<unsigned char>(c))) {
      symbol.range.max = cursor_.integer("an integer");
    }
    symbol.source = source();
    with_symbols(at, [&](Symbols& symbols) { return symbols.declare(std::move(symbol)); });
  }

  SymbolSource source() {
    SymbolSource source;
    if (cursor_.take("unknown")) {
      source.dimension = SymbolSource::kUnknown;
      return source;
    }
    cursor_.need("from", "from input, and its number, or unknown");
    cursor_.need("input", "input, and its number");
    source.input = small_number("the number of an input");
    if (cursor_.take("dimension")) source.dimension = static_cast<int32_t>(small_number("a dimension"));
    if (cursor_.take("as")) source.name = name([](char c) { return c != ' ' && c != '\n' && c != '#'; });
    return source;
  }

  void guard() {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    if (!graph_.symbols) cursor_.fail("expected a line that declares a symbol before");
    std::string_view text = cursor_.run_of([](char c) { return c != '\n' && c != '#'; });
    with_symbols(at, [&](Symbols& symbols) { symbols.assume(symbols.parse(text)); });
  }

  uint32_t small_number(const char* what) {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    int64_t number = cursor_.integer(what);
    if (number < 0 || number > INT32_MAX) cursor_.fail(std::string("expected ") + what, at);
    return static_cast<uint32_t>(number);
  }

  // An expression over symbols if one comes next, up to the comma or bracket behind it.
  std::optional<ExprId> expression() {
    if (!graph_.symbols) return std::nullopt;
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    int depth = 0;
    std::string_view text = cursor_.run_of([&](char c) {
      depth += (c == '(') - (c == ')');
      return depth >= 0 && c != '\n' && c != '#' && c != ']' && c != '}' && (c != ',' || depth > 0);
    });
    if (!names_symbol(text)) {
      cursor_.go_to(at);
      return std::nullopt;
    }
    return with_symbols(at, [&](Symbols& symbols) { return symbols.parse(text); });
  }

  bool names_symbol(std::string_view text) const {
    Cursor words(text);
    while (!words.at_end()) {
      std::string_view word = words.word();
      if (!word.empty() && graph_.symbols->find(word)) return true;
      if (!words.at_end()) words.go_to(words.at() + 1);
    }
    return false;
  }

  // ---- values

  ValueId number_of_value() {
    cursor_.need("%", "a value such as %3");
    size_t at = cursor_.at();
    // Numbers may have gaps, but a short text may not ask for much memory.
    uint64_t most = std::max<uint64_t>(cursor_.length(), 1 << 20);
    int64_t number = cursor_.integer("a value such as %3");
    if (number < 0 || static_cast<uint64_t>(number) > most) {
      cursor_.fail("expected the number of a value, at most " + std::to_string(most), at);
    }
    return static_cast<ValueId>(number);
  }

  bool is_made(ValueId id) const { return id < made_.size() && made_[id]; }

  ValueId use() {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    ValueId id = number_of_value();
    if (!is_made(id)) cursor_.fail("%" + std::to_string(id) + " is used before it is made", at);
    return id;
  }

  template <typename Accept>
  std::string name(Accept accept) {
    cursor_.skip_spaces();
    if (cursor_.peek() == '\'') return cursor_.string();
    std::string name(cursor_.run_of(accept));
    if (!name.empty() && !is_bare_name(name)) cursor_.fail("expected a name, in quotes if it is unusual");
    return name;
  }

  // "%3 name: f32[2] in %1"
  ValueId definition(Role role) {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    ValueId id = number_of_value();
    if (is_made(id)) cursor_.fail("%" + std::to_string(id) + " is made twice", at);
    Value value{role, c10::ScalarType::Undefined, c10::Device(c10::kCPU), {}, {}, id};
    value.name = name([](char c) { return c != ':' && c != ' ' && c != '\n'; });
    cursor_.need(":", "a colon, and then what the value is, such as : f32[2, 8]");
    role == Role::Size ? size(value) : type(value);
    if (cursor_.take("in")) {
      size_t place = (cursor_.skip_spaces(), cursor_.at());
      value.memory = number_of_value();
      memories_.emplace_back(place, value.memory);
    }
    if (id >= graph_.values.size()) {
      const Value gap{Role::Result, c10::ScalarType::Undefined, c10::Device(c10::kCPU), {}, {}, 0};
      while (graph_.values.size() <= id) {
        graph_.values.push_back(gap);
        graph_.values.back().memory = static_cast<ValueId>(graph_.values.size() - 1);
      }
      made_.resize(id + 1, false);
    }
    graph_.values[id] = std::move(value);
    made_[id] = true;
    return id;
  }

  void size(Value& value) {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    auto expr = expression();
    if (!expr || graph_.symbols->type(*expr) != Symbols::Type::Int) {
      cursor_.go_to(at);
      cursor_.expected("an integer in symbols that lines before declare");
    }
    value.dtype = c10::kLong;
    value.shape = {*expr};
  }

  void type(Value& value) {
    value.dtype = dtype();
    cursor_.need("[", "sizes such as [2, 8]");
    std::vector<ExprId> sizes, strides;  // empty if there are no symbols
    value.sizes = numbers("]", "a size", sizes);
    for (int64_t size : value.sizes) {
      if (size < 0) cursor_.fail("expected sizes that are not negative");
    }
    if (cursor_.take("{")) {
      value.strides = numbers("}", "a stride", strides);
      if (value.strides.size() != value.sizes.size()) cursor_.fail("expected as many strides as sizes");
    } else if (sizes.empty()) {
      value.strides = dense_strides(value.sizes);
    } else {
      strides = with_symbols(cursor_.at(), [&](Symbols& symbols) { return dense_strides(symbols, sizes); });
      for (ExprId stride : strides) value.strides.push_back(graph_.symbols->hint(stride).integer);
    }
    sizes.insert(sizes.end(), strides.begin(), strides.end());
    bool fixed = std::ranges::all_of(sizes, [&](ExprId expr) { return graph_.symbols->is_constant(expr); });
    if (!fixed) value.shape = std::move(sizes);
    cursor_.skip_spaces();
    if (std::isalpha(static_cast<unsigned char>(cursor_.peek())) && !next_is("in") && !next_is("number")) {
      value.device = device();
    }
  }

  bool next_is(std::string_view word) {
    size_t at = cursor_.at();
    bool found = cursor_.take(word);
    cursor_.go_to(at);
    return found;
  }

  c10::SmallVector<int64_t, 4> numbers(const char* close, const char* what, std::vector<ExprId>& exprs) {
    c10::SmallVector<int64_t, 4> result;
    if (cursor_.take(close)) return result;
    do {
      size_t at = (cursor_.skip_spaces(), cursor_.at());
      if (auto expr = expression()) {
        if (graph_.symbols->type(*expr) != Symbols::Type::Int) cursor_.fail(std::string("expected ") + what, at);
        exprs.push_back(*expr);
        result.push_back(graph_.symbols->hint(*expr).integer);
      } else {
        result.push_back(cursor_.integer(what));
        if (graph_.symbols) exprs.push_back(graph_.symbols->integer(result.back()));
      }
    } while (cursor_.take(","));
    cursor_.need(close, close[0] == ']' ? "a comma or ]" : "a comma or }");
    return result;
  }

  c10::ScalarType dtype() {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    if (auto found = find_dtype(cursor_.word())) return *found;
    cursor_.go_to(at);
    cursor_.expected("a dtype such as f32, i64 or bool");
  }

  c10::Device device() {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    std::string name(cursor_.word());
    if (cursor_.peek() == ':') {
      cursor_.go_to(cursor_.at() + 1);
      name += ":" + std::string(cursor_.word());
    }
    try {
      return c10::Device(name);
    } catch (const c10::Error&) {
      cursor_.go_to(at);
      cursor_.expected("a device such as cpu or cuda:0");
    }
  }

  // ---- constants

  void constant() {
    ValueId id = definition(Role::Constant);
    Value& value = graph_.values[id];
    bool number = cursor_.take("number");
    size_t at = cursor_.at();
    at::Tensor tensor = cursor_.take("=") ? made_of(value, contents(value), at) : given(value);
    if (number && tensor.dim() != 0) cursor_.fail("expected a number to have no dimensions", at);
    if (number && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      tensor = tensor.detach();  // whose the tensor is, it stays as it was
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    graph_.constants.push_back(id);
    graph_.constant_tensors.push_back(std::move(tensor));
  }

  at::Tensor given(const Value& value) {
    if (contents_taken_ == contents_.size()) cursor_.expected("= and the contents of the constant");
    const at::Tensor& tensor = contents_[contents_taken_++];
    if (tensor.scalar_type() != value.dtype || tensor.device() != value.device || tensor.sizes() != value.sizes ||
        tensor.strides() != value.strides) {
      cursor_.fail("expected contents of type " + to_text(value));
    }
    return tensor;
  }

  at::Tensor made_of(const Value& value, const std::string& bytes, size_t at) {
    try {
      return tensor_of_bytes(value, bytes);
    } catch (const c10::Error& error) {
      cursor_.fail(error.what_without_backtrace(), at);
    } catch (const UserError& error) {
      cursor_.fail(error.what(), at);
    }
  }

  std::string contents(const Value& value) {
    if (cursor_.take("base64")) {
      auto bytes = from_base64(cursor_.string());
      if (!bytes) cursor_.fail("expected bytes in base64");
      return *bytes;
    }
    std::string bytes;
    bool list = cursor_.take("[");
    if (list != !value.sizes.empty()) cursor_.expected(list ? "one number" : "a list of numbers");
    if (!list || !cursor_.take("]")) {
      do {
        size_t at = (cursor_.skip_spaces(), cursor_.at());
        if (!append_element(value.dtype, number(), bytes)) {
          cursor_.go_to(at);
          cursor_.expected("a number of type " + dtype_text(value.dtype));
        }
      } while (list && cursor_.take(","));
      if (list) cursor_.need("]", "a comma or ]");
    }
    return bytes;
  }

  // ---- numbers

  double real() {
    cursor_.skip_spaces();
    bool negative = cursor_.take("-");
    if (cursor_.take_letters("inf")) return negative ? -HUGE_VAL : HUGE_VAL;
    if (cursor_.take_letters("nan")) {
      uint64_t bits = 0x7ff8000000000000;
      if (cursor_.take("(")) {
        std::string_view digits = cursor_.word();
        if (!digits.starts_with("0x") ||
            std::from_chars(digits.data() + 2, digits.data() + digits.size(), bits, 16).ec != std::errc() ||
            !std::isnan(std::bit_cast<double>(bits))) {
          cursor_.fail("expected the bits of a nan, such as 0x7ff8000000000001");
        }
        cursor_.need(")", ")");
      }
      return std::bit_cast<double>(bits);
    }
    size_t start = cursor_.at();
    char last = '\0';
    auto part_of_number = [&](char c) {
      bool sign = (c == '-' || c == '+') && (last == 'e' || last == 'E');
      last = c;
      return sign || std::isdigit(static_cast<unsigned char>(c)) || c == '.' || c == 'e' || c == 'E';
    };
    std::string digits(cursor_.run_of(part_of_number));
    char* end = nullptr;
    double number = std::strtod(digits.c_str(), &end);
    if (digits.empty() || *end) {
      cursor_.go_to(start);
      cursor_.expected("a number");
    }
    return negative ? -number : number;
  }

  // True, 3, 3.0, inf or (1.0+2.0j).
  IValue number() {
    if (cursor_.take("True")) return true;
    if (cursor_.take("False")) return false;
    if (cursor_.take("(")) {
      double first = real();
      if (!cursor_.take("+")) {
        cursor_.skip_spaces();
        if (cursor_.peek() != '-') cursor_.expected("+ or -");
      }
      double second = real();
      cursor_.need("j", "j");
      cursor_.need(")", ")");
      return c10::complex<double>(first, second);
    }
    size_t start = (cursor_.skip_spaces(), cursor_.at());
    double value = real();
    std::string_view written = cursor_.slice(start, cursor_.at());
    if (written.find_first_of(".enN") != std::string_view::npos) return value;
    cursor_.go_to(start);
    return cursor_.integer("a number");
  }

  // ---- operators

  void operation() {
    std::vector<TensorRef> results;
    std::vector<bool> is_list;
    size_t at = cursor_.at();
    if (char c = cursor_.peek(); c == '%' || c == '[' || next_is("_")) {
      result_list(results, is_list);
      cursor_.need("=", "= and an operator");
      cursor_.skip_spaces();
    }
    Op op = called_operator();
    const auto& returns = op.handle.schema().returns();
    bool fits = is_list.size() <= returns.size();
    for (size_t i = 0; fits && i < is_list.size(); ++i) {
      bool returns_list = returns[i].type()->kind() == TypeKind::ListType;
      bool absent = std::none_of(results.begin(), results.end(), [&](auto& result) { return result.position == i; });
      fits = is_list[i] == returns_list || (absent && !is_list[i]);
    }
    if (!fits) cursor_.fail("expected results as " + c10::toString(op.handle.schema()) + " has them", at);
    op.results.append(results.begin(), results.end());
    arguments(op);
    if (cursor_.take("==")) op.expected = number();
    unsigned flags = mode_;
    if (cursor_.take("[")) {
      flags = this->flags("]");
      cursor_.need("]", "]");
    }
    for (size_t i = 0; i < kFlags.size(); ++i) op.*kFlags[i].member = flags >> i & 1;
    source_line(op);
    graph_.ops.push_back(std::move(op));
  }

  void result_list(std::vector<TensorRef>& results, std::vector<bool>& is_list) {
    do {
      auto position = static_cast<uint32_t>(is_list.size());
      is_list.push_back(cursor_.take("["));
      if (!is_list.back()) {
        result(results, position, TensorRef::kWhole);
        continue;
      }
      int32_t item = 0;
      do result(results, position, item++);
      while (cursor_.take(","));
      cursor_.need("]", "a comma or ]");
    } while (cursor_.take(","));
  }

  void result(std::vector<TensorRef>& results, uint32_t position, int32_t item) {
    if (cursor_.take("_")) return;
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    ValueId id = number_of_value();
    cursor_.skip_spaces();
    bool returned = is_made(id) && cursor_.peek() != ':';
    if (!returned) {
      cursor_.go_to(at);
      definition(Role::Result);
    }
    results.push_back({position, item, id});
  }

  Op called_operator() {
    size_t at = cursor_.at();
    auto part = [&] {
      std::string_view word = cursor_.word();
      if (word.empty()) cursor_.expected("an operator such as aten.add.Tensor, or a line as graphs have them");
      return std::string(word);
    };
    std::string name = part(), overload;
    cursor_.need(".", "a dot, and the name of an operator");
    name += "::" + part();
    if (cursor_.take(".")) overload = part();
    auto& dispatcher = c10::Dispatcher::singleton();
    auto handle = dispatcher.findSchema({name, overload});
    if (!handle && overload == "default") handle = dispatcher.findSchema({name, ""});
    if (!handle) cursor_.fail("there is no operator " + name + (overload.empty() ? "" : "." + overload), at);
    return Op{*handle, &schema_info(*handle), {}, {}, {}, {}, false, false, false};
  }

  // "(%0, 1, alpha=2)": positions first, then names, then defaults for the rest.
  void arguments(Op& op) {
    const auto& arguments = op.handle.schema().arguments();
    op.args.resize(arguments.size());
    std::vector<bool> given(arguments.size(), false);
    uint32_t next = 0;
    bool named = false;
    cursor_.need("(", "the arguments in parentheses");
    if (!cursor_.take(")")) {
      do {
        auto position = keyword(arguments);
        named |= position.has_value();
        if (!position) {
          if (named) cursor_.expected("name=value, as the arguments before have names");
          if (next == arguments.size()) cursor_.expected(") because " + op.info->name + " takes no more arguments");
          position = next++;
        }
        if (given[*position]) cursor_.expected("each argument once");
        given[*position] = true;
        argument(op, *position, *arguments[*position].real_type());
      } while (cursor_.take(","));
      cursor_.need(")", "a comma or )");
    }
    for (uint32_t i = 0; i < arguments.size(); ++i) {
      if (given[i]) continue;
      if (!arguments[i].default_value()) {
        cursor_.fail("expected the argument " + arguments[i].name() + " of " + op.info->name);
      }
      op.args[i] = *arguments[i].default_value();
    }
    auto earlier = [](const auto& a, const auto& b) { return a.position < b.position; };
    std::stable_sort(op.tensors.begin(), op.tensors.end(), earlier);
    std::stable_sort(op.lists.begin(), op.lists.end(), earlier);
  }

  // Takes "name=" if it comes next.
  std::optional<uint32_t> keyword(const std::vector<c10::Argument>& arguments) {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    std::string_view name = cursor_.word();
    if (name.empty() || !cursor_.take("=")) {
      cursor_.go_to(at);
      return std::nullopt;
    }
    for (uint32_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == name) return i;
    }
    cursor_.fail("there is no argument " + std::string(name), at);
  }

  void argument(Op& op, uint32_t position, const c10::Type& declared) {
    const c10::Type& type = inner_type(declared);
    if (cursor_.take("None")) return;
    if (type.kind() == TypeKind::TensorType) {
      op.tensors.push_back({position, TensorRef::kWhole, use()});
      return;
    }
    if (type.kind() == TypeKind::ListType) {
      const c10::Type& item = *type.containedType(0);
      if (inner_type(item).kind() == TypeKind::TensorType) {
        return tensor_list(op, position, item.kind() == TypeKind::OptionalType);
      }
      op.args[position] = list(op, position, item);
      return;
    }
    op.args[position] = number_or_size(op, position, TensorRef::kWhole, type);
  }

  void tensor_list(Op& op, uint32_t position, bool optional) {
    cursor_.need("[", "a list of tensors");
    uint32_t size = 0;
    if (!cursor_.take("]")) {
      do {
        if (!cursor_.take("None")) op.tensors.push_back({position, static_cast<int32_t>(size), use()});
        ++size;
      } while (cursor_.take(","));
      cursor_.need("]", "a comma or ]");
    }
    op.lists.push_back({position, size, optional});
  }

  IValue list(Op& op, uint32_t position, const c10::Type& type) {
    cursor_.need("[", "a list");
    c10::impl::GenericList items(stored_type(type));
    if (!cursor_.take("]")) {
      int32_t item = 0;
      do items.push_back(number_or_size(op, position, item++, inner_type(type)));
      while (cursor_.take(","));
      cursor_.need("]", "a comma or ]");
    }
    return items;
  }

  // The type that IValues have for a type in a schema.
  static c10::TypePtr stored_type(const c10::Type& type) {
    switch (type.kind()) {
      case TypeKind::BoolType: return c10::BoolType::get();
      case TypeKind::FloatType: return c10::FloatType::get();
      case TypeKind::ComplexType: return c10::ComplexType::get();
      case TypeKind::StringType: return c10::StringType::get();
      case TypeKind::NumberType: return c10::NumberType::get();
      case TypeKind::DeviceObjType: return c10::DeviceObjType::get();
      case TypeKind::OptionalType: return c10::OptionalType::create(stored_type(*type.containedType(0)));
      default: return c10::IntType::get();
    }
  }

  IValue number_or_size(Op& op, uint32_t position, int32_t item, const c10::Type& type) {
    auto expr = expression();
    if (!expr) return plain(type);
    const Symbols& symbols = *graph_.symbols;
    if (!symbols.is_constant(*expr)) op.sizes.push_back({position, item, *expr});
    Number hint = symbols.hint(*expr);
    switch (symbols.type(*expr)) {
      case Symbols::Type::Int: return hint.integer;
      case Symbols::Type::Bool: return hint.integer != 0;
      case Symbols::Type::Float: break;
    }
    return hint.real;
  }

  template <size_t N>
  IValue one_of(const std::array<std::string_view, N>& names, const char* what) {
    for (size_t i = 0; i < N; ++i) {
      if (cursor_.take(names[i])) return static_cast<int64_t>(i);
    }
    cursor_.expected(what);
  }

  IValue plain(const c10::Type& type) {
    size_t at = (cursor_.skip_spaces(), cursor_.at());
    auto checked = [&](IValue value, bool fits, const char* what) {
      if (fits) return value;
      cursor_.go_to(at);
      cursor_.expected(what);
    };
    switch (type.kind()) {
      case TypeKind::ScalarTypeType: return static_cast<int64_t>(dtype());
      case TypeKind::LayoutType: return one_of(kLayoutNames, "a layout such as strided");
      case TypeKind::MemoryFormatType: return one_of(kMemoryFormatNames, "a memory format such as contiguous_format");
      case TypeKind::DeviceObjType: return device();
      case TypeKind::StringType: return cursor_.string();
      case TypeKind::BoolType: {
        IValue value = number();
        return checked(value, value.isBool(), "True or False");
      }
      case TypeKind::IntType:
      case TypeKind::SymIntType: {
        IValue value = number();
        return checked(value, value.isInt() || value.isBool(), "an integer");
      }
      case TypeKind::FloatType: {
        IValue value = number();
        if (value.isInt()) value = static_cast<double>(value.toInt());
        return checked(value, value.isDouble(), "a number");
      }
      case TypeKind::NumberType:
      case TypeKind::ComplexType: return number();
      default: cursor_.expected("None, as a value of type " + type.str() + " has no text");
    }
  }

  // "# model.py:12 forward"
  void source_line(Op& op) {
    if (!cursor_.take("#")) return;
    std::string_view text = cursor_.line_rest();
    while (text.ends_with('\r')) text.remove_suffix(1);
    size_t space = text.rfind(' ');
    if (space == std::string_view::npos) return;
    std::string_view place = text.substr(0, space);
    size_t colon = place.rfind(':');
    if (colon == std::string_view::npos) return;
    int number = 0;
    auto [end, error] = std::from_chars(place.data() + colon + 1, place.data() + place.size(), number);
    if (error != std::errc() || end != place.data() + place.size()) return;
    auto file = unescaped(place.substr(0, colon)), function = unescaped(text.substr(space + 1));
    if (!file || !function) return;
    Line line{*file, number, *function};
    if (graph_.lines.empty() || graph_.lines.back() != line) graph_.lines.push_back(std::move(line));
    op.line = static_cast<uint32_t>(graph_.lines.size() - 1);
  }

  Cursor cursor_;
  const std::vector<at::Tensor>& contents_;
  size_t contents_taken_ = 0;
  Graph graph_;
  std::vector<bool> made_;                            // by value
  std::vector<std::pair<size_t, ValueId>> memories_;  // place in the text, value
  unsigned mode_ = 0;
  bool returned_ = false;
};

}  // namespace

Graph parse(std::string_view text, const std::vector<at::Tensor>& contents) { return Parser(text, contents).run(); }

}  // namespace magneto::graph
