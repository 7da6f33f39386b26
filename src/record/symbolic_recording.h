// The recording of a watched call whose sizes later calls may change.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/tensor_plug.h"

namespace magneto::record {

std::unique_ptr<runtime::SymbolicRecording> start_symbolic_recording(std::function<void(std::string)> on_fail);

}  // namespace magneto::record
