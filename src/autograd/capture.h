// Captures a backward while it runs.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "autograd/backward.h"

namespace magneto::autograd {

// A node that is called as it is, and why.
using OnOpaque = std::function<void(const Node& node, const std::string& reason)>;

// Both run the whole task, without the GIL.

// Nodes do their work, and the operators that they call are noted. Null if that cannot be run again, for a reason that
// is told.
std::shared_ptr<Backward> capture(Runner& runner, const OnOpaque& on_opaque, std::string* why_not);

struct SymbolicOptions {
  bool all_sizes;          // are symbols; otherwise those that differ from an earlier backward
  const Backward* before;  // of the same nodes; or null
  PyObject* factory;       // of Python compilers, which see each part before it runs; or null
};
// The nodes of a part first work on tensors without data, some of whose sizes are symbols; then the part runs.
std::shared_ptr<Backward> capture_symbolic(Runner& runner, const SymbolicOptions& options, const OnOpaque& on_opaque);

}  // namespace magneto::autograd
