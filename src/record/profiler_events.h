// Lets the torch-free layers write events into torch's profiler.
#pragma once

namespace magneto::record {

void install_profiler_events();

}  // namespace magneto::record
