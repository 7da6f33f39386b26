// The nodes through which torch computes with symbolic sizes; all work is done by graph::Symbols.
#include "record/sym_node.h"

#include <c10/core/SymNodeImpl.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/torch_python.h"

namespace magneto::record {
namespace {

using c10::SymNode;
using graph::ExprId;
using graph::Symbols;
using Exprs = std::vector<ExprId>;

// ---- questions about layout, as c10 answers them for numbers

// The memory is filled without gaps, the dimensions being taken in this order, innermost first.
bool is_dense_in_order(Symbols& symbols, const Exprs& sizes, const Exprs& strides, const std::vector<size_t>& order) {
  ExprId one = symbols.integer(1), expected = one;
  for (size_t dimension : order) {
    if (symbols.decide(symbols.eq(sizes[dimension], one))) continue;
    if (!symbols.decide(symbols.eq(strides[dimension], expected))) return false;
    expected = symbols.mul(expected, sizes[dimension]);
  }
  return true;
}

bool is_empty(Symbols& symbols, const Exprs& sizes) {
  ExprId zero = symbols.integer(0);
  return std::ranges::any_of(sizes, [&](ExprId size) { return symbols.decide(symbols.eq(size, zero)); });
}

std::vector<size_t> last_to_first(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

// Channels innermost, then the others from the last to the second, the batch outermost.
std::vector<size_t> channels_last(size_t count) {
  std::vector<size_t> order{1};
  for (size_t i = count - 1; i >= 2; --i) order.push_back(i);
  order.push_back(0);
  return order;
}

bool has_channels_last_strides(Symbols& symbols, const Exprs& sizes, const Exprs& strides) {
  ExprId zero = symbols.integer(0), one = symbols.integer(1), least = zero;
  if (symbols.decide(symbols.eq(strides[1], zero))) return false;
  for (size_t dimension : channels_last(sizes.size())) {
    if (symbols.decide(symbols.eq(sizes[dimension], zero))) return false;
    if (symbols.decide(symbols.lt(strides[dimension], least))) return false;
    // N111 and 1C11 with the strides of a plain tensor are taken for plain.
    if (dimension == 0 && symbols.decide(symbols.eq(least, strides[1]))) return false;
    least = strides[dimension];
    if (symbols.decide(symbols.gt(sizes[dimension], one))) least = symbols.mul(least, sizes[dimension]);
  }
  return true;
}

bool is_non_overlapping_and_dense(Symbols& symbols, const Exprs& sizes, const Exprs& strides) {
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!symbols.decide(symbols.eq(sizes[i], symbols.integer(1)))) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return symbols.hint(strides[i]).integer; });
  if (is_dense_in_order(symbols, sizes, strides, order)) return true;
  // In another order it might be: this one must stay.
  for (size_t i = 1; i < order.size(); ++i) symbols.decide(symbols.le(strides[order[i - 1]], strides[order[i]]));
  return false;
}

// ---- the node

class Node final : public c10::SymNodeImpl {
 public:
  Node(std::shared_ptr<Symbols> symbols, ExprId expr) : symbols_(std::move(symbols)), expr_(expr) {}

  static std::optional<ExprId> find(const SymNode& number, const Symbols& symbols) {
    auto* node = dynamic_cast<const Node*>(number.get());
    if (!node) {
      SymNode plain = runtime::unwrap_node(number);
      return plain == number ? std::nullopt : find(plain, symbols);
    }
    return node->symbols_.get() == &symbols ? std::optional(node->expr_) : std::nullopt;
  }

  static Node* of_any(const c10::SymInt& number) {
    return number.is_heap_allocated() ? dynamic_cast<Node*>(runtime::unwrap_node(number.toSymNode()).get()) : nullptr;
  }
  const std::shared_ptr<Symbols>& symbols() const { return symbols_; }
  graph::Number hint() const { return symbols_->hint(expr_); }

  bool is_int() override { return type() == Symbols::Type::Int; }
  bool is_bool() override { return type() == Symbols::Type::Bool; }
  bool is_float() override { return type() == Symbols::Type::Float; }

