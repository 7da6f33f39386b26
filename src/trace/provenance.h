// Where values come from that are not known before the program runs.
//
// A watched call meets values that it only carries along: a counter that is read, incremented and stored. Such a value
// has a *node*: a read that the program makes again, or a computation with such reads. Guards pin it (it is *settled*)
// only when it matters: when it decides something or ends up where nobody follows it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cpython/ref.h"
#include "guard/pointer_set.h"
#include "runtime/tensor_plug.h"

namespace magneto::trace {

using NodeId = uint32_t;
constexpr NodeId kKnown = 0;  // no node: the value will be the same whenever the guards hold

// A value that an instruction works with.
struct Value {
  PyObject* object;  // borrowed
  NodeId node = kKnown;
};

struct Node {
  enum class Kind : uint8_t {
    Key,
    Cell,
    Unary,
    Binary,
    Compare,
    Argument,  // a number that the call was given
    Register,  // of the program: what an unknown call returned, or was only known before it
    Item,      // of a tuple that an unknown call returned
    Holder,    // a new tuple, list, dict or slice that holds such values; nobody has changed it since
    Symbolic,  // a size, or a number that depends on sizes, as the recording knows it
  } kind;
  uint32_t number = 0;        // the operator or comparison; the register; which item or argument
  PyObject* owner = nullptr;  // the dict or cell, which guards pin
  py::Ref key;                // of a dict
  NodeId left = kKnown, right = kKnown;
  py::Ref left_value, right_value;          // of the operands in the watched call
  std::vector<NodeId> items;                // of a holder: of the values it holds, in order
  py::Ref value;                            // in the watched call
  std::optional<runtime::NumberId> symbol;  // what stands for it in a symbolic recording, if anything does
  bool typed = false;                       // the program relies on its type
  bool settled = false;
};

// Those of the slots of a frame, at hand for frames of an ordinary size.
class SlotNodes {
 public:
  SlotNodes() = default;
  SlotNodes(const SlotNodes&) = delete;
  SlotNodes& operator=(const SlotNodes&) = delete;
  void resize(size_t count) {
    many_.resize(count > few_.size() ? count : 0, kKnown);
    data_ = many_.empty() ? few_.data() : many_.data();
    if (many_.empty()) std::fill_n(data_, count, kKnown);
    count_ = count;
  }
  NodeId& operator[](size_t slot) { return data_[slot]; }
  NodeId operator[](size_t slot) const { return data_[slot]; }
  NodeId* begin() { return data_; }
  NodeId* end() { return data_ + count_; }

 private:
  std::array<NodeId, 32> few_;
  std::vector<NodeId> many_;
  NodeId* data_ = nullptr;
  size_t count_ = 0;
};

// The nodes of one watched call.
class Provenance {
 public:
  Provenance() : nodes_(1) {}

  // The same read has the same node. `key` is null for a cell.
  NodeId add_read(PyObject* owner, PyObject* key, PyObject* value);
  // Of numbers whose types the program then relies on. `right` is not looked at by unary operators.
  NodeId add_computation(Node::Kind kind, uint32_t number, Value left, Value right, PyObject* value);

  // What an unknown call returned, or a part of that; or what the call was given.
  bool is_foreign(NodeId id) const {
    if (is_known(id)) return false;
    Node::Kind kind = nodes_[id].kind;
    return kind == Node::Kind::Register || kind == Node::Kind::Item || kind == Node::Kind::Argument;
  }

  bool is_symbolic(NodeId id) const { return !is_known(id) && nodes_[id].kind == Node::Kind::Symbolic; }

  // Nobody asks any more what the values were.
  void drop_values();
  // The numbers in the locals and on the stack of a generator while it does not run, by slot.
  void suspend(PyObject* generator, size_t slot, NodeId id) { suspended_[generator].emplace_back(slot, id); }
  void forget_suspended(PyObject* generator) { suspended_.erase(generator); }
  bool has_suspended(PyObject* generator) const { return suspended_.contains(generator); }
  NodeId find_suspended(PyObject* generator, size_t slot, PyObject* value) const;
  // What was read may be different from now on.
  void forget_reads() { reads_.clear(); }
  // What is there is a number, or the program does not get as far as it matters.
  bool reads_number(PyObject* owner, PyObject* key) const;
  NodeId add_register(uint32_t number, PyObject* value);
  NodeId add_argument(uint32_t number, PyObject* value);
  NodeId add_symbolic(runtime::NumberId number, PyObject* value);
  NodeId add_item(NodeId tuple, uint32_t number, PyObject* value);
  NodeId add_holder(PyObject* container, std::vector<NodeId> items);
  // Of a container that holds such values; or kKnown, or null.
  NodeId find_holder(PyObject* container) const;
  const Node* holder(PyObject* container) const;

  Node& operator[](NodeId id) { return nodes_[id]; }
  bool is_known(NodeId id) const { return id == kKnown || nodes_[id].settled; }
  size_t size() const { return nodes_.size(); }
  // Whether guards know it wherever it was found and had to be just that.
  bool is_only_read(PyObject* value) const {
    return std::ranges::none_of(nodes_, [value](const Node& node) {
      return node.settled && node.value.get() == value && node.kind != Node::Kind::Key && node.kind != Node::Kind::Cell;
    });
  }
  // That nodes hold.
  Py_ssize_t references_to(PyObject* object) const {
    return std::ranges::count(nodes_, object, [](const Node& node) { return node.value.get(); });
  }
  // Branches that were taken: the node was this true.
  std::vector<std::pair<NodeId, bool>> truths;
  // How many items a tuple had to have.
  std::vector<std::pair<NodeId, uint32_t>> lengths;
  // What was in a register and had to be just that.
  std::vector<NodeId> settled_registers;

 private:
  NodeId add(Node node);
  std::vector<Node> nodes_;              // the first stands for nothing
  guard::PointerPairMap<NodeId> reads_;  // by owner and key
  guard::PointerMap<NodeId> holders_;    // by container
  std::unordered_map<PyObject*, std::vector<std::pair<size_t, NodeId>>> suspended_;
};

inline bool is_sequence(PyObject* object) { return PyTuple_Check(object) || PyList_CheckExact(object); }

// Numbers compute without running anybody's code.
inline bool is_number(PyObject* object) {
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object);
}

}  // namespace magneto::trace
