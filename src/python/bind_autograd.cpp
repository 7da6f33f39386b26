// Binds the settings and the cache of compiled autograd.
#include "python/bind_autograd.h"

#include <nanobind/stl/optional.h>

#include "autograd/engine_hook.h"
#include "runtime/state.h"

namespace nb = nanobind;

namespace magneto::python {
namespace {

void set_compiler(nb::object factory, std::optional<bool> dynamic) {
  if (factory.is_none())
    autograd::set_compiler(autograd::Compiler::Unsaid, nullptr, dynamic);
  else if (factory.is(nb::bool_(false)))
    autograd::set_compiler(autograd::Compiler::None, nullptr, dynamic);
  else if (factory.is(nb::bool_(true)))
    autograd::set_compiler(autograd::Compiler::Native, nullptr, dynamic);
  else
    autograd::set_compiler(autograd::Compiler::Python, factory.ptr(), dynamic);
}

void set_logger(nb::object logger) {
  PyObject*& place = runtime::process_state().autograd_logger;
  PyObject* before = std::exchange(place, logger.is_none() ? nullptr : logger.release().ptr());
  Py_XDECREF(before);
}

}  // namespace

void bind_autograd(nb::module_& module) {
  autograd::install_door();
  runtime::process_state().on_derivation = &autograd::note_derivation;
  module.def("set_autograd_compiler", &set_compiler, nb::arg("factory").none(), nb::arg("dynamic").none(),
             "For this thread. None: nothing is said; False: off; True: native; otherwise a factory of compilers, kept "
             "alive by the "
             "caller.");
  module.def("set_autograd_logger", &set_logger, nb::arg("logger").none());
  module.def("clear_autograd_cache", &autograd::clear_cache);
  module.def("is_autograd_cache_empty", &autograd::is_cache_empty);
}

}  // namespace magneto::python
