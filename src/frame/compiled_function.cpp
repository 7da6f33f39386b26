// CompiledFunction. The hot path is `call`, top to bottom: arguments, guards, program.
//
// Everything here belongs to the GIL. A program gives it up while its tensors are computed, so a variant is kept alive
// by a reference of its own while it runs, and nothing is read from the function's state afterwards.
#include "frame/compiled_function.h"

#include <structmember.h>

#include <array>
#include <ctime>
#include <map>
#include <vector>

#include "frame/capture.h"
#include "runtime/config.h"
#include "runtime/log.h"
#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::frame {

namespace {

using guard::CallArguments;
using runtime::config;

// The variants that admit the same calls; which of them fits depends on what they read.
struct Group {
  std::shared_ptr<const guard::Arguments> arguments;
  guard::Trie trie;
};

struct State {
  std::string name;
  std::vector<Group> groups;                       // most recently used first
  std::vector<std::shared_ptr<Variant>> variants;  // newest first
  bool whole = false;                              // never in several parts
  std::map<std::string, int64_t> failures, misses, breaks;
  int64_t captures = 0;
  int64_t failures_in_a_row = 0;
  bool has_told = false;    // that it is captured no more
  int64_t late_misses = 0;  // since recapture_limit was reached
  int64_t late_hits = 0;    // of the variants, when they were last counted
};

struct CompiledFunction {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* dict;
  PyObject* weak_references;
  State* state;
};

CompiledFunction* as_compiled(PyObject* object) { return reinterpret_cast<CompiledFunction*>(object); }

// The values of the argument nodes and the tensors among them, on the stack for ordinary calls.
class Matched {
 public:
  bool match(const guard::Arguments& arguments, const CallArguments& call) {
    size_t need = arguments.node_count() + arguments.tensor_count();
    if (need > inline_.size()) heap_.resize(need);
    PyObject** base = need > inline_.size() ? heap_.data() : inline_.data();
    values = base;
    tensors = base + arguments.node_count();
    return arguments.match(call, values, tensors);
  }
  PyObject** values = nullptr;
  PyObject** tensors = nullptr;

