// Finds the fields of torch's nodes: a table that the build makes from torch's header.
#include "autograd/members.h"

#include <torch/csrc/autograd/generated/Functions.h>

#include <typeindex>
#include <unordered_map>

namespace magneto::autograd {

namespace {

class Collector {
 public:
  explicit Collector(Members* members) : members_(members) {}

  void add(torch::autograd::SavedVariable& saved) { members_->tensors.push_back(&saved); }
  void add(c10::SymInt& size) { members_->sizes.push_back(&size); }
  void add(torch::autograd::TypeAndSize& type) { add(type.sym_sizes); }
  void add(c10::OptionalArray<c10::SymInt>& array) { add(array.list); }
  void add(at::TensorGeometry& geometry) {
    add(geometry.mutable_sizes());
    add(geometry.mutable_strides());
    add(geometry.mutable_storage_offset());
    members_->geometries.push_back(&geometry);
  }
  template <class T>
  void add(std::optional<T>& value) {
    if (value) add(*value);
  }
  template <class T>
  void add(std::vector<T>& list) {
    for (T& item : list) add(item);
  }
  template <class T, unsigned kInside>
  void add(c10::SmallVector<T, kInside>& list) {
    for (T& item : list) add(item);
  }

 private:
  Members* members_;
};

using Find = void (*)(Node& node, Collector& collector);

template <class T, auto... kFields>
void find_members(Node& node, Collector& collector) {
  [[maybe_unused]] T& exact = static_cast<T&>(node);
  (collector.add(exact.*kFields), ...);
}

const std::unordered_map<std::type_index, Find>& known_nodes() {
  using namespace torch::autograd::generated;
  static const auto& nodes = *new std::unordered_map<std::type_index, Find>{
#include "autograd/node_members.inc"
  };
  return nodes;
}

}  // namespace

Members members_of(Node& node) {
  auto found = known_nodes().find(typeid(node));
  Members members{found != known_nodes().end()};
  Collector collector(&members);
  if (members.is_complete) found->second(node, collector);
  for (const Edge& edge : node.next_edges()) {
    if (!edge.is_valid() || edge.function->input_metadata(edge.input_nr).is_nested_tensor()) continue;
    collector.add(edge.function->mutable_input_metadata(edge.input_nr).mutable_shape_as_dim_vector());
  }
  return members;
}

}  // namespace magneto::autograd
