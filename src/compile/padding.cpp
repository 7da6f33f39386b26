// Which products are padded, and how.
#include "compile/padding.h"

#include <algorithm>

#include "codegen/kernel.h"
#include "compile/rebuild.h"

namespace magneto::compile {
namespace {

using graph::Graph;
using graph::Op;
using graph::Value;
using graph::ValueId;

constexpr int64_t kBytes = 16;      // what tensor cores load at once
constexpr int64_t kSmallest = 256;  // below, a copy costs as much as it gains

// A product of `a` [m, k] and `b` [k, n]; its arguments are at these positions.
struct Product {
  uint32_t a, b;
  bool has_bias;
};

const Product* find_product(const Op& op) {
  static constexpr Product mm{0, 1, false}, addmm{1, 2, true};
  if (op.info->name == "aten::mm" && op.tensors.size() == 2) return &mm;
  if (op.info->name == "aten::addmm" && op.tensors.size() == 3) return &addmm;
  return nullptr;
}

class Padder {
 public:
  Padder(Rebuild& rebuild, const std::vector<uint32_t>& producers, const Op& op)
      : rebuild_(rebuild), producers_(producers), op_(op) {}

  bool run(const Product& product) {
    const Value &a = value(product.a), &b = value(product.b), &out = rebuild_.from.values[op_.results[0].value];
    if (c10::elementSize(out.dtype) != 2 || out.sizes.size() != 2) return false;
    int64_t m = a.sizes[0], k = a.sizes[1], n = b.sizes[1];
    if (std::min({m, k, n}) < kSmallest) return false;
    // Along rows of memory: an odd number of elements leaves most rows at odd addresses.
    bool pad_m = is_odd(m) && a.strides[0] == 1, pad_n = is_odd(n),
         pad_k = is_odd(k) && (a.strides[1] == 1 || b.strides[0] == 1);
    if (!pad_m && !pad_n && !pad_k) return false;
    Op product_op = rebuild_.translated(op_);
    for (graph::TensorRef& tensor : product_op.tensors) {
      bool is_a = tensor.position == product.a, is_b = tensor.position == product.b;
      ValueId original = tensor.value;
      for (const graph::TensorRef& given : op_.tensors) {
        if (given.position == tensor.position) original = given.value;
      }
      size_t rank = rebuild_.from.values[original].sizes.size();
      int64_t rows = is_a ? (pad_m ? missing(m) : 0) : is_b ? (pad_k ? missing(k) : 0) : 0;
      int64_t columns = is_a ? (pad_k ? missing(k) : 0) : (pad_n ? missing(n) : 0);
      if (!is_a && !is_b) {  // a bias
        const Value& bias = rebuild_.from.values[original];
        if (bias.sizes.back() != n) return false;
        if (rank == 2 && bias.sizes[0] == m) rows = pad_m ? missing(m) : 0;
      }
      tensor.value = padded(original, rows, columns);
    }
    ValueId made = rebuild_.builder.add(std::move(product_op));
    if (pad_m) made = shortened(made, 0, m);
    if (pad_n) made = shortened(made, 1, n);
    rebuild_.replace(op_.results[0].value, made);
    return true;
  }

 private:
  const Value& value(uint32_t position) const {
    auto found = std::ranges::find(op_.tensors, position, &graph::TensorRef::position);
    return rebuild_.from.values[found->value];
  }

  static int64_t missing(int64_t size) {
    int64_t step = kBytes / 2;
    return (step - size % step) % step;
  }
  static bool is_odd(int64_t size) { return missing(size) != 0; }

  // What is transposed is padded before, where it lies in order.
  ValueId padded(ValueId original, int64_t rows, int64_t columns) {
    if (!rows && !columns) return rebuild_.now(original);
    uint32_t producer = producers_[original];
    if (producer != codegen::kNoOp && rebuild_.from.ops[producer].info->name == "aten::t") {
      Op back = op_like(op_, "aten::t");
      put(back, 0, padded(rebuild_.from.ops[producer].tensors[0].value, columns, rows));
      return rebuild_.builder.add(std::move(back));
    }
    Op pad = op_like(op_, "aten::constant_pad_nd");
    put(pad, 0, rebuild_.now(original));
    std::vector<c10::SymInt> amounts{0, columns};
    if (rows) amounts.insert(amounts.end(), {0, rows});
    rebuild_.builder.set(pad, 1, amounts);
    return rebuild_.builder.add(std::move(pad));
  }

  ValueId shortened(ValueId id, int64_t dimension, int64_t size) {
    Op slice = op_like(op_, "aten::slice", "Tensor");
    put(slice, 0, id);
    slice.args[1] = dimension;
    slice.args[2] = int64_t{0};
    slice.args[3] = size;
    return rebuild_.builder.add(std::move(slice));
  }

  Rebuild& rebuild_;
  const std::vector<uint32_t>& producers_;
  const Op& op_;
};

}  // namespace

Graph with_padded_products(Graph graph) {
  std::vector<uint32_t> producers = codegen::producers(graph);
  return rebuilt(std::move(graph), [&](Rebuild& rebuild, const Op& op) {
    const Product* product = find_product(op);
    return product && Padder(rebuild, producers, op).run(*product);
  });
}

}  // namespace magneto::compile
