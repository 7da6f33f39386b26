// Versions of dicts and types, and watchers: every change is seen, and nothing else is.
#include <vector>

#include "cpython/cpython.h"
#include "python_world.h"

using namespace magneto;
using check::PythonWorld;

namespace {

std::vector<PyObject*> changed_dicts;
std::vector<PyTypeObject*> changed_types;

bool start_watchers() {
  changed_dicts.clear();
  changed_types.clear();
  return mg_watchers_start([](PyObject* dict) { changed_dicts.push_back(dict); },
                           [](PyTypeObject* type) { changed_types.push_back(type); });
}

constexpr const char* kObjects = R"(
class Plain:
    def __init__(self):
        self.a, self.b = 1, 2

class Slots:
    __slots__ = ("a",)

class Offset(dict):
    pass

def store(o, n):
    for i in range(n):
        o.a = i

def warm_up():
    for _ in range(50):
        store(Plain(), 5)

warm_up()
o = Plain()
)";

}  // namespace

TEST(the_version_of_a_dict_changes_with_every_kind_of_change) {
  PythonWorld world("d = {'a': 1, 'b': 2}");
  PyObject* dict = world["d"];
  for (const char* change : {"d['a'] = 3", "d['c'] = 4", "del d['b']", "d.update(x=1)", "d.pop('x')",
                             "d.setdefault('y', 1)", "d |= {'z': 1}", "d.popitem()", "d[1] = 2", "d.clear()"}) {
    uint64_t before = mg_dict_version(dict);
    world.run(change);
    if (mg_dict_version(dict) == before) check::fail(__FILE__, __LINE__, change);
  }
}

TEST(the_epoch_changes_whenever_a_dict_is_made_or_changed_and_only_then) {
  PythonWorld world(std::string(kObjects) + R"(
d, empty, other = {'a': 1, 'b': 2, 'c': 3}, {}, {'q': 1}
o.__dict__
numbers = [1, 2]
s = Slots()
def hint(o, v): o.a = v
for i in range(50): hint(o, i)
changes = [
    lambda: d.__setitem__('a', 3), lambda: d.__setitem__('n', 4), lambda: d.__delitem__('b'), lambda: d.update(other),
    lambda: d.pop('a'), lambda: d.setdefault('y', 1), lambda: d.popitem(), lambda: d.__setitem__(1, 2),
    lambda: empty.update(other), lambda: d.clear(), lambda: {}, lambda: {'a': 1}, lambda: dict(), lambda: other.copy(),
    lambda: o.__dict__.copy(), lambda: Offset(), lambda: hint(o, 'x'), lambda: setattr(o, 'new', 1),
    lambda: delattr(o, 'new'), lambda: setattr(Plain, 'x', 1), lambda: Plain().__dict__, lambda: type('T', (), other),
]
def slot(): s.a = 1
others = [
    lambda: numbers.append(1), lambda: numbers.reverse(), slot, lambda: d.get('zz'), lambda: len(other),
    lambda: setattr(o, '__class__', Plain), lambda: other.__setitem__('q', 1), lambda: empty.pop('zz', None),
]
)");
  CHECK_EQ(mg_dict_epoch() != 0, PY_VERSION_HEX < 0x030c0000);
  if (mg_dict_epoch() == 0) return;
  auto run_all = [&](const char* functions, bool change) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(world[functions]); ++i) {
      uint64_t before = mg_dict_epoch();
      CHECK_EQ(mg_dict_epoch(), before);
      py::Ref result = py::Ref::steal(PyObject_CallNoArgs(PyList_GET_ITEM(world[functions], i)));
      CHECK(result);
      if ((mg_dict_epoch() != before) != change)
        check::fail(__FILE__, __LINE__, functions + (": number " + std::to_string(i)));
    }
  };
  run_all("changes", true);
  run_all("others", false);
}

TEST(reading_and_watching_a_dict_leaves_its_version) {
  PythonWorld world("d = {'a': 1, 'b': 2}");
  PyObject* dict = world["d"];
  uint64_t before = mg_dict_version(dict);
  world.run("d['a'], d.get('q'), list(d), dict(d), d == {}, 'b' in d, d.copy()");
  CHECK_EQ(mg_dict_version(dict), before);
  if (!start_watchers()) return;
  CHECK(mg_watch_dict(dict) && mg_unwatch_dict(dict));
  CHECK_EQ(mg_dict_version(dict), before);
  mg_watchers_stop();
}

TEST(two_dicts_never_share_a_version) {
  PythonWorld world("a, b = {'x': 1}, {'x': 1}");
  CHECK(mg_dict_version(world["a"]) != mg_dict_version(world["b"]));
}

TEST(stores_to_a_settled_object_change_the_version) {
  PythonWorld world(kObjects);
  PyObject* object = world["o"];
  CHECK(!mg_has_settled_dict(object));
  py::Ref dict = py::Ref::borrow(mg_settle_dict(object));
  CHECK(dict && mg_has_settled_dict(object));
  CHECK(world.value("o.__dict__").get() == dict.get());
  CHECK(world.holds("list(o.__dict__.items()) == [('a', 1), ('b', 2)]"));
  for (const char* change : {"o.a = 5", "o.c = 1", "del o.b", "setattr(o, 'a', 6)", "o.__dict__['a'] = 7",
                             "store(o, 1)", "store(o, 500)", "object.__setattr__(o, 'a', 8)", "vars(o).update(a=9)"}) {
    uint64_t before = mg_dict_version(dict.get());
    world.run(change);
    if (mg_dict_version(dict.get()) == before) check::fail(__FILE__, __LINE__, change);
    CHECK(mg_has_settled_dict(object));
  }
  CHECK(world.holds("o.__dict__ == {'a': 9, 'c': 1} and o.a == 9"));
}

