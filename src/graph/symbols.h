// Sizes that differ from run to run: symbols, expressions over them in a simplified form, and what is assumed of them.
#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace magneto::graph {

// A number or a condition that may depend on symbols; belongs to one Symbols. Equal expressions have equal handles.
using ExprId = uint32_t;

// What an expression is at given sizes; which member counts follows from its type. Conditions are 0 or 1.
union Number {
  int64_t integer;
  double real;
};

// A float as an integer and back: its bits, but so that it is some NaN, and not -0.0, that is the integer without an
// opposite.
constexpr int64_t kBitsOfFloats = 0x7ff8000000000001;
inline int64_t bits_of(double number) { return std::bit_cast<int64_t>(number) ^ kBitsOfFloats; }
inline double float_of(int64_t bits) { return std::bit_cast<double>(bits ^ kBitsOfFloats); }

// Both ends included; kMin and kMax stand for no bound.
struct Range {
  static constexpr int64_t kMin = INT64_MIN;
  static constexpr int64_t kMax = INT64_MAX;
  int64_t min = kMin;
  int64_t max = kMax;

  bool operator==(const Range&) const = default;
  bool has(int64_t value) const { return min <= value && value <= max; }
  bool covers(const Range& other) const { return min <= other.min && other.max <= max; }
};

// Where a run finds the value of a symbol.
struct SymbolSource {
  static constexpr int32_t kNumber = -1;   // the input is the number itself
  static constexpr int32_t kUnknown = -2;  // nowhere: it is a size of a result that only the operator knows
  uint32_t input = 0;                      // among the inputs of the graph
  int32_t dimension = kNumber;             // of that tensor, or one of the above
  std::string name = {};                   // of the input in the user's program, "x"; may be empty

  bool operator==(const SymbolSource&) const = default;
};

struct Symbol {
  std::string name;  // "s0"
  int64_t hint;      // its value in the recorded call
  Range range;       // of the values for which the recording holds
  SymbolSource source;
  ExprId expr;
  bool is_float = false;  // its values are the bits of floats
};

// An append-only table of expressions, shared by a recording and its graph. An argument stands before the expression
// that uses it. Integers are kept as sums of products, so equal polynomials are equal handles; floats are computed in
// the order in which they were written, as eager would. What is assumed later (see decide) simplifies only what
// is built after it; older handles stay valid, because the assumption is checked at each run.
//
// Sizes 0 and 1 are special to torch (broadcasting, contiguity, empty tensors), so a dimension that has one of them in
// the recorded call never becomes a symbol, and a symbol for a dimension is at least 2.
//
// A number that does not fit 64 bits, a division by zero, wrong types and questions about unknown sizes raise
// UserError. Not thread-safe; in the product the GIL serialises its users.
class Symbols {
 public:
  enum class Type : uint8_t { Int, Bool, Float };

  Symbols();
  Symbols(const Symbols&) = delete;
  Symbols& operator=(const Symbols&) = delete;

  // ---- symbols

  // A new symbol; an empty name becomes "s0", "s1", ... For a dimension whose hint is 0 or 1: that number instead.
  ExprId add_symbol(int64_t hint, SymbolSource source, std::string name = {}, Range range = {2, Range::kMax});
  // For a parsed graph, where hint and range are as they were written.
  ExprId declare(Symbol symbol);
  const std::vector<Symbol>& symbols() const { return symbols_; }
  // Whether runs can compute it: no symbol in it is unknown to them. Nothing may be assumed of other expressions.
  bool can_compute(ExprId expr) const;
  std::optional<ExprId> find(std::string_view name) const;

  // ---- expressions

  ExprId integer(int64_t value);
  ExprId boolean(bool value);
  ExprId real(double value);

