"""Small worlds whose answer depends on something that can be changed: what to run, how to change it, how to undo it."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

# A change that no program here looks at.
UNRELATED = "unrelated = object()"


@dataclass
class Change:
    source: str  # defines `f`
    change: str
    undo: str
    args: str = ""  # of every call
    unrelated: str = UNRELATED
    eager: bool | None = False  # never compiled, and so right anyway; None: either is right


CHANGES: dict[str, Change] = {}


def change(name: str, source: str, change: str, undo: str, **more: object) -> None:
    assert name not in CHANGES
    CHANGES[name] = Change(dedent(source), dedent(change), dedent(undo), **more)  # type: ignore[arg-type]


# -- variables --------------------------------------------------------------------------------------------------------

change("global", "G = 1\ndef f(): return G + 1", "G = 5", "G = 1")
change(
    "global_deleted",
    "abs_ = abs\ndef f():\n  try: return abs_(-1)\n  except NameError: return 0",
    "del abs_",
    "abs_ = abs",
)
change("global_object", "G = [1]\ndef f(): return len(G)", "G = [1, 2]", "G = [1]")
change("global_shadows_builtin", "def f(): return len([1])", "len = lambda x: 9", "del len")
change(
    "builtin_replaced",
    "import builtins\nold = builtins.abs\ndef f(): return abs(-3)",
    "builtins.abs = lambda x: 7",
    "builtins.abs = old",
)
change(
    "cell",
    """
    def outer():
        x = 1
        def set(v):
            nonlocal x
            x = v
        def f(): return x + 1
        return f, set
    f, set = outer()
    """,
    "set(5)",
    "set(1)",
)
change(
    "cell_of_a_callee",
    """
    def outer():
        x = [1]
        def g(): return x[0]
        return g, x
    g, x = outer()
    def f(): return g() + 1
    """,
    "x[0] = 5",
    "x[0] = 1",
)
change("default", "def g(a=1): return a\ndef f(): return g()", "g.__defaults__ = (2,)", "g.__defaults__ = (1,)")
change("default_changed_inside", "L = [1]\ndef g(a=L): return len(a)\ndef f(): return g()", "L.append(2)", "L.pop()")
change(
    "keyword_default",
    "def g(*, a=1): return a\ndef f(): return g()",
    "g.__kwdefaults__['a'] = 2",
    "g.__kwdefaults__['a'] = 1",
)
change(
    "keyword_defaults_replaced",
    "def g(*, a=1): return a\ndef f(): return g()",
    "g.__kwdefaults__ = {'a': 2}",
    "g.__kwdefaults__ = {'a': 1}",
)
change("own_default", "def f(a=1): return a", "f.__defaults__ = (2,)", "f.__defaults__ = (1,)")
change(
    "code",
    "def g(): return 1\ndef f(): return g()\nold = g.__code__",
    "g.__code__ = (lambda: 2).__code__",
    "g.__code__ = old",
)
change("own_code", "def f(): return 1\nold = f.__code__", "f.__code__ = (lambda: 2).__code__", "f.__code__ = old")
change("function_attribute", "def g(): return g.n\ng.n = 1\ndef f(): return g()", "g.n = 2", "g.n = 1")
change(
    "function_attribute_and_code",
    "def g(): return 1\ng.n = 1\ndef f(): return g.n + g()\nold = g.__code__",
    "g.__code__ = (lambda: 2).__code__",
    "g.__code__ = old",
)
change(
    "function_dict_replaced",
    "def g(): return 1\ng.n = 1\ndef f(): return g() + g.n",
    "g.__dict__ = {'n': 2}",
    "g.__dict__ = {'n': 1}",
)
change("function_name", "def g(): pass\ndef f(): return g.__name__", "g.__name__ = 'h'", "g.__name__ = 'g'")

# -- attributes -------------------------------------------------------------------------------------------------------

OBJECT = "class C:\n  pass\no = C()\no.x = 1\n"
change("instance_attribute", OBJECT + "def f(): return o.x", "o.x = 2", "o.x = 1", unrelated="o.y = 1")
change(
    "instance_attribute_of_an_argument",
    OBJECT + "def f(a): return a.x",
    "o.x = 2",
    "o.x = 1",
    args="o",
    unrelated="o.y = 1",
)
change("instance_attribute_deleted", OBJECT + "def f(): return getattr(o, 'x', 0)", "del o.x", "o.x = 1")
change("instance_attribute_appears", OBJECT + "def f(): return hasattr(o, 'z')", "o.z = 1", "del o.z")
change("instance_attribute_hides_class", "class C: x = 1\no = C()\ndef f(): return o.x", "o.x = 2", "del o.x")
change(
    "missing_attribute_caught",
    OBJECT + "def f():\n  try: return o.z\n  except AttributeError: return 0",
    "o.z = 5",
    "del o.z",
)
change(
    "instance_dict_replaced",
    OBJECT + "def f(): return o.x",
    "old = o.__dict__; o.__dict__ = {'x': 2}",
    "o.__dict__ = old",
)
change("instance_dict_item", OBJECT + "def f(): return o.__dict__['x']", "o.__dict__['x'] = 2", "o.x = 1")
change("vars", OBJECT + "def f(): return sorted(vars(o))", "o.z = 2", "del o.z", unrelated="C.y = 1")
change(
    "class_of_instance",
    OBJECT + "class D(C):\n  kind = 2\nC.kind = 1\ndef f(): return o.kind",
    "o.__class__ = D",
    "o.__class__ = C",
)
change(
    "type_of_instance", OBJECT + "class D(C): pass\ndef f(): return type(o) is C", "o.__class__ = D", "o.__class__ = C"
)
change(
    "dunder_class",
    OBJECT + "class D(C): pass\ndef f(): return o.__class__.__name__",
    "o.__class__ = D",
    "o.__class__ = C",
)
change("class_attribute", "class C: x = 1\ndef f(): return C.x", "C.x = 2", "C.x = 1", unrelated="C.y = 1")
change(
    "class_attribute_of_base",
    "class B: x = 1\nclass C(B): pass\no = C()\ndef f(): return o.x",
    "B.x = 2",
    "B.x = 1",
    unrelated="B.y = 1",
)
change(
    "class_attribute_overridden", "class B: x = 1\nclass C(B): pass\no = C()\ndef f(): return o.x", "C.x = 2", "del C.x"
)
LIST_OF_A_CLASS = "class B: items = [1, [2]]\nclass C(B): pass\no, p = C(), C()\n"
for way in ("B.items", "C.items", "o.items", "p.items", "B.__dict__['items']", "super(C, o).items"):
    for read in ("len(o.items)", "C.items[0]", "[str(x) for x in super(C, p).items]"):
        change(
            f"list_of_a_class_through_{way}_read_by_{read}",
            LIST_OF_A_CLASS + f"def f(): return {read}",
            f"{way}.insert(0, 5)",
            f"{way}.pop(0)",
        )
change(
    "list_in_a_list_of_a_class",
    LIST_OF_A_CLASS + "def f(): return o.items[1][0] + 1",
    "C.items[1][0] = 5",
    "p.items[1][0] = 2",
)
change(
    "list_of_a_class_hidden_by_an_instance",
    LIST_OF_A_CLASS + "def f(): return len(o.items)",
    "o.items = []",
    "del o.items",
    unrelated="p.items = []",
)
change(
    "list_of_a_class_hidden_by_a_subclass",
    LIST_OF_A_CLASS + "def f(): return len(o.items)",
    "C.items = B.items + [3]",
    "del C.items",
)
change(
    "list_of_a_class_that_a_method_reads",
    "class C:\n  seen = [1]\n  def count(self): return len(self.seen)\no = C()\ndef f(): return o.count()",
    "C().seen.append(2)",
    "C.seen.pop()",
)
change("class_name", "class C: pass\ndef f(): return C.__name__", "C.__name__ = 'D'", "C.__name__ = 'C'")
change(
    "method_of_class",
    "class C:\n  def m(self): return 1\no = C()\nold = C.m\ndef f(): return o.m()",
    "C.m = lambda self: 2",
    "C.m = old",
)
change(
    "method_of_base",
    "class B:\n  def m(self): return 1\nclass C(B): pass\no = C()\nold = B.m\ndef f(): return o.m()",
    "B.m = lambda self: 2",
    "B.m = old",
)
change(
    "method_of_instance",
    "class C:\n  def m(self): return 1\no = C()\ndef f(): return o.m()",
    "o.m = lambda: 2",
    "del o.m",
)
change(
    "method_of_fresh_object",
    "class C:\n  def m(self): return 1\nold = C.m\ndef f(): return C().m()",
    "C.m = lambda self: 2",
    "C.m = old",
)
change(
    "class_method",
    "class C:\n  @classmethod\n  def m(cls): return 1\nold = C.__dict__['m']\ndef f(): return C.m()",
    "C.m = classmethod(lambda cls: 2)",
    "C.m = old",
)
change(
    "static_method",
    "class C:\n  @staticmethod\n  def m(): return 1\nold = C.__dict__['m']\ndef f(): return C.m()",
    "C.m = staticmethod(lambda: 2)",
    "C.m = old",
)
change(
    "property",
    "class C:\n  @property\n  def x(self): return 1\no = C()\nold = C.x\ndef f(): return o.x",
    "C.x = property(lambda self: 2)",
    "C.x = old",
)
change(
    "property_reads",
    "class C:\n  @property\n  def x(self): return self.y\no = C()\no.y = 1\ndef f(): return o.x",
    "o.y = 2",
    "o.y = 1",
)
change(
    "slot",
    "class C: __slots__ = ('x', 'y')\no = C()\no.x = 1\ndef f(): return o.x",
    "o.x = 2",
    "o.x = 1",
    unrelated="o.y = 1",
)
change(
    "slot_that_was_unset",
    "class C: __slots__ = ('x',)\no = C()\ndef f():\n  try: return o.x\n  except AttributeError: return 0",
    "o.x = 2",
    "del o.x",
)
change(
    "slot_probed",
    "class C: __slots__ = ('x',)\no = C()\ndef f(): return hasattr(o, 'x'), getattr(o, 'x', 0)",
    "o.x = 2",
    "del o.x",
    eager=None,
)
change(
    "slot_of_base_through_super",
    """
    class B: __slots__ = ('x',)
    class C(B):
        __slots__ = ()
        def get(self): return super().x
    o = C()
    o.x = 1
    def f(): return o.get()
    """,
    "o.x = 2",
    "o.x = 1",
    eager=None,
)
change(
    "module_attribute",
    "import types\nm = types.ModuleType('m')\nm.x = 1\ndef f(): return m.x",
    "m.x = 2",
    "m.x = 1",
    unrelated="m.y = 1",
)
change(
    "module_attribute_appears",
    "import types\nm = types.ModuleType('m')\ndef f(): return hasattr(m, 'x')",
    "m.x = 2",
    "del m.x",
)
change(
    "module_getattr",
    "import types\nm = types.ModuleType('m')\ndef f(): return getattr(m, 'x', 0)",
    "m.__getattr__ = lambda name: 5",
    "del m.__getattr__",
)
change(
    "module_class",
    "import types\nm = types.ModuleType('m')\nm.x = 1\nclass M(types.ModuleType):\n  x = property(lambda self: 2)\ndef f(): return m.x",
    "m.__class__ = M",
    "m.__class__ = types.ModuleType",
)
change(
    "getattr_added",
    OBJECT + "def f(): return getattr(o, 'z', 0)",
    "C.__getattr__ = lambda self, name: 5",
    "del C.__getattr__",
)
change(
    "getattr_replaced",
    "class C:\n  def __getattr__(self, name): return 1\no = C()\nold = C.__getattr__\ndef f(): return o.z",
    "C.__getattr__ = lambda self, name: 5",
    "C.__getattr__ = old",
)
change(
    "getattribute_added",
    OBJECT + "def f(): return o.x",
    "C.__getattribute__ = lambda self, name: 5",
    "del C.__getattribute__",
)
change(
    "descriptor_get_replaced",
    "class D:\n  def __get__(self, o, t): return 1\nclass C: x = D()\no = C()\nold = D.__get__\ndef f(): return o.x",
    "D.__get__ = lambda self, o, t: 2",
    "D.__get__ = old",
)
change(
    "descriptor_get_replaced_for_the_class",
    "class D:\n  def __get__(self, o, t): return 1\nclass C: x = D()\nold = D.__get__\ndef f(): return C.x",
    "D.__get__ = lambda self, o, t: 2",
    "D.__get__ = old",
)
change(
    "descriptor_get_added",
    "class D: pass\nclass C: x = D()\ndef f(): return C.x is None",
    "D.__get__ = lambda self, o, t: None",
    "del D.__get__",
)
change(
    "descriptor_becomes_data",
    "class D:\n  def __get__(self, o, t): return 1\nclass C: x = D()\no = C()\no.x = 5\ndef f(): return o.x",
    "D.__set__ = lambda self, o, v: None",
    "del D.__set__",
)
change(
    "attribute_of_a_bound_method",
    "class C:\n  def m(self): return 1\nC.m.tag = 1\no = C()\ndef f(): return o.m.tag",
    "C.m.tag = 2",
    "C.m.tag = 1",
)
change(
    "metaclass_attribute", "class M(type): x = 1\nclass C(metaclass=M): pass\ndef f(): return C.x", "M.x = 2", "M.x = 1"
)
change(
    "metaclass_property",
    "class M(type):\n  @property\n  def x(cls): return 1\nclass C(metaclass=M): pass\nold = M.x\ndef f(): return C.x",
    "M.x = property(lambda cls: 2)",
    "M.x = old",
)
change(
    "metaclass_assigned",
    "class M(type): pass\nclass N(type):\n  x = property(lambda cls: 2)\nclass C(metaclass=M): x = 1\ndef f(): return C.x",
    "C.__class__ = N",
    "C.__class__ = M",
)
change(
    "super_method",
    "class B:\n  def m(self): return 1\nclass C(B):\n  def m(self): return super().m() + 1\no = C()\nold = B.m\ndef f(): return o.m()",
    "B.m = lambda self: 5",
    "B.m = old",
)
change(
    "super_after_bases",
    "class A:\n  def m(self): return 1\nclass B:\n  def m(self): return 2\nclass C(A):\n  def n(self): return super().m()\no = C()\ndef f(): return o.n()",
    "C.__bases__ = (B,)",
    "C.__bases__ = (A,)",
)
change(
    "bases",
    "class A: x = 1\nclass B: x = 2\nclass C(A): pass\no = C()\ndef f(): return o.x",
    "C.__bases__ = (B,)",
    "C.__bases__ = (A,)",
)
change("attribute_in_a_format_string", OBJECT + "def f(): return '{0.x}'.format(o)", "o.x = 2", "o.x = 1", eager=None)

# -- types ------------------------------------------------------------------------------------------------------------

change(
    "isinstance_after_bases",
    "class A: pass\nclass B: pass\nclass C(A): pass\no = C()\ndef f(): return isinstance(o, A)",
    "C.__bases__ = (B,)",
    "C.__bases__ = (A,)",
)
change(
    "isinstance_after_class",
    OBJECT + "class D: pass\ndef f(): return isinstance(o, C)",
    "o.__class__ = D",
    "o.__class__ = C",
)
change(
    "issubclass_after_bases",
    "class A: pass\nclass B: pass\nclass C(A): pass\ndef f(): return issubclass(C, A)",
    "C.__bases__ = (B,)",
    "C.__bases__ = (A,)",
)
change(
    "abc_registration",
    "import abc\nclass A(abc.ABC): pass\nclass C: pass\no = C()\ndef f(): return isinstance(o, A)",
    "A.register(C)",
    "class A(abc.ABC): pass",
    unrelated="unrelated = 1",
)
change(
    "instancecheck",
    "class M(type):\n  def __instancecheck__(cls, o): return False\nclass A(metaclass=M): pass\nold = M.__instancecheck__\ndef f(): return isinstance(5, A)",
    "M.__instancecheck__ = lambda cls, o: True",
    "M.__instancecheck__ = old",
)
change(
    "instancecheck_in_a_tuple",
    "class M(type):\n  def __instancecheck__(cls, o): return False\nclass A(metaclass=M): pass\nold = M.__instancecheck__\ndef f(): return isinstance(5, (str, A))",
    "M.__instancecheck__ = lambda cls, o: True",
    "M.__instancecheck__ = old",
)
change(
    "instancecheck_added",
    "class M(type): pass\nclass A(metaclass=M): pass\ndef f(): return isinstance(5, A)",
    "M.__instancecheck__ = lambda cls, o: True",
    "del M.__instancecheck__",
)
change(
    "subclasses",
    "class C: pass\ndef f(): return len(C.__subclasses__())",
    "class D(C): pass",
    "del D; import gc; gc.collect()",
    eager=None,
)
change("callable", OBJECT + "def f(): return callable(o)", "C.__call__ = lambda self: 1", "del C.__call__")
change(
    "enum_value",
    "import enum\nclass E(enum.Enum):\n  A = 1\ndef f(): return E.A.value",
    "E.A._value_ = 5",
    "E.A._value_ = 1",
)
change(
    "enum_member",
    "import enum\nclass E(enum.Enum):\n  A = 1\n  B = 2\nchosen = E.A\ndef f(): return chosen is E.A, chosen.name",
    "chosen = E.B",
    "chosen = E.A",
)
change(
    "named_tuple",
    "import collections\nT = collections.namedtuple('T', 'a b')\nt = T(1, 2)\ndef f(): return t.a",
    "t = T(5, 2)",
    "t = T(1, 2)",
)
change(
    "named_tuple_method",
    "import collections\nclass T(collections.namedtuple('T', 'a')):\n  def __bool__(self): return False\nt = T(1)\nold = T.__bool__\ndef f(): return 1 if t else 2",
    "T.__bool__ = lambda self: True",
    "T.__bool__ = old",
)
change(
    "data_class_field",
    "import dataclasses\n@dataclasses.dataclass\nclass D:\n  x: int\nd = D(1)\ndef f(): return d.x, d == D(1)",
    "d.x = 2",
    "d.x = 1",
)
change("generic_alias_argument", "T = int\ndef f(): return isinstance(5, T)", "T = str", "T = int")

CLASSES = "class B: a = 1\nclass C(B): pass\n"
change("class_dict_key", CLASSES + "def f(): return 'b' in B.__dict__", "B.b = 2", "del B.b")
change("class_dict_value", CLASSES + "def f(): return B.__dict__['a'] + 1", "B.a = 2", "B.a = 1")
change("class_dict_get", CLASSES + "def f(): return B.__dict__.get('b', 5)", "B.b = 2", "del B.b")
change("class_dict_of_bases", CLASSES + "def f(): return ['b' in k.__dict__ for k in C.__mro__]", "C.b = 2", "del C.b")
change(
    "class_dict_items",
    CLASSES + "def f(): return sorted(k for k, v in B.__dict__.items() if not k.startswith('_'))",
    "B.b = 2",
    "del B.b",
)


# -- special methods --------------------------------------------------------------------------------------------------

for method, expression, one, two in (
    ("len", "len(o)", "lambda self: 1", "lambda self: 2"),
    ("bool", "1 if o else 2", "lambda self: True", "lambda self: False"),
    ("eq", "o == 5", "lambda self, other: True", "lambda self, other: False"),
    ("ne", "o != 5", "lambda self, other: True", "lambda self, other: False"),
    ("lt", "o < 5", "lambda self, other: True", "lambda self, other: False"),
    ("hash", "hash(o)", "lambda self: 1", "lambda self: 2"),
    ("add", "o + 1", "lambda self, other: 1", "lambda self, other: 2"),
    ("radd", "1 + o", "lambda self, other: 1", "lambda self, other: 2"),
    ("getitem", "o[0]", "lambda self, key: 1", "lambda self, key: 2"),
    ("contains", "3 in o", "lambda self, item: True", "lambda self, item: False"),
    ("iter", "list(o)", "lambda self: iter([1])", "lambda self: iter([2])"),
    ("call", "o()", "lambda self: 1", "lambda self: 2"),
    ("neg", "-o", "lambda self: 1", "lambda self: 2"),
    ("index", "[1, 2, 3][o]", "lambda self: 1", "lambda self: 2"),
    ("int", "int(o)", "lambda self: 1", "lambda self: 2"),
    ("float", "float(o)", "lambda self: 1.0", "lambda self: 2.0"),
    ("str", "str(o)", "lambda self: 'a'", "lambda self: 'b'"),
    ("repr", "repr(o)", "lambda self: 'a'", "lambda self: 'b'"),
    ("format", "f'{o}'", "lambda self, spec: 'a'", "lambda self, spec: 'b'"),
    ("round", "round(o)", "lambda self, n=None: 1", "lambda self, n=None: 2"),
    ("abs", "abs(o)", "lambda self: 1", "lambda self: 2"),
    ("reversed", "list(reversed(o))", "lambda self: iter([1])", "lambda self: iter([2])"),
    ("enter", "enter(o)", "lambda self: 1", "lambda self: 2"),
    ("divmod", "divmod(o, 2)", "lambda self, other: 1", "lambda self, other: 2"),
    ("pow", "o ** 2", "lambda self, other: 1", "lambda self, other: 2"),
    ("getattr", "o.z", "lambda self, name: 1", "lambda self, name: 2"),
):
    source = f"class C:\n  def __exit__(self, *a): pass\ndef enter(o):\n  with o as x: return x\nC.__{method}__ = {one}\no = C()\ndef f(): return {expression}"
    change(
        f"special_{method}_replaced",
        source,
        f"C.__{method}__ = {two}",
        f"C.__{method}__ = {one}",
        unrelated="C.unrelated = 1",
    )
    change(
        f"special_{method}_of_a_fresh_object",
        source.replace("return " + expression, f"o = C(); return {expression}"),
        f"C.__{method}__ = {two}",
        f"C.__{method}__ = {one}",
    )

for method, body, expression, added in (
    ("bool", "pass", "1 if o else 2", "lambda self: False"),
    ("eq", "pass", "o == 5", "lambda self, other: True"),
    ("ne", "pass", "o != 5", "lambda self, other: False"),
    ("iter", "def __getitem__(self, i): return [1, 2][i]", "list(o)", "lambda self: iter([7])"),
    ("contains", "def __getitem__(self, i): return [1, 2][i]", "2 in o", "lambda self, item: False"),
    (
        "reversed",
        "def __getitem__(self, i): return [1, 2][i]\n  def __len__(self): return 2",
        "list(reversed(o))",
        "lambda self: iter([7])",
    ),
    ("format", "def __str__(self): return 'a'", "f'{o}'", "lambda self, spec: 'b'"),
    ("str", "def __repr__(self): return 'a'", "str(o)", "lambda self: 'b'"),
    ("index", "def __int__(self): return 1", "int(o)", None),
    ("radd", "def __add__(self, other): return 1", "o + p", None),
    ("iadd", "def __add__(self, other): return 1", "plus(o)", "lambda self, other: 2"),
    ("getattr", "x = 1", "getattr(o, 'zz', 0)", "lambda self, name: 5"),
    ("length_hint", "def __iter__(self): return iter([1])", "list(o)", None),
    ("float", "def __index__(self): return 1", "float(o)", "lambda self: 2.0"),
    ("setattr", "x = 1", "store(C())", "lambda self, name, value: None"),
    ("class_getitem", "x = 1", "subscript(C)", "classmethod(lambda cls, key: 5)"),
):
    if added is None:
        continue
    source = (
        f"class C:\n  {body}\no = C()\n"
        "def plus(a):\n  a += 1\n  return a\n"
        "def store(a):\n  a.x = 2\n  return a.x\n"
        "def subscript(a):\n  try: return a[0]\n  except TypeError: return 0\n"
        f"def f(): return {expression}"
    )
    change(f"special_{method}_added", source, f"C.__{method}__ = {added}", f"del C.__{method}__")

change(
    "special_of_a_class_in_a_set",
    "class C:\n  def __eq__(self, o): return False\n  def __hash__(self): return 1\nG = {C()}\no = C()\nold = C.__eq__\ndef f(): return o in G",
    "C.__eq__ = lambda self, o: True",
    "C.__eq__ = old",
)
change(
    "special_of_a_class_in_a_frozen_set",
    "class C:\n  def __eq__(self, o): return False\n  def __hash__(self): return 1\nG = frozenset([C()])\no = C()\nold = C.__eq__\ndef f(): return o in G",
    "C.__eq__ = lambda self, o: True",
    "C.__eq__ = old",
)
change(
    "special_of_a_key",
    "class C:\n  def __eq__(self, o): return False\n  def __hash__(self): return hash('a')\nG = {C(): 1}\nold = C.__eq__\ndef f(): return 'a' in G",
    "C.__eq__ = lambda self, o: True",
    "C.__eq__ = old",
    eager=None,
)
change(
    "special_in_a_tuple",
    "class C:\n  def __hash__(self): return 1\nT = (C(),)\nold = C.__hash__\ndef f(): return hash(T)",
    "C.__hash__ = lambda self: 2",
    "C.__hash__ = old",
)
change(
    "special_through_a_generator",
    "class C:\n  def __bool__(self): return False\nG = [C(), C()]\nold = C.__bool__\ndef f(): return any(o for o in G)",
    "C.__bool__ = lambda self: True",
    "C.__bool__ = old",
)
change(
    "special_through_map",
    "class C:\n  def __str__(self): return 'a'\nG = [C()]\nold = C.__str__\ndef f(): return ''.join(map(str, (o for o in G)))",
    "C.__str__ = lambda self: 'b'",
    "C.__str__ = old",
)
change(
    "special_through_sort",
    "class C:\n  def __init__(self, n): self.n = n\n  def __lt__(self, o): return self.n < o.n\na, b = C(1), C(2)\nold = C.__lt__\ndef f():\n  l = [b, a]\n  l.sort()\n  return l[0].n",
    "C.__lt__ = lambda self, o: self.n > o.n",
    "C.__lt__ = old",
)
change(
    "special_missing_added",
    "class D(dict): pass\nd = D()\ndef f():\n  try: return d['k']\n  except KeyError: return 0",
    "D.__missing__ = lambda self, key: 5",
    "del D.__missing__",
)
change(
    "special_contains_of_a_dict",
    "class D(dict): pass\nd = D(a=1)\ndef f(): return 'a' in d",
    "D.__contains__ = lambda self, key: False",
    "del D.__contains__",
)
change(
    "special_getitem_of_a_dict",
    "class D(dict): pass\nd = D(a=1)\ndef f(): return d['a']",
    "D.__getitem__ = lambda self, key: 7",
    "del D.__getitem__",
)
change(
    "special_getitem_of_a_list",
    "class L(list): pass\nl = L([1])\ndef f(): return l[0]",
    "L.__getitem__ = lambda self, key: 7",
    "del L.__getitem__",
)
change(
    "special_repr_of_a_metaclass",
    "class M(type):\n  def __repr__(cls): return 'a'\nclass C(metaclass=M): pass\nold = M.__repr__\ndef f(): return f'{C}'",
    "M.__repr__ = lambda cls: 'b'",
    "M.__repr__ = old",
)
change(
    "special_of_a_base",
    "class B:\n  def __len__(self): return 1\nclass C(B): pass\no = C()\nold = B.__len__\ndef f(): return len(o)",
    "B.__len__ = lambda self: 2",
    "B.__len__ = old",
)
change(
    "special_init",
    "class C:\n  def __init__(self): self.x = 1\nold = C.__init__\ndef f(): return C().x",
    "C.__init__ = lambda self: setattr(self, 'x', 2)",
    "C.__init__ = old",
)
change(
    "special_new_added",
    "class C:\n  x = 1\ndef f(): return C().x",
    "C.__new__ = lambda cls: type('D', (), {'x': 2})()",
    "C.__new__ = object.__new__",
)
change(
    "metaclass_call_added",
    "class M(type): pass\nclass C(metaclass=M):\n  x = 1\nclass D:\n  x = 2\nd = D()\ndef f(): return C().x",
    "M.__call__ = lambda cls: d",
    "del M.__call__",
)

# -- containers -------------------------------------------------------------------------------------------------------

IMPORT = "from collections import OrderedDict, defaultdict\n"
for kind, value, grow, shrink in (
    ("list", "[1, 2]", "G.append(3)", "G.pop()"),
    ("dict", "{1: 1, 2: 2}", "G[3] = 3", "del G[3]"),
    ("set", "{1, 2}", "G.add(3)", "G.remove(3)"),
    ("ordered_dict", "OrderedDict({1: 1, 2: 2})", "G[3] = 3", "del G[3]"),
    ("default_dict", "defaultdict(int, {1: 1, 2: 2})", "G[3] = 3", "del G[3]"),
):
    for what, expression in (
        ("length", "len(G)"),
        ("membership", "3 in G"),
        ("iteration", "[x for x in G]"),
        ("unpacking", "[*G]"),
        ("copy", "sorted(set(G))"),
        ("comparison", f"G == {value}"),
        ("text", "f'{G}'"),
        ("maximum", "max(G)"),
        ("sum", "sum(x for x in G)"),
        ("enumerate", "list(enumerate(G))"),
        ("star_call", "(lambda *a: a)(*G)"),
        ("any", "any(x == 3 for x in G)"),
        ("nested", "[[x] for x in [G]][0][0] == G and len(G)"),
    ):
        change(f"{kind}_{what}", f"{IMPORT}G = {value}\ndef f(): return {expression}", grow, shrink)
    change(
        f"{kind}_truth",
        f"{IMPORT}G = {value}\nkept = G.copy()\ndef f(): return 1 if G else 2",
        "G.clear()",
        "G.extend(kept) if isinstance(G, list) else G.update(kept)",
    )
    change(
        f"{kind}_not",
        f"{IMPORT}G = {value}\nkept = G.copy()\ndef f(): return not G",
        "G.clear()",
        "G.extend(kept) if isinstance(G, list) else G.update(kept)",
    )

change("list_item", "G = [1, 2]\ndef f(): return G[0]", "G[0] = 5", "G[0] = 1")
change("list_order", "G = [1, 2]\ndef f(): return G[0]", "G.reverse()", "G.reverse()")
change("list_slice", "G = [1, 2, 3]\ndef f(): return G[1:]", "G[2] = 5", "G[2] = 3")
change("list_index", "G = [1, 2]\ndef f(): return G.index(2)", "G.insert(0, 0)", "del G[0]")
change("dict_item", "G = {'a': 1}\ndef f(): return G['a']", "G['a'] = 2", "G['a'] = 1", unrelated="G['b'] = 1")
change("dict_get", "G = {'a': 1}\ndef f(): return G.get('b', 0)", "G['b'] = 2", "del G['b']", unrelated="G['c'] = 1")
change("dict_in", "G = {'a': 1}\ndef f(): return 'b' in G", "G['b'] = 2", "del G['b']", unrelated="G['c'] = 1")
for name, read in {"get": "G.get(1, 0)", "in": "1 in G", "try": "G[1]"}.items():
    source = f"import enum, decimal\nE = enum.IntEnum('E', 'A')\nclass S(str): pass\nG = {{'a': 1}}\ndef f():\n  try: return {read}\n  except KeyError: return None"
    change(f"dict_{name}_equal_bool", source, "G[True] = 2", "del G[1]", unrelated="G[2] = 1")
    change(f"dict_{name}_equal_float", source, "G[1.0] = 2", "del G[1]", unrelated="G[1.5] = 1")
    change(f"dict_{name}_equal_enum", source, "G[E.A] = 2", "del G[1]")
    change(f"dict_{name}_equal_decimal", source, "G[decimal.Decimal(1)] = 2", "del G[1]")
    change(f"dict_{name}_equal_text", source.replace("1", "'b'"), "G[S('b')] = 2", "del G['b']")
change("dict_values", "G = {'a': 1}\ndef f(): return sum(G.values())", "G['a'] = 2", "G['a'] = 1")
change("dict_items", "G = {'a': 1}\ndef f(): return [(k, v) for k, v in G.items()]", "G['a'] = 2", "G['a'] = 1")
change("dict_order", "G = {'a': 1, 'b': 2}\ndef f(): return list(G)", "G['a'] = G.pop('a')", "G['b'] = G.pop('b')")
change("dict_merge", "G = {'a': 1}\ndef f(): return {**G, 'c': 3}", "G['b'] = 2", "del G['b']")
change(
    "dict_double_star", "G = {'a': 1}\ndef g(**k): return sorted(k)\ndef f(): return g(**G)", "G['b'] = 2", "del G['b']"
)
change("dict_of_numbers", "G = {1: 'a'}\ndef f(): return G[1]", "G[1] = 'b'", "G[1] = 'a'")
change(
    "ordered_dict_order",
    "import collections\nG = collections.OrderedDict(a=1, b=2)\ndef f(): return list(G)",
    "G.move_to_end('a')",
    "G.move_to_end('b')",
)
change(
    "ordered_dict_first",
    "import collections\nG = collections.OrderedDict(a=1, b=2)\ndef f(): return next(iter(G.items()))",
    "G.move_to_end('a')",
    "G.move_to_end('b')",
)
change("list_class", "class L(list): pass\nG = L([1])\nG.x = 1\ndef f(): return G.x, len(G)", "G.append(2)", "G.pop()")
change("list_class_made_from", "class L(list): pass\nG = [1]\ndef f(): return len(L(G))", "G.append(2)", "G.pop()")
change("dict_class_made_from", "class D(dict): pass\nG = {1: 1}\ndef f(): return len(D(G))", "G[2] = 2", "del G[2]")
change("tuple_class_made_from", "class T(tuple): pass\nG = [1]\ndef f(): return len(T(G))", "G.append(2)", "G.pop()")
change(
    "str_class_made_from",
    "class S(str): pass\nclass C:\n  def __str__(self): return 'a'\no = C()\nold = C.__str__\ndef f(): return S(o) + '!'",
    "C.__str__ = lambda self: 'b'",
    "C.__str__ = old",
)
change(
    "set_class_with_own_iter",
    "class S(set):\n  def __iter__(self): return iter([9])\nG = S([1])\ndef f(): return 1 in G",
    "G.discard(1)",
    "G.add(1)",
)
change(
    "nested_list", "G = [[1], [2]]\ndef f(): return G[1][0]", "G[1][0] = 5", "G[1][0] = 2", unrelated="unrelated = G"
)
change(
    "nested_comparison",
    "G = {'a': [1, {2: (3, [4])}]}\nH = {'a': [1, {2: (3, [4])}]}\ndef f(): return G == H",
    "G['a'][1][2][1].append(5)",
    "G['a'][1][2][1].pop()",
)
change("nested_text", "G = ([1],)\ndef f(): return str(G)", "G[0].append(2)", "G[0].pop()")
change("list_in_a_tuple", "T = (1, [2])\ndef f(): return len(T[1])", "T[1].append(3)", "T[1].pop()")
change(
    "list_through_a_generator",
    "class C: pass\no = C()\no.l = []\nG = [o]\ndef f(): return any(o.l for o in G)",
    "o.l.append(1)",
    "o.l.pop()",
)
change(
    "list_through_a_key",
    "G = {'a': [2], 'b': [1]}\ndef f(): return sorted(['a', 'b'], key=lambda k: G[k])",
    "G['b'][0] = 3",
    "G['b'][0] = 1",
)
change(
    "list_through_a_sum",
    "class C: pass\no = C()\no.l = [1]\nG = [o]\ndef f(): return sum((o.l for o in G), [])",
    "o.l.append(2)",
    "o.l.pop()",
)
change(
    "list_through_filter",
    "G = {'a': [], 'b': [1]}\ndef f(): return list(filter(lambda k: G[k], 'ab'))",
    "G['a'].append(1)",
    "G['a'].pop()",
)
change(
    "mapping_with_keys",
    "class C:\n  def keys(self): return ['a']\n  def __getitem__(self, k): return 1\no = C()\nold = C.keys\ndef f(): return dict(o)",
    "C.keys = lambda self: ['b']",
    "C.keys = old",
    eager=None,
)
change(
    "namespace_comparison",
    "import types\na, b = types.SimpleNamespace(x=1), types.SimpleNamespace(x=1)\ndef f(): return a == b",
    "a.x = 2",
    "a.x = 1",
    eager=None,
)
change(
    "namespace_attribute",
    "import types\na = types.SimpleNamespace(x=1)\ndef f(): return a.x",
    "a.x = 2",
    "a.x = 1",
    unrelated="a.y = 1",
)
change("exception_text", "e = ValueError(1)\ndef f(): return str(e)", "e.args = (2,)", "e.args = (1,)", eager=None)
change(
    "deque",
    "import collections\nG = collections.deque([1])\ndef f(): return len(G)",
    "G.append(2)",
    "G.pop()",
    eager=None,
)
change("bytearray", "G = bytearray(b'a')\ndef f(): return len(G)", "G.append(1)", "G.pop()", eager=None)
change(
    "mapping_proxy",
    "import types\nG = {'a': 1}\nP = types.MappingProxyType(G)\ndef f(): return P['a']",
    "G['a'] = 2",
    "G['a'] = 1",
    eager=None,
)
change(
    "user_dict", "import collections\nG = collections.UserDict(a=1)\ndef f(): return G['a']", "G['a'] = 2", "G['a'] = 1"
)
change(
    "iterated_object",
    "class C:\n  def __init__(self): self.items = [1]\n  def __iter__(self): return iter(self.items)\no = C()\ndef f(): return list(o)",
    "o.items.append(2)",
    "o.items.pop()",
)

# -- other state ------------------------------------------------------------------------------------------------------

change(
    "context_variable",
    "import contextvars\nv = contextvars.ContextVar('v', default=1)\ndef f(): return v.get()",
    "v.set(2)",
    "v.set(1)",
)
change(
    "context_variable_unset",
    "import contextvars\nv = contextvars.ContextVar('v')\ndef f(): return v.get(0)",
    "token = v.set(2)",
    "v.reset(token)",
)
change(
    "recursion_limit",
    "import sys\nold = sys.getrecursionlimit()\ndef f(): return sys.getrecursionlimit() == old",
    "sys.setrecursionlimit(old + 1)",
    "sys.setrecursionlimit(old)",
)
change(
    "import_replaced",
    "import sys, types\nm = types.ModuleType('made_up')\nm.x = 1\nn = types.ModuleType('made_up')\nn.x = 2\nsys.modules['made_up'] = m\ndef f():\n  import made_up\n  return made_up.x",
    "sys.modules['made_up'] = n",
    "sys.modules['made_up'] = m",
)
change(
    "import_from_replaced",
    "import sys, types\nm = types.ModuleType('made_up')\nm.x = 1\nsys.modules['made_up'] = m\ndef f():\n  from made_up import x\n  return x",
    "m.x = 2",
    "m.x = 1",
    unrelated="m.y = 1",
)
change(
    "import_hook",
    "import builtins, math, types\nold = builtins.__import__\nfake = types.SimpleNamespace(pi=3)\ndef f():\n  import math\n  return math.pi",
    "builtins.__import__ = lambda name, *a: fake if name == 'math' else old(name, *a)",
    "builtins.__import__ = old",
)
change(
    "cached_function",
    "import functools\nG = [1]\n@functools.lru_cache\ndef g(): return G[0]\ndef f(): return g()",
    "G[0] = 2; g.cache_clear()",
    "G[0] = 1; g.cache_clear()",
    eager=None,
)
change(
    "lru_cache_that_uses_its_links_again",
    "import functools\nG = [1]\n@functools.lru_cache(maxsize=1)\ndef g(x): return G[0]\ng(1)\ndef f(): return g(1)",
    "G[0] = 2; g(2); g(1)",
    "G[0] = 1; g(2); g(1)",
)
for what, options, call in (
    ("names", "", "g('a', k=1)"),
    ("types", "typed=True", "g('a', k=1)"),
    ("objects", "", "g(C, (f, 2.0))"),
    ("none", "maxsize=2", "g()"),
):
    change(
        f"lru_cache_with_{what}",
        f"import functools\nG = [1]\nclass C: pass\n@functools.lru_cache({options})\ndef g(*a, **k): return G[0]\ndef f(): return {call}",
        "G[0] = 2; g.cache_clear()",
        "G[0] = 1; g.cache_clear()",
        unrelated="g('another')",
    )
COPIED = "import copy\nclass C: pass\no = C()\no.a, o.b = 'text', [1.5]\ndef f(): return dict(vars(copy.deepcopy(o)))"
change("copied_attribute", COPIED, "o.a = 'other'", "o.a = 'text'")
change("copied_item", COPIED, "o.b[0] = 2.5", "o.b[0] = 1.5")
change("copied_attribute_added", COPIED, "o.c = 1", "del o.c")
change(
    "copied_class_gets_a_say",
    COPIED,
    "C.__getstate__ = lambda self: {'a': 0}",
    "del C.__getstate__",
)
change(
    "equal_values_become_one",
    "class C: pass\no = C()\no.a, o.b = 'x y', ' '.join('xy')\nkept = o.b\ndef f(): return o.a is o.b",
    "o.b = o.a",
    "o.b = kept",
)
change(
    "one_value_becomes_two",
    "class C: pass\no = C()\no.a = o.b = 'x y'\ndef f(): return o.a is o.b",
    "o.b = ' '.join('xy')",
    "o.b = o.a",
)
change(
    "partial_keywords",
    "import functools\ndef g(a, b=1): return a + b\np = functools.partial(g, 1, b=2)\ndef f(): return p()",
    "p.keywords['b'] = 5",
    "p.keywords['b'] = 2",
)
change(
    "partial_replaced",
    "import functools\np = functools.partial(max, 1)\ndef f(): return p(2)",
    "p = functools.partial(max, 5)",
    "p = functools.partial(max, 1)",
)
# What is printed, and the name in it.
for what, source, name in (
    ("class", "class C: pass\ndef f(): return f'{C}'", "C.__qualname__"),
    ("module_of_a_class", "class C: pass\ndef f(): return str([C])", "C.__module__"),
    ("object", "class C: pass\no = C()\ndef f(): return repr(o).split(' at')[0]", "C.__qualname__"),
    ("exception", "class C(Exception): pass\ndef f(): return repr(C(1))", "C.__name__"),
    ("function", "def g(): pass\ndef f(): return '%s' % (str(g).split(' at')[0])", "g.__qualname__"),
    ("method", "class C:\n  def m(self): pass\nm = C().m\ndef f(): return f'{m}'.split(' of')[0]", "C.m.__qualname__"),
):
    change(f"{what}_in_a_text", source, f"old = {name}; {name} = 'D'", f"{name} = old")
change(
    "generic_alias_in_a_text",
    "class C: pass\na = list[C]\ndef f(): return str(a)",
    "C.__qualname__ = 'D'",
    "C.__qualname__ = 'C'",
    eager=True,
)
change(
    "partial_in_a_text",
    "import functools\nG = [1]\np = functools.partial(len, G)\ndef f(): return f'{p}'",
    "G.append(1)",
    "G.pop()",
    eager=True,
)

# -- arguments --------------------------------------------------------------------------------------------------------

change("argument_list", "a = [1]\ndef f(x): return len(x)", "a.append(2)", "a.pop()", args="a")
change(
    "argument_dict_order",
    "a = {'x': 1, 'y': 2}\ndef f(x): return list(x)",
    "a['x'] = a.pop('x')",
    "a['y'] = a.pop('y')",
    args="a",
)
change(
    "argument_nested",
    "a = [{'k': (1, [2])}]\ndef f(x): return x[0]['k'][1][0]",
    "a[0]['k'][1][0] = 5",
    "a[0]['k'][1][0] = 2",
    args="a",
)
change("argument_set", "a = {1}\ndef f(x): return len(x)", "a.add(2)", "a.remove(2)", args="a")
change("argument_value", "n = 1\ndef f(x): return x + 1", "n = 2", "n = 1", args="n")
change("argument_type", "n = 1\ndef f(x): return type(x).__name__", "n = True", "n = 1", args="n")
change("argument_zero", "n = 0.0\ndef f(x): return str(x)", "n = -0.0", "n = 0.0", args="n")
change("argument_is_state", "a = b = [1]\ndef f(x): return x is b", "a = [1]", "a = b", args="a", eager=None)
change(
    "arguments_are_one",
    "a, b = [1], [1]\nc = a\ndef f(x, y): return x is y",
    "b = a",
    "b = [1]",
    args="a, b",
    eager=None,
)
change(
    "empty_arguments_are_one", "a, b = [], []\ndef f(x, y): return x is y", "b = a", "b = []", args="a, b", eager=None
)
change("argument_address", "a = b = [1]\ndef f(x): return id(x) == id(b)", "a = [1]", "a = b", args="a", eager=None)
change(
    "argument_operator_is",
    "import operator\na = b = [1]\ndef f(x): return operator.is_(x, b)",
    "a = [1]",
    "a = b",
    args="a",
    eager=None,
)
change(
    "argument_is_a_number",
    "big = int('1000')\na = big\ndef f(x): return x is big",
    "a = int('1000')",
    "a = big",
    args="a",
    eager=None,
)
change(
    "argument_nan",
    "n = float('nan')\nm = n\ndef f(x): return x in [m]",
    "n = float('nan')",
    "n = m",
    args="n",
    eager=None,
)
change(
    "argument_keywords",
    "k = {'a': 1, 'b': 2}\ndef f(**x): return list(x)",
    "k = {'b': 2, 'a': 1}",
    "k = {'a': 1, 'b': 2}",
    args="**k",
)
change("argument_count", "k = (1,)\ndef f(*x): return len(x)", "k = (1, 2)", "k = (1,)", args="*k")
change(
    "argument_also_in_state",
    "G = [1]\na = G\ndef f(x): return G[0] + x[0]",
    "a = [1]; G[0] = 5",
    "G[0] = 1; a = G",
    args="a",
    eager=None,
)
change(
    "argument_also_returned_from_state",
    "G = [1]\na = G\ndef f(x): return G is a, len(x)",
    "a = [1]",
    "a = G",
    args="a",
    eager=None,
)

# -- what C code does with objects of Python classes ------------------------------------------------------------------

EQUALITY = """
class C:
    def __eq__(self, other): return False
    def __hash__(self): return 1
