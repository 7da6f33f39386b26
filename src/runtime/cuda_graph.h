// A captured CUDA graph: torch's own object, driven through its Python class, so that no CUDA header is needed.
#pragma once
#include <Python.h>

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

#include "cpython/ref.h"

namespace magneto::runtime {

// All calls with the GIL held.
class CudaGraph {
 public:
  // Calls `work` on a stream of its own, where kernels are noted instead of run, and memory comes from a pool that
  // belongs to the graph. `work` returns false with a Python error set. Null if anything fails: `reason` says what, no
  // error is set, and the device, the stream, the allocator and the random numbers are as before.
  static std::unique_ptr<CudaGraph> capture(c10::Device device, const std::function<bool()>& work, std::string& reason);

  // Queues the kernels on the current stream. False with a Python error set.
  bool launch();

 private:
  CudaGraph() = default;
  // As capture(), but leaves an invalid capture as it is.
  static std::unique_ptr<CudaGraph> try_capture(c10::Device device, const std::function<bool()>& work, PyObject* torch,
                                                PyObject* pool, std::string& reason, bool& valid);

  py::Ref graph_;
  py::Ref replay_;  // its bound method
};

// Whether somebody captures what this thread queues on the current stream.
bool is_capturing();

}  // namespace magneto::runtime
