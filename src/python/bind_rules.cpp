// Shape rules for tests: apply the rule of an operator to trace tensors that look like real ones.
#include "python/bind_rules.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "python/tensor_objects.h"
#include "record/rules.h"
#include "record/tensor_items.h"
#include "record/trace_tensor.h"

namespace nb = nanobind;

namespace magneto::python {
namespace {

using c10::IValue;

nb::object to_python(const at::Tensor& tensor) { return tensor.defined() ? wrap(tensor) : nb::none(); }

nb::list to_python(const std::vector<at::Tensor>& tensors) {
  nb::list list;
  for (const at::Tensor& tensor : tensors) list.append(to_python(tensor));
  return list;
}

nb::object apply_rule(const std::string& name, nb::tuple args, nb::dict kwargs) {
  auto dot = name.find('.');
  auto handle = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!handle) throw nb::value_error(("there is no operator " + name).c_str());
  record::Rule rule = record::find_rule(name);
  if (!rule) return nb::none();
  torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  auto stack = torch::jit::createStackForSchema(
      handle->schema(), torch::jit::tuple_slice(pybind11::reinterpret_borrow<pybind11::tuple>(args.ptr())),
      pybind11::reinterpret_borrow<pybind11::kwargs>(kwargs.ptr()), std::nullopt);
  std::vector<at::Tensor> traces;
  for (IValue& value : stack) {
    record::map_tensors(value, [&](const at::Tensor& tensor) { return traces.emplace_back(record::trace_of(tensor)); });
  }
  c10::Stack results;
  if (!rule(stack, results)) return nb::none();
  nb::list shown;
  for (const IValue& result : results) {
    shown.append(result.isTensor() ? to_python(result.toTensor()) : to_python(result.toTensorVector()));
  }
  return nb::make_tuple(to_python(traces), shown);
}

}  // namespace

void bind_rules(nb::module_& module) {
  module.def("_rule_names", &record::rule_names, "The operators that have a shape rule.");
  module.def(
      "_apply_rule", &apply_rule, nb::arg("operator"), nb::arg("args"), nb::arg("kwargs"),
      "For tests. Applies the shape rule of an operator (\"aten::add.Tensor\") to trace tensors that look like the "
      "given ones. Returns those trace tensors and the results; None if no rule covers the call.");
}

}  // namespace magneto::python
