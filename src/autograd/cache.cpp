// How the trie grows.
#include "autograd/cache.h"

#include <map>

#include "runtime/config.h"
#include "runtime/log.h"
#include "runtime/state.h"

namespace magneto::autograd {

using torch::dynamo::autograd::CacheKey;
using torch::dynamo::autograd::CacheKeyBuffer;

const std::shared_ptr<Branch>& Branch::step(const CacheKey& key, const Node& node, bool* is_new) {
  auto found = next_.find(key);
  if (found == next_.end()) {
    *is_new = true;
    Next next{CacheKeyBuffer(key.key, key.key_size), node.name(), std::make_shared<Branch>()};
    CacheKey lasting(key.node_type, next.key.get(), key.key_size);
    found = next_.emplace(lasting, std::move(next)).first;
  }
  return found->second.branch;
}

std::string Branch::choices() const {
  std::map<std::string, int> counts;
  for (const auto& [_, next] : next_) ++counts[next.name];
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : ", ") + name;
    if (count > 1) text += " (" + std::to_string(count) + " keys)";
  }
  return text;
}

void Cache::add(const std::shared_ptr<Branch>& end, std::shared_ptr<const Backward> backward) {
  if (kept_ >= runtime::config().compiled_autograd_limit) {
    runtime::count("compiled_autograd", "evictions");
    runtime::warn_once("compiled autograd has captured " + std::to_string(kept_) +
                       " backwards and drops them all (config.compiled_autograd_limit).");
    clear();  // the path to `end` goes with it, and is made anew when the backward comes next
  }
  end->backwards.insert(end->backwards.begin(), std::move(backward));
  if (static_cast<int64_t>(end->backwards.size()) > runtime::config().cache_limit)
    end->backwards.pop_back();
  else
    ++kept_;
  ++fruitless_;
}

void Cache::clear() {
  root_ = std::make_shared<Branch>();
  kept_ = fruitless_ = 0;
}

Cache& cache() {
  std::shared_ptr<Cache>& cache = runtime::process_state().backward_cache;
  if (!cache) cache = std::make_shared<Cache>();
  return *cache;
}

}  // namespace magneto::autograd
