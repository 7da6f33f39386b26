// `torch.ops.magneto_sizes`: symbolic sizes in Python for the tests, without a recording.
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/size_binding.h"
#include "record/sym_node.h"
#include "runtime/torch_python.h"

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

// While `look` is on, what `tensor * other` sees of `other`, which torch has made a tensor if it was a number.
constexpr auto kLook = c10::DispatchKey::TESTING_ONLY_GenericMode;
std::vector<std::string> seen;

at::Tensor look_at(const at::Tensor& self, const at::Tensor& other) {
  auto number = magneto::runtime::wrapped_number(other);
  seen.push_back(number ? seen_number(*number) : "a tensor");
  return self;
}
void look(bool on) { c10::impl::tls_set_dispatch_key_included(kLook, on); }
std::vector<std::string> take_seen() { return std::exchange(seen, {}); }

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

// Records contiguous tensors x0, x1, ..., all but their last dimensions as symbols s0, s1, ..., and says why `given`
// does not fit that, or what `wanted` is for it.
std::string bind(const std::vector<at::Tensor>& recorded, std::vector<std::string> guards, std::string wanted,
                 const std::vector<at::Tensor>& given) {
  magneto::graph::Graph graph;
  graph.symbols = std::make_shared<Symbols>();
  Symbols& symbols = *graph.symbols;
  std::vector<int64_t> numbers_given;
  for (uint32_t i = 0; i < recorded.size(); ++i) {
    std::string name = "x" + std::to_string(i);
    numbers_given.push_back(given[i].dim() ? 0 : given[i].item<int64_t>());
    if (recorded[i].dim() == 0) {
      magneto::graph::SymbolSource source{i, magneto::graph::SymbolSource::kNumber, name};
      magneto::graph::ExprId number = symbols.add_symbol(recorded[i].item<int64_t>(), source, "", {});
      graph.values.push_back({magneto::graph::Role::Size, c10::kLong, c10::kCPU, {}, {}, i, {number}, name});
      graph.inputs.push_back(i);
      continue;
    }
    magneto::graph::Value value{magneto::graph::Role::Argument, recorded[i].scalar_type(), recorded[i].device()};
    value.sizes.assign(recorded[i].sizes().begin(), recorded[i].sizes().end());
    value.strides.assign(recorded[i].strides().begin(), recorded[i].strides().end());
    value.name = name;
    int32_t last = static_cast<int32_t>(recorded[i].dim()) - 1;
    for (int32_t d = 0; d < last; ++d) value.shape.push_back(symbols.add_symbol(recorded[i].size(d), {i, d, name}));
    value.shape.push_back(symbols.integer(recorded[i].size(last)));
    auto strides = value.shape;
    for (int32_t d = last; d >= 0; --d) {
      auto outer = static_cast<size_t>(d) + 1;
      strides[outer - 1] = d == last ? symbols.integer(1) : symbols.mul(strides[outer], value.shape[outer]);
    }
    value.shape.insert(value.shape.end(), strides.begin(), strides.end());
    graph.inputs.push_back(i);
    graph.values.push_back(value);
  }
  for (const std::string& guard : guards) symbols.assume(symbols.parse(guard));
  magneto::graph::ExprId expr = symbols.parse(wanted);
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::neg", "");
  graph.ops.push_back({handle, nullptr, {}, {}, {}, {}, false, false, false});
  graph.ops[0].sizes.push_back({0, 0, expr});
  std::vector<magneto::graph::Number> numbers;
  auto problem = magneto::graph::SizeBinding(graph).bind(given, numbers_given, numbers);
  return problem ? *problem : std::to_string(numbers[expr].integer);
}

TORCH_LIBRARY(magneto_sizes, library) {
  library.def("reset() -> ()", reset);
  library.def("size(int hint, str input, int dimension) -> SymInt", size);
  library.def("guards() -> str[]", guards);
  library.def("guards_in_words() -> str[]", guards_in_words);
  library.def("freeze() -> ()", freeze);
  library.def("seen_int(SymInt number) -> str", seen_int);
  library.def("seen_number(Scalar number) -> str", seen_number);
  library.def("look(bool on) -> ()", look);
  library.def("take_seen() -> str[]", take_seen);
  library.def("bind(Tensor[] recorded, str[] guards, str wanted, Tensor[] given) -> str", bind);
  library.def("layout(SymInt[] sizes, SymInt[] strides) -> int[]", layout);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) { library.impl("mul.Tensor", look_at); }

}  // namespace
