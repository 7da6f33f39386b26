// One recording that Python code drives: arguments in, operators noted, outputs and graph out.
#include "python/bind_record.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "autograd/straight_run.h"
#include "python/bind_graph.h"
#include "python/state_names.h"
#include "python/tensor_objects.h"
#include "record/global_state.h"
#include "record/live_recorder.h"
#include "record/plain_tensor.h"
#include "record/trace_recorder.h"
#include "runtime/errors.h"
#include "runtime/state.h"

namespace nb = nanobind;

namespace magneto::python {
namespace {

using graph::Role;
using record::Refusal;

std::string message(const Refusal& refusal) {
  std::string text = refusal.reason;
  if (refusal.line) {
    text += ", at " + refusal.line->file + ":" + std::to_string(refusal.line->number) + " in " + refusal.line->function;
  }
  return refusal.kind == Refusal::DataDependent ? text + ". A graph must not depend on the contents of tensors." : text;
}

nb::object error_type(const Refusal& refusal) {
  const char* name = refusal.kind == Refusal::DataDependent ? "DataDependent" : "RecordError";
  return nb::module_::import_("magneto.errors").attr(name);
}

[[noreturn]] void raise_refusal(const Refusal& refusal) {
  nb::gil_scoped_acquire gil;
  runtime::throw_python_error(error_type(refusal).ptr(), message(refusal));
}

class Recording {
 public:
  // `module`: what is recorded, or None. `name_state(tensor)`: the name of another tensor that the program can reach
  // without being given it, or None.
  Recording(bool live, nb::object module, nb::callable name_state)
      : module_(std::move(module)), name_state_(std::move(name_state)), live_(live) {
    check_idle();
    record::RecorderOptions options;
    options.on_refuse = raise_refusal;
    options.adopt = [this](const at::Tensor& tensor) { return adopt(tensor); };
    options.gradients = true;
    options.lines = true;
    if (live) {
      recorder_ = std::make_unique<record::LiveRecorder>(std::move(options));
    } else {
      auto tracing = std::make_unique<record::TraceRecorder>(std::move(options));
      tracing_ = tracing.get();
      recorder_ = std::move(tracing);
    }
  }

  void start() {
    check_idle();
    if (auto reason = record::why_state_forbids_recording(); !reason.empty()) raise(reason);
    record::forget_autocast_casts();
    no_collection_.emplace();
    recorder_->start();
  }

  void stop() {
    recorder_->stop();
    no_collection_.reset();
    record::forget_autocast_casts();
  }

  // `dynamic`: dimension, name of the symbol or "", least and greatest size.
  using Dynamic = std::tuple<int64_t, std::string, int64_t, std::optional<int64_t>>;
  nb::object input(nb::handle tensor, std::string name, const std::vector<Dynamic>& dynamic) {
    const at::Tensor& argument = unwrap(tensor, name);
    if (auto reason = record::why_not_plain(tensor.ptr()); !reason.empty()) raise("argument " + name + " is " + reason);
    std::vector<record::DynamicSize> sizes;
    for (const auto& [dimension, symbol, least, greatest] : dynamic) {
      sizes.push_back({dimension, symbol, {least, greatest.value_or(graph::Range::kMax)}});
    }
    at::Tensor stand_in;
    translated([&] {
      stand_in = recorder_->stand_in(argument, name, sizes);
      recorder_->add_input(stand_in, std::move(name));
    });
    return wrap(std::move(stand_in));
  }

  nb::object size(int64_t number, const std::string& name, const std::string& symbol, std::optional<int64_t> least,
                  std::optional<int64_t> greatest) {
    check_tracing();
    graph::Range range{least.value_or(graph::Range::kMin), greatest.value_or(graph::Range::kMax)};
    nb::object made;
    translated([&] { made = nb::steal(runtime::wrap_number(tracing_->add_size(number, name, symbol, range))); });
    if (!made.is_valid()) throw nb::python_error();
    return made;
  }

  nb::object gradient(nb::handle output, std::string name) {
    at::Tensor stand_in = recorder_->stand_in_for_gradient(unwrap(output, name));
    translated([&] { recorder_->add_input(stand_in, std::move(name)); });
    return wrap(std::move(stand_in));
  }

  void output(nb::handle tensor) {
    translated([&] { recorder_->add_output(unwrap(tensor, "an output")); });
  }

  void output_size(nb::handle number) {
    check_tracing();
    auto symbolic = runtime::symbolic_number(number.ptr());
    if (!symbolic) throw nb::type_error("output_size expects a torch.SymInt, SymFloat or SymBool");
    translated([&] { tracing_->add_output_size(*symbolic); });
  }

  // None where the engine has to find them.
  std::optional<nb::list> gradients(const std::vector<nb::handle>& outputs, const std::vector<nb::handle>& tangents,
                                    const std::vector<nb::handle>& asked) {
    if (live_ || recorder_->refusal() || recorder_->has_saved_by_hooks()) return std::nullopt;
    auto tensors = [](const std::vector<nb::handle>& objects) {
      autograd::variable_list list;
      for (nb::handle object : objects) list.push_back(unwrap(object, "gradients"));
      return list;
    };
    std::optional<autograd::variable_list> found;
    translated([&] {
      record::Recorder::OnOneLine backwards_are_called_from_here;
      runtime::WarningScope warnings;
      auto from = tensors(outputs), given = tensors(tangents), to = tensors(asked);
      {
        nb::gil_scoped_release no_gil;
        found = autograd::gradients_straight(from, std::move(given), to);
      }
      if (!warnings.emit()) throw nb::python_error();
    });
    if (!found) return std::nullopt;
    nb::list list;
    for (at::Tensor& gradient : *found) list.append(gradient.defined() ? wrap(std::move(gradient)) : nb::none());
    return list;
  }

