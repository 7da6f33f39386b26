// Guards on state: everything that a watched call read outside its arguments, and the check that it still holds.
//
// Two halves. While a call is watched, the `read_…` functions note what it relied on, each once. After `freeze()` the
// notes are flat arrays that `first_failure` runs through; an unchanged dict or type costs one comparison of versions,
// a changed one falls back on the names that were read and then remembers the new version.
// All of it belongs to the GIL.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cpython/ref.h"
#include "guard/pointer_set.h"
#include "runtime/tensor_plug.h"

namespace magneto::guard {

class Guards {
 public:
  Guards();

  // ---- while watching; values are those of now

  // Those that return bool tell whether this is news.
  bool read_key(PyObject* dict, PyObject* key);  // `key` is hashable without running Python code
  void read_items(PyObject* dict);               // all keys and values, in order
  void read_list(PyObject* list);
  void read_set(PyObject* set);
  void read_cell(PyObject* cell);
  void read_instance(PyObject* object);  // its type and which dict is its __dict__
  void read_class(PyObject* object);     // of a module or class: its type only
  void read_type(PyTypeObject* type, PyObject* name);
  void read_specials(PyTypeObject* type);  // every special method, found or not
  bool read_function(PyFunctionObject* function);
  void read_slot(PyObject* object, PyObject* descriptor, PyObject* value);  // a C-level attribute
  void read_context(PyObject* variable, PyObject* value);                   // value null: unset
  void read_abc_registry();
  void read_recursion_limit();
  void add_state_tensor(PyObject* tensor);
  bool has_state_tensor(PyObject* tensor) const { return state_tensor_set_.contains(tensor); }
  // Whether some guard pins the identity of this object.
  bool pins(PyObject* object) const;

  // ---- afterwards

  void freeze(std::unique_ptr<runtime::GlobalState> global_state);
  // Null if all hold. Otherwise a static word for the kind; `explain` says more.
  const char* first_failure();
  std::string explain();
  size_t size() const;
  void describe(std::vector<std::string>* lines) const;
  int traverse(visitproc visit, void* arg) const;

 private:
  struct Entry {
    py::Ref key, value;  // value may be null: the key was absent
  };
  struct DictGuard {
    py::Ref dict;
    uint64_t version = 0;
    bool whole = false;
    std::vector<Entry> keys;   // read by name
    std::vector<Entry> items;  // all of them, if whole
    bool recheck();
    bool holds() const;
  };
  struct InstanceGuard {
    py::Ref object;
    PyTypeObject* type;
    PyObject** slot;
    PyObject* dict;  // owned by the object while the guard holds; only compared
  };
  struct TypeGuard {
    py::Ref type;
    unsigned version = 0;
    std::vector<Entry> names;
    std::vector<const void*> slots;  // the other C slots, if special methods matter
    py::Ref mro;
    bool recheck();
    bool holds() const;
  };
  struct FunctionGuard {
    py::Ref function, code, defaults, keyword_defaults;
  };
  struct ListGuard {
    py::Ref list;
    std::vector<py::Ref> items;
    bool holds() const;
  };
  struct SlotGuard {
    py::Ref object, descriptor, value;
    PyObject** place;  // where the value lives, if it is simply stored there
  };

  DictGuard& dict_guard(PyObject* dict);
  TypeGuard& type_guard(PyTypeObject* type);
  void drop_unreachable();
  const char* check(std::string* why);

  std::vector<DictGuard> dicts_;
  std::vector<InstanceGuard> instances_;
  std::vector<TypeGuard> types_;
  std::vector<FunctionGuard> functions_;
  std::vector<Entry> cells_;
  std::vector<ListGuard> lists_;
  std::vector<ListGuard> sets_;
  std::vector<SlotGuard> slots_;
  std::vector<Entry> context_;
  py::Ref abc_token_;
  int recursion_limit_ = 0;  // 0: not read
  std::vector<py::Ref> state_tensors_;
  std::vector<PyObject*> state_tensor_pointers_;
  std::unique_ptr<runtime::TensorChecks> state_checks_;
  std::unique_ptr<runtime::GlobalState> global_state_;

  // Only while watching.
  PointerMap<uint32_t> dict_index_, type_index_;
  PointerSet seen_, seen_instances_, state_tensor_set_;  // an object may be read as an instance and as a list
  PointerPairSet pairs_;
};

}  // namespace magneto::guard
