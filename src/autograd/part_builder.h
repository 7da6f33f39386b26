// A part while it is being made: what was there when it began, and what it takes and gives.
#pragma once
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "autograd/backward.h"

namespace magneto::autograd {

// The tensors that nodes hold, as they are recognised: by themselves, or by their memory, because what is saved may
// come back as a shallow copy. They may die meanwhile; weak references keep their addresses from being used again.
class HeldTensors {
 public:
  explicit HeldTensors(const std::vector<at::Tensor>& tensors);

  std::optional<Held> find(const at::Tensor& tensor) const;
  std::vector<Look>& looks() { return looks_; }
  // Those that share their memory, and look the same.
  const std::vector<std::pair<uint32_t, uint32_t>>& aliases() const { return aliases_; }

 private:
  std::vector<Look> looks_;
  std::unordered_map<c10::TensorImpl*, uint32_t> by_tensor_;
  std::unordered_multimap<c10::StorageImpl*, uint32_t> by_memory_;
  std::vector<std::pair<uint32_t, uint32_t>> aliases_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> weak_tensors_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> weak_storages_;
};

class PartBuilder {
 public:
  // A gradient that waited when the part began; it may have been added to, or taken, since.
  struct Given {
    Given(Waiting where, const at::Tensor& gradient);
    bool is(const at::Tensor& other) const { return other.unsafeGetTensorImpl() == tensor; }

    Waiting place;
    Look look;
    bool is_exclusive;
    c10::TensorImpl* tensor;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak;  // keeps the address from being used again
  };

  PartBuilder(Runner& runner, size_t first);

  const Given* find_given(const at::Tensor& tensor) const;
  Given* find_given(const Waiting& place);
  // Whether the graph writes to a tensor that a node holds, of which nobody knows who needs it later.
  bool writes_held(const graph::Graph& graph) const;
  // Of the turns up to `end`. Says what it relies on among the gradients that wait: those of its own nodes, and all
  // that it takes or replaces.
  Stage finish(size_t end, graph::Graph graph);

  Part& part() { return *part_; }
  size_t first() const { return first_; }

 private:
  void describe_arrivals(size_t end);
  bool is_inside(uint32_t node, size_t end) const;

  Runner& runner_;
  size_t first_;
  std::unique_ptr<Part> part_ = std::make_unique<Part>();
  std::vector<Given> given_;
};

// Lets the last part that takes a tensor have it, and says what depends on where tensors lie.
void finish(Backward& backward);

}  // namespace magneto::autograd
