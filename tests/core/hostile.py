"""Small worlds whose objects misbehave: special methods that raise, change the world, lie or call the function again."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent


@dataclass
class Scenario:
    source: str  # defines `f`; `LOG`, `busy` and `again`, the function as it is called, are there
    state: str = "LOG"  # an expression: what the calls left
    steps: list[str] = field(default_factory=lambda: ["pass"] * 5)  # run before each call
    args: str = ""
    adaptive: tuple[int, int] | None = None  # from this CPython on, how often it asks depends on how warm its code is


SCENARIOS: dict[str, Scenario] = {}


def hostile(
    name: str,
    source: str,
    state: str = "LOG",
    steps: list[str] | None = None,
    args: str = "",
    adaptive: tuple[int, int] | None = None,
) -> None:
    assert name not in SCENARIOS, name
    scenario = Scenario(dedent(source), state, args=args, adaptive=adaptive)
    if steps:
        scenario.steps = steps
    SCENARIOS[name] = scenario


# -- a special method that misbehaves, wherever it is called ----------------------------------------------------------

# The method, the expression that leads to it, and a sensible answer.
SPECIALS = {
    "__eq__": ("self, other", "E() == 3", "True"),
    "__eq__ of a key": ("self, other", "{E(): 1}.get(E(), 2)", "True"),
    "__eq__ in a list": ("self, other", "3 in [E(), E()]", "True"),
    "__eq__ of the other": ("self, other", "(1, 2) == (1, E())", "True"),
    "__ne__": ("self, other", "e != 3", "True"),
    "__lt__": ("self, other", "sorted([e, E()]) and 1", "False"),
    "__gt__": ("self, other", "max(e, E()) and 1", "True"),
    "__hash__": ("self", "hash(e)", "7"),
    "__hash__ in a set": ("self", "len({e, E()})", "7"),
    "__hash__ for a look-up": ("self", "{1: 2}.get(e)", "7"),
    "__bool__": ("self", "1 if e else 2", "True"),
    "__bool__ negated": ("self", "not e", "True"),
    "__bool__ in any": ("self", "any([E(), e])", "False"),
    "__len__": ("self", "len(e)", "3"),
    "__len__ as truth": ("self", "1 if e else 2", "3"),
    "__index__": ("self", "[1, 2, 3][e]", "1"),
    "__index__ in range": ("self", "list(range(e))", "2"),
    "__index__ in a slice": ("self", "[1, 2, 3][:e]", "1"),
    "__int__": ("self", "int(e)", "4"),
    "__float__": ("self", "float(e)", "1.5"),
    "__iter__": ("self", "[x for x in e]", "iter([1, 2])"),
    "__iter__ unpacked": ("self", "[*e, 1]", "iter((3, 4))"),
    "__next__": ("self", "next(e)", "5"),
    "__contains__": ("self, item", "1 in e", "True"),
    "__getitem__": ("self, key", "e['k']", "key"),
    "__setitem__": ("self, key, value", "e.__setitem__(1, 2)", "None"),
    "__delitem__": ("self, key", "e.__delitem__(1)", "None"),
    "__missing__": ("self, key", "d['absent']", "9"),
    "__call__": ("self", "e()", "11"),
    "__add__": ("self, other", "e + 1", "12"),
    "__radd__": ("self, other", "1 + e", "13"),
    "__iadd__": ("self, other", "add_to(e)", "14"),
    "__neg__": ("self", "-e", "15"),
    "__format__": ("self, spec", "f'{e:x}'", "'text'"),
    "__str__": ("self", "f'{e!s}'", "'text'"),
    "__repr__": ("self", "repr([e])", "'text'"),
    "__getattr__": ("self, name", "e.anything", "name"),
    "__getattr__ by hasattr": ("self, name", "hasattr(e, 'anything')", "name"),
    "__getattribute__": ("self, name", "e.anything", "name"),
    "__setattr__": ("self, name, value", "setattr(e, 'x', 1)", "None"),
    "__delattr__": ("self, name", "delattr(e, 'x')", "None"),
    "__enter__": ("self", "enter(e)", "16"),
    "__exit__": ("self, *error", "enter(e)", "False"),
    "__get__": ("self, obj, cls", "h.slot", "17"),
    "__set__": ("self, obj, value", "setattr(h, 'slot', 1)", "None"),
    "__delete__": ("self, obj", "delattr(h, 'slot')", "None"),
    "__instancecheck__": ("self, obj", "isinstance(1, K)", "True"),
    "__subclasscheck__": ("self, cls", "issubclass(int, K)", "True"),
    "__call__ of the metaclass": ("self", "K()", "18"),
    "__getattribute__ of the metaclass": ("self, name", "K.anything", "name"),
    "__new__": ("cls", "E() and 1", "object.__new__(cls)"),
    "__init__": ("self", "E() and 1", "None"),
    "__reversed__": ("self", "list(reversed(e))", "iter([2, 1])"),
    "__length_hint__": ("self", "list(e)", "3"),
    "__round__": ("self", "round(e)", "19"),
    "__divmod__": ("self, other", "divmod(e, 2)", "(1, 2)"),
    "__dir__": ("self", "dir(e)", "['a']"),
    "__init_subclass__": ("cls", "type('S', (E,), {}) and 1", "None"),
    "__set_name__": ("self, owner, name", "type('S', (), {'x': e}) and 1", "None"),
}

HOSTILE_PRELUDE = """
class M(type): pass
class D(dict): pass
class E:
  {enter}
  {iterate}
  def __init__(self): pass
