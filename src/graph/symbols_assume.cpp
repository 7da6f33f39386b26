// What is assumed of symbols: how it is found out, how it simplifies what comes later, and how each run checks it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/checked_math.h"
#include "graph/symbols.h"
#include "runtime/errors.h"

namespace magneto::graph {
namespace {

Range intersect(const Range& a, const Range& b) { return {std::max(a.min, b.min), std::min(a.max, b.max)}; }

// Infinite ends stay infinite, and what does not fit becomes infinite.
int64_t add_ends(int64_t a, int64_t b, int64_t infinity) {
  if (a == infinity || b == infinity) return infinity;
  return try_add(a, b).value_or(infinity);
}

int64_t mul_ends(int64_t a, int64_t b) {
  if (auto result = try_mul(a, b)) return *result;
  return (a < 0) == (b < 0) ? Range::kMax : Range::kMin;
}

Range operator+(const Range& a, const Range& b) {
  return {add_ends(a.min, b.min, Range::kMin), add_ends(a.max, b.max, Range::kMax)};
}

Range operator*(const Range& a, const Range& b) {
  auto [min, max] =
      std::minmax({mul_ends(a.min, b.min), mul_ends(a.min, b.max), mul_ends(a.max, b.min), mul_ends(a.max, b.max)});
  return {min, max};
}

int64_t divide_end(int64_t end, int64_t divisor) {
  return end == Range::kMin || end == Range::kMax ? end : floor_divide(end, divisor);
}

Range divide_ranges(const Range& a, const Range& b) {
  if (b.min < 1) return {};
  int64_t low = divide_end(a.min, a.min < 0 ? b.min : b.max), high = divide_end(a.max, a.max < 0 ? b.max : b.min);
  return {low, high};
}

Range modulo_ranges(const Range& a, const Range& b) {
  if (b.min < 1) return {};
  int64_t below = b.max == Range::kMax ? b.max : b.max - 1;
  if (b.min == b.max && a.min != Range::kMin && a.max != Range::kMax &&
      floor_divide(a.min, b.min) == floor_divide(a.max, b.min)) {
    return {floor_modulo(a.min, b.min), floor_modulo(a.max, b.min)};
  }
  return {0, a.min >= 0 ? std::min(a.max, below) : below};
}

}  // namespace

// ---- ranges

Range Symbols::range(ExprId expr) {
  Cached& cached = cached_[expr];
  if (cached.ranged_in == generation_) return cached.range;
  uint32_t generation = generation_;
  Range range = compute_range(expr);
  for (const Bound& bound : bounds_) {
    if (bound.expr == expr) range = intersect(range, bound.range);
  }
  cached_[expr].range = range;
  cached_[expr].ranged_in = generation;
  return range;
}

Range Symbols::compute_range(ExprId expr) {
  const Node node = nodes_[expr];
  auto of = [&](size_t index) { return range(arg(expr, index)); };
  switch (node.kind) {
    case Kind::Int: return {node.value.integer, node.value.integer};
    case Kind::Symbol: return symbols_[static_cast<size_t>(node.value.integer)].range;
    case Kind::Sum: {
      Range total{node.value.integer, node.value.integer};
      for (size_t i = 0; i < node.count; i += 2) {
        int64_t coefficient = args(expr)[i + 1];
        total = total + of(i) * Range{coefficient, coefficient};
      }
      return total;
    }
    case Kind::Product: {
      Range product{1, 1};
      bool square = node.count == 2 && arg(expr, 0) == arg(expr, 1);
      for (size_t i = 0; i < node.count; ++i) product = product * of(i);
      return square ? intersect(product, {0, Range::kMax}) : product;
    }
    case Kind::FloorDiv: return divide_ranges(of(0), of(1));
    case Kind::Mod: return modulo_ranges(of(0), of(1));
    case Kind::Min:
    case Kind::Max: {
      Range result = of(0);
      for (size_t i = 1; i < node.count; ++i) {
        Range next = of(i);
        if (node.kind == Kind::Min) result = {std::min(result.min, next.min), std::min(result.max, next.max)};
        if (node.kind == Kind::Max) result = {std::max(result.min, next.min), std::max(result.max, next.max)};
      }
      return result;
    }
    case Kind::Pow: return of(0).min >= 1 ? Range{1, Range::kMax} : Range{};
    default: return {};
  }
}

// ---- simplification by what is assumed

ExprId Symbols::simplify(ExprId expr) {
  if (generation_ == 0 || is_constant(expr)) return expr;
  if (cached_[expr].simplified_in == generation_) return cached_[expr].simplified;
  uint32_t generation = generation_;
  ExprId result = rebuild(expr);
  for (ExprId done : {expr, result}) {
    cached_[done].simplified = result;
    cached_[done].simplified_in = generation;
  }
  return result;
}

ExprId Symbols::rebuild(ExprId expr) {
  const Node node = nodes_[expr];
  auto part = [&](size_t index) { return simplify(arg(expr, index)); };
  auto fold = [&](ExprId (Symbols::*join)(ExprId, ExprId)) {
    ExprId result = part(0);
    for (size_t i = 1; i < node.count; ++i) result = (this->*join)(result, part(i));
    return result;
  };
  switch (node.kind) {
    case Kind::Symbol: {
      for (const Substitution& known : substitutions_) {
        if (known.symbol == expr) return simplify(known.value);
      }
      return settle(expr);
    }
    case Kind::Sum: {
      Poly sum{{}, node.value.integer};
      for (size_t i = 0; i < node.count; i += 2) sum = add(sum, poly(part(i)), args(expr)[i + 1]);
      return settle(from(std::move(sum)));
    }
    case Kind::Product: return fold(&Symbols::mul);
    case Kind::FloorDiv: return floordiv(part(0), part(1));
    case Kind::Mod: return mod(part(0), part(1));
    case Kind::Min: return fold(&Symbols::min);
    case Kind::Max: return fold(&Symbols::max);
    case Kind::Pow: return pow(part(0), part(1));
    case Kind::Floor: return floor(part(0));
    case Kind::Ceil: return ceil(part(0));
    case Kind::Eq: return eq(part(0), integer(node.value.integer));
    case Kind::Le: return le(part(0), integer(node.value.integer));
    case Kind::Not: return logical_not(part(0));
    case Kind::And: return fold(&Symbols::logical_and);
    case Kind::ToFloat: return to_float(part(0));
    case Kind::FromBits: return from_bits(part(0));
    case Kind::FloatNeg: return neg(part(0));
    case Kind::FloatEq:
    case Kind::FloatLt:
    case Kind::FloatLe: return compare_floats(node.kind, part(0), part(1));
    default: return floats(node.kind, part(0), part(1));
  }
}

// Marks whatever the marked expressions are made of.
void Symbols::mark_parts(std::vector<bool>& marked) const {
  for (ExprId expr = static_cast<ExprId>(marked.size()); expr-- > 0;) {
    if (!marked[expr]) continue;
    auto parts = args(expr);
    for (size_t i = 0; i < parts.size(); i += is(expr, Kind::Sum) ? 2 : 1) marked[static_cast<size_t>(parts[i])] = true;
  }
}

bool Symbols::contains(ExprId expr, ExprId part) const {
  if (expr < part) return false;
  std::vector<bool> marked(expr + 1);
  marked[expr] = true;
  mark_parts(marked);
  return marked[part];
}

bool Symbols::can_compute(ExprId expr) const {
  return std::ranges::none_of(symbols_, [&](const Symbol& symbol) {
    return symbol.source.dimension == SymbolSource::kUnknown && contains(expr, symbol.expr);
  });
}

// ---- assuming

std::optional<bool> Symbols::known(ExprId condition) {
  require(condition, Type::Bool, "a question");
  condition = simplify(condition);
  if (!is(condition, Kind::Bool)) return std::nullopt;
  return value(condition) != 0;
}

bool Symbols::decide(ExprId condition) {
  if (auto answer = known(condition)) return *answer;
  bool answer = hints_[condition].integer != 0;
  if (frozen_) return answer;
  if (!can_compute(condition)) {
    throw UserError("whether " + words(condition) +
                    " cannot be told: only the operator that made a tensor knows its size");
  }
  note(condition, answer);
  while (std::exchange(stale_, false)) review();
  return answer;
}

int64_t Symbols::specialise(ExprId expr) {
  require(expr, Type::Int, "int()");
  int64_t number = hints_[expr].integer;
  decide(eq(expr, integer(number)));
  return number;
}

double Symbols::specialise_float(ExprId expr) {
  require(expr, Type::Float, "float()");
  double number = hints_[expr].real;
  // By bits, because a comparison does not tell 0.0 from -0.0, nor one NaN from anything else.
  for (const Symbol& symbol : std::vector<Symbol>(symbols_)) {
    if (symbol.is_float && contains(expr, symbol.expr)) specialise(symbol.expr);
  }
  expr = simplify(expr);
  if (!is_constant(expr)) decide(eq(expr, real(number)));
  return number;
}

void Symbols::assume(ExprId condition) {
  require(condition, Type::Bool, "an assumption");
  if (hints_[condition].integer == 0) {
    throw UserError("it cannot be assumed that " + words(condition) + ": it does not hold in the recorded call");
  }
  decide(condition);
}

void Symbols::note(ExprId condition, bool truth) {
  condition = simplify(condition);
  if (is(condition, Kind::Bool)) return;
  if (is(condition, Kind::Not)) return note(arg(condition, 0), !truth);
  if (is(condition, Kind::And)) {
    auto all = args(condition);
    for (int64_t part : std::vector<int64_t>(all.begin(), all.end())) {
      bool holds = hints_[static_cast<ExprId>(part)].integer != 0;
      if (truth || !holds) note(static_cast<ExprId>(part), truth);
      // One that does not hold is enough.
      if (!truth && !holds) return;
    }
    return;
  }
  if (is(condition, Kind::Eq) || is(condition, Kind::Le)) {
    ExprId sum = arg(condition, 0);
    int64_t number = value(condition);
    Range known = range(sum);
    bool less = is(condition, Kind::Le);
    if (less && truth) return refine(sum, {Range::kMin, number});
    if (less || (!truth && known.min == number)) return refine(sum, {number + 1, Range::kMax});
    if (truth) return refine(sum, {number, number});
    if (known.max == number) return refine(sum, {Range::kMin, number - 1});
  }
  conditions_.push_back({condition, truth});
  ++generation_;
}

void Symbols::refine(ExprId expr, Range range) {
  ++generation_;
  if (is(expr, Kind::Symbol)) {
    Range& now = symbols_[static_cast<size_t>(value(expr))].range;
    range = intersect(now, range);
    stale_ = stale_ || range != now;
    now = range;
    return;
  }
  auto found = std::ranges::find(bounds_, expr, &Bound::expr);
  if (found != bounds_.end()) {
    range = intersect(found->range, range);
    bounds_.erase(found);
  }
  if (range.min == range.max && substitute(expr, range.min)) return;
  bounds_.push_back({expr, range});
}

// From sum == value: a symbol that stands alone in it, written with the others. The last symbol, so that "s1 is s0".
bool Symbols::substitute(ExprId sum, int64_t value) {
  Poly all = poly(sum);
  std::optional<Term> chosen;
  for (const Term& term : all.terms) {
    if (!is(term.monomial, Kind::Symbol) || std::abs(term.coefficient) != 1) continue;
    if (chosen && this->value(chosen->monomial) > this->value(term.monomial)) continue;
    auto holds_it = [&](const Term& other) { return contains(other.monomial, term.monomial); };
    if (std::ranges::count_if(all.terms, holds_it) == 1) chosen = term;
  }
  if (!chosen) return false;
  Poly others = add(all, {{*chosen}, value}, -1);
  ExprId replacement = from(add({}, others, -chosen->coefficient));
  substitutions_.push_back({chosen->monomial, replacement, intern(Kind::Eq, {sum}, value)});
  ++generation_;
  stale_ = true;
  if (is(replacement, Kind::Symbol)) {
    refine(replacement, symbols_[static_cast<size_t>(this->value(chosen->monomial))].range);
  }
  return true;
}

// Writes all other assumptions anew with what is known of the symbols now; those that follow from it drop out.
void Symbols::review() {
  std::vector<Bound> bounds = std::exchange(bounds_, {});
  std::vector<Condition> conditions = std::exchange(conditions_, {});
  ++generation_;
  for (const auto& [expr, range] : bounds) {
    if (range.min == range.max) {
      note(eq(expr, integer(range.min)), true);
      continue;
    }
    if (range.min != Range::kMin) note(ge(expr, integer(range.min)), true);
    if (range.max != Range::kMax) note(le(expr, integer(range.max)), true);
  }
  for (const Condition& condition : conditions) note(condition.expr, condition.truth);
}

// ---- telling and checking

template <class F>
void Symbols::each_fact(F f) const {
  for (const Substitution& known : substitutions_) {
    if (!f(Fact{Kind::Eq, arg(known.guard, 0), value(known.guard), true})) return;
  }
  for (const auto& [expr, range] : bounds_) {
    bool exact = range.min == range.max;
    if (exact && !f(Fact{Kind::Eq, expr, range.min, true})) return;
    if (!exact && range.min != Range::kMin && !f(Fact{Kind::Le, expr, range.min - 1, false})) return;
    if (!exact && range.max != Range::kMax && !f(Fact{Kind::Le, expr, range.max, true})) return;
  }
  for (const Condition& known : conditions_) {
    bool equality = is(known.expr, Kind::Eq);
    Fact fact = equality ? Fact{Kind::Eq, arg(known.expr, 0), value(known.expr), known.truth}
                         : Fact{nodes_[known.expr].kind, known.expr, 0, known.truth};
    if (!f(fact)) return;
  }
}

std::vector<std::string> Symbols::guards() const {
  std::vector<std::string> result;
  each_fact([&](const Fact& fact) {
    result.push_back(write(fact, false));
    return true;
  });
  return result;
}

std::vector<std::string> Symbols::guards_in_words() const {
  std::vector<std::string> result;
  for (const Symbol& symbol : symbols_) {
    auto [min, max] = symbol.range;
    if (symbol.source.dimension == SymbolSource::kUnknown) continue;
    if (min == max) result.push_back(write({Kind::Eq, symbol.expr, min, true}, true));
    if (min != max && min != Range::kMin) result.push_back(write({Kind::Le, symbol.expr, min - 1, false}, true));
    if (min != max && max != Range::kMax) result.push_back(write({Kind::Le, symbol.expr, max, true}, true));
  }
  each_fact([&](const Fact& fact) {
    result.push_back(write(fact, true));
    return true;
  });
  return result;
}

std::vector<ExprId> Symbols::plan(std::span<const ExprId> wanted) const {
  std::vector<bool> needed(nodes_.size());
  for (ExprId expr : wanted) needed[expr] = true;
  each_fact([&](const Fact& fact) { return needed[fact.expr] = true; });
  mark_parts(needed);
  std::vector<ExprId> result;
  for (ExprId expr = 0; expr < needed.size(); ++expr) {
    if (needed[expr]) result.push_back(expr);
  }
  return result;
}

// "x.size(0) % 2 == 0 does not hold: x.size(0) is 7"
std::string Symbols::failure(const std::string& what, ExprId expr, std::span<const int64_t> symbols) const {
  std::string text = what;
  const char* before = ": ";
  for (size_t i = 0; i < symbols_.size(); ++i) {
    if (!contains(expr, symbols_[i].expr)) continue;
    text += before + words(symbols_[i].expr) + " is " + value_text(symbols_[i], symbols[i]);
    before = ", ";
  }
  return text;
}

std::optional<std::string> Symbols::evaluate(std::span<const int64_t> symbols, std::span<const ExprId> plan,
                                             std::span<Number> values) const {
  for (size_t i = 0; i < symbols_.size(); ++i) {
    const Range& range = symbols_[i].range;
    ExprId expr = symbols_[i].expr;
    if (range.has(symbols[i])) continue;
    Fact broken = range.min == range.max   ? Fact{Kind::Eq, expr, range.min, true}
                  : symbols[i] < range.min ? Fact{Kind::Le, expr, range.min - 1, false}
                                           : Fact{Kind::Le, expr, range.max, true};
    return failure(write(broken, true) + " does not hold", expr, symbols);
  }
  for (ExprId expr : plan) {
    const Node& node = nodes_[expr];
    if (node.kind == Kind::Symbol) {
      values[expr].integer = symbols[static_cast<size_t>(node.value.integer)];
    } else if (const char* problem = compute(node, values, values[expr])) {
      return failure(words(expr) + " " + problem, expr, symbols);
    }
  }
  return std::nullopt;
}

std::optional<std::string> Symbols::check(std::span<const int64_t> symbols, std::span<const Number> values) const {
  std::optional<std::string> result;
  each_fact([&](const Fact& fact) {
    int64_t number = values[fact.expr].integer;
    bool holds = fact.kind == Kind::Eq   ? number == fact.number
                 : fact.kind == Kind::Le ? number <= fact.number
                                         : number != 0;
    if (holds == fact.truth) return true;
    result = failure(write(fact, true) + " does not hold", fact.expr, symbols);
    return false;
  });
  return result;
}

// ---- computing

const char* Symbols::compute(const Node& node, std::span<const Number> values, Number& result) const {
  if (node.kind <= Kind::Float) {
    result = node.value;
    return nullptr;
  }
  if (node.kind < Kind::Floor) return compute_integer(node, values, result.integer);
  auto of = [&](size_t i) { return values[static_cast<size_t>(args_[node.first + i])]; };
  switch (node.kind) {
    case Kind::Floor:
    case Kind::Ceil: {
      double rounded = node.kind == Kind::Floor ? std::floor(of(0).real) : std::ceil(of(0).real);
      if (!(std::abs(rounded) < 0x1p63)) return "does not fit 64 bits";
      result.integer = static_cast<int64_t>(rounded);
      return nullptr;
    }
    case Kind::Eq: result.integer = of(0).integer == node.value.integer; return nullptr;
    case Kind::Le: result.integer = of(0).integer <= node.value.integer; return nullptr;
    case Kind::Not: result.integer = !of(0).integer; return nullptr;
    case Kind::And:
      result.integer = 1;
      for (size_t i = 0; i < node.count; ++i) result.integer &= of(i).integer;
      return nullptr;
    case Kind::FloatDiv:
      if (of(1).real == 0) return "divides by zero";
      [[fallthrough]];
    default: compute_float(node, values, result); return nullptr;
  }
}

const char* Symbols::compute_integer(const Node& node, std::span<const Number> values, int64_t& result) const {
  constexpr const char* kOverflow = "does not fit 64 bits";
  const int64_t* args = args_.data() + node.first;
  auto of = [&](size_t i) { return values[static_cast<size_t>(args[i])].integer; };
  switch (node.kind) {
    case Kind::Sum: {
      // Wide, because a sum may fit although a part of it does not.
      __int128 total = node.value.integer;
      for (size_t i = 0; i < node.count; i += 2) total += static_cast<__int128>(of(i)) * args[i + 1];
      result = static_cast<int64_t>(total);
      return result == total ? nullptr : kOverflow;
    }
    case Kind::Product:
      result = 1;
      for (size_t i = 0; i < node.count; ++i) {
        if (__builtin_mul_overflow(result, of(i), &result)) return kOverflow;
      }
      return nullptr;
    case Kind::FloorDiv:
    case Kind::Mod:
      if (of(1) == 0) return "divides by zero";
      if (of(0) == INT64_MIN && of(1) == -1) return kOverflow;
      result = node.kind == Kind::Mod ? floor_modulo(of(0), of(1)) : floor_divide(of(0), of(1));
      return nullptr;
    case Kind::Min:
    case Kind::Max:
      result = of(0);
      for (size_t i = 1; i < node.count; ++i) {
        result = node.kind == Kind::Min ? std::min(result, of(i)) : std::max(result, of(i));
      }
      return nullptr;
    default: {  // Pow
      int64_t base = of(0), exponent = of(1);
      if (exponent < 0) return "has a negative exponent";
      result = 1;
      if (base == 0 || base == 1) exponent = std::min<int64_t>(exponent, 1);
      if (base == -1) exponent %= 2;
      for (; exponent > 0; --exponent) {
        if (__builtin_mul_overflow(result, base, &result)) return kOverflow;
      }
      return nullptr;
    }
  }
}

void Symbols::compute_float(const Node& node, std::span<const Number> values, Number& result) const {
  Number first = values[static_cast<size_t>(args_[node.first])];
  double a = first.real, b = values[static_cast<size_t>(args_[node.first + node.count - 1])].real;
  switch (node.kind) {
    case Kind::ToFloat: result.real = static_cast<double>(first.integer); break;
    case Kind::FromBits: result.real = float_of(first.integer); break;
    case Kind::FloatAdd: result.real = a + b; break;
    case Kind::FloatMul: result.real = a * b; break;
    case Kind::FloatDiv: result.real = a / b; break;
    case Kind::FloatPow: result.real = std::pow(a, b); break;
    case Kind::FloatNeg: result.real = -a; break;
    case Kind::FloatMin: result.real = b < a ? b : a; break;
    case Kind::FloatMax: result.real = b > a ? b : a; break;
    case Kind::FloatEq: result.integer = a == b; break;
    case Kind::FloatLt: result.integer = a < b; break;
    default: result.integer = a <= b; break;
  }
}

}  // namespace magneto::graph
