// The operator magneto::kernel, which stands in a graph for those that a kernel replaces.
#pragma once
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "codegen/kernel.h"
#include "runtime/kernel_module.h"

namespace magneto::codegen {

// Kernels of one module and what each is called with. Kernels that do the same share a function.
class Library {
 public:
  struct Shared {
    std::shared_ptr<runtime::KernelModule> module;
  };

  // Returns the argument of magneto::kernel that makes it call this one. It may run once the module is there.
  c10::IValue add(const graph::Graph& graph, const Kernel& kernel);
  // All functions, in as many sources of about equal length, or fewer.
  std::vector<std::string> sources(size_t most) const;
  void provide(std::shared_ptr<runtime::KernelModule> module);

 private:
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::vector<std::string> functions_;
};

// magneto::kernel(kernel, Tensor[] inputs) -> Tensor[]
c10::OperatorHandle kernel_op();

}  // namespace magneto::codegen
