// How layouts, results and elementwise kernels are worked out; every family of rules builds on this.
#include "record/rules_common.h"

#include <c10/core/Contiguity.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

namespace magneto::record::rules {
namespace {

using Order = c10::SmallVector<int64_t, 5>;  // dimensions, the one that is fastest in memory first

// 1: `b` is faster than `a`; -1: `a` is faster; 0: no operand can tell. The first operand that can tell decides, and
// dimensions that it repeats (stride 0) say nothing.
int compare(int64_t a, int64_t b, SymIntArrayRef sizes, c10::ArrayRef<Sizes> operands) {
  for (const Sizes& strides : operands) {
    if (strides[a] == 0 || strides[b] == 0) continue;
    if (strides[a] < strides[b]) return -1;
    if (strides[a] > strides[b] || sizes[a] > sizes[b]) return 1;
  }
  return 0;
}

// The order that at::TensorIterator walks in: an insertion sort, because comparisons may leave pairs open.
Order memory_order(SymIntArrayRef sizes, c10::ArrayRef<Sizes> operands) {
  Order order(sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  for (int64_t next = 1; next < static_cast<int64_t>(order.size()); ++next) {
    for (int64_t at = next, before = next - 1; before >= 0; --before) {
      int answer = compare(order[before], order[at], sizes, operands);
      if (answer < 0) break;
      if (answer > 0) {
        std::swap(order[before], order[at]);
        at = before;
      }
    }
  }
  return order;
}

// Dense strides in that order.
Sizes packed(const Order& order, SymIntArrayRef sizes) {
  Sizes strides(sizes.size());
  SymInt next = 1;
  for (int64_t dim : order) {
    strides[dim] = next;
    next *= sizes[dim];
  }
  return strides;
}

// If all operands have the shape of the result and the same dense layout.
std::optional<Sizes> common_strides(SymIntArrayRef sizes, c10::ArrayRef<Layout> operands) {
  auto all = [&](auto&& holds) { return std::all_of(operands.begin(), operands.end(), holds); };
  if (!all([&](auto& each) { return each.sizes == sizes; })) return std::nullopt;
  if (all([&](auto& each) { return is_contiguous(sizes, each.strides); })) return contiguous_strides(sizes);
  if (sizes.size() == 4 && all([&](auto& each) { return is_channels_last(sizes, each.strides); })) {
    return strides_in(MemoryFormat::ChannelsLast, sizes);
  }
  const Sizes& first = operands[0].strides;
  if (all([&](auto& each) { return is_dense(sizes, each.strides) && each.strides == first; })) return first;
  return std::nullopt;
}

}  // namespace

Sizes walk(SymIntArrayRef sizes, const Layout& operand) {
  size_t missing = sizes.size() - operand.sizes.size();
  Sizes steps(missing, 0);
  for (size_t dim = 0; dim < operand.sizes.size(); ++dim) {
    bool repeats = operand.sizes[dim] == 1 && sizes[missing + dim] != 1;
    steps.push_back(repeats ? SymInt(0) : operand.strides[dim]);
  }
  return steps;
}

Sizes elementwise_strides(SymIntArrayRef sizes, c10::ArrayRef<Layout> operands) {
  if (auto common = common_strides(sizes, operands)) return *common;
  c10::SmallVector<Sizes, 3> walks;
  for (const Layout& operand : operands) walks.push_back(walk(sizes, operand));
  Order order = memory_order(sizes, walks);
  return std::is_sorted(order.rbegin(), order.rend()) ? contiguous_strides(sizes) : packed(order, sizes);
}

bool is(ScalarType type, Kinds kinds) {
  switch (type) {
    case ScalarType::Bool: return kinds & kBoolean;
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long: return kinds & kInteger;
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float:
    case ScalarType::Double: return kinds & kFloating;
    case ScalarType::ComplexFloat:
    case ScalarType::ComplexDouble: return kinds & kComplex;
    default: return false;
  }
}

Sizes sizes_of(const c10::IValue& value) {
  Sizes sizes;
  for (const c10::IValue& size : value.toListRef()) sizes.push_back(size.toSymInt());
  return sizes;
}

std::optional<ScalarType> type_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toScalarType());
}

std::optional<MemoryFormat> format_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toMemoryFormat());
}

std::optional<int64_t> wrap(int64_t dim, int64_t rank) {
  rank = std::max<int64_t>(rank, 1);
  if (dim < -rank || dim >= rank) return std::nullopt;
  return dim < 0 ? dim + rank : dim;
}

SymInt product(SymIntArrayRef sizes) {
  if (auto numbers = c10::asIntArrayRefSlowOpt(sizes)) return c10::multiply_integers(*numbers);
  SymInt all = 1;
  for (const SymInt& size : sizes) all *= size;
  return all;
}

bool is_contiguous(SymIntArrayRef sizes, SymIntArrayRef strides) {
  return c10::_compute_contiguous<SymInt>(sizes, strides, product(sizes));
}

bool is_channels_last(SymIntArrayRef sizes, SymIntArrayRef strides) {
  return c10::_compute_channels_last_contiguous_2d<SymInt>(sizes, strides) ||
         c10::_compute_channels_last_contiguous_3d<SymInt>(sizes, strides);
}

bool is_dense(SymIntArrayRef sizes, SymIntArrayRef strides) {
  if (is_contiguous(sizes, strides)) return true;
  Order order;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != 1) order.push_back(static_cast<int64_t>(dim));
  }
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  SymInt expected = 1;
  for (int64_t dim : order) {
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

Sizes contiguous_strides(SymIntArrayRef sizes) {
  Sizes strides(sizes.size());
  if (auto numbers = c10::asIntArrayRefSlowOpt(sizes)) {
    int64_t next = 1;
    for (size_t dim = sizes.size(); dim-- > 0;) {
      strides[dim] = next;
      if ((*numbers)[dim] > 1) next *= (*numbers)[dim];
    }
    return strides;
  }
  SymInt next = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = next;
    if (sizes[dim] > 1) next *= sizes[dim];
  }
  return strides;
}

