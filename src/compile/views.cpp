// The inverse of each view operator: a scatter where it shows a part, another view where it shows everything.
#include "compile/views.h"

#include <c10/core/WrapDimMinimal.h>

#include <string_view>
#include <unordered_map>

namespace magneto::compile {
namespace {

using c10::SymInt;
using graph::Op;
using graph::TensorRef;
using graph::ValueId;

struct Write {
  Builder& builder;
  const Op& view;
  const TensorRef& place;
  ValueId viewed, contents;

  at::Tensor viewed_trace() const { return builder.trace(viewed); }
  int64_t dimension(uint32_t position) const {
    return c10::maybe_wrap_dim(view.args[position].toInt(), viewed_trace().dim());
  }
};

using Inverse = std::optional<ValueId> (*)(const Write&);

// ---- parts

Op scatter(const Write& write, const char* name) {
  Op op = op_like(write.view, name);
  put(op, 0, write.viewed);
  put(op, 1, write.contents);
  return op;
}

// The scatter takes the arguments of the view behind `self` and `src`.
template <const char* name>
std::optional<ValueId> scatter_same(const Write& write) {
  Op op = scatter(write, name);
  for (size_t i = 1; i < write.view.args.size(); ++i) op.args[i + 1] = write.view.args[i];
  for (const graph::SizeRef& size : write.view.sizes) op.sizes.push_back({size.position + 1, size.item, size.expr});
  return write.builder.add(std::move(op));
}

constexpr char kSelectScatter[] = "aten::select_scatter";
constexpr char kSliceScatter[] = "aten::slice_scatter";
constexpr char kDiagonalScatter[] = "aten::diagonal_scatter";
constexpr char kStridedScatter[] = "aten::as_strided_scatter";

std::optional<ValueId> scatter_item(const Write& write) {  // of unbind(self, dim)
  Op op = scatter(write, kSelectScatter);
  op.args[2] = write.view.args[1];
  op.args[3] = static_cast<int64_t>(write.place.item);
  return write.builder.add(std::move(op));
}

std::optional<ValueId> scatter_chunk(const Write& write, const SymInt& start) {  // of split(self, ..., dim)
  int64_t dimension = write.dimension(2);
  Op op = scatter(write, kSliceScatter);
  op.args[2] = dimension;
  write.builder.set(op, 3, start);
  write.builder.set(op, 4, start + write.builder.trace(write.contents).sym_size(dimension));
  return write.builder.add(std::move(op));
}

std::optional<ValueId> scatter_equal_chunk(const Write& write) {
  return scatter_chunk(write, write.builder.number(write.view, 1) * write.place.item);
}

std::optional<ValueId> scatter_sized_chunk(const Write& write) {
  SymInt start = 0;
  auto sizes = write.builder.numbers(write.view, 1);
  for (int32_t i = 0; i < write.place.item; ++i) start += sizes[static_cast<size_t>(i)];
  return scatter_chunk(write, start);
}

// ---- the whole

ValueId in_order(Builder& builder, const Op& like, ValueId tensor) {
  Op op = op_like(like, "aten::clone");
  put(op, 0, tensor);
  op.args[1] = static_cast<int64_t>(c10::MemoryFormat::Contiguous);
  return builder.add(std::move(op));
}

// A view of `contents` or, where its strides do not allow one, of a copy.
ValueId view_or_copy(const Write& write, Op op) {
  put(op, 0, write.contents);
  try {
    return write.builder.add(op);
  } catch (const c10::Error&) {
    op.tensors[0].value = in_order(write.builder, write.view, write.contents);
    return write.builder.add(std::move(op));
  }
}

std::optional<ValueId> restore_sizes(const Write& write) {
  at::Tensor viewed = write.viewed_trace();
  if (write.builder.trace(write.contents).sym_numel() != viewed.sym_numel()) return std::nullopt;
  Op op = op_like(write.view, "aten::view");
  write.builder.set(op, 1, viewed.sym_sizes());
  return view_or_copy(write, std::move(op));
}

std::optional<ValueId> same(const Write& write) { return write.contents; }

// Its own inverse.
std::optional<ValueId> again(const Write& write) {
  Op op = op_like(write.view, write.view.handle);
  op.args = write.view.args;
  return view_or_copy(write, std::move(op));
}

std::optional<ValueId> permute_back(const Write& write) {
  int64_t rank = write.viewed_trace().dim();
  std::vector<SymInt> back(static_cast<size_t>(rank));
  int64_t at = 0;
  for (const c10::IValue& dimension : write.view.args[1].toListRef()) {
    back[static_cast<size_t>(c10::maybe_wrap_dim(dimension.toInt(), rank))] = at++;
  }
  Op op = op_like(write.view, write.view.handle);
  write.builder.set(op, 1, back);
  return view_or_copy(write, std::move(op));
}

std::optional<ValueId> to_complex(const Write& write) {
  return view_or_copy(write, op_like(write.view, "aten::view_as_complex"));
}

std::optional<ValueId> to_real(const Write& write) {
  return view_or_copy(write, op_like(write.view, "aten::view_as_real"));
}

std::optional<ValueId> restore_type(const Write& write) {
  Op op = op_like(write.view, "aten::view", "dtype");
  op.args[1] = static_cast<int64_t>(write.viewed_trace().scalar_type());
  return view_or_copy(write, std::move(op));
}

Inverse find_inverse(const std::string& name) {
  static const std::unordered_map<std::string_view, Inverse> inverses = {
      {"aten::select.int", scatter_same<kSelectScatter>},
      {"aten::slice.Tensor", scatter_same<kSliceScatter>},
      {"aten::diagonal", scatter_same<kDiagonalScatter>},
      {"aten::as_strided", scatter_same<kStridedScatter>},
      {"aten::unbind.int", scatter_item},
      {"aten::split.Tensor", scatter_equal_chunk},
      {"aten::unsafe_split.Tensor", scatter_equal_chunk},
      {"aten::split_with_sizes", scatter_sized_chunk},
      {"aten::unsafe_split_with_sizes", scatter_sized_chunk},
      {"aten::view", restore_sizes},
      {"aten::_unsafe_view", restore_sizes},
      {"aten::_reshape_alias", restore_sizes},
      {"aten::unsqueeze", restore_sizes},
      {"aten::squeeze", restore_sizes},
      {"aten::squeeze.dim", restore_sizes},
      {"aten::squeeze.dims", restore_sizes},
      {"aten::expand", restore_sizes},
      {"aten::alias", same},
      {"aten::detach", same},
      {"aten::lift_fresh", same},
      {"aten::t", again},
      {"aten::transpose.int", again},
      {"aten::_conj", again},
      {"aten::_neg_view", again},
      {"aten::permute", permute_back},
      {"aten::view_as_real", to_complex},
      {"aten::view_as_complex", to_real},
      {"aten::view.dtype", restore_type},
  };
  auto found = inverses.find(name);
  return found == inverses.end() ? nullptr : found->second;
}

// Whether the inverse looks at the bytes of the contents.
bool changes_type(const std::string& name) {
  return name == "aten::view.dtype" || name == "aten::view_as_real" || name == "aten::view_as_complex";
}

}  // namespace

std::optional<ValueId> put_back(Builder& builder, const Op& view, const TensorRef& place, ValueId viewed,
                                ValueId contents) {
  Inverse inverse = find_inverse(view.info->name);
  if (!inverse) return std::nullopt;
  c10::ScalarType type = builder.graph.values[viewed].dtype;
  if (view.info->name == "aten::view.dtype") type = static_cast<c10::ScalarType>(view.args[1].toInt());
  if (view.info->name == "aten::view_as_real") type = c10::toRealValueType(type);
  if (view.info->name == "aten::view_as_complex") type = c10::toComplexType(type);
  if (changes_type(view.info->name) && builder.graph.values[contents].dtype != type) {
    Op cast = op_like(view, "aten::_to_copy");
    put(cast, 0, contents);
    cast.args[1] = static_cast<int64_t>(type);
    contents = builder.add(std::move(cast));
  }
  return inverse({builder, view, place, viewed, contents});
}

}  // namespace magneto::compile