class H: pass
K = M('K', (), {{}})
e, h, d, G, OTHER = E.__new__(E), H(), D(a=1), 1, [1]
def add_to(x):
  x += 1
  return x
def enter(x):
  with x as y: return y
{target}.{name} = {wrap}({function})
H.slot = e
"""

# What the method does before it answers.
MISBEHAVIOURS = {
    "raises": "raise KeyError('hostile')",
    "raises at times": "if len(LOG) % 3 == 2: raise ValueError(len(LOG))",
    "writes": "global G; G += 1; OTHER.append(G)",
    "calls f again": "if not busy:\n    busy.append(1)\n    try: LOG.append(again())\n    finally: busy.pop()",
    "replaces itself": "{target}.{name} = {wrap}(lambda *a: LOG.append('new') or {answer})",
    "changes its class": "type(e).extra = len(LOG)",
    "deletes a global": "globals().pop('G', None)",
    "replaces the code": "f.__code__ = other.__code__",
}


def special_source(method: str, misbehaviour: str) -> str:
    parameters, expression, answer = SPECIALS[method]
    name = method.split()[0]
    target = {"__missing__": "D", "__instancecheck__": "M", "__subclasscheck__": "M"}.get(name, "E")
    if "metaclass" in method:
        target = "M"
    wrap = {"__new__": "staticmethod", "__init_subclass__": "classmethod"}.get(name, "")
    body = MISBEHAVIOURS[misbehaviour].format(target=target, name=name, wrap=wrap, answer=answer.replace("key", "1"))
    lines = [f"def method({parameters}):", "  LOG.append('called')", "  " + body, f"  return {answer}"]
    setup = HOSTILE_PRELUDE.format(
        target=target,
        name=name,
        wrap=wrap,
        function="method",
        enter="__enter__ = lambda self: 1\n  __exit__ = lambda self, *error: None"
        if "enter(" in expression
        else "pass",
        iterate="__iter__ = lambda self: iter([1, 2])" if name == "__length_hint__" else "pass",
    )
    return (
        "\n".join(lines)
        + setup
        + "def other(): return 'other'\n"
        + f"def f():\n  a = OTHER[0]\n  b = {expression}\n  return a, b, OTHER[-1], 'G' in globals() and G\n"
    )


for _method in SPECIALS:
    for _misbehaviour in MISBEHAVIOURS:
        if _method == "__getattribute__ of the metaclass" and _misbehaviour == "replaces itself":
            continue
        hostile(
            f"{_method} {_misbehaviour}",
            special_source(_method, _misbehaviour),
            "(LOG, OTHER, globals().get('G'))",
        )


# -- what a look-up finds on its way ----------------------------------------------------------------------------------

# A key with the hash of the text `name`, and an __eq__ that tells.
KEY = """
class Key:
  def __init__(self, name): self.name = name
  def __hash__(self): return hash(self.name)
  def __eq__(self, other):
    LOG.append(('eq', self.name, other if isinstance(other, str) else '?'))
    return False
