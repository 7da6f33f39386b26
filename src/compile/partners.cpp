// Finds functional partners in torch's registry by their names and schemas.
#include "compile/partners.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "graph/effects.h"
#include "graph/text.h"

namespace magneto::compile {
namespace {

using c10::OperatorHandle;
using std::string;

// Operators whose schemas do not say that they write. The others of schema_info.cpp have no partner.
struct Unmarked {
  const char* name;
  const char* partner;
  std::vector<uint32_t> written;
  std::vector<int32_t> sources;
};

const std::vector<Unmarked>& unmarked() {
  static const std::vector<Unmarked> rows = {
      {"aten::native_batch_norm", "aten::_native_batch_norm_legit_functional", {3, 4}, {0, 1, 2, 3, 4, 5, 6, 7}},
      {"aten::cudnn_batch_norm", "aten::_batch_norm_with_update_functional", {3, 4}, {0, 1, 2, 3, 4, 6, 7}},
      {"aten::rrelu_with_noise", "aten::rrelu_with_noise_functional", {1}, {0, 1, 2, 3, 4, 5}},
  };
  return rows;
}

const Unmarked* find_unmarked(const string& name) {
  for (const Unmarked& row : unmarked()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// "aten::add_", "aten::__iadd__" and "aten::add" (with out=) are named after "aten::add".
string functional_name(string name) {
  constexpr std::string_view kInPlace = "aten::__i";
  if (name.starts_with(kInPlace) && name.ends_with("__")) return name.erase(kInPlace.size() - 1, 1);
  if (name.ends_with('_') && !name.ends_with("__")) name.pop_back();
  return name;
}

// Those that are called `name`, in whatever overload.
std::vector<OperatorHandle> overloads(const string& name) {
  static const auto& all = *[] {
    auto* names = new std::unordered_multimap<string, c10::OperatorName>;
    for (const auto& each : c10::Dispatcher::singleton().getAllOpNames()) names->emplace(each.name, each);
    return names;
  }();
  std::vector<OperatorHandle> found;
  auto [first, last] = all.equal_range(name);
  for (auto each = first; each != last; ++each) {
    if (auto handle = c10::Dispatcher::singleton().findSchema(each->second)) found.push_back(*handle);
  }
  return found;
}

int32_t find_argument(const c10::FunctionSchema& schema, const c10::Argument& wanted) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != wanted.name()) continue;
    bool same = graph::inner_type(*arguments[i].real_type()) == graph::inner_type(*wanted.real_type());
    return same ? static_cast<int32_t>(i) : Partner::kDefault;
  }
  return Partner::kDefault;
}

std::optional<Partner> match(const OperatorHandle& op, const std::vector<uint32_t>& written,
                             const OperatorHandle& candidate) {
  const graph::SchemaInfo& info = graph::schema_info(candidate);
  if (info.writes || info.returns_view || info.hidden_writes) return std::nullopt;
  const auto& own = op.schema();
  const auto& theirs = candidate.schema();
  size_t fresh = 0;
  for (const auto& result : own.returns()) fresh += result.alias_info() == nullptr;
  if (theirs.returns().size() != fresh + written.size()) return std::nullopt;
  Partner partner{candidate, &info, {}, written, true};
  size_t taken = 0, taken_written = 0;
  for (const c10::Argument& argument : theirs.arguments()) {
    int32_t source = find_argument(own, argument);
    partner.sources.push_back(source);
    if (source == Partner::kDefault) {
      if (!argument.default_value()) return std::nullopt;
      continue;
    }
    ++taken;
    taken_written += std::ranges::find(written, static_cast<uint32_t>(source)) != written.end();
  }
  partner.takes_written = taken_written > 0;
  bool all = taken == own.arguments().size() && taken_written == written.size();
  bool all_but_written = taken_written == 0 && taken == own.arguments().size() - written.size();
  return all || all_but_written ? std::optional(std::move(partner)) : std::nullopt;
}

std::vector<uint32_t> marked_arguments(const graph::SchemaInfo& info) {
  std::vector<uint32_t> marked;
  for (uint32_t i = 0; i < info.written.size(); ++i) {
    if (info.written[i]) marked.push_back(i);
  }
  return marked;
}

std::optional<Partner> search(const OperatorHandle& op) {
  auto written = marked_arguments(graph::schema_info(op));
  if (written.empty()) {
    const Unmarked* row = find_unmarked(op.schema().name());
    auto handle = row ? c10::Dispatcher::singleton().findSchema({row->partner, ""}) : std::nullopt;
    if (!handle) return std::nullopt;
    return Partner{*handle, &graph::schema_info(*handle), row->sources, row->written, true};
  }
  std::optional<Partner> best;
  string name = functional_name(op.schema().name());
  for (const string& called : {name, name + "_functional"}) {
    for (const OperatorHandle& candidate : overloads(called)) {
      auto found = match(op, written, candidate);
      if (!found) continue;
      bool same_overload = candidate.schema().overload_name() == op.schema().overload_name();
      if (!best || same_overload) best = std::move(found);
    }
  }
  return best;
}

}  // namespace

std::vector<uint32_t> written_arguments(const graph::Op& op) {
  if (op.info->writes) return marked_arguments(*op.info);
  if (!graph::writes_unmarked(op)) return {};
  const Unmarked* row = find_unmarked(op.handle.schema().name());
  std::vector<uint32_t> written;
  for (const graph::TensorRef& tensor : op.tensors) {
    bool listed = !row || std::ranges::find(row->written, tensor.position) != row->written.end();
    if (listed) written.push_back(tensor.position);
  }
  return written;
}

const Partner* find_partner(const OperatorHandle& op) {
  static std::mutex& lock = *new std::mutex;
  // Owned by `lock`; by SchemaInfo, which stays where it is.
  static auto& found = *new std::unordered_map<const graph::SchemaInfo*, std::unique_ptr<const Partner>>;
  std::lock_guard<std::mutex> hold(lock);
  auto [entry, is_new] = found.try_emplace(&graph::schema_info(op));
  if (is_new) {
    if (auto partner = search(op)) entry->second = std::make_unique<const Partner>(std::move(*partner));
  }
  return entry->second.get();
}

std::optional<OperatorHandle> find_view(const OperatorHandle& op) {
  for (const OperatorHandle& candidate : overloads(functional_name(op.schema().name()))) {
    const auto &own = op.schema().arguments(), &theirs = candidate.schema().arguments();
    auto same = [](const c10::Argument& a, const c10::Argument& b) {
      return a.name() == b.name() && *a.real_type() == *b.real_type();
    };
    if (graph::schema_info(candidate).returns_view && std::ranges::equal(own, theirs, same)) return candidate;
  }
  return std::nullopt;
}

}  // namespace magneto::compile
