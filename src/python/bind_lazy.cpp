// What magneto.lazy asks of the lazy device.
#include "python/bind_lazy.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "cpython/ref.h"
#include "lazy/device.h"
#include "lazy/kernels.h"
#include "python/tensor_objects.h"
#include "runtime/errors.h"
#include "runtime/state.h"

namespace nb = nanobind;

namespace magneto::python {
namespace {

lazy::Device& device() {
  if (!lazy::device()) throw UserError("there is no lazy device yet: call magneto.lazy.init()");
  return *lazy::device();
}

// What operators throw becomes the Python error that it is in eager.
template <class Work>
auto translated(Work work) {
  try {
    return work();
  } catch (const UserError&) {
    throw;
  } catch (...) {
    runtime::set_python_error(std::current_exception());
    throw nb::python_error();
  }
}

const at::Tensor& unwrap_lazy(nb::handle object) {
  const at::Tensor& tensor = unwrap(object, "magneto.lazy");
  if (!lazy::is_lazy(tensor))
    throw UserError("expected a tensor on the device lazy, got one on " + tensor.device().str());
  return tensor;
}

// Seeds the lazy device with torch's own generator.
bool on_seed(PyObject* generator, PyObject* seed) {
  py::Ref torch = py::Ref::steal(PyImport_ImportModule("torch"));
  py::Ref standard = py::Ref::steal(torch ? PyObject_GetAttrString(torch.get(), "default_generator") : nullptr);
  if (!standard) return false;
  if (generator != standard.get()) return true;
  try {
    lazy::device()->seed(PyLong_AsUnsignedLongLongMask(seed));
    return true;
  } catch (...) {
    runtime::set_python_error(std::current_exception());
    return false;
  }
}

void init(const std::string& backing) {
  std::string problem = translated([&] { return lazy::install(c10::Device(backing)); });
  if (!problem.empty()) throw UserError(problem);
  runtime::process_state().on_seed = &on_seed;
}

nb::object pending(nb::object tensors) {
  std::vector<at::Tensor> chosen;
  if (!tensors.is_none())
    for (nb::handle tensor : tensors) chosen.push_back(unwrap_lazy(tensor));
  auto [graph, inputs] = translated([&] { return device().pending(tensors.is_none() ? nullptr : &chosen); });
  nb::list values;
  for (at::Tensor& input : inputs) values.append(wrap(std::move(input)));
  return nb::make_tuple(nb::steal(runtime::process_state().wrap_graph(std::move(graph), {})), values);
}

nb::object graph_of(const lazy::Compiled& compiled) {
  return nb::steal(runtime::process_state().wrap_graph(compiled.executor.graph(), {}));
}

nb::object latest() {
  auto compiled = device().latest();
  return compiled ? graph_of(*compiled) : nb::none();
}

std::vector<nb::object> recent() {
  std::vector<nb::object> graphs;
  for (const auto& compiled : device().recent()) graphs.push_back(graph_of(*compiled));
  return graphs;
}

using Timer = std::tuple<int64_t, double, std::vector<double>>;
std::map<std::string, Timer> timers() {
  std::map<std::string, Timer> found;
  for (auto& [name, timer] : device().metrics().timers())
    found[name] = {timer.count, timer.total_us, std::move(timer.last_us)};
  return found;
}

}  // namespace

void bind_lazy(nb::module_& module) {
  module.def("lazy_init", &init, nb::arg("backing"));
  module.def("lazy_exists", [] { return lazy::device() != nullptr; });
  module.def("lazy_backing", [] { return device().backing().str(); });
  module.def("lazy_end_step", [](bool wait) { translated([&] { device().end_step(wait); }); }, nb::arg("wait"));
  module.def("lazy_wait", [] { translated([] { device().wait(); }); });
  module.def("lazy_stop", [] { device().stop(); });
  module.def("lazy_seed", [](uint64_t seed) { translated([&] { device().seed(seed); }); }, nb::arg("seed"));
  module.def("lazy_random_state", [] { return wrap(translated([] { return device().random_state(); })); });
  module.def(
      "lazy_set_random_state",
      [](nb::handle state) { translated([&] { device().set_random_state(unwrap(state, "set_rng_state")); }); },
      nb::arg("state"));
  module.def("lazy_pending", &pending, nb::arg("tensors").none());
  module.def("lazy_latest", &latest);
  module.def("lazy_recent", &recent);
  module.def(
      "lazy_tensor_id", [](nb::handle tensor) { return device().tensor_id(unwrap_lazy(tensor)); }, nb::arg("tensor"));
  module.def("lazy_frames", [] { return device().pending_frames(); });
  module.def("lazy_counters", [] { return device().metrics().counters(); });
  module.def("lazy_timers", &timers);
  module.def("lazy_clear_metrics", [] { device().metrics().clear(); });
  module.def("lazy_cache_dot", [] { return device().cache_dot(); });
  module.def("lazy_clear_cache", [] { translated([] { device().clear_cache(); }); });
  module.def("lazy_set_reuse", [](bool on) { translated([&] { device().set_reuse(on); }); }, nb::arg("on"));
  module.def("lazy_forced", [] { return device().forced(); });
  module.def(
      "lazy_set_forced", [](std::set<std::string> names) { device().set_forced(std::move(names)); }, nb::arg("names"));
}

}  // namespace magneto::python
