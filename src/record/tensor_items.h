// The tensors inside an argument or a result of an operator.
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace magneto::record {

// A list that holds at least one tensor, which may be undefined.
inline bool holds_tensors(const c10::IValue& list) {
  if (!list.isList()) return false;
  for (const c10::IValue& item : list.toListRef()) {
    if (item.isTensor()) return list.isTensorList() || list.isOptionalTensorList();
    if (!item.isNone()) return false;
  }
  return false;
}

// Calls `f` with every defined tensor of a tensor or a list of tensors.
template <class F>
void each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (holds_tensors(value)) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) f(item.toTensor());
    }
  }
}

// Whether `f` holds for a defined tensor.
template <class F>
bool any_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) return value.toTensor().defined() && f(value.toTensor());
  if (!holds_tensors(value)) return false;
  for (const c10::IValue& item : value.toListRef()) {
    if (item.isTensor() && item.toTensor().defined() && f(item.toTensor())) return true;
  }
  return false;
}

// Replaces every defined tensor by what `f` makes of it. A list may have other owners, so it is replaced as a whole.
template <class F>
void map_tensors(c10::IValue& value, F&& f) {
  auto map_list = [&]<class Item>(c10::List<Item> list) {
    bool changed = false;
    for (size_t i = 0; i < list.size(); ++i) {
      std::optional<at::Tensor> tensor = list.get(i);
      if (!tensor || !tensor->defined()) continue;
      at::Tensor mapped = f(*tensor);
      if (mapped.is_same(*tensor)) continue;
      if (!std::exchange(changed, true)) list = list.copy();
      list.set(i, std::move(mapped));
    }
    if (changed) value = std::move(list);
  };
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return;
    at::Tensor mapped = f(value.toTensor());
    if (!mapped.is_same(value.toTensor())) value = std::move(mapped);
  } else if (!holds_tensors(value)) {
    return;
  } else if (value.isTensorList()) {
    map_list(value.toTensorList());
  } else {
    map_list(value.toOptionalTensorList());
  }
}

}  // namespace magneto::record
