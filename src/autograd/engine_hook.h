// magneto.compiled_autograd: every backward of a thread that asks for it goes through the cache.
#pragma once
#include <Python.h>

#include <cstdint>
#include <optional>

namespace magneto::autograd {

// What a thread wishes for its backwards: nothing so far; that nobody compiles them; that the native compiler does; the
// same, because it has trained a compiled function (config.compile_backwards); or compilers written in Python.
enum class Compiler : uint8_t { Unsaid, None, Native, ByDefault, Python };
inline bool compiles(Compiler compiler) { return compiler != Compiler::Unsaid && compiler != Compiler::None; }

// For this thread; GIL held. `factory`, of Python compilers, is borrowed: whoever sets it keeps it alive.
// `dynamic`: whether sizes may change between runs; none: those that have changed may.
void set_compiler(Compiler compiler, PyObject* factory, std::optional<bool> dynamic);

// A compiled function was called in such a way that a backward will follow. GIL held.
void note_derivation();

// Sees to it that the engine hands backwards to us if this thread wishes so: what torch does for its own compiler may
// have taken our hook away. Under anomaly detection the engine goes alone: its warnings, which that is for, would not
// be heard behind a hook. GIL held.
void keep_hook();
// While it lives the engine hands backwards to us as well if this thread records a program without running it: then
// nothing is compiled, and the nodes run without the engine. GIL held.
class RecordedBackward {
 public:
  RecordedBackward();
  ~RecordedBackward();
  RecordedBackward(const RecordedBackward&) = delete;
  RecordedBackward& operator=(const RecordedBackward&) = delete;

 private:
  const bool is_on_;
};
// Stands in front of the engine's run_backward from then on. Once, at import.
void install_door();

// GIL held.
void clear_cache();
bool is_cache_empty();

}  // namespace magneto::autograd
