// Rules for views: other sizes and strides over the memory of their argument.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// The geometry of a view in the making.
struct Shape {
  explicit Shape(const at::Tensor& tensor)
      : sizes(tensor.sym_sizes()), strides(tensor.sym_strides()), offset(tensor.sym_storage_offset()) {}

  at::Tensor over(const at::Tensor& base) const { return make_trace_view(base, sizes, strides, offset); }
  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  void drop(int64_t dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
  }

  Sizes sizes, strides;
  SymInt offset;
};

bool same(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return give(results, Shape(self).over(self));
}

bool itself(Args args, Stack& results) { return give(results, args[0]); }

bool view(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Sizes asked = sizes_of(args[1]);
  auto numbers = c10::asIntArrayRefSlowOpt(asked);
  if (numbers && !is_symbolic(self)) {
    auto sizes = at::infer_size_dv(*numbers, self.numel());  // -1 worked out
    auto strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
    return strides && give(results, make_trace_view(self, c10::fromIntArrayRefSlow(sizes),
                                                    c10::fromIntArrayRefSlow(*strides), self.storage_offset()));
  }
  auto sizes = at::infer_size_dv(SymIntArrayRef(asked), product(self.sym_sizes()));
  auto strides = at::detail::computeStride(self.sym_sizes(), self.sym_strides(), SymIntArrayRef(sizes));
  return strides && give(results, make_trace_view(self, sizes, *strides, self.sym_storage_offset()));
}

// What aten::reshape calls when it has worked out the strides.
bool reshape_alias(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return give(results, make_trace_view(self, sizes_of(args[1]), sizes_of(args[2]), self.sym_storage_offset()));
}

bool transpose(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  auto a = wrap(args[1].toInt(), shape.rank()), b = wrap(args[2].toInt(), shape.rank());
  if (!a || !b) return false;
  if (shape.rank() > 0) {
    std::swap(shape.sizes[*a], shape.sizes[*b]);
    std::swap(shape.strides[*a], shape.strides[*b]);
  }
  return give(results, shape.over(self));
}

bool t(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  if (shape.rank() > 2) return false;
  if (shape.rank() == 2) {
    std::swap(shape.sizes[0], shape.sizes[1]);
    std::swap(shape.strides[0], shape.strides[1]);
  }
  return give(results, shape.over(self));
}

bool permute(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape from(self), to(self);
  auto dims = args[1].toIntVector();
  if (static_cast<int64_t>(dims.size()) != from.rank()) return false;
  std::vector<bool> seen(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    auto dim = wrap(dims[i], from.rank());
    if (!dim || seen[*dim]) return false;
    seen[*dim] = true;
    to.sizes[i] = from.sizes[*dim];
    to.strides[i] = from.strides[*dim];
  }
  return give(results, to.over(self));
}

bool expand(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape from(self), to(self);
  to.sizes = sizes_of(args[1]);
  if (to.rank() < from.rank()) return false;
  size_t fresh = to.sizes.size() - from.sizes.size();
  to.strides.assign(to.sizes.size(), 0);
  for (size_t i = to.sizes.size(); i-- > 0;) {
    SymInt size = 1, stride = 0;
    if (i >= fresh) {
      size = from.sizes[i - fresh];
      stride = from.strides[i - fresh];
    } else if (from.rank() > 0) {  // a new dimension steps over the whole of what follows
      stride = to.sizes[i + 1] * to.strides[i + 1];
    }
    if (to.sizes[i] == -1) {
      if (i < fresh) return false;
      to.sizes[i] = size;
    }
    if (to.sizes[i] == size) {
      to.strides[i] = stride;
    } else if (size != 1) {
      return false;
    }
  }
  return give(results, to.over(self));
}

bool unsqueeze(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  auto dim = wrap(args[1].toInt(), shape.rank() + 1);
  if (!dim) return false;
  SymInt stride = *dim < shape.rank() ? shape.sizes[*dim] * shape.strides[*dim] : SymInt(1);
  shape.sizes.insert(shape.sizes.begin() + *dim, 1);
  shape.strides.insert(shape.strides.begin() + *dim, stride);
  return give(results, shape.over(self));
}

bool squeeze_dims(const at::Tensor& self, c10::ArrayRef<int64_t> dims, Stack& results) {
  Shape shape(self);
  c10::SmallVector<bool, 5> picked(std::max<int64_t>(shape.rank(), 1));
  for (int64_t asked : dims) {
    auto dim = wrap(asked, shape.rank());
    if (!dim) return false;
    picked[*dim] = true;
  }
  for (int64_t dim = shape.rank(); dim-- > 0;) {
    if (picked[dim] && shape.sizes[dim] == 1) shape.drop(dim);
  }
  return give(results, shape.over(self));
}

