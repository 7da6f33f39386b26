// From nodes, effects and values to instructions: what the call made is built field by field.
#include "trace/writer.h"

#include <algorithm>

#include "cpython/cpython.h"
#include "guard/atoms.h"
#include "trace/frame_run.h"
#include "trace/known_types.h"
#include "trace/listing.h"

namespace magneto::trace {

using program::Op;
using program::Recipe;

namespace {

// Whether nothing was ever taken out of the dict.
bool is_dense(PyObject* dict) {
  Py_ssize_t position = 0, count = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value))
    if (position != ++count) return false;
  return true;
}

// The descriptor of a C method that is bound to an object; null: it is none, or cannot be found.
PyObject* bound_method(PyObject* value) {
  if (!PyCFunction_Check(value) || !PyCFunction_GET_SELF(value)) return nullptr;
  PyObject* self = PyCFunction_GET_SELF(value);
  py::Ref name = py::Ref::steal(PyUnicode_FromString(((PyCFunctionObject*)value)->m_ml->ml_name));
  PyObject* found = name && !PyModule_Check(self) ? _PyType_Lookup(Py_TYPE(self), name.get()) : nullptr;
  bool same = found && Py_TYPE(found) == &PyMethodDescr_Type &&
              ((PyMethodDescrObject*)found)->d_method == ((PyCFunctionObject*)value)->m_ml;
  return same ? found : nullptr;
}

}  // namespace

// While it lives, instructions are written for what the watch has noted under this number.
class Writer::For {
 public:
  For(Writer& writer, Noted what, size_t number) : writer_(writer), listing_(writer.watch_.listing.get()) {
    if (listing_) before_ = listing_->write_for(what, number, writer.program_->register_count());
  }
  ~For() {
    if (listing_) listing_->write_for(before_, writer_.program_->register_count());
  }
  For(const For&) = delete;
  For& operator=(const For&) = delete;

 private:
  Writer& writer_;
  Listing* listing_;
  uint32_t before_ = 0;
};

// An argument may be the only one to hold its parts, and the call may take them out of it. Nothing else must come to
// lie at their addresses, by which they are known.
Writer::Writer(Watch& watch, const guard::Arguments& arguments) : watch_(watch) {
  for (size_t i = 0; i < arguments.node_count(); ++i)
    if (arguments.is_part(i)) parts_.push_back(py::Ref::borrow(arguments.seen(i)));
}

void Writer::drop_all() {
  close_exits();
  std::vector<py::Ref> dropped = std::exchange(keep_, {}), parts = std::exchange(parts_, {});
  for (py::Ref& part : parts)  // of the others nobody notices that they live on
    if (watch_.is_tensor(part.get()) || guard::is_atom(part.get())) parts_.push_back(std::move(part));
}

Py_ssize_t Writer::references_to(PyObject* object) const {
  return std::ranges::count(keep_, object, &py::Ref::get) + std::ranges::count(parts_, object, &py::Ref::get);
}

void Writer::start(program::Program* program) {
  has_nodes_ = program_ == nullptr;
  program_ = program;
  at_exit_.clear();
  outputs.clear();
  verb_ = "stores ";
}

uint32_t Writer::refuse(const std::string& what) {
  watch_.give_up(std::string("the call ") + verb_ + what);
  return 0;
}

uint32_t Writer::emit(Op op, uint32_t index, const std::vector<uint32_t>& operands) {
  return exit_ ? program_->emit(exit_, op, index, operands) : program_->emit(op, index, operands);
}

// ---- nodes and effects

void Writer::write_effects() {
  write_nodes();
  check_drops();
  bool keeps_state = watch_.keeps_torch_state();
  for (const Effect& effect : watch_.effects) {
    if (!effect.container && keeps_state) continue;
    For here(*this, Noted::Effect, static_cast<size_t>(&effect - watch_.effects.data()));
    std::vector<uint32_t> operands;
    for (const auto& [object, node] : effect.operands) operands.push_back(value({object.get(), node}));
    program_->emit(effect.op, effect.constant ? program_->add_constant(effect.constant.get()) : 0, operands);
  }
  verb_ = "returns ";
}

