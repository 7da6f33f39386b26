// Captures one call: watches it for real and, if all of it was understood, leaves a variant that runs it again.
#pragma once
#include <memory>
#include <string>

#include "guard/arguments.h"
#include "guard/guards.h"
#include "program/program.h"

namespace magneto::frame {

// One compiled form of a function: under these guards, this program.
struct Variant {
  explicit Variant(const guard::CallArguments& call) : arguments(call) {}

  guard::Arguments arguments;
  guard::Guards guards;
  program::Program program;
  int64_t hits = 0;
  double watch_ms = 0, build_ms = 0;

  int traverse(visitproc visit, void* arg) const;
};

struct Capture {
  py::Ref result;                    // of the call; null: a Python error is set
  std::shared_ptr<Variant> variant;  // null: not compiled, for this reason
  std::string reason, where;
};

// Runs `function` exactly once, whatever happens.
Capture capture(PyObject* function, const guard::CallArguments& call);

// Empty, or why no call can be captured at the moment (a debugger is attached, a torch mode is active).
std::string why_not_now();

}  // namespace magneto::frame
