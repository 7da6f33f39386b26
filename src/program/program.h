// A residual program: what is left of a watched call once everything that guards pin down has been folded away.
//
// Instructions over registers, in two parts. The first has no effect: it reads what is only known when the program
// runs, computes with it, and checks what the call relied on. A run that fails there, or in the tensor work that
// follows, has *diverged*: nothing has happened, and the call can be made in another way. The second part builds
// objects and changes the world, in the order in which the call did.
//
// A program ends with the result of the call, or with a *cut*: a call of something unknown, which may change anything.
// Behind it another program goes on, under guards of its own. If none fits, the frames of the call are put back as they
// stood after the cut, and CPython goes on from there.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "guard/arguments.h"
#include "guard/trie.h"
#include "runtime/tensor_plug.h"

namespace magneto::program {

enum class Op : uint8_t {
  // Without effect, before the tensor work.
  Argument,            // index: the node of guard::Arguments
  Older,               // index: into the objects that guards vouch for
  Constant,            // index: into the constants
  LoadKey,             // operands: a dict; index: the constant that is the key
  LoadCell,            // operands: a cell
  LoadItem,            // operands: a tuple; index: which of its items
  Unary,               // index: into kOperators; operands: a number
  Binary,              // index: into kOperators; operands: two numbers
  Compare,             // index: Py_LT and so on; operands: two numbers
  CheckType,           // operands: a value; index: the constant that is its type
  CheckTruth,          // operands: a value; index: whether it is true
  CheckSame,           // operands: a value; index: the constant that it must be
  CheckLength,         // operands: a tuple; index: how many items it must have
  CheckDrop,           // operands: a container and perhaps a key; index: how many references are ours (guard/deaths.h)
  CheckDropAttribute,  // the same for an object and the name of an attribute
  // Afterwards.
  Output,           // index: of the segment's outputs
  Tuple,            // operands: items
  List,             // operands: items
  Dict,             // operands: key, value, key, value, ...
  Set,              // operands: items
  NamedTuple,       // index: the constant that holds the type; operands: items
  Struct,           // index: the constant that holds the type (torch.return_types); operands: items
  Instance,         // index: the recipe; operands: the values it asks for
  Cell,             // operands: the content, if any
  Method,           // operands: a function and the object it is bound to
  BoundMethod,      // the same for a method that is written in C
  Function,         // index: the code; operands: globals, defaults, keyword defaults, annotations, closure, or none
  Iterator,         // index: its state; operands: what it refers to
  Generator,        // index: where it is suspended, or nowhere: a frame will be its own; operands: the function, slots
  Make,             // index: the constant that is a function; operands: its arguments
  SetAttribute,     // operands: an object and the value; index: the constant that is the name
  DeleteAttribute,  // operands: an object; index: the constant that is the name
  SetItem,          // operands: a container, a key and the value
  DeleteItem,       // operands: a container and a key
  SetCell,          // operands: a cell and the value; without a value the cell is emptied
  Call,             // index: the constant that is a C function; operands: its arguments
};

constexpr bool is_check(Op op) { return op >= Op::CheckType && op < Op::Output; }

struct Instruction {
  Op op;
  uint32_t index;
  uint32_t first_operand, operand_count;  // registers, in the operand pool
  uint32_t result;                        // the register that it fills, if it has a result

  bool operator==(const Instruction&) const = default;
};

// Instructions in an order in which they may as well run.
struct Steps {
  std::vector<std::pair<uint32_t, PyObject*>> fetched;  // first registers are filled with constants and older objects
  std::vector<Instruction> others;
};

// How to make an object of a Python class again from its state, without calling its constructor.
struct Recipe {
  py::Ref type;
  enum class Base : uint8_t { Object, Dict, OrderedDict, List } base = Base::Object;
  uint32_t item_count = 0;          // operands first: items of a list, or keys and values of a dict
  std::vector<py::Ref> attributes;  // then one value per entry of __dict__
  std::vector<py::Ref> slots;       // then one value per __slots__ descriptor

  bool operator==(const Recipe&) const = default;
};

constexpr uint32_t kNoRegister = UINT32_MAX;  // as an operand: nothing

// An iterator between two items.
struct IteratorState {
  py::Ref type;
  mg_iterator state;

  bool operator==(const IteratorState& other) const {
    return type == other.type && std::memcmp(&state, &other.state, sizeof state) == 0;
  }
};

constexpr int32_t kNowhere = -1;

// Code, and an instruction of it.
struct CodePlace {
  py::Ref code;
  int32_t index;

