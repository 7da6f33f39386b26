// Removes writes from a graph, operator by operator.
#include "compile/functional.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <optional>

#include "compile/builder.h"
#include "compile/draws.h"
#include "compile/partners.h"
#include "compile/views.h"
#include "record/infer.h"
#include "record/trace_tensor.h"
#include "record/trace_values.h"
#include "runtime/errors.h"
#include "runtime/state.h"

namespace magneto::compile {
namespace {

using graph::Graph;
using graph::Op;
using graph::Role;
using graph::TensorRef;
using graph::ValueId;

using NodeId = uint32_t;
constexpr NodeId kNone = UINT32_MAX;

// A tensor of the original at some time: one that has its memory, or a view of another node.
struct Node {
  ValueId memory;         // in memories_
  uint32_t era;           // of the memory, when it was made
  NodeId parent = kNone;  // what it is a view of
  uint32_t view = 0;      // in views_
  TensorRef place = {};   // among the results of the view operator; the original's value, if it tells the layout
  ValueId value = 0;      // in the new graph, as of `generation`
  uint32_t generation = kNone;
};

// An operator that makes views, to be run anew when its argument has changed.
struct View {
  Op op;            // in terms of the new graph
  size_t argument;  // in op.tensors
  std::vector<NodeId> nodes;
};

struct Memory {
  c10::SmallVector<NodeId, 1> roots;  // tensors that are no views; how several lie to each other is not known
  ValueId outside = kNone;            // the argument or state tensor that has it, in the new graph
  const Op* written_by = nullptr;     // the last one
  uint32_t generation = 0;            // counts writes
  uint32_t era = 0;                   // counts changes of its size
  bool versioned = false;             // a write was counted by the tensor's version
  bool is_strided = false;            // some view counts from the start of the memory
};

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sym_sizes() == b.sym_sizes() &&
         a.sym_strides() == b.sym_strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Where there is more than one element, so that a kernel goes through both in the same way.
bool same_steps(const at::Tensor& a, const at::Tensor& b) {
  if (a.sym_sizes() != b.sym_sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.sym_size(d) != 1 && a.sym_stride(d) != b.sym_stride(d)) return false;
  }
  return true;
}

bool is_outside(const graph::Value& value) { return value.role == Role::Argument || graph::is_state(value.role); }

bool is_metadata_change(const Op& op) { return op.handle.hasTag(at::Tag::inplace_view); }

// Expressions of other symbols, with assumptions of their own: the functional form may need more of them.
void renew_symbols(Graph& graph) {
  if (!graph.symbols) return;
  auto fresh = std::make_shared<graph::Symbols>();
  for (const graph::Symbol& symbol : graph.symbols->symbols()) fresh->declare(symbol);
  auto renew = [&](graph::ExprId& expr) { expr = fresh->parse(graph.symbols->text(expr)); };
  for (graph::Value& value : graph.values) std::ranges::for_each(value.shape, renew);
  for (Op& op : graph.ops) {
    for (graph::SizeRef& size : op.sizes) renew(size.expr);
  }
  for (const std::string& guard : graph.symbols->guards()) fresh->assume(fresh->parse(guard));
  fresh->use_ranges();
  graph.symbols = std::move(fresh);
}

class Pass {
 public:
  explicit Pass(const Graph& graph)
      : from_(graph), memories_(graph.values.size()), nodes_of_(graph.values.size(), kNone) {
    renew_symbols(from_);
    builder_.graph.symbols = from_.symbols;
    builder_.graph.lines = from_.lines;
    builder_.graph.constant_tensors = from_.constant_tensors;
  }

  Graph run() {
    begin();
    for (const Op& op : from_.ops) {
      op_ = &op;
      try {
        visit(op);
      } catch (const c10::Error& error) {
        refuse(error.what_without_backtrace());
      }
    }
    finish();
    graph::remove_dead_ops(builder_.graph);
    if (from_.symbols) from_.symbols->freeze();
    return std::move(builder_.graph);
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    runtime::count("functional", op_->info->name + ": " + reason);
    std::string where;
    if (op_->line != Op::kNoLine) {
      const graph::Line& line = from_.lines[op_->line];
      where = ", at " + line.file + ":" + std::to_string(line.number) + " in " + line.function;
    }
    throw UserError("the graph has no functional form: " + op_->info->name + where + ": " + reason);
  }

  Memory& memory(const Node& node) { return memories_[node.memory]; }
  Node& node(ValueId original) { return nodes_[nodes_of_[original]]; }

