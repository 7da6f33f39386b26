// The contents of constants: as bytes, as text, and back.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace magneto::graph {

// The elements in row-major order, whatever the strides.
std::string element_bytes(const at::Tensor& tensor);
// A tensor with the dtype, device, sizes and strides of `value`. UserError if the number of bytes is another one.
at::Tensor tensor_of_bytes(const Value& value, std::string_view bytes);

std::string to_base64(std::string_view bytes);
std::optional<std::string> from_base64(std::string_view text);

// "[1.0, 2.0]", or "3" without dimensions; none if there are many elements or their bits have no such text.
std::optional<std::string> elements_text(const at::Tensor& tensor);
// Appends the bytes of one element. False if it does not fit the dtype.
bool append_element(c10::ScalarType dtype, const c10::IValue& element, std::string& bytes);

}  // namespace magneto::graph
