// Makes errors that show the line of the user's program which they are about.
#include "frame/full_graph.h"

#include "cpython/ref.h"
#include "cpython/text.h"
#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

// The source of a place such as "file.py:12 in forward"; empty if it is not known.
std::string source_line(const std::string& where) {
  size_t end = where.rfind(" in ");
  size_t colon = end == std::string::npos ? end : where.rfind(':', end);
  if (colon == std::string::npos) return "";
  runtime::LeaveAlone alone;
  py::Ref cache = py::Ref::steal(PyImport_ImportModule("linecache"));
  py::Ref line =
      py::Ref::steal(cache ? PyObject_CallMethod(cache.get(), "getline", "si", where.substr(0, colon).c_str(),
                                                 std::atoi(where.c_str() + colon + 1))
                           : nullptr);
  py::Ref text = py::Ref::steal(line ? PyObject_CallMethod(line.get(), "strip", nullptr) : nullptr);
  if (!text) PyErr_Clear();
  return text ? py::text(text.get()) : "";
}

}  // namespace

void set_user_error(const std::string& text) { PyErr_SetString(runtime::process_state().user_error, text.c_str()); }

void set_full_graph_error(const std::string& name, const std::string& reason, const std::string& where) {
  std::string text = "fullgraph=True, but this call of " + name + " could not be captured as one graph: " + reason;
  const std::string place = where.empty() ? trace::Watch::place() : where;  // who has called it
  if (!place.empty()) text += "\n  at " + place;
  if (std::string line = source_line(place); !line.empty()) text += "\n    " + line;
  text +=
      "\nChange that code, or compile without fullgraph=True: then it runs as Python would run it, with the same "
      "results.";
  set_user_error(text);
}

}  // namespace magneto::frame
