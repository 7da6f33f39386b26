// Residual programs: every instruction builds what it says, anew at each run, and a run that fails leaves nothing.
#include "program/program.h"
#include "python_world.h"
#include "runtime/tensor_plug.h"

using namespace magneto;
using check::PythonWorld;
using program::Op;
using program::Program;
using program::Recipe;

namespace {

struct Built {
  Program program;
  PythonWorld world;

  explicit Built(const std::string& text = "") : world(text) {
    program.set_segment(runtime::tensor_plug().record([](std::string) {})->finish({}));
  }
  uint32_t constant(const std::string& text) {
    return program.emit(Op::Constant, program.add_constant(world.value(text).get()));
  }
  program::End end = program::End::Returned;  // of the last run
  py::Ref run(PyObject* const* arguments = nullptr) {
    return py::Ref::steal(program.run(arguments, nullptr, &end, nullptr));
  }
  // Whether the result, as `r`, makes the expression true.
  bool gives(const std::string& expression, PyObject* const* arguments = nullptr) {
    py::Ref result = run(arguments);
    if (!result) return false;
    world.set("r", result.get());
    bool holds = world.holds(expression);
    PyDict_DelItemString(world.space(), "r");
    return holds && Py_REFCNT(result.get()) >= 1;
  }
};

}  // namespace

TEST(a_constant_is_the_very_object) {
  Built built("kept = [1]");
  built.constant("kept");
  CHECK(built.gives("r is kept"));
  CHECK(built.gives("r is kept"));
}

TEST(an_argument_is_the_very_object) {
  Built built;
  built.program.emit(Op::Argument, 1);
  py::Ref first = py::Ref::steal(PyList_New(0)), second = py::Ref::steal(PyList_New(0));
  PyObject* arguments[] = {first.get(), second.get()};
  py::Ref result = built.run(arguments);
  CHECK(result.get() == second.get());
  CHECK_EQ(Py_REFCNT(second.get()), 2);
  result = py::Ref();
  CHECK_EQ(Py_REFCNT(second.get()), 1);
}

TEST(containers_are_built_anew_at_each_run) {
  Built built;
  uint32_t a = built.constant("'a'"), one = built.constant("1");
  uint32_t list = built.program.emit(Op::List, 0, {a, one});
  uint32_t dict = built.program.emit(Op::Dict, 0, {a, list, one, a});
  uint32_t set = built.program.emit(Op::Set, 0, {a, one, a});
  built.program.emit(Op::Tuple, 0, {list, dict, set, list});
  CHECK(built.gives("r == (['a', 1], {'a': ['a', 1], 1: 'a'}, {'a', 1}, ['a', 1])"));
  CHECK(built.gives("r[0] is r[3] and r[1]['a'] is r[0] and list(r[1]) == ['a', 1]"));
  py::Ref first = built.run(), second = built.run();
  CHECK(PyTuple_GET_ITEM(first.get(), 0) != PyTuple_GET_ITEM(second.get(), 0));
  CHECK_EQ(Py_REFCNT(first.get()), 1);
  CHECK_EQ(Py_REFCNT(PyTuple_GET_ITEM(first.get(), 1)), 1);
}

TEST(empty_containers_are_built) {
  Built built;
  uint32_t list = built.program.emit(Op::List, 0), dict = built.program.emit(Op::Dict, 0);
  uint32_t set = built.program.emit(Op::Set, 0), tuple = built.program.emit(Op::Tuple, 0);
  built.program.emit(Op::List, 0, {list, dict, set, tuple});
  CHECK(built.gives("r == [[], {}, set(), ()]"));
}

TEST(named_tuples_keep_their_type) {
  Built built("import collections\nT = collections.namedtuple('T', 'a b')");
  uint32_t one = built.constant("1"), two = built.constant("2");
  built.program.emit(Op::NamedTuple, built.program.add_constant(built.world["T"]), {one, two});
  CHECK(built.gives("type(r) is T and r == T(1, 2) and r.b == 2"));
}

TEST(structures_of_c_keep_their_type) {
  Built built("import time\nT = time.struct_time");
  std::vector<uint32_t> parts;
  for (int i = 0; i < 9; ++i) parts.push_back(built.constant(std::to_string(i)));
  built.program.emit(Op::Struct, built.program.add_constant(built.world["T"]), parts);
  CHECK(built.gives("type(r) is T and r.tm_year == 0 and r.tm_isdst == 8"));
}

TEST(an_instance_gets_its_attributes_and_no_constructor_runs) {
  Built built("class C:\n  def __init__(self): raise RuntimeError\n");
  Recipe recipe;
  recipe.type = py::Ref::borrow(built.world["C"]);
  recipe.attributes = {built.world.value("'x'"), built.world.value("'y'")};
  uint32_t one = built.constant("1"), two = built.constant("[2]");
  built.program.emit(Op::Instance, built.program.add_recipe(std::move(recipe)), {one, two});
  CHECK(built.gives("type(r) is C and vars(r) == {'x': 1, 'y': [2]} and list(vars(r)) == ['x', 'y']"));
}

