// Two sums of each column at once, as batch norms need them. Blocks share the rows; the one that comes last adds up
// what all of them have found. One function does for tensors of many sizes, since it takes long to compile.
#include <algorithm>
#include <bit>

#include "codegen/formulas.h"
#include "codegen/kernel.h"

namespace magneto::codegen {
namespace {

using graph::Op;
using graph::Value;
using std::string;
using std::to_string;

constexpr int64_t kLanes = 32, kThreads = 256;
constexpr int64_t kBlocks = 256;        // fill a GPU
constexpr int64_t kFewestRowsEach = 4;  // of a thread
constexpr int64_t kMostColumns = 1 << 13;

// What is added up, as `a[j]` and `a[V + j]` for each of V columns, and what becomes of the sums `first` and `second`
// of column `c`: numbers, and the results that are made of them.
struct Text {
  string before, in_row, after;
  std::vector<string> results;
};

const char* const kBody = R"(
  enum { T = L * G, W = 2 * V * L, Q = W / 4, D = Q < L ? L : Q < T ? Q : T, H = T / D };
  const int R = rows, C = columns, P = number_of_parts, CB = (C + L * V - 1) / (L * V);
  SHARED float sums[G][W];
  SHARED bool is_last;
  static unsigned arrived[MOST];
  const int b = blockIdx.x % CB, part = blockIdx.x / CB, l = threadIdx.x % L, g = threadIdx.x / L;
  const int c0 = (b * L + l) * V;
  if (part >= P) return;
  float a[2 * V];
#pragma unroll
  for (int j = 0; j < 2 * V; ++j) a[j] = 0;
  if (c0 < C) {
$before#pragma unroll 4
    for (int r = part * G + g; r < R; r += P * G) {
$in_row    }
  }
#pragma unroll
  for (int j = 0; j < 2 * V; ++j) sums[g][j * L + l] = a[j];
  wait();
  for (int w = threadIdx.x; w < W; w += T) {
    float x = 0;
    for (int i = 0; i < G; ++i) x += sums[i][w];
    parts[(part * CB + b) * W + w] = x;
  }
  publish();
  wait();
  if (threadIdx.x == 0) is_last = arrive(&arrived[b]) == P - 1;
  wait();
  if (!is_last) return;
  if (threadIdx.x == 0) arrived[b] = 0;
  for (int q = threadIdx.x % D; q < Q; q += D) {
    float x[4] = {0, 0, 0, 0}, y[4];
#pragma unroll 8
    for (int i = threadIdx.x / D; i < P; i += H) {
      load_latest(y, parts + (i * CB + b) * W + q * 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] += y[k];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[threadIdx.x / D][q * 4 + k] = x[k];
  }
  wait();
  for (int w = threadIdx.x; w < L * V; w += T) {
    const int c = (b * L + w % L) * V + w / L;
    if (c >= C) continue;
    float first = 0, second = 0;
    for (int i = 0; i < H; ++i) {
      first += sums[i][w];
      second += sums[i][w + L * V];
    }
$after  }
)";

const Value& tensor(const graph::Graph& graph, const Op& op, uint32_t position) {
  return graph.values[std::ranges::find(op.tensors, position, &graph::TensorRef::position)->value];
}

string get(const Value& value, const string& element) {
  return string("As<") + memory_type(value.dtype) + ", float>::get(" + element + ")";
}

// (rows, mean, variance, momentum, eps) -> mean, inverse deviation, and the same two as running statistics. What the
// first row has is taken away from all others, so that large means leave small variances as they are.
Text moments(const graph::Graph& graph, const Op& op) {
  auto number = [&](uint32_t position) { return literal(op.args[position].toScalar(), c10::ScalarType::Float); };
  string start = "origin(" + get(tensor(graph, op, 0), "p0[c]") + ")";
  return {
      "    float x[V], start[V];\n    load<V>(start, p0 + c0);\n#pragma unroll\n"
      "    for (int j = 0; j < V; ++j) start[j] = origin(start[j]);\n",
      "      load<V>(x, p0 + r * C + c0);\n#pragma unroll\n      for (int j = 0; j < V; ++j) {\n"
      "        const float d = x[j] - start[j];\n        a[j] += d;\n        a[V + j] += d * d;\n      }\n",
      "    const float share = 1.0f / R, shift = first * share, mean = " + start +
          " + shift, variance = larger((second - first * shift) * share, 0.0f);\n",
      {"mean", "rsqrtf(variance + " + number(4) + ")", "(1 - " + number(3) + ") * p1[c] + " + number(3) + " * mean",
       "(1 - " + number(3) + ") * p2[c] + " + number(3) + " * (variance * R / (R - 1.0f))"}};
}

// (gradient, rows, mean, inverse deviation) -> sums of the gradient, and of its products with the normal rows.
Text gradients() {
  return {"    float dy[V], x[V], mean[V];\n    load<V>(mean, p2 + c0);\n",
          "      load<V>(dy, p0 + r * C + c0);\n      load<V>(x, p1 + r * C + c0);\n#pragma unroll\n"
          "      for (int j = 0; j < V; ++j) {\n        a[j] += dy[j];\n        a[V + j] += dy[j] * (x[j] - mean[j]);\n"
          "      }\n",
          "",
          {"first", "second * p3[c]"}};
}

void fill(string& body, const string& place, const string& text) { body.replace(body.find(place), place.size(), text); }

}  // namespace

std::optional<Kernel> write_batch_sums(const graph::Graph& graph, const Op& op) {
  bool is_moments = op.info->name == "magneto::batch_moments";
  if ((!is_moments && op.info->name != "magneto::batch_gradients") || !op.sizes.empty()) return {};
  const Value& first = tensor(graph, op, 0);
  int64_t rows = first.sizes[0], columns = first.sizes[1];
  if (rows < 2 || !columns || columns % 2 || columns > kMostColumns || rows * columns > kMostElements) return {};
  for (const graph::TensorRef& given : op.tensors) {
    const Value& value = graph.values[given.value];
    bool is_float = value.dtype == c10::ScalarType::Float;
    if (!is_contiguous(value) || !(is_float || (value.sizes.size() == 2 && c10::isReducedFloatingType(value.dtype))))
      return {};
  }

  int64_t pack = 8;
  while (columns % pack) pack /= 2;
  int64_t packs = columns / pack;
  auto lanes = static_cast<int64_t>(std::min(std::bit_ceil(static_cast<uint64_t>(packs)), uint64_t{kLanes}));
  int64_t groups = kThreads / lanes, column_blocks = (packs + lanes - 1) / lanes;
  int64_t most_parts = std::max(rows / (kFewestRowsEach * groups), int64_t{1});
  int64_t parts = std::clamp(kBlocks / column_blocks, int64_t{1}, most_parts);

  Kernel kernel;
  for (uint32_t i = 0; i < op.tensors.size(); ++i) {
    kernel.inputs.push_back(op.tensors[i].value);
    kernel.parameters += string("const ") + memory_type(graph.values[op.tensors[i].value].dtype) + "* __restrict__ p" +
                         to_string(i) + ", ";
  }
  Text text = is_moments ? moments(graph, op) : gradients();
  for (const graph::TensorRef& result : op.results) {
    const Value& value = graph.values[result.value];
    string name = "q" + to_string(kernel.outputs.size());
    text.after += "    " + name + "[c] = " + text.results[result.position] + ";\n";
    kernel.outputs.push_back(result.value);
    kernel.layouts.push_back({value.dtype, Sizes(value.sizes), Sizes(value.strides)});
    kernel.parameters += "float* __restrict__ " + name + ", ";
  }
  kernel.parameters += "float* parts, i64 rows, i64 columns, i64 number_of_parts";
  kernel.numbers = {rows, columns, parts};
  kernel.body = "  enum { V = " + to_string(pack) + ", MOST = " + to_string(kMostColumns) + ", L = THREADS(" +
                to_string(lanes) + "), G = THREADS(" + to_string(groups) + ") };" + kBody;
  fill(kernel.body, "$before", text.before);
  fill(kernel.body, "$in_row", text.in_row);
  fill(kernel.body, "$after", text.after);
  kernel.scratch = parts * column_blocks * lanes * pack * 2;
  kernel.blocks = static_cast<uint32_t>(parts * column_blocks);
  kernel.threads = static_cast<uint32_t>(lanes * groups);
  return kernel;
}

}  // namespace magneto::codegen