bool squeeze_dim(Args args, Stack& results) { return squeeze_dims(args[0].toTensor(), {args[1].toInt()}, results); }

bool squeeze_some(Args args, Stack& results) {
  return squeeze_dims(args[0].toTensor(), args[1].toIntVector(), results);
}

bool squeeze(Args args, Stack& results) {
  std::vector<int64_t> all;
  for (int64_t dim = 0; dim < args[0].toTensor().dim(); ++dim) all.push_back(dim);
  return squeeze_dims(args[0].toTensor(), all, results);
}

bool select(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  auto dim = wrap(args[1].toInt(), shape.rank());
  if (!dim || shape.rank() == 0) return false;
  SymInt index = args[2].toSymInt(), size = shape.sizes[*dim];
  if (index < -size || index >= size) return false;
  shape.offset += (index < 0 ? index + size : index) * shape.strides[*dim];
  shape.drop(*dim);
  return give(results, shape.over(self));
}

// `bound` counted from the start and moved into [0, size].
SymInt clamp_bound(SymInt bound, const SymInt& size) {
  if (bound < 0) bound += size;
  if (bound < 0) return 0;
  return bound > size ? size : bound;
}

bool slice(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  auto dim = wrap(args[1].toInt(), shape.rank());
  SymInt step = args[4].toSymInt();
  if (!dim || shape.rank() == 0 || step <= 0) return false;
  const SymInt size = shape.sizes[*dim];
  SymInt start = args[2].isNone() ? SymInt(0) : clamp_bound(args[2].toSymInt(), size);
  // "To the end" is written as the largest number, which must not meet a symbol.
  bool to_end = args[3].isNone() || (args[3].isInt() && args[3].toInt() == INT64_MAX);
  SymInt end = to_end ? size : clamp_bound(args[3].toSymInt(), size);
  if (end < start) end = start;
  shape.offset += start * shape.strides[*dim];
  shape.sizes[*dim] = step == 1 ? end - start : (end - start + step - 1) / step;
  shape.strides[*dim] *= step;
  return give(results, shape.over(self));
}

// `pieces` one after the other along `dim`.
bool split_into(const at::Tensor& self, int64_t dim, c10::ArrayRef<SymInt> pieces, Stack& results) {
  c10::List<at::Tensor> views;
  Shape shape(self);
  for (const SymInt& piece : pieces) {
    shape.sizes[dim] = piece;
    views.push_back(shape.over(self));
    shape.offset += piece * shape.strides[dim];
  }
  return give(results, std::move(views));
}

bool split(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dim = wrap(args[2].toInt(), self.dim());
  if (!dim || self.dim() == 0) return false;
  SymInt size = self.sym_size(*dim), piece = args[1].toSymInt();
  if (piece <= 0) return false;
  Sizes pieces;
  // How many pieces there are shapes the rest of the program.
  int64_t count = std::max<int64_t>(1, ((size + piece - 1) / piece).guard_int(__FILE__, __LINE__));
  for (int64_t i = 1; i < count; ++i) pieces.push_back(piece);
  pieces.push_back(size - piece * (count - 1));
  return split_into(self, *dim, pieces, results);
}

bool split_with_sizes(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dim = wrap(args[2].toInt(), self.dim());
  if (!dim || self.dim() == 0) return false;
  Sizes pieces = sizes_of(args[1]);
  SymInt sum = 0;
  for (const SymInt& piece : pieces) {
    if (piece < 0) return false;
    sum += piece;
  }
  return sum == self.sym_size(*dim) && split_into(self, *dim, pieces, results);
}

bool unbind(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  auto dim = wrap(args[1].toInt(), shape.rank());
  if (!dim || shape.rank() == 0) return false;
  int64_t count = shape.sizes[*dim].guard_int(__FILE__, __LINE__);
  SymInt step = shape.strides[*dim];
  shape.drop(*dim);
  c10::List<at::Tensor> views;
  for (int64_t i = 0; i < count; ++i) {
    views.push_back(shape.over(self));
    shape.offset += step;
  }
  return give(results, std::move(views));
}

