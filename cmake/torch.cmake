# Finds the torch that Python_EXECUTABLE imports and makes `magneto_torch` of it. Torch's own CMake package is not used:
# it demands the CUDA toolkit when torch was built with CUDA, which building Magneto does not need.
execute_process(COMMAND ${Python_EXECUTABLE} -c [[
import os, torch
print(torch.__version__)
print(int(torch._C._GLIBCXX_USE_CXX11_ABI))
print(os.path.dirname(torch.__file__))
]] OUTPUT_VARIABLE torch_answer ERROR_VARIABLE torch_error OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
if(torch_missing)
  message(FATAL_ERROR "${Python_EXECUTABLE} cannot import torch; install it, or build the core alone with "
    "-DMAGNETO_TORCH=OFF.\n${torch_error}")
endif()
string(REPLACE "\n" ";" torch_answer "${torch_answer}")
list(POP_FRONT torch_answer MAGNETO_TORCH_VERSION torch_cxx11_abi torch_dir)
message(STATUS "Found torch ${MAGNETO_TORCH_VERSION}: ${torch_dir}")

# Strings cross between the core and torch, so the core must agree on their layout.
add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})

# No rpath: `import torch` has loaded the libraries before the module that needs them.
set(CMAKE_SKIP_RPATH ON)
add_library(magneto_torch INTERFACE)
target_include_directories(magneto_torch SYSTEM INTERFACE
  ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
foreach(name torch torch_cpu torch_python c10)
  target_link_libraries(magneto_torch INTERFACE ${torch_dir}/lib/lib${name}.so)
endforeach()

set(torch_nodes_header ${torch_dir}/include/torch/csrc/autograd/generated/Functions.h)

# What most torch-side sources include; parsing it once is most of the build time saved.
set(magneto_torch_headers
  <Python.h>
  <ATen/ATen.h>
  <ATen/core/dispatch/Dispatcher.h>
  <torch/csrc/autograd/python_variable.h>
  <torch/library.h>
  <functional>
  <map>
  <memory>
  <string>
  <unordered_map>
  <vector>)