// What the effects drop, other than what they themselves have stored before.
void Writer::check_drops() {
  auto ours = static_cast<uint32_t>(watch_.effects.size()) + 1;  // and a register
  guard::PointerPairSet seen;
  for (const Effect& effect : watch_.effects) {
    PyObject* key = dropped_key(effect);
    if (!effect.drops || !seen.insert(effect.container, key)) continue;
    if (watch_.provenance.reads_number(effect.container, key)) continue;
    For here(*this, Noted::Effect, static_cast<size_t>(&effect - watch_.effects.data()));
    std::vector<uint32_t> operands{visit(effect.operands[0].first.get())};
    if (key) operands.push_back(visit(key));
    bool attribute = effect.op == Op::SetAttribute || effect.op == Op::DeleteAttribute;
    program_->emit(attribute ? Op::CheckDropAttribute : Op::CheckDrop, ours, operands);
  }
}

// Computations and reads are made even if nobody uses what comes out: they could fail.
void Writer::write_nodes() {
  Provenance& nodes = watch_.provenance;
  node_registers_.resize(nodes.size(), program::kNoRegister);
  for (NodeId id = 1; id < nodes.size() && watch_.alive(); ++id) {
    Node::Kind kind = nodes[id].kind;
    bool computes = kind == Node::Kind::Unary || kind == Node::Kind::Binary || kind == Node::Kind::Compare;
    bool is_read = kind == Node::Kind::Key || kind == Node::Kind::Cell;
    is_read |= kind != Node::Kind::Symbolic && nodes[id].typed;
    if (!nodes[id].settled && (computes || is_read)) node(id);
  }
  for (size_t i = 0; i < nodes.lengths.size(); ++i) {
    For here(*this, Noted::Length, i);
    program_->emit(Op::CheckLength, nodes.lengths[i].second, {node(nodes.lengths[i].first)});
  }
  for (size_t i = 0; i < nodes.truths.size(); ++i) {
    auto [id, truth] = nodes.truths[i];
    For here(*this, Noted::Truth, i);
    if (!nodes.is_known(id)) program_->emit(Op::CheckTruth, truth, {node(id)});
  }
  for (size_t i = 0; i < nodes.settled_registers.size(); ++i) {
    NodeId id = nodes.settled_registers[i];
    For here(*this, Noted::SettledRegister, i);
    program_->emit(Op::CheckSame, program_->add_constant(nodes[id].value.get()), {node(id)});
  }
  nodes.lengths.clear();
}

uint32_t Writer::node(NodeId id) {
  node_registers_.resize(watch_.provenance.size(), program::kNoRegister);
  if (node_registers_[id] != program::kNoRegister) return node_registers_[id];
  For here(*this, Noted::Node, id);
  const Node& node = watch_.provenance[id];
  auto operand = [&](NodeId from, const py::Ref& known) {
    if (!watch_.provenance.is_known(from)) return this->node(from);
    return program_->emit(Op::Constant, program_->add_constant(known.get()));
  };
  uint32_t result = 0;
  switch (node.kind) {
    case Node::Kind::Key: {
      uint32_t owner = visit(node.owner);
      result = program_->emit(Op::LoadKey, program_->add_constant(node.key.get()), {owner});
      break;
    }
    case Node::Kind::Cell: {
      uint32_t owner = visit(node.owner);
      result = program_->emit(Op::LoadCell, 0, {owner});
      break;
    }
    case Node::Kind::Unary:
      result = program_->emit(Op::Unary, node.number, {operand(node.left, node.left_value)});
      break;
    case Node::Kind::Binary:
    case Node::Kind::Compare: {
      uint32_t left = operand(node.left, node.left_value), right = operand(node.right, node.right_value);
      result = program_->emit(node.kind == Node::Kind::Binary ? Op::Binary : Op::Compare, node.number, {left, right});
      break;
    }
    case Node::Kind::Argument: result = program_->emit(Op::Argument, node.number); break;
    case Node::Kind::Symbolic:
      if (watch_.is_plain(node)) return constant(node.value.get());
      outputs.push_back({nullptr, *node.symbol});
      result = program_->emit(Op::Output, static_cast<uint32_t>(outputs.size() - 1));
      break;
    case Node::Kind::Register:
      if (node.number == program::kNoRegister) return refuse("a value that seemed out of reach");
      result = node.number;
      break;
    case Node::Kind::Item: result = program_->emit(Op::LoadItem, node.number, {this->node(node.left)}); break;
    case Node::Kind::Holder: return visit(node.value.get());
  }
  bool is_found = node.kind == Node::Kind::Key || node.kind == Node::Kind::Cell || node.kind == Node::Kind::Register ||
                  node.kind == Node::Kind::Item;
  if (node.typed && is_found)  // what is computed follows from that
    program_->emit(Op::CheckType, program_->add_constant((PyObject*)Py_TYPE(node.value.get())), {result});
  return node_registers_[id] = result;
}

