// Captures one call: watches it for real and, if all of it was understood, leaves a variant that runs it again.
#pragma once
#include <memory>
#include <string>

#include "guard/arguments.h"
#include "guard/reads.h"
#include "guard/trie.h"
#include "program/program.h"

namespace magneto::frame {

// One compiled form of a function: under these guards, this program.
struct Variant : guard::Entry {
  std::shared_ptr<const guard::Arguments> arguments;  // shared by all variants that admit the same calls
  program::Program program;
  int64_t hits = 0;
  int64_t last_used = 0;  // the hit, counted over the process
  double watch_ms = 0, build_ms = 0;
};

struct Capture {
  py::Ref result;                    // of the call; null: a Python error is set
  std::shared_ptr<Variant> variant;  // null: not compiled, for this reason
  std::string reason, where;
  std::vector<std::string> breaks;  // why the program is in several parts
  std::vector<guard::Read> reads;   // the guards of the variant, to be put into the function's trie
  guard::RootNames roots;           // what they start from
};

// Runs `function` exactly once, whatever happens. `whole`: a call that runs something unknown is not captured.
Capture capture(PyObject* function, const guard::CallArguments& call, bool whole);

// What people call the objects that the guards of `function` start from.
guard::RootNames name_roots(PyObject* function, const guard::Arguments& arguments);

// Empty, or why no call can be captured at the moment (a debugger is attached, a torch mode is active).
std::string why_not_now();

}  // namespace magneto::frame
