// The table of expressions and their simplified form: polynomials over atoms, and comparisons of them with a number.
#include "graph/symbols.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "graph/checked_math.h"
#include "runtime/errors.h"

namespace magneto::graph {
namespace {

// Products of sums with more terms than this are not multiplied out.
constexpr size_t kMaxTerms = 256;
constexpr int64_t kMaxUnrolledPower = 8;

Number make_real(double value) {
  Number number;
  number.real = value;
  return number;
}

int sign(int64_t a, int64_t b) { return a < b ? -1 : a > b; }

}  // namespace

Symbols::Symbols() = default;

// ---- the table

std::span<const int64_t> Symbols::args(ExprId expr) const {
  const Node& node = nodes_[expr];
  return {args_.data() + node.first, node.count};
}

ExprId Symbols::intern(Kind kind, std::span<const int64_t> args, Number value) {
  size_t hash = static_cast<size_t>(kind) * 0x9e3779b97f4a7c15 ^ static_cast<size_t>(value.integer);
  for (int64_t arg : args) hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9 + static_cast<size_t>(arg);
  auto [at, end] = interned_.equal_range(hash);
  for (; at != end; ++at) {
    const Node& node = nodes_[at->second];
    // By bits: 0.0 and -0.0 are different numbers, and a NaN is itself.
    if (node.kind == kind && node.value.integer == value.integer && std::ranges::equal(this->args(at->second), args)) {
      return at->second;
    }
  }
  Node node{kind, static_cast<uint32_t>(args_.size()), static_cast<uint32_t>(args.size()), value};
  args_.insert(args_.end(), args.begin(), args.end());
  Number hint{};
  if (kind == Kind::Symbol) {
    hint.integer = symbols_[static_cast<size_t>(value.integer)].hint;
  } else if (const char* problem = compute(node, hints_, hint)) {
    args_.resize(node.first);
    throw UserError(std::string("an expression of the sizes of this call ") + problem);
  }
  ExprId expr = static_cast<ExprId>(nodes_.size());
  nodes_.push_back(node);
  hints_.push_back(hint);
  cached_.emplace_back();
  interned_.emplace(hash, expr);
  return expr;
}

ExprId Symbols::intern(Kind kind, std::initializer_list<ExprId> args, int64_t value) {
  int64_t wide[4];
  std::ranges::copy(args, wide);
  return intern(kind, {wide, args.size()}, Number{value});
}

Symbols::Type Symbols::type(ExprId expr) const {
  Kind kind = nodes_[expr].kind;
  if (kind == Kind::Bool || (kind >= Kind::Eq && kind <= Kind::And) || kind >= Kind::FloatEq) return Type::Bool;
  return kind == Kind::Float || kind >= Kind::ToFloat ? Type::Float : Type::Int;
}

Number Symbols::hint(ExprId expr) const { return hints_[expr]; }

bool Symbols::is_constant(ExprId expr) const {
  return is(expr, Kind::Int) || is(expr, Kind::Bool) || is(expr, Kind::Float);
}

void Symbols::require(ExprId expr, Type wanted, const char* what) const {
  static constexpr const char* kNames[] = {"an integer", "a condition", "a float"};
  if (type(expr) == wanted) return;
  throw UserError(std::string(what) + " takes " + kNames[static_cast<int>(wanted)] + ", but " + text(expr) + " is " +
                  kNames[static_cast<int>(type(expr))]);
}

ExprId Symbols::add_symbol(int64_t hint, SymbolSource source, std::string name, Range range) {
  if (source.dimension >= 0) {
    if (hint == 0 || hint == 1) return integer(hint);
    range.min = std::max<int64_t>(range.min, 2);
  }
  if (name.empty()) {
    for (size_t i = symbols_.size(); name.empty() || find(name); ++i) name = "s" + std::to_string(i);
  }
  return declare({std::move(name), hint, range, std::move(source), 0});
}

ExprId Symbols::declare(Symbol symbol) {
  if (find(symbol.name)) throw UserError("there are two symbols named " + symbol.name);
  if (!symbol.range.has(symbol.hint)) {
    throw UserError("the value of symbol " + symbol.name + " must be in its range, but " + std::to_string(symbol.hint) +
                    " is not in [" + std::to_string(symbol.range.min) + ", " + std::to_string(symbol.range.max) + "]");
  }
  symbols_.push_back(std::move(symbol));
  ExprId expr = intern(Kind::Symbol, {}, static_cast<int64_t>(symbols_.size() - 1));
  return symbols_.back().expr = expr;
}

std::optional<ExprId> Symbols::find(std::string_view name) const {
  for (const Symbol& symbol : symbols_) {
    if (symbol.name == name) return symbol.expr;
  }
  return std::nullopt;
}

ExprId Symbols::integer(int64_t value) { return intern(Kind::Int, {}, value); }
ExprId Symbols::boolean(bool value) { return intern(Kind::Bool, {}, value); }
ExprId Symbols::real(double value) { return intern(Kind::Float, std::span<const int64_t>(), make_real(value)); }

// By structure, not by handle, so that the same expressions read the same in every table.
int Symbols::order(ExprId a, ExprId b) const {
  if (a == b) return 0;
  const Node &x = nodes_[a], &y = nodes_[b];
  if (x.kind != y.kind) return x.kind < y.kind ? -1 : 1;
  if (x.count != y.count) return sign(x.count, y.count);
  auto left = args(a), right = args(b);
  size_t step = x.kind == Kind::Sum ? 2 : 1;
  for (size_t i = 0; i < left.size(); i += step) {
    if (int found = order(static_cast<ExprId>(left[i]), static_cast<ExprId>(right[i]))) return found;
    if (step == 2 && left[i + 1] != right[i + 1]) return sign(left[i + 1], right[i + 1]);
  }
  return sign(x.value.integer, y.value.integer);
}

// ---- polynomials

Symbols::Poly Symbols::poly(ExprId expr) const {
  if (is(expr, Kind::Int)) return {{}, value(expr)};
  if (!is(expr, Kind::Sum)) return {{{expr, 1}}, 0};
  Poly result{{}, value(expr)};
  auto pairs = args(expr);
  for (size_t i = 0; i < pairs.size(); i += 2) result.terms.push_back({static_cast<ExprId>(pairs[i]), pairs[i + 1]});
  return result;
}

ExprId Symbols::from(Poly poly) {
  while (absorb_divisions(poly)) {
  }
  if (poly.terms.empty()) return integer(poly.constant);
  if (poly.terms.size() == 1 && poly.constant == 0 && poly.terms[0].coefficient == 1) return poly.terms[0].monomial;
  std::vector<int64_t> pairs;
  for (const Term& term : poly.terms) pairs.insert(pairs.end(), {int64_t{term.monomial}, term.coefficient});
  return intern(Kind::Sum, pairs, {poly.constant});
}

// The factors of a monomial; `single` is room for one. None for the number 1.
std::span<const int64_t> Symbols::atoms(ExprId monomial, int64_t& single) const {
  if (is(monomial, Kind::Product)) return args(monomial);
  if (is(monomial, Kind::Int)) return {};
  single = monomial;
  return {&single, 1};
}

// Higher degree first, then by the atoms: an order that multiplication keeps, as division needs it.
int Symbols::order_monomials(ExprId a, ExprId b) const {
  if (a == b) return 0;
  int64_t room[2];
  auto left = atoms(a, room[0]), right = atoms(b, room[1]);
  if (left.size() != right.size()) return left.size() > right.size() ? -1 : 1;
  for (size_t i = 0; i < left.size(); ++i) {
    if (int found = order(static_cast<ExprId>(left[i]), static_cast<ExprId>(right[i]))) return found;
  }
  return 0;
}

bool Symbols::is_negative(const Poly& poly) {
  return (poly.terms.empty() ? poly.constant : poly.terms[0].coefficient) < 0;
}

// a + b * factor
Symbols::Poly Symbols::add(const Poly& a, const Poly& b, int64_t factor) const {
  Poly result{{}, checked_add(a.constant, checked_mul(b.constant, factor))};
  auto left = a.terms.begin();
  auto right = b.terms.begin();
  while (left != a.terms.end() || right != b.terms.end()) {
    int found = left == a.terms.end()    ? 1
                : right == b.terms.end() ? -1
                                         : order_monomials(left->monomial, right->monomial);
    Term term = found <= 0 ? *left : Term{right->monomial, 0};
    if (found >= 0) term.coefficient = checked_add(term.coefficient, checked_mul(right->coefficient, factor));
    if (term.coefficient != 0) result.terms.push_back(term);
    left += found <= 0;
    right += found >= 0;
  }
  return result;
}

ExprId Symbols::mul_monomials(ExprId a, ExprId b) {
  int64_t room[2];
  auto left = atoms(a, room[0]), right = atoms(b, room[1]);
  std::vector<int64_t> all(left.size() + right.size());
  std::ranges::merge(left, right, all.begin(),
                     [&](int64_t x, int64_t y) { return order(static_cast<ExprId>(x), static_cast<ExprId>(y)) < 0; });
  if (all.empty()) return integer(1);
  return all.size() == 1 ? static_cast<ExprId>(all[0]) : settle(intern(Kind::Product, all));
}

Symbols::Poly Symbols::mul(const Poly& a, const Poly& b) {
  if (a.terms.size() > 1 && b.terms.size() > 1 && a.terms.size() * b.terms.size() > kMaxTerms) {
    ExprId whole[] = {from(a), from(b)};
    if (order(whole[0], whole[1]) > 0) std::swap(whole[0], whole[1]);
    return {{{intern(Kind::Product, {whole[0], whole[1]}), 1}}, 0};
  }
  Poly result;
  auto add_all = [&](const Term* term, int64_t factor) {
    Poly row;
    for (const Term& other : b.terms) {
      ExprId monomial = term ? mul_monomials(term->monomial, other.monomial) : other.monomial;
      if (is(monomial, Kind::Int)) {
        row.constant = checked_add(row.constant, checked_mul(value(monomial), other.coefficient));
      } else {
        row.terms.push_back({monomial, other.coefficient});
      }
    }
    if (term && b.constant) row = add(row, {{{term->monomial, b.constant}}, 0}, 1);
    if (!term) row.constant = b.constant;
    result = add(result, row, factor);
  };
  for (const Term& term : a.terms) add_all(&term, term.coefficient);
  if (a.constant) add_all(nullptr, a.constant);
  return result;
}

std::optional<ExprId> Symbols::divide_monomials(ExprId a, ExprId b) {
  if (a == b) return integer(1);
  int64_t room[2];
  auto left = atoms(a, room[0]), right = atoms(b, room[1]);
  std::vector<int64_t> rest;
  size_t found = 0;
  for (int64_t atom : left) {
    if (found < right.size() && right[found] == atom) {
      ++found;
    } else {
      rest.push_back(atom);
    }
  }
  if (found < right.size()) return std::nullopt;
  if (rest.empty()) return integer(1);
  return rest.size() == 1 ? static_cast<ExprId>(rest[0]) : intern(Kind::Product, rest);
}

// The quotient where b divides a without a remainder.
std::optional<Symbols::Poly> Symbols::divide(Poly a, const Poly& b) {
  ExprId one = integer(1);
  auto leading = [&](const Poly& p) { return p.terms.empty() ? Term{one, p.constant} : p.terms[0]; };
  Term divisor = leading(b);
  Poly quotient;
  for (size_t i = 0; i < kMaxTerms; ++i) {
    Term top = leading(a);
    if (top.coefficient == 0) return quotient;
    if (top.coefficient % divisor.coefficient != 0) return std::nullopt;
    auto monomial = divide_monomials(top.monomial, divisor.monomial);
    if (!monomial) return std::nullopt;
    int64_t coefficient = top.coefficient / divisor.coefficient;
    Poly part = *monomial == one ? Poly{{}, coefficient} : Poly{{{*monomial, coefficient}}, 0};
    quotient = add(quotient, part, 1);
    a = add(a, mul(part, b), -1);
  }
  return std::nullopt;
}

// Divides a, and b if given, by what is in all their terms: a number, and atoms that are not zero (or are positive).
void Symbols::divide_by_common_factor(Poly& a, Poly* b, bool positive, Poly* factor) {
  std::vector<Term> terms = a.terms;
  if (b) terms.insert(terms.end(), b->terms.begin(), b->terms.end());
  int64_t common = std::gcd(a.constant, b ? b->constant : 0);
  for (const Term& term : terms) common = std::gcd(common, term.coefficient);
  ExprId monomial = integer(1);
  bool has_constant = a.constant != 0 || (b && b->constant != 0);
  if (!has_constant && !terms.empty()) {
    int64_t room;
    auto first = atoms(terms[0].monomial, room);
    for (int64_t atom : std::vector<int64_t>(first.begin(), first.end())) {
      Range range = this->range(static_cast<ExprId>(atom));
      if (positive ? range.min < 1 : range.has(0)) continue;
      ExprId more = mul_monomials(monomial, static_cast<ExprId>(atom));
      auto divides = [&](const Term& term) { return divide_monomials(term.monomial, more).has_value(); };
      if (std::ranges::all_of(terms, divides)) monomial = more;
    }
  }
  if (factor) *factor = is(monomial, Kind::Int) ? Poly{{}, common} : Poly{{{monomial, common}}, 0};
  for (Poly* part : {&a, b}) {
    if (!part) continue;
    Poly result{{}, part->constant / common};
    for (const Term& term : part->terms) {
      ExprId rest = *divide_monomials(term.monomial, monomial);
      if (is(rest, Kind::Int)) {
        result.constant = checked_add(result.constant, term.coefficient / common);
      } else {
        result.terms.push_back({rest, term.coefficient / common});
      }
    }
    *part = std::move(result);
  }
}

// Where a % b == 0 is assumed, (a // b) * b is a. True if it found one.
bool Symbols::absorb_divisions(Poly& poly) {
  if (bounds_.empty()) return false;
  for (size_t i = 0; i < poly.terms.size(); ++i) {
    Term term = poly.terms[i];
    int64_t room;
    auto factors = atoms(term.monomial, room);
    for (int64_t atom : std::vector<int64_t>(factors.begin(), factors.end())) {
      ExprId quotient = static_cast<ExprId>(atom);
      if (!is(quotient, Kind::FloorDiv)) continue;
      ExprId dividend = arg(quotient, 0), divisor = arg(quotient, 1);
      if (!known_multiple(dividend, divisor)) continue;
      ExprId rest = *divide_monomials(term.monomial, quotient);
      Poly others = is(rest, Kind::Int) ? Poly{{}, term.coefficient} : Poly{{{rest, term.coefficient}}, 0};
      auto smaller = divide(others, this->poly(divisor));
      if (!smaller) continue;
      poly.terms.erase(poly.terms.begin() + static_cast<ptrdiff_t>(i));
      poly = add(poly, mul(*smaller, this->poly(dividend)), 1);
      return true;
    }
  }
  return false;
}

// Whether a % b == 0 is assumed, for b itself or a multiple of it, and a or a factor of it.
bool Symbols::known_multiple(ExprId a, ExprId b) const {
  int64_t room;
  auto factors = atoms(a, room);
  for (const Bound& bound : bounds_) {
    if (!is(bound.expr, Kind::Mod) || bound.range != Range{0, 0}) continue;
    ExprId multiple = arg(bound.expr, 0);
    if (multiple != a && std::ranges::find(factors, static_cast<int64_t>(multiple)) == factors.end()) continue;
    ExprId divisor = arg(bound.expr, 1);
    if (divisor == b) return true;
    if (is(b, Kind::Int) && is(divisor, Kind::Int) && value(divisor) % value(b) == 0) return true;
  }
  return false;
}

// The number itself where only one is possible.
ExprId Symbols::settle(ExprId expr) {
  Range range = this->range(expr);
  return range.min == range.max ? integer(range.min) : expr;
}

// ---- arithmetic

ExprId Symbols::add(ExprId a, ExprId b) {
  if (type(a) == Type::Float || type(b) == Type::Float) return floats(Kind::FloatAdd, a, b);
  require(a, Type::Int, "+");
  require(b, Type::Int, "+");
  return from(add(poly(simplify(a)), poly(simplify(b)), 1));
}

ExprId Symbols::sub(ExprId a, ExprId b) {
  if (type(a) == Type::Float || type(b) == Type::Float) return floats(Kind::FloatAdd, a, neg(to_float(b)));
  require(a, Type::Int, "-");
  require(b, Type::Int, "-");
  return from(add(poly(simplify(a)), poly(simplify(b)), -1));
}

ExprId Symbols::mul(ExprId a, ExprId b) {
  if (type(a) == Type::Float || type(b) == Type::Float) return floats(Kind::FloatMul, a, b);
  require(a, Type::Int, "*");
  require(b, Type::Int, "*");
  return from(mul(poly(simplify(a)), poly(simplify(b))));
}

ExprId Symbols::neg(ExprId a) {
  if (type(a) == Type::Float) return is(a, Kind::Float) ? real(-hints_[a].real) : intern(Kind::FloatNeg, {a});
  require(a, Type::Int, "-");
  return from(add({}, poly(simplify(a)), -1));
}

void Symbols::require_nonzero(ExprId divisor) {
  if (hints_[divisor].integer == 0) throw UserError("division by zero: " + text(divisor) + " is 0 in this call");
  if (range(divisor).has(0)) decide(ne(divisor, integer(0)));
}

ExprId Symbols::floordiv(ExprId a, ExprId b) {
  require(a, Type::Int, "//");
  require(b, Type::Int, "//");
  require_nonzero(b);
  a = simplify(a);
  b = simplify(b);
  Poly top = poly(a), bottom = poly(b), whole;
  if (is_negative(bottom)) return floordiv(neg(a), neg(b));
  if (auto exact = divide(top, bottom)) return from(std::move(*exact));
  if (bottom.terms.size() + (bottom.constant != 0) == 1) {
    Poly rest;
    for (const Term& term : top.terms) {
      auto quotient = divide({{term}, 0}, bottom);
      Poly& part = quotient ? whole : rest;
      part = add(part, quotient ? *quotient : Poly{{term}, 0}, 1);
    }
    bool by_number = bottom.terms.empty();
    whole.constant = checked_add(whole.constant, by_number ? floor_divide(top.constant, bottom.constant) : 0);
    rest.constant = by_number ? floor_modulo(top.constant, bottom.constant) : top.constant;
    top = std::move(rest);
  }
  divide_by_common_factor(top, &bottom, false, nullptr);
  ExprId rest = from(std::move(top)), divisor = from(std::move(bottom));
  return from(add(whole, poly(divisor == b ? divide_rest(rest, divisor) : floordiv(rest, divisor)), 1));
}

// a // b, of which no part comes out even.
ExprId Symbols::divide_rest(ExprId a, ExprId b) {
  Poly inner = poly(a);
  bool nests = is(b, Kind::Int) && inner.terms.size() == 1 && inner.terms[0].coefficient == 1 &&
               is(inner.terms[0].monomial, Kind::FloorDiv) && is(arg(inner.terms[0].monomial, 1), Kind::Int);
  if (!nests) return settle(intern(Kind::FloorDiv, {a, b}));
  // (x // c + k) // b == (x + k*c) // (b*c) for numbers b, c > 0
  ExprId quotient = inner.terms[0].monomial;
  ExprId dividend = add(arg(quotient, 0), mul(integer(inner.constant), arg(quotient, 1)));
  return floordiv(dividend, mul(b, arg(quotient, 1)));
}

ExprId Symbols::mod(ExprId a, ExprId b) {
  require(a, Type::Int, "%");
  require(b, Type::Int, "%");
  require_nonzero(b);
  a = simplify(a);
  b = simplify(b);
  Poly top = poly(a), bottom = poly(b);
  if (is_negative(bottom)) return neg(mod(neg(a), neg(b)));
  if (known_multiple(a, b) || divide(top, bottom)) return integer(0);
  Poly rest{{}, top.constant};
  for (Term term : top.terms) {
    if (known_multiple(term.monomial, b) || divide({{term}, 0}, bottom)) continue;
    if (bottom.terms.empty()) term.coefficient = floor_modulo(term.coefficient, bottom.constant);
    rest.terms.push_back(term);
  }
  if (bottom.terms.empty()) rest.constant = floor_modulo(rest.constant, bottom.constant);
  Poly factor{{}, 1};
  if (rest.terms.empty() && rest.constant == 0) return integer(0);
  divide_by_common_factor(rest, &bottom, false, &factor);
  ExprId dividend = from(std::move(rest)), divisor = from(std::move(bottom));
  if (divisor != b) return from(mul(factor, poly(mod(dividend, divisor))));
  bool below = range(dividend).min >= 0 && known(lt(dividend, divisor)).value_or(false);
  ExprId remainder = below ? dividend : settle(intern(Kind::Mod, {dividend, divisor}));
  return from(mul(factor, poly(remainder)));
}

ExprId Symbols::min(ExprId a, ExprId b) { return extremum(Kind::Min, a, b); }
ExprId Symbols::max(ExprId a, ExprId b) { return extremum(Kind::Max, a, b); }

ExprId Symbols::extremum(Kind kind, ExprId a, ExprId b) {
  if (type(a) == Type::Float || type(b) == Type::Float) {
    return floats(kind == Kind::Min ? Kind::FloatMin : Kind::FloatMax, a, b);
  }
  std::vector<int64_t> kept;
  auto wins = [&](ExprId x, ExprId y) { return known(kind == Kind::Min ? le(x, y) : le(y, x)).value_or(false); };
  auto consider = [&](ExprId item) {
    for (int64_t other : kept) {
      if (wins(static_cast<ExprId>(other), item)) return;
    }
    std::erase_if(kept, [&](int64_t other) { return wins(item, static_cast<ExprId>(other)); });
    kept.push_back(item);
  };
  for (ExprId side : {a, b}) {
    require(side, Type::Int, kind == Kind::Min ? "min" : "max");
    side = simplify(side);
    if (!is(side, kind)) {
      consider(side);
      continue;
    }
    auto items = args(side);
    for (int64_t item : std::vector<int64_t>(items.begin(), items.end())) consider(static_cast<ExprId>(item));
  }
  if (kept.size() == 1) return static_cast<ExprId>(kept[0]);
  std::ranges::sort(kept,
                    [&](int64_t x, int64_t y) { return order(static_cast<ExprId>(x), static_cast<ExprId>(y)) < 0; });
  return settle(intern(kind, kept));
}

ExprId Symbols::pow(ExprId a, ExprId b) {
  if (type(a) == Type::Float || type(b) == Type::Float) return floats(Kind::FloatPow, a, b);
  require(a, Type::Int, "**");
  require(b, Type::Int, "**");
  a = simplify(a);
  b = simplify(b);
  if (range(b).min < 0 && !decide(ge(b, integer(0)))) {
    throw UserError("an integer to the power of " + text(b) + " is not an integer; make it a float first");
  }
  b = simplify(b);
  if (!is(b, Kind::Int) || value(b) > kMaxUnrolledPower) {
    ExprId power = intern(Kind::Pow, {a, b});
    return is(a, Kind::Int) && is(b, Kind::Int) ? integer(hints_[power].integer) : power;
  }
  Poly result{{}, 1};
  for (int64_t i = 0; i < value(b); ++i) result = mul(result, poly(a));
  return from(std::move(result));
}

// ---- floats

ExprId Symbols::floats(Kind kind, ExprId a, ExprId b) {
  a = to_float(a);
  b = to_float(b);
  ExprId expr = intern(kind, {a, b});
  if (!is(a, Kind::Float) || !is(b, Kind::Float)) return expr;
  return type(expr) == Type::Bool ? boolean(hints_[expr].integer != 0) : real(hints_[expr].real);
}

ExprId Symbols::to_float(ExprId a) {
  if (type(a) == Type::Float) return a;
  require(a, Type::Int, "float()");
  a = simplify(a);
  return is(a, Kind::Int) ? real(static_cast<double>(value(a))) : intern(Kind::ToFloat, {a});
}

ExprId Symbols::from_bits(ExprId a) {
  require(a, Type::Int, "bits()");
  a = simplify(a);
  if (is(a, Kind::Symbol)) symbols_[static_cast<size_t>(value(a))].is_float = true;
  ExprId expr = intern(Kind::FromBits, {a});
  return is(a, Kind::Int) ? real(hints_[expr].real) : expr;
}

ExprId Symbols::truediv(ExprId a, ExprId b) {
  if (type(b) == Type::Int) require_nonzero(b);
  return floats(Kind::FloatDiv, a, b);
}

ExprId Symbols::floor(ExprId a) {
  if (type(a) == Type::Int) return a;
  require(a, Type::Float, "floor()");
  if (is(a, Kind::ToFloat)) return arg(a, 0);
  ExprId expr = intern(Kind::Floor, {a});
  return is(a, Kind::Float) ? integer(hints_[expr].integer) : expr;
}

ExprId Symbols::ceil(ExprId a) {
  if (type(a) == Type::Int) return a;
  require(a, Type::Float, "ceil()");
  if (is(a, Kind::ToFloat)) return arg(a, 0);
  ExprId expr = intern(Kind::Ceil, {a});
  return is(a, Kind::Float) ? integer(hints_[expr].integer) : expr;
}

// ---- conditions

// The answer where the condition itself is assumed.
ExprId Symbols::settle_condition(ExprId condition) {
  for (const Condition& known : conditions_) {
    if (known.expr == condition) return boolean(known.truth);
  }
  return condition;
}

ExprId Symbols::compare_floats(Kind kind, ExprId a, ExprId b) {
  a = to_float(a);
  b = to_float(b);
  // Exact, because floats below 2**53 hold every integer.
  auto comparable = [&](ExprId x, ExprId number) {
    return is(x, Kind::ToFloat) && is(number, Kind::Float) && std::abs(hints_[number].real) < 0x1p53;
  };
  bool number_right = comparable(a, b);
  if (!number_right && !comparable(b, a)) return settle_condition(floats(kind, a, b));
  ExprId x = arg(number_right ? a : b, 0);
  double number = hints_[number_right ? b : a].real;
  ExprId below = integer(static_cast<int64_t>(std::floor(number)));
  ExprId above = integer(static_cast<int64_t>(std::ceil(number)));
  if (kind == Kind::FloatEq) return below == above ? eq(x, below) : boolean(false);
  if (kind == Kind::FloatLt) return number_right ? lt(x, above) : lt(below, x);
  return number_right ? le(x, below) : le(above, x);
}

ExprId Symbols::eq(ExprId a, ExprId b) {
  if (type(a) == Type::Bool && type(b) == Type::Bool) {
    return logical_or(logical_and(a, b), logical_and(logical_not(a), logical_not(b)));
  }
  if (type(a) == Type::Float || type(b) == Type::Float) return compare_floats(Kind::FloatEq, a, b);
  require(a, Type::Int, "==");
  require(b, Type::Int, "==");
  Poly difference = poly(sub(a, b));
  if (difference.terms.empty()) return boolean(difference.constant == 0);
  if (difference.constant == 0) divide_by_common_factor(difference, nullptr, false, nullptr);
  if (difference.terms.empty()) return boolean(difference.constant == 0);
  int64_t number = checked_mul(std::exchange(difference.constant, 0), -1);
  int64_t common = 0;
  for (const Term& term : difference.terms) common = std::gcd(common, term.coefficient);
  if (number % common != 0) return boolean(false);
  if (difference.terms[0].coefficient < 0) common = -common;
  for (Term& term : difference.terms) term.coefficient /= common;
  number /= common;
  ExprId sum = from(std::move(difference));
  Range range = this->range(sum);
  if (!range.has(number)) return boolean(false);
  if (range.min == range.max) return boolean(true);
  return settle_condition(intern(Kind::Eq, {sum}, number));
}

ExprId Symbols::lt(ExprId a, ExprId b) {
  if (type(a) == Type::Float || type(b) == Type::Float) return compare_floats(Kind::FloatLt, a, b);
  return logical_not(le(b, a));
}

ExprId Symbols::le(ExprId a, ExprId b) {
  if (type(a) == Type::Float || type(b) == Type::Float) return compare_floats(Kind::FloatLe, a, b);
  require(a, Type::Int, "<=");
  require(b, Type::Int, "<=");
  // Far apart they may have no difference: slices end at the largest number.
  Range left = range(a), right = range(b);
  if (left.max <= right.min) return boolean(true);
  if (left.min > right.max) return boolean(false);
  Poly difference = poly(sub(a, b));
  if (difference.terms.empty()) return boolean(difference.constant <= 0);
  int64_t number;
  auto divide_by_number = [&] {
    int64_t common = 0;
    for (const Term& term : difference.terms) common = std::gcd(common, term.coefficient);
    for (Term& term : difference.terms) term.coefficient /= common;
    number = floor_divide(checked_mul(std::exchange(difference.constant, 0), -1), common);
  };
  divide_by_number();
  if (number == 0 || number == -1) {  // sum <= 0, or sum < 0: positive factors do not count
    divide_by_common_factor(difference, nullptr, true, nullptr);
    if (difference.terms.empty()) return boolean(difference.constant <= number);
    difference.constant = checked_add(difference.constant, -number);
    divide_by_number();
  }
  // Where the first coefficient is negative, sum <= number is -sum >= -number, so not (-sum <= -number - 1).
  bool negative = difference.terms[0].coefficient < 0;
  if (negative) {
    difference = add({}, difference, -1);
    number = checked_add(checked_mul(number, -1), -1);
  }
  ExprId sum = from(std::move(difference));
  Range range = this->range(sum);
  if (range.max <= number) return boolean(!negative);
  if (range.min > number) return boolean(negative);
  ExprId condition = settle_condition(intern(Kind::Le, {sum}, number));
  return negative ? logical_not(condition) : condition;
}

ExprId Symbols::logical_not(ExprId a) {
  require(a, Type::Bool, "not");
  if (is(a, Kind::Bool)) return boolean(!value(a));
  return is(a, Kind::Not) ? arg(a, 0) : intern(Kind::Not, {a});
}

ExprId Symbols::logical_and(ExprId a, ExprId b) {
  std::vector<int64_t> all;
  for (ExprId side : {a, b}) {
    require(side, Type::Bool, "and");
    side = simplify(side);
    if (is(side, Kind::Bool)) {
      if (!value(side)) return side;
      continue;
    }
    auto parts = args(side);
    if (is(side, Kind::And)) {
      all.insert(all.end(), parts.begin(), parts.end());
    } else {
      all.push_back(side);
    }
  }
  std::ranges::sort(all,
                    [&](int64_t x, int64_t y) { return order(static_cast<ExprId>(x), static_cast<ExprId>(y)) < 0; });
  all.erase(std::ranges::unique(all).begin(), all.end());
  for (int64_t part : all) {
    ExprId opposite = logical_not(static_cast<ExprId>(part));
    if (std::ranges::find(all, static_cast<int64_t>(opposite)) != all.end()) return boolean(false);
  }
  if (all.empty()) return boolean(true);
  return all.size() == 1 ? static_cast<ExprId>(all[0]) : intern(Kind::And, all);
}

ExprId Symbols::logical_or(ExprId a, ExprId b) { return logical_not(logical_and(logical_not(a), logical_not(b))); }

}  // namespace magneto::graph
