// The functional partner of an operator that writes its arguments: aten::add for aten::add_ and aten::add.out.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace magneto::compile {

struct Partner {
  static constexpr int32_t kDefault = -1;

  c10::OperatorHandle handle;
  const graph::SchemaInfo* info;  // of `handle`
  // For each argument of the partner, the original's argument that it is, or kDefault.
  std::vector<int32_t> sources;
  // What the partner returns: the original's results that are no arguments of it, then the new contents of these
  // arguments of the original.
  std::vector<uint32_t> written;
  bool takes_written;  // the partner sees the old contents, too; otherwise they were mere destinations (out=)
};

// The arguments that running `op` may write, whether its schema says so or not.
std::vector<uint32_t> written_arguments(const graph::Op& op);

// Null: torch has none. Any thread; the result stays valid forever.
const Partner* find_partner(const c10::OperatorHandle& op);

// The view operator that gives what `op` turns its argument into: aten::t for aten::t_. It takes the same arguments.
std::optional<c10::OperatorHandle> find_view(const c10::OperatorHandle& op);

}  // namespace magneto::compile
