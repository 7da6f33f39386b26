// Rules for indexing: advanced indices, gather and scatter, embeddings, sorting.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>

#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

bool is_index(const at::Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Long || tensor.scalar_type() == ScalarType::Int;
}

// The indices of an advanced index, broadcast against each other.
struct Indices {
  // False: masks, whose shape depends on their contents, and what the kernel would refuse.
  bool read(const at::Tensor& self, c10::ArrayRef<c10::IValue> values) {
    if (values.size() > static_cast<size_t>(self.dim())) return false;
    Elementwise joined;
    for (size_t dim = 0; dim < static_cast<size_t>(self.dim()); ++dim) {
      if (dim >= values.size() || !given(values[dim])) {
        left.push_back(static_cast<int64_t>(dim));
        continue;
      }
      const at::Tensor& index = values[dim].toTensor();
      if (!is_index(index) || index.device() != self.device()) return false;
      taken.push_back(static_cast<int64_t>(dim));
      tensors.push_back(index);
      joined.add(index);
    }
    if (taken.empty() || !joined.broadcast()) return false;
    sizes = Sizes(joined.sizes());
    return true;
  }

  // How many of the dimensions left come before those of the indices. Indices that are not neighbours go first.
  size_t before() const {
    bool neighbours = taken.back() - taken.front() + 1 == static_cast<int64_t>(taken.size());
    return neighbours ? static_cast<size_t>(taken.front()) : 0;
  }

  c10::SmallVector<int64_t, 5> taken, left;  // dimensions of self
  std::vector<at::Tensor> tensors;
  Sizes sizes;
};

// `values` with `middle` put in after the first `before`.
Sizes insert(Sizes values, size_t before, SymIntArrayRef middle) {
  values.insert(values.begin() + before, middle.begin(), middle.end());
  return values;
}

// The kernel walks over the result with the memory of `self`, which stands still along the indices, and then with that
// of the indices, which stand still elsewhere.
bool index(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Indices indices;
  if (!is_plain(self) || product(self.sym_sizes()) == 0 || !indices.read(self, args[1].toListRef())) return false;
  const size_t before = indices.before(), rank = indices.sizes.size();
  Sizes sizes, strides, ones(indices.left.size(), 1);
  for (int64_t dim : indices.left) {
    sizes.push_back(self.sym_size(dim));
    strides.push_back(self.sym_stride(dim));
  }
  sizes = insert(sizes, before, indices.sizes);
  const Sizes index_sizes = insert(ones, before, indices.sizes);

  std::vector<Layout> operands = {{sizes, insert(strides, before, Sizes(rank, 0))}};
  std::vector<Sizes> walks;
  for (const at::Tensor& index : indices.tensors) {
    walks.push_back(walk(indices.sizes, {index.sym_sizes(), Sizes(index.sym_strides())}));
  }
  bool alike = std::all_of(walks.begin(), walks.end(), [&](auto& each) { return each == walks[0]; });
  for (Sizes& each : walks) {
    if (self.is_cuda() && !alike) each = contiguous_strides(indices.sizes);
    auto reshaped =
        at::detail::computeStride(SymIntArrayRef(indices.sizes), SymIntArrayRef(each), SymIntArrayRef(index_sizes));
    if (!reshaped) return false;
    operands.push_back({index_sizes, Sizes(reshaped->begin(), reshaped->end())});
  }
  return give(results, make_trace(sizes, elementwise_strides(sizes, operands), 0, self.scalar_type(), self.device()));
}

// The kernel copies and then writes into the copy.
bool index_put(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &values = args[2].toTensor();
  Indices indices;
  if (!is_plain(self) || self.scalar_type() != values.scalar_type() || !indices.read(self, args[1].toListRef()))
    return false;
  Sizes sizes;
  for (int64_t dim : indices.left) sizes.push_back(self.sym_size(dim));
  sizes = insert(sizes, indices.before(), indices.sizes);
  return at::is_expandable_to(values.sym_sizes(), sizes) && give(results, make_like(self));
}