a, b = C(), C()
G = [a, b]
old = C.__eq__
"""
for name, expression in (
    ("a_set_display", "len({a, b})"),
    ("a_dict_display", "len({a: 1, b: 2})"),
    ("a_set_comprehension", "len({x for x in G})"),
    ("a_dict_comprehension", "len({x: 1 for x in G})"),
    ("a_star_in_a_set", "len({*(x for x in G)})"),
    ("a_set_of_a_generator", "len(set(x for x in G))"),
    ("added_to_a_set", "fill(set())"),
    ("stored_in_a_dict", "store({})"),
    ("set_by_default", "(d := {}).setdefault(a, 1) + d.setdefault(b, 2)"),
    ("popped_from_a_dict", "{a: 1}.pop(b, 2)"),
    ("a_dict_that_is_updated", "(d := {}).update([(a, 1), (b, 2)]) or len(d)"),
    ("a_set_that_is_updated", "(s := {1}).update(G) or len(s)"),
    ("unpacked_into_a_set", "len({1, *G})"),
    ("a_set_in_a_tuple", "5 in (G[0], {*G})"),
    ("a_fresh_dict_and_a_number", "1 in {a: 1}"),
    ("dict_from_keys", "len(dict.fromkeys(G))"),
    ("counted", "G.count(5)"),
    ("a_frozen_set", "len(frozenset([a, b]))"),
    ("a_zip", "len(dict(zip(G, 'xy')))"),
    ("in_a_generator", "5 in (x for x in G)"),
    ("unpacked_keywords", "len({**{a: 1}, **{b: 2}})"),
):
    change(
        f"equality_in_{name}",
        EQUALITY
        + "def fill(s):\n  s.add(a)\n  s.add(b)\n  return len(s)\n"
        + "def store(d):\n  d[a] = 1\n  d[b] = 2\n  return len(d)\n"
        + f"def f(): return {expression}",
        "C.__eq__ = lambda self, other: True",
        "C.__eq__ = old",
    )

HOLDER = "class C: pass\no = C()\no.l = [1]\nG = [o]\n"
for name, expression in (
    ("membership", "[1] in (x.l for x in G)"),
    ("minimum", "min([5], *(x.l for x in G))"),
    ("map_and_max", "max(map(lambda x: x.l, G))"),
    ("dict_of_pairs", "dict((x.l + [0])[:2] for x in G)"),
    ("dict_of_older_pairs", "len(list(map(tuple, (x.l for x in G)))[0])"),
    ("sorted_generator", "sorted(x.l for x in G)[0] == [1]"),
    ("joined", "''.join(str(x.l) for x in G)"),
    ("all", "all(len(x.l) == 1 for x in G)"),
    ("enumerate", "[(i, len(l)) for i, l in enumerate(x.l for x in G)]"),
    ("zip", "[len(l) for _, l in zip('a', (x.l for x in G))]"),
    ("reduced", "__import__('functools').reduce(lambda a, b: a + b, (x.l for x in G), [])"),
    ("sentinel", "len([0 for _ in zip(range(3), iter(lambda: o.l, [1]))])"),
    ("starred", "[len(l) for l in [*(x.l for x in G)]]"),
    ("any_of_any", "any(any(y == 2 for y in x.l) for x in G)"),
    ("filter", "len(list(filter(None, (x.l[1:] for x in G))))"),
    ("filter_older", "len(list(filter(lambda l: len(l) > 1, (x.l for x in G))))"),
):
    change(
        f"list_handed_to_c_{name}", HOLDER + f"def f(): return {expression}", "o.l.append(2)", "o.l.pop()", eager=None
    )

change(
    "key_equality_in_a_loop",
    EQUALITY + "def f():\n  d = {}\n  for x in G: d[x] = 1\n  return len(d)",
    "C.__eq__ = lambda self, other: True",
    "C.__eq__ = old",
)
change(
    "thread_local",
    "import threading\nt = threading.local()\nt.x = 1\ndef f(): return t.x",
    "t.x = 2",
    "t.x = 1",
    eager=None,
)
change(
    "thread_local_class",
    "import threading\nclass T(threading.local):\n  x = 1\nt = T()\ndef f(): return t.x",
    "t.x = 2",
    "t.x = 1",
    eager=None,
)
change(
    "order_of_classes",
    "class A: pass\nclass B: pass\nclass C(A, B): pass\ndef f(): return [c.__name__ for c in C.__mro__]",
    "C.__bases__ = (B, A)",
    "C.__bases__ = (A, B)",
)
change(
    "bases_of_a_class",
    "class A: pass\nclass B: pass\nclass C(A): pass\ndef f(): return C.__bases__[0].__name__",
    "C.__bases__ = (B,)",
    "C.__bases__ = (A,)",
)
change(
    "annotations_of_a_function",
    "def g(a: int): pass\ndef f(): return sorted(g.__annotations__)",
    "g.__annotations__['b'] = int",
    "del g.__annotations__['b']",
)
change(
    "annotations_of_a_class",
    "class C: a: int = 1\ndef f(): return sorted(C.__annotations__)",
    "C.__annotations__['b'] = int",
    "del C.__annotations__['b']",
    eager=None,
)
change(
    "single_dispatch",
    "import functools\n@functools.singledispatch\ndef g(x): return 1\ndef f(): return g(5)",
    "g.register(int, lambda x: 2)",
    "g = functools.singledispatch(lambda x: 1)",
    eager=None,
)
change(
    "weak_reference",
    "import weakref\nclass C: pass\no = C()\nr = weakref.ref(o)\ndef f(): return r() is None",
    "del o",
    "o = C(); r = weakref.ref(o)",
)
WEAK = "import weakref\nclass C: x = 1\no = C()\nr = weakref.ref(o)\n"
change("weak_reference_is_followed", WEAK + "def f(): return r().x", "o.x = 2", "del o.x")
change("weak_reference_to_another", WEAK + "def f(): return r().x", "o = C(); o.x = 2; r = weakref.ref(o)", "o.x = 1")
change(
    "weak_reference_in_a_list",
    WEAK + "L = [r]\ndef f(): return [s() is o for s in L]",
    "o = C()",
    "L[0] = weakref.ref(o)",
)
change(
    "weak_reference_to_a_cycle",
    WEAK + "import gc\no.self = o\ndef f(): return r() is None",
    "del o; gc.collect()",
    "o = C(); o.self = o; r = weakref.ref(o)",
)
change(
    "weak_reference_of_a_class_of_its_own",
    WEAK + "class R(weakref.ref): pass\ns = R(o)\ndef f(): return s() is None",
    "R.__call__ = lambda self: None",
    "del R.__call__",
    eager=None,
)
change(
    "weak_dictionary",
    "import weakref\nclass C: pass\no = C()\nw = weakref.WeakValueDictionary(a=o)\ndef f(): return 'a' in w",
    "del o",
    "o = C(); w['a'] = o",
    eager=None,
)
change(
    "chain_map",
    "import collections\na, b = {'x': 1}, {}\nm = collections.ChainMap(b, a)\ndef f(): return m['x']",
    "b['x'] = 2",
    "del b['x']",
)
change(
    "user_list",
    "import collections\nl = collections.UserList([1])\ndef f(): return len(l), l[0]",
    "l.append(2)",
    "l.pop()",
)
change(
    "user_string",
    "import collections\ns = collections.UserString('a')\ndef f(): return s + 'b'",
    "s.data = 'x'",
    "s.data = 'a'",
    eager=None,
)
change(
    "memory_view", "b = bytearray(b'a')\nm = memoryview(b)\ndef f(): return m[0]", "b[0] = 98", "b[0] = 97", eager=None
)
change("array", "import array\na = array.array('i', [1])\ndef f(): return a[0]", "a[0] = 2", "a[0] = 1", eager=None)
change(
    "cell_contents",
    "def outer():\n  x = 1\n  return lambda: x\ng = outer()\nc = g.__closure__[0]\ndef f(): return c.cell_contents",
    "c.cell_contents = 2",
    "c.cell_contents = 1",
    eager=None,
)
change(
    "attribute_of_a_generator_function",
    "def g():\n  yield from G\nG = [1]\ndef f(): return list(g())",
    "G.append(2)",
    "G.pop()",
)
change(
    "proxy",
    "import weakref\nclass C: pass\no = C()\no.x = 1\np = weakref.proxy(o)\ndef f(): return p.x",
    "o.x = 2",
    "o.x = 1",
    eager=None,
)
change(
    "item_getter",
    "import operator\nG = [1]\nget = operator.itemgetter(0)\ndef f(): return get(G)",
    "G[0] = 2",
    "G[0] = 1",
    eager=None,
)
change(
    "attribute_getter",
    "import operator\nclass C: x = 1\nget = operator.attrgetter('x')\ndef f(): return get(C)",
    "C.x = 2",
    "C.x = 1",
    eager=None,
)
change(
    "method_caller",
    "import operator\nG = [1]\nget = operator.methodcaller('count', 1)\ndef f(): return get(G)",
    "G.append(1)",
    "G.pop()",
    eager=None,
)
change(
    "getitem_of_the_list_class", "G = [1]\ndef f(): return list.__getitem__(G, 0), G.__len__()", "G[0] = 2", "G[0] = 1"
)
change("contains_by_name", "G = [1]\ndef f(): return G.__contains__(2)", "G.append(2)", "G.pop()")
change("equality_by_name", "G = [1]\nH = [1]\ndef f(): return G.__eq__(H)", "H.append(2)", "H.pop()")
change("text_by_name", "G = [1]\ndef f(): return G.__repr__()", "G.append(2)", "G.pop()")
change("sorted_views", "G = {'b': 1, 'a': 2}\ndef f(): return sorted(G.items())", "G['a'] = 0", "G['a'] = 2")
change(
    "difference_of_views",
    "G = {'b': 1}\nH = {'b': 1}\ndef f(): return len(G.keys() - H.keys())",
    "G['c'] = 1",
    "del G['c']",
)
change("percent_format", "G = {'a': 1}\ndef f(): return '%(a)s' % G", "G['a'] = 2", "G['a'] = 1")
change("format_map", "G = {'a': 1}\ndef f(): return '{a}'.format_map(G)", "G['a'] = 2", "G['a'] = 1")
change("translate", "G = {97: 'x'}\ndef f(): return 'abc'.translate(G)", "G[98] = 'y'", "del G[98]")
change("joined_list", "G = ['a']\ndef f(): return '-'.join(G)", "G.append('b')", "G.pop()")
change("multiplied", "G = [1]\ndef f(): return G * 2", "G.append(2)", "G.pop()")
change(
    "slice_of_an_object",
    "class C:\n  def __index__(self): return 1\no = C()\nold = C.__index__\ndef f(): return [1, 2, 3][o:]",
    "C.__index__ = lambda self: 2",
    "C.__index__ = old",
)
change(
    "range_of_an_object",
    "class C:\n  def __index__(self): return 1\no = C()\nold = C.__index__\ndef f(): return list(range(o))",
    "C.__index__ = lambda self: 2",
    "C.__index__ = old",
)
change(
    "starred_keywords_of_an_object",
    "class C(dict): pass\nk = C(a=1)\ndef g(**x): return sorted(x)\ndef f(): return g(**k)",
    "k['b'] = 2",
    "del k['b']",
    eager=None,
)

# -- match statements -------------------------------------------------------------------------------------------------

MATCH = "def f():\n  match o:\n"
change(
    "matched_length",
    "o = [1, 2]\n" + MATCH + "    case [a]: return 1\n    case [a, b]: return 2",
    "del o[0]",
    "o.append(2)",
)
change(
    "matched_items",
    "o = [1, 2]\n" + MATCH + "    case [1, x]: return x\n    case _: return 0",
    "o[0] = 5",
    "o[0] = 1",
)
change(
    "matched_key",
    "o = {'k': 'a'}\n" + MATCH + "    case {'k': 'a'}: return 1\n    case _: return 0",
    "o['k'] = 'b'",
    "o['k'] = 'a'",
)
change(
    "matched_key_that_is_missing",
    "o = {'k': 1}\n" + MATCH + "    case {'z': z}: return z\n    case {'k': k}: return k",
    "o['z'] = 7",
    "del o['z']",
)
change(
    "matched_rest",
    "o = {'k': 1, 'l': 2}\n" + MATCH + "    case {'k': _, **rest}: return rest",
    "o['m'] = 3",
    "del o['m']",
)
POINT = "class P:\n  __match_args__ = ('x', 'y')\n  def __init__(self, x, y): self.x, self.y = x, y\n"
change(
    "matched_attribute",
    POINT + "o = P('a', 2)\n" + MATCH + "    case P('a', y): return y\n    case P(): return 'other'",
    "o.x = 'b'",
    "o.x = 'a'",
)
change(
    "matched_positions",
    POINT + "o = P(1, 2)\n" + MATCH + "    case P(x, y): return x, y",
    "P.__match_args__ = ('y', 'x')",
    "P.__match_args__ = ('x', 'y')",
)
change(
    "matched_positions_go_away",
    POINT + "o = P(1, 2)\n" + MATCH + "    case P(x, y): return x, y",
    "del P.__match_args__",
    "P.__match_args__ = ('x', 'y')",
)
change(
    "matched_class_of_an_object",
    "class A: pass\nclass B: pass\no = A()\n" + MATCH + "    case A(): return 1\n    case B(): return 2",
    "o.__class__ = B",
    "o.__class__ = A",
)
change(
    "matched_class_by_name",
    "class A: pass\nclass B: pass\nA2 = A\no = A()\n" + MATCH + "    case A(): return 1\n    case _: return 2",
    "A = B",
    "A = A2",
)
change(
    "matched_attribute_that_is_missing",
    "class A: pass\no = A()\n" + MATCH + "    case A(x=x): return x\n    case A(): return None",
    "o.x = 1",
    "del o.x",
)
change(
    "matched_value",
    "class K: V = 'a'\no = 'a'\n" + MATCH + "    case K.V: return 1\n    case _: return 2",
    "K.V = 'b'",
    "K.V = 'a'",
)
change(
    "matched_instance_check",
    "class M(type):\n  def __instancecheck__(cls, x): return yes\nclass C(metaclass=M): pass\nyes = True\no = 5\n"
    + MATCH
    + "    case C(): return 1\n    case _: return 2",
    "yes = False",
    "yes = True",
)
change(
    "matched_own_length",
    "import collections.abc\nclass S(collections.abc.Sequence):\n  n = 1\n  def __len__(self): return self.n\n"
    "  def __getitem__(self, i): return range(self.n)[i]\no = S()\n"
    + MATCH
    + "    case [x]: return 1\n    case [x, y]: return 2",
    "S.n = 2",
    "S.n = 1",
)
change(
    "matched_own_mapping",
    "import collections.abc\nclass S(collections.abc.Mapping):\n  v = 'a'\n  def __len__(self): return 1\n"
    "  def __iter__(self): return iter('k')\n  def __getitem__(self, i): return self.v\no = S()\n"
    + MATCH
    + "    case {'k': 'a'}: return 1\n    case _: return 2",
    "S.v = 'b'",
    "S.v = 'a'",
)
change(
    "matched_number_that_is_no_number_any_more",
    "class C: pass\no = C()\no.n = 1\ndef f():\n  match o.n:\n    case int(): return 1\n    case [*_]: return 2",
    "o.n = [3]",
    "o.n = 1",
)

# -- names that come and go, imports ----------------------------------------------------------------------------------

change(
    "undefined_global_is_defined", "def f():\n  try: return G\n  except NameError as e: return str(e)", "G = 1", "del G"
)
change(
    "empty_cell_is_filled",
    "def outer():\n  def f():\n    try: return v\n    except NameError as e: return e.name\n"
    "  def fill():\n    nonlocal v\n    v = 1\n  def empty():\n    nonlocal v\n    del v\n"
    "  v = 0\n  del v\n  return f, fill, empty\nf, fill, empty = outer()",
    "fill()",
    "empty()",
)
MODULE = "import sys, types\nm = types.ModuleType('changing_module')\nm.x = 1\nsys.modules['changing_module'] = m\n"
OTHER = "n = types.ModuleType('changing_module')\nn.x = 2\nsys.modules['changing_module'] = n"
BACK = "sys.modules['changing_module'] = m"
change("imported_module", MODULE + "def f():\n  import changing_module as c\n  return c.x", OTHER, BACK)
change("imported_name", MODULE + "def f():\n  from changing_module import x\n  return x + 1", "m.x = 5", "m.x = 1")
change("imported_name_of_another_module", MODULE + "def f():\n  from changing_module import x\n  return x", OTHER, BACK)
change(
    "imported_name_that_is_missing",
    MODULE
    + "def f():\n  try:\n    from changing_module import y\n  except ImportError as e: return e.name\n  return y",
    "m.y = 5",
    "del m.y",
)
change(
    "imported_module_is_none",
    MODULE + "def f():\n  try:\n    import changing_module as c\n  except ImportError: return 0\n  return c.x",
    "sys.modules['changing_module'] = None",
    BACK,
)
change(
    "imported_part_of_a_package",
    "import sys, types\np = types.ModuleType('changing_package')\np.__path__ = []\nsys.modules['changing_package'] = p\n"
    "p.part = types.ModuleType('changing_package.part')\nsys.modules['changing_package.part'] = p.part\np.part.x = 1\n"
    "def f():\n  import changing_package.part\n  from changing_package import part\n  return changing_package.part.x, part.x",
    "p.part.x = 2",
    "p.part.x = 1",
)
change(
    "relative_import",
    "import sys, types\n__package__ = 'changing_package_a'\n"
    "for name in 'ab':\n  p = types.ModuleType('changing_package_' + name)\n  p.__path__ = []\n  p.x = name\n"
    "  sys.modules[p.__name__] = p\ndef f():\n  from . import x\n  return x",
    "__package__ = 'changing_package_b'",
    "__package__ = 'changing_package_a'",
)
change(
    "replaced_import",
    MODULE + "import builtins\nold = builtins.__import__\ndef f():\n  import changing_module as c\n  return c.x",
    "builtins.__import__ = lambda *a: types.SimpleNamespace(x=9)",
    "builtins.__import__ = old",
)
change(
    "groups_of_a_class",
    "class E(ExceptionGroup):\n  def derive(self, found): return ExceptionGroup(text, found)\ntext = 'a'\n"
    "def f():\n  try: raise E('x', [ValueError(1), KeyError(2)])\n  except* ValueError as g: r = g.message\n"
    "  except* KeyError: pass\n  return r",
    "text = 'b'",
    "text = 'a'",
)

# -- what is read and then not used -----------------------------------------------------------------------------------

for name, read, take, put in (
    ("attribute", "o.n", "del o.n", "o.n = 1"),
    ("item", "D['n']", "del D['n']", "D['n'] = 1"),
    ("global", "N", "del N", "N = 1"),
    ("of_a_new_list", "[5, o.n][0]", "del o.n", "o.n = 1"),
):
    change(
        f"unused_{name}",
        f"class C: pass\no = C()\no.n, D, N = 1, {{'n': 1}}, 1\ndef f():\n  {read}\n  return 1",
        take,
        put,
    )
change(
    "unused_cell",
    "def make():\n  n = 1\n  def take():\n    nonlocal n\n    del n\n  def put():\n    nonlocal n\n    n = 1\n"
    "  def f():\n    n\n    return 1\n  return f, take, put\nf, take, put = make()",
    "take()",
    "put()",
)
change(
    "unused_behind_a_cut",
    "import queue\nbox = queue.SimpleQueue()\nclass C: pass\no = C()\no.n = 1\n"
    "def f():\n  for i in (1, 2):\n    box.put(i)\n    o.n\n    box.get()\n  return 1",
    "del o.n",
    "o.n = 1",
)
