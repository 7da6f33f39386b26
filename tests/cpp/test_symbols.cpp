// Expressions of symbolic sizes: their simplified form, what is assumed of symbols, evaluation, and text.
#include <cmath>
#include <functional>
#include <memory>
#include <random>

#include "check.h"
#include "graph/symbols.h"
#include "runtime/errors.h"

using namespace magneto;
using namespace magneto::graph;

namespace {

// x: [s0, s1], y: [s2], so that names in words can be checked.
struct Table : Symbols {
  ExprId s0 = add_symbol(8, {0, 0, "x"});
  ExprId s1 = add_symbol(6, {0, 1, "x"});
  ExprId s2 = add_symbol(10, {1, 0, "y"});

  std::string simplified(std::string_view text) { return this->text(parse(text)); }
  std::string all_guards() const {
    std::string result;
    for (const std::string& guard : guards()) result += (result.empty() ? "" : "; ") + guard;
    return result;
  }
  bool decides(std::string_view text) { return decide(parse(text)); }
  // The first thing that prevents a run at these sizes; empty if nothing does.
  std::string problem(std::vector<int64_t> sizes) const {
    std::vector<Number> values(size());
    auto all = plan({});
    if (auto found = evaluate(sizes, all, values)) return *found;
    return check(sizes, values).value_or("");
  }
  Number at(ExprId expr, std::vector<int64_t> sizes) const {
    std::vector<Number> values(size());
    ExprId wanted[] = {expr};
    if (auto found = evaluate(sizes, plan(wanted), values)) throw check::Failure(*found);
    return values[expr];
  }
};

}  // namespace

TEST(polynomials_have_one_form) {
  Table t;
  CHECK_EQ(t.add(t.s0, t.s1), t.add(t.s1, t.s0));
  CHECK_EQ(t.mul(t.add(t.s0, t.integer(1)), t.s1), t.add(t.mul(t.s1, t.s0), t.s1));
  CHECK_EQ(t.simplified("s0 + 0"), "s0");
  CHECK_EQ(t.simplified("s0*1"), "s0");
  CHECK_EQ(t.simplified("s0*0"), "0");
  CHECK_EQ(t.simplified("s0 - s0"), "0");
  CHECK_EQ(t.simplified("-(s0 - s1)"), "-s0 + s1");
  CHECK_EQ(t.simplified("(s0 + s1)*(s0 - s1)"), "s0*s0 - s1*s1");
  CHECK_EQ(t.simplified("2*s0*3*s1*s0 + 1 - 4*s1"), "6*s0*s0*s1 - 4*s1 + 1");
  CHECK_EQ(t.simplified("s0**3"), "s0*s0*s0");
  CHECK(t.is_constant(t.sub(t.mul(t.s0, t.s1), t.mul(t.s1, t.s0))));
}

TEST(divisions_that_come_out_even_disappear) {
  Table t;
  CHECK_EQ(t.simplified("(s0*s1*64) // 64"), "s0*s1");
  CHECK_EQ(t.simplified("s0*s1 // s1"), "s0");
  CHECK_EQ(t.simplified("(2*s0) // 2"), "s0");
  CHECK_EQ(t.simplified("s0 // s0"), "1");
  CHECK_EQ(t.simplified("s0*s1*768 // (s0*12)"), "64*s1");
  CHECK_EQ(t.simplified("(s0*s1 + 3*s1) // (s0 + 3)"), "s1");
  CHECK_EQ(t.simplified("(s0 + 1)*(s1 // 2 + 1)*s2 // ((s1 // 2 + 1)*s2)"), "s0 + 1");
  CHECK_EQ(t.simplified("(4*s0 + 6) // 4"), "s0 + 1");
  CHECK_EQ(t.simplified("(4*s0 + 2*s1 + 6) // 4"), "s0 + (s1 + 1) // 2 + 1");
  CHECK_EQ(t.simplified("s0*s1 // (s0*8)"), "s1 // 8");
  CHECK_EQ(t.simplified("s0 // -2"), "-s0 // 2");
  // Two convolutions of stride 2.
  CHECK_EQ(t.simplified("((s0 - 1) // 2 + 1 - 1) // 2 + 1"), "(s0 + 3) // 4");
}

