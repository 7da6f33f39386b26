// What the shape rules share: arguments, layouts, the results of elementwise kernels, and one table per family.
//
// Sizes and strides are c10::SymInt throughout. Their operators compare plain numbers as numbers and let symbols
// decide, so a rule reads as if nothing were symbolic. It asks as few questions as it can: each may become a guard.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "record/rules.h"
#include "record/trace_tensor.h"

namespace magneto::record::rules {

using c10::Device;
using c10::MemoryFormat;
using c10::ScalarType;
using c10::Stack;
using c10::SymInt;
using c10::SymIntArrayRef;
using Args = c10::ArrayRef<c10::IValue>;
using Sizes = c10::SmallVector<SymInt, 5>;

struct Row {
  const char* name;
  Rule rule;
};
using Rows = c10::ArrayRef<Row>;

Rows attention_rules();
Rows conv_rules();
Rows copy_rules();
Rows image_rules();
Rows index_rules();
Rows linalg_rules();
Rows loss_rules();
Rows matmul_rules();
Rows norm_rules();
Rows pointwise_rules();
Rows pool_rules();
Rows recurrent_rules();
Rows reduce_rules();
Rows view_rules();

// --- Arguments ---

// Kinds of dtypes, to be combined. Quantised and exotic ones are left to the slower routes, and most complex ones, too.
enum Kinds : uint8_t {
  kBoolean = 1,
  kInteger = 2,
  kFloating = 4,
  kComplex = 8,
  kNumber = kInteger | kFloating,
  kAny = kBoolean | kNumber,
  kAnyOrComplex = kAny | kComplex,
};
constexpr Kinds operator|(Kinds a, Kinds b) { return static_cast<Kinds>(static_cast<int>(a) | static_cast<int>(b)); }
bool is(ScalarType type, Kinds kinds);

// Whether a Tensor? argument is there.
inline bool given(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }
// Its bits mean what they say: no conjugation or negation is pending.
inline bool is_plain(const at::Tensor& tensor) { return !tensor.is_conj() && !tensor.is_neg(); }

Sizes sizes_of(const c10::IValue& value);  // int[], SymInt[]
inline bool flag(const c10::IValue& value) { return !value.isNone() && value.toBool(); }
std::optional<ScalarType> type_of(const c10::IValue& value);      // ScalarType?
std::optional<MemoryFormat> format_of(const c10::IValue& value);  // MemoryFormat?
// `dim` of a tensor of `rank` dimensions (one that has none counts as one), or nothing if it is out of range.
std::optional<int64_t> wrap(int64_t dim, int64_t rank);

// --- Layouts ---

SymInt product(SymIntArrayRef sizes);
bool is_contiguous(SymIntArrayRef sizes, SymIntArrayRef strides);
bool is_channels_last(SymIntArrayRef sizes, SymIntArrayRef strides);  // of four or five dimensions, and dense
// No two elements share memory, and none of it is left out.
bool is_dense(SymIntArrayRef sizes, SymIntArrayRef strides);

Sizes contiguous_strides(SymIntArrayRef sizes);
Sizes strides_in(MemoryFormat format, SymIntArrayRef sizes);
// Those of at::empty_like: dense, in the order of `strides`.
Sizes preserved_strides(SymIntArrayRef sizes, SymIntArrayRef strides);
// The format that `tensor` looks most like.
MemoryFormat suggested_format(const at::Tensor& tensor);
MemoryFormat suggested_format(SymIntArrayRef sizes, SymIntArrayRef strides);

// --- Results ---

at::Tensor make(SymIntArrayRef sizes, ScalarType type, Device device);      // contiguous
inline at::Tensor make_for(const at::Tensor& like, SymIntArrayRef sizes) {  // contiguous, with its dtype and device
  return make(sizes, like.scalar_type(), like.device());
}
at::Tensor make_in(MemoryFormat format, SymIntArrayRef sizes, ScalarType type, Device device);
at::Tensor make_like(const at::Tensor& tensor, ScalarType type);  // at::empty_like
inline at::Tensor make_like(const at::Tensor& tensor) { return make_like(tensor, tensor.scalar_type()); }

template <class... Tensors>
bool give(Stack& results, Tensors&&... tensors) {
  (results.emplace_back(std::forward<Tensors>(tensors)), ...);
  return true;
}

// --- Elementwise kernels ---

struct Layout {
  SymIntArrayRef sizes;
  Sizes strides;
};

// What an operand steps through a result of shape `sizes` with: stride 0 where it repeats itself.
Sizes walk(SymIntArrayRef sizes, const Layout& operand);

// The strides of a fresh result of shape `sizes` over which at::TensorIterator broadcasts `operands`: it follows their
// memory, and where they disagree the first one that can tell decides.
Sizes elementwise_strides(SymIntArrayRef sizes, c10::ArrayRef<Layout> operands);

// What at::TensorIterator makes of its operands: the broadcast shape, the common dtype and device, and the strides of
// the result, which follow the memory of the operands.
class Elementwise {
 public:
  // Tensors count in this order when their memory disagrees; they must outlive this. `typed`: takes part in the dtype.
  void add(const at::Tensor& tensor, bool typed = true);
  // A number that the kernel wraps into a tensor.
  void add_number(const c10::IValue& number);

  // Ends adding. False: these operands do not go together, or are not covered.
  bool broadcast();

  ScalarType type() const { return type_; }
  Device device() const { return *device_; }
  SymIntArrayRef sizes() const { return sizes_; }

  // `convert_to`: what the kernel converts its operands to first, which can change their strides.
  at::Tensor result(ScalarType type, std::optional<ScalarType> convert_to = {}) const;

 private:
  struct Operand {
    SymIntArrayRef sizes, strides;
    ScalarType type;  // Undefined: takes no part in the common dtype
  };

  bool join(SymIntArrayRef sizes);
  bool join_device(const at::Tensor& tensor);

  c10::SmallVector<Operand, 3> operands_;
  at::native::ResultTypeState types_;
  ScalarType type_ = ScalarType::Undefined;
  std::optional<Device> device_;
  Sizes sizes_;
  bool same_types_ = true;
  bool only_numbers_ = true;  // tensors without dimensions on the CPU
  bool covered_ = true;
  bool packed_ = true;  // tensors of one shape, none of them symbolic, without gaps and in the order of dimensions
};

}  // namespace magneto::record::rules