  // ---- values

  // A value of the new graph that looks like one of the original's.
  ValueId copy_value(ValueId original) {
    graph::Value value = from_.values[original];
    auto id = static_cast<ValueId>(builder_.graph.values.size());
    Memory& memory = memories_[value.memory];
    value.memory = memory.roots.empty() ? id : builder_.graph.values[nodes_[memory.roots[0]].value].memory;
    builder_.graph.values.push_back(std::move(value));
    return id;
  }

  void add_root(ValueId original, ValueId value) {
    Memory& memory = memories_[from_.values[original].memory];
    nodes_of_[original] = static_cast<NodeId>(nodes_.size());
    memory.roots.push_back(nodes_of_[original]);
    nodes_.push_back(
        {.memory = from_.values[original].memory, .era = memory.era, .value = value, .generation = memory.generation});
  }

  void begin() {
    auto bring_in = [&](const std::vector<ValueId>& ids, std::vector<ValueId>& list) {
      for (ValueId original : ids) {
        list.push_back(copy_value(original));
        add_root(original, list.back());
        memories_[from_.values[original].memory].outside = list.back();
      }
    };
    bring_in(from_.inputs, builder_.graph.inputs);
    bring_in(from_.states, builder_.graph.states);
    bring_in(from_.constants, builder_.graph.constants);
    for (const Op& op : from_.ops) {
      if (op.info->name != "aten::as_strided" && op.info->name != "aten::as_strided_") continue;
      for (const TensorRef& result : op.results) memories_[from_.values[result.value].memory].is_strided = true;
    }
  }

  // The value that a node is now.
  ValueId current(NodeId id) {
    if (nodes_[id].era != memory(nodes_[id]).era) refuse("its memory was resized under another name");
    if (nodes_[id].generation == memory(nodes_[id]).generation) return nodes_[id].value;
    MAGNETO_ASSERT(nodes_[id].parent != kNone);
    View& view = views_[nodes_[id].view];
    Op op = view.op;
    op.tensors[view.argument].value = current(nodes_[id].parent);
    auto results = nodes_[id].place.value == kNone ? builder_.append(std::move(op)) : append_strided(std::move(op), id);
    for (NodeId made : views_[nodes_[id].view].nodes) {
      const TensorRef& place = nodes_[made].place;
      auto same = [&](const TensorRef& result) {
        return result.position == place.position && result.item == place.item;
      };
      nodes_[made].value = std::ranges::find_if(results, same)->value;
      nodes_[made].generation = memory(nodes_[made]).generation;
    }
    return nodes_[id].value;
  }

  // A view by strides of memory whose size is not known looks as it was recorded.
  Builder::Results append_strided(Op op, NodeId id) {
    op.results.push_back({0, TensorRef::kWhole, copy_value(nodes_[id].place.value)});
    builder_.graph.ops.push_back(op);
    return op.results;
  }

  at::Tensor trace(NodeId id) { return builder_.trace(current(id)); }

  // ---- operators

  void visit(const Op& op) {
    if (is_metadata_change(op)) return change_metadata(op);
    if (auto written = written_arguments(op); !written.empty()) return replace(op);
    if (auto argument = viewed(op)) return add_views(op, *argument);
    keep(op);
  }

  Op translated(const Op& op) {
    Op copy = op;
    for (TensorRef& tensor : copy.tensors) tensor.value = current(nodes_of_[tensor.value]);
    copy.results.clear();
    return copy;
  }

  static const TensorRef* as_argument(const Op& op, ValueId value) {
    auto found = std::ranges::find(op.tensors, value, &TensorRef::value);
    return found == op.tensors.end() ? nullptr : found;
  }

  // The argument in whose memory all results live.
  std::optional<size_t> viewed(const Op& op) {
    if (op.results.empty()) return std::nullopt;
    ValueId memory = from_.values[op.results[0].value].memory;
    for (const TensorRef& result : op.results) {
      if (as_argument(op, result.value) || from_.values[result.value].memory != memory) return std::nullopt;
    }
    std::optional<size_t> argument;
    for (size_t i = 0; i < op.tensors.size(); ++i) {
      if (node(op.tensors[i].value).memory != memory) continue;
      if (argument) return std::nullopt;
      argument = i;
    }
    return argument;
  }

