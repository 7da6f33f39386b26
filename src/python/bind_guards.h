// The guards that users build; both Python modules have them.
#pragma once
#include <nanobind/nanobind.h>

namespace magneto::python {

void bind_guards(nanobind::module_& module);

}  // namespace magneto::python