void Writer::close_nodes() {
  Provenance& nodes = watch_.provenance;
  node_registers_.resize(nodes.size(), program::kNoRegister);
  for (NodeId id = 1; id < nodes.size(); ++id) {
    Node& node = nodes[id];
    if (node.settled || node.kind == Node::Kind::Holder) continue;
    if (node.kind == Node::Kind::Symbolic && watch_.is_plain(node)) {
      node.settled = true;  // the recording has one number for it
      continue;
    }
    node.kind = Node::Kind::Register;
    node.number = node_registers_[id];  // or none, if nobody can reach it any more
    node.typed = false;
    node.symbol.reset();  // of a recording that is over
  }
  nodes.forget_reads();
  nodes.truths.clear();
  nodes.settled_registers.clear();
  node_registers_.assign(nodes.size(), program::kNoRegister);
}

// ---- values

uint32_t Writer::value(Value value) {
  return watch_.provenance.is_known(value.node) ? visit(value.object) : node(value.node);
}

uint32_t Writer::value_at_exit(Value at, program::Exit* exit) {
  if (!at.object) return program::kNoRegister;
  if (std::exchange(last_exit_, exit) != exit) at_exit_.clear();
  exit_ = exit;
  uint32_t result = value(at);
  exit_ = nullptr;
  return result;
}

void Writer::close_exits() {
  last_exit_ = nullptr;
  at_exit_.clear();
  std::vector<py::Ref> dropped = std::exchange(keep_at_exit_, {});
}

uint32_t* Writer::find(PyObject* object) {
  auto found = registers_.find(object);
  return found == registers_.end() ? nullptr : &found->second;
}

uint32_t Writer::visit(PyObject* value) {
  if (!watch_.alive()) return 0;
  auto known = registers_.find(value);
  if (known == registers_.end() && exit_) {
    known = at_exit_.find(value);
    if (known == at_exit_.end()) known = registers_.end();
  }
  if (known != registers_.end()) {
    if (known->second == kOpen) return refuse("an object that contains itself");
    return known->second;
  }
  if (++depth_ > kMaxNesting) return refuse("an object that is nested too deeply");
  auto& registers = exit_ ? at_exit_ : registers_;
  registers[value] = kOpen;
  (exit_ ? keep_at_exit_ : keep_).push_back(py::Ref::borrow(value));
  uint32_t result = describe(value);
  registers[value] = result;
  --depth_;
  return result;
}

