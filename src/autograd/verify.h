// The shadow of a captured part: its nodes are run beside it, without effect, and must give the same bits.
#pragma once
#include <map>

#include "autograd/backward.h"

namespace magneto::autograd {

class Shadow {
 public:
  // Runs the turns [first, end) of the task as they stand.
  Shadow(const Runner& runner, size_t first, size_t end);
  // InternalError if the nodes gave something else. Lets go of that: a leaf may want the tensor for itself.
  void compare(const Part::Target& target, const at::Tensor& tensor);

 private:
  Runner nodes_;
  std::map<size_t, at::Tensor> leaves_;  // by turn: what would be accumulated
};

}  // namespace magneto::autograd
