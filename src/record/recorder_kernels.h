// What stands on the recorder's dispatch keys.
#pragma once
#include <string>

namespace magneto::record {

// Puts our kernels there, once per process. Empty, or why nothing can be recorded in this process.
std::string install_recorder();

}  // namespace magneto::record
