// Rules for products and distances of matrices. Their results are contiguous, whatever the layout of the factors.
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

bool addmv(Args args, Stack& results) { return mv(args.slice(1, 2), results) && adds(args, results); }

// (self, a, b, ...): the products of all pairs of matrices, added up
bool addbmm(Args args, Stack& results) {
  Stack products;
  if (!bmm(args.slice(1, 2), products)) return false;
  const at::Tensor& each = products[0].toTensor();
  give(results, make_for(each, each.sym_sizes().slice(1)));
  return adds(args, results);
}

bool dot(Args args, Stack& results) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  if (!go_together(a, b) || a.dim() != 1 || b.dim() != 1 || a.sym_size(0) != b.sym_size(0)) return false;
  return give(results, make({}, a.scalar_type(), a.device()));
}

// (self, other, dim)
bool cross(Args args, Stack& results) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  auto dim = wrap(args[2].toInt(), a.dim());
  Elementwise both;
  both.add(a);
  both.add(b);
  if (!dim || a.dim() != b.dim() || a.dim() == 0 || !both.broadcast() || !go_together(a, b)) return false;
  return a.sym_size(*dim) == 3 && b.sym_size(*dim) == 3 && give(results, make_for(a, both.sizes()));
}

// (x1, x2, p, compute_mode): distances between rows
bool cdist(Args args, Stack& results) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  if (!go_together(a, b) || !a.is_cpu() || !is(a.scalar_type(), kFloating) || a.dim() < 2 || a.dim() != b.dim())
    return false;
  auto left = a.sym_sizes(), right = b.sym_sizes();
  const size_t batch = left.size() - 2;
  if (left.back() != right.back() || left.slice(0, batch) != right.slice(0, batch)) return false;
  Sizes sizes(left);
  sizes.back() = right[batch];
  return product(left) != 0 && product(right) != 0 && give(results, make_for(a, sizes));
}

// (grad, x1, x2, p, cdist), for `x1`
bool cdist_backward(Args args, Stack& results) {
  const at::Tensor &a = args[1].toTensor(), &b = args[2].toTensor();
  if (!a.is_cpu() || a.dim() != b.dim() || a.dim() < 2) return false;
  const size_t batch = a.dim() - 2;
  if (a.sym_sizes().slice(0, batch) != b.sym_sizes().slice(0, batch)) return false;
  return product(a.sym_sizes()) != 0 && product(b.sym_sizes()) != 0 && give(results, make_for(a, a.sym_sizes()));
}

// (self, p): distances between all pairs of rows
bool pdist(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!self.is_cpu() || self.dim() != 2 || !is(self.scalar_type(), kFloating) || product(self.sym_sizes()) == 0)
    return false;
  SymInt rows = self.sym_size(0);
  return give(results, make_for(self, rows * (rows - 1) / 2));
}

// (grad, self, p, pdist)
bool pdist_backward(Args args, Stack& results) {
  const at::Tensor& self = args[1].toTensor();
  return self.is_cpu() && self.dim() == 2 && give(results, make_for(self, self.sym_sizes()));
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
    {"aten::addmv", addmv},
    {"aten::addbmm", addbmm},
    {"aten::dot", dot},
    {"aten::vdot", dot},
    {"aten::linalg_cross", cross},
    {"aten::_cdist_forward", cdist},
    {"aten::_cdist_backward", cdist_backward},
    {"aten::_pdist_forward", pdist},
    {"aten::_pdist_backward", pdist_backward},
    {"aten::_grouped_mm", grouped_mm},
};

}  // namespace

Rows matmul_rules() { return kMatmulRules; }

}  // namespace magneto::record::rules
