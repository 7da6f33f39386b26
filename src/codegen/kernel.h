// Kernels of our own: what to compile, and how it is launched.
#pragma once
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "codegen/index.h"
#include "graph/graph.h"

namespace magneto::codegen {

inline constexpr int64_t kMostElements = INT32_MAX / 2;  // of a tensor: offsets are ints

// Operators of a graph that become one kernel. It goes through `rows` times `columns` elements. Reductions go along the
// columns, with all threads of a row together.
struct Cluster {
  std::vector<uint32_t> ops;  // in the order of the graph; views are looked through, and not listed
  std::vector<graph::ValueId> outputs;
  bool reduces = false;
  int64_t columns = 0;  // if it reduces
};

// How an output lies in memory.
struct Layout {
  c10::ScalarType dtype;
  Sizes sizes, strides;
};

struct Kernel {
  std::string body;  // of the function: equal for kernels that do the same
  std::string parameters;
  std::vector<graph::ValueId> inputs;  // in the order of the parameters; outputs follow
  std::vector<graph::ValueId> outputs;
  std::vector<Layout> layouts;  // of the outputs
  uint32_t blocks = 0, threads = 0;
  int64_t scratch = 0;           // floats, for what blocks tell each other: the next parameter, if there are any
  std::vector<int64_t> numbers;  // the last parameters
};

// What writers and those who form clusters agree about.
enum class Kind : uint8_t {
  None,       // stays an operator
  View,       // reads memory in another way
  Pointwise,  // computes each element from those at the same place
  Gather,     // takes each element from another place (cat, slice_backward), or makes it from nothing (full)
  Reduction,  // computes along the last dimensions
};
Kind kind_of(const graph::Graph& graph, const graph::Op& op);
// Along how many elements a reduction goes.
int64_t reduced_size(const graph::Graph& graph, const graph::Op& op);

bool is_contiguous(const graph::Value& value);

// By value: the operator that makes it.
std::vector<uint32_t> producers(const graph::Graph& graph);
inline constexpr uint32_t kNoOp = UINT32_MAX;

// None: the cluster cannot be written as one kernel.
std::optional<Kernel> write_kernel(const graph::Graph& graph, const std::vector<uint32_t>& producers,
                                   const Cluster& cluster);
// Whether it can, which is less to find out.
bool can_write(const graph::Graph& graph, const std::vector<uint32_t>& producers, const Cluster& cluster);
// A kernel that does a sum along the first dimensions faster than torch; none: the operator is no such sum.
std::optional<Kernel> write_column_sum(const graph::Graph& graph, const graph::Op& op);
// For the operators that batch norms are split into.
std::optional<Kernel> write_batch_sums(const graph::Graph& graph, const graph::Op& op);

// An operator that makes few numbers from one tensor that a run is given, and a kernel for many of them.
bool is_small_work(const graph::Graph& graph, const graph::Op& op);
Kernel write_small_work(const graph::Graph& graph, const std::vector<uint32_t>& ops);

}  // namespace magneto::codegen