TEST(remainders_of_multiples_are_zero) {
  Table t;
  CHECK_EQ(t.simplified("(s0*s1) % s1"), "0");
  CHECK_EQ(t.simplified("(6*s0) % 3"), "0");
  CHECK_EQ(t.simplified("(6*s0 + 7) % 3"), "1");
  CHECK_EQ(t.simplified("(5*s0 - 1) % 4"), "(s0 + 3) % 4");
  CHECK_EQ(t.simplified("(2*s0) % 4"), "2*(s0 % 2)");
  CHECK_EQ(t.simplified("(s0 % 4) % 8"), "s0 % 4");
  CHECK_EQ(t.simplified("(s0 % 4) // 4"), "0");
}

TEST(least_and_greatest_use_ranges) {
  Table t;
  CHECK_EQ(t.simplified("max(1, s0)"), "s0");
  CHECK_EQ(t.simplified("min(s0, s0 + s1)"), "s0");
  CHECK_EQ(t.simplified("min(1, s0)"), "1");
  CHECK_EQ(t.simplified("max(s1, s0, s1)"), "max(s0, s1)");
  CHECK_EQ(t.simplified("max(max(s0, 5), max(s1, 7))"), "max(7, s0, s1)");
}

TEST(ranges_and_equal_forms_answer_without_a_guard) {
  Table t;
  for (const char* yes :
       {"s0*4 == 4*s0", "s0 >= 1", "s0 != 1", "s0 != 0", "s0*s1 != 0", "s0*s1 > 3", "s0*s1 >= s0", "s0*s1 != s0",
        "s0 + 1 != s0", "2*s0 != 2*s1 + 1", "s0 < s0 + s1", "s0 % 4 < 4", "s0 // 2 >= 1", "s0 <= 9223372036854775807",
        "s0 % 3 != 5", "not s0 < 2", "s0 > 1 and s1 > 1", "s0 == 1 or s0 > 1", "min(s0, 5) <= 5"}) {
    CHECK(t.decides(yes));
    CHECK_EQ(t.known(t.parse(yes)).value_or(false), true);
  }
  for (const char* no : {"s0 == 1", "s0 == 0", "s0 < 2", "s0*s1 == 1", "s0 == s0 + 1", "s0 == 1 and s1 == 77"}) {
    CHECK(!t.decides(no));
  }
  CHECK_EQ(t.all_guards(), "");
  CHECK(!t.known(t.parse("s0 == s1")));
  CHECK_EQ(t.all_guards(), "");
}

TEST(what_is_not_known_is_answered_as_in_the_call_and_becomes_a_guard) {
  Table t;
  CHECK(t.decides("s0 % 2 == 0"));
  CHECK(!t.decides("s0 == s1"));
  CHECK(t.decides("s0 + s1 > s2"));
  CHECK_EQ(t.all_guards(), "s0 % 2 == 0; s0 + s1 > s2; s0 != s1");
  CHECK(t.decides("s1 != s0"));
  CHECK(t.decides("2*s0 % 4 == 0"));
  CHECK_EQ(t.guards().size(), size_t{3});
  std::vector<std::string> words = t.guards_in_words();
  CHECK_EQ(words.size(), size_t{6});
  CHECK_EQ(words[0], "x.size(0) >= 2");
  CHECK_EQ(words[3], "x.size(0) % 2 == 0");
  CHECK_EQ(words[4], "x.size(0) + x.size(1) > y.size(0)");
  CHECK_EQ(t.problem({8, 6, 10}), "");
  CHECK_EQ(t.problem({12, 6, 10}), "");
  CHECK_EQ(t.problem({7, 6, 10}), "x.size(0) % 2 == 0 does not hold: x.size(0) is 7");
  CHECK_EQ(t.problem({8, 8, 10}), "x.size(0) != x.size(1) does not hold: x.size(0) is 8, x.size(1) is 8");
  CHECK_EQ(t.problem({1, 6, 10}), "x.size(0) >= 2 does not hold: x.size(0) is 1");
}

