// Guards on state and on arguments: each kind holds until what it stands for is changed, and holds again when undone.
#include "cpython/cpython.h"
#include "guard/arguments.h"
#include "guard/atoms.h"
#include "guard/pointer_set.h"
#include "guard/reads.h"
#include "guard/trie.h"
#include "python_world.h"

using namespace magneto;
using check::PythonWorld;
using guard::Arguments;
using guard::CallArguments;
using guard::Reads;
using guard::Trie;

namespace {

// What some notes lead to.
guard::Held<guard::Entry> put(Trie& trie, Reads& reads, const guard::RootNames& roots = {}) {
  guard::Held entry(new guard::Entry);
  std::vector<PyObject*> objects;
  for (const auto& [object, name] : roots) objects.push_back(object);
  std::vector<guard::Read> found = reads.finish(objects);
  entry->tensors = reads.take_tensors();
  trie.insert(entry, std::move(found));
  CHECK_EQ(trie.explain(*entry, roots), "");
  return entry;
}

// Notes something in a world, and then says whether it still holds.
class Noted {
 public:
  template <class Note>
  Noted(PythonWorld& world, Note note) : world_(world) {
    Reads reads;
    note(reads);
    entry_ = put(trie_, reads);
    CHECK(trie_.find() == entry_);
  }

  void keeps(const std::string& text) { expect(text, true); }
  void notices(const std::string& text) { expect(text, false); }
  std::string why() { return trie_.explain(*entry_, {}); }

  // What a function of the world does, which changes no dict.
  void keeps_quietly(const char* function) { expect_quietly(function, true); }
  void notices_quietly(const char* function) { expect_quietly(function, false); }

 private:
  void expect_quietly(const char* function, bool holds) {
    trie_.find();
    uint64_t epoch = mg_dict_epoch();
    py::Ref result = py::Ref::steal(PyObject_CallNoArgs(world_[function]));
    CHECK_EQ(mg_dict_epoch(), epoch);
    CHECK(result.get() == Py_True);  // it could do what it should
    for (int i = 0; i < 2; ++i) CHECK_EQ(trie_.find() != nullptr, holds);
    CHECK_EQ(mg_dict_epoch(), epoch);
    CHECK_EQ(why().empty(), holds);
  }

  void expect(const std::string& text, bool holds) {
    world_.run(text);
    for (int i = 0; i < 2; ++i) {
      bool found = trie_.find() != nullptr;
      if (found != holds) check::fail(__FILE__, __LINE__, text + (found ? ": was not noticed" : ": failed, " + why()));
      CHECK_EQ(why().empty(), holds);
    }
  }

  PythonWorld& world_;
  Trie trie_;
  guard::Held<guard::Entry> entry_;
};

py::Ref name(const char* text) { return py::Ref::steal(PyUnicode_InternFromString(text)); }

// So many dicts that guards ask whether any dict has changed at all before they look at each.
constexpr const char* kManyDicts = "many = [{'k': i} for i in range(100)]\n";

void read_many(Reads& reads, PythonWorld& world) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(world["many"]); ++i)
    reads.read_key(PyList_GET_ITEM(world["many"], i), name("k").get());
}

}  // namespace

TEST(a_key_is_guarded_and_its_neighbours_are_not) {
  PythonWorld world("d = {'a': 1, 'b': 2}");
  Noted noted(world, [&](Reads& g) { g.read_key(world["d"], name("a").get()); });
  noted.keeps("d['b'] = 3; d['c'] = 4");
  noted.notices("d['a'] = 5");
  CHECK_HAS(noted.why(), "`a dict['a']` is 5, was 1");
  noted.keeps("d['a'] = 1");
  noted.notices("del d['a']");
  noted.keeps("d['a'] = 1");
  noted.notices("d.clear()");
}

TEST(a_key_that_is_missing_is_guarded) {
  PythonWorld world("d = {}");
  Noted noted(world, [&](Reads& g) { g.read_key(world["d"], name("a").get()); });
  noted.keeps("d['b'] = 1");
  noted.notices("d['a'] = None");
  noted.keeps("del d['a']");
}

