// Writes the kernel of a cluster: from its outputs backwards, each element is what its operator makes of others.
#include "codegen/kernel.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "codegen/formulas.h"
#include "codegen/views.h"

namespace magneto::codegen {
namespace {

using c10::ScalarType;
using graph::Op;
using graph::Value;
using graph::ValueId;
using std::string;

struct CannotWrite {};

constexpr int64_t kMostColumns = 16384;  // of a reduction; they are in registers
constexpr size_t kMostTensors = 40;
constexpr int64_t kEnoughThreads = 1 << 17;  // to fill a GPU
constexpr int64_t kFewThreads = 1 << 14;
constexpr int64_t kMostRowsEach = 8, kMostNeighbours = 16;

int64_t highest_offset(const Value& value) {
  int64_t last = 0;
  for (size_t i = 0; i < value.sizes.size(); ++i) last += value.strides[i] * (value.sizes[i] - 1);
  return last;
}

// How elements are dealt out.
struct Plan {
  int64_t rows, columns;
  int pack = 1;                // neighbours in a row that a thread takes at once
  int threads = 1;             // of a row, if it is reduced
  std::vector<int64_t> order;  // of the dimensions of outputs; empty: as they are
  size_t split = 0;            // how many of these are in the rows
};

// A value that the kernel has computed.
struct Variable {
  string text;
  ScalarType type;  // of the tensor
  int phase;        // reductions before it
  bool varies;      // from column to column
};

class Writer {
 public:
  Writer(const graph::Graph& graph, const std::vector<uint32_t>& producers, const Cluster& cluster, Plan plan)
      : graph_(graph), producers_(producers), cluster_(cluster), plan_(std::move(plan)) {}

  Kernel write() {
    for (ValueId output : cluster_.outputs) store(output);
    if (kernel_.inputs.size() + kernel_.outputs.size() > kMostTensors) throw CannotWrite();
    kernel_.body = cluster_.reduces ? reducing_body() : plain_body();
    kernel_.parameters = parameters_.empty() ? outputs_.substr(2) : parameters_ + outputs_;
    return std::move(kernel_);
  }
  // How well accesses use what they fetch.
  int score() const {
    bool reuses = share().neighbours && share().rows > 1;
    return (plan_.pack > 1 ? 2 * whole_packs_ : 0) - single_accesses_ + reuses;
  }

 private:
  struct Phase {
    string rows, chunks, lanes, stores, results;
  };

  Phase& phase(int number) {
    if (phases_.size() <= static_cast<size_t>(number)) phases_.resize(static_cast<size_t>(number) + 1);
    return phases_[static_cast<size_t>(number)];
  }

  bool is_inside(uint32_t op) const {
    return op != kNoOp && std::binary_search(cluster_.ops.begin(), cluster_.ops.end(), op);
  }

  // ---- variables

  // "v7", or its place among those of a row that a thread holds.
  string lane(const string& name) const { return cluster_.reduces ? name + "[j]" : name; }

  Variable define(const string& expression, ScalarType dtype, ScalarType computed, int at, bool varies) {
    string name = "v" + std::to_string(count_++);
    string type = value_type(dtype), text = rounded(convert("(" + expression + ")", computed, dtype), dtype);
    if (varies && cluster_.reduces) {
      arrays_ += "  " + type + " " + name + "[K * V];\n";
      phase(at).lanes += "        " + name + "[j] = " + text + ";\n";
    } else {
      (varies ? phase(at).lanes : phase(at).rows) += "  " + string("const ") + type + " " + name + " = " + text + ";\n";
    }
    return {varies ? lane(name) : name, dtype, at, varies};
  }

  string as(const Variable& variable, ScalarType type) {
    return variable.type == type ? variable.text : rounded(convert(variable.text, variable.type, type), type);
  }

  // ---- memory

  // The same offset at each column; or at the first one of a pack, whose others follow it.
  string text(const Offset& offset, bool packed) const {
    string result;
    for (const Term& term : offset.terms) {
      string name = packed && term.varies ? "c0" : term.text;
      result += (result.empty() ? "" : " + ") + (term.factor == 1 ? name : name + " * " + std::to_string(term.factor));
    }
    if (offset.constant || result.empty()) result += (result.empty() ? "" : " + ") + std::to_string(offset.constant);
    return result;
  }

