// `_C.Recording`, on which magneto.record stands.
#pragma once
#include <nanobind/nanobind.h>

namespace magneto::python {

void bind_record(nanobind::module_& module);

}  // namespace magneto::python
