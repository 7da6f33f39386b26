// Where the global state lives. It is never destroyed: threads may still run while the process exits.
#include "runtime/state.h"

namespace magneto::runtime {

Counters& counters() {
  static Counters& counters = *new Counters;
  return counters;
}

}  // namespace magneto::runtime