TEST(equal_numbers_are_as_good_as_the_same) {
  PythonWorld world("d = {'n': 10**20, 'z': 0.0}");
  Noted noted(world, [&](Reads& g) {
    g.read_key(world["d"], name("n").get());
    g.read_key(world["d"], name("z").get());
  });
  noted.keeps("d['n'] = int('1' + '0' * 20)");
  noted.notices("d['z'] = -0.0");
  noted.keeps("d['z'] = 0.0");
  noted.notices("d['z'] = 0");
}

TEST(whole_dicts_are_guarded_with_their_order) {
  PythonWorld world("d = {'a': [1], 'b': 2}\nkept = d['a']");
  Noted noted(world, [&](Reads& g) { g.read_items(world["d"]); });
  noted.notices("d['c'] = 1");
  noted.keeps("del d['c']");
  noted.notices("d['a'] = d.pop('a')");
  noted.keeps("d['b'] = d.pop('b')");
  noted.notices("d['a'] = [1]");
  noted.keeps("d['a'] = kept");
}

TEST(lists_and_sets_are_guarded_by_their_items) {
  PythonWorld world("l = [1, [2]]\ns = {1, 'a'}\ninner = l[1]");
  Noted noted(world, [&](Reads& g) {
    g.read_list(world["l"]);
    g.read_set(world["s"]);
  });
  noted.keeps("inner.append(3)");
  noted.notices("l.append(1)");
  noted.keeps("l.pop()");
  noted.notices("l[1] = [2]");
  noted.keeps("l[1] = inner");
  noted.notices("l.reverse()");
  noted.keeps("l.reverse()");
  noted.notices("s.add(2)");
  noted.keeps("s.discard(2)");
  noted.notices("s.discard('a')");
}

TEST(a_list_class_is_guarded_as_an_instance_and_as_a_list) {
  PythonWorld world("class L(list): pass\nl = L([1])\nl.x = 1");
  Noted noted(world, [&](Reads& g) {
    g.read_instance(world["l"]);
    g.read_list(world["l"]);
  });
  noted.notices("l.append(2)");
  noted.keeps("l.pop()");
  noted.notices("old = l.__dict__; l.__dict__ = {}");
  noted.keeps("l.__dict__ = old");
}

TEST(cells_are_guarded) {
  PythonWorld world(
      "def outer():\n  x = 1\n  def set(v):\n    nonlocal x\n    x = v\n  def clear():\n    nonlocal x\n    del x\n"
      "  return lambda: x, set, clear\nf, set, clear = outer()\ncell = f.__closure__[0]");
  Noted noted(world, [&](Reads& g) { g.read_cell(world["cell"], PyCell_GET(world["cell"])); });
  noted.notices("set(2)");
  noted.keeps("set(1)");
  noted.notices("clear()");
}

TEST(the_class_and_the_dict_of_an_instance_are_guarded) {
  PythonWorld world("class C: pass\nclass D: pass\no = C()\no.x = 1");
  Noted noted(world, [&](Reads& g) { g.read_instance(world["o"]); });
  noted.keeps("o.x = 2; o.y = 3");
  noted.notices("o.__class__ = D");
  CHECK_HAS(noted.why(), "`a D.__class__` is another object, class D");
  noted.keeps("o.__class__ = C");
  noted.notices("old = o.__dict__; o.__dict__ = {}");
}

TEST(class_attributes_are_guarded_through_the_bases) {
  PythonWorld world("class A:\n  x = 1\nclass B: pass\nclass C(B, A): pass");
  Noted noted(world, [&](Reads& g) {
    g.read_type((PyTypeObject*)world["C"], name("x").get());
    g.read_type((PyTypeObject*)world["C"], name("missing").get());
  });
  noted.keeps("C.y = 1; A.z = 2; B.w = 3");
  noted.notices("A.x = 5");
  CHECK_HAS(noted.why(), "`C.x` is 5, was 1");
  noted.keeps("A.x = 1");
  noted.notices("B.x = 1000000");
  noted.keeps("del B.x");
  noted.notices("B.missing = 1");
  noted.keeps("del B.missing");
  noted.notices("C.__bases__ = (B,)");
  noted.keeps("C.__bases__ = (B, A)");
}

