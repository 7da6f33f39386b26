// How small results are found, placed and made.
#include "runtime/kept_results.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "graph/effects.h"

namespace magneto::runtime {
namespace {

using graph::Op;
using graph::Role;
using graph::TensorRef;
using graph::Value;
using graph::ValueId;

constexpr size_t kGreatestResult = 16 << 10;
constexpr size_t kGreatestBlock = 256 << 10;
constexpr size_t kAlignment = 64;  // as the allocator has it: some kernels compute by it

size_t bytes_of(const Value& value) {
  int64_t elements = 1;  // from the first to the last
  for (size_t i = 0; i < value.sizes.size(); ++i) {
    if (value.sizes[i] == 0) return 0;
    elements += (value.sizes[i] - 1) * value.strides[i];
  }
  return static_cast<size_t>(elements) * c10::elementSize(value.dtype);
}

bool is_dense(const Value& value) {
  return value.device.is_cpu() && value.dtype != c10::ScalarType::Undefined && !c10::isQIntType(value.dtype);
}

}  // namespace

// ---- construction

KeptResults::KeptResults(const graph::Graph& graph, const DirectViews& views)
    : graph_(graph), kernels_(graph.ops.size(), nullptr), places_(graph.values.size(), kNone) {
  bool derives = std::ranges::any_of(graph.ops, [](const Op& op) { return op.derives; });
  if (graph.symbols || derives) return;
  const std::vector<bool> readable = find_readable(views);
  std::vector<size_t> last_steps(graph.values.size(), 0);  // by memory
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    for (const TensorRef& tensor : graph.ops[i].tensors) last_steps[graph.values[tensor.value].memory] = i;
    for (const TensorRef& result : graph.ops[i].results) last_steps[graph.values[result.value].memory] = i;
  }
  std::vector<bool> special(graph.values.size(), false);
  for (size_t i = 0; i < graph.constants.size(); ++i)
    special[graph.constants[i]] = !is_plain(graph.constant_tensors[i]);
  auto is_special = [&](const TensorRef& tensor) { return special[tensor.value]; };
  auto is_kept = [&](const TensorRef& result) { return readable[result.value]; };
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (op.results.empty() || op.results.size() != op.handle.schema().returns().size() || op.autocast || op.inference ||
        op.shared_cast || !op.expected.isNone())
      continue;
    if (!std::ranges::all_of(op.results, is_kept) || std::ranges::any_of(op.tensors, is_special)) continue;
    DirectKernel kernel = find_direct_kernel(graph, op);
    if (kernel && place_results(i, last_steps)) kernels_[i] = kernel;
  }
  uint32_t next = static_cast<uint32_t>(kept_.size());
  for (const Op& op : graph.ops) {
    if (op.tensors.empty() || op.results.empty()) continue;
    ValueId memory = graph.values[op.tensors[0].value].memory;
    if (places_[memory] == kNone || graph.values[op.results[0].value].memory != memory) continue;
    std::optional<DirectView> view = views.of(op, {op.results.begin(), op.results.end()});
    for (size_t i = 0; i < op.results.size(); ++i) {
      views_.push_back({op.tensors[0].value, op.results[i].value, view->results[i]});
      places_[op.results[i].value] = next++;
      ++kept_[places_[memory]].views;
    }
  }
}

KeptResults::~KeptResults() { delete free_.load(); }

// By value: whether it is a result of its own which all that have to do with it do no more than read, in this run.
std::vector<bool> KeptResults::find_readable(const DirectViews& views) const {
  std::vector<bool> readable(graph_.values.size(), true);
  for (ValueId i = 0; i < graph_.values.size(); ++i) {
    const Value& value = graph_.values[i];
    size_t nbytes = value.role == Role::Result && value.memory == i && is_dense(value) ? bytes_of(value) : 0;
    readable[i] = nbytes > 0 && nbytes <= kGreatestResult;
  }
  auto exclude = [&](const TensorRef& tensor) { readable[graph_.values[tensor.value].memory] = false; };
  for (ValueId output : graph_.outputs) {
    if (graph_.values[output].role != Role::Size) readable[graph_.values[output].memory] = false;
  }
  std::vector<bool> made(graph_.values.size(), false);
  for (const Op& op : graph_.ops) {
    auto is_elsewhere = [&](const TensorRef& tensor) { return !is_dense(graph_.values[tensor.value]); };
    bool may_hold_on = !runs_torchs_kernel(op) || graph::writes_unmarked(op) ||
                       std::ranges::any_of(op.tensors, is_elsewhere) || std::ranges::any_of(op.results, is_elsewhere);
    for (const TensorRef& tensor : op.tensors)
      if (may_hold_on || op.info->written[tensor.position]) exclude(tensor);
    const bool is_view = views.of(op, {op.results.begin(), op.results.end()}).has_value();
    for (const TensorRef& result : op.results) {
      bool is_new = graph_.values[result.value].memory == result.value && !made[result.value];
      if (result.item == TensorRef::kWhole ? !is_new && !is_view : !is_view) exclude(result);
      made[result.value] = true;
    }
  }
  return readable;
}

