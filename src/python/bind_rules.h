// Shape rules for tests, which compare them with the real kernels.
#pragma once
#include <nanobind/nanobind.h>

namespace magneto::python {

void bind_rules(nanobind::module_& module);

}  // namespace magneto::python