TEST(special_methods_are_guarded_whether_they_are_there_or_not) {
  PythonWorld world("class C:\n  def __len__(self): return 1\nold = C.__len__");
  Noted noted(world, [&](Reads& g) { g.read_specials((PyTypeObject*)world["C"]); });
  noted.keeps("C.method = lambda self: 1; C.value = 2");
  noted.notices("C.__len__ = lambda self: 2");
  noted.keeps("C.__len__ = old");
  for (const char* special :
       {"__bool__",     "__eq__",      "__add__",   "__radd__",  "__iadd__",    "__getitem__",      "__iter__",
        "__next__",     "__call__",    "__get__",   "__set__",   "__getattr__", "__getattribute__", "__setattr__",
        "__contains__", "__hash__",    "__int__",   "__index__", "__await__",   "__init__",         "__format__",
        "__reversed__", "__missing__", "__round__", "__del__"}) {
    std::string attribute = std::string("C.") + special;
    noted.notices(attribute + " = lambda *a: 1");
    noted.keeps("del " + attribute);
  }
}

TEST(the_order_of_bases_is_part_of_the_special_methods) {
  PythonWorld world("class A: pass\nclass B: pass\nclass C(A, B): pass");
  Noted noted(world, [&](Reads& g) { g.read_specials((PyTypeObject*)world["C"]); });
  noted.notices("C.__bases__ = (B, A)");
}

TEST(functions_are_guarded) {
  PythonWorld world("def f(a=1, *, b=2): return a\ncode = f.__code__\ndefaults = f.__defaults__");
  Noted noted(world, [&](Reads& g) { g.read_function((PyFunctionObject*)world["f"]); });
  noted.keeps("f.attribute = 1; f.__name__ = 'g'");
  noted.notices("f.__code__ = (lambda a=1, *, b=2: b).__code__");
  noted.keeps("f.__code__ = code");
  noted.notices("f.__defaults__ = (1,)");
  noted.keeps("f.__defaults__ = defaults");
  noted.notices("f.__kwdefaults__['b'] = 5");
  noted.keeps("f.__kwdefaults__['b'] = 2");
  noted.notices("f.__kwdefaults__ = None");
}

TEST(slots_are_guarded_set_or_unset) {
  PythonWorld world("class C: __slots__ = ('x', 'y')\no = C()\no.x = 1\ndx, dy = C.x, C.y");
  Noted noted(world, [&](Reads& g) {
    g.read_slot(world["o"], world["dx"], PyLong_FromLong(1));
    g.read_slot(world["o"], world["dy"], nullptr);
  });
  noted.notices("o.x = 2");
  noted.keeps("o.x = 1");
  noted.notices("o.y = 1");
  noted.keeps("del o.y");
}

TEST(context_variables_are_guarded) {
  PythonWorld world("import contextvars\nv = contextvars.ContextVar('v')\nw = contextvars.ContextVar('w', default=1)");
  Noted noted(world, [&](Reads& g) {
    g.read_context(world["v"], nullptr);
    py::Ref one = py::Ref::steal(PyLong_FromLong(1));
    g.read_context(world["w"], one.get());
  });
  noted.notices("token = v.set(5)");
  noted.keeps("v.reset(token)");
  noted.notices("token = w.set(2)");
  noted.keeps("w.reset(token)");
}

TEST(the_registry_of_abstract_classes_is_guarded) {
  PythonWorld world("import abc\nclass A(abc.ABC): pass\nclass C: pass");
  Noted noted(world, [&](Reads& g) { g.read_abc_registry(); });
  noted.keeps("isinstance(C(), A)");
  noted.notices("A.register(C)");
}

TEST(objects_that_nobody_else_knows_are_not_guarded) {
  PythonWorld world("kept = [1]");
  Reads reads;
  {
    py::Ref mine = py::Ref::steal(PyList_New(0));
    reads.read_list(mine.get());
    reads.read_list(world["kept"]);
  }
  CHECK_EQ(reads.finish({}).size(), 1u);
}

