// Small tensors that a graph makes for itself, kept from run to run: operators then write into them, without making and
// freeing one each time.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "runtime/direct_kernels.h"
#include "runtime/direct_views.h"

namespace magneto::runtime {

// Which results these are, and where they lie: in one block of memory, those that are needed at the same time apart
// from each other. A result stays only if nothing but operators of torch reads it, and only in this run, so that nobody
// can tell it from a new one.
class KeptResults {
 public:
  // Of one run. The results of an operator stand together, and so do the views that one makes.
  using Tensors = std::vector<at::Tensor>;
  static constexpr uint32_t kNone = UINT32_MAX;

  KeptResults(const graph::Graph& graph, const DirectViews& views);
  ~KeptResults();

  // What writes into the results of the operator at `index`, or null: it has to be called.
  DirectKernel kernel(size_t index) const { return kernels_[index]; }
  uint32_t place(graph::ValueId value) const { return places_[value]; }

  size_t result_count() const { return kept_.size(); }
  size_t bytes() const { return bytes_; }
  size_t run_count() const { return run_count_.load(std::memory_order_relaxed); }

  // And nothing more than that: no conjugate, say, and of no class of its own.
  static bool is_as_recorded(const at::Tensor& tensor, const graph::Value& value) {
    return is_plain(tensor) && tensor.scalar_type() == value.dtype && tensor.sizes().equals(value.sizes) &&
           tensor.strides().equals(value.strides);
  }

  // For one run alone: those of an earlier run, or new ones if there are none or another run works with them. Null: it
  // makes all results anew, as the first run does, which may be the only one.
  std::unique_ptr<Tensors> take() const;
  // For the next run. Tensors that somebody else has got hold of are left to him.
  void put_back(std::unique_ptr<Tensors> tensors) const;

 private:
  struct Kept {
    graph::ValueId value;
    size_t offset;  // in the block
    size_t nbytes;
    size_t first_step, last_step;  // that have to do with it
    uint32_t views = 0;
  };
  struct View {
    graph::ValueId viewed;
    graph::ValueId value;
    DirectView::Layout layout;
  };

  static bool is_plain(const at::Tensor& tensor) {
    static const c10::DispatchKeySet plain =
        c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView}) |
        c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::CPUBit) |
        c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::CPUBit);
    return (tensor.key_set() | plain) == plain;
  }
  std::vector<bool> find_readable(const DirectViews& views) const;
  bool place_results(size_t index, const std::vector<size_t>& last_steps);
  size_t find_room(const Kept& kept) const;
  std::unique_ptr<Tensors> make() const;

  const graph::Graph& graph_;
  std::vector<DirectKernel> kernels_;  // by operator
  std::vector<uint32_t> places_;       // by value
  std::vector<Kept> kept_;             // in the order of their tensors, before those of the views
  std::vector<View> views_;
  size_t bytes_ = 0;
  mutable std::atomic<Tensors*> free_ = nullptr;  // of whoever exchanges it for another
  mutable std::atomic<bool> has_run_ = false;
  mutable std::atomic<size_t> run_count_ = 0;  // with kept tensors
};

}  // namespace magneto::runtime
