// Many small operators in one kernel, such as the casts of all biases of a model: each of its blocks works for one.
#include <algorithm>

#include "codegen/formulas.h"
#include "codegen/kernel.h"
#include "codegen/scalars.h"

namespace magneto::codegen {
namespace {

using graph::Value;

constexpr int kThreads = 256;
constexpr int64_t kLargest = 1 << 14;  // larger ones fill the GPU by themselves

bool is_given(graph::Role role) { return role == graph::Role::Argument || graph::is_state(role); }

// The one tensor that it takes; null if there are others. Numbers do not count.
const graph::TensorRef* only_tensor(const graph::Graph& graph, const graph::Op& op) {
  const graph::TensorRef* only = nullptr;
  for (const graph::TensorRef& tensor : op.tensors) {
    if (host_number(graph, tensor.value)) continue;
    if (only) return nullptr;
    only = &tensor;
  }
  return only;
}

// A place in all of the work: where an operator's begins, and what it does.
struct Part {
  int64_t start, count;
  std::string text;
};

// The part that element `e` belongs to, found by halving.
std::string choice(const std::vector<Part>& parts, size_t from, size_t to, const std::string& indent) {
  if (to - from == 1) {
    const Part& part = parts[from];
    return indent + "const int i = e - " + std::to_string(part.start) + ";\n" + indent + "if (i < " +
           std::to_string(part.count) + ") " + part.text + "\n";
  }
  size_t middle = (from + to) / 2;
  return indent + "if (e < " + std::to_string(parts[middle].start) + ") {\n" +
         choice(parts, from, middle, indent + "  ") + indent + "} else {\n" + choice(parts, middle, to, indent + "  ") +
         indent + "}\n";
}

}  // namespace

bool is_small_work(const graph::Graph& graph, const graph::Op& op) {
  const graph::TensorRef* taken = kind_of(graph, op) == Kind::Pointwise ? only_tensor(graph, op) : nullptr;
  if (!taken) return false;
  const Value &from = graph.values[taken->value], &to = graph.values[op.results[0].value];
  return is_given(from.role) && is_contiguous(from) && is_contiguous(to) && from.sizes == to.sizes &&
         product(to.sizes) <= kLargest;
}

Kernel write_small_work(const graph::Graph& graph, const std::vector<uint32_t>& ops) {
  Kernel kernel;
  std::vector<Part> parts;
  std::string outputs;
  int64_t start = 0;
  for (uint32_t index : ops) {
    const graph::Op& op = graph.ops[index];
    graph::ValueId input = only_tensor(graph, op)->value, output = op.results[0].value;
    const Value &from = graph.values[input], &to = graph.values[output];
    std::string number = std::to_string(parts.size());
    auto as = [](const Value& value) {
      return std::string("As<") + memory_type(value.dtype) + ", " + value_type(value.dtype) + ">::";
    };
    auto converted = [](const std::string& text, c10::ScalarType from, c10::ScalarType to) {
      return from == to ? text : rounded(convert(text, from, to), to);
    };
    Computed made = compute(graph, op, [&](const graph::TensorRef&, c10::ScalarType type) {
      return converted(as(from) + "get(p" + number + "[i])", from.dtype, type);
    });
    std::string result = rounded(convert("(" + made.text + ")", made.type, to.dtype), to.dtype);
    int64_t count = product(to.sizes);
    parts.push_back({start, count, "q" + number + "[i] = " + as(to) + "put(" + result + ");"});
    start += (count + kThreads - 1) / kThreads * kThreads;
    kernel.parameters += std::string("const ") + memory_type(from.dtype) + "* __restrict__ p" + number + ", ";
    outputs += (outputs.empty() ? "" : ", ") + std::string(memory_type(to.dtype)) + "* __restrict__ q" + number;
    kernel.inputs.push_back(input);
    kernel.outputs.push_back(output);
    kernel.layouts.push_back({to.dtype, Sizes(to.sizes), Sizes(to.strides)});
  }
  kernel.parameters += outputs;
  kernel.body = "  const int e = blockIdx.x * THREADS(" + std::to_string(kThreads) + ") + threadIdx.x;\n" +
                choice(parts, 0, parts.size(), "  ");
  kernel.threads = kThreads;
  kernel.blocks = static_cast<uint32_t>(start / kThreads);
  return kernel;
}

}  // namespace magneto::codegen
