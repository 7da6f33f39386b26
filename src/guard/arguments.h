// Guards on the arguments of a call, and the way from an argument to the tensors inside it.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpython/ref.h"
#include "guard/pointer_set.h"
#include "runtime/tensor_plug.h"

namespace magneto::guard {

// The arguments as vectorcall passes them.
struct CallArguments {
  PyObject* const* values;
  size_t positional;
  PyObject* keyword_names;  // tuple or null

  size_t size() const { return positional + (keyword_names ? PyTuple_GET_SIZE(keyword_names) : 0); }
};

// Sizes and numbers that calls with otherwise equal arguments may change, by node.
struct Opening {
  size_t node;
  std::vector<int> sizes;          // the dimensions of a tensor; none: the node is a number
  std::vector<int> promised = {};  // those of them that it is an error to fix
};

// What is open in `all`, but not in `others`.
std::vector<Opening> difference(const std::vector<Opening>& all, const std::vector<Opening>& others);

// What the watched call was called with: a flat list of nodes, parents before children.
class Arguments {
 public:
  // `by_content`: the names of objects that are others in each call. Of these their class and attributes are guarded,
  // as of what only they hold; which objects they are does not matter.
  // `open`: what other calls may change; the nodes must be of that kind.
  explicit Arguments(const CallArguments& call, std::vector<std::string> by_content = {},
                     std::vector<Opening> open = {});

  // Whether an object, which may be part of another one, is guarded by content.
  using IsOwned = std::function<bool(PyObject* object, bool is_part)>;
  // None yet. Somebody else checks the tensors.
  explicit Arguments(IsOwned is_owned);
  // One more that is passed. Its parts, with those of earlier ones, are distinct objects or noted to be the same.
  void add_root(PyObject* value, const std::string& name);

  // Empty if every argument was understood, else what was not.
  const std::string& refusal() const { return refusal_; }
  const std::vector<PyObject*>& tensors() const { return tensors_; }
  // Those that are guarded by content: tuples, lists, dicts, and objects with their attributes.
  const PointerSet& containers() const { return containers_; }
  // The node that stands for this very object (a container, tensor or object passed in), or -1.
  int node_of(PyObject* object) const;
  // What a node stood for in the first call.
  PyObject* seen(size_t node) const { return nodes_[node].seen; }
  // Whether the object was passed in and is guarded by identity.
  bool holds_identity(PyObject* object) const;
  // Those objects, with their names.
  std::vector<std::pair<PyObject*, std::string>> objects() const;
  // The classes of those that are guarded by content: alive whenever a call matches.
  std::vector<PyObject*> classes() const;
  // The names of those that `call` passes another object for, of which it could guard the content.
  std::vector<std::string> other_objects(const CallArguments& call) const;
  const std::vector<std::string>& by_content() const { return by_content_; }
  // They admit the same calls.
  bool same_as(const Arguments& other) const;

  // ---- what other calls may change

  const std::vector<Opening>& open() const { return open_; }
  // The dimensions of a tensor.
  std::vector<int> open_sizes(size_t tensor) const;
  struct Number {
    uint32_t node;
    int argument;    // which one it is, or which one holds it if that is a tuple; -1: it is in a dict, or an attribute
    PyObject* dict;  // that holds it
    PyObject* key;
    PyObject* tuple = nullptr;  // that holds it; an argument
    Py_ssize_t index = 0;
  };
  std::vector<Number> open_numbers(size_t from = 0) const;
  bool is_given_twice(PyObject* container) const;
  // What must be open so that these arguments admit `call`, too, with what is open already. None: it differs in
  // something that cannot be open.
  std::optional<std::vector<Opening>> opened_for(const CallArguments& call) const;
  // All that can be open.
  std::vector<Opening> everything() const;
  // `open`, more or less of it by what is marked on the tensors, but nothing `pinned` unless that was promised.
  std::vector<Opening> with_marks(std::vector<Opening> open, const std::vector<Opening>& pinned) const;
  // "x", "args[0]['mask']": what a node is to people.
  const std::string& name(size_t node) const { return nodes_[node].name; }
  // Before freeze(): nothing else stays open.
  void close_all_but(std::vector<Opening> open);

