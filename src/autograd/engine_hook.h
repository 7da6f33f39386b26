// magneto.compiled_autograd: every backward of a thread that asks for it goes through the cache.
#pragma once
#include <Python.h>

#include <string>

namespace magneto::autograd {

// What a thread wishes for its backwards.
enum class Compiler : uint8_t { None, Native, Python };

// For this thread; GIL held. `factory`, of Python compilers, is borrowed: whoever sets it keeps it alive.
void set_compiler(Compiler compiler, PyObject* factory);

// GIL held.
void clear_cache();
bool is_cache_empty();

}  // namespace magneto::autograd