TEST(each_store_in_a_warm_loop_changes_the_version_of_a_settled_object) {
  PythonWorld world(kObjects);
  world.run("warm = [Plain() for _ in range(20)]");
  for (int i = 0; i < 20; ++i) {
    PyObject* object = PyList_GET_ITEM(world["warm"], i);
    py::Ref dict = py::Ref::borrow(mg_settle_dict(object));
    world.set("p", object);
    for (int k = 0; k < 20; ++k) {
      uint64_t before = mg_dict_version(dict.get());
      world.run("store(p, 2)");
      CHECK(mg_dict_version(dict.get()) != before);
    }
  }
}

TEST(a_dict_that_somebody_holds_is_settled_in_place) {
  PythonWorld world(kObjects);
  world.run("held = vars(o); o.a = 'new'");
  CHECK(mg_settle_dict(world["o"]) == world["held"]);
  world.run("o.z = 1; held['y'] = 2");
  CHECK(world.holds("held == {'a': 'new', 'b': 2, 'z': 1, 'y': 2} and o.y == 2 and vars(o) is held"));
}

TEST(an_empty_object_can_be_settled) {
  PythonWorld world("class Empty: pass\no = Empty()\n");
  py::Ref dict = py::Ref::borrow(mg_settle_dict(world["o"]));
  CHECK(dict && mg_has_settled_dict(world["o"]));
  uint64_t before = mg_dict_version(dict.get());
  world.run("o.a = 1");
  CHECK(mg_dict_version(dict.get()) != before);
}

TEST(objects_without_a_managed_dict_say_what_they_have) {
  PythonWorld world(kObjects);
  world.run("s, q, f = Slots(), Offset(), warm_up");
  CHECK(!mg_has_settled_dict(world["s"]) && !mg_settle_dict(world["s"]));
  CHECK(!mg_settle_dict(Py_None) && !PyErr_Occurred());
  py::Ref dict = py::Ref::borrow(mg_settle_dict(world["q"]));
  CHECK(dict);
  uint64_t before = mg_dict_version(dict.get());
  world.run("q.a = 1");
  CHECK(mg_dict_version(dict.get()) != before);
}

TEST(the_version_of_a_type_changes_with_it_and_its_bases) {
  PythonWorld world("class A: x = 1\nclass B(A): pass\n");
  auto* type = (PyTypeObject*)world["B"];
  for (const char* change : {"B.x = 2", "A.x = 3", "del B.x", "A.y = 1", "A.__eq__ = lambda a, b: True"}) {
    unsigned before = mg_assign_type_version(type);
    CHECK(before != 0);
    world.run("B.x, B().x");
    CHECK_EQ(mg_type_version(type), before);
    world.run(change);
    if (mg_type_version(type) == before) check::fail(__FILE__, __LINE__, change);
  }
}

TEST(watchers_tell_of_every_change_to_a_dict_until_unwatched) {
  PythonWorld world("d, other = {'a': 1}, {}");
  if (!start_watchers()) {
    CHECK(!mg_watch_dict(world["d"]) && PyErr_Occurred());
    PyErr_Clear();
    return;
  }
  CHECK(mg_watch_dict(world["d"]));
  world.run("d['a'] = 2; other['a'] = 2; d['b'] = 3; d['a']");
  CHECK_EQ(changed_dicts.size(), size_t{2});
  CHECK(changed_dicts[0] == world["d"]);
  CHECK(mg_unwatch_dict(world["d"]));
  world.run("d['a'] = 4");
  CHECK_EQ(changed_dicts.size(), size_t{2});
  mg_watchers_stop();
}

TEST(watchers_tell_of_a_dict_that_goes_away) {
  PythonWorld world("d = {'a': 1}");
  if (!start_watchers()) return;
  CHECK(mg_watch_dict(world["d"]));
  world.run("del d");
  CHECK_EQ(changed_dicts.size(), size_t{1});
  mg_watchers_stop();
}

TEST(watchers_tell_of_stores_to_attributes_of_a_settled_object) {
  PythonWorld world(kObjects);
  py::Ref dict = py::Ref::borrow(mg_settle_dict(world["o"]));
  if (!start_watchers()) return;
  CHECK(mg_watch_dict(dict.get()));
  world.run("store(o, 3)");
  CHECK_EQ(changed_dicts.size(), size_t{3});
  mg_watchers_stop();
}

TEST(watchers_tell_of_a_changed_type_once_per_version) {
  PythonWorld world("class A: x = 1\nclass B(A): pass\n");
  if (!start_watchers()) return;
  auto* type = (PyTypeObject*)world["B"];
  CHECK(mg_watch_type(type));
  world.run("A.x = 2; A.x = 3");
  CHECK_EQ(changed_types.size(), size_t{1});
  CHECK(changed_types[0] == type && mg_assign_type_version(type) != 0);
  world.run("B.x = 4");
  CHECK_EQ(changed_types.size(), size_t{2});
  CHECK(mg_assign_type_version(type) != 0 && mg_unwatch_type(type));
  world.run("B.x = 5");
  CHECK_EQ(changed_types.size(), size_t{2});
  mg_watchers_stop();
}
