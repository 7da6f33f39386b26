// What happens to a backward: looked up and run, captured, or left to the engine.
#include "autograd/engine_hook.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "autograd/cache.h"
#include "autograd/capture.h"
#include "autograd/straight_run.h"
#include "cpython/gil.h"
#include "cpython/ref.h"
#include "record/global_state.h"
#include "record/recorder.h"
#include "runtime/config.h"
#include "runtime/log.h"
#include "runtime/state.h"

namespace magneto::autograd {

namespace {

using runtime::count;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::GraphRoot;
using torch::autograd::InputBuffer;

constexpr const char* kCounts = "compiled_autograd";
constexpr const char* kKeepChanging = "graphs keep changing";

// The untouched task goes to the engine, which begins with a single root itself where nobody compiles: its hooks are
// called then even if nothing behind it is needed.
variable_list leave_to_engine(const NodePtr& root, GraphTask& task) {
  auto shared = task.shared_from_this();
  NodePtr first = root;
  InputBuffer gradients{variable_list()};
  const auto* single = root->num_outputs() == 1 ? dynamic_cast<const GraphRoot*>(root.get()) : nullptr;
  if (single) {
    const Edge& edge = root->next_edge(0);
    first = edge.function;
    if (!task.exec_info_.empty()) task.exec_info_.try_emplace(first.get());
    gradients = InputBuffer(first->num_inputs());
    gradients.add(edge.input_nr, at::Tensor(single->outputs[0]), root->stream(), first->stream(), first.get());
  }
  Engine::get_default_engine().execute_with_graph_task(shared, first, std::move(gradients));
  auto& result = shared->future_result_;
  result->wait();
  return result->value().toTensorVector();
}

void tell(const std::string& message) {
  runtime::log(runtime::Log::Capture, "backward: " + message);
  PyObject* logger = runtime::process_state().autograd_logger;
  if (!logger) return;
  py::Ref text = py::Ref::steal(PyUnicode_FromStringAndSize(message.data(), static_cast<Py_ssize_t>(message.size())));
  py::Ref kept = py::Ref::borrow(logger);
  py::Ref result = py::Ref::steal(text ? PyObject_CallOneArg(kept.get(), text.get()) : nullptr);
  if (!result) PyErr_WriteUnraisable(kept.get());
}

// The operators that nodes call are noted and not run.
bool is_recorded() {
  const record::Recorder* recorder = record::Recorder::active();
  return recorder && !recorder->is_live();
}

// Empty if a backward may be looked up or captured now.
std::string why_left_to_engine(const GraphTask& task) {
  if (c10::GradMode::is_enabled()) return "create_graph: the backward is to be differentiated";
  if (record::Recorder::active()) return "a recording is going on";
  for (const auto& [_, info] : task.exec_info_) {
    if (!info.captures_) continue;
    for (const auto& asked : *info.captures_)
      if (!asked.DO_NOT_USE_DEPRECATED_get_capture_hooks().empty()) return "hooks on results";
  }
  return record::why_operators_are_not_recordable();
}

// What came of looking a task up.
struct Found {
  std::shared_ptr<Branch> end;
  std::shared_ptr<const Backward> backward;  // that fits, or null
  std::shared_ptr<const Backward> before;    // that does not, and is of the same nodes; or null
  SymbolValues values = {};
  py::SharedObject factory = {};  // of Python compilers, as the backward began; nodes may call what sets another one
};

std::string hex(const CacheKey& key) {
  std::string text;
  constexpr char kDigits[] = "0123456789abcdef";
  for (size_t i = 0; i < std::min<size_t>(key.key_size, 32); ++i)
    text += {kDigits[key.key[i] >> 4], kDigits[key.key[i] & 15]};
  return key.key_size > 32 ? text + "..." : text;
}

Found look_up(std::optional<Task>& task, const NodePtr& root, GraphTask& graph_task, const edge_list& asked) {
  const std::shared_ptr<Branch> start = cache().root();
  const std::shared_ptr<Branch>* branch = nullptr;  // nothing is dropped from the trie while it is walked
  std::string news;
  auto on_key = [&](const CacheKey& key, Node& node) {
    bool is_new = false;
    const std::shared_ptr<Branch>& next = (*branch)->step(key, node, &is_new);
    if (is_new && news.empty())
      news = "a new node " + node.name() + " with key " + hex(key) + "; known there now: " + (*branch)->choices();
    branch = &next;
  };
  do {
    branch = &start;
    news.clear();
    task.emplace(root, graph_task, asked);
  } while (!task->walk(cache().silent(), on_key));
  auto& known = (*branch)->backwards;
  SymbolValues values;
  auto is_fit = [&](const auto& backward) {
    return backward->factory.get() == runtime::thread_state().autograd_factory && backward->fits(*task, values);
  };
  auto found = std::ranges::find_if(known, is_fit);
  if (found != known.end()) {
    std::rotate(known.begin(), found, found + 1);
    return {*branch, known.front(), nullptr, std::move(values)};
  }
  Found none{*branch, nullptr, known.empty() ? nullptr : known.front()};
  if (news.empty()) news = none.before ? none.before->why_not(*task) : "the graph ends where another one goes on";
  tell(news);
  return none;
}

void note_declined(const std::string& reason) {
  count(kCounts, "declined");
  count("compiled_autograd_declined", reason);
  runtime::log(runtime::Log::Capture, "backward left to the engine: " + reason);
}

// As the engine does when all nodes have run.
void run_final_callbacks(GraphTask& task) {
  for (size_t i = 0;; ++i) {
    std::function<void()> callback;
    {
      std::lock_guard lock(task.final_callbacks_lock_);
      if (i == task.final_callbacks_.size()) return;
      callback = task.final_callbacks_[i];
    }
    callback();
  }
}

void capture_and_keep(Runner& runner, const Found& found, std::unique_ptr<runtime::GlobalState> modes) {
  std::vector<std::string> opaque;
  auto on_opaque = [&](const Node& node, const std::string& reason) { opaque.push_back(node.name() + ": " + reason); };
  runtime::ThreadState& thread = runtime::thread_state();
  bool all_sizes = thread.autograd_dynamic.value_or(false);
  bool is_symbolic = thread.autograd_dynamic.value_or(found.before && found.before->differs_in_sizes(runner.task()));
  std::string why_not;
  std::shared_ptr<Backward> backward;
  if (is_symbolic || found.factory) {
    SymbolicOptions options{all_sizes, is_symbolic ? found.before.get() : nullptr, found.factory.get()};
    backward = capture_symbolic(runner, options, on_opaque);
  } else {
    backward = capture(runner, on_opaque, &why_not);
  }
  py::Gil gil;
  for (const std::string& node : opaque) count("compiled_autograd_opaque", node);
  if (!backward) return note_declined("captured in vain: " + why_not);
  backward->state = std::move(modes);
  backward->factory = found.factory;
  count(kCounts, "captures");
  runtime::log(runtime::Log::Capture, "backward captured: " + backward->summary());
  if (runtime::logs(runtime::Log::Graph)) runtime::log(runtime::Log::Graph, backward->text());
  cache().add(found.end, std::move(backward));
}

// None: it is left to the engine.
std::optional<variable_list> run(const NodePtr& root, GraphTask& graph_task, const edge_list& asked, bool is_alone) {
  at::ThreadLocalStateGuard modes_of_the_backward(graph_task.thread_locals_);
  std::optional<Task> task;
  std::optional<Runner> runner;
  Found found;
  std::unique_ptr<runtime::GlobalState> modes;
  {
    py::Gil gil;
    std::string reason = is_alone ? why_left_to_engine(graph_task) : "another thread runs a backward";
    if (reason.empty() && cache().is_given_up()) reason = kKeepChanging;
    try {
      if (reason.empty()) found = look_up(task, root, graph_task, asked);
    } catch (const std::exception&) {  // which the engine will throw, when it gets there
      reason = "a node that cannot give what it has saved";
    }
    if (reason.empty() && !task->is_on_current_streams()) reason = "nodes that run on another stream";
    if (reason.empty() && !found.backward && cache().is_in_vain()) reason = kKeepChanging;
    if (!reason.empty()) return note_declined(reason), std::nullopt;
    runner.emplace(*task, runtime::config().compiled_autograd_verify);
    if (found.backward) {
      count(kCounts, "hits");
      cache().note_hit();
    } else {
      modes = record::snapshot_global_state();
      found.factory = py::share(runtime::thread_state().autograd_factory);
    }
  }
  if (!found.backward) {
    capture_and_keep(*runner, found, std::move(modes));
  } else if (found.backward->run(*runner, found.values)) {
    py::Gil gil;
    count(kCounts, "fallbacks");
  }
  run_final_callbacks(graph_task);
  return std::move(runner->results());
}

variable_list run_backward(const NodePtr& root, const GraphTask& const_task, bool accumulates, const edge_list& edges) {
  auto& task = const_cast<GraphTask&>(const_task);  // the engine's own, which it has just made
  runtime::ThreadState& thread = runtime::thread_state();
  if (is_recorded() && can_run_straight(task)) {
    record::Recorder::OnOneLine backwards_are_called_from_here;
    variable_list results = run_straight(root, task);
    run_final_callbacks(task);
    return results;
  }
  if (!compiles(thread.autograd_compiler)) return leave_to_engine(root, task);
  struct Entered {
    runtime::ThreadState& thread;
    std::atomic<int>& threads = runtime::process_state().threads_in_backwards;
    bool is_alone = thread.backwards++ > 0 || threads++ == 0;
    ~Entered() {
      if (--thread.backwards == 0) --threads;
    }
  } entered{thread};
  auto results = run(root, task, accumulates ? edge_list() : edges, entered.is_alone);
  return results ? std::move(*results) : leave_to_engine(root, task);
}

// It stays if a thread turns it off while another one is in a backward, and then only hands on.
void drop_hook() {
  if (runtime::process_state().threads_in_backwards == 0) Engine::set_compiled_autograd(nullptr);
}

// A thread that ends does not wish for anything any more.
struct ForgottenAtExit {
  runtime::ThreadState& thread = runtime::thread_state();
  ~ForgottenAtExit() { runtime::process_state().backward_compilers -= compiles(thread.autograd_compiler); }
};

}  // namespace

void set_compiler(Compiler compiler, PyObject* factory, std::optional<bool> dynamic) {
  runtime::ThreadState& thread = runtime::thread_state();
  Compiler before = std::exchange(thread.autograd_compiler, compiler);
  thread.autograd_factory = factory;
  thread.autograd_dynamic = dynamic;
  int users = runtime::process_state().backward_compilers += compiles(compiler) - compiles(before);
  thread_local ForgottenAtExit forgotten_at_exit;
  if (users > 0)
    Engine::set_compiled_autograd(&run_backward);
  else if (compiles(before))
    drop_hook();
}

RecordedBackward::RecordedBackward() : is_on_(is_recorded() && !torch::autograd::AnomalyMode::is_enabled()) {
  if (!is_on_) return;
  ++runtime::process_state().backward_compilers;
  Engine::set_compiled_autograd(&run_backward);
}

RecordedBackward::~RecordedBackward() {
  if (is_on_ && --runtime::process_state().backward_compilers == 0) drop_hook();
}

void note_derivation() {
  Compiler compiler = runtime::thread_state().autograd_compiler;
  if (compiler == Compiler::Unsaid && runtime::config().compile_backwards)
    set_compiler(Compiler::ByDefault, nullptr, std::nullopt);
  else if (compiler == Compiler::ByDefault && !runtime::config().compile_backwards)
    set_compiler(Compiler::Unsaid, nullptr, std::nullopt);
}

void keep_hook() {
  if (!compiles(runtime::thread_state().autograd_compiler)) return;
  bool must_warn = torch::autograd::AnomalyMode::is_enabled() && runtime::process_state().threads_in_backwards == 0;
  if (must_warn) note_declined("anomaly detection is active");
  Engine::set_compiled_autograd(must_warn ? nullptr : &run_backward);
}

void clear_cache() { cache().clear(); }
bool is_cache_empty() { return cache().is_empty(); }

}  // namespace magneto::autograd