  // Integers, or floats if one side is one. floordiv and mod round as Python's; floats are refused there.
  ExprId add(ExprId a, ExprId b);
  ExprId sub(ExprId a, ExprId b);
  ExprId mul(ExprId a, ExprId b);
  ExprId neg(ExprId a);
  ExprId floordiv(ExprId a, ExprId b);
  ExprId mod(ExprId a, ExprId b);
  ExprId min(ExprId a, ExprId b);
  ExprId max(ExprId a, ExprId b);
  ExprId pow(ExprId a, ExprId b);  // integers: the exponent may not be negative
  // Floats.
  ExprId to_float(ExprId a);
  ExprId from_bits(ExprId a);  // an input that is a float is a symbol for its 64 bits
  ExprId truediv(ExprId a, ExprId b);
  ExprId floor(ExprId a);  // an integer, as ceil
  ExprId ceil(ExprId a);
  // Conditions.
  ExprId eq(ExprId a, ExprId b);
  ExprId ne(ExprId a, ExprId b) { return logical_not(eq(a, b)); }
  ExprId lt(ExprId a, ExprId b);
  ExprId le(ExprId a, ExprId b);
  ExprId gt(ExprId a, ExprId b) { return lt(b, a); }
  ExprId ge(ExprId a, ExprId b) { return le(b, a); }
  ExprId logical_not(ExprId a);
  ExprId logical_and(ExprId a, ExprId b);
  ExprId logical_or(ExprId a, ExprId b);

  size_t size() const { return nodes_.size(); }
  Type type(ExprId expr) const;
  Number hint(ExprId expr) const;
  bool is_constant(ExprId expr) const;
  Range range(ExprId expr);  // of an integer, as far as it is known
  // The same number written with everything that is assumed by now: after decide(s0 == s1), s1 * 2 is s0 * 2.
  ExprId simplify(ExprId expr);

  // ---- assumptions

  // The answer if simplification and ranges tell it.
  std::optional<bool> known(ExprId condition);
  // The answer; where it is not known, that of the recorded call, which becomes an assumption.
  bool decide(ExprId condition);
  // The number in the recorded call; that it is this number becomes an assumption.
  int64_t specialise(ExprId expr);
  double specialise_float(ExprId expr);
  // Makes a condition an assumption. UserError if it contradicts the others.
  void assume(ExprId condition);
  // Declared ranges are assumptions, too: from now on they simplify.
  void use_ranges() { ++generation_; }
  // Ends the recording: from now on questions are answered as the recorded call would, and nothing more is assumed.
  void freeze() { frozen_ = true; }

  // What is assumed beside the ranges of the symbols, as the text of conditions: "s0 % 2 == 0". No duplicates, and none
  // that follows from the others.
  std::vector<std::string> guards() const;
  // All that is assumed, ranges too, in the names of the user's inputs: "x.size(0) % 2 == 0".
  std::vector<std::string> guards_in_words() const;

  // ---- at each run

  // What must be evaluated for `wanted` and for all assumptions, in an order that works.
  std::vector<ExprId> plan(std::span<const ExprId> wanted) const;
  // Fills values[e] for all e of `plan`; `symbols` are the values of symbols(), in order. `values` must have size().
  // Returns what prevents it in words: an overflow or a division by zero.
  std::optional<std::string> evaluate(std::span<const int64_t> symbols, std::span<const ExprId> plan,
                                      std::span<Number> values) const;
  // The first assumption that does not hold, in words: "x.size(0) % 2 == 0 does not hold: x.size(0) is 7". `values` as
  // evaluate left them.
  std::optional<std::string> check(std::span<const int64_t> symbols, std::span<const Number> values) const;

  // ---- text

  // "s0*s1 + 4*s0 - 1", "(s0 + 1) // 2", "s0 % 2 == 0 and s1 <= 512": as Python would write it.
  std::string text(ExprId expr) const;
  // The same in the names of the user's inputs: "x.size(0) * 2".
  std::string words(ExprId expr) const;
  // The inverse of `text`; also takes what a person would write. UserError if it is no expression over known symbols.
  ExprId parse(std::string_view text);

 private:
  enum class Kind : uint8_t {
    Int,
    Bool,
    Float,
    Symbol,
    // Integers. Sum: pairs (monomial, coefficient) and a constant; a monomial is a Product or anything below it here.
    Sum,
    Product,
    FloorDiv,
    Mod,
    Min,
    Max,
    Pow,
    Floor,
    Ceil,
    // Conditions. Eq and Le: of a sum without constant, coprime coefficients, the first positive, and a number.
    Eq,
    Le,
    Not,
    And,
    // Floats, and conditions on them.
    ToFloat,
    FromBits,
    FloatAdd,
    FloatMul,
    FloatDiv,
    FloatPow,
    FloatNeg,
    FloatMin,
    FloatMax,
    FloatEq,
    FloatLt,
    FloatLe,
  };
  struct Node {
    Kind kind;
    uint32_t first;  // in args_
    uint32_t count;
    Number value;  // of a constant; the index of a Symbol; the number of Sum, Eq and Le
  };
  struct Term {
    ExprId monomial;
    int64_t coefficient;
  };
  struct Poly {
    std::vector<Term> terms;  // by falling degree, no two alike, none zero
    int64_t constant = 0;
  };
  // A condition that holds because the recording relies on it.
  struct Condition {
    ExprId expr;
    bool truth;
  };
  struct Bound {
    ExprId expr;
    Range range;
  };
  // One assumption: of kind Eq or Le, that `expr` compares so with `number`, or does not; else the condition `expr`.
  struct Fact {
    Kind kind;
    ExprId expr;
    int64_t number;
    bool truth;
  };
  // `symbol` is `value`, because `guard` holds.
  struct Substitution {
    ExprId symbol;
    ExprId value;
    ExprId guard;
  };
  struct Parser;
  struct Writer;

