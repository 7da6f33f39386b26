// Symbolic sizes as torch sees them: torch.SymInt, SymFloat and SymBool over the expressions of a graph.
#pragma once
#include <c10/core/Scalar.h>
#include <c10/core/SymBool.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>

#include <memory>
#include <optional>

#include "graph/symbols.h"

namespace magneto::record {

// A plain number where the expression is constant. The type of the expression must be the one of the function's name.
c10::SymInt make_sym(std::shared_ptr<graph::Symbols> symbols, graph::ExprId expr);
c10::SymFloat make_sym_float(std::shared_ptr<graph::Symbols> symbols, graph::ExprId expr);
c10::SymBool make_sym_bool(std::shared_ptr<graph::Symbols> symbols, graph::ExprId expr);

// A number that no run can tell, over the symbols of `like`, which is symbolic; `hint` is what it is in this call.
c10::SymInt make_unknown(const c10::SymInt& like, int64_t hint);
// What it is in the recorded call; unlike guard_int this assumes nothing.
int64_t hint_of(const c10::SymInt& number);

// The expression behind a number that depends on `symbols`, simplified by what is assumed by now; never a constant.
// None: a plain number, or one of other symbols.
std::optional<graph::ExprId> expr_of(const c10::SymInt& number, graph::Symbols& symbols);
std::optional<graph::ExprId> expr_of(const c10::SymFloat& number, graph::Symbols& symbols);
std::optional<graph::ExprId> expr_of(const c10::SymBool& number, graph::Symbols& symbols);
std::optional<graph::ExprId> expr_of(const c10::Scalar& number, graph::Symbols& symbols);

// As expr_of, but a plain number becomes a constant, and one of other symbols the number that it was.
graph::ExprId to_expr(const c10::SymInt& number, graph::Symbols& symbols);

}  // namespace magneto::record