  bool is_packed(const Offset& offset) const {
    int varying = 0;
    for (const Term& term : offset.terms) {
      if (!term.varies) continue;
      if (term.text != kColumn || term.factor != 1) return false;
      ++varying;
    }
    return varying == 1;
  }

  // What reads or writes a pack there. Tensors begin with a pack, so that others do if nothing shifts them.
  string packed(const string& access, const Offset& offset) const {
    auto is_shifted = [&](const Term& term) { return term.text != kColumn && term.factor % plan_.pack; };
    bool anywhere = offset.constant % plan_.pack || std::ranges::any_of(offset.terms, is_shifted);
    return access + (anywhere ? "_anywhere<V>" : "<V>");
  }

  static bool depends_on_row(const Offset& offset) {
    return std::ranges::any_of(offset.terms, [](const Term& term) { return term.text.find(kRow) != string::npos; });
  }

  string input(ValueId id) {
    auto [found, is_new] = parameter_of_.try_emplace(id, kernel_.inputs.size());
    string name = "p" + std::to_string(found->second);
    if (is_new) {
      const Value& value = graph_.values[id];
      if (!is_known(value.dtype) || highest_offset(value) > kMostElements) throw CannotWrite();
      kernel_.inputs.push_back(id);
      parameters_ +=
          (parameters_.empty() ? "const " : ", const ") + string(memory_type(value.dtype)) + "* __restrict__ " + name;
    }
    return name;
  }

  Variable load(ValueId id, Index& index) {
    const Value& value = graph_.values[id];
    if (auto number = host_number(graph_, id))
      return {literal(*number, value.dtype), computed_as(value.dtype), 0, false};
    string from = input(id), name = "v" + std::to_string(count_++);
    string get = "As<" + string(memory_type(value.dtype)) + ", " + value_type(value.dtype) + ">::get(";
    bool varies = index.varies();
    Offset offset = index.offset(value.strides);
    if (!varies) {
      phase(0).rows += "  const " + string(value_type(value.dtype)) + " " + name + " = " + get + from + "[" +
                       text(offset, false) + "]);\n";
      return {name, value.dtype, 0, false};
    }
    arrays_ += "  " + string(value_type(value.dtype)) + " " + name + (cluster_.reduces ? "[K * V];\n" : "[V];\n");
    if (is_packed(offset)) {
      ++whole_packs_;
      string to = cluster_.reduces ? name + " + k * V" : name;
      string access = "    " + packed("load", offset) + "(" + to + ", " + from + " + " + text(offset, true) + ");\n";
      (cluster_.reduces || depends_on_row(offset) ? phase(0).chunks : columns_) += access;
    } else {
      ++single_accesses_;
      for (const Term& term : offset.terms) {
        if (term.text == kColumn) column_step_ = term.factor;
      }
      phase(0).lanes += "    " + name + "[j] = " + get + from + "[" + text(offset, false) + "]);\n";
    }
    return {name + "[j]", value.dtype, 0, true};
  }

  void store(ValueId id) {
    const Value& value = graph_.values[id];
    if (highest_offset(value) > kMostElements) throw CannotWrite();
    Index index = output_index(value);
    bool varies = index.varies();
    Index read = index;
    Variable from = at(id, read);
    string to = "q" + std::to_string(kernel_.outputs.size());
    kernel_.outputs.push_back(id);
    kernel_.layouts.push_back({value.dtype, Sizes(value.sizes), Sizes(value.strides)});
    outputs_ += ", " + string(memory_type(value.dtype)) + "* __restrict__ " + to;
    string put = "As<" + string(memory_type(value.dtype)) + ", " + value_type(value.dtype) + ">::put(";
    Offset offset = index.offset(value.strides);
    if (!varies) {
      if (!cluster_.reduces) throw CannotWrite();
      phase(from.phase).rows += "  if (t == 0) " + to + "[" + text(offset, false) + "] = " + put + from.text + ");\n";
    } else if (is_packed(offset)) {
      ++whole_packs_;
      string name = from.text;
      if (!from.varies || !cluster_.reduces || !name.ends_with("[j]")) {
        name = "o" + to;
        arrays_ += "  " + string(value_type(value.dtype)) + " " + name + (cluster_.reduces ? "[K * V];\n" : "[V];\n");
        phase(from.phase).lanes += "    " + name + "[j] = " + from.text + ";\n";
      } else {
        name.resize(name.size() - 3);
      }
      phase(from.phase).stores += "    " + packed("store", offset) + "(" + to + " + " + text(offset, true) + ", " +
                                  name + (cluster_.reduces ? " + k * V" : "") + ");\n";
    } else {
      ++single_accesses_;
      phase(from.phase).lanes += "    " + to + "[" + text(offset, false) + "] = " + put + from.text + ");\n";
    }
  }

