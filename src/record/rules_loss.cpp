// Rules for losses, which are one number, or a number for each element or row.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

constexpr int64_t kNoReduction = 0;

at::Tensor number_like(const at::Tensor& tensor) { return make_for(tensor, {}); }

// Two tensors of one shape, dtype and device.
bool alike(const at::Tensor& a, const at::Tensor& b) {
  return is(a.scalar_type(), kFloating) && a.scalar_type() == b.scalar_type() && a.device() == b.device() &&
         a.sym_sizes() == b.sym_sizes();
}

enum class Each : uint8_t { Elementwise, Like };  // how losses lie in memory: as of a sum, or as the first operand

// (self, target, [weight,] reduction), with `reduction` its position
template <size_t reduction, Each each>
bool elementwise_loss(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &target = args[1].toTensor();
  if (!alike(self, target)) return false;
  if (args[reduction].toInt() != kNoReduction) return give(results, number_like(self));
  if (each == Each::Like) return give(results, make_like(self));
  Elementwise work;
  work.add(self);
  work.add(target);
  return work.broadcast() && give(results, work.result(work.type()));
}

// (self, target, reduction, delta)
bool huber_loss(Args args, Stack& results) {
  return args[3].toDouble() > 0 && elementwise_loss<2, Each::Like>(args, results);
}

// (grad_output, self, target, ...)
bool loss_backward(Args args, Stack& results) {
  const at::Tensor &self = args[1].toTensor(), &target = args[2].toTensor();
  if (!alike(self, target) || args[0].toTensor().scalar_type() != self.scalar_type()) return false;
  return give(results, make_for(self, self.sym_sizes()));
}

// (grad_output, self, target, weight, reduction)
bool cross_entropy_backward(Args args, Stack& results) {
  const at::Tensor& self = args[1].toTensor();
  return alike(self, args[2].toTensor()) && give(results, make_like(self));
}

// (grad_output, self, target, reduction): the kernel is a chain of others, whose layouts agree if these do.
bool soft_margin_loss_backward(Args args, Stack& results) {
  const at::Tensor &gradient = args[0].toTensor(), &self = args[1].toTensor(), &target = args[2].toTensor();
  auto contiguous = [](const at::Tensor& tensor) { return is_contiguous(tensor.sym_sizes(), tensor.sym_strides()); };
  bool fits = gradient.dim() == 0 || gradient.sym_sizes() == self.sym_sizes();
  if (!alike(self, target) || !fits || gradient.scalar_type() != self.scalar_type()) return false;
  return contiguous(self) && contiguous(target) && give(results, make_for(self, self.sym_sizes()));
}

// (self, target, weight, reduction, ignore_index)
bool nll_loss(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &target = args[1].toTensor();
  if (!is(self.scalar_type(), kFloating) || self.dim() < 1 || self.dim() > 2 || target.dim() > 1) return false;
  bool each = args[3].toInt() == kNoReduction && self.dim() == 2;
  if (self.dim() == 2 && (target.dim() != 1 || target.sym_size(0) != self.sym_size(0))) return false;
  return give(results, each ? make_for(self, self.sym_size(0)) : number_like(self), number_like(self));
}

// (grad_output, self, target, ...)
bool nll_loss_backward(Args args, Stack& results) {
  const at::Tensor& self = args[1].toTensor();
  return is(self.scalar_type(), kFloating) && give(results, make_for(self, self.sym_sizes()));
}

// The target of an image [batch, class, height, width] is [batch, height, width].
bool is_target_of(const at::Tensor& self, const at::Tensor& target) {
  return self.is_cpu() && is(self.scalar_type(), kFloating) && self.dim() == 4 && target.dim() == 3 &&
         target.scalar_type() == ScalarType::Long && self.sym_size(0) == target.sym_size(0) &&
         self.sym_sizes().slice(2) == target.sym_sizes().slice(1);
}

// (self, target, weight, reduction, ignore_index)
bool nll_loss2d(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &target = args[1].toTensor();
  if (!is_target_of(self, target) || product(self.sym_sizes()) == 0) return false;
  bool each = args[3].toInt() == kNoReduction;
  return give(results, each ? make_for(self, target.sym_sizes()) : number_like(self), number_like(self));
}

// (grad_output, self, target, ...)
bool nll_loss2d_backward(Args args, Stack& results) {
  const at::Tensor& self = args[1].toTensor();
  return is_target_of(self, args[2].toTensor()) && give(results, make_like(self));
}

bool is_matrix(const at::Tensor& self) {
  return self.is_cpu() && is(self.scalar_type(), kFloating) && self.dim() == 2 && product(self.sym_sizes()) != 0;
}

// (self, target, p, margin, weight, reduction): a loss for each row
bool margin_loss(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &target = args[1].toTensor();
  if (!is_matrix(self) || target.dim() != 1 || target.scalar_type() != ScalarType::Long) return false;
  const c10::IValue &power = args[2], &weight = args[4];
  if (!power.isInt() || power.toInt() < 1 || power.toInt() > 2) return false;
  if (given(weight) && (weight.toTensor().dim() != 1 || weight.toTensor().sym_size(0) != self.sym_size(1)))
    return false;
  if (target.sym_size(0) != self.sym_size(0)) return false;
  bool each = args[5].toInt() == kNoReduction;
  return give(results, each ? make_for(self, self.sym_size(0)) : number_like(self));
}

// (self, target, reduction), and which classes are targets, for the backward
bool multilabel_margin_loss(Args args, Stack& results) {
  const at::Tensor &self = args[0].toTensor(), &target = args[1].toTensor();
  if (!is_matrix(self) || target.sym_sizes() != self.sym_sizes()) return false;
  bool each = args[2].toInt() == kNoReduction;
  return give(results, each ? make_for(self, self.sym_size(0)) : number_like(self), make_for(self, self.sym_sizes()));
}

// (grad_output, self, target, ...)
bool margin_loss_backward(Args args, Stack& results) {
  const at::Tensor& self = args[1].toTensor();
  return is_matrix(self) && give(results, make_for(self, self.sym_sizes()));
}

constexpr Row kLossRules[] = {
    {"aten::mse_loss", elementwise_loss<2, Each::Elementwise>},
    {"aten::mse_loss_backward", loss_backward},
    {"aten::smooth_l1_loss", elementwise_loss<2, Each::Elementwise>},
    {"aten::smooth_l1_loss_backward", loss_backward},
    {"aten::huber_loss", huber_loss},
    {"aten::huber_loss_backward", loss_backward},
    {"aten::soft_margin_loss", elementwise_loss<2, Each::Like>},
    {"aten::soft_margin_loss_backward", soft_margin_loss_backward},
    {"aten::binary_cross_entropy", elementwise_loss<3, Each::Like>},
    {"aten::binary_cross_entropy_backward", cross_entropy_backward},
    {"aten::nll_loss_forward", nll_loss},
    {"aten::nll_loss_backward", nll_loss_backward},
    {"aten::nll_loss2d_forward", nll_loss2d},
    {"aten::nll_loss2d_backward", nll_loss2d_backward},
    {"aten::multi_margin_loss", margin_loss},
    {"aten::multi_margin_loss_backward", margin_loss_backward},
    {"aten::multilabel_margin_loss_forward", multilabel_margin_loss},
    {"aten::multilabel_margin_loss_backward", margin_loss_backward},
};

}  // namespace

Rows loss_rules() { return kLossRules; }

}  // namespace magneto::record::rules
