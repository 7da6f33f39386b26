// Records the operators that really run on this thread, on a dispatch key below autograd.
//
//   torch.add(x, 1) ─▶ autograd ─▶ views and versions ─▶ conjugation ─▶ our key ─▶ the kernel
//                                                                        │ notes operator, arguments, results
// A second key, above autograd, watches the few composite operators that touch memory behind the dispatcher's back.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/tensor_plug.h"

namespace magneto::record {

// Puts our kernels on the dispatch keys, once per process. Empty, or why nothing can be recorded in this process.
std::string install_recorder();

// True while a recording is active on this thread.
bool is_recording();
// The raw bits of the dispatch keys that a recording turns on.
uint64_t recorder_key_bits();

std::unique_ptr<runtime::Recording> start_recording(std::function<void(std::string reason)> on_fail);

}  // namespace magneto::record