  void add_views(const Op& op, size_t argument) {
    NodeId parent = nodes_of_[op.tensors[argument].value];
    views_.push_back({translated(op), argument, {}});
    bool recorded = op.info->name == "aten::as_strided";
    for (const TensorRef& result : op.results) {
      nodes_of_[result.value] = add_node(parent, {result.position, result.item, recorded ? result.value : kNone});
    }
  }

  // A result of the last view.
  NodeId add_node(NodeId parent, const TensorRef& place) {
    auto id = static_cast<NodeId>(nodes_.size());
    views_.back().nodes.push_back(id);
    nodes_.push_back({.memory = nodes_[parent].memory,
                      .era = nodes_[parent].era,
                      .parent = parent,
                      .view = static_cast<uint32_t>(views_.size() - 1),
                      .place = place});
    return id;
  }

  // Another tensor that shows what `parent` does.
  NodeId add_alias(NodeId parent) {
    Op op = op_like(*op_, "aten::alias");
    put(op, 0, 0);
    views_.push_back({std::move(op), 0, {}});
    return add_node(parent, {0, TensorRef::kWhole, kNone});
  }

  void keep(const Op& op) {
    Op copy = translated(op);
    for (const TensorRef& result : op.results) {
      const TensorRef* argument = as_argument(op, result.value);
      ValueId value =
          argument ? copy.tensors[static_cast<size_t>(argument - op.tensors.begin())].value : copy_value(result.value);
      copy.results.push_back({result.position, result.item, value});
      if (!argument) add_root(result.value, value);
    }
    builder_.graph.ops.push_back(std::move(copy));
  }

  // ---- writes

  // `call` with the arguments of `op` that it takes.
  void take_arguments(Op& call, const Partner& partner, const Op& op) {
    for (uint32_t i = 0; i < partner.sources.size(); ++i) {
      if (partner.sources[i] == Partner::kDefault) {
        choose_default(call, i, op, partner);
        continue;
      }
      auto source = static_cast<uint32_t>(partner.sources[i]);
      call.args[i] = op.args[source];
      for (const graph::TensorList& list : op.lists) {
        if (list.position == source) call.lists.push_back({i, list.size, list.optional});
      }
      for (const graph::SizeRef& size : op.sizes) {
        if (size.position == source) call.sizes.push_back({i, size.item, size.expr});
      }
      for (const TensorRef& tensor : op.tensors) {
        if (tensor.position == source) call.tensors.push_back({i, tensor.item, current(nodes_of_[tensor.value])});
      }
    }
  }

  // A factory makes what its destination was.
  void choose_default(Op& call, uint32_t position, const Op& op, const Partner& partner) {
    const std::string& name = call.handle.schema().arguments()[position].name();
    if (name != "dtype" && name != "device") return;
    auto written = std::ranges::find(op.tensors, partner.written[0], &TensorRef::position);
    const graph::Value& value = from_.values[written->value];
    if (name == "device") call.args[position] = value.device;
    if (name == "dtype") call.args[position] = static_cast<int64_t>(value.dtype);
  }

  // Items of lists are worked on one after the other, so one that is written must be no other argument, too.
  void check_lists(const Op& op, const Partner& partner) {
    for (const TensorRef& written : op.tensors) {
      if (written.item == TensorRef::kWhole) continue;
      if (std::ranges::find(partner.written, written.position) == partner.written.end()) continue;
      for (const TensorRef& other : op.tensors) {
        if (other.item == written.item || node(other.value).memory != node(written.value).memory) continue;
        refuse("a list has two tensors in the same memory");
      }
    }
  }

  void replace(const Op& op) {
    if (op.info->name == "aten::copy_") return replace_copy(op);
    const Partner* partner = find_partner(op.handle);
    if (!partner) refuse("torch has no functional partner of it");
    check_lists(op, *partner);
    Op call = op_like(op, partner->handle);
    call.autocast = op.autocast;
    take_arguments(call, *partner, op);
    oldest_ = builder_.graph.values.size();
    auto results = append_partner(builder_, std::move(call));
    auto find = [&](uint32_t position, int32_t item) {
      for (const TensorRef& result : results) {
        if (result.position == position && result.item == item) return result.value;
      }
      refuse("its functional partner " + partner->info->name + " gives fewer results");
    };
    const auto& returns = op.handle.schema().returns();
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < returns.size(); ++i) {
      if (returns[i].alias_info()) continue;
      for (const TensorRef& result : op.results) {
        if (result.position == i) add_root(result.value, in_layout_of(result.value, find(fresh, result.item)));
      }
      ++fresh;
    }
    for (uint32_t k = 0; k < partner->written.size(); ++k) {
      for (const TensorRef& tensor : op.tensors) {
        if (tensor.position == partner->written[k]) store(op, *partner, tensor, find(fresh + k, tensor.item));
      }
    }
    take_returned(op);
  }

