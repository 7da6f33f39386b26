// Captures one call: watches it for real and, if all of it was understood, leaves a variant that runs it again.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "guard/arguments.h"
#include "guard/reads.h"
#include "guard/trie.h"
#include "program/program.h"
#include "runtime/state.h"
#include "trace/detours.h"
#include "trace/leeway.h"

namespace magneto::frame {

// One compiled form of a function: under these guards, this program.
struct Variant : guard::Entry {
  std::shared_ptr<const guard::Arguments> arguments;  // shared by all variants that admit the same calls
  program::Program program;
  int64_t hits = 0;
  int64_t last_used = 0;  // the hit, counted over the process
  double watch_ms = 0, build_ms = 0;
  // Calls that CPython had to finish ask for another capture, later each time that this brings nothing.
  int64_t captures_in_vain = 0;
  int64_t capture_in = -1;  // so many more calls; -1: not at all
  int depth = 0;            // of Python calls, which the program does not make
  size_t detours = 0;       // how many were known when it was captured
  bool is_open = false;     // it was captured so that sizes and numbers may be any
  bool pays = false;        // for one of its captures at least

  // As a form for the same calls.
  bool is_better_than(const Variant& other) const { return detours > other.detours || (is_open && !other.is_open); }
};

// A call that is to be made for real, exactly once, and what it is made with.
class RealCall {
 public:
  RealCall(PyObject* function, const guard::CallArguments& arguments) : function(function), arguments(arguments) {}
  RealCall(const RealCall&) = delete;
  RealCall& operator=(const RealCall&) = delete;

  // Null: error set. `watch`: who watches it, or null.
  virtual PyObject* run(trace::Watch* watch) = 0;

  PyObject* const function;
  const guard::CallArguments arguments;

 protected:
  ~RealCall() = default;
};

class FunctionCall final : public RealCall {
 public:
  using RealCall::RealCall;
  PyObject* run(trace::Watch* watch) override;
};

struct Capture {
  py::Ref result;                // of the call; null: a Python error is set
  guard::Held<Variant> variant;  // null: not compiled, for this reason, or part of the base
  bool added = false;            // to the base
  bool met_forbidden = false;    // magneto.forbid_in_graph
  std::string reason, where;
  int depth = 0;                         // of Python calls
  bool pays = false;                     // see trace::Watch
  std::vector<std::string> breaks;       // why the program is in several parts
  std::vector<guard::Read> reads;        // the guards of the variant, to be put into the function's trie
  guard::RootNames roots;                // what they start from
  bool was_open = false;                 // sizes or numbers were to stay open
  bool pins_answers = false;             // those that the call asks for did not
  std::string broken_promise;            // a size that was marked dynamic, but had to be fixed: which, and where
  std::vector<guard::Opening> pinned;    // what was to stay open and did not
  std::optional<trace::Detour> stumble;  // where it gave up, if another capture can go around that
};

// Runs the call exactly once, whatever happens. `whole`: a call that runs something unknown is not captured. `base`: a
// variant whose guards hold, but which could not finish such a call; what is new is added to it. May be null.
// `arguments` are those of the call; `detours`: see trace::Watch.
Capture capture(RealCall& call, bool whole, const Variant* base, std::shared_ptr<guard::Arguments> arguments,
                const trace::Leeway& leeway, const std::vector<trace::Detour>& detours);

// What people call the objects that the guards of `function` start from.
guard::RootNames name_roots(PyObject* function, const guard::Arguments& arguments);

// Empty, or why no call can be captured at the moment (a debugger is attached, a torch mode is active).
std::string why_not_now();

}  // namespace magneto::frame
