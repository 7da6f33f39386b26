// How much of the C stack is left to this thread.
#pragma once
#include <cstdint>

namespace magneto::runtime {

// The lowest address that the thread's stack may still be used down to by those who want to leave room for others.
uintptr_t lowest_good_address();

// Whether so much of the stack is in use that nothing should be called that may go deep.
inline bool is_c_stack_short() {
  thread_local const uintptr_t lowest = lowest_good_address();
  return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < lowest;
}

}  // namespace magneto::runtime
