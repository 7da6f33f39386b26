// `magneto._core`: the torch-free layers alone, for their tests on every CPython version.
#include "python/bind_core.h"

NB_MODULE(_core, module) {
  module.doc() = "The torch-free core of Magneto.";
  magneto::python::bind_core(module);
}