TEST(bounds_narrow_the_range_of_a_symbol) {
  Table t;
  CHECK(t.decides("s0 <= 512"));
  CHECK(t.decides("s0 < 100"));
  CHECK(t.decides("2*s0 > 7"));
  CHECK(t.decides("s0 != 99"));
  CHECK_EQ(t.all_guards(), "");
  CHECK(t.symbols()[0].range == (Range{4, 98}));
  CHECK(t.decides("s0 < 200"));
  CHECK_EQ(t.simplified("min(s0, 200)"), "s0");
  CHECK_EQ(t.problem({99, 6, 10}), "x.size(0) <= 98 does not hold: x.size(0) is 99");
}

TEST(tighter_bounds_replace_looser_ones) {
  Table t;
  CHECK(t.decides("s0 - s1 < 100"));
  CHECK(t.decides("s0 - s1 < 50"));
  CHECK(t.decides("s0 - s1 > 0"));
  CHECK_EQ(t.all_guards(), "s0 > s1; s0 <= s1 + 49");
  CHECK(t.decides("s1 < s0"));
  CHECK(!t.decides("s0 == s1"));
  CHECK_EQ(t.guards().size(), size_t{2});
}

TEST(an_equality_makes_one_symbol_the_other) {
  Table t;
  ExprId s3 = t.add_symbol(8, {1, 1, "y"});
  ExprId before = t.mul(s3, t.integer(2));
  CHECK(t.decides("s3 == s0"));
  CHECK_EQ(t.all_guards(), "s0 == s3");
  CHECK_EQ(t.mul(s3, t.integer(2)), t.mul(t.s0, t.integer(2)));
  CHECK_EQ(t.simplify(before), t.mul(t.s0, t.integer(2)));
  CHECK_EQ(t.known(t.parse("s3 // 2 == s0 // 2")).value_or(false), true);
  CHECK_EQ(t.at(before, {5, 6, 10, 5}).integer, 10);
  CHECK_EQ(t.problem({5, 6, 10, 4}), "x.size(0) == y.size(1) does not hold: x.size(0) is 5, y.size(1) is 4");
  CHECK(t.decides("s3 <= 64"));
  CHECK(t.symbols()[0].range == (Range{2, 64}));
}

TEST(an_equality_can_write_one_symbol_with_others) {
  Table t;
  ExprId s3 = t.add_symbol(14, {2, 0, "z"});
  CHECK(t.decides("s3 == s0 + s1"));
  CHECK_EQ(t.text(t.simplify(s3)), "s0 + s1");
  CHECK_EQ(t.simplified("s3 - s1"), "s0");
  CHECK(t.decides("s0*s3 != s0*s2"));
  CHECK_EQ(t.all_guards(), "s0 + s1 == s3; s0 + s1 != s2");
}

TEST(guards_that_follow_from_later_ones_drop_out) {
  Table t;
  CHECK(t.decides("s0 + s1 < 100"));
  CHECK(t.decides("s0 % 4 == 0"));
  CHECK(t.decides("s0 != s1"));
  CHECK_EQ(t.guards().size(), size_t{3});
  CHECK_EQ(t.specialise(t.s0), 8);
  CHECK_EQ(t.all_guards(), "s1 != 8");
  CHECK(t.symbols()[1].range == (Range{2, 91}));
}

