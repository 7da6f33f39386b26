// What was captured, by the keys of the nodes on the way: graphs that begin alike share a path.
#pragma once
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/backward.h"

namespace magneto::autograd {

// A place on the way.
class Branch {
 public:
  // The branch behind a key, made if there is none. `is_new` becomes true then.
  const std::shared_ptr<Branch>& step(const torch::dynamo::autograd::CacheKey& key, const Node& node, bool* is_new);
  // The nodes that lead on from here, for people: "MulBackward0, AddBackward0 (2 keys)".
  std::string choices() const;

  std::vector<std::shared_ptr<const Backward>> backwards;  // that end here, the last one used first

 private:
  struct Next {
    torch::dynamo::autograd::CacheKeyBuffer key;  // keeps the bytes of the key alive
    std::string name;
    std::shared_ptr<Branch> branch;
  };
  std::unordered_map<torch::dynamo::autograd::CacheKey, Next> next_;
};

// Owned by the GIL.
class Cache {
 public:
  const std::shared_ptr<Branch>& root() const { return root_; }
  bool is_empty() const { return kept_ == 0; }
  SilentTypes& silent() { return silent_; }

  // Notes that a backward was found at the end of a path.
  void note_hit() { fruitless_ = std::max<int64_t>(0, fruitless_ - kCapturesPerHit); }
  // Whether captures have been in vain for so long that another one hardly pays.
  bool is_in_vain() const { return fruitless_ > kFruitless; }
  // Whether it does not even pay to look one up; once in a while it does.
  bool is_given_up() { return is_in_vain() && ++skipped_ % kSkips != 0; }
  // Keeps a backward; drops all others first where there are too many.
  void add(const std::shared_ptr<Branch>& end, std::shared_ptr<const Backward> backward);
  void clear();

 private:
  static constexpr int64_t kFruitless = 64, kCapturesPerHit = 4, kSkips = 16;

  std::shared_ptr<Branch> root_ = std::make_shared<Branch>();
  SilentTypes silent_;
  int64_t kept_ = 0;
  int64_t fruitless_ = 0;  // captures that no hits have made up for
  int64_t skipped_ = 0;
};

Cache& cache();

}  // namespace magneto::autograd
