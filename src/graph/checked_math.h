// Whole-number arithmetic that rounds as Python's and never wraps around.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/errors.h"

namespace magneto::graph {

inline std::optional<int64_t> try_add(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<int64_t> try_mul(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline int64_t or_refuse(std::optional<int64_t> number) {
  if (!number) throw UserError("an expression of sizes has a number that does not fit 64 bits");
  return *number;
}

inline int64_t checked_add(int64_t a, int64_t b) { return or_refuse(try_add(a, b)); }
inline int64_t checked_mul(int64_t a, int64_t b) { return or_refuse(try_mul(a, b)); }

// For b != 0, and not INT64_MIN by -1.
inline int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
inline int64_t floor_modulo(int64_t a, int64_t b) {
  int64_t rest = b == -1 ? 0 : a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

}  // namespace magneto::graph