TEST(specialising_fixes_a_number) {
  Table t;
  CHECK_EQ(t.specialise(t.parse("2*s0")), 16);
  CHECK(t.symbols()[0].range == (Range{8, 8}));
  CHECK_EQ(t.simplified("s0*s1"), "8*s1");
  CHECK_EQ(t.specialise(t.parse("s1 // 4")), 1);
  CHECK_EQ(t.simplified("s1 // 4 + 1"), "2");
  CHECK_EQ(t.all_guards(), "s1 // 4 == 1");
  CHECK_EQ(t.problem({8, 7, 10}), "");
  CHECK_EQ(t.problem({9, 7, 10}), "x.size(0) == 8 does not hold: x.size(0) is 9");
  CHECK_EQ(t.problem({8, 8, 10}), "x.size(1) // 4 == 1 does not hold: x.size(1) is 8");
}

TEST(a_known_multiple_divides_evenly) {
  Table t;
  CHECK(t.decides("s0 % 8 == 0"));
  CHECK_EQ(t.simplified("s0 // 8 * 8"), "s0");
  CHECK_EQ(t.simplified("s0 // 4 * 8"), "2*s0");
  CHECK_EQ(t.simplified("s0 % 4"), "0");
  CHECK_EQ(t.simplified("(s0*s1 + 3) % 4"), "3");
  CHECK(t.decides("s2 % s1 != 0"));
  CHECK_EQ(t.all_guards(), "s0 % 8 == 0; s2 % s1 >= 1");
}

TEST(conditions_join_and_split) {
  Table t;
  CHECK_EQ(t.text(t.parse("s0 == s1 and s0 > 1")), "s0 == s1");
  CHECK_EQ(t.text(t.parse("s0 == s1 or s2 == s1")), "s0 == s1 or s1 == s2");
  CHECK(t.decides("s0 == 8 or s1 == 77"));
  CHECK(!t.decides("s1 == 7 and s2 == 10"));
  CHECK(t.symbols()[0].range == (Range{8, 8}));
  CHECK_EQ(t.all_guards(), "s1 != 7");
}

TEST(floats_are_computed_as_written) {
  Table t;
  ExprId scale = t.pow(t.to_float(t.s0), t.real(-0.5));
  CHECK_EQ(t.hint(scale).real, std::pow(8.0, -0.5));
  CHECK_EQ(t.text(scale), "float(s0)**(-0.5)");
  CHECK_EQ(t.at(scale, {16, 6, 10}).real, 0.25);
  CHECK_EQ(t.simplified("(s0 / 2)*0.1 + 3"), "float(s0) / 2.0*0.1 + 3.0");
  CHECK_EQ(t.simplified("2.5 * 2"), "5.0");
  CHECK_EQ(t.hint(t.parse("floor(s0 / 3)")).integer, 2);
  CHECK_EQ(t.hint(t.parse("ceil(s0 / 3)")).integer, 3);
  CHECK(t.decides("s0 / 3 > 2.5"));
  CHECK_EQ(t.all_guards(), "2.5 < float(s0) / 3.0");
  CHECK_EQ(t.specialise_float(t.parse("s1 / 4")), 1.5);
  CHECK_EQ(t.problem({8, 7, 10}), "float(x.size(1)) / 4.0 == 1.5 does not hold: x.size(1) is 7");
}

TEST(a_float_of_an_integer_compares_as_the_integer) {
  Table t;
  CHECK(t.decides("float(s0) >= 0.0 and float(s0) > 1.5 and float(s0) != 3.5"));
  CHECK_EQ(t.all_guards(), "");
  CHECK(t.decides("float(s0) < 8.5 and 7.5 < float(s0)"));
  CHECK(t.symbols()[0].range == (Range{8, 8}));
  CHECK(t.decides("float(s1) <= 6.5 and 5.5 <= float(s1)"));
  CHECK(t.symbols()[1].range == (Range{6, 6}));
  CHECK_EQ(t.specialise_float(t.to_float(t.s2)), 10.0);
  CHECK(t.symbols()[2].range == (Range{10, 10}));
}