// False: there is no room for them.
bool KeptResults::place_results(size_t index, const std::vector<size_t>& last_steps) {
  const size_t before = kept_.size();
  for (const TensorRef& result : graph_.ops[index].results) {
    Kept kept{result.value, 0, bytes_of(graph_.values[result.value]), index, last_steps[result.value]};
    kept.offset = find_room(kept);
    kept_.push_back(kept);
  }
  size_t end = bytes_;
  for (size_t i = before; i < kept_.size(); ++i) end = std::max(end, kept_[i].offset + kept_[i].nbytes);
  if (end > kGreatestBlock) {
    kept_.resize(before);
    return false;
  }
  bytes_ = end;
  for (size_t i = before; i < kept_.size(); ++i) places_[kept_[i].value] = static_cast<uint32_t>(i);
  return true;
}

// The first place where nothing lies that is needed at the same time.
size_t KeptResults::find_room(const Kept& kept) const {
  std::vector<const Kept*> beside;
  for (const Kept& other : kept_)
    if (other.last_step >= kept.first_step) beside.push_back(&other);
  std::ranges::sort(beside, {}, &Kept::offset);
  size_t offset = 0;
  for (const Kept* other : beside) {
    if (offset + kept.nbytes <= other->offset) break;
    offset = std::max(offset, (other->offset + other->nbytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  return offset;
}

// ---- what runs work with

std::unique_ptr<KeptResults::Tensors> KeptResults::make() const {
  using Block = std::shared_ptr<c10::DataPtr>;  // it stays as long as any of the tensors
  c10::InferenceMode plain(false);
  auto block = std::make_shared<c10::DataPtr>(c10::GetCPUAllocator()->allocate(bytes_));
  auto tensors = std::make_unique<Tensors>();
  tensors->reserve(kept_.size() + views_.size());
  for (const Kept& kept : kept_) {
    const Value& value = graph_.values[kept.value];
    c10::DataPtr data(
        static_cast<char*>(block->get()) + kept.offset, new Block(block),
        [](void* held) { delete static_cast<Block*>(held); }, at::kCPU);
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), kept.nbytes,
                                                         std::move(data), nullptr, /*resizable=*/false);
    tensors->push_back(at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                                c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                                c10::scalarTypeToTypeMeta(value.dtype)));
    tensors->back().unsafeGetTensorImpl()->set_sizes_and_strides(value.sizes, value.strides);
  }
  for (const View& view : views_) tensors->push_back(view.layout.over((*tensors)[places_[view.viewed]]));
  return tensors;
}

std::unique_ptr<KeptResults::Tensors> KeptResults::take() const {
  if (kept_.empty() || !has_run_.exchange(true, std::memory_order_relaxed)) return nullptr;
  std::unique_ptr<Tensors> tensors(free_.exchange(nullptr, std::memory_order_acquire));
  return tensors ? std::move(tensors) : make();
}

void KeptResults::put_back(std::unique_ptr<Tensors> tensors) const {
  run_count_.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < kept_.size(); ++i)
    if ((*tensors)[i].storage().use_count() != 1 + kept_[i].views) return;
  for (const at::Tensor& tensor : *tensors)
    if (tensor.use_count() != 1) return;
  Tensors* none = nullptr;
  if (free_.compare_exchange_strong(none, tensors.get(), std::memory_order_release)) tensors.release();
}

}  // namespace magneto::runtime
