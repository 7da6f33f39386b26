// The guard on tensor metadata.
#pragma once
#include <memory>

#include "runtime/tensor_plug.h"

namespace magneto::record {

std::unique_ptr<runtime::TensorChecks> make_tensor_checks();

}  // namespace magneto::record