 private:
  std::array<PyObject*, 64> inline_;
  std::vector<PyObject*> heap_;
};

PyObject* run_eagerly(CompiledFunction* self, const CallArguments& call) {
  return PyObject_Vectorcall(self->function, call.values, call.positional, call.keyword_names);
}

// Nothing is compiled, and as the settings stand nothing will be.
bool stays_eager(const State& state) {
  return state.variants.empty() && (mg_why_unsupported() || state.failures_in_a_row >= config().capture_attempts ||
                                    state.captures >= config().recapture_limit);
}

std::string with_place(const std::string& reason, const std::string& where) {
  return where.empty() ? reason : reason + " (" + where + ")";
}

void note_failure(State& state, const std::string& reason, const std::string& where) {
  runtime::count("eager", reason);
  ++state.failures[with_place(reason, where)];
  runtime::log(runtime::Log::Capture, state.name + ": not compiled: " + with_place(reason, where));
}

Group& group_of(State& state, const guard::Arguments& arguments) {
  auto found = std::find_if(state.groups.begin(), state.groups.end(),
                            [&](const Group& group) { return group.arguments->same_as(arguments); });
  return found == state.groups.end() ? *state.groups.insert(state.groups.begin(), Group()) : *found;
}

void drop_variants(State& state) {
  std::vector<std::shared_ptr<Variant>> variants;
  std::vector<Group> groups;
  variants.swap(state.variants), groups.swap(state.groups);
}

void remove_variant(State& state, const Variant& variant) {
  Group& group = group_of(state, *variant.arguments);
  group.trie.remove(variant);
  if (group.trie.empty()) state.groups.erase(state.groups.begin() + (&group - state.groups.data()));
}

// Of the newest variant, in words.
std::string why_not_fitting(CompiledFunction* self, const CallArguments& call) {
  State& state = *self->state;
  const Variant& latest = *state.variants.front();
  std::string why = latest.arguments->explain(call);
  if (why.empty())
    why = group_of(state, *latest.arguments).trie.explain(latest, name_roots(self->function, *latest.arguments));
  return why.empty() ? "a value that the call computes with or asks from a tensor is another one" : why;
}

void note_miss(State& state, const std::string& why) {
  runtime::count("recompile", why);
  ++state.misses[why];
  runtime::log(runtime::Log::Guards, state.name + ": captured again because " + why);
}

size_t op_count(const std::vector<const runtime::Segment*>& segments) {
  size_t count = 0;
  for (const runtime::Segment* segment : segments) count += segment->op_count();
  return count;
}

void note_breaks(State& state, const Capture& captured) {
  for (const std::string& why : captured.breaks) {
    runtime::count("graph_break", why);
    ++state.breaks[why];
  }
}

void add_variant(State& state, Capture& captured) {
  std::shared_ptr<Variant>& variant = captured.variant;
  Group& group = group_of(state, *variant->arguments);
  if (!group.arguments) group.arguments = variant->arguments;
  variant->arguments = group.arguments;
  group.trie.insert(variant, std::move(captured.reads));
  std::vector<const runtime::Segment*> segments = variant->program.segments();
  runtime::counters()["stats"]["graphs"] += static_cast<int64_t>(segments.size());
  note_breaks(state, captured);
  state.failures_in_a_row = 0;
  variant->last_used = runtime::process_state().hits;
  runtime::log(runtime::Log::Capture, state.name + ": compiled, " + std::to_string(op_count(segments)) +
                                          " operations, " + std::to_string(group.trie.size(*variant)) + " guards");
  if (runtime::logs(runtime::Log::Graph))
    for (const runtime::Segment* segment : segments) runtime::log(runtime::Log::Graph, segment->text());
  if (runtime::logs(runtime::Log::Program)) runtime::log(runtime::Log::Program, variant->program.text());
  state.variants.insert(state.variants.begin(), variant);
  if (state.variants.size() > static_cast<size_t>(std::max<int64_t>(config().cache_limit, 1))) {
    auto oldest = std::min_element(state.variants.begin() + 1, state.variants.end(),
                                   [](const auto& a, const auto& b) { return a->last_used < b->last_used; });
    std::shared_ptr<Variant> evicted = *oldest;
    state.variants.erase(oldest);
    remove_variant(state, *evicted);
    runtime::count("stats", "evicted");
  }
}

// Watches this call. `base`: a variant that fits, but could not finish an earlier call.
PyObject* capture_call(CompiledFunction* self, const CallArguments& call, std::shared_ptr<Variant> base) {
  State& state = *self->state;
  ++state.captures;
  runtime::count("stats", "captures");
  // The call may drop the last reference to this object.
  py::Ref keep = py::Ref::borrow((PyObject*)self);
  Capture captured = capture(self->function, call, state.whole, base.get());
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (base) base->captures_in_vain = captured.added ? 0 : base->captures_in_vain + 1;
  if (Variant* variant = captured.variant ? captured.variant.get() : captured.added ? base.get() : nullptr)
    variant->depth = std::max(variant->depth, captured.depth);
  if (captured.variant)
    add_variant(*self->state, captured);
  else if (captured.added)
    note_breaks(*self->state, captured);
  else if (!base)
    ++self->state->failures_in_a_row;
  if (!captured.reason.empty()) note_failure(*self->state, captured.reason, captured.where);
  PyErr_Restore(type, value, traceback);
  return captured.result.release();
}

// Whether another capture of a function that has variants may pay.
bool may_capture_more(const State& state) { return state.captures < config().recapture_limit && why_not_now().empty(); }

// CPython had to finish a call: plans a capture that adds what was missing.
void note_left(State& state, Variant& variant, const std::string& why) {
  runtime::count("stats", "exits");
  if (variant.capture_in >= 0 || variant.captures_in_vain >= config().capture_attempts) return;
  variant.capture_in = variant.captures_in_vain;
  runtime::count("recompile", why);
  ++state.misses[why];
  runtime::log(runtime::Log::Guards, state.name + ": will be captured again because " + why);
}

constexpr const char* kCapturedTooOften = "the function was captured too often (recapture_limit)";

// Once: the function is captured no more.
void tell_limit(CompiledFunction* self, const CallArguments& call) {
  State& state = *self->state;
  runtime::count("eager", kCapturedTooOften);
  std::string text = state.name + " was captured " + std::to_string(state.captures) +
                     " times (recapture_limit); calls that none of its compiled forms fits run eagerly from now on";
  if (!state.variants.empty()) text += ". The newest did not fit this time because " + why_not_fitting(self, call);
  runtime::warn_once(text);
}

// Nothing more will be compiled. What is does not pay if most calls look for a variant in vain.
void miss_past_limit(CompiledFunction* self, const CallArguments& call) {
  static constexpr int64_t kCalls = 256;
  State& state = *self->state;
  if (!std::exchange(state.has_told, true)) tell_limit(self, call);
  if (++state.late_misses % kCalls) return;
  int64_t hits = 0;
  for (const auto& variant : state.variants) hits += variant->hits;
  if (hits - std::exchange(state.late_hits, hits) >= kCalls) return;
  ++state.failures[with_place(kCapturedTooOften, why_not_fitting(self, call))];
  drop_variants(state);
}

PyObject* call_through(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keyword_names);

// No variant fits: watch this call, if that may still pay.
PyObject* miss(CompiledFunction* self, const CallArguments& call) {
  State& state = *self->state;
  if (stays_eager(state)) self->vectorcall = call_through;
  if (stays_eager(state) || state.failures_in_a_row >= config().capture_attempts) return run_eagerly(self, call);
  if (state.captures >= config().recapture_limit) {
    miss_past_limit(self, call);
    return run_eagerly(self, call);
  }
  if (std::string why = why_not_now(); !why.empty()) {
    note_failure(state, why, "");
    return run_eagerly(self, call);
  }
  if (!state.variants.empty()) note_miss(state, why_not_fitting(self, call));
  return capture_call(self, call, nullptr);
}

std::shared_ptr<Variant> find_variant(State& state, const CallArguments& call, Matched& matched,
                                      const std::vector<const guard::Entry*>& tried) {
  for (size_t i = 0; i < state.groups.size(); ++i) {
    if (!matched.match(*state.groups[i].arguments, call)) continue;
    std::shared_ptr<guard::Entry> entry = state.groups[i].trie.find(tried);
    if (!entry) continue;
    auto at = state.groups.begin() + static_cast<ptrdiff_t>(i);
    if (i) std::rotate(state.groups.begin(), at, at + 1);
    return std::static_pointer_cast<Variant>(std::move(entry));
  }
  return nullptr;
}

constexpr int kMaxNesting = 8;  // of captures: each takes C stack

// The call is part of one that is being watched, or of what is kept away from it.
bool must_stay_eager() {
  const runtime::ThreadState& mine = runtime::thread_state();
  bool watched = mine.watch && (mine.watch->alive() || mine.watch->nesting() == kMaxNesting);
  return watched || mine.watch_paused || !config().enabled;
}

PyObject* call(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keyword_names) {
  CompiledFunction* self = as_compiled(object);
  CallArguments call{args, static_cast<size_t>(PyVectorcall_NARGS(flagged_count)), keyword_names};
  State& state = *self->state;
  ++runtime::process_state().calls;
  if (must_stay_eager()) return run_eagerly(self, call);
  PyThreadState* thread = PyThreadState_Get();
  if (mg_is_tracing_lines(thread)) return miss(self, call);
  Matched matched;
  std::vector<const guard::Entry*> diverged;
  while (std::shared_ptr<Variant> variant = find_variant(state, call, matched, diverged)) {
    if (mg_recursion_left(thread) < variant->depth) return run_eagerly(self, call);  // which raises RecursionError
    if (variant->capture_in >= 0 && variant->capture_in-- == 0 && may_capture_more(state))
      return capture_call(self, call, std::move(variant));
    py::Ref keep = py::Ref::borrow(object);  // the call may drop the last reference to it
    program::End end;
    std::string why_left;
    PyObject* result =
        variant->program.run(matched.values, matched.tensors, &end, variant->capture_in < 0 ? &why_left : nullptr);
    if (end == program::End::Diverged) {
      diverged.push_back(variant.get());
      continue;
    }
    ++variant->hits;
    variant->last_used = ++runtime::process_state().hits;
    if (end == program::End::Left) note_left(*self->state, *variant, why_left);
    if (end != program::End::Failed) return result;
    // An operator raised an error. The function itself raises it with its own traceback, or handles it.
    PyErr_Clear();
    return run_eagerly(self, call);
  }
  return miss(self, call);
}

// Of a function that stays eager.
PyObject* call_through(PyObject* object, PyObject* const* args, size_t flagged_count, PyObject* keyword_names) {
  CompiledFunction* self = as_compiled(object);
  if (!stays_eager(*self->state)) [[unlikely]]
    return (self->vectorcall = call)(object, args, flagged_count, keyword_names);
  ++runtime::process_state().calls;
  return PyObject_Vectorcall(self->function, args, flagged_count, keyword_names);
}

// ---- the Python type

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* kNames[] = {"fn", "name", "whole", nullptr};
  PyObject* function;
  const char* name = "";
  int whole = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|sp", const_cast<char**>(kNames), &function, &name, &whole))
    return nullptr;
  if (!PyCallable_Check(function)) {
    PyErr_Format(PyExc_TypeError, "CompiledFunction needs a callable, not a %.200s", Py_TYPE(function)->tp_name);
    return nullptr;
  }
  auto* self = as_compiled(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = call;
  self->function = Py_NewRef(function);
  self->state = new State;
  self->state->name = name;
  self->state->whole = whole;
  return (PyObject*)self;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  CompiledFunction* self = as_compiled(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->dict);
  if (!self->state) return 0;
  for (const Group& group : self->state->groups) {
    if (int stop = group.arguments->traverse(visit, arg)) return stop;
    if (int stop = group.trie.traverse(visit, arg)) return stop;
  }
  for (const auto& variant : self->state->variants)
    if (int stop = variant->program.traverse(visit, arg)) return stop;
  return 0;
}

int clear(PyObject* object) {
  CompiledFunction* self = as_compiled(object);
  // `function` stays until deallocation: somebody may still call.
  if (self->state) drop_variants(*self->state);
  Py_CLEAR(self->dict);
  return 0;
}

void destroy(PyObject* object) {
  CompiledFunction* self = as_compiled(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references) PyObject_ClearWeakRefs(object);
  clear(object);
  Py_CLEAR(self->function);
  delete self->state;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* bind(PyObject* object, PyObject* instance, PyObject*) {
  if (!instance || instance == Py_None) return Py_NewRef(object);
  return PyMethod_New(object, instance);
}

PyObject* repr(PyObject* object) {
  return PyUnicode_FromFormat("<magneto compiled %R>", as_compiled(object)->function);
}

// ---- what happened, as data

PyObject* to_dict(const std::map<std::string, int64_t>& counts) {
  py::Ref dict = py::Ref::steal(PyDict_New());
  for (const auto& [name, count] : counts) {
    py::Ref value = py::Ref::steal(PyLong_FromLongLong(count));
    if (!dict || !value || PyDict_SetItemString(dict.get(), name.c_str(), value.get()) < 0) return nullptr;
  }
  return dict.release();
}

PyObject* failures(PyObject* object, PyObject*) { return to_dict(as_compiled(object)->state->failures); }
PyObject* misses(PyObject* object, PyObject*) { return to_dict(as_compiled(object)->state->misses); }
PyObject* breaks(PyObject* object, PyObject*) { return to_dict(as_compiled(object)->state->breaks); }

PyObject* describe_variant(State& state, const Variant& variant) {
  const guard::Trie& trie = group_of(state, *variant.arguments).trie;
  std::vector<std::string> lines;
  variant.arguments->describe(&lines);
  trie.describe(variant, &lines);
  py::Ref guards = py::Ref::steal(PyList_New(0));
  for (const std::string& line : lines) {
    py::Ref text = py::Ref::steal(PyUnicode_FromString(line.c_str()));
    if (!guards || !text || PyList_Append(guards.get(), text.get()) < 0) return nullptr;
  }
  std::vector<const runtime::Segment*> segments = variant.program.segments();
  py::Ref graphs = py::Ref::steal(PyList_New(0));
  for (const runtime::Segment* segment : segments) {
    py::Ref text = py::Ref::steal(PyUnicode_FromString(segment->text().c_str()));
    if (!graphs || !text || PyList_Append(graphs.get(), text.get()) < 0) return nullptr;
  }
  return Py_BuildValue("{s:n, s:O, s:s, s:O, s:L, s:d, s:d, s:n}", "ops", static_cast<Py_ssize_t>(op_count(segments)),
                       "graphs", graphs.get(), "program", variant.program.text().c_str(), "guards", guards.get(),
                       "hits", static_cast<long long>(variant.hits), "watch_ms", variant.watch_ms, "build_ms",
                       variant.build_ms, "guard_count",
                       static_cast<Py_ssize_t>(trie.size(variant) + variant.arguments->node_count()));
}

PyObject* variants(PyObject* object, PyObject*) {
  py::Ref list = py::Ref::steal(PyList_New(0));
  State& state = *as_compiled(object)->state;
  for (const auto& variant : state.variants) {
    py::Ref dict = py::Ref::steal(describe_variant(state, *variant));
    if (!list || !dict || PyList_Append(list.get(), dict.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* state_name(PyObject* object, PyObject*) {
  const State& state = *as_compiled(object)->state;
  return PyUnicode_FromString(!state.variants.empty() ? "compiled" : stays_eager(state) ? "eager" : "new");
}

PyObject* reset(PyObject* object, PyObject*) {
  State& state = *as_compiled(object)->state;
  State old;
  old.name = state.name;
  old.whole = state.whole;
  std::swap(old, state);  // destroyed last: it may run arbitrary finalisers
  Py_RETURN_NONE;
}

double processor_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// The time of a look-up; with `change`, a dict that nobody else knows changes before each.
PyObject* time_guards(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keyword_names, bool change) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "expected the number of repeats, then the arguments of the call");
    return nullptr;
  }
  long repeats = PyLong_AsLong(args[0]);
  if (repeats < 1) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "repeats must be at least 1");
    return nullptr;
  }
  CallArguments call{args + 1, static_cast<size_t>(count - 1), keyword_names};
  Matched matched;
  State& state = *as_compiled(object)->state;
  py::Ref dict = py::Ref::steal(PyDict_New());
  if (!dict) return nullptr;
  if (find_variant(state, call, matched, {})) {
    double start = processor_ns();
    for (long i = 0; i < repeats; ++i) {
      if (change && PyDict_SetItem(dict.get(), Py_None, i % 2 ? Py_True : Py_False) < 0) return nullptr;
      find_variant(state, call, matched, {});
    }
    return PyFloat_FromDouble((processor_ns() - start) / static_cast<double>(repeats));
  }
  PyErr_SetString(PyExc_ValueError, "no compiled variant fits these arguments");
  return nullptr;
}

PyObject* guard_ns(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keyword_names) {
  return time_guards(object, args, count, keyword_names, false);
}

PyObject* guard_ns_after_change(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keyword_names) {
  return time_guards(object, args, count, keyword_names, true);
}

PyObject* get_name(PyObject* object, void*) { return PyUnicode_FromString(as_compiled(object)->state->name.c_str()); }

PyMethodDef kMethods[] = {
    {"variants", variants, METH_NOARGS, "What was compiled, newest first."},
    {"failures", failures, METH_NOARGS, "Why captures failed: reason -> count."},
    {"misses", misses, METH_NOARGS, "Why calls were captured again: reason -> count."},
    {"breaks", breaks, METH_NOARGS, "Why programs are in several parts: reason -> count."},
    {"state", state_name, METH_NOARGS, "'new', 'compiled' or 'eager'."},
    {"reset", reset, METH_NOARGS, "Forget everything that was compiled or counted."},
    {"guard_ns", (PyCFunction)(void (*)(void))guard_ns, METH_FASTCALL | METH_KEYWORDS,
     "guard_ns(repeats, *args, **kwargs): nanoseconds of processor time per check of the guards "
     "of the variant that fits."},
    {"guard_ns_after_change", (PyCFunction)(void (*)(void))guard_ns_after_change, METH_FASTCALL | METH_KEYWORDS,
     "As guard_ns, if a dict that has nothing to do with the call is changed before each check; "
     "that is counted, too."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef kMembers[] = {
    {"fn", T_OBJECT, offsetof(CompiledFunction, function), READONLY, "The function as it was written."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFunction, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFunction, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef kGetSets[] = {{"name", get_name, nullptr, "Its name in logs and reports.", nullptr},
                          {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                          {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, (void*)create},
                        {Py_tp_dealloc, (void*)destroy},
                        {Py_tp_traverse, (void*)traverse},
                        {Py_tp_clear, (void*)clear},
                        {Py_tp_call, (void*)PyVectorcall_Call},
                        {Py_tp_descr_get, (void*)bind},
                        {Py_tp_repr, (void*)repr},
                        {Py_tp_methods, kMethods},
                        {Py_tp_members, kMembers},
                        {Py_tp_getset, kGetSets},
                        {Py_tp_doc, (void*)"A function that is compiled by its second call."},
                        {0, nullptr}};

}  // namespace

PyTypeObject* make_compiled_function_type(const char* module_name) {
  static std::string name = std::string(module_name) + ".CompiledFunction";
  static PyType_Spec spec = {name.c_str(), sizeof(CompiledFunction), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, kSlots};
  auto* type = (PyTypeObject*)PyType_FromSpec(&spec);
  if (!type) return nullptr;
  runtime::process_state().compiled_type = type;
  runtime::process_state().compiled_inner = [](PyObject* object) { return as_compiled(object)->function; };
  return type;
}

}  // namespace magneto::frame