  // A result of a partner, which need not have the strides that the original gives it.
  ValueId in_layout_of(ValueId original, ValueId made) {
    const graph::Value &wanted = from_.values[original], &found = builder_.graph.values[made];
    if (wanted.shape == found.shape && wanted.sizes == found.sizes && wanted.strides == found.strides) return made;
    at::Tensor layout = record::trace_of(from_, original);
    Op empty = op_like(*op_, "aten::empty_strided");
    builder_.set(empty, 0, layout.sym_sizes());
    builder_.set(empty, 1, layout.sym_strides());
    empty.args[2] = static_cast<int64_t>(wanted.dtype);
    empty.args[4] = wanted.device;
    return copied(builder_.add(std::move(empty)), made);
  }

  // What an operator returns in place of an argument that it has written.
  void take_returned(const Op& op) {
    for (const TensorRef& result : op.results) {
      if (nodes_of_[result.value] != kNone) continue;
      for (const TensorRef& tensor : op.tensors) {
        if (node(tensor.value).memory != from_.values[result.value].memory) continue;
        nodes_of_[result.value] = add_alias(nodes_of_[tensor.value]);
      }
      if (nodes_of_[result.value] == kNone) refuse("it returns memory that is not its own");
    }
  }

  // A partner may return its argument, or a view of it.
  bool is_fresh(ValueId contents) const {
    return contents >= oldest_ && builder_.graph.values[contents].memory == contents;
  }

  // The new contents of an argument, as the partner gives them.
  void store(const Op& op, const Partner& partner, const TensorRef& target, ValueId contents) {
    NodeId id = nodes_of_[target.value];
    at::Tensor before = trace(id), after = builder_.trace(contents);
    bool is_destination = !partner.takes_written;
    // Kernels draw numbers in the order of memory, or in another one where it has gaps.
    if (op.info->random && !same_steps(before, after)) refuse("it draws random numbers into memory of this layout");
    if (is_destination && before.scalar_type() != after.scalar_type() && !op.handle.hasTag(at::Tag::pointwise)) {
      refuse("its result is computed in the type of out=, which differs from that of its arguments");
    }
    if (before.sym_sizes() == after.sym_sizes()) return write(id, contents, is_fresh(contents));
    if (!is_destination) refuse("its functional partner gives another shape");
    resize_to(target, op, contents);
  }

  // The source itself stands for what a view shows afterwards.
  void replace_copy(const Op& op) {
    NodeId id = nodes_of_[op.tensors[0].value];
    ValueId source = current(nodes_of_[op.tensors[1].value]);
    if (nodes_[id].parent == kNone) {
      write(id, source, /*is_fresh=*/false);
    } else {
      if (builder_.graph.values[source].device != trace(id).device()) {
        Op moved = op_like(op, "aten::_to_copy");
        put(moved, 0, source);
        moved.args[3] = trace(id).device();
        source = builder_.add(std::move(moved));
      }
      if (builder_.trace(source).sym_sizes() != trace(id).sym_sizes()) {
        Op expanded = op_like(op, "aten::expand");
        put(expanded, 0, source);
        builder_.set(expanded, 1, trace(id).sym_sizes());
        source = builder_.add(std::move(expanded));
      }
      write(id, source, /*is_fresh=*/false);
    }
    take_returned(op);
  }

  // From now on `id` shows `contents`. `is_fresh`: nobody else has them.
  void write(NodeId id, ValueId contents, bool is_fresh) {
    Memory& written = memory(nodes_[id]);
    if (written.roots.size() != 1) refuse("it writes memory that tensors share in a way that the graph does not say");
    while (nodes_[id].parent != kNone) {
      NodeId parent = nodes_[id].parent;
      View& view = views_[nodes_[id].view];
      if (written.outside != kNone && !stays_inside(view.op, builder_.trace(current(parent)))) {
        refuse("it writes memory by strides that may lie outside of an argument");
      }
      auto whole = put_back(builder_, view.op, nodes_[id].place, current(parent), contents);
      if (!whole) refuse("it writes through " + view.op.info->name + ", of which there is no inverse");
      is_fresh |= *whole != contents && builder_.graph.values[*whole].memory != builder_.graph.values[contents].memory;
      contents = *whole;
      id = parent;
    }
    Node& root = nodes_[id];
    bool fits = is_fresh && !written.is_strided && same_layout(builder_.trace(contents), builder_.trace(root.value));
    if (!fits) contents = copied(root.value, contents);
    root.value = contents;
    root.generation = ++written.generation;
    written.written_by = op_;
    written.versioned |= op_->info->writes && !op_->below_inplace;
  }