TEST(floats_that_come_in_are_known_by_their_bits) {
  Table t;
  ExprId number = t.from_bits(t.add_symbol(bits_of(-0.0), {2, SymbolSource::kNumber, "rate"}, "", {}));
  CHECK_EQ(t.text(number), "bits(s3)");
  CHECK_EQ(t.parse("bits(s3)"), number);
  CHECK_EQ(t.words(t.parse("bits(s3)*2.0 < 1.5")), "rate*2.0 < 1.5");
  CHECK(std::isnan(t.at(t.mul(number, t.real(2)), {8, 6, 10, bits_of(NAN)}).real));
  CHECK(!t.decides("bits(s3) < 0.0"));
  CHECK_EQ(t.problem({8, 6, 10, bits_of(NAN)}), "");
  CHECK_EQ(t.problem({8, 6, 10, bits_of(-1.5)}), "not rate < 0.0 does not hold: rate is -1.5");
  CHECK(std::signbit(t.specialise_float(t.add(number, number))));
  CHECK(t.is_constant(t.simplify(number)));
  CHECK_EQ(t.problem({8, 6, 10, bits_of(-0.0)}), "");
  CHECK_EQ(t.problem({8, 6, 10, bits_of(0.0)}), "rate == -0.0 does not hold: rate is 0.0");
}

TEST(a_nan_is_pinned_to_itself) {
  Table t;
  ExprId number = t.from_bits(t.add_symbol(bits_of(NAN), {2, SymbolSource::kNumber, "rate"}, "", {}));
  CHECK(!t.decide(t.eq(number, number)));
  CHECK(std::isnan(t.specialise_float(number)));
  CHECK_EQ(t.problem({8, 6, 10, bits_of(NAN)}), "");
  CHECK(!t.problem({8, 6, 10, bits_of(1.0)}).empty());
}

TEST(sizes_zero_and_one_never_become_symbols) {
  Table t;
  CHECK_EQ(t.add_symbol(1, {2, 0, "z"}), t.integer(1));
  CHECK_EQ(t.add_symbol(0, {2, 1, "z"}), t.integer(0));
  CHECK_EQ(t.symbols().size(), size_t{3});
  ExprId number = t.add_symbol(1, {3, SymbolSource::kNumber, "n"}, "n", {});
  CHECK_EQ(t.words(number), "n");
  CHECK(t.decides("n <= 1"));
}

TEST(nothing_is_asked_of_a_size_that_no_run_can_tell) {
  Table t;
  ExprId unknown = t.add_symbol(64, {0, SymbolSource::kUnknown});
  CHECK(t.can_compute(t.mul(t.s0, t.s1)));
  CHECK(!t.can_compute(t.mul(t.s0, unknown)));
  CHECK(!t.decides("s3 == 1"));  // as its range tells
  CHECK_HAS(CHECK_THROWS(UserError, t.decides("s3 == 64*s0")), "only the operator");
  CHECK_HAS(CHECK_THROWS(UserError, t.specialise(unknown)), "s3 == 64");
  CHECK_EQ(t.all_guards(), "");
  CHECK_EQ(t.guards_in_words().size(), size_t{3});
}

TEST(after_the_end_of_a_recording_nothing_more_is_assumed) {
  Table t;
  t.freeze();
  CHECK(t.decides("s0 > s1"));
  CHECK_EQ(t.specialise(t.s0), 8);
  CHECK_EQ(t.guards().size(), size_t{0});
  CHECK(t.symbols()[0].range == (Range{2, Range::kMax}));
}