  SymNode add(const SymNode& other) override { return make(symbols_->add(expr_, of(other))); }
  SymNode sub(const SymNode& other) override { return make(symbols_->sub(expr_, of(other))); }
  SymNode mul(const SymNode& other) override { return make(symbols_->mul(expr_, of(other))); }
  SymNode truediv(const SymNode& other) override { return make(symbols_->truediv(expr_, of(other))); }
  SymNode floordiv(const SymNode& other) override { return make(symbols_->floordiv(expr_, of(other))); }
  SymNode mod(const SymNode& other) override { return make(symbols_->mod(expr_, of(other))); }
  SymNode pow(const SymNode& other) override { return make(symbols_->pow(expr_, of(other))); }
  SymNode neg() override { return make(symbols_->neg(expr_)); }
  SymNode ceil() override { return make(symbols_->ceil(expr_)); }
  SymNode floor() override { return make(symbols_->floor(expr_)); }
  SymNode sym_min(const SymNode& other) override { return make(symbols_->min(expr_, of(other))); }
  SymNode sym_max(const SymNode& other) override { return make(symbols_->max(expr_, of(other))); }
  SymNode sym_float() override { return make(symbols_->to_float(expr_)); }

  SymNode eq(const SymNode& other) override { return make(symbols_->eq(expr_, of(other))); }
  SymNode ne(const SymNode& other) override { return make(symbols_->ne(expr_, of(other))); }
  SymNode gt(const SymNode& other) override { return make(symbols_->gt(expr_, of(other))); }
  SymNode lt(const SymNode& other) override { return make(symbols_->lt(expr_, of(other))); }
  SymNode le(const SymNode& other) override { return make(symbols_->le(expr_, of(other))); }
  SymNode ge(const SymNode& other) override { return make(symbols_->ge(expr_, of(other))); }
  SymNode sym_or(const SymNode& other) override { return make(symbols_->logical_or(expr_, of(other))); }
  SymNode sym_and(const SymNode& other) override { return make(symbols_->logical_and(expr_, of(other))); }
  SymNode sym_not() override { return make(symbols_->logical_not(expr_)); }
  SymNode sym_ite(const SymNode& then, const SymNode& otherwise) override {
    return make(symbols_->decide(expr_) ? of(then) : of(otherwise));
  }

  SymNode is_contiguous(c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) override {
    return ask(
        [](Symbols& symbols, const Exprs& sizes, const Exprs& strides) {
          return is_empty(symbols, sizes) || is_dense_in_order(symbols, sizes, strides, last_to_first(sizes.size()));
        },
        sizes, strides);
  }
  SymNode is_channels_last_contiguous_2d(c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) override {
    return channels_last_contiguous(4, sizes, strides);
  }
  SymNode is_channels_last_contiguous_3d(c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) override {
    return channels_last_contiguous(5, sizes, strides);
  }
  SymNode is_channels_last_strides_2d(c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) override {
    return sizes.size() == 4 ? ask(has_channels_last_strides, sizes, strides) : wrap_bool(false);
  }
  SymNode is_channels_last_strides_3d(c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) override {
    return sizes.size() == 5 ? ask(has_channels_last_strides, sizes, strides) : wrap_bool(false);
  }
  SymNode is_non_overlapping_and_dense(c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) override {
    return ask(record::is_non_overlapping_and_dense, sizes, strides);
  }

  SymNode clone() override { return make(expr_); }
  SymNode wrap_int(int64_t number) override { return make(symbols_->integer(number)); }
  SymNode wrap_float(double number) override { return make(symbols_->real(number)); }
  SymNode wrap_bool(bool number) override { return make(symbols_->boolean(number)); }

  int64_t guard_int(const char*, int64_t) override { return int_(); }
  bool guard_bool(const char*, int64_t) override { return bool_(); }
  double guard_float(const char*, int64_t) override { return symbols_->specialise_float(symbols_->to_float(expr_)); }
  // Every size has a hint here, so these ask as guard_bool does: a general path could give other strides than eager.
  bool guard_size_oblivious(const char*, int64_t) override { return bool_(); }
  bool guard_or_false(const char*, int64_t) override { return bool_(); }
  bool guard_or_true(const char*, int64_t) override { return bool_(); }
  bool expect_true(const char*, int64_t) override { return bool_(); }
  bool statically_known_true(const char*, int64_t) override { return symbols_->known(expr_).value_or(false); }
  int64_t int_() override { return symbols_->specialise(expr_); }
  bool bool_() override { return symbols_->decide(expr_); }
  bool has_hint() override { return true; }

  std::string str() override { return symbols_->text(symbols_->simplify(expr_)); }
  std::optional<int64_t> constant_int() override {
    if (!is_int()) return std::nullopt;
    ExprId now = symbols_->simplify(expr_);
    return symbols_->is_constant(now) ? std::optional(symbols_->hint(now).integer) : std::nullopt;
  }
  std::optional<bool> constant_bool() override { return is_bool() ? symbols_->known(expr_) : std::nullopt; }
  std::optional<int64_t> maybe_as_int() override { return constant_int(); }
  bool is_constant() override { return symbols_->is_constant(symbols_->simplify(expr_)); }
  bool is_symbolic() override { return !is_constant(); }

