// Types and literals.
#include "codegen/scalars.h"

#include <cmath>
#include <cstdio>

#include "runtime/errors.h"

namespace magneto::codegen {

using c10::ScalarType;

bool is_known(ScalarType type) {
  switch (type) {
    case ScalarType::BFloat16:
    case ScalarType::Half:
    case ScalarType::Float:
    case ScalarType::Double:
    case ScalarType::Long:
    case ScalarType::Int:
    case ScalarType::Bool: return true;
    default: return false;
  }
}

const char* memory_type(ScalarType type) {
  switch (type) {
    case ScalarType::BFloat16: return "bf16";
    case ScalarType::Half: return "f16";
    default: return value_type(type);
  }
}

const char* value_type(ScalarType type) {
  switch (computed_as(type)) {
    case ScalarType::Float: return "float";
    case ScalarType::Double: return "double";
    case ScalarType::Long: return "i64";
    case ScalarType::Int: return "int";
    case ScalarType::Bool: return "bool";
    default: break;
  }
  MAGNETO_BUG("a kernel has no such type");
}

ScalarType computed_as(ScalarType type) {
  return type == ScalarType::BFloat16 || type == ScalarType::Half ? ScalarType::Float : type;
}

namespace {

std::string real_literal(double number, bool is_double) {
  if (std::isnan(number)) return is_double ? "NAN64" : "NAN32";
  if (std::isinf(number)) return number < 0 ? (is_double ? "(-INF64)" : "(-INF32)") : (is_double ? "INF64" : "INF32");
  char text[48];
  std::snprintf(text, sizeof text, "%a%s", number, is_double ? "" : "f");
  return number < 0 || std::signbit(number) ? "(" + std::string(text) + ")" : text;
}

// As torch's loops convert numbers: what is too large becomes infinite or loses its upper bits.
float to_float(const c10::Scalar& number) {
  return number.isFloatingPoint() ? static_cast<float>(number.toDouble()) : number.to<float>();
}
int to_int(const c10::Scalar& number) {
  return number.isFloatingPoint() ? number.to<int>() : static_cast<int>(number.to<int64_t>());
}

}  // namespace

std::string literal(const c10::Scalar& number, ScalarType type) {
  switch (computed_as(type)) {
    case ScalarType::Float: return real_literal(static_cast<double>(to_float(number)), false);
    case ScalarType::Double: return real_literal(number.to<double>(), true);
    case ScalarType::Bool: return number.to<bool>() ? "true" : "false";
    case ScalarType::Int: return "(int)(" + std::to_string(to_int(number)) + ")";
    default: break;
  }
  int64_t integer = number.to<int64_t>();
  if (integer == INT64_MIN) return "(-9223372036854775807LL - 1)";
  return "(" + std::to_string(integer) + "LL)";
}

std::string convert(const std::string& text, ScalarType from, ScalarType to) {
  from = computed_as(from), to = computed_as(to);
  if (from == to) return text;
  if (to == ScalarType::Bool) return "(" + text + " != 0)";
  return "(" + std::string(value_type(to)) + ")" + text;
}

std::string rounded(const std::string& text, ScalarType type) {
  if (type == ScalarType::BFloat16) return "round_bf16(" + text + ")";
  if (type == ScalarType::Half) return "round_f16(" + text + ")";
  return text;
}

}  // namespace magneto::codegen