TEST(reads_pin_what_they_name) {
  PythonWorld world("d = {'a': []}\nl = [{}]\nother = []");
  Reads reads;
  reads.read_key(world["d"], name("a").get());
  reads.read_list(world["l"]);
  CHECK(reads.pins(world.value("d['a']").get()));
  CHECK(reads.pins(world.value("l[0]").get()));
  CHECK(!reads.pins(world["other"]));
}

TEST(only_roots_that_no_read_leads_to_are_kept_alive) {
  PythonWorld world("class C: pass\no = C()\no.part = C()\no.part.x = 1\nlone = [1]");
  Reads reads;
  PyObject* object = world["o"];
  py::Ref dict = world.value("o.__dict__"), part = world.value("o.part"), parts = world.value("o.part.__dict__");
  reads.read_instance(object);
  reads.read_key(dict.get(), name("part").get());
  reads.read_instance(part.get());
  reads.read_key(parts.get(), name("x").get());
  reads.read_list(world["lone"]);
  Trie trie;
  auto entry = put(trie, reads, {{object, "o"}});
  auto is_visited = [&](PyObject* wanted) {
    std::pair<PyObject*, bool> search{wanted, false};
    trie.traverse(
        [](PyObject* visited, void* arg) {
          auto* search = static_cast<std::pair<PyObject*, bool>*>(arg);
          search->second |= visited == search->first;
          return 0;
        },
        &search);
    return search.second;
  };
  CHECK(is_visited(world["lone"]));
  for (PyObject* each : {object, dict.get(), part.get(), parts.get()}) CHECK(!is_visited(each));
}

TEST(a_new_object_at_the_address_of_a_dead_one_is_looked_into) {
  PythonWorld world("class C: pass\nbox = [None]\nbox[0] = C()\nbox[0].x = 1\nd = box[0].__dict__");
  Reads reads;
  reads.read_list(world["box"]);
  py::Ref object = world.value("box[0]");
  reads.read_instance(object.get());
  reads.read_key(world["d"], name("x").get());
  PyObject* address = object.get();
  object = {};
  Trie trie;
  auto entry = put(trie, reads, {{world["box"], "box"}});
  CHECK(trie.find() == entry);
  world.set("address", py::Ref::steal(PyLong_FromVoidPtr(address)).get());
  world.run("del d; box[0] = None; pool = [C() for _ in range(1000)]; here = [c for c in pool if id(c) == address]");
  // A sanitizer keeps freed memory back, and CPython 3.13 gives later objects of a class more room.
  if (world.holds("here == []")) return;
  world.run("box[0] = here[0]; box[0].x = 2");
  CHECK(trie.find() == nullptr);
  world.run("box[0].x = 1");
  CHECK(trie.find() == nullptr);  // its __dict__ is another one
}

TEST(guards_are_described_in_words) {
  PythonWorld world("d = {'a': 1}\nl = [1]\nclass C: x = 1");
  Reads reads;
  reads.read_key(world["d"], name("a").get());
  reads.read_list(world["l"]);
  reads.read_type((PyTypeObject*)world["C"], name("x").get());
  Trie trie;
  auto entry = put(trie, reads);
  std::vector<std::string> lines;
  trie.describe(*entry, &lines);
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  CHECK_HAS(all, "1 items of dicts are unchanged");
  CHECK_HAS(all, "3 attributes of classes are unchanged");
  CHECK_HAS(all, "1 lists");
}

TEST(a_failed_guard_is_named_as_the_program_would_write_it) {
  PythonWorld world(
      "class M: pass\ndef module():\n  m = M()\n  m._modules = {}\n  m.training = True\n  return m\n"
      "root, layers = module(), module()\nroot._modules['layers'] = layers\n"
      "for i in range(5): layers._modules[str(i)] = module()\nlast = layers._modules['3']");
  Reads reads;
  auto read_module = [&](PyObject* module, const char* part) {
    reads.read_instance(module);
    PyObject* dict = *mg_dict_slot(module);
    reads.read_key(dict, name(part ? "_modules" : "training").get());
    if (part) reads.read_key(PyDict_GetItemString(dict, "_modules"), name(part).get());
  };
  read_module(world["root"], "layers");
  read_module(world["layers"], "3");
  read_module(world["last"], nullptr);
  Trie trie;
  guard::RootNames roots{{world["root"], "self"}};
  auto entry = put(trie, reads, roots);
  world.run("last.training = False");
  CHECK_EQ(trie.explain(*entry, roots), "`self.layers[3].training` is False, was True");
  world.run("last.training = True; del layers._modules['3']");
  CHECK_EQ(trie.explain(*entry, roots), "`self.layers[3]` is not there any more");
}