  // Forgets the objects of the first call that need not be kept alive.
  void freeze();

  // An object that it has to be given is gone: it will fit no call any more.
  bool is_lost() const;
  // Which object it is, is guarded.
  bool is_by_identity(size_t node) const { return nodes_[node].kind == Kind::Object; }
  bool is_part(size_t node) const { return nodes_[node].parent >= 0; }  // of an argument
  size_t node_count() const { return nodes_.size(); }
  size_t tensor_count() const { return tensor_count_; }
  // Fills `values` (node_count() of them, borrowed) and `tensors`; false on the first mismatch.
  bool match(const CallArguments& call, PyObject** values, PyObject** tensors) const;
  std::string explain(const CallArguments& call) const;
  void describe(std::vector<std::string>* lines) const;
  int traverse(visitproc visit, void* arg) const;

 private:
  enum class Kind : uint8_t {
    Tensor,
    Atom,
    Number,
    Tuple,
    List,
    Dict,
    Object,      // by identity
    Instance,    // by content, which is in the next nodes
    Attributes,  // the __dict__ of an instance
    Items,       // what an instance holds that is a dict itself
    Again        // the object of an earlier node
  };
  struct Node {
    Kind kind;
    int parent;        // -1: the call itself
    Py_ssize_t index;  // position in the call, tuple or list
    py::Ref key;       // of a dict
    PyTypeObject* type;
    Py_ssize_t size;   // of a tuple or list; of one that is passed again, its first node
    int tensor;        // index among the tensors
    py::Ref expected;  // an atom's value, a dict's keys, the object that identity is guarded for, or the class of an
                       // object or named tuple
    bool is_weak;      // `expected` is a weak reference to that
    PyObject* seen;    // the object of the first call; null once frozen
    std::string name;  // for people: `args[0]['mask']`

    PyObject* identity() const { return is_weak ? PyWeakref_GET_OBJECT(expected.get()) : expected.get(); }
    // A weak object may have died, and its class with it.
    std::string type_name() const { return is_weak && identity() == Py_None ? "object that is gone" : type->tp_name; }
  };

  void add(PyObject* value, int parent, Py_ssize_t index, PyObject* key, std::string name);
  void add_dict(PyObject* dict, int self);
  void add_instance(PyObject* object, int self);
  bool is_by_content(PyObject* object, int self) const;
  bool can_be_open(const Node& node, PyObject* value) const;
  // Guarded by what it is or holds, and not by which object it is.
  static bool is_content(Kind kind) {
    return kind != Kind::Atom && kind != Kind::Number && kind != Kind::Object && kind != Kind::Again &&
           kind != Kind::Items;
  }
  void note_content(size_t from);
  int depth(int node) const;
  PyObject* fetch(const Node& node, const CallArguments& call, PyObject* const* values) const;
  bool is_repeated(size_t index, PyObject* const* values) const;
  bool matches(const Node& node, PyObject* value, PyObject* const* values) const;

  const Opening* opening_of(size_t node) const;

  size_t positional_;
  py::Ref keyword_names_;
  std::vector<std::string> by_content_;
  std::vector<Opening> open_;
  std::vector<Node> nodes_;
  std::vector<size_t> by_content_nodes_;  // tensors, too
  std::vector<PyObject*> tensors_;        // of the first call, without repeats
  size_t tensor_count_ = 0;
  PointerSet containers_;
  std::unique_ptr<runtime::TensorChecks> checks_;  // null: somebody else checks them
  IsOwned is_owned_;
  std::string refusal_;
};

}  // namespace magneto::guard