  bool operator==(const CodePlace&) const = default;
};

// A frame of the call, to be put back.
struct FrameState {
  uint32_t function;
  CodePlace at;                      // the instruction that comes next; in outer frames, the call that is under way
  std::vector<uint32_t> slots;       // locals, then the stack; kNoRegister: empty
  uint32_t generator = kNoRegister;  // whose frame it is
  uint32_t made = kNoRegister;       // the object, if the frame further in is of its __init__

  bool operator==(const FrameState&) const = default;
};

// Where CPython can take over.
struct Exit {
  std::vector<Instruction> build;  // what only the frames need
  std::vector<FrameState> frames;  // outermost first

  bool operator==(const Exit&) const = default;
};

class Program;
class Memo;

// Arguments that must not be one of these objects, because the program changes one or the other.
struct Apart {
  std::vector<uint32_t> nodes;     // of guard::Arguments
  std::vector<PyObject*> objects;  // sorted; guards vouch for them

  bool operator==(const Apart&) const = default;
};

// What objects in registers have to hold, behind a call that may have changed them. In this program, argument nodes are
// those of `contents`.
struct Known {
  std::shared_ptr<const guard::Arguments> contents;
  std::vector<uint32_t> roots;                       // the registers
  std::vector<std::pair<uint32_t, uint32_t>> again;  // nodes that are what is in a register

  bool operator==(const Known& other) const {
    return roots == other.roots && again == other.again && contents->same_as(*other.contents);
  }
};

// A program that goes on behind a cut.
struct Stretch : guard::Entry {
  Stretch();
  ~Stretch() override;
  int traverse(visitproc visit, void* arg) const override;
  std::unique_ptr<Program> program;
};

struct Cut {
  uint32_t callable = kNoRegister;  // or none: CPython goes on
  std::vector<uint32_t> arguments;
  py::Ref keyword_names;  // or null
  uint32_t result = kNoRegister;
  bool is_question = false;  // to a tensor: no code runs that could look at frames or drop objects
  Exit before, after;
  guard::Trie next;                             // from guards to what may follow
  std::vector<guard::Held<Stretch>> stretches;  // all of these

  // Makes the same call, with the same exits, whatever follows.
  bool same_as(const Cut& other) const;
};

enum class End : uint8_t {
  Returned,
  Raised,    // the error that is set
  Diverged,  // without any effect
  Failed,    // an operator of the segment raised the error that is set; apart from that, nothing has happened
  Left,      // returned or raised, but CPython ran the rest of the call: nothing that follows a cut did fit
};

// Why no program that follows a cut fits.
struct Misfit {
  std::string why;
  bool is_numeric = false;  // a number, or the size of a tensor, is another one than before
};

class Program {
 public:
  // `before`: it goes on behind that one, whose registers it shares.
  explicit Program(const Program* before = nullptr);
  ~Program();

  // The register that holds the result.
  uint32_t emit(Op op, uint32_t index, const std::vector<uint32_t>& operands = {});
  // The same, if CPython takes over there.
  uint32_t emit(Exit* exit, Op op, uint32_t index, const std::vector<uint32_t>& operands = {});
  size_t size() const { return before_.size() + after_.size(); }  // in instructions
  uint32_t new_register() { return registers_++; }
  uint32_t register_count() const { return registers_; }  // with those of the programs before
  uint32_t add_constant(PyObject* value);
  // An object that lived before the call. It is not kept alive: guards vouch for it before each run.
  uint32_t add_older(PyObject* object);
  uint32_t add_recipe(Recipe recipe);
  uint32_t add_iterator(IteratorState iterator);
  uint32_t add_place(CodePlace place);
  void set_segment(std::unique_ptr<runtime::Segment> segment);
  // That do anything, with those behind the cuts.
  std::vector<runtime::Segment*> segments() const;
  // The registers that hold the inputs of the segment; otherwise these are the tensors among the arguments.
  // `checked`: the tensors among them that `checks` are for, which may be null.
  void set_segment_inputs(std::vector<uint32_t> inputs, std::vector<uint32_t> checked,
                          std::unique_ptr<runtime::TensorChecks> checks) {
    segment_inputs_ = std::move(inputs);
    checked_inputs_ = std::move(checked);
    input_checks_ = std::move(checks);
  }
  void set_known(Known known) { known_ = std::make_unique<Known>(std::move(known)); }
  void keep_apart(Apart apart);
  // What unknown code returned has to be the object that is in this other register.
  void must_be_same(uint32_t returned, uint32_t known) { same_.emplace_back(returned, known); }
  void set_result(uint32_t result) { result_ = result; }
  void set_cut(std::unique_ptr<Cut> cut) { cut_ = std::move(cut); }
  Cut* cut() const { return cut_.get(); }
  // Does the same, up to and with its cut.
  bool same_as(const Program& other) const;