TEST(guards_of_a_parsed_graph_can_be_assumed) {
  Table t;
  t.decides("s0 % 2 == 0");
  t.decides("s0 + s1 > s2");
  Table copy;
  for (const std::string& guard : t.guards()) copy.assume(copy.parse(guard));
  CHECK_EQ(copy.all_guards(), t.all_guards());
  CHECK_HAS(CHECK_THROWS(UserError, copy.assume(copy.parse("s0 == 9"))), "x.size(0) == 9");
  CHECK_HAS(CHECK_THROWS(UserError, copy.assume(copy.parse("s0 < 2"))), "False");
}

TEST(numbers_that_do_not_fit_are_refused) {
  Table t;
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("9223372036854775807*s0*2")), "64 bits");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("s0*9223372036854775807")), "64 bits");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("9223372036854775808")), "64 bits");
  ExprId cube = t.parse("s0*s0*s0");
  std::vector<Number> values(t.size());
  ExprId wanted[] = {cube};
  std::string text = t.evaluate(std::vector<int64_t>{int64_t{1} << 30, 6, 10}, t.plan(wanted), values).value();
  CHECK_EQ(text, "x.size(0)*x.size(0)*x.size(0) does not fit 64 bits: x.size(0) is 1073741824");
  CHECK_EQ(t.text(t.parse("-9223372036854775808")), "-9223372036854775808");
  CHECK(!t.decides("9223372036854775807 < s0"));
}

TEST(division_by_zero_is_an_error_now_and_a_guard_later) {
  Table t;
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("s0 // (s1 - 6)")), "division by zero: s1 - 6 is 0");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("s0 % 0")), "division by zero");
  t.parse("s0 // (s1 - 5)");
  CHECK_EQ(t.all_guards(), "s1 != 5");
}

TEST(types_are_checked) {
  Table t;
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("s0 + (s1 == 2*s2)")), "+ takes an integer, but s1 == 2*s2 is a condition");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("not s0")), "not takes a condition");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("2.5 % s0")), "% takes an integer");
  CHECK_HAS(CHECK_THROWS(UserError, t.decide(t.s0)), "a condition");
}

TEST(text_that_is_no_expression_is_refused_with_the_place) {
  Table t;
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("s0 +")), "\"s0 +\" is not an expression of sizes: expected a number");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("s0 s1")), "expected the end at character 4");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("(s0")), "\")\"");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("q7")), "a symbol of the graph");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("")), "a number");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("1.2.3")), "a number");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse(".")), "a number");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("1e")), "a number");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse(std::string(100000, '('))), "less nesting");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse(std::string(100000, '-'))), "less nesting");
  CHECK_HAS(CHECK_THROWS(UserError, t.parse("2**-3")), "make it a float");
}

TEST(repeated_squaring_stays_cheap) {
  Table t;
  ExprId expr = t.s0;
  for (int i = 0; i < 60; ++i) expr = t.add(t.floordiv(t.mul(expr, expr), t.add(expr, t.s1)), t.integer(1));
  CHECK(t.decide(t.gt(t.add(expr, t.s2), t.s1)));
  CHECK(t.decides("s0 % 2 == 0"));
  CHECK(t.type(t.simplify(expr)) == Symbols::Type::Int);
}

// ---- random expressions against plain arithmetic

namespace {

using Sizes = std::vector<int64_t>;
struct Undefined {};  // a division by zero, or a number too large

int64_t small(int64_t value) {
  if (std::abs(value) > int64_t{1} << 40) throw Undefined();
  return value;
}

// An expression in the table, and how to compute it without.
struct Both {
  ExprId expr;
  std::function<int64_t(const Sizes&)> value;
};

int64_t python_floordiv(int64_t a, int64_t b) {
  if (b == 0) throw Undefined();
  return static_cast<int64_t>(std::floor(static_cast<long double>(a) / static_cast<long double>(b)));
}

struct Generator {
  std::mt19937 random;
  Symbols& symbols;

  int pick(int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); }

