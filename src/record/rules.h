// Shape rules: what the results of an operator look like, worked out from trace tensors without running a kernel.
#pragma once
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <vector>

namespace magneto::record {

// Appends the results, which look exactly as those of the real kernel: dtype, device, sizes, strides, offset, aliasing.
// All tensors among `args` are trace tensors or undefined. False, with `results` as they were: the rule does not cover
// these arguments. Arguments that the kernel would refuse: an exception, or false.
using Rule = bool (*)(c10::ArrayRef<c10::IValue> args, c10::Stack& results);

// The rule for an operator such as "aten::add.Tensor", or null.
Rule find_rule(const std::string& operator_name);

// The operators that have a rule.
std::vector<std::string> rule_names();

}  // namespace magneto::record