// ---- sharing

TEST(entries_share_reads_until_one_finds_something_else) {
  PythonWorld world("a = {'x': 1}\nb = {'y': 1}\nc = {'z': 1}");
  Trie trie;
  auto note = [&] {
    Reads reads;
    reads.read_key(world["a"], name("x").get());
    reads.read_key(world["b"], name("y").get());
    reads.read_key(world["c"], name("z").get());
    return put(trie, reads);
  };
  auto first = note();
  world.run("b['y'] = 2");
  CHECK(trie.find() == nullptr);
  auto second = note();
  world.run("c['z'] = 2");
  auto third = note();
  CHECK(trie.find() == third);
  world.run("c['z'] = 1");
  CHECK(trie.find() == second);
  world.run("b['y'] = 1");
  CHECK(trie.find() == first);
  CHECK(trie.find({first.get()}) == nullptr);
  world.run("a['x'] = 2");
  CHECK(trie.find() == nullptr);
  CHECK_EQ(trie.explain(*third, {}), "`a dict['x']` is 2, was 1");
  world.run("a['x'] = 1");
  trie.remove(*first);
  CHECK(trie.find() == nullptr);
  world.run("b['y'] = 2");
  CHECK(trie.find() == second);
  trie.remove(*second);
  trie.remove(*third);
  CHECK(trie.empty());
}

TEST(entries_with_the_same_reads_are_found_one_after_the_other) {
  PythonWorld world("d = {'x': 1}");
  Trie trie;
  auto note = [&] {
    Reads reads;
    reads.read_key(world["d"], name("x").get());
    return put(trie, reads);
  };
  auto first = note(), second = note();
  CHECK(trie.find() == second);
  CHECK(trie.find({second.get()}) == first);
  CHECK(trie.find() == first);  // the newest hit
  CHECK(trie.find({first.get(), second.get()}) == nullptr);
}

// ---- arguments

namespace {

// Calls are written as Python: `(args, kwargs)`.
class Call {
 public:
  Call(const PythonWorld& world, const std::string& text)
      : both_(world.value("(lambda *a, **k: (a, k))(" + text + ")")) {
    PyObject *args = PyTuple_GET_ITEM(both_.get(), 0), *kwargs = PyTuple_GET_ITEM(both_.get(), 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) values_.push_back(PyTuple_GET_ITEM(args, i));
    if (PyDict_GET_SIZE(kwargs)) {
      names_ = py::Ref::steal(PySequence_Tuple(kwargs));
      Py_ssize_t position = 0;
      PyObject *key, *value;
      while (PyDict_Next(kwargs, &position, &key, &value)) values_.push_back(value);
    }
    call = {values_.data(), static_cast<size_t>(PyTuple_GET_SIZE(args)), names_.get()};
  }
  CallArguments call;

 private:
  py::Ref both_, names_;
  std::vector<PyObject*> values_;
};

bool fits(const Arguments& arguments, const PythonWorld& world, const std::string& text) {
  Call other(world, text);
  std::vector<PyObject*> values(arguments.node_count() + 1), tensors(arguments.tensor_count() + 1);
  bool matches = arguments.match(other.call, values.data(), tensors.data());
  CHECK_EQ(arguments.explain(other.call).empty(), matches);
  return matches;
}

}  // namespace

