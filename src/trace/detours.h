// Where a watch had to give up, so that the next one of the same function goes around that place.
#pragma once
#include <string>

#include "cpython/ref.h"

namespace magneto::trace {

struct Detour {
  py::Ref code;
  int instruction = 0;
  // CPython takes over there for the rest of the call. Else the instruction, which is a call or the like, is run as
  // something unknown, and the watch goes on behind it.
  bool leaves = false;
  std::string reason;  // why the watch gave up
};

// What a watch that gives up there says about the next one.
enum class Around : uint8_t {
  Place,   // goes around it
  Frames,  // somebody looks at the frames of the call: CPython has to have them all
  Never,   // the place is not to blame
};

}  // namespace magneto::trace