uint32_t Writer::describe(PyObject* value) {
  if (watch_.is_tensor(value)) return tensor(value);
  int node = watch_.contents().node_of(value);
  bool is_argument = node >= 0 && has_nodes_;
  if (PyTuple_Check(value) && watch_.provenance.holder(value) && !is_argument) return tuple(value);
  if (PyLong_CheckExact(value) && watch_.is_address(value)) return refuse("the address of a new object");
  if (guard::is_atom(value) || PyFloat_CheckExact(value)) return constant(value);  // NaN is no atom
  if (PySlice_Check(value)) return slice((PySliceObject*)value);
  if (is_argument) return in_program(value, Op::Argument, static_cast<uint32_t>(node));
  if (node >= 0) return refuse("an argument that it has lost sight of");
  PyTypeObject* type = Py_TYPE(value);
  if (PyTuple_Check(value)) {
    if (watch_.is_fresh(value)) return tuple(value);
    return watch_.guards.pins(value) ? older(value) : guard::holds_only_atoms(value) ? constant(value) : tuple(value);
  }
  if (PyMethod_Check(value) && !watch_.guards.pins(value))  // bound by the call; which object it is does not matter
    return emit(Op::Method, 0, {visit(PyMethod_GET_FUNCTION(value)), visit(PyMethod_GET_SELF(value))});
  if (PyObject* descriptor = bound_method(value); descriptor && !watch_.guards.pins(value))
    return emit(Op::BoundMethod, 0, {constant(descriptor), visit(PyCFunction_GET_SELF(value))});
  if (!watch_.is_fresh(value)) return older_object(value);
  if (watch_.holds_attributes(value)) return refuse("the attributes of a new object, as a dict");
  if (!exit_) built.push_back(value);
  if (type == &PyList_Type) return emit(Op::List, 0, list_items(value));
  if (type == &PyDict_Type) return emit(Op::Dict, 0, dict_items(value));
  if (type == &PySet_Type) {
    std::vector<uint32_t> items;
    py::Ref list = py::Ref::steal(PySequence_List(value));
    for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list.get()); ++i)
      items.push_back(visit(PyList_GET_ITEM(list.get(), i)));
    return emit(Op::Set, 0, items);
  }
  if (PyCell_Check(value)) {
    PyObject* content = PyCell_GET(value);
    return emit(Op::Cell, 0, content ? std::vector{this->value(watch_.content(value))} : std::vector<uint32_t>());
  }
  if (PyFunction_Check(value)) return function((PyFunctionObject*)value);
  if (PyGen_CheckExact(value)) return generator(value);
  if (mg_is_plain_iterator(type)) return iterator(value);
  if (const Watch::Label* made = watch_.label(value)) return label(*made);
  return instance(value);
}

// Where the program itself puts a value that an exit may need, too.
uint32_t Writer::in_program(PyObject* value, Op op, uint32_t index) {
  if (exit_) keep_.push_back(py::Ref::borrow(value));
  return registers_[value] = program_->emit(op, index);
}

uint32_t Writer::older(PyObject* value) {
  older_objects.push_back(value);
  return in_program(value, Op::Older, program_->add_older(value));
}

uint32_t Writer::constant(PyObject* value) { return emit(Op::Constant, program_->add_constant(value)); }

uint32_t Writer::tensor(PyObject* value) {
  std::string why = runtime::tensor_plug().why_not_plain(value);
  if (!why.empty()) return refuse(why);
  if (!watch_.recording->knows(value)) return refuse("a tensor that no recorded operation made");
  outputs.push_back({value});
  uint32_t result = in_program(value, Op::Output, static_cast<uint32_t>(outputs.size() - 1));
  tensors.emplace_back(value, result);
  return result;
}

uint32_t Writer::hold_tensor(PyObject* tensor, size_t node) {
  uint32_t result = in_program(tensor, Op::Argument, static_cast<uint32_t>(node));
  tensors.emplace_back(tensor, result);
  return result;
}

uint32_t Writer::hold_tensor(NodeId id) {
  PyObject* tensor = watch_.provenance[id].value.get();
  keep_.push_back(watch_.provenance[id].value);
  tensors.emplace_back(tensor, node(id));
  return registers_[tensor] = tensors.back().second;
}

void Writer::hold_arguments() {
  if (!has_nodes_) return;
  const guard::Arguments& contents = watch_.contents();
  for (size_t i = 0; i < contents.node_count(); ++i) {
    PyObject* object = contents.seen(i);
    if (!object || contents.node_of(object) != static_cast<int>(i) || registers_.contains(object)) continue;
    if (Py_REFCNT(object) <= references_to(object)) continue;  // the call has dropped it
    if (contents.is_part(i) && !watch_.is_tensor(object) && has_finaliser(Py_TYPE(object)))
      watch_.give_up("an argument holds an object with a finaliser (__del__), which unknown code may drop");
    uint32_t result = in_program(object, Op::Argument, static_cast<uint32_t>(i));
    held_arguments.push_back(object);
    if (watch_.is_tensor(object)) tensors.emplace_back(object, result);
  }
}

// Something that existed before the call: the very same object, provided that a guard pins it.
uint32_t Writer::older_object(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type)
    return constant(value);
  bool is_root = std::any_of(watch_.roots.begin(), watch_.roots.end(), [&](const auto& r) { return r.first == value; });
  if (!is_root && !watch_.guards.pins(value) && !watch_.contents().holds_identity(value))
    return refuse(std::string("a ") + type->tp_name + ", which is not understood");
  return older(value);
}

