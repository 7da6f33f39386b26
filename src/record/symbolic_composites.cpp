// What these composites are made of.
#include "record/symbolic_composites.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "record/rules_common.h"
#include "record/trace_tensor.h"

namespace magneto::record {
namespace {

using at::Tensor;
using c10::SymInt;
using rules::Args;
using rules::Sizes;

bool any_is_symbolic(const std::vector<Tensor>& tensors) { return std::ranges::any_of(tensors, is_symbolic); }

bool give(c10::Stack& stack, size_t arguments, Tensor result) {
  torch::jit::drop(stack, arguments);
  stack.emplace_back(std::move(result));
  return true;
}

// The size of a dimension where the tensor begins that many dimensions later.
SymInt padded_size(const Tensor& tensor, int64_t dim, int64_t padding) {
  return dim < padding ? SymInt(1) : tensor.sym_size(dim - padding);
}

constexpr int64_t kByRootOfSize = 1;  // as the operator numbers the ways to normalise

}  // namespace

bool pad_sequence_symbolically(c10::Stack& stack) {
  Args args = torch::jit::last(stack, 4);
  std::vector<Tensor> sequences = args[0].toTensorVector();
  const bool by_batch = args[1].toBool(), on_left = args[3].toStringView() == "left";
  if (!any_is_symbolic(sequences) || (!on_left && args[3].toStringView() != "right")) return false;
  if (std::ranges::any_of(sequences, [](const Tensor& sequence) { return sequence.dim() < 1; })) return false;
  SymInt longest = sequences[0].sym_size(0);
  for (const Tensor& sequence : sequences) {
    if (sequence.sym_size(0) > longest) longest = sequence.sym_size(0);
  }
  const auto count = static_cast<int64_t>(sequences.size());
  Sizes sizes(sequences[0].sym_sizes());
  sizes[0] = longest;
  sizes.insert(sizes.begin() + (by_batch ? 0 : 1), count);
  Tensor padded = at::full_symint(sizes, args[2].toScalar(), sequences[0].options());
  for (int64_t i = 0; i < count; ++i) {
    const SymInt length = sequences[i].sym_size(0), start = on_left ? longest - length : SymInt(0);
    Tensor row = by_batch ? padded.select(0, i).narrow_symint(0, start, length)
                          : padded.narrow_symint(0, start, length).select(1, i);
    row.copy_(sequences[i]);
  }
  return give(stack, 4, std::move(padded));
}

bool kron_symbolically(c10::Stack& stack) {
  Args args = torch::jit::last(stack, 2);
  const Tensor self = args[0].toTensor(), other = args[1].toTensor();
  if (!is_symbolic(self) && !is_symbolic(other)) return false;
  const int64_t rank = std::max(self.dim(), other.dim());
  Sizes left, right, joined;  // each dimension of the result is one of `self` and one of `other`
  for (int64_t i = 0; i < rank; ++i) {
    left.append({padded_size(self, i, rank - self.dim()), 1});
    right.append({1, padded_size(other, i, rank - other.dim())});
    joined.push_back(left[2 * i] * right[2 * i + 1]);
  }
  Tensor product = at::mul(at::_unsafe_view_symint(self, left), at::_unsafe_view_symint(other, right));
  return give(stack, 2, at::_unsafe_view_symint(product, joined));
}

bool stft_symbolically(c10::Stack& stack) {
  Args args = torch::jit::last(stack, 9);
  const Tensor self = args[0].toTensor();
  const int64_t size = args[1].toInt(), hop = args[2].isNone() ? size / 4 : args[2].toInt();
  const int64_t width = args[3].isNone() ? size : args[3].toInt();
  if (!is_symbolic(self) || self.dim() < 1 || self.dim() > 2 || !rules::is(self.scalar_type(), rules::kFloating))
    return false;
  if (size < 1 || hop < 1 || width != size || !rules::given(args[4]) || !rules::flag(args[7])) return false;
  const Tensor window = args[4].toTensor();
  if (window.dim() != 1 || window.sym_size(0) != size || window.is_complex()) return false;
  if (self.sym_size(-1) < size) return false;
  const bool normalized = args[5].toBool(), one_side = args[6].isNone() || args[6].toBool();

  Tensor input = self.dim() == 1 ? self.unsqueeze(0) : self;
  SymInt frames = (input.sym_size(1) - size) / hop + 1;
  input = input.as_strided_symint({input.sym_size(0), frames, size},
                                  {input.sym_stride(0), input.sym_stride(1) * hop, input.sym_stride(1)});
  Tensor result = at::_fft_r2c(input.mul(window), input.dim() - 1, normalized ? kByRootOfSize : 0, one_side);
  result.transpose_(1, 2);
  if (self.dim() == 1) result.squeeze_(0);
  return give(stack, 9, std::move(result));
}

bool stays_whole(Args args) {
  std::vector<Tensor> tensors = args[2].toTensorVector();
  tensors.push_back(args[0].toTensor());
  tensors.push_back(args[1].toTensor());
  if (std::ranges::any_of(tensors, [](const Tensor& tensor) { return !tensor.defined() || !tensor.is_cpu(); }))
    return false;
  if (!any_is_symbolic(tensors) || at::autocast::is_autocast_enabled(c10::kCPU)) return false;
  if (args[5].toDouble() != 0 && args[6].toBool()) return false;  // random numbers are operators of their own
  return !c10::GradMode::is_enabled() || std::ranges::none_of(tensors, &Tensor::requires_grad);
}

}  // namespace magneto::record