class C: pass
o, D, n = C(), {}, 1
"""
hostile("key_in_the_globals", KEY + "def f(): return n\nglobals()[Key('absent')] = 1\nn = 2")
hostile("key_before_a_global", KEY + "globals().pop('n')\nglobals()[Key('n')] = 1\nn = 2\ndef f(): return n")
hostile("key_before_a_builtin", KEY + "globals()[Key('len')] = 1\ndef f(): return len([1])")
hostile("key_before_an_attribute", KEY + "vars(o)[Key('x')] = 1\no.x = 5\ndef f(): return o.x", adaptive=(3, 12))
hostile("key_before_a_missing_attribute", KEY + "vars(o)[Key('x')] = 1\ndef f(): return getattr(o, 'x', 3)")
hostile("key_before_a_method", KEY + "C.m = lambda self: 1\nvars(o)[Key('m')] = 1\ndef f(): return o.m()")
hostile(
    "key_before_a_stored_attribute",
    KEY + "vars(o)[Key('x')] = 1\no.x = 5\ndef f():\n  o.x = 5\n  return 1",
    adaptive=(3, 12),
)
hostile(
    "key_before_a_counted_attribute",
    KEY + "vars(o)[Key('x')] = 1\no.x = 5\ndef f():\n  o.x += 1\n  return 1",
    adaptive=(3, 12),
)
hostile(
    "key_before_a_deleted_attribute",
    KEY + "vars(o)[Key('x')] = 1\ndef f():\n  o.x = 5\n  del o.x\n  return 1",
    adaptive=(3, 12),
)
hostile("key_before_an_item", KEY + "D[Key('x')] = 1\nD['x'] = 5\ndef f(): return D['x']")
hostile("key_before_an_item_by_get", KEY + "D[Key('x')] = 1\nD['x'] = 5\ndef f(): return D.get('x')")
hostile("key_before_an_item_in", KEY + "D[Key('x')] = 1\nD['x'] = 5\ndef f(): return 'x' in D")
hostile("key_before_a_stored_item", KEY + "D[Key('x')] = 1\nD['x'] = 5\ndef f():\n  D['x'] = 5\n  return 1")
hostile("key_before_a_popped_item", KEY + "D[Key('x')] = 1\ndef f():\n  D['x'] = 5\n  return D.pop('x')")
hostile("key_before_setdefault", KEY + "D[Key('x')] = 1\ndef f(): return D.setdefault('x', 3)")
hostile("key_in_an_argument", KEY + "def f(x): return x.get('k')", args="{Key('k'): 1, 'k': 2}")
hostile("key_in_keywords", KEY + "def g(**k): return k\ndef f(): return g(**D)\nD['x'] = 1", steps=["pass"] * 3)
hostile("key_in_a_class", KEY + "C = type('C', (), {'x': 1})\no = C()\ndef f(): return o.x")
hostile("key_that_is_looked_up", KEY + "D['x'] = 1\nk = Key('x')\ndef f(): return D.get(k, 5)")
hostile("key_in_a_set", KEY + "S = {Key('x'), 'x'}\ndef f(): return 'x' in S")
hostile(
    "key_whose_eq_changes_the_dict",
    """
    class Key:
      def __hash__(self): return hash('x')
      def __eq__(self, other): LOG.append(1); D.clear(); D['x'] = 7; return False
    D = {}
    def f(): return D.get('x', 3)
    """,
    "(LOG, len(D))",
    ["D.clear(); D[Key()] = 1; D['x'] = 2"] * 4,
)
hostile(
    "names_that_are_no_plain_strings",
    """
    class S(str):
      def __eq__(self, other): LOG.append(('eq', str.__str__(self))); return str.__eq__(self, other)
      __hash__ = str.__hash__
    class C: pass
    o = C()
    name = S('x')
    def f():
      setattr(o, name, 1)
      return getattr(o, name), hasattr(o, 'x'), sorted(map(str, vars(o)))
    """,
)
hostile(
    "keywords_that_are_no_plain_strings",
    """
    class S(str):
      def __eq__(self, other): LOG.append(('eq', str.__str__(self))); return str.__eq__(self, other)
      __hash__ = str.__hash__
    def f(a, b=2): return a, b
    """,
    args="**{S('a'): 1, S('b'): 3}",
)
hostile(
    "keywords_that_deny_their_name",
    """
    class S(str):
      def __eq__(self, other): LOG.append('eq'); return len(LOG) % 2 == 1
      __hash__ = str.__hash__
    def g(**k): return k
    def f(a=1, **more): return a, len(more)
    """,
    args="**{S('a'): 5}",
)
hostile(
    "key_of_another_type",
    "D = {1: 'int', 'a': 2}\ndef f(): return D[k]",
    steps=["k = 1", "k = True", "k = 1.0", "k = 1"],
)
hostile(
    "numbers_that_are_subclasses",
    """
    class N(int):
      def __add__(self, other): LOG.append('add'); return 100
      def __bool__(self): LOG.append('bool'); return False
      def __lt__(self, other): LOG.append('lt'); return True
    class C: pass
    o = C()
    def f(): return o.n + 1, (1 if o.n else 2), o.n < 0
    """,
    steps=["o.n = 1", "o.n = N(5)", "o.n = 1", "o.n = N(6)", "o.n = True"],
)
hostile(
    "texts_that_are_subclasses",
    "class S(str):\n  def upper(self): LOG.append(1); return 'mine'\ndef f(): return t.upper() + t",
    steps=["t = 'a'", "t = S('a')", "t = 'a'", "t = S('b')"],
)
hostile(
    "numbers_at_the_edge",
    "import math\nclass C: pass\no = C()\ndef f():\n  o.y = o.x\n  return o.x + 0, o.x == o.x, str(o.x), math.copysign(1, o.x), [o.x] == [o.x]",
    "vars(o)",
    [
        "o.x = 0.0",
        "o.x = -0.0",
        "o.x = float('nan')",
        "o.x = float('nan')",
        "o.x = 0",
        "o.x = 10**40",
        "o.x = -(2**63)",
    ],
)
hostile(
    "arguments_at_the_edge",
    "def f(x): return x, str(x), x * 1, [x] == [x]",
    steps=[f"v = {v}" for v in ("0.0", "-0.0", "float('nan')", "1", "True", "1.0", "2**64", "-(2**64)", "0.0")],
    args="v",
)
hostile(
    "numbers_that_grow",
    "class C: pass\no = C()\no.n = 2\ndef f():\n  o.n = o.n * o.n\n  return o.n > 2**64",
    "o.n",
    ["pass"] * 9,
)

# -- things that die in the middle of the call ------------------------------------------------------------------------

MORTAL = """
class Mortal:
  def __init__(self, tag): self.tag = tag
  def __del__(self): {what}
