// A residual program: what is left of a watched call once everything that guards pin down has been folded away.
//
// Instructions over registers, run in order by `run`. In the skeleton a program is one segment of tensor work followed
// by the instructions that build the result.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpython/ref.h"
#include "guard/arguments.h"
#include "runtime/tensor_plug.h"

namespace magneto::program {

enum class Op : uint8_t {
  Argument,    // index: the node of guard::Arguments
  Constant,    // index: into the constants
  Older,       // index: into the objects that guards vouch for
  Output,      // index: of the segment's outputs
  Tuple,       // operands: items
  List,        // operands: items
  Dict,        // operands: key, value, key, value, ...
  Set,         // operands: items
  NamedTuple,  // index: the constant that holds the type; operands: items
  Struct,      // index: the constant that holds the type (torch.return_types); operands: items
  Instance,    // index: the recipe; operands: the values it asks for
};

struct Instruction {
  Op op;
  uint32_t index;
  uint32_t first_operand, operand_count;  // registers, in the operand pool
};

// How to make an object of a Python class again from its state, without calling its constructor.
struct Recipe {
  py::Ref type;
  enum class Base : uint8_t { Object, Dict, OrderedDict, List } base = Base::Object;
  uint32_t item_count = 0;          // operands first: items of a list, or keys and values of a dict
  std::vector<py::Ref> attributes;  // then one value per entry of __dict__
  std::vector<py::Ref> slots;       // then one value per __slots__ descriptor
};

class Program {
 public:
  // Register i holds the result of instruction i; the last one is the result of the call.
  uint32_t emit(Op op, uint32_t index, const std::vector<uint32_t>& operands = {});
  uint32_t add_constant(PyObject* value);
  // An object that lived before the call. It is not kept alive: guards vouch for it before each run.
  uint32_t add_older(PyObject* object);
  uint32_t add_recipe(Recipe recipe);
  void set_segment(std::unique_ptr<runtime::Segment> segment) { segment_ = std::move(segment); }
  const runtime::Segment& segment() const { return *segment_; }

  // `arguments` are the values of the argument nodes, `tensors` the inputs of the segment. Null: error set.
  PyObject* run(PyObject* const* arguments, PyObject* const* tensors) const;
  std::string text() const;
  int traverse(visitproc visit, void* arg) const;

 private:
  PyObject* build(const Instruction& instruction, PyObject* const* registers) const;
  PyObject* build_instance(const Recipe& recipe, const uint32_t* operands, PyObject* const* registers) const;

  std::unique_ptr<runtime::Segment> segment_;
  std::vector<Instruction> instructions_;
  std::vector<uint32_t> operands_;
  std::vector<py::Ref> constants_;
  std::vector<PyObject*> older_;
  std::vector<Recipe> recipes_;
};

}  // namespace magneto::program