uint32_t Writer::slice(PySliceObject* value) {
  if (watch_.provenance.holder((PyObject*)value)) return refuse("a slice whose ends may change");
  for (PyObject* part : {value->start, value->stop, value->step})
    if (!guard::is_atom(part)) return refuse("a slice of objects");
  return constant((PyObject*)value);
}

// The i-th value in a container.
uint32_t Writer::item(PyObject* container, Py_ssize_t i, PyObject* object) {
  const Node* holder = watch_.provenance.holder(container);
  return value({object, holder ? holder->items[static_cast<size_t>(i)] : kKnown});
}

std::vector<uint32_t> Writer::list_items(PyObject* list) {
  std::vector<uint32_t> items;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) items.push_back(item(list, i, PyList_GET_ITEM(list, i)));
  return items;
}

std::vector<uint32_t> Writer::dict_items(PyObject* dict) {
  std::vector<uint32_t> items;
  if (PyODict_Check(dict)) {  // its own order, not that of the dict below
    py::Ref iterator = py::Ref::steal(PyODict_Type.tp_iter(dict));
    while (py::Ref key = py::Ref::steal(iterator ? PyIter_Next(iterator.get()) : nullptr)) {
      keep_.push_back(key);
      items.push_back(visit(key.get()));
      items.push_back(visit(PyDict_GetItemWithError(dict, key.get())));
    }
    return items;
  }
  Py_ssize_t position = 0, i = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    items.push_back(visit(key));
    items.push_back(item(dict, i++, value));
  }
  return items;
}

uint32_t Writer::tuple(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  std::vector<uint32_t> items;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) items.push_back(item(value, i, PyTuple_GET_ITEM(value, i)));
  if (type == &PyTuple_Type) return emit(Op::Tuple, 0, items);
  if (PyObject_HasAttrString((PyObject*)type, "n_sequence_fields") || runtime::tensor_plug().is_immutable(type))
    return emit(Op::Struct, program_->add_constant((PyObject*)type), items);
  PyObject** slot = mg_dict_slot(value);
  if (!mg_is_python_class(type) || (slot && *slot && PyDict_GET_SIZE(*slot)))
    return refuse(std::string("a ") + type->tp_name + ", which is not understood");
  return emit(Op::NamedTuple, program_->add_constant((PyObject*)type), items);
}

// One that nobody has renamed or given attributes.
uint32_t Writer::function(PyFunctionObject* value) {
  auto* code = (PyCodeObject*)value->func_code;
  if (mg_has_type_parameters(value)) return refuse("a function with type parameters");
  if (value->func_name != code->co_name || value->func_qualname != code->co_qualname ||
      (value->func_dict && PyDict_GET_SIZE(value->func_dict)))
    return refuse("a function with attributes of its own");
  auto part = [&](PyObject* object) { return object ? visit(object) : program::kNoRegister; };
  std::vector<uint32_t> operands{constant(value->func_globals), part(value->func_defaults),
                                 part(value->func_kwdefaults), part(value->func_annotations),
                                 part(value->func_closure)};
  return emit(Op::Function, program_->add_place({py::Ref::borrow((PyObject*)code), 0}), operands);
}

uint32_t Writer::iterator(PyObject* value) {
  program::IteratorState copy{py::Ref::borrow((PyObject*)Py_TYPE(value)), {}};
  PyObject* parts[MG_ITERATOR_WORDS];
  std::string name = std::string("a ") + Py_TYPE(value)->tp_name;
  if (!mg_iterator_read(value, &copy.state, parts)) return refuse(name + ", which is not understood");
  std::vector<uint32_t> operands;
  for (int i = 0; i < copy.state.part_count; ++i) {
    watch_.own_part(parts[i]);
    // Its position counts the places of the hash table, which are others once it is built anew.
    bool rebuilt = watch_.is_fresh(parts[i]) && !find(parts[i]);
    if (rebuilt && (PySet_Check(parts[i]) || (PyDict_Check(parts[i]) && !is_dense(parts[i]))))
      return refuse(name + " over a container that was changed");
    operands.push_back(visit(parts[i]));
  }
  return emit(Op::Iterator, program_->add_iterator(std::move(copy)), operands);
}