TEST(arguments_match_by_value_and_layout) {
  PythonWorld world("class C: pass\no, p = C(), C()");
  Call first(world, "1, 'a', [1, (2.0, {'k': None})], o, key=b'x'");
  Arguments arguments(first.call);
  CHECK_EQ(arguments.refusal(), "");
  arguments.freeze();
  CHECK(fits(arguments, world, "1, 'a', [1, (2.0, {'k': None})], o, key=b'x'"));
  for (const char* other :
       {"2, 'a', [1, (2.0, {'k': None})], o, key=b'x'", "True, 'a', [1, (2.0, {'k': None})], o, key=b'x'",
        "1, 'b', [1, (2.0, {'k': None})], o, key=b'x'", "1, 'a', [1, (2.5, {'k': None})], o, key=b'x'",
        "1, 'a', [1, (2, {'k': None})], o, key=b'x'", "1, 'a', [1, (2.0, {'k': 0})], o, key=b'x'",
        "1, 'a', [1, (2.0, {'l': None})], o, key=b'x'", "1, 'a', [1, (2.0, {'k': None, 'l': 1})], o, key=b'x'",
        "1, 'a', [1, [2.0, {'k': None}]], o, key=b'x'", "1, 'a', (1, (2.0, {'k': None})), o, key=b'x'",
        "1, 'a', [1, (2.0, {'k': None}), 3], o, key=b'x'", "1, 'a', [1, (2.0, {'k': None})], p, key=b'x'",
        "1, 'a', [1, (2.0, {'k': None})], o, key=b'y'", "1, 'a', [1, (2.0, {'k': None})], o, other=b'x'",
        "1, 'a', [1, (2.0, {'k': None})], o, b'x'", "1, 'a', [1, (2.0, {'k': None})], o", "1"})
    CHECK(!fits(arguments, world, other));
}

TEST(the_order_of_keys_matters) {
  PythonWorld world;
  Call first(world, "{'a': 1, 'b': 2}, x=1, y=2");
  Arguments arguments(first.call);
  arguments.freeze();
  CHECK(fits(arguments, world, "{'a': 1, 'b': 2}, x=1, y=2"));
  CHECK(!fits(arguments, world, "{'b': 2, 'a': 1}, x=1, y=2"));
  CHECK(!fits(arguments, world, "{'a': 1, 'b': 2}, y=2, x=1"));
}

TEST(zeros_differ_in_their_sign) {
  PythonWorld world;
  Call first(world, "0.0, 0j");
  Arguments arguments(first.call);
  CHECK(fits(arguments, world, "0.0, 0j"));
  CHECK(!fits(arguments, world, "-0.0, 0j"));
  CHECK(!fits(arguments, world, "0.0, -0j"));
  CHECK(!fits(arguments, world, "0, 0j"));
}

TEST(a_container_that_is_passed_twice_must_be_so_again) {
  PythonWorld world("l, d, e = [1], {}, []\nm = []\nm.append(m)\nn = []\nn.append(n)");
  struct Case {
    const char *twice, *separate;
  };
  for (auto [twice, separate] : {Case{"l, l", "[1], [1]"}, Case{"[l], l", "[[1]], [1]"}, Case{"d, d", "{}, {}"},
                                 Case{"[d, d]", "[{}, {}]"}, Case{"e, e", "[], []"}, Case{"m", "[[]]"}}) {
    Call first(world, twice);
    Arguments arguments(first.call);
    CHECK_EQ(arguments.refusal(), "");
    CHECK(fits(arguments, world, twice));
    CHECK(!fits(arguments, world, separate));
  }
  Call first(world, "m");
  CHECK(fits(Arguments(first.call), world, "n"));
  CHECK_EQ(Arguments(Call(world, "(), ()").call).refusal(), "");
  CHECK_EQ(Arguments(Call(world, "1, 1, 'a', 'a'").call).refusal(), "");
}

TEST(containers_that_were_two_do_not_match_one) {
  PythonWorld world("l = [1]");
  Call first(world, "[1], [1]");
  Arguments arguments(first.call);
  CHECK(fits(arguments, world, "[1], [1]"));
  CHECK(!fits(arguments, world, "l, l"));
}

TEST(unusual_arguments_are_refused_in_words) {
  PythonWorld world("class K: pass\nk = K()\ndeep = []\nfor _ in range(100): deep = [deep]\nbig = list(range(20000))");
  CHECK_HAS(Arguments(Call(world, "{k: 1}").call).refusal(), "a key of type K");
  CHECK_HAS(Arguments(Call(world, "deep").call).refusal(), "nested too deeply");
  CHECK_HAS(Arguments(Call(world, "big").call).refusal(), "10,000 parts");
}