  Index output_index(const Value& value) const {
    if (cluster_.reduces) return row_index(value.sizes);
    if (product(value.sizes) != plan_.rows * plan_.columns) throw CannotWrite();
    if (plan_.order.empty()) return split_index(value.sizes, plan_.columns);
    Sizes sizes;
    for (int64_t dimension : plan_.order) sizes.push_back(value.sizes[static_cast<size_t>(dimension)]);
    c10::IntArrayRef all(sizes);
    Index index = Index::at(all.slice(0, plan_.split), all.slice(plan_.split));
    index.permute(plan_.order);
    return index;
  }

  // Rows may end within a dimension.
  static Index split_index(c10::IntArrayRef sizes, int64_t columns) {
    size_t at = sizes.size();
    int64_t there = 1;
    while (at > 0 && there < columns) there *= sizes[--at];
    if (there == columns) return Index::at(sizes.slice(0, at), sizes.slice(at));
    Index index = Index::at({product(sizes) / columns}, {columns});
    index.reshape(sizes);
    return index;
  }

  // Of a tensor that is as large as what is reduced, or has one element for each row.
  Index row_index(c10::IntArrayRef sizes) const {
    int64_t count = product(sizes);
    if (count == plan_.rows) return Index::at(sizes, {});
    if (count != plan_.rows * plan_.columns) throw CannotWrite();
    return split_index(sizes, plan_.columns);
  }

  // ---- operators

  // An element of a value.
  Variable at(ValueId id, Index& index) {
    string key = std::to_string(id) + ":" + index.key();
    auto found = made_.find(key);
    if (found != made_.end()) return found->second;
    Variable made = make(id, index);
    return made_.emplace(std::move(key), made).first->second;
  }

  Variable make(ValueId id, Index& index) {
    uint32_t producer = producers_[id];
    if (producer == kNoOp) return load(id, index);
    const Op& op = graph_.ops[producer];
    const graph::TensorRef& result =
        *std::find_if(op.results.begin(), op.results.end(), [&](const auto& made) { return made.value == id; });
    Kind kind = kind_of(graph_, op);
    if (kind == Kind::View) {
      if (!leads_inside(op.tensors[0].value)) return load(id, index);
      look_through(graph_, op, result, index);
      return at(op.tensors[0].value, index);
    }
    if (!is_inside(producer)) return load(id, index);
    if (kind == Kind::Gather) return gather(op, graph_.values[id], index);
    if (kind == Kind::Reduction) return reduction(op, result, index);
    return pointwise(op, graph_.values[id], index);
  }

  bool leads_inside(ValueId id) const {
    uint32_t producer = producers_[id];
    if (producer == kNoOp) return false;
    if (is_inside(producer)) return true;
    const Op& op = graph_.ops[producer];
    return kind_of(graph_, op) == Kind::View && leads_inside(op.tensors[0].value);
  }

  Variable operand(ValueId id, Index index) {
    index.broadcast(graph_.values[id].sizes);
    return at(id, index);
  }

