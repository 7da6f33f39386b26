// Every Python function of the process: a table of compiled forms by function, and what happens to a frame.
#include "frame/everywhere.h"

#include <algorithm>

#include "cpython/last_word.h"
#include "cpython/text.h"
#include "frame/hook.h"
#include "runtime/config.h"
#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

// Under a hook every Python call takes C stack. Deeper than this, calls go without: CPython then needs none for them.
constexpr int kMaxNested = 2000;
constexpr int kSpareNesting = 700;  // what CPython's own C code, and ours, may need at any depth

// A function is watched so often; further calls only run in our interpreter.
constexpr int kWatchesEach = 16;

// What is kept with a code object, for all functions that share it.
struct CodeRecord {
  int watches = 0;
  int64_t unpaid = 0;     // captures since the last call that a program has made
  bool is_plain = false;  // runs as it is from now on
};

// The scope of the mode Capture, for all threads.
CaptureScope& everybody() {
  static CaptureScope& scope = *new CaptureScope(std::make_shared<Wishes>(), {}, {});
  return scope;
}

// The forms of a function; null, without an error, if it cannot be followed.
std::shared_ptr<Forms> forms_of(CaptureScope& scope, PyFunctionObject* function) {
  PyObject* object = reinterpret_cast<PyObject*>(function);
  FunctionTable& table = *scope.table;
  if (auto found = table.find(object); found != table.end()) return found->second.forms;
  py::Ref reference = py::when_dead(object, [object, weak = std::weak_ptr(scope.table)] {
    // What the entry held goes last, when the table is in order again.
    if (auto table = weak.lock()) auto node = table->extract(object);
  });
  if (!reference) return PyErr_Clear(), nullptr;
  auto forms = std::make_shared<Forms>();
  forms->name = py::text(function->func_qualname);
  forms->wishes = scope.wishes;
  forms->has_told = true;  // nobody has asked for this function
  table.emplace(object, FunctionForms{std::move(reference), forms});
  return forms;
}

// Null, without an error, if CPython has no room for it.
CodeRecord* record_of(PyCodeObject* code) {
  static Py_ssize_t slot = mg_code_data_slot([](void* data) { delete static_cast<CodeRecord*>(data); });
  if (slot < 0) return PyErr_Clear(), nullptr;
  if (void* data = mg_code_data(code, slot)) return static_cast<CodeRecord*>(data);
  auto record = std::make_unique<CodeRecord>();
  if (!mg_set_code_data(code, slot, record.get())) return PyErr_Clear(), nullptr;
  return record.release();
}

// ---- a frame as a call

bool is_function(const mg_fresh_frame& frame) {
  constexpr int kPlain = CO_OPTIMIZED | CO_NEWLOCALS;
  constexpr int kOther = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  return (frame.code->co_flags & (kPlain | kOther)) == kPlain && !frame.scope && !frame.frame_object &&
         frame.function->func_code == reinterpret_cast<PyObject*>(frame.code);
}

// What the function was called with, as its frame holds it.
class FrameArguments {
 public:
  explicit FrameArguments(const mg_fresh_frame& frame) {
    PyCodeObject* code = frame.code;
    int next = code->co_argcount;
    values_.assign(frame.locals, frame.locals + next);
    PyObject* rest = code->co_flags & CO_VARARGS ? frame.locals[next + code->co_kwonlyargcount] : nullptr;
    if (rest)
      values_.insert(values_.end(), &PyTuple_GET_ITEM(rest, 0), &PyTuple_GET_ITEM(rest, PyTuple_GET_SIZE(rest)));
    positional_ = values_.size();
    std::vector<PyObject*> names;
    auto add = [&](PyObject* name, PyObject* value) {
      names.push_back(name);
      values_.push_back(value);
    };
    for (int i = 0; i < code->co_kwonlyargcount; ++i, ++next)
      add(PyTuple_GET_ITEM(code->co_localsplusnames, next), frame.locals[next]);
    if (code->co_flags & CO_VARKEYWORDS) {
      Py_ssize_t position = 0;
      PyObject *name, *value;
      while (PyDict_Next(frame.locals[next + (rest != nullptr)], &position, &name, &value)) add(name, value);
    }
    if (names.empty()) return;
    names_ = py::Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
    for (size_t i = 0; names_ && i < names.size(); ++i) PyTuple_SET_ITEM(names_.get(), i, Py_NewRef(names[i]));
    if (!names_) PyErr_Clear();
    failed_ = !names_;
  }

  bool failed() const { return failed_; }
  guard::CallArguments get() const { return {values_.data(), positional_, names_.get()}; }

 private:
  std::vector<PyObject*> values_;  // borrowed from the frame
  size_t positional_;
  py::Ref names_;
  bool failed_ = false;
};

// The call that led to a frame: running the frame makes it.
class FrameCall final : public RealCall {
 public:
  FrameCall(PyThreadState* thread, mg_frame* frame, PyFunctionObject* function, const guard::CallArguments& arguments)
      : RealCall(reinterpret_cast<PyObject*>(function), arguments), thread_(thread), frame_(frame) {}

  PyObject* run(trace::Watch* watch) override {
    has_run_ = true;
    return watch ? trace::watch_frame(thread_, frame_, 0) : evaluate_below(thread_, frame_, 0);
  }
  bool has_run() const { return has_run_; }

