// Regions that a program names for profilers: torch.profiler.record_function.
//
// They are real while a call is watched. Programs leave them out, since the operators of a region become part of larger
// work; but where CPython takes over inside one, it gets a region that begins there, and ends it. Regions that are over
// are all the same.
#include <algorithm>

#include "trace/watch.h"

namespace magneto::trace {

PyObject* Watch::call_label(const Call& call) {
  for (Label& label : labels_)
    label.is_over |= std::find(call.args, call.args + call.size(), label.object.get()) != call.args + call.size();
  auto make_unseen = [&] {
    runtime::PauseWatch pause;
    return call.make();
  };
  PyObject* made = recording->run_aside(make_unseen);
  if (!made || made == Py_None) return made;
  mark_fresh(made);
  labels_.push_back({py::Ref::borrow(made), py::Ref::borrow(call.callable), {}, false});
  for (size_t i = 0; i < call.size(); ++i) labels_.back().args.push_back(py::Ref::borrow(call.args[i]));
  return made;
}

const Watch::Label* Watch::label(PyObject* object) const {
  auto found = std::ranges::find_if(labels_, [object](const Label& label) { return label.object.get() == object; });
  return found == labels_.end() ? nullptr : &*found;
}

}  // namespace magneto::trace
