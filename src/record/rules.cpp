// The table of shape rules, put together from the families.
#include "record/rules.h"

#include <string_view>
#include <unordered_map>

#include "record/rules_common.h"

namespace magneto::record {
namespace {

using namespace rules;

using Table = std::unordered_map<std::string_view, Rule>;

const Table& table() {
  static const Table* all = [] {
    auto* made = new Table;
    for (auto family :
         {attention_rules, conv_rules, copy_rules, image_rules, index_rules, linalg_rules, loss_rules, matmul_rules,
          norm_rules, pointwise_rules, pool_rules, recurrent_rules, reduce_rules, view_rules}) {
      for (const Row& row : family()) made->emplace(row.name, row.rule);
    }
    return made;
  }();
  return *all;
}

}  // namespace

Rule find_rule(const std::string& operator_name) {
  auto found = table().find(operator_name);
  return found == table().end() ? nullptr : found->second;
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : table()) names.emplace_back(name);
  return names;
}

}  // namespace magneto::record
