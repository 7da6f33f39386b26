// Expressions of sizes as text, in the symbols' names or in the user's, and back.
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "graph/symbols.h"
#include "runtime/errors.h"

namespace magneto::graph {
namespace {

// How tightly an operator binds; text of a looser one gets parentheses.
enum Level { kOr, kAnd, kNot, kCompare, kSum, kProduct, kUnary, kPower, kAtom };

struct Piece {
  std::string text;
  Level level;
};

std::string at_least(Level level, Piece piece) {
  return piece.level < level ? "(" + piece.text + ")" : std::move(piece.text);
}

Piece number(double value) {
  if (std::isnan(value)) return {"nan", kAtom};
  if (std::isinf(value)) return value < 0 ? Piece{"-inf", kUnary} : Piece{"inf", kAtom};
  char room[32];
  std::string text(room, std::to_chars(room, room + sizeof room, value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return {text, std::signbit(value) ? kUnary : kAtom};
}

Piece number(int64_t value) { return {std::to_string(value), value < 0 ? kUnary : kAtom}; }

}  // namespace

struct Symbols::Writer {
  const Symbols& symbols;
  bool in_words;

  Piece of(ExprId expr) const;
  Piece symbol(const Symbol& symbol) const;
  Piece sum(std::span<const Term> terms, int64_t constant) const;
  Piece product(ExprId monomial, int64_t coefficient) const;
  Piece call(const char* name, ExprId expr) const;
  Piece binary(ExprId expr, const char* sign, Level level) const;
  Piece condition(ExprId expr, bool truth) const;
  Piece comparison(Kind kind, ExprId sum, int64_t number, bool truth) const;
  Piece connected(ExprId expr, bool truth) const;
};

Piece Symbols::Writer::symbol(const Symbol& symbol) const {
  const SymbolSource& source = symbol.source;
  if (!in_words || source.dimension == SymbolSource::kUnknown) return {symbol.name, kAtom};
  std::string input = source.name.empty() ? "input" + std::to_string(source.input) : source.name;
  if (source.dimension == SymbolSource::kNumber) return {input, kAtom};
  return {input + ".size(" + std::to_string(source.dimension) + ")", kAtom};
}

Piece Symbols::Writer::product(ExprId monomial, int64_t coefficient) const {
  int64_t room;
  auto factors = symbols.atoms(monomial, room);
  if (coefficient == 1 && factors.size() == 1) return of(monomial);
  std::string text = coefficient == 1 ? "" : coefficient == -1 ? "-" : std::to_string(coefficient) + "*";
  for (size_t i = 0; i < factors.size(); ++i) {
    text += (i ? "*" : "") + at_least(kUnary, of(static_cast<ExprId>(factors[i])));
  }
  return {text, kProduct};
}

Piece Symbols::Writer::sum(std::span<const Term> terms, int64_t constant) const {
  if (terms.empty()) return number(constant);
  if (terms.size() == 1 && constant == 0) return product(terms[0].monomial, terms[0].coefficient);
  std::string text = at_least(kProduct, product(terms[0].monomial, terms[0].coefficient));
  for (const Term& term : terms.subspan(1)) {
    bool minus = term.coefficient < 0 && term.coefficient != INT64_MIN;
    int64_t coefficient = minus ? -term.coefficient : term.coefficient;
    text += (minus ? " - " : " + ") + at_least(kProduct, product(term.monomial, coefficient));
  }
  if (constant) text += constant < 0 ? " - " + std::to_string(constant).substr(1) : " + " + std::to_string(constant);
  return {text, kSum};
}

Piece Symbols::Writer::call(const char* name, ExprId expr) const {
  std::string text = std::string(name) + "(";
  for (size_t i = 0; i < symbols.args(expr).size(); ++i) text += (i ? ", " : "") + of(symbols.arg(expr, i)).text;
  return {text + ")", kAtom};
}

Piece Symbols::Writer::binary(ExprId expr, const char* sign, Level level) const {
  // They group to the left, except powers, where both sides get parentheses.
  Level left = level == kPower ? kAtom : level, right = static_cast<Level>(level + 1);
  return {at_least(left, of(symbols.arg(expr, 0))) + sign + at_least(right, of(symbols.arg(expr, 1))), level};
}

// sum == number or sum <= number, with what is subtracted on the other side: "s0 <= s1 + 2".
Piece Symbols::Writer::comparison(Kind kind, ExprId sum, int64_t number, bool truth) const {
  if (in_words && symbols.is(sum, Kind::Symbol)) {
    const Symbol& symbol = symbols.symbols_[static_cast<size_t>(symbols.value(sum))];
    if (symbol.is_float && kind == Kind::Eq)
      return {of(sum).text + (truth ? " == " : " != ") + value_text(symbol, number), kCompare};
  }
  std::vector<Term> left, right;
  for (Term term : symbols.poly(sum).terms) {
    bool other_side = term.coefficient < 0;
    if (other_side) term.coefficient = -term.coefficient;
    (other_side ? right : left).push_back(term);
  }
  const char* sign;
  if (kind == Kind::Eq) {
    sign = truth ? " == " : " != ";
  } else if (right.empty() && !truth) {
    sign = " >= ";
    ++number;
  } else if (!right.empty() && number == -1) {
    sign = truth ? " < " : " >= ";
    number = 0;
  } else {
    sign = truth ? " <= " : " > ";
  }
  return {this->sum(left, 0).text + sign + this->sum(right, number).text, kCompare};
}

// Parts joined by "and"; or, of its opposite, the opposites of its parts joined by "or".
Piece Symbols::Writer::connected(ExprId expr, bool truth) const {
  std::string text;
  Level level = truth ? kAnd : kOr;
  for (int64_t part : symbols.args(expr)) {
    if (!text.empty()) text += truth ? " and " : " or ";
    text += at_least(static_cast<Level>(level + 1), condition(static_cast<ExprId>(part), truth));
  }
  return {text, level};
}

Piece Symbols::Writer::condition(ExprId expr, bool truth) const {
  switch (symbols.nodes_[expr].kind) {
    case Kind::Bool: return {(symbols.value(expr) != 0) == truth ? "True" : "False", kAtom};
    case Kind::Not: return condition(symbols.arg(expr, 0), !truth);
    case Kind::And: return connected(expr, truth);
    case Kind::FloatEq: return binary(expr, truth ? " == " : " != ", kCompare);
    case Kind::FloatLt:
    case Kind::FloatLe: {
      Piece piece = binary(expr, symbols.is(expr, Kind::FloatLt) ? " < " : " <= ", kCompare);
      // Of a NaN, not (a < b) is not b <= a.
      return truth ? piece : Piece{"not " + piece.text, kNot};
    }
    default: return comparison(symbols.nodes_[expr].kind, symbols.arg(expr, 0), symbols.value(expr), truth);
  }
}

Piece Symbols::Writer::of(ExprId expr) const {
  const Node& node = symbols.nodes_[expr];
  switch (node.kind) {
    case Kind::Int: return number(node.value.integer);
    case Kind::Float: return number(node.value.real);
    case Kind::Symbol: return symbol(symbols.symbols_[static_cast<size_t>(node.value.integer)]);
    case Kind::Sum: {
      Poly poly = symbols.poly(expr);
      return sum(poly.terms, poly.constant);
    }
    case Kind::Product: return product(expr, 1);
    case Kind::FloorDiv: return binary(expr, " // ", kProduct);
    case Kind::Mod: return binary(expr, " % ", kProduct);
    case Kind::Min:
    case Kind::FloatMin: return call("min", expr);
    case Kind::Max:
    case Kind::FloatMax: return call("max", expr);
    case Kind::Floor: return call("floor", expr);
    case Kind::Ceil: return call("ceil", expr);
    case Kind::ToFloat: return call("float", expr);
    case Kind::FromBits: return in_words ? of(symbols.arg(expr, 0)) : call("bits", expr);
    case Kind::FloatAdd: return binary(expr, " + ", kSum);
    case Kind::FloatMul: return binary(expr, "*", kProduct);
    case Kind::FloatDiv: return binary(expr, " / ", kProduct);
    case Kind::FloatNeg: return {"-" + at_least(kUnary, of(symbols.arg(expr, 0))), kUnary};
    case Kind::Pow:
    case Kind::FloatPow: return binary(expr, "**", kPower);
    default: return condition(expr, true);
  }
}

std::string Symbols::value_text(const Symbol& symbol, int64_t value) {
  return symbol.is_float ? number(float_of(value)).text : std::to_string(value);
}

std::string Symbols::text(ExprId expr) const { return Writer{*this, false}.of(expr).text; }
std::string Symbols::words(ExprId expr) const { return Writer{*this, true}.of(expr).text; }

std::string Symbols::write(const Fact& fact, bool in_words) const {
  Writer writer{*this, in_words};
  bool compares = fact.kind == Kind::Eq || fact.kind == Kind::Le;
  return (compares ? writer.comparison(fact.kind, fact.expr, fact.number, fact.truth)
                   : writer.condition(fact.expr, fact.truth))
      .text;
}

// ---- reading

struct Symbols::Parser {
  Symbols& symbols;
  std::string_view text;
  size_t at = 0;
  int depth = 0;
  static constexpr int kMaxDepth = 200;

  [[noreturn]] void fail(const std::string& expected) const {
    throw UserError("\"" + std::string(text) + "\" is not an expression of sizes: expected " + expected +
                    " at character " + std::to_string(at + 1));
  }
  void skip_blanks() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool take(std::string_view token) {
    skip_blanks();
    if (!text.substr(at).starts_with(token)) return false;
    size_t end = at + token.size();
    auto in_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    if (in_name(token.back()) && end < text.size() && in_name(text[end])) return false;
    at = end;
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail("\"" + std::string(token) + "\"");
  }

  ExprId whole() {
    ExprId result = disjunction();
    skip_blanks();
    if (at < text.size()) fail("the end");
    return result;
  }
  ExprId disjunction() {
    ExprId result = conjunction();
    while (take("or")) result = symbols.logical_or(result, conjunction());
    return result;
  }
  ExprId conjunction() {
    ExprId result = negation();
    while (take("and")) result = symbols.logical_and(result, negation());
    return result;
  }
  ExprId negation() {
    bool opposite = false;
    while (take("not")) opposite = !opposite;
    ExprId result = comparison();
    return opposite ? symbols.logical_not(result) : result;
  }
  ExprId comparison() {
    ExprId result = sum();
    if (take("==")) return symbols.eq(result, sum());
    if (take("!=")) return symbols.ne(result, sum());
    if (take("<=")) return symbols.le(result, sum());
    if (take(">=")) return symbols.ge(result, sum());
    if (take("<")) return symbols.lt(result, sum());
    if (take(">")) return symbols.gt(result, sum());
    return result;
  }
  ExprId sum() {
    ExprId result = product();
    for (;;) {
      if (take("+")) {
        result = symbols.add(result, product());
      } else if (take("-")) {
        result = symbols.sub(result, product());
      } else {
        return result;
      }
    }
  }
  ExprId product() {
    ExprId result = unary();
    for (;;) {
      if (take("*")) {
        result = symbols.mul(result, unary());
      } else if (take("//")) {
        result = symbols.floordiv(result, unary());
      } else if (take("/")) {
        result = symbols.truediv(result, unary());
      } else if (take("%")) {
        result = symbols.mod(result, unary());
      } else {
        return result;
      }
    }
  }
  ExprId unary();
  ExprId power() {
    ExprId result = atom();
    return take("**") ? symbols.pow(result, unary()) : result;
  }
  ExprId atom();
  ExprId name();
  ExprId literal(bool negative);
  bool at_digit() {
    skip_blanks();
    return at < text.size() && (std::isdigit(static_cast<unsigned char>(text[at])) || text[at] == '.');
  }
};

// Whatever nests passes through here.
ExprId Symbols::Parser::unary() {
  struct Nested {
    int& depth;
    ~Nested() { --depth; }
  } nested{++depth};
  if (depth > kMaxDepth) fail("less nesting");
  if (!take("-")) return power();
  // As one number, because -9223372036854775808 has no opposite; but -2**2 is -(2**2).
  size_t before = at;
  if (at_digit()) {
    ExprId number = literal(true);
    skip_blanks();
    if (!text.substr(at).starts_with("**")) return number;
    at = before;
  }
  return symbols.neg(unary());
}

ExprId Symbols::Parser::literal(bool negative) {
  skip_blanks();
  size_t end = at;
  while (end < text.size()) {
    char c = text[end];
    bool sign = (c == '-' || c == '+') && end > at && (text[end - 1] == 'e' || text[end - 1] == 'E');
    if (!sign && !std::isdigit(static_cast<unsigned char>(c)) && c != '.' && c != 'e' && c != 'E') break;
    ++end;
  }
  std::string digits = (negative ? "-" : "") + std::string(text.substr(at, end - at));
  const char* last = digits.data() + digits.size();
  ExprId result;
  if (digits.find_first_of(".eE") == std::string::npos) {
    int64_t value = 0;
    auto [stop, error] = std::from_chars(digits.data(), last, value);
    if (error != std::errc() || stop != last) fail("a number that fits 64 bits");
    result = symbols.integer(value);
  } else {
    double value = 0;
    auto [stop, error] = std::from_chars(digits.data(), last, value);
    if (error != std::errc() || stop != last) fail("a number");
    result = symbols.real(value);
  }
  at = end;
  return result;
}

ExprId Symbols::Parser::atom() {
  if (at_digit()) return literal(false);
  if (take("(")) {
    ExprId result = disjunction();
    expect(")");
    return result;
  }
  if (take("True")) return symbols.boolean(true);
  if (take("False")) return symbols.boolean(false);
  if (take("inf")) return symbols.real(INFINITY);
  if (take("nan")) return symbols.real(NAN);
  return name();
}

ExprId Symbols::Parser::name() {
  skip_blanks();
  size_t end = at;
  while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
  std::string_view name = text.substr(at, end - at);
  if (name.empty()) fail("a number, a symbol or \"(\"");
  if (auto symbol = symbols.find(name)) {
    at = end;
    return *symbol;
  }
  bool extremum = name == "min" || name == "max";
  if (!extremum && name != "floor" && name != "ceil" && name != "float" && name != "bits")
    fail("a symbol of the graph");
  at = end;
  expect("(");
  ExprId result = disjunction();
  if (extremum) {
    expect(",");
    do {
      ExprId next = disjunction();
      result = name == "min" ? symbols.min(result, next) : symbols.max(result, next);
    } while (take(","));
  } else {
    result = name == "floor"  ? symbols.floor(result)
             : name == "ceil" ? symbols.ceil(result)
             : name == "bits" ? symbols.from_bits(result)
                              : symbols.to_float(result);
  }
  expect(")");
  return result;
}

ExprId Symbols::parse(std::string_view text) { return Parser{*this, text}.whole(); }

}  // namespace magneto::graph
