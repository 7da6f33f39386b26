// What objects hold that unknown code has made or may have changed, and arguments that must not be part of the state.

#include <algorithm>

#include "cpython/text.h"
#include "trace/frame_run.h"
#include "trace/writer.h"

namespace magneto::trace {

namespace {

constexpr Py_ssize_t kHolders = 2;     // of a part: a dict that has attributes, too, may hold it in both
constexpr size_t kMostParts = 1000;    // of objects that are looked into
constexpr size_t kFormsBehindCut = 3;  // of which the next call might need yet another one

// A class may die with the objects that were looked into, and the guards of the stretch are checked before these: first
// of all that it lives. `again_` holds the same weak reference.
void watch_over(PyObject* type, guard::Reads& guards) {
  if (!(((PyTypeObject*)type)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;
  py::Ref reference = py::Ref::steal(PyWeakref_NewRef(type, nullptr));
  if (!reference) return PyErr_Clear();  // then the class is held
  guards.read_referent(reference.get());
}

}  // namespace

bool Watch::is_left_to_us(PyObject* object, bool is_part) const {
  constexpr Py_ssize_t kMany = 16;  // others must be among them
  if (Py_REFCNT(object) > kMany) return false;
  Py_ssize_t ours = writer_->references_to(object) + provenance.references_to(object);
  for (const FrameRun* frame : running)
    for (size_t i = 0; i < frame->size(); ++i) ours += frame->value(i).object == object;
  return Py_REFCNT(object) <= ours + (is_part ? kHolders : 0);
}

// A tensor that an unknown function made, and that is in this register, becomes an input of the recording.
void Watch::use_foreign_tensor(PyObject* tensor, uint32_t number) {
  if (recording->knows(tensor)) return give_up("the call finds a tensor again that it has used already");
  foreign_tensors_.insert(tensor);
  add_input(tensor, number, symbolic_ ? plug_.openable(tensor) : std::vector<int>());
}

void Watch::use_foreign_tensor(NodeId node) {
  PyObject* tensor = provenance[node].value.get();
  if (again_ && again_->node_of(tensor) >= 0) return;  // it is part of what was looked into
  uint32_t* known = recording->knows(tensor) ? writer_->find(tensor) : nullptr;
  if (known && provenance[node].kind == Node::Kind::Register)
    program_->must_be_same(provenance[node].number, *known);
  else
    use_foreign_tensor(tensor, writer_->hold_tensor(node));
}

// For people: the variable that holds it, or what it is.
std::string Watch::name_of(PyObject* object) const {
  for (auto frame = running.rbegin(); frame != running.rend(); ++frame) {
    const PyCodeObject* code = (*frame)->code();
    for (int i = 0; i < code->co_nlocalsplus; ++i)
      if ((*frame)->value(static_cast<size_t>(i)).object == object)
        return py::text(PyTuple_GET_ITEM(code->co_localsplusnames, i));
  }
  return "the " + py::type_name(object);
}

// Unknown code has made this object, or may have changed it. What it holds now is checked in front of the stretch.
void Watch::look_into(NodeId id) {
  if (provenance[id].kind == Node::Kind::Item) {
    while (provenance[id].kind == Node::Kind::Item) id = provenance[id].left;
    if (provenance[id].settled) return;  // with all that it holds
  }
  Node& node = provenance[id];
  PyObject* object = node.value.get();
  node.settled = true;
  size_t from = contents().node_count();
  std::string what = "a " + py::type_name(object) + " that an unknown function may have changed";
  bool fits_seldom = last_cut_ && last_cut_->stretches.size() > kFormsBehindCut;
  if (!again_ || node.kind != Node::Kind::Register || fits_seldom) return give_up("the call uses " + what);
  again_->add_root(object, name_of(object));
  if (!again_->refusal().empty()) return give_up("the call uses " + what + ": " + again_->refusal());
  if (again_->is_by_identity(from)) return give_up("the call uses " + what);
  if (again_->node_count() > kMostParts) return give_up("the call uses " + what + ", with too many parts");
  known_.contents = again_;
  known_.roots.push_back(node.number);
  for (PyObject* type : again_->classes()) watch_over(type, guards);
  for (size_t i = from; i < again_->node_count() && alive(); ++i) look_at_part(i, known_.roots.back());
  for (const guard::Arguments::Number& number : again_->open_numbers(from))
    open_numbers_.emplace_back(number, provenance.add_argument(number.node, again_->seen(number.node)));
}

// A node of what was looked into. The root of it is in that register.
void Watch::look_at_part(size_t node, uint32_t root) {
  PyObject* part = again_->seen(node);
  bool is_container = again_->containers().contains(part);
  writer_->hold_part(part);
  if (again_->is_by_identity(node) && is_left_to_us(part, again_->is_part(node)))
    return give_up("the call uses a " + py::type_name(part) + " that an unknown function has made");
  if (changed_.contains(part) || (is_container && (guards.is_owner(part) || guards.pins(part))))
    return give_up("the call uses a " + py::type_name(part) + " that it has found in another way already");
  if ((!is_container && !is_tensor(part)) || again_->node_of(part) != static_cast<int>(node)) return;
  if (uint32_t* known = writer_->find(part)) {
    if (*known != root) known_.again.emplace_back(static_cast<uint32_t>(node), *known);
  } else if (is_tensor(part)) {
    use_foreign_tensor(part, writer_->hold_tensor(part, node));
  }
}

// The call saw arguments that were no part of the state. Where it changes either, that has to be so again.
void Watch::keep_apart() {
  program::Apart all, changed;
  for (size_t i = 0; i < contents().node_count() && !effects.empty(); ++i) {
    PyObject* object = contents().seen(i);
    if (!contents().containers().contains(object)) continue;
    all.nodes.push_back(static_cast<uint32_t>(i));
    if (changed_.contains(object)) changed.nodes.push_back(static_cast<uint32_t>(i));
  }
  for (const Effect& effect : effects)
    if (effect.container && is_tracked(effect.container)) all.objects.push_back(effect.container);
  program_->keep_apart(std::move(all));
  if (changed.nodes.empty()) return;
  auto add = [&](PyObject* owner) {
    if (owner && !contents().containers().contains(owner)) changed.objects.push_back(owner);
  };
  for (const guard::Read& read : guards.noted()) add(read.owner);
  for (NodeId id = 1; id < provenance.size(); ++id) add(provenance[id].owner);
  program_->keep_apart(std::move(changed));
}

}  // namespace magneto::trace
