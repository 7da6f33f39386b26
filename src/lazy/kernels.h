// The way from torch's dispatcher to the lazy device.
#pragma once
#include <c10/core/Device.h>

#include <string>

namespace magneto::lazy {

// Makes the device `lazy` over `backing`, once per process. GIL held. Empty, or why it cannot be.
std::string install(c10::Device backing);

}  // namespace magneto::lazy
