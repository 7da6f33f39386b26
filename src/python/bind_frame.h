// The bindings behind magneto.eval_frame; both Python modules have them.
#pragma once
#include <nanobind/nanobind.h>

namespace magneto::python {

void bind_frame(nanobind::module_& module);

}  // namespace magneto::python
