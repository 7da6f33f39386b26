// The native side of magneto.compiled_autograd.
#pragma once
#include <nanobind/nanobind.h>

namespace magneto::python {

void bind_autograd(nanobind::module_& module);

}  // namespace magneto::python
