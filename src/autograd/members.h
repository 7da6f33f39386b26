// What a node holds that may differ from run to run, by reference: so that something else can stand there for a while.
#pragma once
#include <ATen/TensorGeometry.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <vector>

#include "autograd/nodes.h"

namespace magneto::autograd {

struct Members {
  bool is_complete;  // the node is of a type that torch generates; of others only the sizes of results are known
  std::vector<torch::autograd::SavedVariable*> tensors;
  std::vector<c10::SymInt*> sizes;              // and, last, those that its results must have
  std::vector<at::TensorGeometry*> geometries;  // some of the sizes are theirs: recompute() when these change
};

Members members_of(Node& node);

}  // namespace magneto::autograd
