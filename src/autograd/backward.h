// A backward that was captured, to be run again: graphs, and between them nodes that are called as they are.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "autograd/runner.h"
#include "cpython/ref.h"
#include "runtime/executor.h"
#include "runtime/tensor_plug.h"

namespace magneto::autograd {

// A gradient that waits for a node between two parts.
struct Waiting {
  uint32_t node, index;

  bool operator==(const Waiting&) const = default;
};

// All that operators may have decided by about a tensor, beside its contents.
struct Look {
  explicit Look(const at::Tensor& tensor);
  bool fits(const at::Tensor& tensor) const;

  uint64_t keys;
  c10::ScalarType dtype;
  int64_t offset;
  c10::SmallVector<int64_t, 8> shape;  // sizes, then strides
};

// Turns that run as one graph.
struct Part {
  // Where an input comes from.
  struct Source {
    std::variant<Waiting, uint32_t> from;  // or the index of a tensor that a node holds
    bool is_last;                          // nobody takes it later
  };
  // Where an output goes: to a node that waits for it, the result of that number, or the leaf at that turn.
  struct Result {
    uint32_t index;
  };
  struct Leaf {
    uint32_t turn;
  };
  using Target = std::variant<Waiting, Result, Leaf>;

  // What must wait, or not wait, for nodes when it begins.
  struct Arrival {
    Waiting place;
    std::optional<Look> look;  // none: nothing may
  };
  std::vector<Arrival> arrived;
  size_t arrived_inside = 0;                      // how many of these wait for its own nodes: no others may
  std::vector<std::pair<Waiting, Waiting>> same;  // that are one tensor
  std::vector<Source> sources;
  std::vector<Target> targets;
  std::unique_ptr<const runtime::Executor> executor;
  py::Ref wrapper, compiled;  // what a Python compiler made of it, or null
};

// Turns [first, end) of a task: a part, or one node that is called as it is.
struct Stage {
  size_t first, end;
  std::unique_ptr<Part> part;
  std::string why_opaque = {};
};

class Backward {
 public:
  std::vector<Stage> stages;
  std::vector<Look> looks;                             // of all tensors that nodes hold
  std::vector<int64_t> sizes;                          // that nodes hold
  std::vector<std::pair<uint32_t, uint32_t>> aliases;  // tensors that share their memory, and look the same
  std::unique_ptr<runtime::GlobalState> state;

  // Empty if it may be run for the task; otherwise what differs, in words.
  bool fits(Task& task) const;
  std::string why_not(Task& task) const;

  // Runs it in place of the engine. True: the end was run node by node, because a node that was called as it is has
  // given something else than when it was captured.
  bool run(Runner& runner) const;
  // "3 graphs with 52 operators, 2 nodes as they are"
  std::string summary() const;
  std::string text() const;

 private:
  bool has_arrived(const Part& part, const Stage& stage, Runner& runner) const;
  void run_part(const Part& part, const Stage& stage, Runner& runner) const;
};

}  // namespace magneto::autograd