  // Whether a view shows elements of the viewed tensor only. Where that tensor begins in its memory is not known.
  bool stays_inside(const Op& view, const at::Tensor& viewed) {
    if (view.info->name != "aten::as_strided") return true;
    auto sizes = builder_.numbers(view, 1), strides = builder_.numbers(view, 2);
    c10::SymInt end = 1;
    for (size_t i = 0; i < sizes.size(); ++i) end += (sizes[i] - 1) * strides[i];
    return view.args[3].isNone() && viewed.is_contiguous() && end <= viewed.sym_numel();
  }

  // With the layout of `target`.
  ValueId copied(ValueId target, ValueId contents) {
    Op op = op_like(*op_, "aten::copy");
    put(op, 0, target);
    put(op, 1, contents);
    return builder_.add(std::move(op));
  }

  // ---- other sizes and strides

  void change_metadata(const Op& op) {
    std::string name = op.handle.schema().name();
    const TensorRef& target = op.tensors[0];
    name.pop_back();
    bool outside = is_outside(from_.values[target.value]);
    if (name == "aten::resize" || name == "aten::resize_as") {
      if (outside) refuse("it resizes an argument or a state tensor");
      return resize(op);
    }
    if (name == "aten::set") {
      if (outside) refuse("it gives an argument or a state tensor other memory");
      if (op.info->name != "aten::set_.source_Tensor") refuse("it gives a tensor other memory");
      nodes_of_[target.value] = add_alias(nodes_of_[op.tensors[1].value]);
      return;
    }
    if (outside) outside_changes_.push_back(&op);
    if (name == "aten::detach") return;
    auto handle = find_view(op.handle);
    if (!handle) refuse("torch has no view operator that does the same");
    Op view = translated(op);
    view.handle = *handle;
    view.info = &graph::schema_info(*handle);
    views_.push_back({std::move(view), 0, {}});
    nodes_of_[target.value] = add_node(nodes_of_[target.value], {0, TensorRef::kWhole, kNone});
  }

  // What the original leaves of the sizes and strides of an argument.
  at::Tensor layout_after(const Op& op, const TensorRef& target) {
    c10::Stack stack = builder_.stack_of(translated(op));
    at::Tensor before = trace(nodes_of_[target.value]);
    at::Tensor scratch =
        record::make_trace(before.sym_sizes(), before.sym_strides(), 0, before.scalar_type(), before.device());
    stack[target.position] = scratch;
    record::infer(op.handle, *op.info, scratch.key_set(), &stack);
    return scratch;
  }

  void resize(const Op& op) {
    const TensorRef& target = op.tensors[0];
    NodeId id = nodes_of_[target.value];
    at::Tensor after = layout_after(op, target);
    at::Tensor before = trace(id);
    if (after.sym_sizes() == before.sym_sizes() && after.sym_strides() == before.sym_strides()) return;
    auto item = static_cast<int64_t>(before.itemsize());
    if ((after.sym_numel() + before.sym_storage_offset()) * item <= before.storage().sym_nbytes()) {
      Op view = op_like(op, "aten::as_strided");
      put(view, 0, 0);
      builder_.set(view, 1, after.sym_sizes());
      builder_.set(view, 2, after.sym_strides());
      views_.push_back({std::move(view), 0, {}});
      nodes_of_[target.value] = add_node(id, {0, TensorRef::kWhole, kNone});
      return;
    }
    Op call = op_like(op, "aten::resize");
    put(call, 0, current(id));
    builder_.set(call, 1, after.sym_sizes());
    oldest_ = builder_.graph.values.size();
    resize_to(target, op, builder_.add(std::move(call)));
  }

