// NVRTC and the CUDA driver, found at run time, so that no CUDA header or library is needed to build.
#include "runtime/kernel_module.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <array>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "runtime/errors.h"

namespace magneto::runtime {
namespace {

// What is used of both interfaces; their types are pointers and numbers.
struct Cuda {
  int (*create)(void** program, const char* source, const char* name, int headers, const char* const*,
                const char* const*);
  int (*compile)(void* program, int count, const char* const* options);
  int (*destroy)(void** program);
  int (*log_size)(void* program, size_t* size);
  int (*log)(void* program, char* text);
  int (*code_size)(void* program, size_t* size);
  int (*code)(void* program, char* code);

  int (*device)(int* device, int ordinal);
  int (*attribute)(int* value, int attribute, int device);
  int (*load)(void** module, const void* code);
  int (*unload)(void* module);
  int (*function)(void** function, void* module, const char* name);
  int (*start)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
               void** arguments, void** extra);
};

// Torch has a library that is linked to both.
void* open_torch_nvrtc() {
  Dl_info torch;
  if (!dladdr(reinterpret_cast<void*>(&at::globalContext), &torch) || !torch.dli_fname) return nullptr;
  std::string path = torch.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "libcaffe2_nvrtc.so";
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

void* open_any(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

std::optional<Cuda> find_cuda() {
  void* torch = open_torch_nvrtc();
  void* compiler = open_any({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  void* driver = open_any({"libcuda.so.1"});
  bool found = true;
  auto find = [&](auto& function, const char* name) {
    void* address = nullptr;
    for (void* library : {torch, compiler, driver}) {
      if (library && !address) address = dlsym(library, name);
    }
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
    found &= address != nullptr;
  };
  Cuda cuda;
  find(cuda.create, "nvrtcCreateProgram");
  find(cuda.compile, "nvrtcCompileProgram");
  find(cuda.destroy, "nvrtcDestroyProgram");
  find(cuda.log_size, "nvrtcGetProgramLogSize");
  find(cuda.log, "nvrtcGetProgramLog");
  find(cuda.code_size, "nvrtcGetCUBINSize");
  find(cuda.code, "nvrtcGetCUBIN");
  find(cuda.device, "cuDeviceGet");
  find(cuda.attribute, "cuDeviceGetAttribute");
  find(cuda.load, "cuModuleLoadData");
  find(cuda.unload, "cuModuleUnload");
  find(cuda.function, "cuModuleGetFunction");
  find(cuda.start, "cuLaunchKernel");
  return found ? std::optional(cuda) : std::nullopt;
}

const Cuda* cuda() {
  static const std::optional<Cuda> found = find_cuda();
  return found ? &*found : nullptr;
}

// Code is loaded when it is launched first: then the thread has the device's context.
class CudaModule final : public KernelModule {
 public:
  CudaModule(std::vector<std::string> codes, c10::Device device) : KernelModule(device), codes_(std::move(codes)) {}
  ~CudaModule() override {
    for (void* module : modules_) cuda()->unload(module);
  }

  void launch(const std::string& name, std::vector<void*>& pointers, uint32_t blocks, uint32_t threads,
              void* stream) override {
    void* function = find(name);
    std::vector<void*> arguments;
    for (void*& pointer : pointers) arguments.push_back(&pointer);
    int status = cuda()->start(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments.data(), nullptr);
    if (status) MAGNETO_BUG("a kernel could not be launched: CUDA error " + std::to_string(status));
  }

 private:
  void* find(const std::string& name) {
    std::lock_guard lock(mutex_);
    while (modules_.size() < codes_.size()) {
      void* module = nullptr;
      if (cuda()->load(&module, codes_[modules_.size()].data())) MAGNETO_BUG("kernels could not be loaded");
      modules_.push_back(module);
    }
    void*& function = functions_[name];
    for (size_t i = 0; !function && i < modules_.size(); ++i) {
      if (cuda()->function(&function, modules_[i], name.c_str())) function = nullptr;
    }
    if (!function) MAGNETO_BUG("there is no kernel " + name);
    return function;
  }

  const std::vector<std::string> codes_;
  std::mutex mutex_;  // of what follows
  std::vector<void*> modules_;
  std::unordered_map<std::string, void*> functions_;
};

class HostModule final : public KernelModule {
 public:
  explicit HostModule(const std::string& path)
      : KernelModule(c10::Device(c10::DeviceType::CPU)), library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) throw UserError(std::string("kernels cannot be loaded: ") + dlerror());
  }
  ~HostModule() override { dlclose(library_); }

  // A block is one thread there, which takes one row, or one pack.
  void launch(const std::string& name, std::vector<void*>& pointers, uint32_t blocks, uint32_t threads,
              void*) override {
    auto function = reinterpret_cast<void (*)(void**, int)>(dlsym(library_, ("launch_" + name).c_str()));
    MAGNETO_ASSERT(function);
    function(pointers.data(), static_cast<int>(blocks * threads));
  }

 private:
  void* library_;
};

// Empty: `reason` says why.
std::string code_of(const std::string& source, const std::string& architecture, std::string& reason) {
  // Products and sums are contracted where the source says so, as in torch's kernels.
  std::array<const char*, 3> options = {architecture.c_str(), "--std=c++17", "--fmad=false"};
  void* program = nullptr;
  if (cuda()->create(&program, source.c_str(), "magneto.cu", 0, nullptr, nullptr))
    return reason = "the compiler for kernels does not start", "";
  std::string code;
  size_t size = 0;
  if (int status = cuda()->compile(program, options.size(), options.data())) {
    cuda()->log_size(program, &size);
    std::string log(size, '\0');
    cuda()->log(program, log.data());
    reason = "kernels do not compile (" + std::to_string(status) + "): " + log.c_str();
  } else {
    cuda()->code_size(program, &size);
    code.resize(size);
    cuda()->code(program, code.data());
  }
  cuda()->destroy(&program);
  return code;
}

}  // namespace

std::shared_ptr<KernelModule> compile_cuda(const std::vector<std::string>& sources, c10::Device device,
                                           std::string& reason) {
  if (!cuda()) return reason = "torch brings no compiler for kernels", nullptr;
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
  int number = 0, major = 0, minor = 0;
  if (cuda()->device(&number, device.index()) || cuda()->attribute(&major, kMajor, number) ||
      cuda()->attribute(&minor, kMinor, number)) {
    return reason = "the GPU does not say what it is", nullptr;
  }
  std::string architecture = "--gpu-architecture=sm_" + std::to_string(10 * major + minor);
  std::vector<std::string> codes(sources.size()), reasons(sources.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sources.size(); ++i)
    threads.emplace_back([&, i] { codes[i] = code_of(sources[i], architecture, reasons[i]); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < sources.size(); ++i) {
    if (codes[i].empty()) return reason = reasons[i], nullptr;
  }
  return std::make_shared<CudaModule>(std::move(codes), device);
}

std::shared_ptr<KernelModule> open_host_kernels(const std::string& path) { return std::make_shared<HostModule>(path); }

}  // namespace magneto::runtime
