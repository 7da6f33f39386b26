// Captures a backward while it really runs: nodes do their work, and their operators are noted.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "autograd/backward.h"

namespace magneto::autograd {

// A node that is called as it is, and why.
using OnOpaque = std::function<void(const Node& node, const std::string& reason)>;

// Runs the whole task. Null if what was captured cannot be run again, for a reason that is told. Without the GIL.
std::shared_ptr<Backward> capture(Runner& runner, std::unique_ptr<runtime::GlobalState> state,
                                  const OnOpaque& on_opaque, std::string* why_not);

}  // namespace magneto::autograd