  Variable pointwise(const Op& op, const Value& value, Index& index) {
    int at_phase = 0;
    bool varies = false;
    Computed made = compute(graph_, op, [&](const graph::TensorRef& tensor, ScalarType type) {
      bool by_channel = op.info->name == "aten::native_batch_norm" && tensor.position > 0;
      Variable x = by_channel ? channel(tensor.value, index, value.sizes.size()) : operand(tensor.value, index);
      at_phase = std::max(at_phase, x.phase);
      varies |= x.varies;
      return as(x, type);
    });
    return define(made.text, value.dtype, made.type, at_phase, varies);
  }

  Variable channel(ValueId id, Index index, size_t rank) {
    std::vector<int64_t> ones(rank, 1);
    ones[1] = graph_.values[id].sizes[0];
    index.broadcast(ones);
    index.reshape(graph_.values[id].sizes);
    return at(id, index);
  }

  static size_t wrapped(int64_t dimension, size_t rank) {
    return static_cast<size_t>(dimension < 0 ? dimension + static_cast<int64_t>(rank) : dimension);
  }

  static string between(const string& number, int64_t start, int64_t size) {
    return "smaller(larger(" + number + " - " + std::to_string(start) + ", 0), " + std::to_string(size - 1) + ")";
  }

  Variable gather(const Op& op, const Value& value, Index& index) {
    const string& name = op.info->name;
    if (name == "aten::cat" || name == "aten::stack") return joined(op, value, index);
    if (name == "aten::slice_backward") return placed(op, value, index);
    if (name == "aten::constant_pad_nd") return padded(op, value, index);
    c10::Scalar filling = name.find("ones") != string::npos ? 1 : 0;
    if (name.find("full") != string::npos) filling = op.args[1].toScalar();
    return {rounded(literal(filling, value.dtype), value.dtype), value.dtype, 0, false};
  }

  Variable joined(const Op& op, const Value& value, Index& index) {
    size_t along = wrapped(op.args[1].toInt(), value.sizes.size());
    string here = index.coordinate(along), expression;
    bool is_stack = op.info->name == "aten::stack";
    int64_t start = 0;
    int at_phase = 0;
    for (const graph::TensorRef& tensor : op.tensors) {
      const Value& part = graph_.values[tensor.value];
      if (!is_stack && part.sizes.size() != value.sizes.size()) throw CannotWrite();
      int64_t size = is_stack ? 1 : part.sizes[along];
      if (!size) continue;
      Index inside = index;
      inside.set(along, between(here, start, size), size);
      if (is_stack) inside.reshape(part.sizes);
      Variable x = at(tensor.value, inside);
      at_phase = std::max(at_phase, x.phase);
      start += size;
      bool is_last = start == value.sizes[along];
      expression +=
          is_last ? as(x, value.dtype) : here + " < " + std::to_string(start) + " ? " + as(x, value.dtype) + " : ";
    }
    return define(expression, value.dtype, value.dtype, at_phase, index.varies());
  }

  // The gradient of a slice: it where the slice was, and nothing elsewhere.
  Variable placed(const Op& op, const Value& value, Index& index) {
    size_t along = wrapped(op.args[2].toInt(), value.sizes.size());
    int64_t start = op.args[3].toInt(), step = op.args[5].toInt();
    int64_t size = graph_.values[op.tensors[0].value].sizes[along];
    if (step != 1 || start < 0 || !size) throw CannotWrite();
    string here = index.coordinate(along);
    Index inside = index;
    inside.set(along, between(here, start, size), size);
    Variable x = at(op.tensors[0].value, inside);
    string expression = here + " >= " + std::to_string(start) + " && " + here + " < " + std::to_string(start + size) +
                        " ? " + x.text + " : " + literal(0, value.dtype);
    return define(expression, value.dtype, value.dtype, x.phase, index.varies());
  }

  Variable padded(const Op& op, const Value& value, Index& index) {
    const auto& pads = op.args[1].toListRef();
    const Value& from = graph_.values[op.tensors[0].value];
    Index inside = index;
    string condition;
    for (size_t i = 0; i < pads.size() / 2; ++i) {
      int64_t before = pads[2 * i].toInt(), after = pads[2 * i + 1].toInt();
      size_t along = value.sizes.size() - 1 - i;
      if (!before && !after) continue;
      if (before < 0 || after < 0 || !from.sizes[along]) throw CannotWrite();
      string here = index.coordinate(along);
      inside.set(along, between(here, before, from.sizes[along]), from.sizes[along]);
      condition += (condition.empty() ? "" : " && ") + here + " >= " + std::to_string(before) + " && " + here + " < " +
                   std::to_string(before + from.sizes[along]);
    }
    Variable x = at(op.tensors[0].value, inside);
    if (condition.empty()) return x;
    string filling = literal(op.args[2].toScalar(), value.dtype);
    return define(condition + " ? " + x.text + " : " + filling, value.dtype, value.dtype, x.phase, index.varies());
  }

