// Rules for decompositions of matrices and for Fourier transforms, as the CPU's libraries leave them in memory.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// --- Matrices: the last two dimensions; the others are a batch ---

bool is_square(const at::Tensor& a) {
  return a.dim() >= 2 && (a.scalar_type() == ScalarType::Float || a.scalar_type() == ScalarType::Double) &&
         a.sym_size(-1) == a.sym_size(-2) && product(a.sym_sizes()) != 0;
}

// Libraries for matrices have columns in a row.
at::Tensor make_by_column(const at::Tensor& like, SymIntArrayRef sizes) {
  Sizes strides = contiguous_strides(sizes);
  strides[sizes.size() - 1] = sizes[sizes.size() - 2];
  strides[sizes.size() - 2] = 1;
  return make_trace(sizes, strides, 0, like.scalar_type(), like.device());
}

at::Tensor make_square(const at::Tensor& a) { return make_by_column(a, a.sym_sizes()); }

// One number for each matrix, or row.
at::Tensor make_each(const at::Tensor& a, size_t dropped, ScalarType type) {
  return make(a.sym_sizes().slice(0, a.dim() - dropped), type, a.device());
}

at::Tensor info_of(const at::Tensor& a) { return make_each(a, 2, ScalarType::Int); }
at::Tensor pivots_of(const at::Tensor& a) { return make_each(a, 1, ScalarType::Int); }

// (A, ...): a matrix like it, and whether that went well
bool matrix_and_info(Args args, Stack& results) {
  const at::Tensor& a = args[0].toTensor();
  return is_square(a) && give(results, make_square(a), info_of(a));
}

bool det(Args args, Stack& results) {
  const at::Tensor& a = args[0].toTensor();
  return is_square(a) && give(results, make_each(a, 2, a.scalar_type()), make_square(a), pivots_of(a));
}

bool slogdet(Args args, Stack& results) {
  const at::Tensor& a = args[0].toTensor();
  return is_square(a) && give(results, make_each(a, 2, a.scalar_type()), make_each(a, 2, a.scalar_type()),
                              make_square(a), pivots_of(a));
}

// Whether `b` has columns for each matrix of `a`.
bool goes_with(const at::Tensor& a, const at::Tensor& b) {
  return is_square(a) && b.dim() == a.dim() && b.scalar_type() == a.scalar_type() && product(b.sym_sizes()) != 0 &&
         b.sym_sizes().slice(0, b.dim() - 1) == a.sym_sizes().slice(0, a.dim() - 1);
}

// (A, B, *, left, check_errors)
bool solve(Args args, Stack& results) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  if (!goes_with(a, b) || !args[2].toBool()) return false;
  return give(results, make_by_column(b, b.sym_sizes()), make_square(a), pivots_of(a), info_of(a));
}

// (LU, pivots, B, *, left, adjoint)
bool lu_solve(Args args, Stack& results) {
  const at::Tensor &lu = args[0].toTensor(), &b = args[2].toTensor();
  if (!goes_with(lu, b) || !args[3].toBool()) return false;
  return give(results, make_by_column(b, b.sym_sizes()));
}

// (A, UPLO, compute_v)
bool eigh(Args args, Stack& results) {
  const at::Tensor& a = args[0].toTensor();
  if (!is_square(a) || !args[2].toBool()) return false;
  return give(results, make_each(a, 1, a.scalar_type()), make_square(a));
}

// (A, full_matrices, compute_uv, *, driver)
bool svd(Args args, Stack& results) {
  const at::Tensor& a = args[0].toTensor();
  if (a.dim() < 2 || !a.is_cpu() || product(a.sym_sizes()) == 0) return false;
  if (a.scalar_type() != ScalarType::Float && a.scalar_type() != ScalarType::Double) return false;
  Sizes batch(a.sym_sizes().slice(0, a.dim() - 2));
  auto with = [&](std::initializer_list<SymInt> more) {
    Sizes sizes = batch;
    sizes.append(more.begin(), more.end());
    return sizes;
  };
  SymInt rows = a.sym_size(-2), columns = a.sym_size(-1), rank = rows < columns ? rows : columns;
  at::Tensor values = make_for(a, with({rank}));
  if (!args[2].toBool()) return give(results, make_for(a, {0}), values, make_for(a, {0}));
  bool full = args[1].toBool();
  return give(results, make_by_column(a, with({rows, full ? rows : rank})), values,
              make_by_column(a, with({full ? columns : rank, columns})));
}

// --- Fourier transforms, of contiguous tensors on the CPU ---

// What was transformed goes last in memory.
bool give_transformed(const at::Tensor& self, const std::vector<int64_t>& asked, SymIntArrayRef sizes, ScalarType type,
                      Stack& results) {
  if (!self.is_cpu() || !is_plain(self)) return false;
  if (self.sym_strides() != SymIntArrayRef(contiguous_strides(self.sym_sizes()))) return false;  // also where size is 1
  c10::SmallVector<bool, 5> transformed(sizes.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i] < 0 || asked[i] >= self.dim() || (i > 0 && asked[i] <= asked[i - 1])) return false;
    transformed[asked[i]] = true;
  }
  if (asked.empty() || asked.size() > 3) return false;
  Sizes strides(sizes.size());
  SymInt next = 1;
  for (bool inner : {true, false}) {
    for (size_t dim = sizes.size(); dim-- > 0;) {
      if (transformed[dim] != inner) continue;
      if (sizes[dim] < 1) return false;
      strides[dim] = next;
      next *= sizes[dim];
    }
  }
  return give(results, make_trace(sizes, strides, 0, type, self.device()));
}

// (self, dim, normalization, forward)
bool fft(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is(self.scalar_type(), kComplex)) return false;
  return give_transformed(self, args[1].toIntVector(), self.sym_sizes(), self.scalar_type(), results);
}

// (self, dim, normalization, onesided): of the last dimension, one half says all
bool fft_of_real(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  ScalarType type = self.scalar_type();
  auto dims = args[1].toIntVector();
  if ((type != ScalarType::Float && type != ScalarType::Double) || dims.empty() || !wrap(dims.back(), self.dim()))
    return false;
  Sizes sizes(self.sym_sizes());
  if (args[3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  return give_transformed(self, dims, sizes, c10::toComplexType(type), results);
}

// (self, dim, normalization, last_dim_size)
bool fft_to_real(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dims = args[1].toIntVector();
  if (!is(self.scalar_type(), kComplex) || dims.empty() || !wrap(dims.back(), self.dim())) return false;
  Sizes sizes(self.sym_sizes());
  sizes[dims.back()] = args[3].toSymInt();
  return give_transformed(self, dims, sizes, c10::toRealValueType(self.scalar_type()), results);
}

constexpr Row kLinalgRules[] = {
    {"aten::linalg_inv_ex", matrix_and_info},
    {"aten::linalg_cholesky_ex", matrix_and_info},
    {"aten::_linalg_det", det},
    {"aten::_linalg_slogdet", slogdet},
    {"aten::_linalg_solve_ex", solve},
    {"aten::linalg_lu_solve", lu_solve},
    {"aten::_linalg_eigh", eigh},
    {"aten::_linalg_svd", svd},
    {"aten::_fft_c2c", fft},
    {"aten::_fft_r2c", fft_of_real},
    {"aten::_fft_c2r", fft_to_real},
};

}  // namespace

Rows linalg_rules() { return kLinalgRules; }

}  // namespace magneto::record::rules
