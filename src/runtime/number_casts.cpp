// Which operators cast, and to what.
#include "runtime/number_casts.h"

#include <ATen/ScalarOps.h>
#include <c10/core/DynamicCast.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace magneto::runtime {
namespace {

constexpr std::array<std::string_view, 8> kArithmetic = {"aten::add.Tensor",  "aten::sub.Tensor",  "aten::mul.Tensor",
                                                         "aten::div.Tensor",  "aten::add_.Tensor", "aten::sub_.Tensor",
                                                         "aten::mul_.Tensor", "aten::div_.Tensor"};

template <class T>
at::Tensor cast_to(const at::Tensor& number, c10::ScalarType type) {
  at::Tensor cast = at::detail::scalar_tensor_static(0, type, at::kCPU);
  *cast.mutable_data_ptr<T>() = c10::fetch_and_cast<T>(number.scalar_type(), number.const_data_ptr());
  cast.unsafeGetTensorImpl()->set_wrapped_number(true);
  return cast;
}

}  // namespace

// Types of less precision are left out: there operators compute with the number as it was given. So is what autograd
// takes part in: its nodes keep the number.
at::Tensor cast_number(const graph::Graph& graph, const graph::Op& op, const graph::TensorRef& place,
                       const at::Tensor& number) {
  if (!number.unsafeGetTensorImpl()->is_wrapped_number() || number.is_complex()) return {};
  if (op.derives || op.tensors.size() != 2) return {};
  if (std::ranges::find(kArithmetic, op.info->name) == kArithmetic.end()) return {};
  const graph::Value& other = graph.values[op.tensors[place.position == 0 ? 1 : 0].value];
  c10::ScalarType type = graph.values[op.results[0].value].dtype;
  if (other.role == graph::Role::Constant || other.dtype != type || number.scalar_type() == type) return {};
  if (type == c10::kFloat) return cast_to<float>(number, type);
  if (type == c10::kDouble) return cast_to<double>(number, type);
  return {};
}

}  // namespace magneto::runtime
