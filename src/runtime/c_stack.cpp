// Asks the system where the stack ends.
#include "runtime/c_stack.h"

#include <pthread.h>

namespace magneto::runtime {

uintptr_t lowest_good_address() {
  constexpr size_t kRoom = 256 << 10;  // for C code that is called by then
  pthread_attr_t attributes;
  void* lowest = nullptr;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  bool is_known = pthread_attr_getstack(&attributes, &lowest, &size) == 0;
  pthread_attr_destroy(&attributes);
  return is_known && size > 2 * kRoom ? reinterpret_cast<uintptr_t>(lowest) + kRoom : 0;
}

}  // namespace magneto::runtime
