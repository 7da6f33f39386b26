// Every Python function of the process, without being asked for one by one.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "frame/forms.h"
#include "runtime/state.h"

namespace magneto::frame {

// Watch: all Python code runs in our interpreter, and nothing is kept of it. Capture: every function behaves as if
// magneto.compile had been called on it.
using runtime::Everywhere;
void set_everywhere(Everywhere mode);

// Evaluates a frame that no watch is interested in, while a mode is on or the thread is in a scope.
PyObject* evaluate_everywhere(PyThreadState* thread, mg_frame* frame, int throwing);

// What was compiled of one function. The reference drops the entry when the function dies.
struct FunctionForms {
  py::Ref reference;
  std::shared_ptr<Forms> forms;
};
using FunctionTable = std::unordered_map<PyObject*, FunctionForms>;

// Where every function that is called behaves as if magneto.compile had been called on it: in this thread, between
// enter() and leave(). What is compiled stays for the next time.
class CaptureScope {
 public:
  // Code of files under `skipped` is only captured as a part of other code, unless a longer path of `kept` says so.
  CaptureScope(std::shared_ptr<const Wishes> wishes, std::vector<std::string> skipped, std::vector<std::string> kept)
      : wishes(std::move(wishes)), skipped_(std::move(skipped)), kept_(std::move(kept)) {}
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

  // Returns the scope that the thread was in before, to be handed to leave().
  CaptureScope* enter();
  static void leave(CaptureScope* outer);
  bool takes(PyCodeObject* code) const;
  void clear() { FunctionTable().swap(*table); }
  int traverse(visitproc visit, void* arg) const;

  const std::shared_ptr<const Wishes> wishes;
  // Shared with the references to functions, which may outlive the scope.
  const std::shared_ptr<FunctionTable> table = std::make_shared<FunctionTable>();

 private:
  std::vector<std::string> skipped_, kept_;
};

}  // namespace magneto::frame
