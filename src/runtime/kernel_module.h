// Compiled kernels, ready to be launched.
#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

namespace magneto::runtime {

class KernelModule {
 public:
  explicit KernelModule(c10::Device device) : device_(device) {}
  virtual ~KernelModule() = default;
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  c10::Device device() const { return device_; }
  // Queues it on the stream. With the device current.
  virtual void launch(const std::string& function, std::vector<void*>& pointers, uint32_t blocks, uint32_t threads,
                      void* stream) = 0;

 private:
  const c10::Device device_;
};

// Compiles CUDA C++ for a GPU, with the compiler that torch has brought along, each source on a thread of its own.
// Null: `reason` says why.
std::shared_ptr<KernelModule> compile_cuda(const std::vector<std::string>& sources, c10::Device device,
                                           std::string& reason);

// Kernels in a shared library for the host, by functions `launch_k0(void** pointers, int blocks)`; see
// tests/kernels.py.
std::shared_ptr<KernelModule> open_host_kernels(const std::string& path);

}  // namespace magneto::runtime
