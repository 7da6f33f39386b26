// Numbers in kernels: which types of C they have, how they are written and converted.
#pragma once
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace magneto::codegen {

// Whether kernels know this type of tensor.
bool is_known(c10::ScalarType type);
// Of an element in memory: "bf16", "float", ...
const char* memory_type(c10::ScalarType type);
// Of the same while it is computed with. Half types are computed with as floats.
const char* value_type(c10::ScalarType type);
// The tensor type whose values have that type.
c10::ScalarType computed_as(c10::ScalarType type);

std::string literal(const c10::Scalar& number, c10::ScalarType type);
// A value of one type as one of another.
std::string convert(const std::string& text, c10::ScalarType from, c10::ScalarType to);
// The number that memory of this type would keep of it.
std::string rounded(const std::string& text, c10::ScalarType type);

}  // namespace magneto::codegen
