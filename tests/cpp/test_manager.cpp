// Guards that users build: the fast path answers as the walk does, and a part that changes does not spoil the others.
#include "guard/manager.h"
#include "python_world.h"

using namespace magneto;
using check::PythonWorld;
using guard::Condition;
using guard::Manager;
using guard::Source;
using guard::Step;

namespace {

py::Ref name(const char* text) { return py::Ref::steal(PyUnicode_InternFromString(text)); }

guard::Check equals(PyObject* value) { return {Condition::Equals, py::Ref::borrow(value)}; }

// Several times: the first checks walk, the later ones need not.
bool holds(Manager& manager, const PythonWorld& world) {
  bool answer = manager.check(world["locals"]);
  for (int i = 0; i < 5; ++i) CHECK_EQ(manager.check(world["locals"]), answer);
  CHECK_EQ(manager.explain(world["locals"]).result, answer);
  return answer;
}

}  // namespace

TEST(a_chain_of_steps_is_followed_and_named) {
  PythonWorld world("class C: pass\no = C()\no.l = [1, {'k': 5}]\nlocals = {'o': o}\nfive = 5");
  Manager manager;
  Source* list = manager.step(manager.local(name("o").get()), Step::Attribute, name("l").get());
  Source* dict = manager.step(list, Step::Item, world.value("1").get());
  manager.add_check(manager.step(dict, Step::Item, name("k").get()), equals(world["five"]));
  CHECK(holds(manager, world));
  world.run("o.l[1]['other'] = 1; o.m = 2");
  CHECK(holds(manager, world));
  world.run("o.l[1]['k'] = 6");
  CHECK(!holds(manager, world));
  CHECK_EQ(manager.explain(world["locals"]).reason, "`o.l[1]['k']` is 6, was 5");
  world.run("o.l = [0, {'k': 5}]");
  CHECK(holds(manager, world));
}

TEST(the_same_step_leads_to_the_same_place) {
  Manager manager;
  Source* root = manager.local(name("o").get());
  CHECK(manager.local(name("o").get()) == root);
  CHECK(manager.step(root, Step::Attribute, name("a").get()) == manager.step(root, Step::Attribute, name("a").get()));
  CHECK(manager.step(root, Step::Attribute, name("a").get()) != manager.step(root, Step::Item, name("a").get()));
}

TEST(a_root_that_changes_with_every_call_leaves_the_others_right) {
  PythonWorld world("class C: pass\no = C()\no.x = 1\nlocals = {'o': o}\none = 1");
  Manager manager;
  manager.add_check(manager.step(manager.local(name("o").get()), Step::Attribute, name("x").get()),
                    equals(world["one"]));
  manager.add_check(manager.local(name("n").get()), guard::type_check(&PyList_Type));
  size_t walks = 0;
  for (int i = 0; i < 50; ++i) {
    if (i == 2) walks = manager.walks();
    world.run("locals['n'] = [locals]");
    CHECK(manager.check(world["locals"]));
  }
  CHECK(manager.walks() - walks <= 48);  // of the list at most, never of the object
  world.run("o.x = 2");
  CHECK(!holds(manager, world));
  world.run("o.x = 1; locals['n'] = ()");
  CHECK(!holds(manager, world));
}

