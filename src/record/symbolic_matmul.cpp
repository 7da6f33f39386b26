// Which products matmul is made of.
#include "record/symbolic_matmul.h"

#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "record/rules_common.h"
#include "record/trace_tensor.h"

namespace magneto::record {
namespace {

using at::Tensor;
using c10::SymDimVector;
using c10::SymInt;
using c10::SymIntArrayRef;
using rules::product;

// All dimensions but the last are one in memory.
bool is_foldable(SymIntArrayRef sizes, SymIntArrayRef strides) {
  for (size_t i = 0; i + 2 < sizes.size(); ++i) {
    if (strides[i] != strides[i + 1] * sizes[i + 1]) return false;
  }
  return true;
}

// Whether the batch dimensions of one side become rows of a single matrix.
bool folds(const Tensor& left, const Tensor& right) {
  bool left_is_batch = left.dim() >= right.dim();
  Tensor batch = left_is_batch ? left : right.mT();
  const Tensor& matrix = left_is_batch ? right : left;
  if (batch.dim() < 3 || matrix.dim() > 2) return false;
  if (matrix.requires_grad()) return true;  // or its gradient would be as large as the batch
  if (left.dim() == 2) return false;
  return batch.sym_numel() == 0 || is_foldable(batch.sym_sizes(), batch.sym_strides());
}

Tensor multiply_folded(const Tensor& left, const Tensor& right) {
  bool turn = right.dim() > left.dim();
  Tensor batch = turn ? right.mT() : left;
  Tensor matrix = !turn ? right : left.dim() == 2 ? left.t() : left;
  SymDimVector sizes(batch.sym_sizes().slice(0, batch.dim() - 1));
  Tensor rows = batch.reshape_symint({product(sizes), batch.sym_size(-1)});
  if (matrix.dim() == 1) return at::_unsafe_view_symint(rows.mv(matrix), sizes);
  sizes.push_back(matrix.sym_size(1));
  Tensor result = at::_unsafe_view_symint(rows.mm(matrix), sizes);
  return turn ? result.mT().contiguous() : result;
}

SymDimVector joined(SymIntArrayRef batch, std::initializer_list<SymInt> rest) {
  SymDimVector sizes(batch);
  sizes.append(rest.begin(), rest.end());
  return sizes;
}

Tensor multiply_batches(const Tensor& left, const Tensor& right) {
  bool is_vector = right.dim() == 1;
  SymInt rows = left.dim() > 1 ? left.sym_size(-2) : SymInt(1), inner = left.sym_size(-1);
  SymInt right_inner = is_vector ? right.sym_size(0) : right.sym_size(-2);
  SymInt columns = is_vector ? SymInt(1) : right.sym_size(-1);
  SymIntArrayRef left_batch = left.sym_sizes().slice(0, std::max<int64_t>(left.dim() - 2, 0));
  SymIntArrayRef right_batch = right.sym_sizes().slice(0, std::max<int64_t>(right.dim() - 2, 0));
  if (left.dim() == 3 && right.dim() == 3 && left_batch[0] != right_batch[0]) {
    if (left_batch[0] == 1 && left.requires_grad()) return symbolic_matmul(left.squeeze(0), right);
    if (right_batch[0] == 1 && right.requires_grad()) return symbolic_matmul(left, right.squeeze(0));
  }
  SymDimVector batch = at::infer_size_symdimvector(left_batch, right_batch);
  SymInt count = product(batch);
  Tensor matrices = left.expand_symint(joined(batch, {rows, inner})).reshape_symint({count, rows, inner});
  Tensor others = right.expand_symint(is_vector ? joined(batch, {right_inner}) : joined(batch, {right_inner, columns}));
  others = is_vector ? others.reshape_symint({count, right_inner}).unsqueeze(2)
                     : others.reshape_symint({count, right_inner, columns});
  if (left.dim() > 1) batch.push_back(rows);
  if (!is_vector) batch.push_back(columns);
  Tensor result = matrices.bmm(others);
  return at::_unsafe_view_symint(is_vector ? result.squeeze(-1) : result, batch);
}

}  // namespace

bool needs_symbolic_matmul(const Tensor& left, const Tensor& right) {
  return (is_symbolic(left) || is_symbolic(right)) && std::max(left.dim(), right.dim()) > 2 &&
         std::min(left.dim(), right.dim()) > 0;
}

Tensor symbolic_matmul(Tensor left, Tensor right) {
  // As autocast's own kernel for matmul does.
  c10::DeviceType device = left.device().type();
  bool cast =
      at::autocast::is_autocast_enabled(device) &&
      !c10::impl::tls_is_dispatch_key_excluded(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  if (cast) {
    auto type = at::autocast::get_lower_precision_fp_from_device_type(device);
    left = at::autocast::cached_cast(type, left, device);
    right = at::autocast::cached_cast(type, right, device);
  }
  c10::impl::ExcludeDispatchKeyGuard no_autocast(cast ? c10::autocast_dispatch_keyset : c10::DispatchKeySet());
  return folds(left, right) ? multiply_folded(left, right) : multiply_batches(left, right);
}

}  // namespace magneto::record