  Both leaf() {
    if (pick(3)) {
      size_t index = static_cast<size_t>(pick(static_cast<int>(symbols.symbols().size())));
      return {symbols.symbols()[index].expr, [index](const Sizes& sizes) { return sizes[index]; }};
    }
    int64_t number = pick(12) - 4;
    return {symbols.integer(number), [number](const Sizes&) { return number; }};
  }

  // UserError: the recorded sizes do not allow it.
  Both number(int depth) {
    if (depth == 0) return leaf();
    Both a = number(depth - 1), b = number(pick(depth));
    auto make = [&](ExprId (Symbols::*build)(ExprId, ExprId), auto compute) {
      return Both{(symbols.*build)(a.expr, b.expr), [a = a.value, b = b.value, compute](const Sizes& sizes) {
                    return small(compute(a(sizes), b(sizes)));
                  }};
    };
    switch (pick(8)) {
      case 0: return make(&Symbols::sub, [](int64_t x, int64_t y) { return x - y; });
      case 1: return make(&Symbols::mul, [](int64_t x, int64_t y) { return small(x * y); });
      case 2: return make(&Symbols::floordiv, [](int64_t x, int64_t y) { return python_floordiv(x, y); });
      case 3: return make(&Symbols::mod, [](int64_t x, int64_t y) { return x - y * python_floordiv(x, y); });
      case 4: return make(&Symbols::min, [](int64_t x, int64_t y) { return std::min(x, y); });
      case 5: return make(&Symbols::max, [](int64_t x, int64_t y) { return std::max(x, y); });
      default: return make(&Symbols::add, [](int64_t x, int64_t y) { return x + y; });
    }
  }

  Both comparison(int depth) {
    Both a = number(depth), b = number(pick(depth + 1));
    int kind = pick(4);
    ExprId expr = kind == 0   ? symbols.eq(a.expr, b.expr)
                  : kind == 1 ? symbols.ne(a.expr, b.expr)
                  : kind == 2 ? symbols.lt(a.expr, b.expr)
                              : symbols.le(a.expr, b.expr);
    return {expr, [a = a.value, b = b.value, kind](const Sizes& sizes) -> int64_t {
              int64_t x = a(sizes), y = b(sizes);
              return kind == 0 ? x == y : kind == 1 ? x != y : kind == 2 ? x < y : x <= y;
            }};
  }

  Both condition(int depth) {
    Both a = comparison(depth);
    if (pick(3)) return a;
    Both b = comparison(depth);
    bool both = pick(2);
    ExprId expr = both ? symbols.logical_and(a.expr, b.expr) : symbols.logical_or(a.expr, symbols.logical_not(b.expr));
    return {expr, [a = a.value, b = b.value, both](const Sizes& sizes) -> int64_t {
              return both ? (a(sizes) & b(sizes)) : (a(sizes) | !b(sizes));
            }};
  }

  Sizes sizes() {
    Sizes result;
    for (size_t i = 0; i < symbols.symbols().size(); ++i) result.push_back(2 + pick(11));
    return result;
  }
};

// None where plain arithmetic is undefined.
std::optional<int64_t> plain(const Both& both, const Sizes& sizes) {
  try {
    return both.value(sizes);
  } catch (Undefined) {
    return std::nullopt;
  }
}

void add_symbols(Symbols& symbols, std::mt19937& random) {
  for (uint32_t i = 0; i < 3; ++i) symbols.add_symbol(2 + random() % 11, {i, 0, ""});
}

}  // namespace

