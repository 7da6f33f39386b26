// torch.autocast for lazy tensors: what it does to tensors of the CPU, it does to these.
#pragma once
#include <c10/core/DispatchKeySet.h>

namespace magneto::lazy {

// torch knows no autocast for the device. Two keys of devices that nobody has any more stand for it, one for each dtype
// that it may cast to: in this way the dtype, too, goes along to the threads of autograd.
// python/magneto/lazy/autocast.py switches them.
constexpr c10::DispatchKey kAutocastToBFloat16 = c10::DispatchKey::AutocastIPU;
constexpr c10::DispatchKey kAutocastToHalf = c10::DispatchKey::AutocastHPU;
constexpr c10::DispatchKeySet kAutocastKeys({kAutocastToBFloat16, kAutocastToHalf});

// Once per process, for a device over the CPU.
void install_autocast();

}  // namespace magneto::lazy
