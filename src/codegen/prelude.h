// What every kernel's source begins with: types, conversions, loads and stores, reductions.
#pragma once

namespace magneto::codegen {

extern const char* const kPrelude;

}  // namespace magneto::codegen