  // ---- reductions

  Variable whole(ValueId id) {  // at this row and column
    Index index = row_index(graph_.values[id].sizes);
    return at(id, index);
  }

  // What `how` makes of all in a row, as a variable of the row.
  Variable reduce(const char* how, const string& expression, const string& start, ScalarType type, int after) {
    string name = "a" + std::to_string(count_++);
    phase(after).rows += "  " + string(value_type(type)) + " " + name + " = " + start + ";\n";
    phase(after).lanes +=
        "        " + name + " = " + how + "::join(" + name + ", " + value_type(type) + "(" + expression + "));\n";
    phase(after).results += "  " + name + " = over_row<" + string(how) + ", T>(" + name + ");\n";
    return {name, type, after + 1, false};
  }
  Variable sum(const string& expression, ScalarType type, int after) {
    return reduce("Sum", expression, "0", type, after);
  }

  // One variable for each operator, whatever its results.
  const std::vector<Variable>& once(const Op& op, const std::function<std::vector<Variable>()>& make) {
    auto found = reduced_.find(&op);
    if (found == reduced_.end()) found = reduced_.emplace(&op, make()).first;
    return found->second;
  }

  string per_column() const { return std::to_string(plan_.columns); }

  Variable reduction(const Op& op, const graph::TensorRef& result, Index& index) {
    const Value& value = graph_.values[result.value];
    bool is_row = product(value.sizes) == plan_.rows && plan_.columns != 1;
    bool is_whole = product(graph_.values[op.tensors[0].value].sizes) == plan_.rows * plan_.columns;
    if (!is_whole || reduced_size(graph_, op) != plan_.columns) throw CannotWrite();
    if (is_row ? !index.is_row(plan_.rows) : index.key() != row_index(value.sizes).key()) throw CannotWrite();
    const string& name = op.info->name;
    if (name == "aten::native_layer_norm") return layer_norm(op, result);
    if (name == "aten::native_layer_norm_backward") return layer_norm_backward(op, value);
    if (name == "aten::_softmax_backward_data") return softmax_backward(op, value);
    if (name.find("softmax") != string::npos) return softmax(op, value);
    ScalarType type = computed_as(value.dtype);
    Variable x = whole(op.tensors[0].value);
    string text = as(x, type);
    const std::vector<Variable>& made = once(op, [&]() -> std::vector<Variable> {
      string infinite = type == ScalarType::Double ? "INF64" : "INF32";
      if (name == "aten::amax") return {reduce("Largest", text, "-" + infinite, type, x.phase)};
      if (name == "aten::amin") return {reduce("Smallest", text, infinite, type, x.phase)};
      return {sum(text, type, x.phase)};
    });
    string expression = made[0].text;
    if (name == "aten::mean.dim") expression += " * " + literal(1.0 / static_cast<double>(plan_.columns), type);
    return define(expression, value.dtype, type, made[0].phase, false);
  }

  Variable softmax(const Op& op, const Value& value) {
    ScalarType type = computed_as(value.dtype);
    Variable x = whole(op.tensors[0].value);
    string text = as(x, type), exp = type == ScalarType::Double ? "exp" : "expf";
    const std::vector<Variable>& made = once(op, [&]() -> std::vector<Variable> {
      string least = type == ScalarType::Double ? "-INF64" : "-INF32";
      Variable top = reduce("Largest", text, least, type, x.phase);
      return {top, sum(exp + "(" + text + " - " + top.text + ")", type, top.phase)};
    });
    string shifted = "(" + text + " - " + made[0].text + ")";
    string log = type == ScalarType::Double ? "log" : "logf";
    string expression = op.info->name == "aten::_softmax" ? exp + shifted + " / " + made[1].text
                                                          : shifted + " - " + log + "(" + made[1].text + ")";
    return define(expression, value.dtype, type, made[1].phase, true);
  }

