// Reads: what a watched call relied on outside its arguments, in the order in which it found out.
//
// The order is what makes the guards sound without owning anything. A read says "this owner holds that value", and its
// owner is a root of the call or the value of an earlier read. Checked in order, every address is known to be that of
// a living object before it is looked at: whoever was checked before owns it. That an object died and another took
// its address does no harm: all that the call relied on about it is checked by the reads that follow.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cpython/ref.h"
#include "guard/pointer_set.h"
#include "runtime/tensor_plug.h"

namespace magneto::guard {

enum class Access : uint8_t {
  Field,           // a pointer to an object, at a fixed place inside the owner
  Number,          // eight bytes that are no pointer to an object, at a fixed place inside the owner
  Key,             // what a dict holds under a key
  Items,           // all keys and values of a dict, in order
  Entry,           // a dict holds this very object under that very key
  List,            // all that a list holds
  Name,            // what a class finds under a name, through its bases
  Specials,        // the special methods of a class, and its bases
  Set,             // all members of a set, in its order
  Order,           // the keys of an OrderedDict in its own order
  Getter,          // an attribute that C code computes
  Context,         // the value of a context variable
  AbcRegistry,     // which classes are registered with abstract base classes
  RecursionLimit,  // sys.getrecursionlimit()
};

constexpr const char* kReferent = "()";  // the label of the Field of a weak reference

// What a read found, if that is more than one value.
struct Contents {
  std::vector<PyObject*> items;    // borrowed: who holds them is checked first
  std::vector<py::Ref> held;       // those among them that are atoms, and names
  std::vector<const void*> slots;  // of a class
  std::vector<PyObject*> owners;   // of a class: those among the items that may be read in turn
  std::vector<PyObject**> places;  // where a list or set keeps them, for as long as it does
  void* buffer = nullptr;          // the memory that they are in
};

struct Read {
  Access access;
  bool fixed = false;  // cannot change while the owner lives; checked again only when another may have its address
  int32_t offset = 0;  // of a Field or Number, in bytes; of Specials, how many bases come first
  uint64_t version;    // that the owner, a dict or class, had when it was read; else 0
  PyObject* owner;     // borrowed, unless `root` holds it
  PyObject* value;     // borrowed, unless `held` holds it; null: there was none
  const char* label;   // of a Field: what people call it, or null
  py::Ref key;         // of a Key, Entry, Name or Getter
  py::Ref held;        // the value, if it is an atom or cannot lead to the user's objects
  py::Ref root;        // the owner, if no earlier read leads to it
  std::shared_ptr<Contents> contents;
  bool only_dicts = false;  // of a Field: nothing else can stand there
  bool exact = false;       // another object will not do, even if it is equal
  bool outdated = false;    // the call itself has changed the owner since

  // Whether it still holds. Takes note of an equal atom in place of the one it had.
  bool verify();
  // Two runs found the same here.
  bool same_as(const Read& other) const;
  int traverse(visitproc visit, void* arg) const;
};

// What a dict holds under `key` (an atom); runs no Python code, whatever the other keys are. `is_unclear` becomes true
// if there is a key of which only its own code knows whether it is equal.
PyObject* find_key(PyObject* dict, PyObject* key, bool* is_unclear = nullptr);

// The tensors, other than arguments, that the graph of a call uses, and what it relies on about them.
struct StateTensors {
  std::vector<PyObject*> objects;  // borrowed: the reads lead to them, or `roots` holds them
  std::vector<py::Ref> roots;
  std::unique_ptr<runtime::TensorChecks> checks;
};

// Notes reads, each once, while a call is watched. Values are those of now. Belongs to the GIL.
class Reads {
 public:
  Reads();
  // Makes room for those of a whole model.
  void expect_many();

