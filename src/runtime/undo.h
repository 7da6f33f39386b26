// Puts back what a run of a graph has changed, if one of its operators raised an error.
#pragma once
#include <Python.h>

#include <optional>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "runtime/raw_tensors.h"

namespace magneto::runtime {

// What the program can tell from before the run: contents, sizes and versions of tensors, and states of generators.
class Saved {
 public:
  void put_back() noexcept;

 private:
  friend class Undo;
  struct SavedTensor {
    at::Tensor tensor;
    Look look;
    at::Tensor contents;  // from its first to its last element in memory
  };
  std::vector<SavedTensor> tensors_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
};

class Undo {
 public:
  // None: the graph changes something that cannot be put back.
  static std::optional<Undo> of(const graph::Graph& graph);

  // How much memory a run has to copy first, by the sizes of the recorded one.
  int64_t bytes() const { return bytes_; }
  // Before a run, by the tensors that it is given and that it finds by itself.
  Saved save(PyObject* const* inputs, const std::vector<PyObject*>& states) const;

 private:
  std::vector<uint32_t> inputs_, states_;  // that a run writes
  std::vector<at::Generator> generators_;  // of the program's own, that it draws from
  std::vector<c10::Device> devices_;       // whose generators it draws from
  int64_t bytes_ = 0;
};

}  // namespace magneto::runtime