  Variable softmax_backward(const Op& op, const Value& value) {
    ScalarType type = computed_as(graph_.values[op.tensors[1].value].dtype);
    Variable dy = whole(op.tensors[0].value), y = whole(op.tensors[1].value);
    string product_text = as(dy, type) + " * " + as(y, type);
    int after = std::max(dy.phase, y.phase);
    const std::vector<Variable>& made =
        once(op, [&]() -> std::vector<Variable> { return {sum(product_text, type, after)}; });
    string expression = "(" + as(dy, type) + " - " + made[0].text + ") * " + as(y, type);
    return define(expression, value.dtype, type, made[0].phase, true);
  }

  // The weight or bias of a norm, at this column; 1 or 0 if there is none.
  std::pair<string, bool> parameter(const Op& op, uint32_t position, ScalarType type) {
    for (const graph::TensorRef& tensor : op.tensors) {
      if (tensor.position != position) continue;
      Index index = Index::at({}, graph_.values[tensor.value].sizes);
      return {as(at(tensor.value, index), type), true};
    }
    return {"", false};
  }

  Variable layer_norm(const Op& op, const graph::TensorRef& result) {
    const Value& value = graph_.values[result.value];
    ScalarType type = computed_as(graph_.values[op.tensors[0].value].dtype);
    Variable x = whole(op.tensors[0].value);
    string share = literal(1.0 / static_cast<double>(plan_.columns), type), text = as(x, type);
    const std::vector<Variable>& made = once(op, [&]() -> std::vector<Variable> {
      Variable total = sum(text, type, x.phase);
      Variable mean = define(total.text + " * " + share, type, type, total.phase, false);
      string centred = "(" + text + " - " + mean.text + ")";
      Variable squares = sum(centred + " * " + centred, type, mean.phase);
      string root = type == ScalarType::Double ? "rsqrt(" : "rsqrtf(";
      string variance = squares.text + " * " + share + " + " + literal(op.args[4].toScalar(), type);
      return {mean, define(root + variance + ")", type, type, squares.phase, false)};
    });
    if (result.position > 0) {
      const Variable& number = made[result.position - 1];
      return {as(number, value.dtype), value.dtype, number.phase, false};
    }
    string expression = "(" + text + " - " + made[0].text + ") * " + made[1].text;
    auto [weight, has_weight] = parameter(op, 2, type);
    auto [bias, has_bias] = parameter(op, 3, type);
    if (has_weight) expression = "(" + expression + ") * " + weight;
    if (has_bias) expression += " + " + bias;
    return define(expression, value.dtype, type, made[1].phase, true);
  }

  Variable layer_norm_backward(const Op& op, const Value& value) {  // grad, input, shape, mean, rstd, weight, …
    auto find = [&](uint32_t position) {
      return std::find_if(op.tensors.begin(), op.tensors.end(),
                          [&](const graph::TensorRef& tensor) { return tensor.position == position; })
          ->value;
    };
    ScalarType type = computed_as(graph_.values[find(3)].dtype);
    Variable dy = whole(find(0)), x = whole(find(1)), mean = whole(find(3)), root = whole(find(4));
    auto [weight, has_weight] = parameter(op, 5, type);
    int after = std::max({dy.phase, x.phase, mean.phase, root.phase});
    string scaled = has_weight ? "(" + as(dy, type) + " * " + weight + ")" : as(dy, type);
    string normal = "((" + as(x, type) + " - " + as(mean, type) + ") * " + as(root, type) + ")";
    string share = literal(1.0 / static_cast<double>(plan_.columns), type);
    const std::vector<Variable>& made = once(op, [&]() -> std::vector<Variable> {
      return {sum(scaled, type, after), sum(scaled + " * " + normal, type, after)};
    });
    string expression = "(" + scaled + " - (" + made[0].text + " + " + normal + " * " + made[1].text + ") * " + share +
                        ") * " + as(root, type);
    return define(expression, value.dtype, type, after + 1, true);
  }

