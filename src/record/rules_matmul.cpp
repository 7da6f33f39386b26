// Rules for matrix products. Their results are contiguous, whatever the layout of the factors.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

bool go_together(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && is(a.scalar_type(), kNumber) && a.device() == b.device();
}

bool mm_of(const at::Tensor& a, const at::Tensor& b, Stack& results) {
  if (!go_together(a, b) || a.dim() != 2 || b.dim() != 2 || a.sym_size(1) != b.sym_size(0)) return false;
  return give(results, make({a.sym_size(0), b.sym_size(1)}, a.scalar_type(), a.device()));
}

bool bmm_of(const at::Tensor& a, const at::Tensor& b, Stack& results) {
  if (!go_together(a, b) || a.dim() != 3 || b.dim() != 3) return false;
  if (a.sym_size(0) != b.sym_size(0) || a.sym_size(2) != b.sym_size(1)) return false;
  return give(results, make({a.sym_size(0), a.sym_size(1), b.sym_size(2)}, a.scalar_type(), a.device()));
}

bool mm(Args args, Stack& results) { return mm_of(args[0].toTensor(), args[1].toTensor(), results); }
bool bmm(Args args, Stack& results) { return bmm_of(args[0].toTensor(), args[1].toTensor(), results); }

// Whether the summand (self) of (self, a, b, *, beta, alpha) goes with the product that was just put into `results`.
bool adds(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& product = results.back().toTensor();
  auto from = self.sym_sizes(), to = product.sym_sizes();
  bool fits = from.size() <= to.size() && self.scalar_type() == product.scalar_type() &&
              self.device() == product.device() && is(self.scalar_type(), kFloating);
  for (size_t i = 0; fits && i < from.size(); ++i) {
    const SymInt& size = from[from.size() - 1 - i];
    fits = size == 1 || size == to[to.size() - 1 - i];
  }
  if (!fits) results.pop_back();
  return fits;
}

bool addmm(Args args, Stack& results) { return mm(args.slice(1, 2), results) && adds(args, results); }
bool baddbmm(Args args, Stack& results) { return bmm(args.slice(1, 2), results) && adds(args, results); }

bool mv(Args args, Stack& results) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  if (!go_together(a, b) || a.dim() != 2 || b.dim() != 1 || a.sym_size(1) != b.sym_size(0)) return false;
  return give(results, make(a.sym_size(0), a.scalar_type(), a.device()));
}

bool dot(Args args, Stack& results) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  if (!go_together(a, b) || a.dim() != 1 || b.dim() != 1 || a.sym_size(0) != b.sym_size(0)) return false;
  return give(results, make({}, a.scalar_type(), a.device()));
}

// (a, b, offs, bias, out_dtype): groups of rows of one matrix times one matrix each, or groups of inner columns. Rows
// of the result begin at multiples of 16 bytes.
bool grouped_mm(Args args, Stack& results) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  bool plain = given(args[2]) && !given(args[3]) && (args[4].isNone() || args[4].toScalarType() == a.scalar_type());
  if (!plain || !go_together(a, b) || a.dim() != 2 || (b.dim() != 2 && b.dim() != 3)) return false;
  if (a.sym_size(1) != b.sym_size(b.dim() - 2)) return false;
  SymInt groups = args[2].toTensor().sym_size(0), rows = a.sym_size(0), columns = b.sym_size(b.dim() - 1);
  if (b.dim() == 3 && b.sym_size(0) != groups) return false;
  const int64_t align = 16 / static_cast<int64_t>(a.itemsize());
  SymInt step = (columns + (align - 1)) / align * align;
  if (b.dim() == 3) return give(results, make_trace({rows, columns}, {step, 1}, 0, a.scalar_type(), a.device()));
  return give(results, make_trace({groups, rows, columns}, {rows * step, step, 1}, 0, a.scalar_type(), a.device()));
}

constexpr Row kMatmulRules[] = {
    {"aten::mm", mm},
    {"aten::bmm", bmm},
    {"aten::addmm", addmm},
    {"aten::baddbmm", baddbmm},
    {"aten::mv", mv},
    {"aten::dot", dot},
    {"aten::_grouped_mm", grouped_mm},
};

}  // namespace

Rows matmul_rules() { return kMatmulRules; }

}  // namespace magneto::record::rules