Sizes strides_in(MemoryFormat format, SymIntArrayRef sizes) {
  auto copy = [](const std::vector<SymInt>& strides) { return Sizes(strides); };
  if (format == MemoryFormat::ChannelsLast) return copy(c10::get_channels_last_strides_2d<SymInt>(sizes));
  if (format == MemoryFormat::ChannelsLast3d) return copy(c10::get_channels_last_strides_3d<SymInt>(sizes));
  return contiguous_strides(sizes);
}

Sizes preserved_strides(SymIntArrayRef sizes, SymIntArrayRef strides) {
  Sizes own(strides);
  return is_dense(sizes, strides) ? own : packed(memory_order(sizes, own), sizes);
}

MemoryFormat suggested_format(SymIntArrayRef sizes, SymIntArrayRef strides) {
  if (sizes.size() == 4 && c10::is_channels_last_strides_2d_s4<SymInt>(sizes, strides)) {
    return MemoryFormat::ChannelsLast;
  }
  if (sizes.size() == 5 && c10::is_channels_last_strides_3d_s5<SymInt>(sizes, strides)) {
    return MemoryFormat::ChannelsLast3d;
  }
  return MemoryFormat::Contiguous;
}

MemoryFormat suggested_format(const at::Tensor& tensor) {
  return suggested_format(tensor.sym_sizes(), tensor.sym_strides());
}

at::Tensor make(SymIntArrayRef sizes, ScalarType type, Device device) {
  return make_trace(sizes, contiguous_strides(sizes), 0, type, device);
}

at::Tensor make_in(MemoryFormat format, SymIntArrayRef sizes, ScalarType type, Device device) {
  return make_trace(sizes, strides_in(format, sizes), 0, type, device);
}

at::Tensor make_like(const at::Tensor& tensor, ScalarType type) {
  auto sizes = tensor.sym_sizes();
  return make_trace(sizes, preserved_strides(sizes, tensor.sym_strides()), 0, type, tensor.device());
}

void Elementwise::add(const at::Tensor& tensor, bool typed) {
  ScalarType type = tensor.scalar_type();
  packed_ = packed_ && !is_symbolic(tensor) && tensor.is_contiguous() &&
            (operands_.empty() || tensor.sizes() == c10::asIntArrayRefUnchecked(sizes_));
  covered_ = covered_ && is(type, kAnyOrComplex) && is_plain(tensor) && join_device(tensor);
  if (!packed_)
    covered_ = covered_ && join(tensor.sym_sizes());
  else if (operands_.empty())
    sizes_ = tensor.sym_sizes();
  operands_.push_back({tensor.sym_sizes(), tensor.sym_strides(), typed ? type : ScalarType::Undefined});
  if (!typed) return;
  types_ = at::native::update_result_type_state(tensor, types_);
  same_types_ = same_types_ && (type_ == ScalarType::Undefined || type_ == type);
  type_ = type;
}

void Elementwise::add_number(const c10::IValue& number) {
  ScalarType type = number.isBool()                            ? ScalarType::Bool
                    : number.isInt() || number.isSymInt()      ? ScalarType::Long
                    : number.isDouble() || number.isSymFloat() ? ScalarType::Double
                                                               : ScalarType::Undefined;
  covered_ = covered_ && type != ScalarType::Undefined;
  if (!covered_) return;
  packed_ = false;
  operands_.push_back({{}, {}, type});
  types_ = at::native::update_result_type_state(number.toScalar(), types_);
  same_types_ = same_types_ && (type_ == ScalarType::Undefined || type_ == type);
  type_ = type;
}

bool Elementwise::join(SymIntArrayRef sizes) {
  if (sizes.size() > sizes_.size()) {
    size_t fresh = sizes.size() - sizes_.size();
    sizes_.insert(sizes_.begin(), sizes.begin(), sizes.begin() + fresh);
  }
  auto* own = sizes_.end() - sizes.size();
  for (const SymInt& size : sizes) {
    if (*own == 1) {
      *own = size;
    } else if (size != 1 && size != *own) {
      return false;
    }
    ++own;
  }
  return true;
}

// Numbers in tensors on the CPU go with any device.
bool Elementwise::join_device(const at::Tensor& tensor) {
  bool is_number = tensor.dim() == 0 && tensor.is_cpu();
  if (device_ && *device_ != tensor.device() && !is_number && !only_numbers_) return false;
  if (!device_ || (only_numbers_ && !is_number)) device_ = tensor.device();
  only_numbers_ = only_numbers_ && is_number;
  return true;
}

bool Elementwise::broadcast() {
  if (!covered_ || !device_) return false;
  if (!same_types_) type_ = at::native::result_type(types_);
  return true;
}

at::Tensor Elementwise::result(ScalarType type, std::optional<ScalarType> convert_to) const {
  if (packed_) return make(sizes_, type, *device_);
  c10::SmallVector<Layout, 3> layouts;
  for (const auto& [sizes, strides, own] : operands_) {
    bool converted = convert_to && device_->is_cpu() && own != ScalarType::Undefined && own != *convert_to;
    layouts.push_back({sizes, converted ? preserved_strides(sizes, strides) : Sizes(strides)});
  }
  return make_trace(sizes_, elementwise_strides(sizes_, layouts), 0, type, *device_);
}

}  // namespace magneto::record::rules
