// The guard on torch's global and per-thread state.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/tensor_plug.h"

namespace magneto::record {

std::unique_ptr<runtime::GlobalState> snapshot_global_state();
// The same, with the very function modes and the number of threads.
std::unique_ptr<runtime::GlobalState> snapshot_whole_state();

// Which kernels attention may choose, and in which order, as one number.
uint64_t attention_settings();

// A torch function mode is active that is not a default device.
bool has_foreign_function_mode();
// Empty if nothing in torch's state keeps operators from being recorded as they are.
std::string why_operators_are_not_recordable();
// The same for all that Python code does with tensors.
std::string why_state_forbids_recording();

// Autocast remembers casted weights; a recording of its own (magneto.record) must see the casts.
void forget_autocast_casts();

}  // namespace magneto::record