 private:
  Symbols::Type type() const { return symbols_->type(expr_); }
  SymNode make(ExprId expr) const { return c10::make_intrusive<Node>(symbols_, expr); }

  // A number of other symbols counts as the number that it was in its own recording.
  ExprId of(const SymNode& other) const {
    if (auto expr = find(other, *symbols_)) return *expr;
    if (other->is_int()) return symbols_->integer(other->guard_int(__FILE__, __LINE__));
    if (other->is_float()) return symbols_->real(other->guard_float(__FILE__, __LINE__));
    return symbols_->boolean(other->guard_bool(__FILE__, __LINE__));
  }

  template <class Question>
  SymNode ask(Question question, c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) {
    auto all = [&](c10::ArrayRef<SymNode> nodes) {
      Exprs exprs;
      for (const SymNode& node : nodes) exprs.push_back(of(node));
      return exprs;
    };
    return wrap_bool(question(*symbols_, all(sizes), all(strides)));
  }

  SymNode channels_last_contiguous(size_t dimensions, c10::ArrayRef<SymNode> sizes, c10::ArrayRef<SymNode> strides) {
    if (sizes.size() != dimensions) return wrap_bool(false);
    return ask(
        [](Symbols& symbols, const Exprs& sizes, const Exprs& strides) {
          return is_dense_in_order(symbols, sizes, strides, channels_last(sizes.size()));
        },
        sizes, strides);
  }

  std::shared_ptr<Symbols> symbols_;
  ExprId expr_;
};

std::optional<ExprId> expr_of_node(const SymNode& number, Symbols& symbols) {
  auto expr = Node::find(number, symbols);
  if (expr) expr = symbols.simplify(*expr);
  return expr && symbols.is_constant(*expr) ? std::nullopt : expr;
}

}  // namespace

c10::SymInt make_sym(std::shared_ptr<Symbols> symbols, ExprId expr) {
  expr = symbols->simplify(expr);
  if (symbols->is_constant(expr)) return symbols->hint(expr).integer;
  return c10::SymInt(SymNode(c10::make_intrusive<Node>(std::move(symbols), expr)));
}

c10::SymFloat make_sym_float(std::shared_ptr<Symbols> symbols, ExprId expr) {
  expr = symbols->simplify(expr);
  if (symbols->is_constant(expr)) return symbols->hint(expr).real;
  return c10::SymFloat(SymNode(c10::make_intrusive<Node>(std::move(symbols), expr)));
}

c10::SymBool make_sym_bool(std::shared_ptr<Symbols> symbols, ExprId expr) {
  if (auto known = symbols->known(expr)) return *known;
  return c10::SymBool(SymNode(c10::make_intrusive<Node>(std::move(symbols), expr)));
}

c10::SymInt make_unknown(const c10::SymInt& like, int64_t hint) {
  const auto& symbols = Node::of_any(like)->symbols();
  return make_sym(symbols, symbols->add_symbol(hint, {0, graph::SymbolSource::kUnknown}));
}

int64_t hint_of(const c10::SymInt& number) {
  const Node* node = Node::of_any(number);
  return node ? node->hint().integer : number.guard_int(__FILE__, __LINE__);
}

std::optional<ExprId> expr_of(const c10::SymInt& number, Symbols& symbols) {
  return number.is_heap_allocated() ? expr_of_node(number.toSymNode(), symbols) : std::nullopt;
}

std::optional<ExprId> expr_of(const c10::SymFloat& number, Symbols& symbols) {
  return number.is_symbolic() ? expr_of_node(number.toSymNodeImpl(), symbols) : std::nullopt;
}

std::optional<ExprId> expr_of(const c10::SymBool& number, Symbols& symbols) {
  return number.is_heap_allocated() ? expr_of_node(number.toSymNodeImpl(), symbols) : std::nullopt;
}

std::optional<ExprId> expr_of(const c10::Scalar& number, Symbols& symbols) {
  if (number.isSymInt()) return expr_of(number.toSymInt(), symbols);
  if (number.isSymFloat()) return expr_of(number.toSymFloat(), symbols);
  if (number.isSymBool()) return expr_of(number.toSymBool(), symbols);
  return std::nullopt;
}

ExprId to_expr(const c10::SymInt& number, Symbols& symbols) {
  if (auto expr = expr_of(number, symbols)) return *expr;
  return symbols.integer(number.guard_int(__FILE__, __LINE__));
}

}  // namespace magneto::record
