// Frames that somebody else than CPython runs: read, taken, given back, finished, by an evaluator hook.
#include "cpython/cpython.h"
#include "python_world.h"

using namespace magneto;
using check::PythonWorld;

namespace {

PyCodeObject* hooked_code;  // whose frames the hook runs itself
int entries;

class Hook {
 public:
  Hook(PyObject* function, mg_eval_function evaluate) {
    hooked_code = (PyCodeObject*)PyFunction_GET_CODE(function);
    entries = 0;
    mg_set_eval_function(evaluate);
  }
  ~Hook() { mg_set_eval_function(mg_eval_default); }
};

// Runs nothing: every call of the function returns its first argument.
PyObject* return_first_argument(PyThreadState* thread, mg_frame* frame, int throwing) {
  if (mg_frame_code(frame) != hooked_code || throwing) return mg_eval_default(thread, frame, throwing);
  ++entries;
  mg_frame_view view;
  mg_frame_read(frame, &view);
  mg_frame* previous = mg_frame_take(thread, frame);
  PyObject* result = Py_NewRef(view.locals[0]);
  mg_frame_give_back(thread, frame, previous, view.stack_pointer);
  mg_frame_finish(thread, frame);
  return result;
}

// Runs the first instruction of the body itself, then lets CPython go on after it.
PyObject* skip_one_instruction(PyThreadState* thread, mg_frame* frame, int throwing) {
  if (mg_frame_code(frame) != hooked_code || throwing) return mg_eval_default(thread, frame, throwing);
  ++entries;
  mg_frame_view view;
  mg_frame_read(frame, &view);
  mg_frame* previous = mg_frame_take(thread, frame);
  int first = mg_frame_next_instruction(frame);
  *view.executing = view.first_code_unit + first;
  CHECK_EQ(mg_frame_executing(frame), first);
  mg_frame_give_back(thread, frame, previous, view.stack_pointer);
  mg_frame_resume_before(frame, mg_decoded(view.code)[first].next);
  return mg_eval_default(thread, frame, 0);
}

// A generator that is entered yields "early" once, without running anything.
PyObject* yield_early(PyThreadState* thread, mg_frame* frame, int throwing) {
  mg_frame_view view;
  mg_frame_read(frame, &view);
  if (view.code != hooked_code || !view.generator || throwing || entries++) {
    return mg_eval_default(thread, frame, throwing);
  }
  mg_frame* previous = mg_frame_take(thread, frame);
  int next = mg_frame_next_instruction(frame);
  PyObject** sent = view.stack_pointer - 1;
  Py_CLEAR(*sent);
  mg_frame_give_back(thread, frame, previous, sent);
  mg_frame_resume_before(frame, next);
  mg_generator_suspended(view.generator, false);
  return PyUnicode_FromString("early");
}

}  // namespace

TEST(a_frame_says_what_it_is_made_of) {
  PythonWorld world(
      "import sys\n"
      "def outer(free):\n"
      "    def f(a, *rest, key=1):\n"
      "        cell = a\n"
      "        g = lambda: cell\n"
      "        frame.append(sys._getframe())\n"
      "        return free\n"
      "    return f\n"
      "frame = []\n"
      "f = outer('free')\n"
      "f(1, 2, 3)\n");
  mg_frame_view view;
  mg_frame_read(mg_frame_of((PyFrameObject*)world.value("frame[0]").get()), &view);
  CHECK((PyObject*)view.function == world["f"]);
  CHECK((PyObject*)view.code == PyFunction_GET_CODE(world["f"]));
  CHECK(view.globals == world.space() && view.builtins != nullptr && !view.names && !view.generator);
  CHECK_EQ(PyLong_AsLong(view.locals[0]), 1L);
  int count = view.code->co_nlocalsplus;
  CHECK(PyCell_Check(view.locals[count - 1]));  // the free variable comes last
  CHECK(PyUnicode_CompareWithASCIIString(PyCell_GET(view.locals[count - 1]), "free") == 0);
}

TEST(a_frame_that_a_hook_has_run_leaves_nothing_behind) {
  PythonWorld world("import sys\ndef f(x, *rest, k=None): return 'body'\nthing = object()\n");
  Hook hook(world["f"], return_first_argument);
  Py_ssize_t before = Py_REFCNT(world["thing"]);
  CHECK(world.holds("f(thing, 1, 2, k=[]) is thing"));
  world.run("blocks = sys.getallocatedblocks()\nfor _ in range(10000): f(thing, [], k={})\n");
  CHECK(world.holds("abs(sys.getallocatedblocks() - blocks) < 100"));
  CHECK_EQ(Py_REFCNT(world["thing"]), before);
  CHECK_EQ(entries, 10001);
}

TEST(a_frame_given_back_goes_on_in_cpython) {
  PythonWorld world("def f(x):\n    y = x + 1\n    return y, x\n");
  Hook hook(world["f"], skip_one_instruction);
  CHECK(world.holds("f(1) == (2, 1)"));
  CHECK_EQ(entries, 1);
}

TEST(a_generator_that_a_hook_suspends_goes_on_in_cpython) {
  PythonWorld world("def f(n):\n    for i in range(n):\n        yield i\n");
  Hook hook(world["f"], yield_early);
  CHECK(world.holds("list(f(3)) == ['early', 0, 1, 2]"));
}

TEST(who_follows_frames_is_noticed) {
  PythonWorld world("import sys\ndef f(): pass\n");
  CHECK(!mg_is_tracing(PyThreadState_Get()));
  world.run("sys.setprofile(lambda *a: None)");
  CHECK(mg_is_tracing(PyThreadState_Get()));
  world.run("sys.setprofile(None)");
  CHECK(!mg_is_tracing(PyThreadState_Get()));
  auto* code = (PyCodeObject*)PyFunction_GET_CODE(world["f"]);
  CHECK(!mg_is_monitored(code));
  if (!world.holds("hasattr(sys, 'monitoring')")) return;
  world.run(
      "m = sys.monitoring\nm.use_tool_id(1, 'test')\n"
      "m.set_local_events(1, f.__code__, m.events.LINE)\n");
  CHECK(mg_is_monitored(code) && !mg_is_tracing(PyThreadState_Get()));
  world.run("m.set_local_events(1, f.__code__, 0)\nm.set_events(1, m.events.LINE)\n");
  CHECK(!mg_is_monitored(code) && mg_is_tracing(PyThreadState_Get()));
  world.run("m.set_events(1, 0)\nm.free_tool_id(1)\n");
  CHECK(!mg_is_tracing(PyThreadState_Get()));
}
