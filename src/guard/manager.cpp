// Building and checking trees of guards.
#include "guard/manager.h"

#include <algorithm>

#include "cpython/cpython.h"
#include "cpython/text.h"
#include "guard/atoms.h"
#include "guard/names.h"
#include "runtime/state.h"

namespace magneto::guard {

using runtime::tensor_plug;

namespace {

PyObject* referent(PyObject* reference) {
  PyObject* object = PyWeakref_GET_OBJECT(reference);
  return object == Py_None ? nullptr : object;
}

std::string name_of(const Source* parent, Step step, PyObject* key, Py_ssize_t index) {
  switch (step) {
    case Step::Attribute: return parent->name + "." + py::text(key);
    case Step::Item:
      if (parent->step == Step::Namespace) return py::text(key);
      if (parent->step == Step::Attribute && PyUnicode_Check(key) && is_module_dict(py::text(parent->key.get())))
        return parent->parent->name + module_part(py::text(key));
      return parent->name + "[" + shown(key) + "]";
    case Step::Cell: return py::text(key);
    case Step::Type: return "type(" + parent->name + ")";
    case Step::Length: return "len(" + parent->name + ")";
    case Step::Keys: return "tuple(" + parent->name + ")";
    case Step::Property: return parent->name + "." + tensor_plug().tensor_properties()[static_cast<size_t>(index)];
    default: return parent->name;
  }
}

// A function of a C module, or a method of a C type.
bool is_c_library(PyObject* function) {
  PyObject* self = PyCFunction_GET_SELF(function);
  if (!self) return true;
  if (PyModule_Check(self)) return ((PyCFunctionObject*)function)->m_module;
  return PyType_Check(self) && !(((PyTypeObject*)self)->tp_flags & Py_TPFLAGS_HEAPTYPE);
}

// What may be kept alive for as long as the guards are.
bool is_harmless(PyObject* held) {
  if (!held || is_constant(held)) return true;
  if (PyCFunction_Check(held)) return is_c_library(held);
  PyObject* parts = PyCode_Check(held) ? ((PyCodeObject*)held)->co_consts : held;
  if (!PyTuple_CheckExact(parts) || Py_EnterRecursiveCall("")) return PyErr_Clear(), false;
  Py_ssize_t i = 0;
  while (i < PyTuple_GET_SIZE(parts) && is_harmless(PyTuple_GET_ITEM(parts, i))) ++i;
  Py_LeaveRecursiveCall();
  return i == PyTuple_GET_SIZE(parts);
}

bool owns_nothing(const std::vector<Read>& reads) {
  return std::all_of(reads.begin(), reads.end(), [](const Read& read) {
    if (read.root || !is_harmless(read.held.get())) return false;
    if (!read.contents) return true;
    const auto& held = read.contents->held;
    return std::all_of(held.begin(), held.end(), [](const py::Ref& object) { return is_harmless(object.get()); });
  });
}

}  // namespace

// ---- one walk through a region

class Manager::Walk {
 public:
  // `reads` and `verdict` may be null.
  Walk(Reads* reads, Verdict* verdict) : reads_(reads), verdict_(verdict) {}

  bool visit(Source& source, PyObject* value);
  // Whether what was noted says all that the walk relied on.
  bool is_complete() const { return is_complete_; }
  const std::vector<PyObject*>& references() const { return references_; }

 private:
  bool visit_child(Source& child, PyObject* value);
  bool holds(const Check& check, PyObject* value);
  bool is_same(const Check& check, PyObject* value);
  std::string describe(const Source& source, const Check& check, PyObject* value);

  bool fail(std::string reason) {
    if (verdict_) verdict_->reason = std::move(reason);
    return false;
  }
  void count() {
    if (verdict_) ++verdict_->checks;
  }