TEST(a_tree_that_does_not_change_is_not_walked) {
  PythonWorld world(
      "class Base:\n  __slots__ = ('slot',)\n  kind = 1\n"
      "class C(Base):\n"
      "  def __init__(self): self.slot = 1; self.l = [(1, [2]), {'k': self}]; self.f = lambda: 1\n"
      "o = C()\nlocals = {'o': o, 'n': 5, 't': (1, [2])}\none = 1\nfive = 5\nC_ = C");
  Manager manager;
  Source* o = manager.local(name("o").get());
  auto attribute = [&](Source* from, const char* text) {
    return manager.step(from, Step::Attribute, name(text).get());
  };
  auto item = [&](Source* from, const char* key) { return manager.step(from, Step::Item, world.value(key).get()); };
  manager.add_check(o, guard::type_check((PyTypeObject*)world["C_"]));
  manager.add_check(attribute(o, "kind"), equals(world["one"]));
  manager.add_check(attribute(o, "slot"), equals(world["one"]));
  manager.add_check(attribute(o, "none"), {Condition::Absent});
  manager.add_check(attribute(attribute(o, "f"), "__name__"), equals(world.value("'<lambda>'").get()));
  manager.add_check(attribute(item(item(attribute(o, "l"), "1"), "'k'"), "slot"), equals(world["one"]));
  manager.add_check(item(item(item(attribute(o, "l"), "0"), "1"), "0"), {Condition::Truth, {}, nullptr, 1});
  manager.add_check(attribute(o, "l"), {Condition::Length, {}, nullptr, 2});
  manager.add_check(item(attribute(o, "l"), "1"), {Condition::Keys, world.value("('k',)")});
  manager.add_check(attribute(o, "f"), guard::identity_check(world.value("o.f").get()));
  manager.add_check(manager.step(o, Step::Type), guard::identity_check(world["C_"]));
  manager.add_check(manager.local(name("n").get()), equals(world["five"]));
  manager.add_check(item(manager.local(name("t").get()), "0"), equals(world["one"]));
  for (int i = 0; i < 3; ++i) CHECK(manager.check(world["locals"]));
  size_t walks = manager.walks();
  for (int i = 0; i < 20; ++i) CHECK(manager.check(world["locals"]));
  world.run("o.unrelated = 1; C.unrelated = 2");
  for (int i = 0; i < 20; ++i) CHECK(manager.check(world["locals"]));
  CHECK_EQ(manager.walks(), walks);
  world.run("C.kind = 1");
  CHECK(manager.check(world["locals"]));
  world.run("Base.kind = 2; C.kind = 3");
  CHECK(!manager.check(world["locals"]));
}

TEST(an_object_that_takes_the_address_of_another_is_looked_at_anew) {
  PythonWorld world("one = 1");
  Manager manager;
  manager.add_check(manager.step(manager.local(name("o").get()), Step::Attribute, name("x").get()),
                    equals(world["one"]));
  world.run(
      "class A:\n  def __init__(self, x): self.x = x\n"
      "class B:\n  x = 2\n"
      "class S:\n  __slots__ = ('x',)\n");
  for (const char* text : {"locals = {'o': A(1)}", "locals = {'o': A(2)}", "locals = {'o': B()}", "locals = {'o': S()}",
                           "locals = {'o': 1}", "locals = {'o': [1]}", "locals = {}"}) {
    world.run("locals = None");
    world.run(text);
    bool expected = std::string(text).find("A(1)") != std::string::npos;
    for (int i = 0; i < 20; ++i) {
      CHECK_EQ(holds(manager, world), expected);
      world.run("locals = None");
      world.run("locals = {'o': A(1)}");
      CHECK(holds(manager, world));
      world.run("locals = None");
      world.run(text);
    }
  }
}

TEST(relations_follow_the_objects_below_unchanged_roots) {
  PythonWorld world("class C: pass\no = C()\no.a = o.b = C()\nlocals = {'o': o}\nfirst = o.a");
  Manager manager;
  Source* root = manager.local(name("o").get());
  Source* a = manager.step(root, Step::Attribute, name("a").get());
  Source* b = manager.step(root, Step::Attribute, name("b").get());
  manager.add_relation(true, {a, b});
  CHECK(holds(manager, world));
  world.run("o.b = C()");
  CHECK(!holds(manager, world));
  CHECK_EQ(manager.explain(world["locals"]).reason, "`o.a` and `o.b` are different objects, were the same");
  world.run("o.a = o.b");
  CHECK(holds(manager, world));
}

TEST(constants_agree_to_the_bit_and_by_type) {
  PythonWorld world("nan = float('nan')\nother = float('nan')");
  CHECK(guard::same_constant(world["nan"], world["other"]));
  CHECK(!guard::same_constant(world.value("0.0").get(), world.value("-0.0").get()));
  CHECK(!guard::same_constant(world.value("(1, True)").get(), world.value("(1, 1)").get()));
  CHECK(guard::same_constant(world.value("(1, ('a', nan))").get(), world.value("(1, ('a', other))").get()));
  CHECK(guard::is_constant(world.value("(1, (None, nan))").get()));
  CHECK(!guard::is_constant(world.value("(1, [])").get()));
}