class C: pass
o, L, D, n = C(), [], {{}}, 0
o.x = o.y = None
"""
DEATHS = {
    "attribute": ("o.x = None", "o.x = Mortal({})"),
    "attribute_deleted": ("if hasattr(o, 'z'): del o.z", "o.z = Mortal({})"),
    "item": ("D['k'] = 1", "D['k'] = Mortal({})"),
    "popped": ("D.pop('k', 0)", "D['k'] = Mortal({})"),
    "list": ("L.clear()", "L.append(Mortal({}))"),
    "list_item": ("L[0] = 1", "L[:] = [Mortal({})]"),
    "global": ("global n; n = 1", "n = Mortal({})"),
    "swapped": ("o.x, o.y = None, o.x", "o.x = Mortal({})"),
}
LAST_WORDS = {
    "tells": "LOG.append(self.tag)",
    "raises": "LOG.append(self.tag); raise ValueError(self.tag)",
    "changes_what_is_read": "o.count = getattr(o, 'count', 0) + 1; LOG.append(o.count)",
    "calls_f_again": "LOG.append(busy or (busy.append(1), again(), busy.pop()))",
    "revives": "LOG.append(self.tag); KEPT.append(self)",
}
for _death, (_drop, _make) in DEATHS.items():
    for _word, _what in LAST_WORDS.items():
        for _when, _steps in {
            "first": [_make.format(1), "pass", "pass", _make.format(2), "pass"],
            "later": ["pass", "pass", _make.format(1), "pass", _make.format(2)],
            "always": [_make.format(i) for i in range(5)],
        }.items():
            hostile(
                f"death_of_{_death}_{_word}_{_when}",
                MORTAL.format(what=_what)
                + f"KEPT = []\nL.append(0)\ndef f():\n  a = len(LOG)\n  {_drop}\n  return a, len(LOG), getattr(o, 'count', 0)",
                "(LOG, len(KEPT))",
                _steps,
                adaptive=(3, 11) if (_death, _word) == ("swapped", "calls_f_again") else None,
            )
hostile(
    "callback_of_a_weak_reference",
    """
    import weakref
    class C: pass
    o = C()
    def drop(r): LOG.append('gone')
    def make():
      o.x = C()
      return weakref.ref(o.x, drop)
    def f():
      o.x = None
      return len(LOG)
    """,
    steps=["r = make()", "pass", "r = make()", "r = make()", "pass"],
)
hostile(
    "callback_of_a_weak_reference_later",
    """
    import weakref
    class C: pass
    o = C()
    o.x = None
    def drop(r): LOG.append('gone')
    def make():
      o.x = C()
      return weakref.ref(o.x, drop)
    def f():
      o.x = None
      return len(LOG)
    """,
    steps=["pass", "pass", "r = make()", "r = make()", "pass"],
)
hostile(
    "weak_values_that_go",
    """
    import weakref
    class C: pass
    o = C()
    W = weakref.WeakValueDictionary()
    def f():
      o.x = C()
      W['k'] = o.x
      o.x = None
      return 'k' in W, len(W)
    """,
)
hostile(
    "local_that_dies_in_the_call",
    "class M:\n  def __del__(self): LOG.append(2)\nclass C: pass\no = C()\ndef f():\n  x = o.m\n  o.m = None\n  x = None\n  return len(LOG)",
    steps=["o.m = M()", "pass", "o.m = M()", "o.m = M()", "pass"],
)
hostile(
    "collection_in_the_call",
    """
    import gc
    class M:
      def __del__(self): LOG.append(1)
    def make():
      m = M()
      m.m = m
    def f():
      make()
      gc.collect()
      return len(LOG)
    """,
)
hostile(
    "result_of_an_unknown_function_that_dies",
    """
    import queue
    class M:
      def __del__(self): LOG.append(1)
    box = queue.SimpleQueue()
    def f():
      x = box.get()
      x = None
      return len(LOG)
    """,
    steps=["box.put(M())", "box.put(3)", "box.put(4)", "box.put(M())", "box.put([M()])", "box.put(5)"],
)
hostile(
    "result_of_an_unknown_function_that_dies_later",
    """
    import queue
    class M:
      def __del__(self): LOG.append(1)
    box = queue.SimpleQueue()
    def f():
      x = box.get()
      y = [x]
      x = y = None
      return len(LOG)
    """,
    steps=["box.put(3)", "box.put(4)", "box.put(M())", "box.put([M()])", "box.put(5)"],
)

# -- who is asked, and what for ---------------------------------------------------------------------------------------

TELLER = """
class Teller:
  def __getattr__(self, name): LOG.append(name); raise AttributeError(name)
