// Doors in front of torch's C functions that do to tensors and generators what no operator does.
#pragma once
#include <string>

namespace magneto::record {

// Puts them there, once per process. GIL held. Empty, or why this torch has no place for one.
std::string install_doors();

}  // namespace magneto::record
