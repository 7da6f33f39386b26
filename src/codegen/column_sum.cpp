// Sums along the first dimensions: a lane of a warp for each column, whose rows the warps of a block share.
#include "codegen/formulas.h"
#include "codegen/kernel.h"

namespace magneto::codegen {
namespace {

constexpr int kLanes = 32, kGroups = 32;
// With more rows it would pay to let several blocks share them, with fewer columns most of the GPU would idle.
constexpr int64_t kFewestRows = 64, kMostRows = 4096, kFewestColumns = 512;

// How many dimensions it sums along, if these are the first ones; 0 otherwise.
size_t summed_dimensions(const graph::Op& op, size_t rank) {
  if (op.args[1].isNone()) return 0;
  const auto& dimensions = op.args[1].toListRef();
  std::vector<bool> along(rank, false);
  for (const c10::IValue& item : dimensions) {
    int64_t dimension = item.toInt();
    along[static_cast<size_t>(dimension < 0 ? dimension + static_cast<int64_t>(rank) : dimension)] = true;
  }
  for (size_t i = 0; i < dimensions.size(); ++i) {
    if (!along[i]) return 0;
  }
  return dimensions.size();
}

}  // namespace

std::optional<Kernel> write_column_sum(const graph::Graph& graph, const graph::Op& op) {
  if (op.info->name != "aten::sum.dim_IntList" || op.derives || !op.sizes.empty() || !op.args[3].isNone()) return {};
  const graph::Value &x = graph.values[op.tensors[0].value], &sum = graph.values[op.results[0].value];
  size_t along = summed_dimensions(op, x.sizes.size());
  bool known = is_known(x.dtype) && c10::isFloatingType(x.dtype) && x.dtype == sum.dtype && x.device == sum.device;
  if (!along || !known || !is_contiguous(x) || !is_contiguous(sum)) return {};
  int64_t rows = product(c10::IntArrayRef(x.sizes).slice(0, along));
  int64_t columns = product(c10::IntArrayRef(x.sizes).slice(along));
  if (rows < kFewestRows || rows > kMostRows || columns < kFewestColumns || rows * columns > kMostElements) return {};

  std::string memory = memory_type(x.dtype), type = value_type(x.dtype), as = "As<" + memory + ", " + type + ">";
  std::string width = std::to_string(columns);
  Kernel kernel;
  kernel.parameters = "const " + memory + "* __restrict__ p0, " + memory + "* __restrict__ q0";
  kernel.body = "  enum { L = THREADS(" + std::to_string(kLanes) + "), G = THREADS(" + std::to_string(kGroups) +
                ") };\n  const int c = blockIdx.x * L + threadIdx.x % L, g = threadIdx.x / L;\n  " + type +
                " a = 0;\n  if (c < " + width + ") {\n#pragma unroll 8\n    for (int r = g; r < " +
                std::to_string(rows) + "; r += G) a += " + as + "::get(p0[r * " + width +
                " + c]);\n  }\n  a = over_groups<G>(a);\n  if (g == 0 && c < " + width + ") q0[c] = " + as +
                "::put(a);\n";
  kernel.inputs = {op.tensors[0].value};
  kernel.outputs = {op.results[0].value};
  kernel.layouts = {{sum.dtype, Sizes(sum.sizes), Sizes(sum.strides)}};
  kernel.blocks = static_cast<uint32_t>((columns + kLanes - 1) / kLanes);
  kernel.threads = kLanes * kGroups;
  return kernel;
}

}  // namespace magneto::codegen
