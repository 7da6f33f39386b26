// Guards that users of the frame hook build: a tree of sources with checks, and a fast path over what a check read.
//
// A check walks the tree from its roots: the locals of a frame, and modules or functions that are held weakly. While
// it walks, it notes what it read below each root; if all held, these reads become a run of words (guard/run.h). As
// long as the root is the same object and the run holds, that part of the tree holds, and is not walked. What no word
// shows is looked at every time: tensors, their properties, which objects are the same, torch's state.
// All of it belongs to the GIL. A check runs no Python code and keeps no object of the user alive.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "guard/run.h"
#include "guard/sources.h"

namespace magneto::guard {

enum class Step : uint8_t {
  Local,      // a local variable by name
  Weak,       // a module or function, behind a weak reference
  Namespace,  // the globals of that module or function
  Cell,       // a free variable of that function
  Attribute,
  Item,
  Type,
  Length,
  Keys,
  Property,  // of a tensor
};

enum class Condition : uint8_t {
  Identity,     // this object; atoms by value
  Type,         // exactly this class
  Equals,       // this constant
  Truth,        // `number` is 0 or 1
  None,         // `number` is 0 (it is not None) or 1
  Length,       // `number`
  Keys,         // these keys in this order
  TypeVersion,  // `number`
  Absent,       // there is nothing here
};

struct Check {
  Condition condition;
  py::Ref expected;               // an atom, constant, tuple of keys, or a weak reference
  const void* address = nullptr;  // of the object or class
  Py_ssize_t number = 0;
};

// A place that the roots lead to.
struct Source {
  Step step;
  Source* parent;
  py::Ref key;       // a name, key or weak reference
  Py_ssize_t index;  // of a Cell or Property
  std::string name;  // for people: `self.layers[3]`
  size_t depth;
  std::vector<Check> checks;
  std::vector<std::unique_ptr<Source>> children;
  bool is_tensor = false;   // its metadata is looked at, too
  bool is_related = false;  // compared with others

  PyObject* value = nullptr;  // found last; borrowed, unless `made` holds it
  py::Ref made;

  // Apart from its checks.
  bool must_be_there() const { return !children.empty() || is_tensor || is_related; }
};

class Manager {
 public:
  Manager();
  ~Manager();

  static constexpr size_t kMaxDepth = 256;

  // Building. Each gives the source that is there already, if there is one; all arguments are of the right kind.
  Source* local(PyObject* name);
  Source* global(PyObject* owner, PyObject* name);  // of a function or module
  Source* closure(PyObject* function, Py_ssize_t index, PyObject* name);
  Source* step(Source* from, Step step, PyObject* key = nullptr, Py_ssize_t index = 0);
  void add_check(Source* source, Check check);
  void add_tensor(Source* source, PyObject* tensor, const runtime::Dimensions& sizes,
                  const runtime::Dimensions& strides);
  void add_relation(bool same, std::vector<Source*> sources);
  void add_global_state();

  struct Verdict {
    bool result = true;
    size_t checks = 0;  // that were made
    std::string reason;
  };
  // `locals` is a dict.
  bool check(PyObject* locals) noexcept;
  Verdict explain(PyObject* locals) noexcept;
  // How often a part of the tree had to be walked.
  size_t walks() const { return walks_; }

 private:
  struct Region;  // all below one root
  class Walk;
  struct Relation {
    bool same;
    std::vector<Source*> sources;
  };

  Source* root(Step step, PyObject* key, PyObject* referent, std::string name);
  Region& region_of(const Source& source);
  bool holds(PyObject* locals, Verdict* verdict);
  bool region_holds(Region& region, PyObject* locals, Verdict* verdict);
  bool late_checks_hold(Verdict* verdict);
  bool relation_holds(const Relation& relation, Verdict* verdict);

  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<Source*> properties_, tensors_;
  std::vector<PyObject*> tensor_values_, related_values_;  // room for a check
  std::unique_ptr<runtime::TensorChecks> tensor_checks_;
  std::vector<Relation> relations_;
  std::unique_ptr<runtime::GlobalState> global_state_;
  size_t walks_ = 0;
};

// A check for identity. The object is referenced weakly if its class allows that; otherwise, unless it is an atom,
// only its address is compared.
Check identity_check(PyObject* object);
Check type_check(PyTypeObject* type);

}  // namespace magneto::guard