  // `arguments` are the values of the argument nodes, `tensors` those among them. `why_left` may be null.
  PyObject* run(PyObject* const* arguments, PyObject* const* tensors, End* end, Misfit* why_left) const;
  // The result, if an earlier run has found that there is nothing else to do now; borrowed, or null.
  PyObject* plain_result() const { return plain_result_ && is_as_in_last_run() ? plain_result_ : nullptr; }
  // Where there is a listing, that of the listings.
  std::string text() const;
  // Its instructions in words, each with the register that is its own, and how it ends.
  using NameOf = std::function<std::string(PyObject*)>;  // of an older object
  std::vector<std::pair<uint32_t, std::string>> lines(const NameOf& name_of) const;
  std::vector<std::string> end_lines() const;
  void set_listing(std::string listing) { listing_ = std::move(listing); }
  int traverse(visitproc visit, void* arg) const;

 private:
  class Registers;
  bool match_known(Registers& registers, std::vector<PyObject*>* values) const;
  bool finds_again(const std::vector<PyObject*>& values, PyObject* const* registers) const;
  bool is_apart(PyObject* const* arguments) const;
  bool are_same(PyObject* const* registers) const {
    return std::ranges::all_of(same_, [&](auto pair) { return registers[pair.first] == registers[pair.second]; });
  }
  PyObject* find_plain_result(PyObject* const* registers) const;
  bool is_as_in_last_run() const;
  bool prepare(const Instruction& instruction, PyObject* const* arguments, PyObject** registers) const;
  Steps steps_of(const std::vector<Instruction>& instructions) const;
  bool prepare_all(const Steps& steps, PyObject* const* arguments, PyObject** registers) const;
  PyObject** prepare_all(PyObject* const* arguments, Registers& registers) const;
  // False: diverged, or an error is set.
  bool run_segment(PyObject* const* tensors, PyObject* const* registers, Registers& outputs) const;
  // What nodes of arguments stand for, borrowed.
  struct Nodes {
    PyObject* const* values;
    std::vector<PyObject*> own;  // those of a program that has its own
  };
  // `diverges`: in any case, once all is checked.
  End run_stretch(Nodes& nodes, PyObject* const* tensors, Registers& registers, bool diverges = false) const;
  PyObject* make_call(Registers& registers) const;
  int put_up_frames(PyThreadState* thread, Registers& registers) const;
  const Program* run_next(Nodes& nodes, PyObject* const* tensors, Registers& registers, bool diverges, End* end) const;
  Misfit why_nothing_fits(const Nodes& nodes, Registers& registers) const;
  Misfit why_it_diverges(const Nodes& nodes, Registers& registers) const;
  bool holds_back_a_death(Registers& registers) const;
  PyObject* leave(const Exit& exit, Registers& registers) const;
  bool change(const Instruction& instruction, PyObject* const* registers) const;
  PyObject* build(const Instruction& instruction, PyObject* const* registers) const;
  PyObject* build_function(const CodePlace& place, const uint32_t* operands, PyObject* const* registers) const;
  PyObject* build_generator(const Instruction& instruction, PyObject* const* registers) const;
  PyObject* build_instance(const Recipe& recipe, const uint32_t* operands, PyObject* const* registers) const;
  std::string text(const Instruction& instruction) const;
  std::string plain_text() const;
  Instruction add(Op op, uint32_t index, const std::vector<uint32_t>& operands);

  friend class Memo;
  std::unique_ptr<runtime::Segment> segment_;
  bool has_tensor_work_ = false;
  std::vector<uint32_t> segment_inputs_, checked_inputs_;
  std::unique_ptr<runtime::TensorChecks> input_checks_;  // of the latter
  std::unique_ptr<Known> known_;                         // or null
  std::vector<Apart> apart_;
  std::vector<std::pair<uint32_t, uint32_t>> same_;  // registers that hold one object
  std::unique_ptr<Cut> cut_;
  std::vector<Instruction> before_, after_;
  std::vector<uint32_t> older_registers_;  // of older objects, with those of the programs before
  std::vector<uint32_t> operands_;
  uint32_t registers_ = 0, result_ = 0;
  std::vector<py::Ref> constants_;
  std::vector<uint32_t> constant_registers_;  // by constant; kNoRegister: none yet
  std::vector<PyObject*> older_;
  std::vector<Recipe> recipes_;
  std::vector<IteratorState> iterators_;
  std::vector<CodePlace> places_;
  std::string listing_;
  // Made by the first run; belong to the GIL.
  mutable std::unique_ptr<Steps> steps_;  // of `before_`
  mutable std::unique_ptr<Memo> memo_;
  mutable bool has_memo_ = true;              // of use, or will have one
  mutable PyObject* plain_result_ = nullptr;  // what is left of the last run, as long as the memo holds
};

}  // namespace magneto::program
