// CPython versions whose frames cannot be watched yet: they say so, and every compiled function runs eagerly.
#include "cpython/cpython.h"

const char* mg_why_unsupported(void) {
  return "capturing needs CPython 3.11; on this version compiled functions run eagerly";
}
