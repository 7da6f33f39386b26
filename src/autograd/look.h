// What a captured backward relies on about sizes and tensors, beside contents.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace magneto::autograd {

// The sizes of one run that runs may change, by symbol; kUnknown: not met so far.
using SymbolValues = std::vector<int64_t>;
constexpr int64_t kUnknown = -1;

// As it was when it was captured, or a symbol.
struct Size {
  int64_t number;
  int32_t symbol = kFixed;
  static constexpr int32_t kFixed = -1;

  bool is_fixed() const { return symbol == kFixed; }
  // The first one that a symbol stands for decides; 0 and 1 are none.
  bool fits(int64_t value, SymbolValues& values) const {
    if (is_fixed()) return value == number;
    int64_t& known = values[static_cast<size_t>(symbol)];
    if (known == kUnknown && value >= 2) known = value;
    return value == known;
  }
};

struct Look {
  explicit Look(const at::Tensor& tensor);
  // Whatever the offset. Where sizes are symbols, the graphs that take the tensor look at its strides.
  bool fits(const at::Tensor& tensor, SymbolValues& values) const;
  // As it was when it was captured: "[2, 8]".
  std::string text() const;

  uint64_t keys;
  c10::ScalarType dtype;
  bool is_strided;
  bool is_open = false;  // some size is a symbol
  int64_t offset = 0;
  c10::SmallVector<Size, 4> sizes;
  c10::SmallVector<int64_t, 4> strides;
};

}  // namespace magneto::autograd