  // In the order of their first use.
  nb::list states() const {
    nb::list list;
    for (const at::Tensor& tensor : recorder_->states()) list.append(wrap(tensor));
    return list;
  }

  void check() const {
    if (recorder_->refusal()) raise(*recorder_->refusal());
  }

  nb::object finish() {
    stop();
    check();
    std::vector<py::Ref> states;
    for (const at::Tensor& tensor : recorder_->states()) states.push_back(py::Ref::steal(wrap(tensor).release().ptr()));
    return nb::steal(wrap_graph(recorder_->take_graph(), std::move(states)));
  }

 private:
  static void check_idle() {
    if (record::Recorder::active()) raise("a recording is active already");
  }

  void check_tracing() const {
    if (!tracing_) throw nb::value_error("a live recording has no symbolic sizes");
  }

  [[noreturn]] static void raise(const std::string& reason) { raise(Refusal{Refusal::Unsupported, reason}); }
  [[noreturn]] static void raise(const Refusal& refusal) {
    PyErr_SetString(error_type(refusal).ptr(), message(refusal).c_str());
    throw nb::python_error();
  }

  // Torch's exceptions become Python's.
  template <class Function>
  static void translated(Function function) {
    try {
      function();
    } catch (const nb::python_error&) {
      throw;
    } catch (const nb::builtin_exception&) {
      throw;
    } catch (const UserError&) {
      throw;
    } catch (...) {
      runtime::set_python_error(std::current_exception());
      throw nb::python_error();
    }
  }

  std::optional<record::State> adopt(const at::Tensor& tensor) {
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number() || !record::is_plain(*tensor.unsafeGetTensorImpl()))
      return {};
    if (const StateNames::Named* known = known_state(tensor))
      return record::State{known->is_parameter ? Role::Parameter : Role::Buffer, known->name};
    nb::gil_scoped_acquire gil;
    nb::object object = wrap(tensor);
    nb::object name = name_state_(object);
    // A live recording must not take what an operator made unseen for something older.
    if (name.is_none() && live_) return {};
    Role role = PyObject_TypeCheck(object.ptr(), runtime::parameter_class()) ? Role::Parameter : Role::Buffer;
    return record::State{role, name.is_none() ? "" : nb::cast<std::string>(name)};
  }

  const StateNames::Named* known_state(const at::Tensor& tensor) {
    if (module_.is_none()) return nullptr;
    if (!names_) {
      nb::gil_scoped_acquire gil;
      names_.emplace(module_.ptr());
    }
    return names_->find(tensor);
  }

  nb::object module_;
  nb::callable name_state_;
  std::optional<StateNames> names_;  // once one was asked for
  bool live_;
  std::unique_ptr<record::Recorder> recorder_;
  record::TraceRecorder* tracing_ = nullptr;            // the same, unless it is live
  std::optional<runtime::NoCollection> no_collection_;  // a program makes many objects; the finalisers are not its own
};

}  // namespace

void bind_record(nb::module_& module) {
  nb::class_<Recording>(module, "Recording", "A recording of the operators that run on this thread.")
      .def(nb::init<bool, nb::object, nb::callable>(), nb::arg("live"), nb::arg("module").none(), nb::arg("name_state"),
           nb::sig("def __init__(self, live: bool, module: torch.nn.Module | None,"
                   " name_state: collections.abc.Callable[[torch.Tensor], str | None]) -> None"))
      .def("start", &Recording::start)
      .def("stop", &Recording::stop)
      .def("input", &Recording::input, nb::arg("tensor"), nb::arg("name"), nb::arg("dynamic"),
           nb::sig("def input(self, tensor: torch.Tensor, name: str,"
                   " dynamic: collections.abc.Sequence[tuple[int, str, int, int | None]]) -> torch.Tensor"),
           "Adds an argument; gives the tensor to call the program with.")
      .def("size", &Recording::size, nb::arg("number"), nb::arg("name"), nb::arg("symbol"), nb::arg("least").none(),
           nb::arg("greatest").none(),
           nb::sig("def size(self, number: int, name: str, symbol: str, least: int | None, greatest: int | None)"
                   " -> torch.SymInt | int"),
           "Adds an integer argument that runs may change; gives the number to call the program with.")
      .def("gradient", &Recording::gradient, nb::arg("output"), nb::arg("name"),
           nb::sig("def gradient(self, output: torch.Tensor, name: str) -> torch.Tensor"),
           "Adds the gradient of an output as an input; gives the tensor to start the backward with.")
      .def("gradients", &Recording::gradients, nb::arg("outputs"), nb::arg("tangents"), nb::arg("asked"),
           nb::sig("def gradients(self, outputs: list[torch.Tensor], tangents: list[torch.Tensor],"
                   " asked: list[torch.Tensor]) -> list[torch.Tensor | None] | None"),
           "Runs the backward; None where torch's engine has to.")
      .def("output", &Recording::output, nb::arg("tensor"), nb::sig("def output(self, tensor: torch.Tensor) -> None"))
      .def("output_size", &Recording::output_size, nb::arg("number"),
           nb::sig("def output_size(self, number: torch.SymInt | torch.SymFloat | torch.SymBool) -> None"))
      .def("states", &Recording::states, nb::sig("def states(self) -> list[torch.Tensor]"),
           "The tensors that were met and are not arguments.")
      .def("check", &Recording::check, "Raises what the recording has refused, if anything.")
      .def("finish", &Recording::finish, nb::sig("def finish(self) -> Graph"), "Stops, and gives the graph.");
}

}  // namespace magneto::python
