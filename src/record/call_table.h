// What is known about the functions and attributes that torch implements in C.
#pragma once
#include <Python.h>

#include <string_view>

#include "runtime/tensor_plug.h"

namespace magneto::record {

// Methods of torch.Tensor (with its slots, such as __getitem__).
runtime::CallKind tensor_method_kind(std::string_view name);
// torch._C._VariableFunctions and torch._C._nn, _fft, _linalg, _special: functions over tensors.
runtime::CallKind tensor_function_kind(std::string_view name);
// Functions of torch._C.
runtime::CallKind module_function_kind(std::string_view name);
// Attributes of torch.Tensor that C code answers.
runtime::CallKind tensor_attribute_kind(std::string_view name);

}  // namespace magneto::record
