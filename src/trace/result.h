// Turns the result of a watched call into the instructions that build it again.
#pragma once
#include <memory>
#include <vector>

#include "guard/arguments.h"
#include "program/program.h"
#include "trace/watch.h"

namespace magneto::trace {

// Emits instructions for `result` and lists the tensors that the segment has to produce, in the order of its outputs.
// If something in it is not understood, the watch gives up.
void describe_result(PyObject* result, Watch& watch, const guard::Arguments& arguments, program::Program* program,
                     std::vector<PyObject*>* outputs);

}  // namespace magneto::trace