t = Teller()
"""
hostile("asked_for_its_name", TELLER + "def f():\n  try: return t()\n  except TypeError: return 1")
hostile("asked_as_a_key_function", TELLER + "def f():\n  try: return max([1, 2], key=t)\n  except TypeError: return 1")
hostile("asked_as_an_iterable", TELLER + "def f():\n  try: return list(t)\n  except TypeError: return 1")
hostile("asked_as_a_context_manager", TELLER + "def f():\n  try:\n    with t: return 1\n  except TypeError: return 2")
hostile("asked_by_isinstance", TELLER + "def f(): return isinstance(t, int), isinstance(t, Teller), callable(t)")
hostile("asked_as_a_class", TELLER + "def f():\n  try: return isinstance(1, t)\n  except TypeError: return 2")
hostile("asked_as_an_exception", TELLER + "def f():\n  try: raise t\n  except TypeError: return 2")
hostile(
    "asked_as_a_handler",
    TELLER + "def f():\n  try:\n    try: 1 / 0\n    except t: return 1\n  except TypeError: return 2",
)
hostile("asked_for_a_truth", TELLER + "def f(): return 1 if t else 2")
hostile("asked_for_a_text", TELLER + "def f(): return len(str(t)) > 3, f'{t!r:>3}'[:3]")
hostile("asked_to_compute", TELLER + "def f():\n  try: return t + 1\n  except TypeError: return 2")
hostile(
    "asked_as_a_module",
    TELLER + "import sys\ndef f():\n  import hostile_module\n  return hostile_module is t\n",
    steps=["sys.modules['hostile_module'] = t"] * 4 + ["del sys.modules['hostile_module']"],
)
hostile(
    "asked_as_a_module_for_a_name",
    TELLER + "import sys\nt.x = 1\ndef f():\n  from hostile_module import x\n  return x\n",
    steps=["sys.modules['hostile_module'] = t", "t.x = 2", "pass", "del t.x", "del sys.modules['hostile_module']"],
)
hostile(
    "callable_whose_name_is_a_trap",
    """
    import functools
    class P(functools.partial):
      def __getattr__(self, name): LOG.append(name); raise AttributeError(name)
    p = P(int, '7')
    def f(): return p(), sorted(['1', '2'], key=P(len))
    """,
)
hostile(
    "class_that_lies",
    """
    class Liar:
      @property
      def __class__(self): LOG.append('class'); return kind
    l = Liar()
    def f(): return isinstance(l, int), isinstance(l, str), type(l) is Liar, l.__class__ is kind
    """,
    steps=["kind = int", "kind = int", "kind = str", "kind = str", "kind = bool"],
)
hostile(
    "class_that_lies_by_getattribute",
    """
    class Liar:
      def __getattribute__(self, name): LOG.append(name); return kind
    l = Liar()
    def f(): return isinstance(l, int), isinstance(l, (str, float))
    """,
    steps=["kind = int", "pass", "kind = str", "kind = float", "kind = 5"],
)
hostile(
    "abstract_class_that_lies",
    """
    import abc
    class A(abc.ABC):
      @classmethod
      def __subclasshook__(cls, other): LOG.append('asked'); return answer
    class B: pass
    b = B()
    def f(): return isinstance(b, A)
    """,
    steps=["answer = True", "pass", "answer = False; A.register(int)", "pass", "answer = True; A.register(float)"],
)

# -- the world is edited by the call itself ---------------------------------------------------------------------------

hostile(
    "class_replaced_in_the_call",
    "class A:\n  def m(self): return 'a'\nclass B:\n  def m(self): return 'b'\no = A()\n"
    "def f():\n  x = o.m()\n  o.__class__ = B if type(o) is A else A\n  return x, o.m()",
    "type(o)",
)
hostile(
    "bases_replaced_in_the_call",
    "class A:\n  def m(self): return 'a'\nclass B:\n  def m(self): return 'b'\nclass C(A): pass\no = C()\n"
    "def f():\n  x = o.m()\n  C.__bases__ = (B,) if C.__bases__ == (A,) else (A,)\n  return x, o.m()",
    "C.__bases__",
)
hostile(
    "method_replaced_in_the_call",
    "class A:\n  def m(self):\n    A.m = lambda self: LOG.append(1) or 2\n    return 1\no = A()\ndef f(): return o.m(), o.m()",
)
hostile("own_code_replaced_in_the_call", "def g(): return 'g'\ndef f():\n  f.__code__ = g.__code__\n  return 'f'")
hostile(
    "callee_code_replaced_in_the_call",
    "def g(): return 'g'\ndef h(): return 'h'\ndef f():\n  a = g()\n  g.__code__, h.__code__ = h.__code__, g.__code__\n  return a, g(), h()",
)
hostile(
    "defaults_replaced_in_the_call",
    "def g(x=1): return x\ndef f():\n  a = g()\n  g.__defaults__ = (a + 1,)\n  return a, g()",
)
hostile(
    "global_deleted_in_the_call",
    "n = 1\ndef f():\n  global n\n  x = n\n  del n\n  return x",
    "'n' in globals()",
    ["n = 1", "n = 2", "pass", "n = 3"],
)
hostile(
    "builtin_replaced_in_the_call",
    "import builtins\nold = builtins.abs\ndef f():\n  x = abs(-1)\n  builtins.abs = lambda v: 5\n  y = abs(-1)\n  builtins.abs = old\n  return x, y",
)
hostile(
    "dict_replaced_in_the_call",
    "class C: pass\no = C()\no.n = 1\ndef f():\n  n = o.n\n  o.__dict__ = {'n': n + 1}\n  return n, o.n",
    "vars(o)",
)
hostile(
    "module_replaced_in_the_call",
    "import sys\ndef f():\n  import json\n  sys.modules['json'] = 5\n  import json as again\n  sys.modules['json'] = json\n  return again",
)
hostile(
    "list_changed_while_iterated",
    "L = [1, 2, 3]\ndef f():\n  out = []\n  for x in L:\n    out.append(x)\n    if len(L) < 6: L.append(x + 3)\n  return out",
    "L",
)
hostile("dict_changed_while_iterated", "D = {1: 1}\ndef f():\n  for k in D: D[k + 1] = 1\n  return len(D)", "D")
hostile(
    "eq_that_empties_the_list",
    "class E:\n  def __eq__(self, other): LOG.append(1); L.clear(); return False\nL = []\ndef f(): return 5 in L",
    "(LOG, L)",
    ["L[:] = [E(), E(), 5]"] * 4,
)
hostile(
    "key_function_that_changes_the_list",
    "L = [3, 1, 2]\ndef key(x):\n  L.append(9)\n  return x\ndef f():\n  try: L.sort(key=key)\n  except ValueError as e: return str(e)\n  return L",
    "L",
)
hostile(
    "index_that_shrinks_the_list",
    "class I:\n  def __index__(self): L.clear(); LOG.append(1); return 0\nL = [1, 2]\ni = I()\ndef f(): return L[i]",
    "(LOG, L)",
    ["L[:] = [1, 2]"] * 4,
)
hostile(
    "length_that_lies",
    "class S:\n  def __len__(self): return n\n  def __getitem__(self, i): LOG.append(i); return [1, 2, 3][i]\ns = S()\ndef f(): return list(s), len(s), bool(s)",
    steps=["n = 3", "n = 0", "n = -1", "n = 10**30", "n = 2"],
)
hostile(
    "iterator_that_calls_f_again",
    "class I:\n  def __iter__(self): return self\n  def __next__(self):\n    if len(busy) > 2: raise StopIteration\n    busy.append(1)\n    return again()\ni = I()\ndef f(): return [x for x in i]",
    "len(busy)",
    ["busy.clear()"] * 4,
)
hostile(
    "exception_with_a_hostile_text",
    "class X(Exception):\n  def __str__(self): LOG.append('str'); return 'x' * len(LOG)\n  def __eq__(self, other): raise KeyError\n"
    "def f():\n  try: raise X(1)\n  except X as e: return f'{e}', e.args\n",
)
hostile(
    "exception_whose_constructor_raises",
    "class X(Exception):\n  def __init__(self): LOG.append(1); raise KeyError('inner')\ndef f():\n  try: raise X\n  except KeyError as e: return e.args",
)
hostile(
    "exception_class_that_makes_something_else",
    "class X(Exception):\n  def __new__(cls): LOG.append(1); return 5\ndef f():\n  try: raise X\n  except TypeError as e: return str(e)[:20]",
)
hostile(
    "warning_in_the_call",
    "import warnings\ndef f():\n  with warnings.catch_warnings(record=True) as seen:\n    warnings.simplefilter('always')\n    warnings.warn('careful')\n  return [(str(w.message), w.lineno) for w in seen]",
)

# -- frames that are looked at ----------------------------------------------------------------------------------------

hostile(
    "own_frame",
    "import sys\ndef f():\n  a = 1\n  frame = sys._getframe()\n  return frame.f_code.co_name, frame.f_lineno, frame.f_locals['a'], frame.f_lasti > 0",
)
hostile(
    "frame_of_the_caller",
    "import sys\ndef g(): return sys._getframe(1).f_code.co_name, sys._getframe(1).f_lineno\ndef f():\n  a = g()\n  return a, g()",
)
hostile("local_variables", "def f():\n  a = 1\n  x = locals()\n  b = 2\n  return dict(x), sorted(locals())")
hostile("local_variables_by_vars", "def f():\n  a = 1\n  return vars()")
hostile("local_variables_by_dir", "def f():\n  a = 1\n  return dir()")
hostile("local_variables_by_eval", "def f():\n  a = 1\n  return eval('a + 1')")
hostile(
    "stack_by_inspect",
    "import inspect\ndef g(): return [(s.function, s.lineno) for s in inspect.stack(0)[:2]]\ndef f():\n  return g()",
)
hostile(
    "stack_by_traceback",
    "import traceback\ndef g(): return [(s.name, s.lineno) for s in traceback.extract_stack()[-2:]]\ndef f():\n  return g()",
)
hostile(
    "stack_of_an_exception",
    "import traceback\ndef g(): raise ValueError(1)\ndef f():\n  try: g()\n  except ValueError as e: return [(s.name, s.lineno) for s in traceback.extract_tb(e.__traceback__)]",
)
hostile(
    "frame_of_an_exception",
    "def g():\n  local = 5\n  raise ValueError(1)\ndef f():\n  try: g()\n  except ValueError as e: return e.__traceback__.tb_next.tb_frame.f_locals, e.__traceback__.tb_lineno",
)
hostile(
    "frame_that_is_cleared",
    "def g():\n  local = [5]\n  raise ValueError(1)\ndef f():\n  try: g()\n  except ValueError as e:\n    e.__traceback__.tb_next.tb_frame.clear()\n    return e.__traceback__.tb_next.tb_frame.f_locals",
)
hostile(
    "frames_behind_a_partial",
    "import sys, functools\ndef g(depth): return sys._getframe(depth).f_code.co_name\ndef f(): return functools.partial(g, 1)(), list(map(g, [0]))",
)
hostile(
    "frame_of_a_generator",
    "def g():\n  a = 1\n  yield a\ndef f():\n  x = g()\n  next(x)\n  return x.gi_frame.f_lineno, x.gi_frame.f_locals, x.gi_running",
)
hostile("line_jumped_by_a_tracer", "import sys\ndef f():\n  a = 1\n  sys.settrace(None)\n  return a")

# -- audit hooks ------------------------------------------------------------------------------------------------------

hostile(
    "audited",
    """
    import sys
    on = []
    def hook(event, args):
      if on and event.startswith('object.'): LOG.append((event, args[1]))
    if not hasattr(sys, 'magneto_audited'):
      sys.addaudithook(lambda *a: sys.magneto_audited(*a))
    sys.magneto_audited = hook
    class C: pass
    o = C()
    o.n = 1
    def g(): return 1
    def f():
      on.append(1)
      x = object.__getattribute__(g, '__code__').co_name
      y = C.__dict__ is not None, o.n
      on.clear()
      return x, y
    """,
)

# -- nested without end -----------------------------------------------------------------------------------------------

NESTED = "import queue\nb = queue.SimpleQueue()\n"
hostile(
    "nested_lists_behind_a_cut",
    NESTED + "def f():\n  l = []\n  for _ in range(100_000): l = [l]\n  b.put(1)\n  return b.get()",
    "b.qsize()",
    ["pass"] * 3,
)
hostile(
    "address_of_nested_tuples",
    "def f():\n  t = ()\n  for _ in range(100_000): t = (t,)\n  return id(t) != 0",
    steps=["pass"] * 3,
)
hostile(
    "nested_value_that_is_dropped",
    "class C: pass\no = C()\ndef make():\n  l = []\n  for _ in range(100_000): l = [l]\n  return l\ndef f():\n  o.x = None\n  return 1",
    "o.x",
    ["o.x = make()"] * 4,
)
hostile(
    "list_that_contains_itself_is_dropped",
    "class C: pass\no = C()\ndef f():\n  o.x = 1\n  return 1",
    "o.x",
    ["o.x = []; o.x.append(o.x)"] * 4,
)
hostile(
    "keyword_of_two_kinds",
    """
    class S(str):
      def __eq__(self, other): LOG.append('eq'); return str.__eq__(self, other)
      __hash__ = str.__hash__
    def f(a=1): return a
    """,
    steps=["k = 'a'", "k = S('a')", "k = 'a'", "k = S('a')", "k = 'a'"],
    args="**{k: 5}",
)