bool index_select(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &index = args[2].toTensor();
  auto dim = wrap(args[1].toInt(), self.dim());
  if (!dim || self.dim() == 0 || index.dim() > 1 || !is_index(index) || !is(self.scalar_type(), kAny)) return false;
  Sizes sizes(self.sym_sizes());
  sizes[*dim] = index.dim() ? index.sym_size(0) : SymInt(1);
  return give(results, make_for(self, sizes));
}

bool gather(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &index = args[2].toTensor();
  if (self.dim() != index.dim() || index.scalar_type() != ScalarType::Long || !is_plain(self)) return false;
  auto dim = wrap(args[1].toInt(), self.dim());
  for (int64_t i = 0; dim && i < self.dim(); ++i) {
    if (i != *dim && index.sym_size(i) > self.sym_size(i)) return false;
  }
  return dim && give(results, make_for(self, index.sym_sizes()));
}

// (self, dim, index, src or value)
bool scatter(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &index = args[2].toTensor();
  if (self.dim() != index.dim() || index.scalar_type() != ScalarType::Long || !is_plain(self)) return false;
  if (args[3].isTensor()) {
    const at::Tensor& source = args[3].toTensor();
    if (source.scalar_type() != self.scalar_type() || source.dim() != self.dim()) return false;
    for (int64_t i = 0; i < self.dim(); ++i) {
      if (index.sym_size(i) > source.sym_size(i)) return false;
    }
  }
  auto dim = wrap(args[1].toInt(), self.dim());
  for (int64_t i = 0; dim && i < self.dim(); ++i) {
    if (i != *dim && index.sym_size(i) > self.sym_size(i)) return false;
  }
  return dim && is(self.scalar_type(), kAny) && give(results, make_for(self, self.sym_sizes()));
}

// (self, dim, index, source, ...): rows of `source` go to where `index` says.
bool index_rows(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &index = args[2].toTensor(), &source = args[3].toTensor();
  if (!is_index(index) || index.dim() != 1 || self.dim() == 0 || self.dim() != source.dim()) return false;
  if (self.scalar_type() != source.scalar_type() || !is(self.scalar_type(), kAny)) return false;
  auto dim = wrap(args[1].toInt(), self.dim());
  for (int64_t i = 0; dim && i < self.dim(); ++i) {
    if (source.sym_size(i) != (i == *dim ? index.sym_size(0) : self.sym_size(i))) return false;
  }
  return dim && give(results, make_for(self, self.sym_sizes()));
}

// (self, dim, index, value)
bool index_fill(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &index = args[2].toTensor();
  if (!wrap(args[1].toInt(), self.dim()) || index.scalar_type() != ScalarType::Long || index.dim() > 1) return false;
  return is_plain(self) && is(self.scalar_type(), kAny) && give(results, make_like(self));
}

// (self, index)
bool take(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &index = args[1].toTensor();
  if (index.scalar_type() != ScalarType::Long || !is_plain(self) || !is(self.scalar_type(), kAny)) return false;
  return give(results, make_for(self, index.sym_sizes()));
}

// (self, index, source, accumulate)
bool put(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &index = args[1].toTensor(), &source = args[2].toTensor();
  if (index.scalar_type() != ScalarType::Long || self.scalar_type() != source.scalar_type()) return false;
  if (product(index.sym_sizes()) != product(source.sym_sizes())) return false;
  return is_plain(self) && is(self.scalar_type(), kAny) && give(results, make_like(self));
}

// (self, mask, source): the kernel copies the broadcast tensor and then writes into it.
bool masked_scatter(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &mask = args[1].toTensor();
  if (mask.scalar_type() != ScalarType::Bool || self.scalar_type() != args[2].toTensor().scalar_type()) return false;
  Elementwise work;
  work.add(self);
  work.add(mask, /*typed=*/false);
  return work.broadcast() && give(results, make(work.sizes(), self.scalar_type(), self.device()));
}

bool flip(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  c10::SmallVector<bool, 5> seen(std::max<int64_t>(self.dim(), 1));
  for (int64_t asked : args[1].toIntVector()) {
    auto dim = wrap(asked, self.dim());
    if (!dim || seen[*dim]) return false;
    seen[*dim] = true;
  }
  return is_plain(self) && is(self.scalar_type(), kAny) && give(results, make_like(self));
}

