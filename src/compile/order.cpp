// Searches backwards among groups of operators.
#include "compile/order.h"

#include <algorithm>
#include <queue>

#include "codegen/kernel.h"

namespace magneto::compile {

Order::Order(const graph::Graph& graph, size_t end) : before_(end), group_of_(end), members_(end), seen_(end, 0) {
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> makers(graph.values.size(), kNone);
  uint32_t last_seen = kNone;  // by anybody outside
  for (uint32_t i = 0; i < end; ++i) {
    const graph::Op& op = graph.ops[i];
    group_of_[i] = i;
    members_[i] = {i};
    for (const graph::TensorRef& tensor : op.tensors) {
      if (makers[tensor.value] != kNone) before_[i].push_back(makers[tensor.value]);
    }
    codegen::Kind kind = codegen::kind_of(graph, op);
    bool is_view = kind == codegen::Kind::View;
    for (const graph::TensorRef& result : op.results) makers[result.value] = is_view ? makers[op.tensors[0].value] : i;
    if (kind != codegen::Kind::None) continue;
    if (!op.info->kept && !op.info->random && !op.info->hidden_writes) continue;
    if (last_seen != kNone) before_[i].push_back(last_seen);
    last_seen = i;
  }
}

bool Order::would_cycle(const std::vector<uint32_t>& ops) {
  auto is_inside = [&](uint32_t op) { return std::binary_search(ops.begin(), ops.end(), op); };
  ++search_;
  std::vector<uint32_t> open;
  auto look_at = [&](uint32_t op) {
    uint32_t group = group_of_[op];
    if (seen_[group] == search_) return;
    seen_[group] = search_;
    open.push_back(group);
  };
  for (uint32_t op : ops) {
    for (uint32_t need : before_[op]) {
      if (!is_inside(need)) look_at(need);
    }
  }
  while (!open.empty()) {
    uint32_t group = open.back();
    open.pop_back();
    for (uint32_t member : members_[group]) {
      for (uint32_t need : before_[member]) {
        if (is_inside(need)) return true;
        look_at(need);
      }
    }
  }
  return false;
}

void Order::join(const std::vector<uint32_t>& ops) {
  for (uint32_t op : ops) {
    group_of_[op] = ops.front();
    members_[op].clear();
  }
  members_[ops.front()] = ops;
}

std::vector<uint32_t> Order::schedule() const {
  std::vector<uint32_t> waits(before_.size(), 0);
  std::vector<std::vector<uint32_t>> behind(before_.size());
  for (uint32_t op = 0; op < before_.size(); ++op) {
    for (uint32_t need : before_[op]) {
      if (group_of_[need] == group_of_[op]) continue;
      behind[group_of_[need]].push_back(group_of_[op]);
      ++waits[group_of_[op]];
    }
  }
  using Next = std::pair<uint32_t, uint32_t>;  // the last of a group, its first
  std::priority_queue<Next, std::vector<Next>, std::greater<>> ready;
  auto add = [&](uint32_t group) { ready.emplace(members_[group].back(), group); };
  for (uint32_t op = 0; op < before_.size(); ++op) {
    if (group_of_[op] == op && !waits[op]) add(op);
  }
  std::vector<uint32_t> result;
  while (!ready.empty()) {
    uint32_t group = ready.top().second;
    ready.pop();
    result.push_back(group);
    for (uint32_t next : behind[group]) {
      if (!--waits[next]) add(next);
    }
  }
  return result;
}

}  // namespace magneto::compile
