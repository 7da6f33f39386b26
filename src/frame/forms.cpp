// The compiled forms of one function. The hot path is `call_form`: arguments, guards, program.
#include "frame/forms.h"

#include <algorithm>
#include <chrono>

#include "cpython/cpython.h"
#include "cpython/error_aside.h"
#include "frame/full_graph.h"
#include "runtime/config.h"
#include "runtime/log.h"
#include "runtime/state.h"
#include "trace/watch.h"

namespace magneto::frame {

using guard::CallArguments;
using runtime::config;

Group& group_of(Forms& forms, const guard::Arguments& arguments) {
  auto found = std::find_if(forms.groups.begin(), forms.groups.end(),
                            [&](const Group& group) { return group.arguments->same_as(arguments); });
  return found == forms.groups.end() ? *forms.groups.insert(forms.groups.begin(), Group()) : *found;
}

size_t op_count(const std::vector<runtime::Segment*>& segments) {
  size_t count = 0;
  for (const runtime::Segment* segment : segments) count += segment->op_count();
  return count;
}

py::Ref describe_guards(Forms& forms, const Variant& variant) {
  std::vector<std::string> lines;
  variant.arguments->describe(&lines);
  group_of(forms, *variant.arguments).trie.describe(variant, &lines);
  py::Ref guards = py::Ref::steal(PyList_New(0));
  for (const std::string& line : lines) {
    py::Ref text = py::Ref::steal(PyUnicode_FromString(line.c_str()));
    if (!guards || !text || PyList_Append(guards.get(), text.get()) < 0) return {};
  }
  return guards;
}

namespace {

std::string with_place(const std::string& reason, const std::string& where) {
  return where.empty() ? reason : reason + " (" + where + ")";
}

void note_failure(Forms& forms, const std::string& reason, const std::string& where) {
  runtime::count("eager", reason);
  ++forms.failures[with_place(reason, where)];
  forms.last_reason = reason, forms.last_where = where;
  runtime::log(runtime::Log::Capture, forms.name + ": not compiled: " + with_place(reason, where));
}

// False: it is gone already.
bool drop_variant(Forms& forms, guard::Held<Variant> variant) {
  if (!std::erase(forms.variants, variant)) return false;
  Group& group = group_of(forms, *variant->arguments);
  group.trie.remove(*variant);
  if (group.trie.empty()) forms.groups.erase(forms.groups.begin() + (&group - forms.groups.data()));
  return true;
}

// In words.
std::string why_not_fitting(Forms& forms, const Variant& variant, const RealCall& call) {
  std::string why = variant.arguments->explain(call.arguments);
  if (why.empty())
    why = group_of(forms, *variant.arguments).trie.explain(variant, name_roots(call.function, *variant.arguments));
  return why.empty() ? "a value that the call computes with or asks from a tensor is another one" : why;
}

std::string why_newest_does_not_fit(Forms& forms, const RealCall& call) {
  return why_not_fitting(forms, *forms.variants.front(), call);
}

void note_miss(Forms& forms, const RealCall& call, const std::string& why) {
  runtime::count("recompile", why);
  ++forms.misses[why];
  if (!runtime::logs(runtime::Log::Guards)) return;
  runtime::log(runtime::Log::Guards, forms.name + ": captured again because " + why);
  for (size_t i = 1; i < forms.variants.size(); ++i)
    runtime::log(runtime::Log::Guards,
                 "  nor does an older form fit: " + why_not_fitting(forms, *forms.variants[i], call));
}

void note_breaks(Forms& forms, const Capture& captured) {
  for (const std::string& why : captured.breaks) {
    runtime::count("graph_break", why);
    ++forms.breaks[why];
  }
}

void log_program(const Variant& variant) {
  if (runtime::logs(runtime::Log::Program)) runtime::log(runtime::Log::Program, variant.program.text());
}

void add_variant(Forms& forms, Capture& captured) {
  guard::Held<Variant>& variant = captured.variant;
  Group& group = group_of(forms, *variant->arguments);
  if (!group.arguments) group.arguments = variant->arguments;
  variant->arguments = group.arguments;
  group.trie.insert(variant, std::move(captured.reads));
  std::vector<runtime::Segment*> segments = variant->program.segments();
  runtime::counters()["stats"]["graphs"] += static_cast<int64_t>(segments.size());
  note_breaks(forms, captured);
  forms.failures_in_a_row = 0;
  runtime::note_time("watch", variant->watch_ms / 1e3);
  runtime::note_time("build", variant->build_ms / 1e3);
  variant->last_used = runtime::process_state().hits;
  runtime::log(runtime::Log::Capture, forms.name + ": compiled, " + std::to_string(op_count(segments)) +
                                          " operations, " + std::to_string(group.trie.size(*variant)) + " guards");
  if (runtime::logs(runtime::Log::Graph))
    for (const runtime::Segment* segment : segments) runtime::log(runtime::Log::Graph, segment->text());
  log_program(*variant);
  forms.variants.insert(forms.variants.begin(), variant);
  if (forms.variants.size() > static_cast<size_t>(std::max<int64_t>(config().cache_limit, 1))) {
    auto worth = [](const auto& variant) { return std::pair(!variant->arguments->is_lost(), variant->last_used); };
    drop_variant(forms, *std::ranges::min_element(forms.variants.begin() + 1, forms.variants.end(), {}, worth));
    runtime::count("stats", "evicted");
  }
}

bool may_open(const Forms& forms) { return forms.wishes->dynamic != Wishes::Dynamic::Never && !forms.cannot_open; }

// Sizes and numbers that differ from those of a variant that fits otherwise.
std::vector<guard::Opening> what_to_open(const Forms& forms, const RealCall& call) {
  if (forms.cannot_open) return {};
  guard::Arguments arguments(call.arguments, forms.by_content);
  std::vector<guard::Opening> open;
  if (may_open(forms)) {
    auto opened = [&](const auto& variant) {
      if (variant->arguments->by_content() != forms.by_content) return false;  // its nodes are others
      auto changed = variant->arguments->opened_for(call.arguments);
      if (changed) open = guard::difference(*changed, forms.pinned);
      return changed.has_value();
    };
    bool is_known = std::ranges::any_of(forms.variants, opened);
    bool all = forms.wishes->dynamic == Wishes::Dynamic::Always && forms.variants.empty();
    if (!is_known && all) open = arguments.everything();
  }
  return arguments.with_marks(std::move(open), forms.pinned);
}

std::vector<guard::Opening> what_is_open(const Forms& forms, const Variant& base) {
  bool has_same_nodes = base.arguments->by_content() == forms.by_content;
  return has_same_nodes ? base.arguments->open() : std::vector<guard::Opening>();
}

// Objects in place of which another one is passed now may well be another one each time.
void note_other_objects(Forms& forms, const RealCall& call) {
  if (forms.needs_identity) return;
  for (const auto& variant : forms.variants)
    for (std::string& name : variant->arguments->other_objects(call.arguments)) {
      if (std::ranges::find(forms.by_content, name) != forms.by_content.end()) continue;
      forms.by_content.push_back(std::move(name));
      forms.pinned.clear();  // the nodes have other numbers now
    }
}

// From now on it matters again which objects are passed.
void rely_on_identity(Forms& forms) {
  forms.needs_identity = true;
  forms.by_content.clear();
  forms.pinned.clear();
}

std::shared_ptr<guard::Arguments> arguments_of(Forms& forms, const RealCall& call, std::vector<guard::Opening> open) {
  auto arguments = std::make_shared<guard::Arguments>(call.arguments, forms.by_content, std::move(open));
  if (arguments->refusal().empty() || forms.by_content.empty()) return arguments;
  rely_on_identity(forms);
  return std::make_shared<guard::Arguments>(call.arguments);
}

// What was read and is another number or tensor now may well be another one each time.
void open_what_changed(Forms& forms, const RealCall& call) {
  if (!may_open(forms)) return;
  const Variant& latest = *forms.variants.front();
  if (!latest.arguments->explain(call.arguments).empty()) return;
  const guard::Read* changed = group_of(forms, *latest.arguments).trie.first_failure(latest);
  if (!changed) return;
  bool is_cell = changed->access == guard::Access::Field && PyCell_Check(changed->owner);
  if (!is_cell && (changed->access != guard::Access::Key || !PyUnicode_CheckExact(changed->key.get()))) return;
  PyObject* key = is_cell ? trace::cell_key() : changed->key.get();
  PyObject* now = is_cell ? PyCell_GET(changed->owner) : guard::find_key(changed->owner, key);
  bool can_be_open = now && (guard::is_plain_number(now) || runtime::tensor_plug().is_tensor(now));
  if (can_be_open) forms.open_keys.push_back(py::Ref::borrow(key));
}

// ---- what others are told, and may say. False: an error is set

bool tell_compilation(const Forms& forms, bool starts) {
  py::Ref callback = py::Ref::borrow(runtime::process_state().compile_callback);
  if (!callback) return true;
  runtime::LeaveAlone alone;
  py::Ref done =
      py::Ref::steal(PyObject_CallFunction(callback.get(), "Os", starts ? Py_True : Py_False, forms.name.c_str()));
  return static_cast<bool>(done);
}

bool tell_guards(Forms& forms, const Variant& variant) {
  py::Ref callback = forms.wishes->guard_export;
  if (!callback) return true;
  py::Ref guards = describe_guards(forms, variant);
  runtime::LeaveAlone alone;
  py::Ref done = py::Ref::steal(guards ? PyObject_CallOneArg(callback.get(), guards.get()) : nullptr);
  return static_cast<bool>(done);
}

bool tell_guard_failure(const Forms& forms, const std::string& why) {
  py::Ref callback = forms.wishes->guard_fail;
  if (!callback) return true;
  runtime::LeaveAlone alone;
  py::Ref done = py::Ref::steal(PyObject_CallFunction(callback.get(), "s", why.c_str()));
  return static_cast<bool>(done);
}

bool lower(const Forms& forms, const Variant& variant) {
  py::Ref backend = forms.wishes->backend;
  if (!backend) return true;
  runtime::LeaveAlone alone;
  auto start = std::chrono::steady_clock::now();
  std::vector<runtime::Segment*> segments = variant.program.segments();
  bool done =
      std::all_of(segments.begin(), segments.end(), [&](auto* segment) { return segment->lower(backend.get()); });
  runtime::note_time("backend", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return done;
}

// Of a call that was made: what is to be said about its capture. False: an error is set, in place of the result.
bool conclude(Forms& forms, const Capture& captured, const guard::Held<Variant>& filled) {
  bool good = (!captured.variant || tell_guards(forms, *filled)) && (!filled || lower(forms, *filled));
  {
    py::ErrorAside aside;
    if (!good && filled && drop_variant(forms, filled)) --forms.captures;  // the next call is to meet the same
    good = tell_compilation(forms, false) && good;
  }
  if (good && !captured.broken_promise.empty()) return set_user_error(captured.broken_promise), false;
  if (!good || filled || !forms.wishes->whole || captured.reason.empty() || captured.reason == trace::kNoTensorWork)
    return good;
  set_full_graph_error(forms.name, captured.reason, captured.where);
  return false;
}

// The next capture goes around the place where this one gave up. False: there is none, or too many are known.
bool learn_detour(Forms& forms, Capture& captured) {
  static constexpr size_t kMaxDetours = 32;
  // A reason that captures met before has nothing to do with guarding arguments by content.
  auto is_known = [&](const auto& failure) { return failure.first.starts_with(captured.reason); };
  bool is_about_contents = !forms.by_content.empty() && std::ranges::none_of(forms.failures, is_known);
  bool could_do_otherwise = captured.was_open || is_about_contents;
  if (!captured.stumble || could_do_otherwise || forms.detours.size() >= kMaxDetours) return false;
  forms.detours.insert(forms.detours.begin(), std::move(*captured.stumble));  // the newest of a place counts
  return true;
}

void open_less(Forms& forms) {
  if (std::exchange(forms.open_answers, false))
    ++forms.answers_opened_in_vain;
  else
    forms.cannot_open = true, forms.open_keys.clear();
}

// `is_wiser`: the next capture will do better.
void note_capture(Forms& forms, Capture& captured, const Variant* base, bool is_wiser) {
  if (captured.broken_promise.empty())
    forms.pinned.insert(forms.pinned.end(), captured.pinned.begin(), captured.pinned.end());
  if (captured.variant)
    add_variant(forms, captured);
  else if (captured.added)
    note_breaks(forms, captured), log_program(*base);
  else if (captured.met_forbidden || !captured.broken_promise.empty())
    --forms.captures;  // it is to be met again
  else if (captured.was_open)
    open_less(forms);  // with fixed sizes it may well go
  else if (!forms.by_content.empty() && !base && !is_wiser)
    rely_on_identity(forms);
  else if (!base && !is_wiser && (captured.result || !forms.wishes->whole))
    ++forms.failures_in_a_row;
  if (!captured.reason.empty()) note_failure(forms, captured.reason, captured.where);
}

// What is left of a call that could not be watched to its end would serve calls of all sizes, and none of them to their
// end, although fixed sizes go further, for all that is known.
bool opened_in_vain(const Forms& forms, const Capture& captured) {
  if (!captured.variant || !captured.result || !captured.was_open) return false;
  if (captured.reason.empty()) return forms.open_answers && captured.pins_answers;
  return !forms.failures.count(with_place(captured.reason, captured.where));
}

void note_hit(Variant& variant) {
  ++variant.hits;
  variant.last_used = ++runtime::process_state().hits;
}

// Watches this call. `base`: a variant that fits, but could not finish an earlier call.
PyObject* capture_call(Forms& forms, RealCall& call, guard::Held<Variant> base) {
  ++forms.captures;
  runtime::count("stats", "captures");
  if (!tell_compilation(forms, true)) return nullptr;
  std::vector<guard::Opening> open = base ? what_is_open(forms, *base) : what_to_open(forms, call);
  Capture captured = capture(call, forms.wishes->whole, base.get(), arguments_of(forms, call, std::move(open)),
                             {forms.open_keys, forms.open_answers}, forms.detours);
  bool in_vain = opened_in_vain(forms, captured);
  if (in_vain) captured.variant = {};
  bool is_wiser = learn_detour(forms, captured) || (in_vain && forms.open_answers);
  if (base) base->captures_in_vain = captured.added || is_wiser ? 0 : base->captures_in_vain + 1;
  if (base && captured.variant && captured.variant->is_better_than(*base)) drop_variant(forms, base);
  guard::Held<Variant> filled = captured.variant ? captured.variant : captured.added ? base : guard::Held<Variant>();
  if (is_wiser && (filled || base)) (filled ? filled : base)->capture_in = 0;
  if (filled) filled->depth = std::max(filled->depth, captured.depth), filled->pays |= captured.pays;
  {
    py::ErrorAside aside;
    note_capture(forms, captured, base.get(), is_wiser);
    if (!captured.result) tell_compilation(forms, false);
  }
  return captured.result && conclude(forms, captured, filled) ? captured.result.release() : nullptr;
}

// magneto.run and stances.
bool may_capture() {
  return !runtime::thread_state().run_only && runtime::process_state().stance == runtime::Stance::Default;
}

// Whether another capture of a function that has variants may pay.
bool may_capture_more(const Forms& forms) {
  return may_capture() && forms.captures < config().recapture_limit && why_not_now().empty();
}

// CPython had to finish a call: plans a capture that adds what was missing.
void note_left(Forms& forms, Variant& variant, const program::Misfit& misfit) {
  static constexpr int kAttempts = 2;  // to leave open what is asked for
  runtime::count("stats", "exits");
  bool can_open = !variant.is_open && may_open(forms) && forms.answers_opened_in_vain < kAttempts;
  forms.open_answers |= misfit.is_numeric && can_open;
  if (variant.capture_in >= 0 || variant.captures_in_vain >= config().capture_attempts) return;
  variant.capture_in = variant.captures_in_vain;
  runtime::count("recompile", misfit.why);
  ++forms.misses[misfit.why];
  runtime::log(runtime::Log::Guards, forms.name + ": will be captured again because " + misfit.why);
}

constexpr const char* kCapturedTooOften = "the function was captured too often (recapture_limit)";

// Once: the function is captured no more.
void tell_limit(Forms& forms, const RealCall& call) {
  runtime::count("eager", kCapturedTooOften);
  std::string text = forms.name + " was captured " + std::to_string(forms.captures) +
                     " times (recapture_limit); calls that none of its compiled forms fits run eagerly from now on";
  if (!forms.variants.empty())
    text += ". The newest did not fit this time because " + why_newest_does_not_fit(forms, call);
  runtime::warn_once(text);
}

// Nothing more will be compiled. What is does not pay if most calls look for a variant in vain.
void miss_past_limit(Forms& forms, const RealCall& call) {
  static constexpr int64_t kCalls = 256;
  if (!std::exchange(forms.has_told, true)) tell_limit(forms, call);
  if (++forms.late_misses % kCalls) return;
  int64_t hits = 0;
  for (const auto& variant : forms.variants) hits += variant->hits;
  if (hits - std::exchange(forms.late_hits, hits) >= kCalls) return;
  ++forms.failures[with_place(kCapturedTooOften, why_newest_does_not_fit(forms, call))];
  forms.drop_variants();
}

// A call that is not captured.
PyObject* run_eagerly(const Forms& forms, RealCall& call, const std::string& why, const std::string& where = "") {
  if (!forms.wishes->whole || why == trace::kNoTensorWork) return call.run(nullptr);
  set_full_graph_error(forms.name, why, where);
  return nullptr;
}

// Where nothing may be captured.
PyObject* miss_by_order(Forms& forms, RealCall& call) {
  if (runtime::thread_state().run_only || runtime::process_state().stance != runtime::Stance::FailOnRecompile)
    return call.run(nullptr);
  std::string why = forms.variants.empty() ? "it was not compiled before" : why_newest_does_not_fit(forms, call);
  set_user_error("a call of " + forms.name +
                 " has to be captured, which the stance 'fail_on_recompile' forbids: " + why);
  return nullptr;
}

void stay_eager(Forms& forms, const std::string& reason) {
  note_failure(forms, reason, "");
  forms.failures_in_a_row = config().capture_attempts;
  forms.drop_variants();
}

// What detours have made possible is of no use if something is another one in each call.
void give_up_if_in_vain(Forms& forms) {
  static constexpr size_t kCaptures = 4;
  bool any_hit = std::ranges::any_of(forms.variants, [](const auto& variant) { return variant->hits > 0; });
  if (forms.detours.empty() || any_hit || forms.variants.size() < kCaptures) return;
  stay_eager(forms, "none of the compiled forms has fitted another call");
}

// What hardly does anything between one unknown call and the next is slower than plain Python, and by now it has been
// called often enough for that to matter.
bool gave_up_as_too_slow(Forms& forms) {
  if (std::ranges::any_of(forms.variants, [](const auto& variant) { return variant->pays; })) return false;
  stay_eager(forms, "the call does little but run what is not understood, which takes less time uncompiled");
  return true;
}

// No variant fits: watch this call, if that may still pay.
PyObject* miss(Forms& forms, RealCall& call) {
  if (const char* never = mg_why_unsupported()) return run_eagerly(forms, call, never);
  give_up_if_in_vain(forms);
  if (forms.stays_eager() || forms.failures_in_a_row >= config().capture_attempts)
    return run_eagerly(forms, call, forms.last_reason, forms.last_where);
  if (!may_capture()) return miss_by_order(forms, call);
  if (forms.captures >= config().recapture_limit) {
    miss_past_limit(forms, call);
    return run_eagerly(forms, call, kCapturedTooOften);
  }
  if (std::string why = why_not_now(); !why.empty()) {
    note_failure(forms, why, "");
    return mg_is_tracing(PyThreadState_Get()) ? call.run(nullptr) : run_eagerly(forms, call, why);
  }
  if (!forms.variants.empty()) {
    std::string why = why_newest_does_not_fit(forms, call);
    note_miss(forms, call, why);
    note_other_objects(forms, call);  // before anybody who is told can change the forms
    open_what_changed(forms, call);
    if (!tell_guard_failure(forms, why)) return nullptr;
  }
  return capture_call(forms, call, {});
}

}  // namespace

Variant* find_variant(Forms& forms, const CallArguments& call, Matched& matched,
                      const std::vector<const guard::Entry*>& tried) {
  for (size_t i = 0; i < forms.groups.size(); ++i) {
    if (!matched.match(*forms.groups[i].arguments, call)) continue;
    guard::Entry* entry = forms.groups[i].trie.find(tried);
    if (!entry) continue;
    auto at = forms.groups.begin() + static_cast<ptrdiff_t>(i);
    if (i) std::rotate(forms.groups.begin(), at, at + 1);
    return static_cast<Variant*>(entry);
  }
  return nullptr;
}

PyObject* call_form(Forms& forms, RealCall& call) {
  static constexpr int64_t kTrialRuns = 128;
  PyThreadState* thread = PyThreadState_Get();
  if (mg_is_tracing_lines(thread)) return miss(forms, call);
  Matched matched;
  std::vector<const guard::Entry*> diverged;
  while (guard::Held<Variant> variant{find_variant(forms, call.arguments, matched, diverged)}) {
    if (mg_recursion_left(thread) < variant->depth) return call.run(nullptr);  // which raises RecursionError
    if (variant->hits == kTrialRuns && gave_up_as_too_slow(forms)) return call.run(nullptr);
    if (variant->capture_in >= 0 && variant->capture_in-- == 0 && may_capture_more(forms))
      return capture_call(forms, call, std::move(variant));
    if (PyObject* result = variant->program.plain_result()) {
      note_hit(*variant);
      return Py_NewRef(result);
    }
    program::End end;
    program::Misfit why_left;
    PyObject* result =
        variant->program.run(matched.values, matched.tensors, &end, variant->capture_in < 0 ? &why_left : nullptr);
    if (end == program::End::Diverged) {
      diverged.push_back(variant.get());
      continue;
    }
    note_hit(*variant);
    if (end == program::End::Left) note_left(forms, *variant, why_left);
    if (end != program::End::Failed) return result;
    // An operator raised an error. The function itself raises it with its own traceback, or handles it.
    PyErr_Clear();
    return call.run(nullptr);
  }
  return miss(forms, call);
}

bool Forms::has_given_up() const {
  return mg_why_unsupported() || failures_in_a_row >= config().capture_attempts || captures >= config().recapture_limit;
}

void Forms::drop_variants() {
  std::vector<guard::Held<Variant>> old_variants;
  std::vector<Group> old_groups;
  old_variants.swap(variants), old_groups.swap(groups);
}

std::shared_ptr<const Wishes> make_wishes(bool whole, PyObject* backend, PyObject* guard_export, PyObject* guard_fail,
                                          PyObject* dynamic) {
  auto given = [](PyObject* object) { return object == Py_None ? py::Ref() : py::Ref::borrow(object); };
  auto wishes = std::make_shared<Wishes>();
  wishes->whole = whole;
  if (dynamic != Py_None) wishes->dynamic = dynamic == Py_True ? Wishes::Dynamic::Always : Wishes::Dynamic::Never;
  wishes->backend = given(backend);
  wishes->guard_export = given(guard_export);
  wishes->guard_fail = given(guard_fail);
  return wishes;
}

int Wishes::traverse(visitproc visit, void* arg) const {
  Py_VISIT(backend.get());
  Py_VISIT(guard_export.get());
  Py_VISIT(guard_fail.get());
  return 0;
}

int Forms::traverse(visitproc visit, void* arg) const {
  for (const Group& group : groups) {
    if (int stop = group.arguments->traverse(visit, arg)) return stop;
    if (int stop = group.trie.traverse(visit, arg)) return stop;
  }
  for (const auto& variant : variants)
    if (int stop = variant->program.traverse(visit, arg)) return stop;
  return 0;
}

}  // namespace magneto::frame