  Reads* reads_;
  Verdict* verdict_;
  bool is_complete_ = true;
  std::vector<PyObject*> references_;  // weak ones that were noted
};

bool Manager::Walk::visit(Source& source, PyObject* value) {
  source.value = value;
  for (const Check& check : source.checks) {
    count();
    bool as_expected = check.condition == Condition::Absent ? !value : value && holds(check, value);
    if (!as_expected) return fail(verdict_ ? describe(source, check, value) : "");
  }
  if (!value) {
    if (!source.must_be_there()) return true;
    count();
    return fail("`" + source.name + "` is not there");
  }
  if (source.is_tensor) {
    if (reads_) reads_->read_class(value);
    if (!tensor_plug().is_tensor(value)) {
      count();
      return fail("`" + source.name + "` is " + shown(value) + ", was a tensor");
    }
  }
  // Two atoms may be equal, which is enough for a read, and yet not the same object.
  if (source.is_related && is_constant(value)) is_complete_ = false;
  for (auto& child : source.children)
    if (child->step != Step::Property && !visit_child(*child, value)) return false;
  return true;
}

bool Manager::Walk::visit_child(Source& child, PyObject* value) {
  switch (child.step) {
    case Step::Namespace: return visit(child, find_namespace(value, reads_));
    case Step::Cell: return visit(child, find_in_closure(value, child.index, reads_));
    case Step::Attribute: return visit(child, find_attribute(value, child.key.get(), reads_));
    case Step::Item: return visit(child, find_item(value, child.key.get(), reads_));
    case Step::Type:
      if (reads_) reads_->read_class(value);
      return visit(child, (PyObject*)Py_TYPE(value));
    case Step::Length: {
      Py_ssize_t length = find_length(value, reads_);
      child.made = py::Ref::steal(length < 0 ? nullptr : PyLong_FromSsize_t(length));
      break;
    }
    default: child.made = find_keys(value, reads_);
  }
  if (!child.made && PyErr_Occurred()) PyErr_Clear();
  if (!child.made) is_complete_ = false;  // why there is none is not noted
  // The value is made from what was noted; there is nothing below it that could change.
  Reads* reads = std::exchange(reads_, nullptr);
  bool result = visit(child, child.made.get());
  reads_ = reads;
  return result;
}

bool Manager::Walk::is_same(const Check& check, PyObject* value) {
  if (!check.expected) return value == check.address;
  if (!PyWeakref_Check(check.expected.get())) return same_constant(value, check.expected.get());
  if (reads_) {
    reads_->read_reference(check.expected.get());
    references_.push_back(check.expected.get());
  }
  return value == referent(check.expected.get());
}

bool Manager::Walk::holds(const Check& check, PyObject* value) {
  switch (check.condition) {
    case Condition::Identity: return is_same(check, value);
    case Condition::Type:
      if (reads_) reads_->read_class(value);
      return is_same(check, (PyObject*)Py_TYPE(value));
    case Condition::Equals: return same_constant(value, check.expected.get());
    case Condition::Truth: return find_truth(value, reads_) == check.number;
    case Condition::None: return (value == Py_None) == (check.number != 0);
    case Condition::Length: return find_length(value, reads_) == check.number;
    case Condition::Keys: {
      py::Ref keys = find_keys(value, reads_);
      return keys && same_constant(keys.get(), check.expected.get());
    }
    case Condition::TypeVersion:
      if (!PyType_Check(value)) return false;
      if (reads_) reads_->read_class(value), reads_->read_version((PyTypeObject*)value);
      return mg_type_version((PyTypeObject*)value) == static_cast<unsigned>(check.number);
    case Condition::Absent: return false;
  }
  return false;
}

std::string Manager::Walk::describe(const Source& source, const Check& check, PyObject* value) {
  std::string what = "`" + source.name + "` ";
  if (!value) return what + "is not there";
  auto constant = [](PyObject* object) { return is_constant(object) ? py::repr(object) : shown(object); };
  switch (check.condition) {
    case Condition::Identity:
      if (check.expected && !PyWeakref_Check(check.expected.get()))
        return what + "is " + constant(value) + ", was " + constant(check.expected.get());
      return what + "is another object, " + shown(value);
    case Condition::Type: {
      PyObject* type = referent(check.expected.get());
      std::string was = type ? ((PyTypeObject*)type)->tp_name : "of a class that is gone";
      return what + "is a " + py::type_name(value) + ", was " + (type ? "a " : "") + was;
    }
    case Condition::Equals: return what + "is " + constant(value) + ", was " + constant(check.expected.get());
    case Condition::Truth:
      if (find_truth(value, nullptr) < 0) return what + "is " + shown(value) + ": only its own code knows its truth";
      return what + (check.number ? "is false, was true" : "is true, was false");
    case Condition::None: return what + (check.number ? "is " + constant(value) + ", was None" : "is None, was not");
    case Condition::Length: {
      Py_ssize_t length = find_length(value, nullptr);
      if (length < 0) return what + "is " + shown(value) + ", had length " + std::to_string(check.number);
      return what + "has length " + std::to_string(length) + ", had " + std::to_string(check.number);
    }
    case Condition::Keys: {
      py::Ref keys = find_keys(value, nullptr);
      if (!keys) return what + (PyDict_Check(value) ? "has a key that is no constant" : "is no dict, was one");
      return what + "has the keys " + py::repr(keys.get()) + ", had " + py::repr(check.expected.get());
    }
    case Condition::TypeVersion: return what + (PyType_Check(value) ? "was changed" : "is no class, was one");
    case Condition::Absent: return what + "is " + constant(value) + ", was not there";
  }
  return what + "was changed";
}

// ---- regions

struct Manager::Region {
  std::unique_ptr<Source> root;
  std::unique_ptr<Run> run;
  PyObject* object = nullptr;  // that the run is about; only compared, because whoever asks has it alive
  py::Ref held;                // the same, if it is an atom
  std::vector<std::pair<Source*, PyObject*>> values;  // that the run vouches for and late checks look at
  uint32_t hits = 0, patience = 0, wait = 0;
  bool held_last = false;  // in a walk without notes

