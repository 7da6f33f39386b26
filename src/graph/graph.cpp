// Building, pruning and checking graphs.
#include "graph/graph.h"

#include <bit>
#include <string_view>

#include "graph/schema_info.h"
#include "runtime/errors.h"

namespace magneto::graph {

ValueId Graph::add_value(Role role, const at::Tensor& tensor) {
  auto id = static_cast<ValueId>(values.size());
  values.push_back({role, tensor.scalar_type(), tensor.device(), tensor.sizes().vec(), tensor.strides().vec(), id});
  return id;
}

namespace {

const c10::IValue* find_argument(const Op& op, std::string_view name) {
  const auto& arguments = op.handle.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return &op.args[i];
  }
  return nullptr;
}

bool draws(const Op& op) {
  if (!schema_info(op.handle).random) return false;
  const c10::IValue* chance = find_argument(op, "dropout_p");  // of fused attention
  return !(chance && chance->isDouble() && chance->toDouble() == 0.0);
}

bool writes_unmarked(const Op& op) {
  if (!schema_info(op.handle).hidden_writes) return false;
  // Batch norm keeps statistics while it trains.
  const std::string& name = op.handle.schema().name();
  if (name != "aten::native_batch_norm" && name != "aten::cudnn_batch_norm") return true;
  const c10::IValue* training = find_argument(op, "training");
  return !(training && training->isBool() && !training->toBool());
}

}  // namespace

bool same_number(const c10::IValue& a, const c10::IValue& b) {
  auto bits = [](double number) { return std::bit_cast<uint64_t>(number); };
  if (a.isBool()) return b.isBool() && a.toBool() == b.toBool();
  if (a.isInt()) return b.isInt() && a.toInt() == b.toInt();
  if (a.isDouble()) return b.isDouble() && bits(a.toDouble()) == bits(b.toDouble());
  if (!a.isComplexDouble() || !b.isComplexDouble()) return false;
  auto x = a.toComplexDouble(), y = b.toComplexDouble();
  return bits(x.real()) == bits(y.real()) && bits(x.imag()) == bits(y.imag());
}

bool has_effect(const Graph& graph, const Op& op) {
  if (draws(op)) return true;
  const SchemaInfo& info = schema_info(op.handle);
  bool unmarked = writes_unmarked(op);
  if (!info.writes && !unmarked) return false;
  for (const TensorRef& tensor : op.tensors) {
    if (!unmarked && !info.written[tensor.position]) continue;
    if (graph.values[graph.values[tensor.value].memory].role != Role::Result) return true;
  }
  return false;
}

void fold_constant_copies(Graph& graph) {
  std::vector<bool> visible(graph.values.size(), false);  // may be written, or seen under two names
  for (ValueId output : graph.outputs) visible[output] = true;
  for (const Op& op : graph.ops) {
    const SchemaInfo& info = schema_info(op.handle);
    for (const TensorRef& tensor : op.tensors) {
      if (info.written[tensor.position] || info.returns_view || info.hidden_writes) visible[tensor.value] = true;
      for (const TensorRef& result : op.results) {
        if (result.value == tensor.value) visible[tensor.value] = true;
      }
    }
  }
  std::vector<ValueId> stands_for(graph.values.size());
  for (ValueId id = 0; id < stands_for.size(); ++id) stands_for[id] = id;
  for (Op& op : graph.ops) {
    for (TensorRef& tensor : op.tensors) tensor.value = stands_for[tensor.value];
    bool is_copy = op.handle.schema().name() == "aten::clone" && op.args[1].isNone();
    if (!is_copy || op.results.size() != 1 || visible[op.results[0].value]) continue;
    if (graph.values[op.tensors[0].value].role != Role::Constant) continue;
    stands_for[op.results[0].value] = op.tensors[0].value;  // the copy is dead now
  }
}

void remove_dead_ops(Graph& graph) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId output : graph.outputs) needed[output] = true;
  std::vector<bool> live(graph.ops.size());
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    bool keep = schema_info(op.handle).kept || !op.expected.isNone();
    for (const TensorRef& result : op.results) keep |= needed[result.value];
    live[i] = keep;
    if (!keep) continue;
    for (const TensorRef& tensor : op.tensors) needed[tensor.value] = true;
  }
  size_t kept = 0;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (!live[i]) continue;
    if (kept != i) graph.ops[kept] = std::move(graph.ops[i]);
    ++kept;
  }
  graph.ops.erase(graph.ops.begin() + static_cast<ptrdiff_t>(kept), graph.ops.end());
}

namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), made_(graph.values.size(), false) {}

  void run() {
    define_all(graph_.inputs, Role::Input);
    define_all(graph_.states, Role::State);
    define_all(graph_.constants, Role::Constant);
    if (graph_.constants.size() != graph_.constant_tensors.size()) MAGNETO_BUG("graph: constants without contents");
    for (size_t i = 0; i < graph_.ops.size(); ++i) check_op(i);
    for (ValueId output : graph_.outputs) check_use(output, "an output");
  }

 private:
  void define_all(const std::vector<ValueId>& ids, Role role) {
    for (ValueId id : ids) {
      if (id >= made_.size()) MAGNETO_BUG("graph: value %" + std::to_string(id) + " does not exist");
      if (made_[id]) MAGNETO_BUG("graph: value %" + std::to_string(id) + " is made twice");
      if (graph_.values[id].role != role) MAGNETO_BUG("graph: value %" + std::to_string(id) + " has the wrong role");
      made_[id] = true;
    }
  }

  void check_use(ValueId id, const std::string& by) const {
    if (id >= made_.size() || !made_[id]) {
      MAGNETO_BUG("graph: value %" + std::to_string(id) + " is used by " + by + " before it is made");
    }
  }

  void check_op(size_t index) {
    const Op& op = graph_.ops[index];
    const auto& schema = op.handle.schema();
    std::string name = "op " + std::to_string(index) + " (" + schema.name() + ")";
    if (op.args.size() != schema.arguments().size()) MAGNETO_BUG("graph: wrong number of arguments in " + name);
    for (const TensorRef& tensor : op.tensors) {
      check_use(tensor.value, name);
      if (tensor.position >= op.args.size()) MAGNETO_BUG("graph: no such argument in " + name);
      if (tensor.item != TensorRef::kWhole) check_item(op, tensor, name);
    }
    for (const TensorRef& result : op.results) {
      if (result.position >= schema.returns().size()) MAGNETO_BUG("graph: no such result in " + name);
      if (result.value >= made_.size()) MAGNETO_BUG("graph: a result of " + name + " does not exist");
      if (made_[result.value] && !is_argument(op, result.value)) {
        MAGNETO_BUG("graph: value %" + std::to_string(result.value) + " is made again by " + name);
      }
      if (!made_[result.value] && graph_.values[result.value].role != Role::Result) {
        MAGNETO_BUG("graph: " + name + " makes a value that is not a result");
      }
      made_[result.value] = true;
    }
  }

  static void check_item(const Op& op, const TensorRef& tensor, const std::string& name) {
    for (const TensorList& list : op.lists) {
      if (list.position == tensor.position && tensor.item >= 0 && tensor.item < static_cast<int64_t>(list.size)) return;
    }
    MAGNETO_BUG("graph: no such list item in " + name);
  }

  static bool is_argument(const Op& op, ValueId id) {
    for (const TensorRef& tensor : op.tensors) {
      if (tensor.value == id) return true;
    }
    return false;
  }

  const Graph& graph_;
  std::vector<bool> made_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).run(); }

}  // namespace magneto::graph
