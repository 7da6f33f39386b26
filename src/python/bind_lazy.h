// Binds the lazy device.
#pragma once
#include <nanobind/nanobind.h>

namespace magneto::python {

void bind_lazy(nanobind::module_& module);

}  // namespace magneto::python
