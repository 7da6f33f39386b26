// One table of settings: it makes the C++ fields, the Python attributes of magneto.config, the MAGNETO_… environment
// variables and their documentation.
//
//   environment ──read once, at import──▶ values ◀──magneto.config.name = …, config.patch(name=…)
//                                           │
//                                           └──▶ read where used; nothing caches a setting
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

// type, name, default, what it does
#define MAGNETO_SETTINGS(SETTING)                                                                                    \
  SETTING(bool, enabled, true, "Compile at all; when false every compiled function runs eagerly.")                   \
  SETTING(std::string, logs, "", "What to log to stderr, comma-separated: capture, guards, graph, program, or all.") \
  SETTING(int64_t, cache_limit, 8, "Compiled variants kept per function; the least recently used one is dropped.")   \
  SETTING(int64_t, capture_attempts, 3, "Failed captures in a row after which a function stays eager.")              \
  SETTING(int64_t, recapture_limit, 64, "Captures per function after which calls that no variant fits run eagerly.") \
  SETTING(int64_t, program_limit, 10000, "Computations and effects past which a call is not compiled whole.")        \
  SETTING(int64_t, graph_limit, 100000, "Tensor operations past which a call is not compiled whole.")                \
  SETTING(bool, meta_kernels, true, "Ask torch's meta kernels, many of which are Python, where no shape rule fits.") \
  SETTING(bool, listings, false, "Keep programs side by side with their source, as logging `program` does.")         \
  SETTING(bool, without_tensors, false, "Compile functions that do no tensor work, too.")                            \
  SETTING(int64_t, leave_at_cut, 0, "For tests: let CPython go on at this cut of every program, from 1; 0: none.")   \
  SETTING(int64_t, diverge_at_cut, 0, "For tests: let the checks behind this cut of every program fail; 0: none.")   \
  SETTING(int64_t, cuda_graphs, 8, "Capture graphs with this many kernels or more into CUDA graphs; 0: none.")       \
  SETTING(bool, compile_backwards, true, "Compile the backwards of threads that have trained a compiled function.")  \
  SETTING(int64_t, compiled_autograd_limit, 256, "Captured backwards kept; one more, and all are dropped.")          \
  SETTING(bool, compiled_autograd_verify, false, "Run nodes beside captured backwards, and raise if they differ.")   \
  SETTING(bool, lazy_async, true, "Run steps of the lazy device beside the program that records the next one.")      \
  SETTING(bool, lazy_optimizer_steps, true, "End a step of the lazy device behind each step of an optimizer.")       \
  SETTING(int64_t, lazy_graph_limit, 50000, "Recorded operators past which a step of the lazy device is ended.")     \
  SETTING(int64_t, lazy_cache_limit, 500000, "Operators kept of the steps that were seen; one more, and all go.")    \
  SETTING(bool, lazy_frames, false, "Keep the Python frames behind each operator of the lazy device.")               \
  SETTING(bool, cuda_graph_copies, true, "Copy results out of CUDA graphs; else they hold until the next call.")     \
  SETTING(bool, cuda_kernels, true, "Join operators of CUDA graphs into kernels, compiled beside the program.")      \
  SETTING(bool, wait_for_kernels, false, "Let the run that captures a CUDA graph wait until its kernels are there.")

namespace magneto::runtime {

struct Config {
#define MAGNETO_FIELD(type, name, default_value, doc) type name = default_value;
  MAGNETO_SETTINGS(MAGNETO_FIELD)
#undef MAGNETO_FIELD
};
// Owned by the GIL.
inline Config& config() {
  static Config& config = *new Config;
  return config;
}

using SettingValue = std::variant<bool, int64_t, std::string>;
struct Setting {
  const char* name;
  const char* doc;
  SettingValue default_value;
};
const std::vector<Setting>& settings();
SettingValue get_setting(const std::string& name);              // UserError names the choices
void set_setting(const std::string& name, SettingValue value);  // UserError on a wrong name or type
void read_environment();                                        // UserError on a value that does not parse

}  // namespace magneto::runtime
