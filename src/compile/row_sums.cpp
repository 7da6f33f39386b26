// Which sums are split, and into how many.
#include "compile/row_sums.h"

#include "codegen/kernel.h"
#include "compile/rebuild.h"

namespace magneto::compile {
namespace {

using graph::Graph;
using graph::Op;
using graph::Value;
using graph::ValueId;

constexpr int64_t kFewest = 1 << 16;  // elements: a smaller sum is done at once
constexpr int64_t kShortest = 256, kLongest = 4096;

// The length of the rows that sizes ending with `last` are cut into; 0: of no good length.
int64_t row_length(int64_t last) {
  for (int64_t parts = (last + kLongest - 1) / kLongest; parts * kShortest <= last; ++parts) {
    if (last % parts == 0) return last / parts;
  }
  return 0;
}

bool is_made_in_a_loop(const Graph& graph, const std::vector<uint32_t>& producers, ValueId id) {
  uint32_t producer = producers[id];
  return producer != codegen::kNoOp && codegen::kind_of(graph, graph.ops[producer]) == codegen::Kind::Pointwise;
}

bool split(Rebuild& rebuild, const std::vector<uint32_t>& producers, const Op& op) {
  bool is_mean = op.info->name == "aten::mean";
  if ((!is_mean && op.info->name != "aten::sum") || !op.args[1].isNone()) return false;
  ValueId whole = op.tensors[0].value;
  const Value& value = rebuild.from.values[whole];
  bool exact = value.dtype == c10::ScalarType::Float || value.dtype == c10::ScalarType::Double;
  int64_t count = codegen::product(value.sizes);
  if (!exact || count < kFewest || !is_made_in_a_loop(rebuild.from, producers, whole)) return false;
  int64_t length = row_length(value.sizes.back());
  if (!length) return false;

  Builder& builder = rebuild.builder;
  std::vector<c10::SymInt> sizes(value.sizes.begin(), value.sizes.end());
  sizes.back() = value.sizes.back() / length;
  sizes.emplace_back(length);
  Op rows = op_like(op, "aten::view");
  put(rows, 0, rebuild.now(whole));
  builder.set(rows, 1, sizes);
  Op sums = op_like(op, "aten::sum", "dim_IntList");
  put(sums, 0, builder.add(std::move(rows)));
  builder.set(sums, 1, std::vector<c10::SymInt>{-1});
  Op sum = op_like(op, "aten::sum");
  put(sum, 0, builder.add(std::move(sums)));
  ValueId made = builder.add(std::move(sum));
  if (is_mean) {
    Op share = op_like(op, "aten::mul", "Scalar");
    put(share, 0, made);
    share.args[1] = 1.0 / static_cast<double>(count);
    made = builder.add(std::move(share));
  }
  rebuild.replace(op.results[0].value, made);
  return true;
}

}  // namespace

Graph with_row_sums(Graph graph) {
  std::vector<uint32_t> producers = codegen::producers(graph);
  return rebuilt(std::move(graph), [&](Rebuild& rebuild, const Op& op) { return split(rebuild, producers, op); });
}

}  // namespace magneto::compile
