// How a capture begins, ends, and is cleared away when it failed.
#include "runtime/cuda_graph.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/daemon_threads.h"
#include "runtime/state.h"
#include "runtime/torch_python.h"

namespace magneto::runtime {
namespace {

// Makes a stream of torch's pool the current one of this thread.
class SideStream {
 public:
  explicit SideStream(c10::Device device)
      : device_(device), streams_(device.type()), before_(streams_.getStream(device)) {
    streams_.exchangeStream(streams_.getStreamFromGlobalPool(device));
  }
  ~SideStream() { streams_.exchangeStream(before_); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

 private:
  c10::DeviceGuard device_;
  c10::impl::VirtualGuardImpl streams_;
  c10::Stream before_;
};

// Clears the Python error and returns its first line, without what torch adds for every CUDA error.
std::string take_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  py::Ref owned_type = py::Ref::steal(type), error = py::Ref::steal(value), trace = py::Ref::steal(traceback);
  py::Ref text = py::Ref::steal(PyObject_Str(error ? error.get() : type));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  std::string line = utf8 ? utf8 : "an error without a text";
  PyErr_Clear();
  return line.substr(0, line.find('\n'));
}

bool succeeded(PyObject* result) {
  Py_XDECREF(result);
  return result != nullptr;
}

void forget_error(PyObject* result) {
  if (!succeeded(result)) PyErr_Clear();
}

// cuBLAS would keep its workspace across captures: in memory of another graph, or in memory that torch gives away
// when somebody clears the workspaces. Cleared before and after, each graph has one in its own pool.
void clear_workspaces(PyObject* torch) {
  forget_error(PyObject_CallMethod(torch, "_cuda_clearCublasWorkspaces", nullptr));
}

PyObject* torch_module() { return PyImport_AddModule("torch._C"); }

py::Ref make_pool(PyObject* torch) { return py::Ref::steal(PyObject_CallMethod(torch, "_graph_pool_handle", nullptr)); }

bool write_something(c10::Device device) {
  try {
    at::zeros({1}, at::TensorOptions().device(device));
    return true;
  } catch (...) {
    set_python_error(std::current_exception());
    return false;
  }
}

}  // namespace

std::unique_ptr<CudaGraph> CudaGraph::try_capture(c10::Device device, const std::function<bool()>& work,
                                                  PyObject* torch, PyObject* pool, std::string& reason, bool& valid) {
  std::unique_ptr<CudaGraph> graph(new CudaGraph);
  graph->graph_ = py::Ref::steal(PyObject_CallMethod(torch, "_CUDAGraph", nullptr));
  if (graph->graph_) graph->replay_ = py::Ref::steal(PyObject_GetAttrString(graph->graph_.get(), "replay"));
  if (!graph->replay_) return reason = take_error(), nullptr;
  SideStream stream(device);
  clear_workspaces(torch);
  // Other threads go on meanwhile: what they ask of CUDA is no part of this capture and must not end it.
  bool worked =
      succeeded(PyObject_CallMethod(graph->graph_.get(), "capture_begin", "Os", pool, "thread_local")) && work();
  if (!worked) reason = take_error();
  valid = succeeded(PyObject_CallMethod(graph->graph_.get(), "capture_end", nullptr));
  if (!valid) {
    std::string error = take_error();
    if (worked) reason = error;
  }
  clear_workspaces(torch);
  return worked && valid ? std::move(graph) : nullptr;
}

std::unique_ptr<CudaGraph> CudaGraph::capture(c10::Device device, const std::function<bool()>& work,
                                              std::string& reason) {
  NoCollection no_collection;
  PauseWatch pause;
  PyObject* torch = torch_module();
  py::Ref pool = make_pool(torch);
  if (!pool) return reason = take_error(), nullptr;
  bool valid = true;
  auto graph = try_capture(device, work, torch, pool.get(), reason, valid);
  if (valid) return graph;

  // A capture that CUDA has declared invalid leaves torch's allocator in the middle of it, and its generator, too,
  // until a capture ends well.
  int index = device.index();
  forget_error(PyObject_CallMethod(torch, "_cuda_endAllocateToPool", "iO", index, pool.get()));
  forget_error(PyObject_CallMethod(torch, "_cuda_releasePool", "iO", index, pool.get()));
  py::Ref another = make_pool(torch);
  std::string ignored;
  if (another) {
    try_capture(device, [device] { return write_something(device); }, torch, another.get(), ignored, valid);
  }
  PyErr_Clear();
  return nullptr;
}

bool CudaGraph::launch() {
  return succeeded(run_python([&] { return PyObject_CallNoArgs(replay_.get()); }));
}

bool is_capturing() {
  if (!at::hasCUDA()) return false;  // builds without it have a Python class that raises in the function's place
  static PyObject* const ask = PyObject_GetAttrString(torch_module(), "_cuda_isCurrentStreamCapturing");
  py::Ref answer = py::Ref::steal(ask ? PyObject_CallNoArgs(ask) : nullptr);
  PyErr_Clear();
  return answer.get() == Py_True;
}

}  // namespace magneto::runtime