  // ---- the function

  string constants() const {
    return "  enum { V = " + std::to_string(plan_.pack) + ", C = " + std::to_string(plan_.columns) + " };\n";
  }

  // How many rows a thread takes: several, if there are enough threads and it keeps what it has read for its columns;
  // or those whose elements are neighbours of each other, where neighbours of a row are not.
  struct Share {
    int64_t rows;
    bool neighbours;
  };
  Share share() const {
    int64_t packs = plan_.rows * plan_.columns / plan_.pack;
    if (!columns_.empty()) return {std::clamp(packs / kEnoughThreads, int64_t{1}, kMostRowsEach), false};
    bool apart = column_step_ > 1 && column_step_ <= kMostNeighbours && plan_.rows % column_step_ == 0;
    return apart && packs / column_step_ >= kFewThreads ? Share{column_step_, true} : Share{1, true};
  }

  string plain_body() {
    kernel_.threads = 128;
    int64_t in_row = plan_.columns / plan_.pack;
    Share each = share();
    int64_t at_once = (plan_.rows + each.rows - 1) / each.rows;
    kernel_.blocks = static_cast<uint32_t>((at_once * in_row + kernel_.threads - 1) / kernel_.threads);
    const Phase& all = phase(0);
    string first = "i / (C / V)", end = std::to_string(plan_.rows), step = std::to_string(at_once);
    if (each.neighbours) {
      string count = std::to_string(each.rows);
      if (each.rows > 1) first += " * " + count;
      end = first + " + " + count;
      step = "1";
    }
    return constants() +
           "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i >= " + std::to_string(at_once * in_row) +
           ") return;\n  const int c0 = i % (C / V) * V;\n" + arrays_ + columns_ +
           (each.neighbours ? "#pragma unroll\n" : "") + "  for (int r = " + first + ", end = " + end +
           "; r < end; r += " + step + ") {\n" + all.rows + all.chunks +
           "#pragma unroll\n  for (int j = 0; j < V; ++j) {\n    const int c = c0 + j;\n    (void)c;\n" + all.lanes +
           "  }\n" + all.stores + "  }\n";
  }

  string reducing_body() {
    int in_block = std::max(1, 128 / plan_.threads);
    if (plan_.threads > 32) in_block = 1;
    kernel_.threads = static_cast<uint32_t>(plan_.threads * in_block);
    kernel_.blocks = static_cast<uint32_t>((plan_.rows + in_block - 1) / in_block);
    string threads = std::to_string(plan_.threads);
    string body = constants() + "  enum { T = THREADS(" + threads + "), K = (C + V * T - 1) / (V * T) };\n" +
                  "  const int t = threadIdx.x % T, r = blockIdx.x * (blockDim.x / T) + threadIdx.x / T;\n  if (r >= " +
                  std::to_string(plan_.rows) + ") return;\n" + arrays_;
    for (const Phase& part : phases_) {
      body += part.rows;
      if (!part.chunks.empty() || !part.lanes.empty() || !part.stores.empty()) {
        body += "#pragma unroll\n  for (int k = 0; k < K; ++k) {\n    const int c0 = (k * T + t) * V;\n" +
                string("    if (c0 >= C) continue;\n") + part.chunks +
                "#pragma unroll\n    for (int v = 0; v < V; ++v) {\n      const int c = c0 + v, j = k * V + v;\n" +
                "      (void)c;\n" + part.lanes + "    }\n" + part.stores + "  }\n";
      }
      body += part.results;
    }
    return body;
  }

