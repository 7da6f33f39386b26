"""Small worlds whose function has an effect, or seems to: what to call, and where the effect shows."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass
class Effect:
    source: str  # defines `f`
    state: str  # an expression: what the effect left
    between: str = "pass"  # run after each call
    args: str = ""
    compiled: bool | None = False  # False: in parts or not at all; None: whatever


EFFECTS: dict[str, Effect] = {}


def effect(
    name: str, source: str, state: str, between: str = "pass", args: str = "", compiled: bool | None = False
) -> None:
    assert name not in EFFECTS
    EFFECTS[name] = Effect(dedent(source), state, between, args, compiled)


# -- attributes, items, variables -------------------------------------------------------------------------------------

OBJECT = "class C:\n  pass\no = C()\no.n = 0\n"
effect("attribute", OBJECT + "def f():\n  o.n += 1\n  return o.n", "o.n", compiled=True)
effect("attribute_set_only", OBJECT + "def f():\n  o.n = 1\n  return 2", "o.n", "o.n = 0", compiled=True)
effect("attribute_of_an_argument", OBJECT + "def f(x):\n  x.n += 1\n  return 1", "o.n", args="o", compiled=True)
effect(
    "attribute_deleted",
    OBJECT + "def f():\n  had = hasattr(o, 'z')\n  if had: del o.z\n  return had",
    "vars(o)",
    "o.z = 1",
    compiled=None,
)
effect("attribute_by_setattr", OBJECT + "def f():\n  setattr(o, 'n', o.n + 1)\n  return 1", "o.n", compiled=True)
effect("attribute_by_dict", OBJECT + "def f():\n  o.__dict__['n'] += 1\n  return 1", "o.n", compiled=True)
effect("attribute_by_vars", OBJECT + "def f():\n  vars(o).update(n=o.n + 1)\n  return 1", "o.n")
effect(
    "item_under_an_equal_key",
    "d = {1: 2}\ndef f():\n  d[1] = 3\n  d[True] = d[1.0] + 1\n  return d[1]",
    "d",
    "d[1] = 0",
    compiled=True,
)
effect("popped_by_an_equal_key", "d = {}\ndef f(): return d.pop(True, 0)", "d", "d[1] = 3", compiled=True)
effect(
    "popped_by_an_equal_decimal",
    "import decimal\nd = {}\ndef f(): return d.pop(1, 0)",
    "d",
    "d[decimal.Decimal(1)] = 3",
    compiled=None,
)
effect("attribute_of_a_class", "class C: n = 0\ndef f():\n  C.n += 1\n  return C.n", "C.n")
effect("attribute_of_a_function", "def g(): pass\ng.n = 0\ndef f():\n  g.n += 1\n  return 1", "g.n", compiled=True)
effect("attribute_of_itself", "def f():\n  f.n += 1\n  return f.n\nf.n = 0", "f.n", compiled=True)
effect(
    "attribute_of_a_module",
    "import types\nm = types.ModuleType('m')\nm.n = 0\ndef f():\n  m.n += 1\n  return 1",
    "m.n",
    compiled=True,
)
effect(
    "attribute_in_a_slot", "class C: __slots__ = ('n',)\no = C()\no.n = 0\ndef f():\n  o.n += 1\n  return o.n", "o.n"
)
effect(
    "attribute_through_a_property",
    "class C:\n  n = 0\n  @property\n  def x(self): return self.n\n  @x.setter\n  def x(self, v): self.n = v\no = C()\ndef f():\n  o.x += 1\n  return o.x",
    "o.n",
    compiled=True,
)
effect(
    "attribute_through_setattr",
    "class C:\n  def __setattr__(self, k, v): LOG.append(k)\nLOG = []\no = C()\ndef f():\n  o.x = 1\n  return 1",
    "LOG",
    compiled=True,
)
effect(
    "attribute_through_a_class_with_delattr",
    "class C:\n  def __delattr__(self, k): pass\no = C()\ndef f():\n  o.x = 1\n  return 2",
    "o.x",
    "o.x = 0",
    compiled=True,
)
effect(
    "attribute_past_setattr",
    "class C:\n  def __setattr__(self, k, v): object.__setattr__(self, k, v)\no = C()\ndef f():\n  o.x = 1\n  return 2",
    "o.x",
    "object.__setattr__(o, 'x', 0)",
    compiled=True,
)
effect(
    "attribute_with_c_setattr",
    "class C:\n  __setattr__ = object.__setattr__\no = C()\ndef f():\n  o.x = 1\n  return 2",
    "o.x",
    "o.x = 0",
    compiled=True,
)
effect(
    "attribute_through_a_descriptor",
    "class D:\n  def __set__(self, o, v): LOG.append(v)\n  def __get__(self, o, t): return len(LOG)\nLOG = []\nclass C: x = D()\no = C()\ndef f():\n  o.x = o.x\n  return 1",
    "LOG",
    compiled=True,
)
effect(
    "attribute_by_init_of_a_singleton",
    "class S:\n  one = None\n  def __new__(cls):\n    if cls.one is None: cls.one = object.__new__(cls)\n    return cls.one\n  def __init__(self): self.n = 5\nS()\ndef f():\n  S()\n  return 1",
    "S.one.n",
    "S.one.n = 0",
    compiled=None,
)
effect(
    "singleton_is_read",
    "class S:\n  one = None\n  def __new__(cls):\n    if cls.one is None: cls.one = object.__new__(cls)\n    return cls.one\nS().n = 1\ndef f(): return S().n",
    "S.one.n",
    "S.one.n += 1",
    compiled=None,
)
effect(
    "class_assigned",
    OBJECT + "class D: pass\ndef f():\n  o.__class__ = D\n  return 1",
    "type(o).__name__",
    "o.__class__ = C",
)
effect("dict_assigned", OBJECT + "def f():\n  o.__dict__ = {'n': 5}\n  return 1", "vars(o)", "o.__dict__ = {}")
effect("same_attribute", OBJECT + "def f():\n  o.n = 0\n  return 2", "o.n", compiled=True)
effect("same_attribute_until_changed", OBJECT + "def f():\n  o.n = 0\n  return 2", "o.n", "o.n = 1", compiled=None)
effect("same_item", "G = {'a': 1}\ndef f():\n  G['a'] = 1\n  return 2", "G", compiled=True)
effect("same_global", "G = 1\ndef f():\n  global G\n  G = 1\n  return 2", "G", compiled=True)
effect("same_global_until_changed", "G = 1\ndef f():\n  global G\n  G = 1\n  return 2", "G", "G = 5", compiled=None)
effect("global", "G = 0\ndef f():\n  global G\n  G += 1\n  return G", "G", compiled=True)
effect("global_of_a_callee", "G = 0\ndef g():\n  global G\n  G += 1\ndef f():\n  g()\n  return 1", "G", compiled=True)
effect("global_deleted", "G = 0\ndef f():\n  global G\n  del G\n  return 1", "'G' in globals()", "G = 0", compiled=True)
effect(
    "global_deleted_and_read",
    "G = 0\ndef f():\n  global G\n  del G\n  try: G\n  except NameError as e: return e.name\n",
    "'G' in globals()",
    "G = 0",
    compiled=True,
)
effect(
    "global_deleted_in_front_of_a_builtin",
    "len = 0\ndef f():\n  global len\n  del len\n  return len((1, 2))\n",
    "'len' in globals()",
    "len = 0",
    compiled=True,
)
effect(
    "global_deleted_and_made_again",
    "G = 0\ndef f():\n  global G\n  old = G\n  del G\n  G = old + 1\n",
    "G, list(globals())[-1]",
    compiled=True,
)
effect("globals_dict", "G = 0\ndef f():\n  globals()['G'] += 1\n  return 1", "G", compiled=True)
effect(
    "nonlocal",
    "def outer():\n  n = 0\n  def f():\n    nonlocal n\n    n += 1\n    return n\n  return f\nf = outer()",
    "f.__closure__[0].cell_contents",
    compiled=True,
)
effect("default_list", "def f(a=[]):\n  a.append(1)\n  return len(a)", "f.__defaults__")
effect("keyword_default_dict", "def f(*, a={}):\n  a[len(a)] = 1\n  return len(a)", "f.__kwdefaults__", compiled=True)
effect("code_replaced", "def g(): return 1\nh = (lambda: 2).__code__\ndef f():\n  g.__code__ = h\n  return 1", "g()")

# -- containers -------------------------------------------------------------------------------------------------------

REPEATED = [
    "append",
    "extend",
    "heap",
    "deque_rotate",
    "counter",
    "bytearray",
    "set_update",
    "set_pop",
    "set_discard",
    "set_add",
    "reverse",
    "remove",
    "pop",
    "list_slice",
    "list_item",
    "list_del",
    "insert",
    "list_clear",
    "sort",
    "dict_item",
    "dict_update",
    "dict_pop",
    "dict_popitem",
    "dict_setdefault",
    "dict_clear",
    "ordered_dict_move",
    "default_dict_append",
    "nested",
    "sorted_by_pop",
    "comprehension",
    "lambda",
    "method_of_builtin",
    "bound_method",
]
for name, kind, action in (
    ("append", "[]", "G.append(1)"),
    ("extend", "[]", "G.extend([1, 2])"),
    ("insert", "[]", "G.insert(0, 1)"),
    ("pop", "[1, 2, 3, 4, 5]", "G.pop()"),
    ("remove", "[1] * 5", "G.remove(1)"),
    ("list_clear", "[1]", "G.clear()"),
    ("sort", "[2, 1]", "G.sort()"),
    ("reverse", "[1, 2]", "G.reverse()"),
    ("list_item", "[1]", "G[0] += 1"),
    ("list_slice", "[1]", "G[:] = G + [1]"),
    ("list_del", "[1] * 5", "del G[0]"),
    ("list_iadd", "[]", "add(G)"),
    ("list_imul", "[1]", "multiply(G)"),
    ("dict_item", "{}", "G[len(G)] = 1"),
    ("dict_update", "{}", "G.update({len(G): 1})"),
    ("dict_pop", "dict.fromkeys(range(5))", "G.pop(next(iter(G)))"),
    ("dict_popitem", "dict.fromkeys(range(5))", "G.popitem()"),
    ("dict_setdefault", "{}", "G.setdefault(len(G), 1)"),
    ("dict_clear", "{1: 1}", "G.clear()"),
    ("dict_del", "dict.fromkeys(range(5))", "G.__delitem__(min(G))"),
    ("dict_ior", "{}", "merge(G)"),
    ("set_add", "set()", "G.add(len(G))"),
    ("set_discard", "set(range(5))", "G.discard(min(G))"),
    ("set_update", "set()", "G.update([len(G)])"),
    ("set_pop", "set(range(5))", "G.pop()"),
    ("set_ior", "set()", "merge_set(G)"),
    ("deque_append", "collections.deque()", "G.append(1)"),
    ("deque_rotate", "collections.deque([1, 2])", "G.rotate()"),
    ("ordered_dict_move", "collections.OrderedDict(a=1, b=2)", "G.move_to_end(next(iter(G)))"),
    ("default_dict_missing", "collections.defaultdict(list)", "G[len(G)]"),
    ("default_dict_append", "collections.defaultdict(list)", "G['k'].append(1)"),
    ("counter", "collections.Counter()", "G.update('a')"),
    ("bytearray", "bytearray()", "G.append(1)"),
    ("nested", "{'a': [{'b': []}]}", "G['a'][0]['b'].append(1)"),
    ("heap", "[3, 1, 2]", "heapq.heappush(G, 0)"),
    ("sorted_by_pop", "{1: 1, 2: 2}", "sorted([1, 2], key=lambda k: G.setdefault(len(G) + 5, k))"),
    ("sort_with_c_key", "{1: 1, 2: 2, 3: 3, 4: 4, 5: 5}", "[min(G)].sort(key=G.pop)"),
    ("map_with_c_function", "[1, 2, 3, 4, 5]", "list(map(G.remove, [G[0]]))"),
    ("comprehension", "[]", "[G.append(x) for x in range(2)]"),
    ("lambda", "[]", "(lambda: G.append(1))()"),
    ("method_of_builtin", "[]", "list.append(G, 1)"),
    ("bound_method", "[]", "push(1)"),
):
    source = (
        "import collections, heapq\ndef add(g): g += [1]\ndef multiply(g): g *= 2\ndef merge(g): g |= {len(g): 1}\ndef merge_set(g): g |= {len(g)}\n"
        f"G = {kind}\npush = getattr(G, 'append', None)\ndef f():\n  {action}\n  return 1"
    )
    state = "list(G.items()) if hasattr(G, 'items') else list(G)"
    effect(f"container_{name}", source, state, compiled=name in REPEATED)

effect("list_argument", "G = []\ndef f(x):\n  x.append(1)\n  return len(x)", "G", args="G", compiled=True)
effect(
    "list_class_with_delitem",
    "class D(dict):\n  def __delitem__(self, k): pass\nG = D()\ndef f():\n  G['a'] = 1\n  return 2",
    "dict(G)",
    "G['a'] = 0",
    compiled=True,
)
effect("pop_of_a_missing_key", "G = {}\ndef f(): return G.pop('a', 5)", "G", compiled=True)
effect("pop_of_a_key_that_comes", "G = {}\ndef f(): return G.pop('a', 5)", "G", "G['a'] = 1", compiled=None)
effect(
    "fresh_containers",
    "def f():\n  l = []\n  l.append(1)\n  d = {}\n  d['a'] = l\n  s = {1}\n  s.add(2)\n  return l, d, s",
    "0",
    compiled=True,
)
effect("fresh_results_are_new", "kept = []\ndef f():\n  l = [1]\n  return l, l", "0", compiled=True)
effect(
    "fresh_object",
    OBJECT + "def f():\n  p = C()\n  p.n = 1\n  p.n += 1\n  del p.n\n  p.m = 3\n  return p.m",
    "0",
    compiled=True,
)
effect(
    "fresh_object_stored",
    OBJECT + "def f():\n  p = C()\n  o.child = p\n  return 1",
    "'child' in vars(o) and vars(o.child)",
    "o.child.n = 7",
    compiled=True,
)

# -- iterators and generators -----------------------------------------------------------------------------------------

effect("iterator", "G = iter(range(100))\ndef f(): return next(G)", "G.__reduce__()")
effect("iterator_argument", "G = iter(range(100))\ndef f(x): return next(x)", "G.__reduce__()", args="G")
effect("iterator_in_a_loop", "G = iter(range(100))\ndef f():\n  for x in G: return x", "G.__reduce__()")
effect(
    "iterator_of_an_object",
    "class C:\n  def __init__(self): self.it = iter(range(100))\n  def __iter__(self): return self.it\no = C()\ndef f():\n  for x in o: return x",
    "o.it.__reduce__()",
)
effect(
    "iterator_of_an_object_unpacked",
    "class C:\n  def __init__(self): self.it = iter([1, 2, 3])\n  def __iter__(self): return self.it\no = C()\ndef f(): return [*o]",
    "o.it.__reduce__()",
)
effect(
    "iterator_of_an_object_summed",
    "class C:\n  def __init__(self): self.it = iter([1, 2, 3])\n  def __iter__(self): return self.it\no = C()\ndef f(): return sum(o)",
    "o.it.__reduce__()",
)
effect(
    "iterator_of_an_object_assigned",
    "class C:\n  def __init__(self): self.it = iter([1, 2])\n  def __iter__(self): return self.it\no = C()\ndef f():\n  try:\n    a, b = o\n    return a, b\n  except ValueError: return 0",
    "o.it.__reduce__()",
)
effect("iterator_through_zip", "G = iter(range(100))\ndef f(): return list(zip([1, 2], G))", "G.__reduce__()")
effect(
    "iterator_through_map", "G = iter(range(100))\ndef f(): return [*map(lambda a, b: b, [1, 2], G)]", "G.__reduce__()"
)
effect(
    "iterator_through_islice",
    "import itertools\nG = iter(range(100))\ndef f(): return list(itertools.islice(G, 2))",
    "G.__reduce__()",
)
effect("iterator_in_membership", "G = iter(range(100))\ndef f(): return next(G) in G", "G.__reduce__()")
effect(
    "iterator_as_next",
    "G = iter(range(100))\nclass C:\n  __next__ = G.__next__\n  def __iter__(self): return self\no = C()\ndef f():\n  for x in o: return x",
    "G.__reduce__()",
)
OPAQUE = "LOG = [1]\nG = iter(range(1, 100))\nclass C:\n  {} = {}\n{}\n"
for method, value, use in (
    ("__len__", "G.__next__", "o = C()\ndef f(): return len(o)"),
    ("__bool__", "lambda self: True", "C.__bool__ = G.__length_hint__\ndef f(): return 1 if next(G) and C() else 2"),
    ("__hash__", "G.__next__", "o = C()\ndef f(): return hash(o)"),
    ("__hash__", "G.__next__", "o = C()\ndef f(): return len({o})"),
    ("__hash__", "G.__next__", "o = C()\ndef f(): return {1: 1}.get(o)"),
    ("__index__", "iter([0] * 9).__next__", "o = C()\ndef f(): return LOG[o], next(G)"),
    ("__eq__", "LOG.append", "o = C()\ndef f(): return o == 1"),
    ("__lt__", "LOG.append", "L = [C(), C()]\ndef f(): return len(sorted(L))"),
    ("__format__", "LOG.append", "o = C()\ndef f():\n  try: return f'{o:x}'\n  except TypeError: return 2"),
    ("__getattr__", "LOG.append", "o = C()\ndef f(): return o.x"),
    ("__get__", "lambda *a: LOG.append(1)", "class D:\n  x = C()\no = D()\ndef f(): return o.x"),
    ("__class_getitem__", "LOG.append", "def f(): return C[1]"),
    ("__call__", "LOG.append", "o = C()\ndef f():\n  try: return max([1], key=o)\n  except TypeError: return 2"),
    ("__call__", "LOG.append", "o = C()\ndef f(): return o(1)"),
    ("__enter__", "LOG.pop", "C.__exit__ = lambda *a: LOG.extend((1, 2))\no = C()\ndef f():\n  with o: return 1"),
    ("__neg__", "__import__('functools').partial(LOG.append, 1)", "o = C()\ndef f(): return -o"),
    ("__new__", "object.__new__", "C.__len__ = G.__next__\ndef f(): return 1 if object.__new__(C) else 2"),
    ("__contains__", "LOG.append", "class D(C, dict): pass\no = D()\ndef f(): return 1 in o"),
    ("__getitem__", "LOG.append", "class D(C, dict): pass\no = D()\ndef f(): return o[1]"),
):
    is_plain = use.endswith(("return o(1)", "o = D()\ndef f(): return o.x", "with o: return 1"))
    source = OPAQUE.format(method, value, use)
    effect(f"opaque{method}_{len(EFFECTS)}", source, "LOG, G.__reduce__()", compiled=is_plain)
effect(
    "opaque_operator", "class L(list):\n  __lshift__ = list.append\nG = L()\ndef f():\n  G << 1\n  return len(G)", "G"
)
effect(
    "opaque_in_a_metaclass",
    "LOG = []\nclass M(type):\n  __instancecheck__ = LOG.append\nclass C(metaclass=M): pass\ndef f(): return isinstance(1, C)",
    "LOG",
)
effect(
    "special_methods_of_a_c_base",
    "class C(dict):\n  __hash__ = None\n  __eq__ = dict.__eq__\n  __class_getitem__ = classmethod(type(list[int]))\no = C(a=1)\ndef f(): return o == {'a': 1}, len(o)",
    "0",
    compiled=True,
)
effect(
    "iterator_as_default",
    "import collections\nG = iter(range(100))\ndef f(): return collections.defaultdict(G.__next__)[1]",
    "G.__reduce__()",
)
effect(
    "plain_default",
    "import collections\nclass D(collections.defaultdict): pass\ndef f():\n  d, e = collections.defaultdict(list), D(lambda: 1)\n  return len(d[1]), e[2]",
    "0",
    compiled=True,
)
effect(
    "map_over_what_is_filled_later",
    "G = [1]\ndef f():\n  items = []\n  sizes = map(len, items)\n  items.append(G)\n  return list(sizes)",
    "0",
    "G.append(1)",
    compiled=None,
)
effect("count", "import itertools\nG = itertools.count()\ndef f(): return next(G)", "G.__reduce__()")
effect("generator", "def g():\n  for i in range(100): yield i\nG = g()\ndef f(): return next(G)", "G.gi_frame.f_locals")
effect(
    "generator_sent_to",
    "def g():\n  n = 0\n  while True: n += yield n\nG = g()\nnext(G)\ndef f(): return G.send(2)",
    "G.gi_frame.f_locals",
)
effect(
    "generator_closed",
    "def g():\n  try: yield 1\n  finally: LOG.append(1)\nLOG = []\nG = g()\nnext(G)\ndef f():\n  G.close()\n  return 1",
    "LOG",
    "G = g(); next(G)",
)
effect(
    "own_iterator_class",
    "class C:\n  n = 0\n  def __iter__(self): return self\n  def __next__(self):\n    self.n += 1\n    return self.n\no = C()\ndef f(): return next(o)",
    "o.n",
    compiled=True,
)
effect("iter_with_sentinel", "G = [3, 2, 1, 0, 3, 2, 1, 0, 0, 0]\ndef f(): return list(iter(G.pop, 0))", "G")

# -- the world outside ------------------------------------------------------------------------------------------------

effect(
    "random",
    "import random\nrandom.seed(1)\nR = random.Random(5)\ndef f(): return R.random(), R.randint(0, 9), R.choice('abc')",
    "R.getstate()",
    compiled=True,
)
effect(
    "random_shuffle",
    "import random\nR = random.Random(5)\ndef f():\n  l = [1, 2, 3, 4, 5]\n  R.shuffle(l)\n  return l",
    "R.getstate()",
    compiled=True,
)
effect("time", "import time\nlast = [0]\ndef f(): return time.perf_counter_ns() > 0", "0", compiled=True)
effect(
    "monotonic_time",
    "import time\nseen = set()\ndef f(): return time.perf_counter_ns()\ng = f\ndef f():\n  n = time.perf_counter_ns()\n  fresh = n not in seen\n  seen.add(n)\n  return fresh",
    "len(seen)",
    compiled=True,
)
effect(
    "prints",
    "import io, sys\nout = io.StringIO()\ndef f():\n  print('x', file=out)\n  return 1",
    "out.getvalue()",
    compiled=True,
)
effect(
    "writes", "import io\nout = io.StringIO()\ndef f():\n  out.write('x')\n  return 1", "out.getvalue()", compiled=True
)
effect(
    "environment_read",
    "import os\nos.environ['CORE_TEST'] = '1'\ndef f(): return os.environ['CORE_TEST']",
    "os.environ['CORE_TEST']",
    "os.environ['CORE_TEST'] += '1'",
    compiled=None,
)
effect(
    "environment_written",
    "import os\nos.environ['CORE_TEST'] = ''\ndef f():\n  os.environ['CORE_TEST'] += '1'\n  return 1",
    "os.environ['CORE_TEST']",
)
effect(
    "environment_by_getenv",
    "import os\nos.environ['CORE_TEST'] = '1'\ndef f(): return os.getenv('CORE_TEST')",
    "0",
    "os.environ['CORE_TEST'] += '1'",
    compiled=None,
)
effect(
    "counter_object",
    "import itertools\nclass Ids:\n  def __init__(self): self.count = itertools.count()\n  def new(self): return next(self.count)\nids = Ids()\ndef f(): return ids.new()",
    "ids.count.__reduce__()",
)
effect(
    "module_imported",
    "import sys\nsys.modules.pop('colorsys', None)\ndef f():\n  import colorsys\n  return colorsys.__name__",
    "'colorsys' in sys.modules",
    "sys.modules.pop('colorsys', None)",
)
effect(
    "lock",
    "import threading\nL = threading.Lock()\nn = 0\ndef f():\n  with L: return L.locked()",
    "L.locked()",
    compiled=True,
)
effect(
    "warning",
    "import warnings\ndef f():\n  with warnings.catch_warnings(record=True) as w:\n    warnings.simplefilter('always')\n    warnings.warn('x')\n  return len(w)",
    "0",
    compiled=None,
)
effect(
    "context_variable",
    "import contextvars\nv = contextvars.ContextVar('v', default=0)\ndef f():\n  v.set(v.get() + 1)\n  return 1",
    "v.get()",
)
effect(
    "context_variable_reset",
    "import contextvars\nv = contextvars.ContextVar('v', default=0)\ndef f():\n  token = v.set(5)\n  n = v.get()\n  v.reset(token)\n  return n, v.get()",
    "v.get()",
    compiled=True,
)
effect(
    "weak_reference_dies",
    "import weakref\nclass C: pass\ndef f():\n  o = C()\n  r = weakref.ref(o)\n  del o\n  return r() is None",
    "0",
    compiled=None,
)
effect(
    "weak_dictionary",
    "import weakref\nclass C: pass\nW = weakref.WeakValueDictionary()\no = C()\ndef f():\n  W[len(W)] = o\n  return len(W)",
    "len(W)",
)
effect("finaliser", "LOG = []\nclass C:\n  def __del__(self): LOG.append(1)\ndef f():\n  C()\n  return 1", "LOG")
effect(
    "finaliser_in_a_cycle",
    "import gc\nLOG = []\nclass C:\n  def __del__(self): LOG.append(1)\ndef f():\n  c = C()\n  c.c = c\n  return 1",
    "LOG",
    "gc.collect()",
)
effect(
    "finaliser_of_a_subclass",
    "LOG = []\nclass B:\n  def __del__(self): LOG.append(1)\nclass C(B): pass\ndef f():\n  c = C()\n  return 1",
    "LOG",
)
FINALISED = "LOG = []\nclass C({}):\n  def __del__(self): LOG.append(1)\n"
effect("finaliser_past_the_constructor", FINALISED.format("") + "def f():\n  object.__new__(C)\n  return 1", "LOG")
effect("finaliser_of_a_tuple", FINALISED.format("tuple") + "def f():\n  C((1,))\n  return 1", "LOG")
effect(
    "finaliser_of_an_exception",
    FINALISED.format("Exception") + "def f():\n  try: raise C\n  except C: pass\n  return 1",
    "LOG",
)
for clause in ("try: yield 1\n  finally: LOG.append(1)", "with M(): yield 1"):
    effect(
        f"generator_left_in_a_cycle_{clause[:3]}",
        "import gc\nLOG = []\nclass M:\n  def __enter__(self): pass\n  def __exit__(self, *a): LOG.append(1)\n"
        f"def g():\n  {clause}\ndef f():\n  x = g()\n  own = [x]\n  own.append(own)\n  return next(x)",
        "LOG",
        "gc.collect()",
    )
effect(
    "generator_left_without_a_handler",
    "def g():\n  yield 1\n  yield 2\ndef f():\n  x = g()\n  own = [x]\n  own.append(own)\n  return next(x)",
    "0",
    compiled=True,
)
effect(
    "class_made",
    "class B: pass\ndef f():\n  class C(B): pass\n  return 1",
    "len(B.__subclasses__()) > 0",
    compiled=True,
)
effect(
    "class_made_by_type",
    "class M(type):\n  made = 0\n  def __init__(cls, *a): M.made += 1\ndef f():\n  M('C', (), {})\n  return 1",
    "M.made",
)
effect(
    "metaclass_call_once",
    "class M(type):\n  n = 0\n  def __call__(cls, *a):\n    M.n += 1\n    return super().__call__(*a)\nclass C(metaclass=M): pass\ndef f():\n  C()\n  return 1",
    "M.n",
)
effect(
    "metaclass_call_on_a_fresh_log",
    "class M(type):\n  def __call__(cls, log):\n    log.append(1)\n    return super().__call__(log)\nclass C(metaclass=M):\n  def __init__(self, log): log.append(2)\ndef f():\n  log = []\n  C(log)\n  return log",
    "0",
    compiled=True,
)
effect(
    "abc_registered",
    "import abc\nclass A(abc.ABC): pass\ndef f():\n  class C: pass\n  A.register(C)\n  return isinstance(C(), A)",
    "0",
    compiled=True,
)
effect("exec", "G = 0\ndef f():\n  exec('G += 1', globals())\n  return 1", "G")
effect(
    "trace_function",
    "import sys\nold = sys.gettrace()\ndef f():\n  sys.settrace(None)\n  return 1",
    "sys.gettrace() is None",
    "sys.settrace(old)",
)
effect(
    "disabled_function",
    'import _core\nG = []\ndef g(): G.append(1)\nh = _core.ScopedFunction(g, "eager")\ndef f():\n  h()\n  return len(G)',
    "G",
    compiled=True,
)

# -- caches -----------------------------------------------------------------------------------------------------------

effect(
    "lru_cache",
    "import functools\nLOG = []\n@functools.lru_cache\ndef g(x):\n  LOG.append(x)\n  return x + 1\ndef f(): return g(1)",
    "LOG, g.cache_info().currsize",
    compiled=None,
)
effect(
    "lru_cache_cleared",
    "import functools\nLOG = []\n@functools.lru_cache\ndef g(x):\n  LOG.append(x)\n  return len(LOG)\ndef f(): return g(1)",
    "LOG",
    "g.cache_clear()",
    compiled=None,
)
effect(
    "lru_cache_filled_by_others",
    "import functools\n@functools.lru_cache(maxsize=1)\ndef g(x): return [x]\ndef f(): return g(1) is g(1)",
    "0",
    "g(2)",
    compiled=None,
)
effect(
    "lru_cache_that_keeps_nothing",
    "import functools\nLOG = []\n@functools.lru_cache(maxsize=0)\ndef g(x):\n  LOG.append(x)\n  return x + 1\ndef f(): return g(1)",
    "LOG",
    compiled=True,
)
effect(
    "lru_cache_of_an_object_that_the_call_makes",
    "import functools\nLOG = []\nclass C: pass\n@functools.lru_cache\ndef g(x):\n  LOG.append(1)\n  return len(LOG)\ndef f(): return g(C())",
    "LOG",
    compiled=None,
)
effect(
    "lru_cache_of_a_function_that_raises",
    "import functools\nLOG = []\n@functools.lru_cache\ndef g(x):\n  LOG.append(x)\n  raise KeyError(x)\ndef f():\n  try: return g(1)\n  except KeyError as e: return e.args",
    "LOG",
    compiled=None,
)
effect(
    "lru_cache_whose_function_changes_what_was_read",
    "import functools\nN = [0]\n@functools.lru_cache\ndef g(x):\n  N[0] += 1\n  return x\ndef f():\n  before = N[0]\n  return before, g(1), N[0]",
    "N",
    compiled=None,
)
effect(
    "lru_cache_that_evicts_itself",
    "import functools\nLOG = []\n@functools.lru_cache(maxsize=1)\ndef g(x):\n  LOG.append(x)\n  return [x]\ndef f(): return g(1) + g(2)",
    "LOG",
    compiled=None,
)
effect(
    "copy_is_changed",
    "import copy\nclass C:\n  def __init__(self):\n    self.n, self.l, self.d = 0.5, ['a', (1, [2])], {'k': 'v'}\no = C()\n"
    "def f():\n  c = copy.deepcopy(o)\n  c.n += 1\n  c.l[1][1].append(3)\n  c.d['x'] = c.l\n  return c.n, c.d, type(c) is C",
    "vars(o)",
    "o.n += 1",
    compiled=True,
)
effect(
    "shallow_copy_is_changed",
    "import copy\nclass C: pass\no = C()\no.l = [1]\ndef f():\n  c = copy.copy(o)\n  c.m = 2\n  return dict(vars(c)), c.l is o.l",
    "vars(o)",
    compiled=True,
)
effect(
    "copy_of_a_copy",
    "import copy\nclass C: pass\no = C()\no.l = [1]\no.self_ = None\n"
    "def f():\n  c = copy.deepcopy(copy.deepcopy(o))\n  c.l.append(2)\n  return dict(vars(c)), copy.copy(c).l is c.l",
    "vars(o)",
    compiled=True,
)
effect(
    "copies_that_have_a_say",
    "import copy\nLOG = []\nclass C:\n  def __deepcopy__(self, memo):\n    LOG.append('deep')\n    return self\n"
    "class D:\n  def __getstate__(self):\n    LOG.append('state')\n    return {'a': 1}\n"
    "class E:\n  __slots__ = ('x',)\nclass F:\n  def __reduce__(self):\n    LOG.append('reduce')\n    return (F, ())\n"
    "c, d, e, g = C(), D(), E(), F()\ne.x = [1]\n"
    "def f(): return copy.deepcopy(c) is c, dict(vars(copy.deepcopy(d))), copy.deepcopy(e).x, type(copy.copy(g)).__name__",
    "LOG",
    compiled=None,
)
effect(
    "cached_property",
    "import functools\nLOG = []\nclass C:\n  @functools.cached_property\n  def x(self):\n    LOG.append(1)\n    return 5\no = C()\ndef f(): return o.x",
    "LOG, vars(o)",
    compiled=None,
)
effect(
    "cached_property_deleted",
    "import functools\nLOG = []\nclass C:\n  @functools.cached_property\n  def x(self):\n    LOG.append(1)\n    return len(LOG)\no = C()\ndef f(): return o.x",
    "LOG, vars(o)",
    "vars(o).pop('x', None)",
    compiled=None,
)
effect(
    "own_cache",
    "CACHE = {}\nLOG = []\ndef g(x):\n  if x not in CACHE:\n    LOG.append(x)\n    CACHE[x] = x * 2\n  return CACHE[x]\ndef f(): return g(3)",
    "LOG, CACHE",
    compiled=None,
)
effect(
    "own_cache_cleared",
    "CACHE = {}\nLOG = []\ndef g(x):\n  if x not in CACHE:\n    LOG.append(x)\n    CACHE[x] = x * 2\n  return CACHE[x]\ndef f(): return g(3)",
    "LOG, CACHE",
    "CACHE.clear()",
    compiled=True,
)
effect(
    "call_counter_decorator",
    "def counted(g):\n  def wrapper(*a):\n    wrapper.n += 1\n    return g(*a)\n  wrapper.n = 0\n  return wrapper\n@counted\ndef g(x): return x\ndef f(): return g(5)",
    "g.n",
    compiled=True,
)
effect(
    "lazy_attribute",
    "class C:\n  _x = None\n  @property\n  def x(self):\n    if self._x is None: self._x = 5\n    return self._x\no = C()\ndef f(): return o.x",
    "o._x",
    compiled=None,
)
effect(
    "lazy_attribute_reset",
    "class C:\n  _x = None\n  @property\n  def x(self):\n    if self._x is None: self._x = 5\n    return self._x\no = C()\ndef f(): return o.x",
    "o._x",
    "o._x = None",
    compiled=True,
)
effect(
    "log_of_a_logger",
    "import logging\nclass H(logging.Handler):\n  def emit(self, record): LOG.append(record.getMessage())\nLOG = []\nlogger = logging.getLogger('core.effects')\nlogger.handlers[:] = [H()]\nlogger.propagate = False\nlogger.setLevel('INFO')\ndef f():\n  logger.info('x')\n  return 1",
    "LOG",
)
effect("error_after_an_effect", "G = []\ndef f():\n  G.append(1)\n  raise ValueError(len(G))", "G")
effect(
    "effect_in_a_handler",
    "G = []\ndef f():\n  try: raise ValueError\n  except ValueError: G.append(1)\n  return 1",
    "G",
    compiled=True,
)
effect("effect_in_finally", "G = []\ndef f():\n  try: return 1\n  finally: G.append(1)", "G", compiled=True)
effect(
    "effect_in_exit",
    "G = []\nclass C:\n  def __enter__(self): return self\n  def __exit__(self, *a): G.append(1)\ndef f():\n  with C(): return 1",
    "G",
    compiled=True,
)
effect(
    "effect_in_eq",
    "G = []\nclass C:\n  def __eq__(self, o):\n    G.append(1)\n    return True\no = C()\ndef f(): return o == 1, o in [5], [5].count(o)",
    "G",
    compiled=True,
)
effect(
    "effect_in_hash",
    "G = []\nclass C:\n  def __hash__(self):\n    G.append(1)\n    return 1\no = C()\ndef f(): return len({o: 1})",
    "G",
    compiled=True,
)
effect(
    "effect_in_a_key",
    "G = []\nclass K:\n  def __hash__(self): return hash('a')\n  def __eq__(self, o):\n    G.append(1)\n    return False\nD = {K(): 1}\ndef f(): return D.get('a'), 'a' in D",
    "G",
)
effect(
    "effect_in_a_module_getattr",
    "import sys, types\nm = types.ModuleType('made_up')\nG = []\ndef missing(name):\n  if name == 'x':\n    G.append(name)\n    return 5\n  raise AttributeError(name)\nm.__getattr__ = missing\nsys.modules['made_up'] = m\ndef f():\n  from made_up import x\n  return x",
    "G",
    compiled=True,
)
effect(
    "effect_in_a_property_in_c",
    "G = []\nclass C:\n  x = property(lambda self: 1, lambda self, v: G.append(v))\no = C()\ndef f():\n  o.x = 3\n  return 1",
    "G",
    compiled=True,
)

# -- effects that C code has on the way -------------------------------------------------------------------------------

effect(
    "iterator_compared",
    "G = iter(range(100))\nclass C:\n  def __iter__(self): return G\no = C()\ndef f(): return 3 in o",
    "G.__reduce__()",
)
effect(
    "iterator_joined",
    "class C:\n  def __init__(self): self.it = iter('abcdefgh')\n  def __iter__(self): return self.it\no = C()\ndef f(): return ''.join(o)",
    "o.it.__reduce__()",
)
effect("iterator_yielded_to_c", "G = [iter([1, 2, 3])]\ndef f(): return [list(i) for i in (x for x in G)]", "0")
effect(
    "iterator_yielded_and_summed", "G = [iter([1, 2, 3])]\ndef f(): return [sum(i) for i in map(lambda x: x, G)]", "0"
)
effect(
    "iterator_from_a_property",
    "class C:\n  def __init__(self): self.it = iter(range(100))\n  @property\n  def p(self): return self.it\no = C()\ndef f(): return next(o.p)",
    "o.it.__reduce__()",
)
effect(
    "iterator_from_getattr",
    "I = iter(range(100))\nclass C:\n  def __getattr__(self, n): return I\no = C()\ndef f(): return next(o.z)",
    "I.__reduce__()",
)
effect(
    "generator_kept_by_a_fresh_object",
    "def g():\n  for i in range(9): yield i\nclass C:\n  def __init__(self): self.it = g()\ndef f():\n  o = C()\n  return next(o.it), next(o.it)",
    "0",
    compiled=True,
)
effect(
    "class_as_a_key_function",
    "LOG = []\nclass C:\n  def __init__(self, x):\n    LOG.append(x)\n    self.x = x\n  def __lt__(self, o): return self.x < o.x\ndef f(): return sorted([2, 1], key=C)",
    "LOG",
)
effect(
    "set_default_of_a_fresh_dict",
    "G = []\ndef f():\n  d = {}\n  d.setdefault('a', G).append(1)\n  return 1",
    "G",
    compiled=True,
)
effect("aliased_through_a_fresh_list", "G = []\ndef f():\n  l = [G]\n  l[0].append(1)\n  return 1", "G", compiled=True)
effect(
    "aliased_through_a_copy",
    "G = [[]]\ndef f():\n  c = G.copy()\n  c[0].append(1)\n  c.append(2)\n  return len(c)",
    "G",
    compiled=True,
)
effect("aliased_through_a_slice", "G = [[]]\ndef f():\n  c = G[:]\n  c[0].append(1)\n  return 1", "G", compiled=True)
effect(
    "aliased_through_sorted",
    "G = [[2], [1]]\ndef f():\n  s = sorted(G)\n  s[0].append(1)\n  return 1",
    "G",
    compiled=True,
)
effect(
    "aliased_through_values",
    "G = {'a': []}\ndef f():\n  for v in G.values(): v.append(1)\n  return 1",
    "G",
    compiled=True,
)
effect(
    "aliased_through_zip", "G = [[]]\ndef f():\n  for a, b in zip(G, [1]): a.append(b)\n  return 1", "G", compiled=True
)
effect("aliased_through_unpacking", "G = ([], 1)\ndef f():\n  a, b = G\n  a.append(b)\n  return 1", "G", compiled=True)
effect("aliased_through_star", "G = [[]]\ndef g(*a): a[0].append(1)\ndef f():\n  g(*G)\n  return 1", "G", compiled=True)
effect(
    "aliased_through_keywords",
    "G = {'a': []}\ndef g(**k): k['a'].append(1)\ndef f():\n  g(**G)\n  return 1",
    "G",
    compiled=True,
)
effect(
    "aliased_through_a_named_tuple",
    "import collections\nT = collections.namedtuple('T', 'a')\nG = T([])\ndef f():\n  G._replace(a=G.a).a.append(1)\n  return 1",
    "G",
)
effect(
    "aliased_through_a_dict_copy",
    "class C: pass\no = C()\no.l = []\ndef f():\n  d = dict(vars(o))\n  d['l'].append(1)\n  d['x'] = 1\n  return 1",
    "vars(o)",
    compiled=True,
)
effect(
    "view_of_an_older_dict",
    "G = {'a': 1}\ndef f():\n  view = G.keys()\n  G['b'] = 2\n  return len(view)",
    "G",
    "G.pop('b')",
    compiled=True,
)
effect(
    "bound_method_kept",
    "class C:\n  n = 0\n  def up(self): self.n += 1\no = C()\nup = o.up\ndef f():\n  up()\n  return 1",
    "o.n",
    compiled=True,
)
effect(
    "partial_of_a_method",
    "import functools\nG = []\np = functools.partial(G.append, 1)\ndef f():\n  p()\n  return 1",
    "G",
    compiled=True,
)
effect(
    "attribute_in_a_comprehension",
    "class C: n = 0\no = C()\ndef f(): return [setattr(o, 'n', i) for i in range(2)]",
    "o.n",
    "o.n = 7",
    compiled=True,
)
effect(
    "inherited_from_a_builtin",
    "class L(list):\n  def add(self, x): super().append(x)\nG = L()\ndef f():\n  G.add(1)\n  return 1",
    "list(G)",
)
effect(
    "dict_method_through_super",
    "class D(dict):\n  def __setitem__(self, k, v): super().__setitem__(k, v)\nG = D()\ndef f():\n  G['a'] = 1\n  return 1",
    "dict(G)",
    "G.clear()",
)
effect(
    "exception_kept",
    "kept = []\ndef f():\n  try: raise ValueError(1)\n  except ValueError as e: kept.append(e.args)\n  return 1",
    "kept",
    compiled=True,
)
effect(
    "older_exception_raised",
    "E = ValueError(1)\ndef f():\n  try: raise E\n  except ValueError as e:\n    e.n = getattr(e, 'n', 0) + 1\n    return e.n",
    "E.n",
)
effect(
    "traceback_of_an_older_exception",
    "E = ValueError(1)\ndef f():\n  try: raise E\n  except ValueError: return 1",
    "E.__traceback__ is None",
    "E.__traceback__ = None",
)
effect(
    "context_of_an_older_exception",
    "E = ValueError(1)\ndef f():\n  try:\n    try: raise KeyError\n    except KeyError: raise E\n  except ValueError: return 1",
    "type(E.__context__).__name__",
    "E.__context__ = None",
)
effect(
    "cause_of_an_older_exception",
    "E = ValueError(1)\ndef f():\n  try: raise E from KeyError()\n  except ValueError: return 1",
    "type(E.__cause__).__name__",
    "E.__cause__ = None",
)

# -- what is copied, and changes afterwards ---------------------------------------------------------------------------

for name, source in {
    "slice": "L[:] = t",
    "part": "L[1:2] = t",
    "slice_of_an_older": "L[:] = M",
    "extend": "L.extend(t)",
    "extend_deque": "Q.extend(t)",
    "extend_deque_left": "Q.extendleft(t)",
    "difference": "S.difference_update(t)",
    "symmetric_difference": "S.symmetric_difference_update(t)",
    "intersection": "S.intersection_update(t)",
}.items():
    effect(
        f"copied_by_{name}",
        "import collections\nL, M, Q, S = [1, 2], [3], collections.deque([1]), {1, 2, 3}\n"
        f"def f():\n  t = [2, 5]\n  {source}\n  t.insert(0, 3)\n  M.append(4)\n  return t",
        "L, M, Q, S",
        compiled=None,
    )
GENERATOR = "def gen():\n  yield 1\n"
effect(
    "counted_with_a_generator_at_hand",
    OBJECT + GENERATOR + "def f():\n  x = gen()\n  o.n += 1\n  return o.n",
    "o.n",
    compiled=None,
)
effect(
    "counted_for_a_callee_with_a_generator",
    OBJECT + GENERATOR + "def g():\n  x = gen()\n  next(x)\n  return o.n\ndef f():\n  o.n += 1\n  return g() + 1",
    "o.n",
    compiled=None,
)
