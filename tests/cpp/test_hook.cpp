// The frame hook beside evaluators of somebody else, and its events for a profiler.
#include <string>

#include "cpython/cpython.h"
#include "frame/code_state.h"
#include "frame/eval_frame.h"
#include "frame/frame_view.h"
#include "frame/hook.h"
#include "python_world.h"
#include "runtime/profiler.h"

using namespace magneto;
using namespace magneto::frame;

namespace {

int foreign_calls = 0;
mg_eval_function foreign_below = nullptr;  // what the foreign evaluator found when it was installed

PyObject* foreign(PyThreadState* thread, mg_frame* frame, int throwing) {
  ++foreign_calls;
  return foreign_below(thread, frame, throwing);
}

void install_foreign() {
  foreign_below = mg_get_eval_function();
  mg_set_eval_function(foreign);
}

struct World : check::PythonWorld {
  World() : PythonWorld("def f(n): return n + 1\ndef twice(n): return f(f(n))") {
    CHECK(make_code_state_types("units") && make_frame_view_type("units") && make_thread_hook_type("units"));
  }
  int foreign_calls_of(const char* text, long expected) {
    foreign_calls = 0;
    CHECK_EQ(number(text), expected);
    return foreign_calls;
  }
};

}  // namespace

TEST(the_hook_comes_with_its_first_user_and_goes_with_its_last) {
  World world;
  CHECK(!hook_installed());
  {
    HookScope first;
    CHECK(hook_installed());
    HookScope second;
    CHECK_EQ(world.number("f(1)"), 2);
  }
  CHECK(!hook_installed());
  CHECK(mg_get_eval_function() == mg_default_evaluator());
}

TEST(an_evaluator_installed_earlier_is_called_and_put_back) {
  World world;
  install_foreign();
  int without = world.foreign_calls_of("twice(1)", 3);
  CHECK(without > 0);
  {
    HookScope scope;
    CHECK(hook_installed());
    CHECK_EQ(world.foreign_calls_of("twice(1)", 3), without);
  }
  CHECK(mg_get_eval_function() == foreign);
  CHECK_EQ(world.foreign_calls_of("twice(1)", 3), without);
}

TEST(an_evaluator_installed_later_is_left_on_top) {
  World world;
  {
    HookScope scope;
    install_foreign();
    CHECK(world.foreign_calls_of("twice(1)", 3) > 0);
  }
  CHECK(mg_get_eval_function() == foreign);
  CHECK_EQ(world.number("twice(1)"), 3);
  mg_set_eval_function(foreign_below);  // it leaves, and so puts the hook back, which nobody uses
  CHECK_EQ(world.number("twice(1)"), 3);
  CHECK(!hook_installed());
}

TEST(the_hook_comes_back_after_somebody_took_it_out) {
  World world;
  install_foreign();
  hook_acquire();
  mg_set_eval_function(mg_default_evaluator());  // the foreign one leaves although it is not on top
  {
    HookScope scope;
    CHECK(hook_installed());
    CHECK_EQ(world.number("twice(1)"), 3);
  }
  hook_release();
  CHECK(mg_get_eval_function() == mg_default_evaluator());
}

TEST(an_evaluator_below_and_on_top_of_the_hook_does_not_go_in_circles) {
  World world;
  install_foreign();
  HookScope scope;
  install_foreign();  // now its evaluator below is ours, and ours has it below
  CHECK(world.foreign_calls_of("twice(1)", 3) > 0);
  CHECK_EQ(world.number("sum(f(i) for i in range(3))"), 6);
  mg_set_eval_function(mg_default_evaluator());
}

namespace {

std::string events;

void* begin_event(const char* name, const char* detail) {
  events += std::string("[") + name + (detail ? std::string(": ") + detail : "");
  return &events;
}
void end_event(void*) { events += "]"; }

}  // namespace

TEST(look_ups_and_regions_are_events) {
  World world;
  world.run(
      "def new(n): return n + 100\n"
      "class Guarded:\n"
      "  code = new.__code__\n"
      "  trace_annotation = 'here'\n"
      "  check_fn = staticmethod(lambda f_locals: True)\n"
      "def callback(frame, entry, state): return Guarded if frame.f_code is f.__code__ else None\n"
      "def work(): return f(1)");
  runtime::process_state().begin_event = begin_event;
  runtime::process_state().end_event = end_event;
  Py_XDECREF(set_eval_frame(world["callback"]));
  CHECK_EQ(world.number("f(1)"), 101);
  events.clear();
  py::Ref function = py::Ref::borrow(world["f"]);
  py::Ref one = py::Ref::steal(PyLong_FromLong(1));
  py::Ref result = py::Ref::steal(PyObject_CallOneArg(function.get(), one.get()));
  CHECK_EQ(PyLong_AsLong(result.get()), 101);
  CHECK_EQ(events, "[Magneto Cache Lookup][Magneto-Compiled Region: here]");
  Py_XDECREF(set_eval_frame(Py_None));
}
