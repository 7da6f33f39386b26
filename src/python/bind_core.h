// The bindings that need no torch; both Python modules have them.
#pragma once
#include <nanobind/nanobind.h>

namespace magneto::python {

void bind_core(nanobind::module_& module);

}  // namespace magneto::python