// (self, shifts, dims): two parts are joined the other way round. Images may keep their channels last, which is left to
// the kernel.
bool roll(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dims = args[2].toIntVector();
  size_t shifts = args[1].isIntList() ? args[1].toIntVector().size() : args[1].toListRef().size();
  if (dims.empty() ? shifts != 1 : shifts != dims.size()) return false;
  if (product(self.sym_sizes()) == 0) return false;
  for (int64_t dim : dims) {
    if (!wrap(dim, self.dim()) || self.dim() == 0) return false;
  }
  bool is_image = self.dim() == 4 || self.dim() == 5;
  if (is_image && !is_contiguous(self.sym_sizes(), self.sym_strides())) return false;
  return is_plain(self) && is(self.scalar_type(), kAny) && give(results, make_for(self, self.sym_sizes()));
}

// Where the elements of `self` belong in the last dimension of `sequence`, which is sorted.
bool give_places(const at::Tensor& sequence, const at::Tensor& self, const c10::IValue& short_index, Stack& results) {
  if (sequence.dim() < 1 || !is(sequence.scalar_type(), kNumber) || sequence.scalar_type() != self.scalar_type())
    return false;
  bool shared = sequence.dim() == 1;
  if (!shared && (sequence.dim() != self.dim() ||
                  sequence.sym_sizes().slice(0, sequence.dim() - 1) != self.sym_sizes().slice(0, self.dim() - 1))) {
    return false;
  }
  return give(results,
              make(self.sym_sizes(), short_index.toBool() ? ScalarType::Int : ScalarType::Long, self.device()));
}

// (sorted_sequence, self, *, out_int32, right, side, sorter)
bool searchsorted(Args args, Stack& results) {
  return give_places(args[0].toTensor(), args[1].toTensor(), args[2], results);
}

// (self, boundaries, *, out_int32, right)
bool bucketize(Args args, Stack& results) {
  const at::Tensor& boundaries = args[1].toTensor();
  return boundaries.dim() == 1 && give_places(boundaries, args[0].toTensor(), args[2], results);
}

// (elements, test_elements, *, assume_unique, invert)
bool isin(Args args, Stack& results) {
  const at::Tensor &elements = args[0].toTensor(), &tests = args[1].toTensor();
  if (!is(elements.scalar_type(), kNumber) || elements.scalar_type() != tests.scalar_type()) return false;
  return give(results, make(elements.sym_sizes(), ScalarType::Bool, elements.device()));
}

// (self, num_samples, replacement, *, generator)
bool multinomial(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  SymInt samples = args[1].toSymInt();
  if (!is(self.scalar_type(), kFloating) || self.dim() < 1 || self.dim() > 2 || samples <= 0) return false;
  if (product(self.sym_sizes()) == 0 || (!args[2].toBool() && samples > self.sym_size(-1))) return false;
  Sizes sizes(self.sym_sizes());
  sizes.back() = samples;
  return give(results, make(sizes, ScalarType::Long, self.device()));
}

bool embedding(Args args, Stack& results) {
  const at::Tensor &weight = args[0].toTensor(), &indices = args[1].toTensor();
  if (weight.dim() != 2 || !is_index(indices) || !is(weight.scalar_type(), kFloating)) return false;
  Sizes sizes(indices.sym_sizes());
  sizes.push_back(weight.sym_size(1));
  return give(results, make_for(weight, sizes));
}

bool embedding_backward(Args args, Stack& results) {
  const at::Tensor& gradient = args[0].toTensor();
  if (!is(gradient.scalar_type(), kFloating) || gradient.dim() == 0 || !is_index(args[1].toTensor())) return false;
  return give(results, make_for(gradient, {args[2].toSymInt(), gradient.sym_size(-1)}));
}

