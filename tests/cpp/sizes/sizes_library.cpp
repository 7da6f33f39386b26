// `torch.ops.magneto_sizes`: symbolic sizes in Python for the tests, without a recording.
#include <torch/library.h>

#include <memory>
#include <string>
#include <vector>

#include "record/sym_node.h"

namespace {

using magneto::graph::Symbols;

std::shared_ptr<Symbols>& table() {
  static auto symbols = std::make_shared<Symbols>();
  return symbols;
}

void reset() { table() = std::make_shared<Symbols>(); }

c10::SymInt size(int64_t hint, std::string input, int64_t dimension) {
  magneto::graph::SymbolSource source{0, static_cast<int32_t>(dimension), std::move(input)};
  return magneto::record::make_sym(table(), table()->add_symbol(hint, std::move(source)));
}

std::vector<std::string> guards() { return table()->guards(); }
std::vector<std::string> guards_in_words() { return table()->guards_in_words(); }
void freeze() { table()->freeze(); }

// What a recorder sees of an argument: the text of its expression, or "plain".
std::string seen_int(c10::SymInt number) {
  auto expr = magneto::record::expr_of(number, *table());
  return expr ? table()->text(*expr) : "plain";
}
std::string seen_number(const c10::Scalar& number) {
  auto expr = magneto::record::expr_of(number, *table());
  return expr ? table()->text(*expr) : "plain";
}

// Whether a tensor with these sizes and strides is contiguous, channels last (2d), has such strides, is dense.
std::vector<int64_t> layout(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  c10::SymNode base;
  for (auto numbers : {sizes, strides}) {
    for (const c10::SymInt& number : numbers) {
      if (number.is_heap_allocated()) base = number.toSymNode();
    }
  }
  TORCH_CHECK(base, "one number must be symbolic");
  std::vector<c10::SymNode> size_nodes, stride_nodes;
  for (const c10::SymInt& number : sizes) size_nodes.push_back(number.wrap_node(base));
  for (const c10::SymInt& number : strides) stride_nodes.push_back(number.wrap_node(base));
  auto answer = [](const c10::SymNode& node) { return static_cast<int64_t>(node->bool_()); };
  return {answer(base->is_contiguous(size_nodes, stride_nodes)),
          answer(base->is_channels_last_contiguous_2d(size_nodes, stride_nodes)),
          answer(base->is_channels_last_strides_2d(size_nodes, stride_nodes)),
          answer(base->is_non_overlapping_and_dense(size_nodes, stride_nodes))};
}

TORCH_LIBRARY(magneto_sizes, library) {
  library.def("reset() -> ()", reset);
  library.def("size(int hint, str input, int dimension) -> SymInt", size);
  library.def("guards() -> str[]", guards);
  library.def("guards_in_words() -> str[]", guards_in_words);
  library.def("freeze() -> ()", freeze);
  library.def("seen_int(SymInt number) -> str", seen_int);
  library.def("seen_number(Scalar number) -> str", seen_number);
  library.def("layout(SymInt[] sizes, SymInt[] strides) -> int[]", layout);
}

}  // namespace