  // Those that return bool tell whether this is news.
  bool read_key(PyObject* dict, PyObject* key);  // `key` is an atom, and looking it up runs no Python code now
  bool read_key(PyObject* dict, PyObject* key, PyObject* value);  // that find_key found, or null
  void read_items(PyObject* dict);
  // Of functools.lru_cache, which found this result in it, in the entry with this very key; null: who knows where.
  void read_cache(PyObject* dict, PyObject* key, PyObject* found);
  void read_list(PyObject* list);
  void read_set(PyObject* set);
  void read_cell(PyObject* cell, PyObject* value);  // that it held, or null
  void read_instance(PyObject* object);             // its type and which dict is its __dict__
  void read_class(PyObject* object);                // of a module or class: its type, and the dict of a module
  void read_type(PyTypeObject* type, PyObject* name);
  void read_specials(PyTypeObject* type);  // every special method, found or not
  bool read_function(PyFunctionObject* function);
  void read_slot(PyObject* object, PyObject* descriptor, PyObject* value);  // a C-level attribute
  void read_context(PyObject* variable, PyObject* value);                   // value null: unset
  void read_abc_registry();
  void read_recursion_limit();
  void read_length(PyObject* container);     // of a list, tuple, dict or set
  void read_version(PyTypeObject* type);     // any change of the class or its bases
  void read_reference(PyObject* reference);  // which object a weak reference leads to
  void read_referent(PyObject* reference);   // the same, and there it is: as long as that is so, it lives
  // What a root of the call is made of, if that cannot change. Whether the root must be held for it.
  bool read_root(PyObject* root);
  void add_state_tensor(PyObject* tensor);
  bool has_state_tensor(PyObject* tensor) const { return state_tensor_set_.contains(tensor); }
  // All that the list, dict or set contains.
  bool has_read_all(PyObject* container) const { return whole_.contains(container); }
  // From now on what was read has to be this very value wherever it was found. False: some reads cannot tell.
  bool pin_identity(PyObject* value);
  // Whether a read leads to this very object.
  bool pins(PyObject* object);
  size_t size() const { return reads_.size(); }
  const std::vector<Read>& noted() const { return reads_; }
  bool is_owner(PyObject* object) const { return owners_.contains(object); }
  // Whether something that a read leads to and that was looked into is kept alive by the notes alone.
  bool hold_the_last_reference();

  // Ends the noting. What only the notes kept alive is forgotten: the call made it, and nobody can reach it again.
  // `roots` are kept alive by others for as long as the guards are used; the call has changed the owners in `changed`.
  std::vector<Read> finish(const std::vector<PyObject*>& roots, const PointerSet& changed = {});
  StateTensors take_tensors() { return std::move(tensors_); }

 private:
  static constexpr size_t kExpectedReads = 1024;
  enum class Holding : uint8_t { Nothing, Value, Members, Tuple, CFunction };

  Read& note(Access access, PyObject* owner, PyObject* value);
  void add(Access access, PyObject* owner, PyObject* value, PyObject* key = nullptr);
  void add_contents(Access access, PyObject* owner, std::shared_ptr<Contents> contents, int32_t offset = 0);
  void add_field(PyObject* owner, ptrdiff_t offset, const char* label, bool fixed = false);
  void add_dict_field(PyObject* owner, ptrdiff_t offset);  // the __dict__ of an instance or module
  void add_number(PyObject* owner, ptrdiff_t offset, bool fixed = false);
  void add_type(PyObject* owner);
  void add_members(PyObject* object);
  bool read_function_slot(PyObject* function, PyObject* descriptor);
  bool must_hold(PyObject* value);
  void hold_if_needed();  // the value of the newest read
  Holding holding_of(PyObject* value);
  void keep(PyObject* owner) {
    if (owner == last_kept_) return;
    if (owners_.insert(owner)) kept_.push_back(py::Ref::borrow(owner));
    last_kept_ = owner;
  }
  void forget_unreachable();
  void find_roots(const std::vector<PyObject*>& roots);

  std::vector<Read> reads_;
  StateTensors tensors_;
  std::vector<py::Ref> kept_;  // owners: their addresses stand for them meanwhile
  PyObject* last_kept_ = nullptr;
  std::vector<py::Ref> kept_tensors_;
  PointerSet owners_, typed_, instances_, classes_, state_tensor_set_;
  PointerSet whole_;      // read with all they contain
  PointerPairSet pairs_;  // owner and key
  PointerSet pinned_;     // by the first `pinning_reads_` reads
  size_t pinning_reads_ = 0;
  PointerMap<Holding> holdings_;  // by type
  int nesting_ = 0;               // of values that are being opened
  bool abc_registry_read_ = false, recursion_limit_read_ = false;
};

}  // namespace magneto::guard