constexpr int64_t kSumOfBag = 0, kLargestOfBag = 2;

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
// gives the bags, and for the backward: the bag of each index, the sizes of bags, which elements were the largest.
bool embedding_bag(Args args, Stack& results) {
  const at::Tensor &weight = args[0].toTensor(), &indices = args[1].toTensor(), &offsets = args[2].toTensor();
  const int64_t mode = args[4].toInt();
  bool covered = weight.dim() == 2 && is(weight.scalar_type(), kFloating) && weight.is_cpu() && indices.dim() == 1 &&
                 offsets.dim() == 1 && indices.scalar_type() == ScalarType::Long &&
                 offsets.scalar_type() == ScalarType::Long && !given(args[6]) && !args[7].toBool();
  if (!covered || weight.sym_stride(1) != 1) return false;
  // A kernel for sums needs no list of bags.
  bool fast = mode == kSumOfBag && weight.scalar_type() != ScalarType::Double && args[8].toInt() < 0;
  SymInt bags = offsets.sym_size(0), width = weight.sym_size(1);
  Sizes largest = mode == kLargestOfBag ? Sizes{bags, width} : Sizes{bags};
  return give(results, make_for(weight, {bags, width}), make_for(indices, fast ? SymInt(0) : indices.sym_size(0)),
              make_for(offsets, bags), make_for(offsets, largest));
}

// (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse, ...)
bool embedding_bag_backward(Args args, Stack& results) {
  const at::Tensor& gradient = args[0].toTensor();
  if (args[9].toBool() || gradient.dim() != 2 || !is(gradient.scalar_type(), kFloating)) return false;
  return give(results, make_for(gradient, {args[6].toSymInt(), gradient.sym_size(1)}));
}

// (grad_output, input_sizes, ...): the gradient goes into zeros.
bool into_zeros(Args args, Stack& results) {
  const at::Tensor& gradient = args[0].toTensor();
  return is(gradient.scalar_type(), kFloating) && give(results, make_for(gradient, sizes_of(args[1])));
}

// (self, num_classes)
bool one_hot(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t classes = args[1].toInt();
  if (self.scalar_type() != ScalarType::Long || classes < 1) return false;
  Sizes sizes(self.sym_sizes());
  sizes.push_back(classes);
  return give(results, make_for(self, sizes));
}

// (self, k, dim, largest, sorted)
bool topk(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto dim = wrap(args[2].toInt(), self.dim());
  SymInt k = args[1].toSymInt();
  if (!dim || self.dim() == 0 || !is(self.scalar_type(), kNumber) || k < 0 || k > self.sym_size(*dim)) return false;
  Sizes sizes(self.sym_sizes());
  sizes[*dim] = k;
  return give(results, make_for(self, sizes), make(sizes, ScalarType::Long, self.device()));
}

template <size_t dim>
bool sort(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!wrap(args[dim].toInt(), self.dim()) || !is(self.scalar_type(), kAny)) return false;
  return give(results, make_like(self), make_like(self, ScalarType::Long));
}

bool triangle(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return self.dim() >= 2 && is(self.scalar_type(), kAny) && give(results, make_for(self, self.sym_sizes()));
}

// (self, offset, dim1, dim2): `self` as diagonals of matrices that are zero elsewhere.
bool diag_embed(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto a = wrap(args[2].toInt(), self.dim() + 1), b = wrap(args[3].toInt(), self.dim() + 1);
  if (!a || !b || *a == *b || self.dim() == 0 || !is(self.scalar_type(), kAny)) return false;
  Sizes sizes(self.sym_sizes());
  SymInt length = sizes.back() + std::abs(args[1].toInt());
  sizes.pop_back();
  sizes.insert(sizes.begin() + std::min(*a, *b), length);
  sizes.insert(sizes.begin() + std::max(*a, *b), length);
  return give(results, make_for(self, sizes));
}

bool histc(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  SymInt bins = args[1].toSymInt();
  return bins > 0 && is(self.scalar_type(), kFloating) && self.is_cpu() && give(results, make_for(self, bins));
}

// `self` with other contents in some places, by a copy of all the memory that it lives in.
bool give_changed(const at::Tensor& self, Stack& results) {
  auto sizes = self.sym_sizes(), strides = self.sym_strides();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 0 || (strides[dim] == 0 && sizes[dim] != 1)) return false;
  }
  return is_plain(self) && !self.unsafeGetTensorImpl()->is_wrapped_number() && give(results, trace_of(self));
}