TEST(an_instance_gets_its_slots_past_its_setattr) {
  Built built("class C:\n  __slots__ = ('a', 'b')\n  def __setattr__(self, *a): raise RuntimeError\n");
  Recipe recipe;
  recipe.type = py::Ref::borrow(built.world["C"]);
  recipe.slots = {built.world.value("C.b")};
  uint32_t one = built.constant("1");
  built.program.emit(Op::Instance, built.program.add_recipe(std::move(recipe)), {one});
  CHECK(built.gives("r.b == 1 and not hasattr(r, 'a')"));
}

TEST(instances_built_on_containers_get_their_items) {
  Built built(
      "from collections import OrderedDict\n"
      "class D(dict):\n  def __setitem__(self, k, v): raise RuntimeError\n"
      "class O(OrderedDict):\n  def __setitem__(self, k, v): raise RuntimeError\n"
      "class L(list):\n  def append(self, x): raise RuntimeError\n");
  uint32_t a = built.constant("'a'"), b = built.constant("'b'"), one = built.constant("1");
  auto instance = [&](const char* type, Recipe::Base base, std::vector<uint32_t> operands) {
    Recipe recipe;
    recipe.type = py::Ref::borrow(built.world[type]);
    recipe.base = base;
    recipe.item_count = static_cast<uint32_t>(operands.size());
    recipe.attributes = {built.world.value("'extra'")};
    operands.push_back(one);
    return built.program.emit(Op::Instance, built.program.add_recipe(std::move(recipe)), operands);
  };
  uint32_t d = instance("D", Recipe::Base::Dict, {b, one, a, one});
  uint32_t o = instance("O", Recipe::Base::OrderedDict, {b, one, a, one});
  uint32_t l = instance("L", Recipe::Base::List, {b, a});
  built.program.emit(Op::Tuple, 0, {d, o, l});
  CHECK(built.gives("[type(x) for x in r] == [D, O, L] and all(x.extra == 1 for x in r)"));
  CHECK(built.gives("list(r[0]) == ['b', 'a'] and list(r[1]) == ['b', 'a'] and r[2] == ['b', 'a']"));
}

TEST(a_run_that_fails_raises_and_leaves_nothing) {
  Built built("kept = []");
  uint32_t kept = built.constant("kept");
  uint32_t wrapped = built.program.emit(Op::List, 0, {kept});
  built.program.emit(Op::Dict, 0, {wrapped, kept});  // a list is no key
  Py_ssize_t before = Py_REFCNT(built.world["kept"]);
  for (int i = 0; i < 3; ++i) {
    CHECK(!built.run());
    CHECK(PyErr_ExceptionMatches(PyExc_TypeError));
    PyErr_Clear();
  }
  CHECK_EQ(Py_REFCNT(built.world["kept"]), before);
}

TEST(many_registers_fit) {
  Built built;
  std::vector<uint32_t> items;
  for (int i = 0; i < 500; ++i) items.push_back(built.constant(std::to_string(i)));
  built.program.emit(Op::Tuple, 0, items);
  CHECK(built.gives("r == tuple(range(500))"));
}

TEST(the_text_shows_every_instruction) {
  Built built("class C: pass");
  uint32_t one = built.constant("1");
  built.program.emit(Op::Argument, 3);
  uint32_t list = built.program.emit(Op::List, 0, {one, one});
  Recipe recipe;
  recipe.type = py::Ref::borrow(built.world["C"]);
  built.program.emit(Op::Instance, built.program.add_recipe(std::move(recipe)), {});
  built.program.emit(Op::Dict, 0, {one, list});
  std::string text = built.program.text();
  for (const char* part : {"0 operations", "r0 = constant 1", "r1 = argument 3", "r2 = list r0, r0", "r3 = instance C",
                           "r4 = dict r0, r2", "return r4"})
    CHECK_HAS(text, part);
}

TEST(the_collector_sees_what_a_program_holds) {
  Built built("kept = []\nclass C: pass");
  built.constant("kept");
  Recipe recipe;
  recipe.type = py::Ref::borrow(built.world["C"]);
  built.program.add_recipe(std::move(recipe));
  struct Seen {
    PyObject* wanted;
    int times;
  };
  for (const char* name : {"kept", "C"}) {
    Seen seen{built.world[name], 0};
    built.program.traverse(
        [](PyObject* object, void* arg) {
          auto* seen = static_cast<Seen*>(arg);
          if (object == seen->wanted) ++seen->times;
          return 0;
        },
        &seen);
    CHECK_EQ(seen.times, 1);
  }
}
