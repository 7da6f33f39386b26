// The IR: straight-line tensor work as values and calls of ATen operators.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "graph/schema_info.h"
#include "graph/symbols.h"

namespace magneto::graph {

using ValueId = uint32_t;

enum class Role : uint8_t {
  Argument,   // given at each run
  Parameter,  // a torch.nn.Parameter that existed before
  Buffer,     // any other tensor that existed before
  Constant,   // contents fixed when the graph was made, never written
  Size,       // no tensor but a number: an input that is given at each run, or an output that is worked out
  Result,     // made by an operator
};

constexpr bool is_state(Role role) { return role == Role::Parameter || role == Role::Buffer; }

struct Value {
  Role role;
  c10::ScalarType dtype;
  c10::Device device;
  // As they were when the value came into being; operators such as aten::t_ may change them later. Where they depend
  // on symbols, these are the numbers of the call that was recorded.
  c10::SmallVector<int64_t, 4> sizes;
  c10::SmallVector<int64_t, 4> strides;
  ValueId memory = 0;              // the first value that lives in the same memory; itself if none does
  std::vector<ExprId> shape = {};  // sizes, then strides; empty if none depends on a symbol. Of a Size: the number
  std::string name = {};           // of an argument or state: "x", "layers.0.weight"; may be empty
};

// A tensor among the arguments or the results of an operator: `position`, or item `item` of the list there.
struct TensorRef {
  static constexpr int32_t kWhole = -1;
  uint32_t position;
  int32_t item;
  ValueId value;
};

// An argument that is a list of tensors; items without a TensorRef are absent (None or undefined).
struct TensorList {
  uint32_t position;
  uint32_t size;
  bool optional;  // Tensor?[] instead of Tensor[]
};

// An argument, or an item of a list of numbers, that depends on symbols. The number itself is that of the recorded
// call.
struct SizeRef {
  uint32_t position;
  int32_t item;  // or TensorRef::kWhole
  ExprId expr;
};

// A place in the user's program.
struct Line {
  std::string file;
  int number;
  std::string function;

  bool operator==(const Line&) const = default;
};

struct Op {
  static constexpr uint32_t kNoLine = UINT32_MAX;

  c10::OperatorHandle handle;
  const SchemaInfo* info;         // of `handle`
  std::vector<c10::IValue> args;  // tensors and lists of tensors are None here
  c10::SmallVector<TensorRef, 3> tensors;
  c10::SmallVector<TensorList, 1> lists;
  // A value that is also an argument: the operator returned its own argument.
  c10::SmallVector<TensorRef, 1> results;
  bool grad_mode;      // in force when it ran
  bool below_inplace;  // ran where version counters and views are not kept, as inside an autograd kernel
  bool autocast;       // ran with the autocast that the call began with, which the operators inside its kernel see
  bool inference;      // ran in inference mode, which the call itself turned on
  bool derives;        // autograd took part, which a run has to let it do again
  bool shared_cast = false;  // autocast's cast of a parameter, which all in the block of autocast share
  // The number that the operator returned, on which everything after it relies; None for operators that return tensors.
  c10::IValue expected = {};
  std::vector<SizeRef> sizes = {};
  uint32_t line = kNoLine;  // in Graph::lines
};

struct Graph {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<ValueId> inputs;
  std::vector<ValueId> states;
  std::vector<ValueId> constants;
  std::vector<at::Tensor> constant_tensors;  // parallel to `constants`
  std::vector<ValueId> outputs;
  std::vector<Line> lines;
  std::shared_ptr<Symbols> symbols;  // null if nothing is symbolic
  std::thread::id ran_on;            // where the operators ran while they were recorded; no thread: nowhere

  ValueId add_value(Role role, const at::Tensor& tensor);
  ValueId add_size(ExprId number, std::string name = {});
};

// Uses a constant itself instead of a fresh copy of it where nothing can tell them apart.
void fold_constant_copies(Graph& graph);

// Whether two numbers have the same type and the same bits.
bool same_number(const c10::IValue& a, const c10::IValue& b);

// Whether running the operator changes anything beside its own results and the memory of earlier ones: it writes memory
// that an input, a state tensor or a constant lives in, or it draws random numbers.
bool has_effect(const Graph& graph, const Op& op);

// Drops operators whose results nobody uses, that have no effect, and that cannot raise an error either.
void remove_dead_ops(Graph& graph);

// "%5: f32[2, 8] = aten.linear(%1, %2, %3)", one line per input, state, constant and operator.
enum class Style : uint8_t {
  Exact,      // everything; can be parsed
  Short,      // without the contents of large constants
  Structure,  // equal for graphs that do the same work: no names, no source lines, values numbered in order
  Picture,    // for labels
};
std::string to_text(const Graph& graph, Style style = Style::Exact);
std::string to_text(const Graph& graph, const Op& op);
std::string to_text(const Graph& graph, const Value& value);  // "f32[s0, 8]"
std::string to_text(const Value& value);                      // "f32[2, 8]", the numbers of the recorded call
// The inverse of to_text. A constant without contents takes the next one of `contents`. UserError with line and column.
Graph parse(std::string_view text, const std::vector<at::Tensor>& contents = {});

// Of the operators, their arguments, how values are made and used, and the contents of constants; 40 hexadecimal
// digits, the same in every process.
std::string structural_hash(const Graph& graph);

// Drawings: for Graphviz, and laid out already.
std::string to_dot(const Graph& graph);
std::string to_svg(const Graph& graph);

// What is wrong: a value that is used before it is made or made twice, an index out of range, an argument that the
// schema does not take, ...; empty if nothing is.
std::string find_fault(const Graph& graph);
// InternalError if there is a fault.
void verify(const Graph& graph);

}  // namespace magneto::graph
