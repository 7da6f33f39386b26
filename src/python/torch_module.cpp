// `magneto._C`: the core with torch plugged in.
#include "python/bind_autograd.h"
#include "python/bind_core.h"
#include "python/bind_graph.h"
#include "python/bind_lazy.h"
#include "python/bind_record.h"
#include "python/bind_rules.h"
#include "record/profiler_events.h"
#include "record/torch_plug.h"

NB_MODULE(_C, module) {
  module.doc() = "The native part of Magneto.";
  magneto::record::install_torch_plug();
  magneto::record::install_profiler_events();
  magneto::python::bind_core(module);
  magneto::python::bind_graph(module);
  magneto::python::bind_record(module);
  magneto::python::bind_rules(module);
  magneto::python::bind_autograd(module);
  magneto::python::bind_lazy(module);
}