  bool holds(PyObject* now) {
    if (!run || now != object || run->first_failure() != Run::kAll) return false;
    ++hits;
    root->value = now;
    for (auto [source, value] : values) source->value = value;
    return true;
  }

  bool may_note() const { return !run && held_last && wait == 0; }

  // Noting costs more than walking: what changes all the time is noted less and less often.
  void back_off() {
    constexpr uint32_t kMostPatience = 1023;
    patience = std::min(2 * patience + 1, kMostPatience);
    wait = patience;
  }

  void forget() {
    if (!run) return;
    run.reset();
    held = {};
    values.clear();
    constexpr uint32_t kWorthIt = 8;
    if (hits < kWorthIt)
      back_off();
    else
      patience = 0;
    hits = 0;
  }

  void remember(PyObject* about, bool hold, Reads& reads, const Walk& walk) {
    std::vector<PyObject*> roots = walk.references();
    roots.push_back(about);
    std::vector<Read> found = reads.finish(roots);
    if (!walk.is_complete() || !owns_nothing(found) || (hold && !is_harmless(about))) return back_off();
    run = std::make_unique<Run>(std::move(found), nullptr);
    object = about;
    if (hold) held = py::Ref::borrow(about);
    collect_values(*root);
  }

 private:
  void collect_values(Source& source) {
    if (source.is_tensor || source.is_related) values.emplace_back(&source, source.value);
    for (auto& child : source.children)
      if (child->step != Step::Property) collect_values(*child);
  }
};

Manager::Manager() : tensor_checks_(tensor_plug().tensor_checks()) {}
Manager::~Manager() = default;

bool Manager::region_holds(Region& region, PyObject* locals, Verdict* verdict) {
  Source& root = *region.root;
  PyObject* object = root.step == Step::Local ? find_key(locals, root.key.get()) : referent(root.key.get());
  bool is_flat = root.checks.empty() && root.children.empty();
  bool may_be_run = !verdict && !is_flat && object;
  if (may_be_run && region.holds(object)) return true;
  runtime::NoCollection none;  // whose finalisers could change what is being walked through
  if (!may_be_run) return Walk(nullptr, verdict).visit(root, object);
  ++walks_;
  if (!region.may_note()) {
    // If it fails the run is kept: things may be again what they were.
    region.held_last = Walk(nullptr, nullptr).visit(root, object);
    if (!region.held_last) return false;
    region.forget();
    if (region.wait) --region.wait;
    return true;
  }
  Reads reads;
  bool hold = reads.read_root(object);
  Walk walk(&reads, nullptr);
  region.held_last = walk.visit(root, object);
  if (region.held_last) region.remember(object, hold, reads, walk);
  return region.held_last;
}

// ---- checking

bool Manager::late_checks_hold(Verdict* verdict) {
  std::optional<runtime::NoCollection> none;
  if (!properties_.empty()) none.emplace();
  for (Source* property : properties_) {
    PyObject* value = tensor_plug().tensor_property(property->parent->value, static_cast<size_t>(property->index));
    property->made = py::Ref::steal(value);
    if (!Walk(nullptr, verdict).visit(*property, property->made.get())) return false;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) tensor_values_[i] = tensors_[i]->value;
  ptrdiff_t bad = tensors_.empty() ? -1 : tensor_checks_->first_mismatch(tensor_values_.data());
  if (verdict) verdict->checks += bad < 0 ? tensors_.size() : static_cast<size_t>(bad) + 1;
  if (bad >= 0) {
    auto index = static_cast<size_t>(bad);
    if (verdict)
      verdict->reason = "`" + tensors_[index]->name + "` is " + tensor_checks_->explain(index, tensor_values_[index]);
    return false;
  }
  return std::all_of(relations_.begin(), relations_.end(),
                     [&](const Relation& relation) { return relation_holds(relation, verdict); });
}

bool Manager::relation_holds(const Relation& relation, Verdict* verdict) {
  if (verdict) ++verdict->checks;
  const auto& sources = relation.sources;
  auto say = [&](const Source* a, const Source* b, const char* what) {
    if (verdict) verdict->reason = "`" + a->name + "` and `" + b->name + "` are " + what;
    return false;
  };
  if (relation.same) {
    for (Source* source : sources)
      if (source->value != sources[0]->value) return say(sources[0], source, "different objects, were the same");
    return true;
  }
  related_values_.clear();
  for (Source* source : sources) related_values_.push_back(source->value);
  std::sort(related_values_.begin(), related_values_.end());
  auto twice = std::adjacent_find(related_values_.begin(), related_values_.end());
  if (twice == related_values_.end()) return true;
  auto is_it = [&](const Source* source) { return source->value == *twice; };
  auto first = std::find_if(sources.begin(), sources.end(), is_it);
  return say(*first, *std::find_if(first + 1, sources.end(), is_it), "the same object, were different");
}

bool Manager::holds(PyObject* locals, Verdict* verdict) {
  if (global_state_) {
    if (verdict) ++verdict->checks;
    if (!global_state_->holds()) {
      if (verdict) verdict->reason = global_state_->explain();
      return false;
    }
  }
  for (auto& region : regions_)
    if (!region_holds(*region, locals, verdict)) return false;
  return late_checks_hold(verdict);
}

bool Manager::check(PyObject* locals) noexcept {
  try {
    return holds(locals, nullptr);
  } catch (...) {  // no memory, or a tensor that cannot tell
    return false;
  }
}

Manager::Verdict Manager::explain(PyObject* locals) noexcept {
  Verdict verdict;
  try {
    verdict.result = holds(locals, &verdict);
  } catch (...) {
    verdict.result = false;
    verdict.reason = "the check could not be made";
  }
  return verdict;
}

// ---- building

Manager::Region& Manager::region_of(const Source& source) {
  const Source* root = &source;
  while (root->parent) root = root->parent;
  return **std::find_if(regions_.begin(), regions_.end(),
                        [&](const auto& region) { return region->root.get() == root; });
}

Source* Manager::root(Step step, PyObject* key, PyObject* object, std::string name) {
  for (auto& region : regions_) {
    Source& root = *region->root;
    if (root.step != step) continue;
    if (step == Step::Local ? same_atom(root.key.get(), key) : referent(root.key.get()) == object) return &root;
  }
  py::Ref held = step == Step::Local ? py::Ref::borrow(key) : py::Ref::steal(PyWeakref_NewRef(object, nullptr));
  auto region = std::make_unique<Region>();
  region->root.reset(new Source{step, nullptr, std::move(held), 0, std::move(name), 0});
  regions_.push_back(std::move(region));
  return regions_.back()->root.get();
}

Source* Manager::local(PyObject* name) { return root(Step::Local, name, nullptr, py::text(name)); }

Source* Manager::global(PyObject* owner, PyObject* name) {
  const char* what =
      PyModule_Check(owner) ? "the module that holds the globals" : "the function that holds the globals";
  return step(step(root(Step::Weak, nullptr, owner, what), Step::Namespace), Step::Item, name);
}

Source* Manager::closure(PyObject* function, Py_ssize_t index, PyObject* name) {
  return step(root(Step::Weak, nullptr, function, "the function"), Step::Cell, name, index);
}

Source* Manager::step(Source* from, Step step, PyObject* key, Py_ssize_t index) {
  for (auto& child : from->children)
    if (child->step == step && child->index == index && same_value(child->key.get(), key)) return child.get();
  region_of(*from).forget();
  from->children.emplace_back(
      new Source{step, from, py::Ref::borrow(key), index, name_of(from, step, key, index), from->depth + 1});
  Source* child = from->children.back().get();
  if (step == Step::Property) {
    properties_.push_back(child);
    from->is_tensor = true;
  }
  return child;
}

void Manager::add_check(Source* source, Check check) {
  region_of(*source).forget();
  source->checks.push_back(std::move(check));
}

void Manager::add_tensor(Source* source, PyObject* tensor, const runtime::Dimensions& sizes,
                         const runtime::Dimensions& strides) {
  region_of(*source).forget();
  tensor_checks_->add(tensor, sizes, strides);
  source->is_tensor = true;
  tensors_.push_back(source);
  tensor_values_.resize(tensors_.size());
}

void Manager::add_relation(bool same, std::vector<Source*> sources) {
  for (Source* source : sources) {
    region_of(*source).forget();
    source->is_related = true;
  }
  relations_.push_back({same, std::move(sources)});
}

void Manager::add_global_state() { global_state_ = tensor_plug().whole_state(); }

Check identity_check(PyObject* object) {
  if (is_atom(object) || PyFloat_CheckExact(object)) return {Condition::Identity, py::Ref::borrow(object)};
  py::Ref reference = py::Ref::steal(PyWeakref_NewRef(object, nullptr));
  if (!reference) PyErr_Clear();
  return {Condition::Identity, std::move(reference), object};
}

Check type_check(PyTypeObject* type) {
  return {Condition::Type, py::Ref::steal(PyWeakref_NewRef((PyObject*)type, nullptr)), type};
}

}  // namespace magneto::guard