// Complex numbers as pairs.
bool view_as_real(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is(self.scalar_type(), kComplex) || !is_plain(self)) return false;
  Shape shape(self);
  for (SymInt& stride : shape.strides) stride *= 2;
  shape.sizes.push_back(2);
  shape.strides.push_back(1);
  return give(results, make_trace_view(self, shape.sizes, shape.strides, shape.offset * 2,
                                       c10::toRealValueType(self.scalar_type())));
}

bool view_as_complex(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  ScalarType type = self.scalar_type();
  if ((type != ScalarType::Float && type != ScalarType::Double) || self.dim() == 0 || !is_plain(self)) return false;
  Shape shape(self);
  if (shape.sizes.back() != 2 || shape.strides.back() != 1 || shape.offset % 2 != 0) return false;
  shape.drop(shape.rank() - 1);
  for (SymInt& stride : shape.strides) {
    if (stride % 2 != 0) return false;
    stride = stride / 2;
  }
  return give(results, make_trace_view(self, shape.sizes, shape.strides, shape.offset / 2, c10::toComplexType(type)));
}

bool conj(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  at::Tensor view = Shape(self).over(self);
  view._set_conj(!self.is_conj());
  return is(self.scalar_type(), kComplex) && give(results, view);
}

bool as_strided(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Sizes sizes = sizes_of(args[1]), strides = sizes_of(args[2]);
  if (sizes.size() != strides.size()) return false;
  SymInt offset = args[3].isNone() ? self.sym_storage_offset() : args[3].toSymInt();
  SymInt last = offset;  // the furthest element, which must lie in the storage
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 1 || strides[i] < 0) return false;
    last += (sizes[i] - 1) * strides[i];
  }
  if (offset < 0 || (last + 1) * static_cast<int64_t>(self.itemsize()) > self.storage().sym_nbytes()) return false;
  return give(results, make_trace_view(self, sizes, strides, offset));
}

// (self, dimension, size, step): windows, whose elements are in a new last dimension
bool unfold(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  auto dim = wrap(args[1].toInt(), shape.rank());
  SymInt size = args[2].toSymInt(), step = args[3].toSymInt();
  if (!dim || shape.rank() == 0 || size < 0 || step <= 0 || size > shape.sizes[*dim]) return false;
  shape.sizes.push_back(size);
  shape.strides.push_back(shape.strides[*dim]);
  shape.sizes[*dim] = (shape.sizes[*dim] - size) / step + 1;
  shape.strides[*dim] *= step;
  return give(results, shape.over(self));
}

bool diagonal(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Shape shape(self);
  int64_t shift = args[1].toInt();
  auto a = wrap(args[2].toInt(), shape.rank()), b = wrap(args[3].toInt(), shape.rank());
  if (!a || !b || *a == *b) return false;
  SymInt rows = shape.sizes[*a], columns = shape.sizes[*b];
  SymInt length = shift < 0 ? (rows + shift).min(columns) : rows.min(columns - shift);
  if (length <= 0) return false;
  shape.offset += shift < 0 ? shape.strides[*a] * -shift : shape.strides[*b] * shift;
  SymInt stride = shape.strides[*a] + shape.strides[*b];
  shape.drop(std::max(*a, *b));
  shape.drop(std::min(*a, *b));
  shape.sizes.push_back(length);
  shape.strides.push_back(stride);
  return give(results, shape.over(self));
}

constexpr Row kViewRules[] = {
    {"aten::alias", same},
    {"aten::detach", same},
    {"aten::lift_fresh", itself},
    {"aten::view", view},
    {"aten::_unsafe_view", view},
    {"aten::_reshape_alias", reshape_alias},
    {"aten::transpose.int", transpose},
    {"aten::t", t},
    {"aten::permute", permute},
    {"aten::expand", expand},
    {"aten::unsqueeze", unsqueeze},
    {"aten::squeeze", squeeze},
    {"aten::squeeze.dim", squeeze_dim},
    {"aten::squeeze.dims", squeeze_some},
    {"aten::select.int", select},
    {"aten::slice.Tensor", slice},
    {"aten::split.Tensor", split},
    {"aten::unsafe_split.Tensor", split},
    {"aten::split_with_sizes", split_with_sizes},
    {"aten::unbind.int", unbind},
    {"aten::view_as_real", view_as_real},
    {"aten::view_as_complex", view_as_complex},
    {"aten::_conj", conj},
    {"aten::as_strided", as_strided},
    {"aten::unfold", unfold},
    {"aten::diagonal", diagonal},
};

}  // namespace

Rows view_rules() { return kViewRules; }

}  // namespace magneto::record::rules