TEST(simplified_expressions_have_the_values_of_the_written_ones) {
  size_t compared = 0, simplified = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Symbols symbols;
    Generator generator{std::mt19937(seed), symbols};
    add_symbols(symbols, generator.random);
    std::vector<Both> all;
    for (int i = 0; i < 6; ++i) {
      try {
        all.push_back(i % 2 ? generator.condition(2) : generator.number(1 + generator.pick(4)));
      } catch (const UserError&) {
      }
    }
    std::vector<ExprId> wanted;
    for (const Both& both : all) wanted.push_back(both.expr);
    std::vector<ExprId> plan = symbols.plan(wanted);
    std::vector<Number> values(symbols.size());
    for (int sample = 0; sample < 20; ++sample) {
      Sizes sizes = generator.sizes();
      // A divisor that is zero breaks a guard.
      if (symbols.evaluate(sizes, plan, values) || symbols.check(sizes, values)) continue;
      for (const Both& both : all) {
        auto expected = plain(both, sizes);
        if (!expected) continue;
        if (values[both.expr].integer != *expected) {
          check::fail(__FILE__, __LINE__,
                      "seed " + std::to_string(seed) + ": " + symbols.text(both.expr) + " is " +
                          std::to_string(values[both.expr].integer) + ", not " + std::to_string(*expected));
        }
        ++compared;
        simplified += symbols.is_constant(both.expr);
      }
    }
    for (const Both& both : all) {
      std::string text = symbols.text(symbols.simplify(both.expr));
      CHECK_EQ(symbols.text(symbols.parse(text)), text);
    }
  }
  CHECK(compared > 100000);
  CHECK(simplified > 1000);
}

TEST(guards_hold_exactly_where_the_decided_answers_do) {
  size_t held = 0, broken = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Symbols symbols;
    Generator generator{std::mt19937(seed), symbols};
    add_symbols(symbols, generator.random);
    bool joined = seed % 3 == 0;  // a guard for one part of "a and b" is stricter than needed
    std::vector<std::pair<Both, bool>> decided;
    std::vector<Both> later;
    for (int i = 0; i < 4; ++i) {
      try {
        Both both = joined ? generator.condition(2) : generator.comparison(2);
        decided.emplace_back(both, symbols.decide(both.expr));
        later.push_back(generator.number(3));
      } catch (const UserError&) {
      }
    }
    std::vector<ExprId> wanted;
    for (Both& both : later) {
      wanted.push_back(both.expr);
      wanted.push_back(symbols.simplify(both.expr));
    }
    std::vector<ExprId> plan = symbols.plan(wanted);
    std::vector<Number> values(symbols.size());
    Sizes recorded;
    for (const Symbol& symbol : symbols.symbols()) recorded.push_back(symbol.hint);
    for (int sample = 0; sample < 40; ++sample) {
      Sizes sizes = sample ? generator.sizes() : recorded;
      auto problem = symbols.evaluate(sizes, plan, values);
      if (!problem) problem = symbols.check(sizes, values);
      bool same = true, defined = true;
      for (const auto& [both, answer] : decided) {
        auto value = plain(both, sizes);
        defined = defined && value;
        same = same && value == static_cast<int64_t>(answer);
      }
      std::string where = "seed " + std::to_string(seed) + ", sizes " + std::to_string(sizes[0]) + " " +
                          std::to_string(sizes[1]) + " " + std::to_string(sizes[2]) + ": ";
      if (sample == 0 && problem) check::fail(__FILE__, __LINE__, where + *problem);
      if (!problem && defined && !same) check::fail(__FILE__, __LINE__, where + "an answer changed");
      if (problem) {
        bool all_defined = defined;
        for (const Both& both : later) all_defined = all_defined && plain(both, sizes);
        if (all_defined && same && !joined && decided.size() == 4 && later.size() == 4)
          check::fail(__FILE__, __LINE__, where + "needlessly refused: " + *problem);
        ++broken;
        continue;
      }
      ++held;
      for (const Both& both : later) {
        auto expected = plain(both, sizes);
        if (!expected) continue;
        if (values[both.expr].integer != *expected || values[symbols.simplify(both.expr)].integer != *expected)
          check::fail(__FILE__, __LINE__, where + symbols.text(both.expr) + " is not " + std::to_string(*expected));
      }
    }
  }
  CHECK(held > 10000);
  CHECK(broken > 10000);
}