  const graph::Graph& graph_;
  const std::vector<uint32_t>& producers_;
  const Cluster& cluster_;
  const Plan plan_;
  Kernel kernel_;
  std::vector<Phase> phases_;
  string arrays_, parameters_, outputs_;
  string columns_;           // what is read once for all rows
  int64_t column_step_ = 1;  // in memory, of a tensor whose rows do not lie together
  std::unordered_map<string, Variable> made_;
  std::unordered_map<const Op*, std::vector<Variable>> reduced_;
  std::unordered_map<ValueId, size_t> parameter_of_;
  int count_ = 0, whole_packs_ = 0, single_accesses_ = 0;
};

// The most neighbours that one access takes: 16 bytes of the widest type, which `columns` must be a multiple of.
int pack_of(const graph::Graph& graph, const Cluster& cluster, int64_t columns) {
  size_t widest = 1;
  for (ValueId output : cluster.outputs) widest = std::max(widest, c10::elementSize(graph.values[output].dtype));
  int pack = widest <= 2 ? 8 : 4;
  while (columns % pack) pack /= 2;
  return pack;
}

// Few threads for short rows, so that each has some elements; all of a row stay in registers.
int threads_of(int64_t columns, int pack) {
  int64_t packs = columns / pack;
  int threads = packs <= 64 ? 32 : packs <= 256 ? 128 : packs <= 1024 ? 256 : 512;
  return packs > 4096 ? 1024 : threads;
}

std::optional<Kernel> write_reducing(const graph::Graph& graph, const std::vector<uint32_t>& producers,
                                     const Cluster& cluster) {
  int64_t columns = cluster.columns, count = 0;
  for (uint32_t op : cluster.ops) {
    if (kind_of(graph, graph.ops[op]) == Kind::Reduction)
      count = product(graph.values[graph.ops[op].tensors[0].value].sizes);
  }
  if (columns < 1 || columns > kMostColumns || !count) return std::nullopt;
  Plan plan{.rows = count / columns, .columns = columns, .pack = pack_of(graph, cluster, columns)};
  plan.threads = threads_of(columns, plan.pack);
  return Writer(graph, producers, cluster, plan).write();
}

// Dimensions from that with the longest steps in memory to that with the shortest.
std::vector<int64_t> memory_order(const Value& value) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < value.sizes.size(); ++i) order.push_back(static_cast<int64_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return value.strides[static_cast<size_t>(a)] > value.strides[static_cast<size_t>(b)];
  });
  return order;
}

// Where rows end is tried out: the best place lets the most accesses take whole packs.
std::optional<Kernel> write_plain(const graph::Graph& graph, const std::vector<uint32_t>& producers,
                                  const Cluster& cluster, bool any) {
  const Value& first = graph.values[cluster.outputs[0]];
  int64_t count = product(first.sizes);
  if (!count || count > kMostElements) return std::nullopt;
  bool same_sizes = std::all_of(cluster.outputs.begin(), cluster.outputs.end(),
                                [&](ValueId output) { return graph.values[output].sizes == first.sizes; });
  Plan plan{.rows = 1, .columns = 1};
  Sizes sizes(first.sizes);
  if (same_sizes) {
    plan.order = memory_order(first);
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = first.sizes[static_cast<size_t>(plan.order[i])];
  }
  std::optional<Kernel> best;
  int best_score = 0;
  for (size_t split = 0; split < std::max<size_t>(sizes.size(), 1); ++split) {
    plan.split = split;
    plan.rows = product(c10::IntArrayRef(sizes).slice(0, split));
    plan.columns = count / plan.rows;
    plan.pack = pack_of(graph, cluster, plan.columns);
    Writer writer(graph, producers, cluster, plan);
    try {
      Kernel kernel = writer.write();
      if (best && writer.score() <= best_score) continue;
      best = std::move(kernel);
      best_score = writer.score();
      if (any) break;
    } catch (const CannotWrite&) {
    }
  }
  return best;
}

std::optional<Kernel> try_write(const graph::Graph& graph, const std::vector<uint32_t>& producers,
                                const Cluster& cluster, bool any) {
  try {
    return cluster.reduces ? write_reducing(graph, producers, cluster) : write_plain(graph, producers, cluster, any);
  } catch (const CannotWrite&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<Kernel> write_kernel(const graph::Graph& graph, const std::vector<uint32_t>& producers,
                                   const Cluster& cluster) {
  return try_write(graph, producers, cluster, false);
}

bool can_write(const graph::Graph& graph, const std::vector<uint32_t>& producers, const Cluster& cluster) {
  return try_write(graph, producers, cluster, true).has_value();
}

}  // namespace magneto::codegen