TEST(a_mismatch_is_explained_with_the_path) {
  PythonWorld world;
  Call first(world, "[1, {'k': (2, 3)}]");
  Arguments arguments(first.call);
  CHECK_HAS(arguments.explain(Call(world, "[1, {'k': (2, 4)}]").call), "args[0][1]['k'][1] is 4, was 3");
  CHECK_HAS(arguments.explain(Call(world, "[1, {'k': (2, 'x')}]").call), "is a str, was a int");
  CHECK_HAS(arguments.explain(Call(world, "[1, {'k': (2, 3, 4)}]").call), "another length");
  CHECK_HAS(arguments.explain(Call(world, "1, 2").call), "other arguments");
}

TEST(arguments_keep_objects_alive_only_if_they_cannot_be_referred_to_weakly) {
  PythonWorld world("class C: pass\nclass Slotted: __slots__ = ()\no, l, s = C(), [1], Slotted()");
  Call first(world, "o, l, s");
  Py_ssize_t object = Py_REFCNT(world["o"]), list = Py_REFCNT(world["l"]), slotted = Py_REFCNT(world["s"]);
  {
    Arguments arguments(first.call);
    arguments.freeze();
    CHECK_EQ(Py_REFCNT(world["o"]), object);
    CHECK_EQ(Py_REFCNT(world["l"]), list);
    CHECK_EQ(Py_REFCNT(world["s"]), slotted + 1);
    CHECK(fits(arguments, world, "o, [1], s"));
    CHECK(!fits(arguments, world, "C(), [1], s"));
    CHECK(!fits(arguments, world, "o, [1], Slotted()"));
  }
  CHECK_EQ(Py_REFCNT(world["s"]), slotted);
}

TEST(arguments_that_admit_the_same_calls_are_the_same) {
  PythonWorld world("class C: pass\no, p = C(), C()");
  auto same = [&](const char* a, const char* b) {
    Call first(world, a), second(world, b);
    return Arguments(first.call).same_as(Arguments(second.call));
  };
  CHECK(same("1, [2.5], o, k={'a': (1, 2)}", "1, [2.5], o, k={'a': (1, 2)}"));
  CHECK(!same("1", "2") && !same("1", "1, 1") && !same("1", "a=1") && !same("a=1", "b=1") && !same("o", "p"));
  CHECK(!same("[1]", "(1,)") && !same("{'a': 1}", "{'b': 1}") && !same("{'a': 1}", "{'a': 2}"));
  CHECK(!same("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}") && !same("0.0", "-0.0"));
}

TEST(atoms_are_compared_by_type_and_bits) {
  PythonWorld world;
  auto same = [&](const char* a, const char* b) {
    return guard::same_atom(world.value(a).get(), world.value(b).get());
  };
  CHECK(same("10**30", "10**30") && same("'ab'", "''.join(['a', 'b'])") && same("None", "None") && same("1.5", "1.5"));
  CHECK(!same("1", "True") && !same("1", "1.0") && !same("0.0", "-0.0") && !same("'a'", "b'a'"));
  CHECK(!same("[]", "[]") && !same("()", "(1,)"));
  for (const char* atom : {"1", "1.5", "'a'", "b'a'", "None", "True", "...", "NotImplemented", "2j"})
    CHECK(guard::is_atom(world.value(atom).get()));
  for (const char* other : {"[]", "()", "{}", "object()", "int", "range(3)", "type('S', (str,), {})('x')"})
    CHECK(!guard::is_atom(world.value(other).get()));
}

// ---- tables of addresses

TEST(a_pointer_set_holds_what_was_put_in) {
  guard::PointerSet set;
  std::vector<std::unique_ptr<int>> pointers;
  for (int i = 0; i < 5000; ++i) {
    pointers.push_back(std::make_unique<int>(i));
    CHECK(!set.contains(pointers.back().get()));
    CHECK(set.insert(pointers.back().get()));
    CHECK(!set.insert(pointers.back().get()));
  }
  for (const auto& pointer : pointers) CHECK(set.contains(pointer.get()));
  int other;
  CHECK(!set.contains(&other));
}

