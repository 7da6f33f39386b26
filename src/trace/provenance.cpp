// Nodes, as they are added.
#include "trace/provenance.h"

namespace magneto::trace {

NodeId Provenance::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

NodeId Provenance::add_read(PyObject* owner, PyObject* key, PyObject* value) {
  auto [known, is_new] = reads_.insert(owner, key);
  if (!is_new) return *known;
  Node& node = nodes_.emplace_back();
  node.kind = key ? Node::Kind::Key : Node::Kind::Cell;
  node.owner = owner;
  node.key = py::Ref::borrow(key);
  node.value = py::Ref::borrow(value);
  return *known = static_cast<NodeId>(nodes_.size() - 1);
}

bool Provenance::reads_number(PyObject* owner, PyObject* key) const {
  const NodeId* id = reads_.find(owner, key);
  return id && (nodes_[*id].typed || nodes_[*id].settled);
}

NodeId Provenance::add_computation(Node::Kind kind, uint32_t number, Value left, Value right, PyObject* value) {
  Node& node = nodes_.emplace_back();
  node.kind = kind;
  node.number = number;
  auto use = [&](Value operand, NodeId* id, py::Ref* known) {
    if (!operand.object) return;
    *known = py::Ref::borrow(operand.object);
    if (is_known(operand.node)) return;
    *id = operand.node;
    nodes_[operand.node].typed = true;
  };
  use(left, &node.left, &node.left_value);
  use(right, &node.right, &node.right_value);
  node.value = py::Ref::borrow(value);
  return static_cast<NodeId>(nodes_.size() - 1);
}

NodeId Provenance::add_register(uint32_t number, PyObject* value) {
  Node node{Node::Kind::Register, number};
  node.value = py::Ref::borrow(value);
  return add(std::move(node));
}

NodeId Provenance::add_argument(uint32_t number, PyObject* value) {
  Node node{Node::Kind::Argument, number};
  node.value = py::Ref::borrow(value);
  return add(std::move(node));
}

NodeId Provenance::add_symbolic(runtime::NumberId number, PyObject* value) {
  Node node{Node::Kind::Symbolic};
  node.value = py::Ref::borrow(value);
  node.symbol = number;
  return add(std::move(node));
}

NodeId Provenance::add_item(NodeId tuple, uint32_t number, PyObject* value) {
  Node node{Node::Kind::Item, number};
  node.left = tuple;
  node.value = py::Ref::borrow(value);
  nodes_[tuple].typed = true;
  lengths.emplace_back(tuple, static_cast<uint32_t>(PyTuple_GET_SIZE(nodes_[tuple].value.get())));
  return add(std::move(node));
}

NodeId Provenance::add_holder(PyObject* container, std::vector<NodeId> items) {
  Node node{Node::Kind::Holder};
  node.items = std::move(items);
  node.value = py::Ref::borrow(container);
  return *holders_.insert(container).first = add(std::move(node));
}

void Provenance::drop_values() {
  std::vector<py::Ref> dropped;  // which may run code: at the end
  for (Node& node : nodes_)
    for (py::Ref* value : {&node.key, &node.left_value, &node.right_value, &node.value})
      if (*value) dropped.push_back(std::move(*value));
}

NodeId Provenance::find_holder(PyObject* container) const {
  const NodeId* id = holders_.find(container);
  return id && !nodes_[*id].settled ? *id : kKnown;
}

NodeId Provenance::find_suspended(PyObject* generator, size_t slot, PyObject* value) const {
  auto found = suspended_.find(generator);
  if (found == suspended_.end()) return kKnown;
  for (auto [at, id] : found->second)
    if (at == slot && value && !is_known(id) && nodes_[id].value.get() == value) return id;
  return kKnown;
}

const Node* Provenance::holder(PyObject* container) const {
  NodeId id = find_holder(container);
  return id == kKnown ? nullptr : &nodes_[id];
}

}  // namespace magneto::trace