// (self, src, ...), where src takes the place of what the view operator of that name shows for (self, ...).
template <const char* view>
bool overwrite(Args args, Stack& results) {
  Stack shown, view_args(args.begin() + 1, args.end());
  view_args[0] = args[0];
  if (!find_rule(view)(view_args, shown)) return false;
  if (shown[0].toTensor().sym_sizes() != args[1].toTensor().sym_sizes()) return false;
  return give_changed(args[0].toTensor(), results);
}

constexpr char kSelect[] = "aten::select.int";
constexpr char kSlice[] = "aten::slice.Tensor";
constexpr char kDiagonal[] = "aten::diagonal";
constexpr char kStrided[] = "aten::as_strided";

bool copy(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &from = args[1].toTensor();
  Elementwise both;
  both.add(self, /*typed=*/false);
  both.add(from, /*typed=*/false);
  if (self.device() != from.device() || !both.broadcast() || both.sizes() != self.sym_sizes()) return false;
  return give_changed(self, results);
}

// Other contents in every place, whatever they were.
bool refill(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return is_plain(self) && is(self.scalar_type(), kAny) && give(results, make_like(self));
}

bool refill_floating(Args args, Stack& results) {
  return is(args[0].toTensor().scalar_type(), kFloating) && refill(args, results);
}

bool bernoulli(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return is(self.scalar_type(), kAny) && give(results, make_for(self, self.sym_sizes()));
}

constexpr Row kIndexRules[] = {
    {"aten::select_scatter", overwrite<kSelect>},
    {"aten::slice_scatter", overwrite<kSlice>},
    {"aten::diagonal_scatter", overwrite<kDiagonal>},
    {"aten::as_strided_scatter", overwrite<kStrided>},
    {"aten::copy", copy},
    {"aten::zero", refill},
    {"aten::fill.Scalar", refill},
    {"aten::uniform", refill_floating},
    {"aten::normal_functional", refill_floating},
    {"aten::exponential", refill_floating},
    {"aten::random", refill},
    {"aten::bernoulli.p", bernoulli},
    {"aten::index.Tensor", index},
    {"aten::index_put", index_put},
    {"aten::_index_put_impl", index_put},
    {"aten::index_select", index_select},
    {"aten::gather", gather},
    {"aten::scatter.src", scatter},
    {"aten::scatter.value", scatter},
    {"aten::scatter_add", scatter},
    {"aten::scatter.reduce", scatter},
    {"aten::scatter.value_reduce", scatter},
    {"aten::scatter_reduce.two", scatter},
    {"aten::index_add", index_rows},
    {"aten::index_copy", index_rows},
    {"aten::index_reduce", index_rows},
    {"aten::index_fill.int_Scalar", index_fill},
    {"aten::index_fill.int_Tensor", index_fill},
    {"aten::take", take},
    {"aten::put", put},
    {"aten::masked_scatter", masked_scatter},
    {"aten::flip", flip},
    {"aten::roll", roll},
    {"aten::searchsorted.Tensor", searchsorted},
    {"aten::bucketize.Tensor", bucketize},
    {"aten::isin.Tensor_Tensor", isin},
    {"aten::multinomial", multinomial},
    {"aten::embedding", embedding},
    {"aten::embedding_dense_backward", embedding_backward},
    {"aten::_embedding_bag", embedding_bag},
    {"aten::_embedding_bag_forward_only", embedding_bag},
    {"aten::_embedding_bag_backward", embedding_bag_backward},
    {"aten::slice_backward", into_zeros},
    {"aten::select_backward", into_zeros},
    {"aten::diagonal_backward", into_zeros},
    {"aten::unfold_backward", into_zeros},
    {"aten::one_hot", one_hot},
    {"aten::topk", topk},
    {"aten::sort", sort<1>},
    {"aten::sort.stable", sort<2>},
    {"aten::tril", triangle},
    {"aten::triu", triangle},
    {"aten::diag_embed", diag_embed},
    {"aten::histc", histc},
};

}  // namespace

Rows index_rules() { return kIndexRules; }

}  // namespace magneto::record::rules