  // The memory of `target` gets another size.
  void resize_to(const TensorRef& target, const Op& op, ValueId contents) {
    NodeId id = nodes_of_[target.value];
    Memory& resized = memory(nodes_[id]);
    if (nodes_[id].parent != kNone || resized.roots.size() != 1 || resized.outside != kNone) {
      refuse("it resizes memory that the program sees under another name, too");
    }
    at::Tensor after = layout_after(op, target);
    if (!is_fresh(contents)) {
      Op clone = op_like(op, "aten::clone");
      put(clone, 0, contents);
      contents = builder_.add(std::move(clone));
    }
    if (!same_layout(after, builder_.trace(contents)))
      refuse("it resizes to a layout that its functional partner does not give");
    Node& root = nodes_[id];
    root.value = contents;
    root.era = ++resized.era;
    root.generation = ++resized.generation;
  }

  // ---- the edge

  bool lives_outside(const Node& node) { return memory(node).outside != kNone; }

  void finish() {
    std::vector<ValueId>& outputs = builder_.graph.outputs;
    for (ValueId original : from_.outputs) {
      outputs.push_back(lives_outside(node(original)) ? kNone : current(nodes_of_[original]));
    }
    for (Memory& each : memories_) write_outside(each);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] != kNone) continue;
      ValueId original = from_.outputs[i];
      outputs[i] = is_outside(from_.values[original]) ? root_of(original) : current(nodes_of_[original]);
    }
    for (const Op* change : outside_changes_) {
      Op op = *change;
      op.tensors[0].value = root_of(op.tensors[0].value);
      op.results.clear();
      for (const TensorRef& result : change->results)
        op.results.push_back({result.position, result.item, op.tensors[0].value});
      builder_.graph.ops.push_back(std::move(op));
    }
  }

  // The argument or state tensor itself, whatever was done to it.
  ValueId root_of(ValueId original) {
    NodeId id = nodes_of_[original];
    while (nodes_[id].parent != kNone) id = nodes_[id].parent;
    return nodes_[id].value;
  }

  void write_outside(Memory& written) {
    if (written.outside == kNone || !written.written_by) return;
    op_ = written.written_by;
    Op op = op_like(*op_, "aten::copy_");
    op.below_inplace = !written.versioned;
    put(op, 0, written.outside);
    Node& root = nodes_[written.roots[0]];
    put(op, 1, root.value);
    op.results.push_back({0, TensorRef::kWhole, written.outside});
    builder_.graph.ops.push_back(std::move(op));
    root.value = written.outside;
    root.generation = ++written.generation;
  }

  Graph from_;
  Builder builder_{Graph()};
  const Op* op_ = nullptr;        // being replaced
  size_t oldest_ = 0;             // of the values that its partner has made
  std::vector<Memory> memories_;  // by the original's number of the memory
  std::vector<NodeId> nodes_of_;  // by the original's values: what they are now
  std::vector<Node> nodes_;
  std::vector<View> views_;
  std::vector<const Op*> outside_changes_;  // of sizes and strides
};

}  // namespace

Graph make_functional(const Graph& graph) {
  if (why_not_functional(graph).empty()) return graph;
  Graph functional = Pass(graph).run();
  graph::verify(functional);
  if (std::string fault = why_not_functional(functional); !fault.empty()) MAGNETO_BUG("functional form: " + fault);
  return functional;
}

size_t edge_of(const Graph& graph) {
  auto first = std::ranges::find_if(graph.ops, [](const Op& op) { return !written_arguments(op).empty(); });
  return static_cast<size_t>(first - graph.ops.begin());
}

std::string why_not_functional(const Graph& graph) {
  std::vector<bool> written(graph.values.size(), false);
  auto outside_memory = [&](ValueId id) { return graph.values[graph.values[id].memory].role != Role::Result; };
  for (size_t i = edge_of(graph); i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    std::string where = ", in operation " + std::to_string(i) + " (" + op.info->name + ")";
    if (is_metadata_change(op) && is_outside(graph.values[op.tensors[0].value]) && find_view(op.handle)) continue;
    if (op.info->name == "aten::copy_") {
      ValueId target = op.tensors[0].value, source = op.tensors[1].value;
      if (!is_outside(graph.values[target])) return "a value changes" + where;
      if (written[target]) return "an argument is written twice" + where;
      if (outside_memory(source)) return "the new contents of an argument are no value of their own" + where;
      written[target] = true;
      continue;
    }
    if (!written_arguments(op).empty()) return "a value changes" + where;
    for (const TensorRef& result : op.results) {
      if (!outside_memory(result.value)) return "an operator works on what was written" + where;
    }
  }
  return "";
}

}  // namespace magneto::compile
