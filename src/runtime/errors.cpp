// Makes the text of an internal error: where in our sources, what did not hold, and that it is ours to fix.
#include "runtime/errors.h"

#include <string_view>

namespace magneto {

namespace {

// The path from "src/" on, so that a report reads the same wherever it was built.
std::string_view short_path(std::string_view path) {
  size_t at = path.rfind("/src/");
  return at == std::string_view::npos ? path : path.substr(at + 1);
}

}  // namespace

void raise_bug(const char* file, int line, const std::string& what) {
  throw InternalError(std::string(short_path(file)) + ":" + std::to_string(line) + ": " + what +
                      " (a bug in Magneto, not in your program; please report it with this line)");
}

}  // namespace magneto
