// A backward that was captured, to be run again: graphs, and between them nodes that are called as they are.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "autograd/look.h"
#include "autograd/runner.h"
#include "cpython/gil.h"
#include "runtime/executor.h"
#include "runtime/tensor_plug.h"

namespace magneto::autograd {

// A gradient that waits for a node between two parts.
struct Waiting {
  uint32_t node, index;

  auto operator<=>(const Waiting&) const = default;
};
// A tensor that a node holds, in the order in which a task meets them.
struct Held {
  uint32_t index;
};
// A size that runs may change.
struct Symbol {
  uint32_t index;
};
// A result of the run.
struct Result {
  uint32_t index;
};
// The leaf that accumulates at a turn.
struct Leaf {
  uint32_t turn;
};

class CompiledPart;

// Turns that run as one graph.
struct Part {
  Part();
  ~Part();

  struct Source {
    std::variant<Waiting, Held, Symbol> from;
    bool is_last = false;  // nobody takes it later
  };
  using Target = std::variant<Waiting, Result, Leaf>;
  // What must wait, or not wait, for a node when it begins.
  struct Arrival {
    Waiting place;
    std::optional<Look> look;   // none: nothing may
    bool is_exclusive = false;  // nobody else has it, so that it may be added to in place
  };

  std::vector<Arrival> arrived;
  size_t arrived_inside = 0;                      // how many of these wait for its own nodes: no others may
  std::vector<std::pair<Waiting, Waiting>> same;  // that are one tensor
  std::vector<Source> sources;                    // of the first slots
  std::vector<Target> targets;                    // of outputs
  std::unique_ptr<const runtime::Executor> executor;
  std::unique_ptr<const CompiledPart> compiled;  // what a Python compiler made of it, or null
};

// Turns [first, end) of a task: a part, or one node that is called as it is.
struct Stage {
  size_t first, end;
  std::unique_ptr<Part> part;
  std::string why_opaque = {};
};

// Lets a Python compiler see a part that is about to run.
void compile_part(Part& part, PyObject* factory, const SymbolValues& values, Runner& runner);
// The numbers that its operators take. False: what was captured does not hold for these sizes.
bool bind_sizes(const Part& part, const SymbolValues& values, const runtime::Slots& slots, runtime::Numbers& numbers);
// Runs the part if what waits for its nodes is what it was captured with. False: nothing happened.
bool run_part(const Part& part, const Stage& stage, SymbolValues& values, Runner& runner);

struct Backward {
  std::vector<Stage> stages;
  std::vector<Look> looks;                             // of all tensors that nodes hold
  std::vector<Size> sizes;                             // that nodes hold
  std::vector<std::vector<Size>> members;              // the same by turn, in the order of members_of
  std::vector<std::pair<uint32_t, uint32_t>> aliases;  // tensors that share their memory, and look the same
  size_t symbol_count = 0;
  py::SharedObject factory;       // of the Python compilers that were asked; null: none were
  bool compares_offsets = false;  // some operator takes the place of a tensor in its memory
  std::unique_ptr<runtime::GlobalState> state;

  // Whether it may be run for the task; finds the values of symbols.
  bool fits(Task& task, SymbolValues& values) const;
  // Whether some size of the task, for which it does not fit, is another one.
  bool differs_in_sizes(Task& task) const;
  // What differs, in words.
  std::string why_not(Task& task) const;

  // Runs it in place of the engine. True: the end was run node by node, because a node that was called as it is has
  // given something else than when it was captured.
  bool run(Runner& runner, SymbolValues& values) const;
  // "3 graphs with 52 operators, 2 nodes as they are"
  std::string summary() const;
  std::string text() const;
};

}  // namespace magneto::autograd