uint32_t Writer::generator(PyObject* value) {
  for (const FrameRun* run : watch_.running)
    if (run->generator() == value) {
      if (!exit_) return refuse("a generator that is running");
      return emit(Op::Generator, program_->add_place({py::Ref::borrow((PyObject*)run->code()), program::kNowhere}),
                  {visit(run->function())});
    }
  bool is_open = std::ranges::find(watch_.open_generators, value) != watch_.open_generators.end();
  if (is_open && !exit_) return refuse("a generator that has a handler or finally clause to run");
  mg_frame* frame = mg_generator_frame(value);
  if (!frame) return refuse("a generator that is over");
  mg_frame_view view;
  mg_frame_read(frame, &view);
  int index = mg_frame_next_instruction(frame);
  const mg_flow* flow = mg_code_flow(view.code);
  if (!flow) PyErr_Clear();
  if (!flow || flow[index].saved >= 0) return refuse("a generator that handles an exception");
  std::vector<uint32_t> operands{visit((PyObject*)view.function)};
  for (PyObject** slot = view.locals; slot < view.stack_pointer; ++slot) {
    NodeId id = watch_.provenance.find_suspended(value, static_cast<size_t>(slot - view.locals), *slot);
    operands.push_back(*slot ? this->value({*slot, id}) : program::kNoRegister);
  }
  return emit(Op::Generator, program_->add_place({py::Ref::borrow((PyObject*)view.code), index}), operands);
}

uint32_t Writer::label(const Watch::Label& label) {
  if (label.is_over) return constant(label.object.get());
  std::vector<uint32_t> args;
  for (const py::Ref& arg : label.args) args.push_back(visit(arg.get()));
  return emit(Op::Make, program_->add_constant(label.function.get()), args);
}

// An object of a Python class that this call made: its items, its __dict__ and its slots.
uint32_t Writer::instance(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  std::string name = std::string("a ") + type->tp_name;
  if (!mg_is_python_class(type)) return refuse(name + ", which is not understood");
  Recipe recipe;
  recipe.type = py::Ref::borrow((PyObject*)type);
  std::vector<uint32_t> operands;
  PyTypeObject* solid = type;
  while (mg_is_python_class(solid)) solid = solid->tp_base;
  if (solid == &PyODict_Type || solid == &PyDict_Type) {
    recipe.base = solid == &PyODict_Type ? Recipe::Base::OrderedDict : Recipe::Base::Dict;
    operands = dict_items(value);
  } else if (solid == &PyList_Type) {
    recipe.base = Recipe::Base::List;
    operands = list_items(value);
  } else if (solid != &PyBaseObject_Type) {
    return refuse(name + ", which is built on " + solid->tp_name);
  }
  recipe.item_count = static_cast<uint32_t>(operands.size());
  PyObject** slot = mg_dict_slot(value);
  Py_ssize_t position = 0;
  PyObject *key, *item;
  while (slot && *slot && PyDict_Next(*slot, &position, &key, &item)) {
    PyObject* descriptor = PyUnicode_Check(key) ? _PyType_Lookup(type, key) : nullptr;
    if (!PyUnicode_Check(key) || (descriptor && Py_TYPE(descriptor)->tp_descr_set))
      return refuse(name + " with an unusual attribute");
    recipe.attributes.push_back(py::Ref::borrow(key));
    operands.push_back(visit(item));
  }
  add_slots(type, value, &recipe, &operands);
  if (!watch_.alive()) return 0;
  return emit(Op::Instance, program_->add_recipe(std::move(recipe)), operands);
}

void Writer::add_slots(PyTypeObject* type, PyObject* value, Recipe* recipe, std::vector<uint32_t>* operands) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = (PyTypeObject*)PyTuple_GET_ITEM(type->tp_mro, i);
    if (!mg_is_python_class(base)) continue;
    Py_ssize_t position = 0;
    PyObject *name, *member;
    while (PyDict_Next(mg_type_dict(base), &position, &name, &member)) {
      if (Py_TYPE(member) != &PyMemberDescr_Type) continue;
      py::Ref content = py::Ref::steal(Py_TYPE(member)->tp_descr_get(member, value, (PyObject*)type));
      if (!content) {  // a slot that was never set
        PyErr_Clear();
        continue;
      }
      keep_.push_back(content);
      recipe->slots.push_back(py::Ref::borrow(member));
      operands->push_back(visit(content.get()));
    }
  }
}

}  // namespace magneto::trace