TEST(changes_are_noticed_while_no_dict_changes) {
  PythonWorld world(std::string(kManyDicts) + R"(
class S: __slots__ = ('x', 'y')
class C: pass
class D: pass
items, members, s, o, cell = [1, 2], {1, 2}, S(), C(), (lambda x: lambda: x)(1).__closure__[0]
s.x = 1
o.a = 1
was, other, slot = o.__dict__, {'a': 1}, S.x
def append(): items.append(3); return True
def pop(): items.pop(); return True
def move(): items.extend(items * 100); del items[2:]; return True
def add(): members.add(3); return True
def discard(): members.discard(3); return True
def store(): s.x = 2; return True
def store_elsewhere(): s.y = 2; return True
def restore(): s.x = 1; return True
def rebind(): cell.cell_contents = 2; return True
def bind(): cell.cell_contents = 1; return True
def become(): o.__class__ = D; return True
def unbecome(): o.__class__ = C; return True
def swap(): o.__dict__ = other; return True
def unswap(): o.__dict__ = was; return True
)");
  Noted noted(world, [&](Reads& g) {
    read_many(g, world);
    g.read_list(world["items"]);
    g.read_set(world["members"]);
    g.read_slot(world["s"], world["slot"], PyLong_FromLong(1));
    g.read_cell(world["cell"], PyCell_GET(world["cell"]));
    g.read_instance(world["o"]);
    g.read_key(world["was"], name("a").get());
  });
  noted.notices_quietly("append"), noted.keeps_quietly("pop"), noted.keeps_quietly("move");
  noted.notices_quietly("add"), noted.keeps_quietly("discard");
  noted.notices_quietly("store"), noted.keeps_quietly("restore"), noted.keeps_quietly("store_elsewhere");
  noted.notices_quietly("rebind"), noted.keeps_quietly("bind");
  noted.notices_quietly("become"), noted.keeps_quietly("unbecome");
  noted.notices_quietly("swap");
  noted.keeps_quietly("unswap");
  noted.notices("many[50]['k'] = -1");
  noted.keeps("many[50]['k'] = 50");
  noted.notices("was['a'] = 2");
}

TEST(an_object_that_takes_the_place_of_a_dead_one_is_looked_at_while_no_dict_changes) {
  if (mg_dict_epoch() == 0) return;  // the epoch is all that could hide it
  PythonWorld world(std::string(kManyDicts) + R"(
class S: __slots__ = ('x',)
def make(x):
    new = S()
    new.x = x
    return new
items, slot, kept = [make(1)], S.x, []
def renew(x):
    address = id(items[0])
    items[0] = None
    for _ in range(10000):
        new = make(x)
        if id(new) == address:
            items[0] = new
            return True
        kept.append(new)
def another(): return renew(2)
def a_like(): return renew(1)
)");
  Noted noted(world, [&](Reads& g) {
    read_many(g, world);
    g.read_list(world["items"]);
    g.read_slot(PyList_GET_ITEM(world["items"], 0), world["slot"], PyLong_FromLong(1));
  });
  noted.notices_quietly("another");
  noted.keeps_quietly("a_like");
}

TEST(a_list_in_the_place_of_a_dead_dict_is_noticed_while_no_dict_changes) {
  if (mg_dict_epoch() == 0) return;  // the epoch is all that could hide it
  PythonWorld world(std::string(kManyDicts) + R"(
class S: __slots__ = ('x',)
s, slot, kept = S(), S.x, []
s.x = {'a': 1}
def fill(): [{} for _ in range(1000)]  # the dicts that CPython keeps for later
def replace():
    address = id(s.x)
    s.x = None
    for _ in range(10000):
        new = []
        if id(new) == address:
            s.x = new
            return True
        kept.append(new)
)");
  Noted noted(world, [&](Reads& g) {
    read_many(g, world);
    py::Ref dict = world.value("s.x");
    g.read_slot(world["s"], world["slot"], dict.get());
    g.read_key(dict.get(), name("a").get());
  });
  py::Ref::steal(PyObject_CallNoArgs(world["fill"]));
  noted.notices_quietly("replace");
}