  // Building nodes.
  ExprId intern(Kind kind, std::span<const int64_t> args, Number value = {0});
  ExprId intern(Kind kind, std::initializer_list<ExprId> args, int64_t value = 0);
  std::span<const int64_t> args(ExprId expr) const;
  ExprId arg(ExprId expr, size_t index) const { return static_cast<ExprId>(args(expr)[index]); }
  bool is(ExprId expr, Kind kind) const { return nodes_[expr].kind == kind; }
  int64_t value(ExprId expr) const { return nodes_[expr].value.integer; }
  int order(ExprId a, ExprId b) const;
  void require(ExprId expr, Type type, const char* what) const;
  // What prevents it, or null.
  const char* compute(const Node& node, std::span<const Number> values, Number& result) const;
  const char* compute_integer(const Node& node, std::span<const Number> values, int64_t& result) const;
  void compute_float(const Node& node, std::span<const Number> values, Number& result) const;

  // Polynomials.
  Poly poly(ExprId expr) const;
  ExprId from(Poly poly);
  std::span<const int64_t> atoms(ExprId monomial, int64_t& single) const;
  int order_monomials(ExprId a, ExprId b) const;
  static bool is_negative(const Poly& poly);
  Poly add(const Poly& a, const Poly& b, int64_t factor) const;
  Poly mul(const Poly& a, const Poly& b);
  ExprId mul_monomials(ExprId a, ExprId b);
  std::optional<ExprId> divide_monomials(ExprId a, ExprId b);
  std::optional<Poly> divide(Poly a, const Poly& b);
  void divide_by_common_factor(Poly& a, Poly* b, bool positive, Poly* factor);
  bool absorb_divisions(Poly& poly);
  bool known_multiple(ExprId a, ExprId b) const;
  ExprId settle(ExprId expr);
  ExprId settle_condition(ExprId condition);
  ExprId extremum(Kind kind, ExprId a, ExprId b);
  ExprId floats(Kind kind, ExprId a, ExprId b);
  ExprId compare_floats(Kind kind, ExprId a, ExprId b);
  ExprId divide_rest(ExprId a, ExprId b);
  void require_nonzero(ExprId divisor);

  // Assumptions.
  ExprId rebuild(ExprId expr);
  Range compute_range(ExprId expr);
  void mark_parts(std::vector<bool>& marked) const;
  bool contains(ExprId expr, ExprId part) const;
  void note(ExprId condition, bool truth);
  void refine(ExprId expr, Range range);
  bool substitute(ExprId sum, int64_t value);
  void review();
  // Calls f(fact) until it returns false.
  template <class F>
  void each_fact(F f) const;
  std::string write(const Fact& fact, bool in_words) const;
  static std::string value_text(const Symbol& symbol, int64_t value);
  std::string failure(const std::string& what, ExprId expr, std::span<const int64_t> symbols) const;

  std::vector<Symbol> symbols_;
  std::vector<Node> nodes_;
  std::vector<int64_t> args_;
  std::vector<Number> hints_;                         // by expression
  std::unordered_multimap<size_t, ExprId> interned_;  // by hash

  std::vector<Substitution> substitutions_;
  std::vector<Bound> bounds_;          // of expressions other than symbols
  std::vector<Condition> conditions_;  // that are not bounds
  bool frozen_ = false;
  bool stale_ = false;  // symbols were narrowed or substituted since the other assumptions were simplified

  // What was found out since the last new assumption.
  uint32_t generation_ = 0;
  struct Cached {
    uint32_t simplified_in = UINT32_MAX;
    uint32_t ranged_in = UINT32_MAX;
    ExprId simplified = 0;
    Range range = {};
  };
  std::vector<Cached> cached_;
};

}  // namespace magneto::graph
