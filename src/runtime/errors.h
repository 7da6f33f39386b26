// The two error families: UserError is the caller's mistake, InternalError is ours.
#pragma once
#include <stdexcept>
#include <string>

namespace magneto {

// What happened, where in the user's code, and what to do. Becomes magneto.UserError.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An invariant of ours does not hold. Capture catches it, logs it once, and the function goes on eagerly.
struct InternalError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A Python exception is set; C++ only unwinds to the boundary.
struct PythonError {};

[[noreturn]] void raise_bug(const char* file, int line, const std::string& what);

}  // namespace magneto

#define MAGNETO_BUG(what) ::magneto::raise_bug(__FILE__, __LINE__, (what))
#define MAGNETO_ASSERT(condition)          \
  do {                                     \
    if (!(condition)) [[unlikely]]         \
      MAGNETO_BUG("expected " #condition); \
  } while (0)
