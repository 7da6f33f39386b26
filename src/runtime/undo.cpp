// What has to be saved, and how.
#include "runtime/undo.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "graph/effects.h"
#include "runtime/torch_python.h"

namespace magneto::runtime {
namespace {

using graph::Role;
using graph::ValueId;

// No mode, recording or autograd sees what is done here.
class Unseen {
 public:
  Unseen()
      : keys_(c10::default_included_set,
              c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Changes more than contents and sizes, or reaches beyond the tensors that are known.
bool is_beyond(const graph::Op& op) {
  const std::string& name = op.handle.schema().name();
  return op.info->foreign || op.info->detaches || name == "aten::set_" || name == "aten::_resize_output_" ||
         name == "aten::as_strided" || op.handle.hasTag(at::Tag::inplace_view);
}

template <class T>
void add_once(std::vector<T>& all, const T& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

}  // namespace

std::optional<Undo> Undo::of(const graph::Graph& graph) {
  Undo undo;
  std::vector<bool> written(graph.values.size(), false);  // by the first value in that memory
  for (const graph::Op& op : graph.ops) {
    bool unmarked = graph::writes_unmarked(op);
    for (const graph::TensorRef& tensor : op.tensors) {
      ValueId memory = graph.values[tensor.value].memory;
      if (graph.values[memory].role == Role::Result) continue;
      if (is_beyond(op)) return std::nullopt;
      if (!unmarked && !op.info->written[tensor.position]) continue;
      if (op.derives && op.info->written[tensor.position]) return std::nullopt;  // it has got a history
      written[memory] = true;
    }
    if (!graph::draws(op)) continue;
    if (op.info->foreign) return std::nullopt;
    auto own = std::find_if(op.args.begin(), op.args.end(), [](const auto& arg) { return arg.isGenerator(); });
    if (own != op.args.end()) {
      add_once(undo.generators_, own->toGenerator());
      continue;
    }
    for (const graph::TensorRef& result : op.results) add_once(undo.devices_, graph.values[result.value].device);
  }
  auto find_written = [&](const std::vector<ValueId>& values, std::vector<uint32_t>& found) {
    for (uint32_t i = 0; i < values.size(); ++i) {
      const graph::Value& value = graph.values[values[i]];
      if (!written[value.memory]) continue;
      found.push_back(i);
      undo.bytes_ += span(value.sizes, value.strides) * static_cast<int64_t>(c10::elementSize(value.dtype));
    }
  };
  find_written(graph.inputs, undo.inputs_);
  find_written(graph.states, undo.states_);
  return undo;
}

Saved Undo::save(PyObject* const* inputs, const std::vector<PyObject*>& states) const {
  Unseen unseen;
  Saved saved;
  auto save_tensor = [&](const at::Tensor& tensor) {
    saved.tensors_.push_back({tensor, Look(tensor), flat(tensor).clone()});
  };
  for (uint32_t i : inputs_) save_tensor(unpack_tensor(inputs[i]));
  for (uint32_t i : states_) save_tensor(unpack_tensor(states[i]));
  auto save_generator = [&](at::Generator generator) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    saved.generators_.emplace_back(generator, generator.get_state());
  };
  for (const at::Generator& generator : generators_) save_generator(generator);
  for (c10::Device device : devices_) save_generator(at::globalContext().defaultGenerator(device));
  return saved;
}

void Saved::put_back() noexcept {
  try {
    Unseen unseen;
    for (auto& [tensor, look, contents] : tensors_) {
      bool moved =
          tensor.sizes() != look.sizes || tensor.strides() != look.strides || tensor.storage_offset() != look.offset;
      if (moved) tensor.unsafeGetTensorImpl()->set_sizes_and_strides(look.sizes, look.strides, look.offset);
      flat(tensor).copy_(contents);
      set_version(tensor, look.version);
    }
    for (auto& [generator, state] : generators_) {
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  } catch (const std::exception&) {
    // The device is lost, and with it what the tensors held.
  }
}

}  // namespace magneto::runtime