 private:
  PyThreadState* thread_;
  mg_frame* frame_;
  bool has_run_ = false;
};

// ---- the two modes

PyObject* watch_alone(PyThreadState* thread, mg_frame* frame, int throwing) {
  struct Nothing {
    guard::Arguments arguments{guard::CallArguments{nullptr, 0, nullptr}};
    guard::Entry entry;
    program::Program program;
    trace::Watch watch{arguments, &entry, &program};
  };
  runtime::Unpaused unpaused;
  // Nothing is known of a generator that is resumed. Somebody who has given up will do for it, as for many calls.
  CodeRecord* record = record_of(mg_frame_code(frame));
  mg_frame_view view;
  mg_frame_read(frame, &view);
  bool only_runs = view.generator || !record || ++record->watches > kWatchesEach;
  trace::Watch* outer = runtime::thread_state().watch;
  if (only_runs && outer && !outer->alive() && outer->goes_on) return trace::watch_frame(thread, frame, throwing);
  auto nothing = std::make_unique<Nothing>();  // not on the C stack: calls may nest deeply
  nothing->watch.goes_on = true;
  nothing->watch.may_cut = false;
  return trace::watch_frame(thread, frame, throwing);
}

PyObject* call_captured(PyThreadState* thread, mg_frame* frame, CaptureScope& scope) {
  mg_fresh_frame fresh;
  if (!mg_fresh_frame_read(frame, &fresh) || !is_function(fresh) || !scope.takes(fresh.code))
    return evaluate_below(thread, frame, 0);
  CodeRecord* record = record_of(fresh.code);
  if (!record || record->is_plain) return evaluate_below(thread, frame, 0);
  std::shared_ptr<Forms> forms = forms_of(scope, fresh.function);
  FrameArguments arguments(fresh);
  if (!forms || arguments.failed()) return evaluate_below(thread, frame, 0);
  py::Ref code = py::Ref::borrow(reinterpret_cast<PyObject*>(fresh.code));
  FrameCall call(thread, frame, fresh.function, arguments.get());
  runtime::Apart apart;
  PyObject* result = call_form(*forms, call);
  if (!call.has_run()) {
    record->unpaid = 0;
    mg_frame_finish(thread, frame);
  } else if (++record->unpaid >= runtime::config().recapture_limit) {
    record->is_plain = true;
  }
  return result;
}

// Without the hook, until the frame is left.
PyObject* evaluate_deep(PyThreadState* thread, mg_frame* frame, int throwing) {
  mg_eval_function hook = mg_get_eval_function();
  mg_set_eval_function(mg_default_evaluator());
  PyObject* result = evaluate_below(thread, frame, throwing);
  if (mg_get_eval_function() == mg_default_evaluator()) mg_set_eval_function(hook);
  return result;
}

}  // namespace

PyObject* evaluate_everywhere(PyThreadState* thread, mg_frame* frame, int throwing) {
  auto& mine = runtime::thread_state();
  if (mg_is_tracing(thread) || mg_why_unsupported() || !runtime::config().enabled || mine.left_alone ||
      runtime::process_state().stance == runtime::Stance::ForceEager)
    return evaluate_below(thread, frame, throwing);
  int& nested = mine.everywhere_nested;
  ++nested;
  bool is_deep = nested > kMaxNested || mg_c_recursion_left(thread) < kSpareNesting;
  PyObject* result = is_deep                                                    ? evaluate_deep(thread, frame, throwing)
                     : runtime::process_state().everywhere == Everywhere::Watch ? watch_alone(thread, frame, throwing)
                     : throwing ? evaluate_below(thread, frame, throwing)
                                : call_captured(thread, frame, mine.capture_scope ? *mine.capture_scope : everybody());
  --nested;
  return result;
}

void set_everywhere(Everywhere mode) {
  auto& state = runtime::process_state();
  bool was_on = std::exchange(state.everywhere, mode) != Everywhere::Off;
  if (mode != Everywhere::Off && !was_on) hook_acquire();
  if (mode == Everywhere::Off && was_on) hook_release();
  if (mode != Everywhere::Capture) everybody().clear();
}

CaptureScope::~CaptureScope() { clear(); }

int CaptureScope::traverse(visitproc visit, void* arg) const {
  if (int stop = wishes->traverse(visit, arg)) return stop;
  for (const auto& [function, known] : *table) {
    Py_VISIT(known.reference.get());
    if (int stop = known.forms.use_count() == 1 ? known.forms->traverse(visit, arg) : 0) return stop;
  }
  return 0;
}

CaptureScope* CaptureScope::enter() {
  hook_acquire();
  return std::exchange(runtime::thread_state().capture_scope, this);
}

void CaptureScope::leave(CaptureScope* outer) {
  runtime::thread_state().capture_scope = outer;
  hook_release();
}

bool CaptureScope::takes(PyCodeObject* code) const {
  if (skipped_.empty()) return true;
  std::string file = py::text(code->co_filename);
  auto longest = [&](const std::vector<std::string>& paths) {
    size_t found = 0;
    for (const std::string& path : paths)
      if (file.starts_with(path)) found = std::max(found, path.size());
    return found;
  };
  size_t skipped = longest(skipped_);
  return !skipped || longest(kept_) > skipped;
}

}  // namespace magneto::frame
