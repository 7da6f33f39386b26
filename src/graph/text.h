// The words of the text form, which its printer and its parser share.
#pragma once
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace magneto::graph {

// By number: torch keeps both as integers in IValues, and only the schema tells. The names are those of the module
// torch.
constexpr std::array<std::string_view, 8> kLayoutNames = {"strided",    "sparse_coo", "sparse_csr", "_mkldnn",
                                                          "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"};
constexpr std::array<std::string_view, 4> kMemoryFormatNames = {"contiguous_format", "preserve_format", "channels_last",
                                                                "channels_last_3d"};

struct Flag {
  std::string_view name;
  bool Op::* member;
};
constexpr std::array<Flag, 6> kFlags = {{{"grad", &Op::grad_mode},
                                         {"below_inplace", &Op::below_inplace},
                                         {"autocast", &Op::autocast},
                                         {"inference", &Op::inference},
                                         {"derives", &Op::derives},
                                         {"shared_cast", &Op::shared_cast}}};
constexpr std::string_view kNoFlags = "plain";

std::string dtype_text(c10::ScalarType dtype);  // "f32"
std::optional<c10::ScalarType> find_dtype(std::string_view name);

// The shortest text that reads back as the same bits.
std::string number_text(double number);
std::string number_text(float number);
std::string number_text(c10::Half number);
std::string number_text(c10::BFloat16 number);
std::string in_quotes(std::string_view text);                       // 'it\'s'
std::string escaped(std::string_view text, std::string_view also);  // backslashes, control characters and `also`
std::string role_text(Role role);
std::string name_text(const std::string& name);  // in quotes if it is unusual
bool is_bare_name(std::string_view name);        // may stand in the text without quotes

// Nested types behind Optional.
const c10::Type& inner_type(const c10::Type& type);

// An argument that holds no tensor.
std::string argument_text(const c10::IValue& value, const c10::Type& real_type);

c10::SmallVector<int64_t, 4> dense_strides(c10::ArrayRef<int64_t> sizes);
std::vector<ExprId> dense_strides(Symbols& symbols, std::span<const ExprId> sizes);

// For pictures, where values go by their names.
struct OpWords {
  std::string name;       // "add.Tensor"
  std::string arguments;  // "x, layers.0.weight, alpha=2"
  std::string results;    // "%3: f32[2]"
};
OpWords op_words(const Graph& graph, const Op& op);

}  // namespace magneto::graph
