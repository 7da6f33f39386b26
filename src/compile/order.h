// Which operators must run before which, while some of them are joined into one.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace magneto::compile {

// Of the operators before `end`. What draws random numbers or can be seen otherwise stays in its order. Nobody waits
// for a view, but for what it shows: so kernels may look through views of what they make. A view runs as soon as it
// can, and thus before all that come after it.
class Order {
 public:
  Order(const graph::Graph& graph, size_t end);

  // Whether these (sorted) would have to run both before and after another one if they were joined.
  bool would_cycle(const std::vector<uint32_t>& ops);
  void join(const std::vector<uint32_t>& ops);
  // The first operator of each group or single one, in an order in which they can run: each as late as the last of its
  // group was.
  std::vector<uint32_t> schedule() const;

 private:
  std::vector<std::vector<uint32_t>> before_;   // by operator: those that it needs directly
  std::vector<uint32_t> group_of_;              // by operator: the first of its group
  std::vector<std::vector<uint32_t>> members_;  // by the first of a group
  std::vector<uint32_t> seen_;                  // by the first of a group: the last search that met it
  uint32_t search_ = 0;
};

}  // namespace magneto::compile
