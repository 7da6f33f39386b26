// The frame hook: while somebody uses it, every Python frame of the interpreter passes through here.
#pragma once
#include "cpython/cpython.h"

namespace magneto::frame {

// Users are counted: the first one installs the hook, the last one removes it. An evaluator that somebody else
// installed earlier is kept, called for every frame that is evaluated, and put back.
void hook_acquire();
void hook_release();

class HookScope {
 public:
  HookScope() { hook_acquire(); }
  ~HookScope() { hook_release(); }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
};

bool hook_installed();

// Evaluates a frame as it would be without us: by the evaluator that was there before, or CPython's own.
PyObject* evaluate_below(PyThreadState* thread, mg_frame* frame, int throwing);

}  // namespace magneto::frame
