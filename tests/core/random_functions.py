"""Writes Python modules at random: functions over shared state that use most of the language, and edits to it."""

from __future__ import annotations

import random
import re
import textwrap

PRELUDE = """
import collections, contextlib, dataclasses, enum, functools, math, queue, random
numbers = random.Random(3)
box = queue.SimpleQueue()  # unknown: it remembers what it was given
log = []
class E(Exception): pass
class C:
  k = 3
  shared = [3, 1]
  def up(self, by): self.n += by; return self.n
  @property
  def double(self): return self.n * 2
  @double.setter
  def double(self, value): self.n = value // 2
  @classmethod
  def of(cls, n):
    made = cls()
    made.n = n
    return made
  @staticmethod
  def twice(x): return x * 2
  def __len__(self): return 2
  def __repr__(self): return f'C{self.n}'
class Sub(C):
  def up(self, by): return super().up(by) + 1
  def __getattr__(self, name):
    if name.startswith('_'): raise AttributeError(name)
    return len(name)
class S:
  __slots__ = ('x', 'y')
  def __init__(self, x, y=0): self.x, self.y = x, y
  def __eq__(self, other): return isinstance(other, S) and self.x == other.x
  def __hash__(self): return hash(self.x)
  def __repr__(self): return f'S{self.x}'
class V:
  def __init__(self, x): self.x = x
  def __repr__(self): return f'V{self.x}'
  def __add__(self, other): return V(self.x + getattr(other, 'x', other))
  def __radd__(self, other): return V(other + self.x)
  def __iadd__(self, other): self.x += getattr(other, 'x', other); return self
  def __bool__(self): return self.x % 2 == 0
  def __getitem__(self, i):
    if i >= 3: raise IndexError(i)
    return self.x + i
  def __contains__(self, x): return x == self.x
  def __lt__(self, other): return self.x < other.x
  def __call__(self, y=1): return self.x * y % 97
  def __iter__(self): yield from (self.x, self.x + 1)
  def __format__(self, spec): return f'V{self.x}{spec}'
class M:
  def __init__(self, tag, hides=()): self.tag, self.hides = tag, hides
  def __enter__(self): log.append(('in', self.tag)); return self.tag
  def __exit__(self, kind, error, traceback):
    log.append(('out', self.tag, kind and kind.__name__))
    return kind is not None and issubclass(kind, self.hides)
@dataclasses.dataclass
class P:
  x: int
  y: int = 2
  def norm(self): return abs(self.x) + abs(self.y)
Pair = collections.namedtuple('Pair', 'left right')
class Hue(enum.Enum): RED, BLUE = 1, 2
@contextlib.contextmanager
def managed(x):
  log.append(x)
  try: yield x + 1
  finally: log.append(-x)
def gen(n, stop=9):
  try:
    for i in range(int(n) % 4):
      got = yield i
      if got: yield got
      if i == stop: return 7
  finally: log.append('end')
def chain(n):
  got = yield from gen(n)
  yield got
def va(*args, k=1, **others): return len(args) * 100 + k + len(others)
def defaults(x, y=[5], *, z=2): y[0] += 1; return x + y[0] + z
def rec(n): return 1 if n < 1 else (n * rec(n - 1)) % 97
def traced(function):
  @functools.wraps(function)
  def inner(*args, **others):
    log.append(function.__name__)
    return function(*args, **others)
  return inner
@traced
def deco(x, y=1): return x - y
def counter():
  n = 0
  def step(by=1):
    nonlocal n
    n += by
    return n
  return step
step = counter()
half = functools.partial(va, 1, k=2)
o, p, w = C(), C(), Sub()
o.n, o.m, p.n, p.m, w.n = 1, 2, 3, 4, 5
I = [4, 5]
o.items, o.other = I, p
L, D, G, Z, Q, K = [1, 2], {'a': 1, 'b': 2}, 5, {1, 2, 3}, [3, 1, 2], {'x': 1}
T = (1, (2, 3), 'abc')
def tail(x):
  box.put(len(x))
  x.append(2)
  return len(x)
def drain():
  out = []
  while not box.empty(): out.append(box.get())
  return out
"""
STATE = "(drain(), vars(o), vars(p), vars(w), L, D, G, Z, Q, K, log, step.__closure__[0].cell_contents, C.k, C.shared)"

# Makes the state what it was, so that guards hold again.
RESTORE = """
vars(o).update(n=1, m=2, items=I, other=p)
vars(p).update(n=3, m=4)
vars(w).update(n=5)
for x in (o, p, w):
  for name in set(vars(x)) - {'n', 'm', 'items', 'other'}: delattr(x, name)
I[:], L[:], Q[:], G = [4, 5], [1, 2], [3, 1, 2], 5
D.clear(), K.clear(), log.clear(), Z.clear()
D.update(a=1, b=2), K.update(x=1), Z.update((1, 2, 3))
C.k = 3
C.shared[:] = [3, 1]
step(-step(0))
"""

START = "t, s, d, e, q = [a, b], 'xy', {'k': c}, {1, 2}, (Q if q is None else q)"

# What stands between < and > is filled in: <number>, <items>, <text> and <test> with expressions, <leaf> with a simple
# number, <few> with simple items, <body> and <loop> with statements, <v> and <w> with new names.
LEAVES = """
a | b | c | a | b | c | o.n | o.m | p.n | o.k | G | D['a'] | D['b'] | L[0] | len(L) | o.double | w.name | o.other.n
T[1][0] | len(s) | len(t) | t[-1] | d['k'] | o.items[0] | C.shared[0] | w.shared[-1] | -3 | -1 | 0 | 1 | 2 | 5 | 9
"""
NUMBERS = """
(<number> + <number>) | (<number> - <number>) | (<number> * <number> % 97) | -<number> | (<number> // 3)
(<number> if <test> else <number>) | [<number>, <number>][0] | (<number>, <number>)[1] | min(<number>, <number>)
abs(<number>) | int(<number> < <number>) | (<number> or <number>) | (<number> and <number>) | len(<text>) | len(<items>)
sum(<items>) | (lambda x, y=<number>: x - y)(<number>) | sum(<v> + a for <v> in <items> if <v> != <number>)
(<v> := <number>) + <v> | max([<v> * 2 % 7 for <v> in <items>], default=<number>)
[<v> for <v> in range(3)][<number> % 3] | {'x': <number>, **d}['x'] | (V(<number>) + <number>).x | V(<number>)(<number>)
Pair(<number>, <number>).right | P(<number>, y=<number>).norm() | va(*t, <number>, k=<number>) | S(<number>).x
getattr(o, 'n', <number>) | getattr(o, 'none', <number>) | step(<number> % 3) | next(iter(<items>), <number>)
C.of(<number>).up(<number>) | C.twice(<number>) | w.up(<number> % 5) | rec(<number> % 5) | half(<number>)
deco(<number>, y=<number>) | math.floor(<number> / 2) | Hue.RED.value + <number> | D.get('q', <number>)
d.setdefault('k', <number>) | list(gen(<number>))[-1:].count(1) | next(gen(<number>), <number>)
"""
FEW = "L | t | [a, b] | (b, c) | o.items | [1, 2, 3] | t[1:] | L[::-1] | T[1] | list(d.values())"
ITEMS = """
[*<few>, <leaf>] | (<leaf>, *<few>) | [<v> + <leaf> for <v> in <few>] | sorted(<few>)
[<v> for <v> in <few> if <v> > <leaf>] | list(map(lambda x: x + <leaf>, <few>)) | tuple(<few>)
sorted({<leaf>, 3} ^ set(<few>)) | list(filter(None, <few>)) | list(reversed(<few>))[:3]
[x for <v> in [<few>] for x in <v>] | list({<v>: 1 for <v> in <few>}) | list(chain(<leaf>))[:-1]
sorted(<few>, key=lambda x: -x) | [i * j for i, j in zip(<few>, range(3))] | [*V(<leaf>)]
"""
TEXTS = """
s | 'ab' | T[2] | s[:1] | str(a) | Hue.BLUE.name | type(o).__name__ | f'{<leaf>}-{s!r}' | f'{<leaf>:>4}'
f'{V(<leaf>):x}' | (s + 'z')[:6] | s.upper() | '%s!' % s | '{}{}'.format(s, <leaf>) | ','.join([s, 'q'])
s.replace('x', 'y') | (s * 2)[:5] | repr(<leaf>) | s[-1:]
"""
TESTS = """
<leaf> < <leaf> | <leaf> == <leaf> | <leaf> % 2 | not <leaf> | <leaf> is not None | <leaf> < <leaf> <= 5
<leaf> in <few> | <leaf> not in e | isinstance(<leaf>, int) | s.startswith('x') | V(<leaf>)
any(x > <leaf> for x in <few>) | all(<few>) | hasattr(o, 'm') | 'a' in D | S(<leaf>) == S(<leaf>)
<leaf> and <leaf> or not a | type(q) is list | o.other is p | bool(L) | <leaf> in V(<leaf>)
"""
TARGETS = "a | b | c | o.n | o.m | p.n | p.z | D['a'] | D['c'] | G | L[-1] | t[0] | d['k'] | o.double | o.other.m"
SIMPLE = """
<target> = <number> | <target> = <number> | <target> += <number> | <target> -= <number> | a, b = <number>, <number>
a = b = <number> | a, *<v> = <items> | (a, b), c = (<number>, 1), <number> | L.append(<number>); del L[6:] | D['a'] = <number>
D['z'] = <number> | o.up(<number>) | c = o.up(1) + <number> | t.append(<number>); del t[6:] | t += [<number>]; t = t[:6]
t[1:] = [<number>] | t[::2] = t[::2] | t.insert(0, <number>); del t[6:] | t.sort() | c = t.pop() + <number>
t.extend(<items>); del t[4:] | t *= 2; del t[5:] | t.reverse() | t = <items>; t = list(t) | e.add(<number>)
e ^= {<number>} | e.discard(<number>) | c = len(e & {<number>, 2}) | Z.add(<number> % 5) | Z ^= {<number> % 5}
d['m'] = <number> | d.update({'n': <number>}) | d.update(n=<number>) | c = d.pop('n', <number>)
d = dict(sorted(d.items())) | D.pop('z', <number>) | D.update({'a': D.pop('a', 1)}) | L[:] = <items>; del L[4:]
L += [<number>]; del L[5:] | del d['k'] | o.items.append(<number>); del o.items[3:] | o.items[0] += <number>
o.items = o.items + [<number>]; del o.items[3:] | q.append(<number>); del q[6:] | q[0] = <number> | c = len(q) | K['x'] = <number>
o.shared.append(<number>); del C.shared[4:] | w.shared[0] = <number>
p.last = (<number>, [b]) | d[<number>] = t | del L[0] | del D['b'] | del o.m | del p.z | del a | del t[:1] | s = <text>
s += <text>; s = s[:9] | b = len(<text>) | log.append(<text>) | box.put(<number>) | box.put([<number>, 'x'])
c = int(numbers.random() * 10) | t = [a]; c = tail(t) + len(t)
u = [b]; x = (u, [a, u]); box.put(u); c = len(x[0]) + x[1][0] | k = C(); k.n = a; r = k.up; box.put(2); c = r(1) + k.n
k = C(); k.n = b; r = k.up; box.put(k); c = r(1) | box.put(abs); c = box.get()(b) if box.qsize() == 1 else 0
c = max([<number>, 2], key=lambda v: -v) | box.put(S(<number>)) | c = [box.put(x) for x in <items>].count(None)
setattr(o, 'm', <number>) | delattr(o, 'm') | x = V(a); x += <number>; b = x.x | c = defaults(<number>)
o.new = <number> | c = defaults(<number>, [1], z=b) | x = S(<number>, b); x.y += 1; c = x.y
x = P(<number>); x.y = b; c = x == P(b) | x = Pair(a, <number>)._replace(left=1); c = x[0]
c = vars(o).get('m', <number>) | C.k = <number> | x = {S(1): <number>, S(1): b}; c = len(x)
c = sorted([V(a), V(<number>)])[0].x | c = dataclasses.replace(P(1), y=<number>).y
c = type('N', (C,), {'n': 4})().double | x = gen(<number>); next(x, 0); c = x.send(5) if a else 0 | step.n = 1
x = list(gen(<number>)); x.extend(chain(b)); c = len(x) | x = (i for i in <items>); a = next(x); b = list(x)[:1] and b
i, x = next(enumerate(<items>, 3)); c = i | c = functools.reduce(lambda x, y: x + y, <items>, <number>)
assert <test>, s
"""
CALLS = """
c = <function>(<number>, c=<number>) | c = <function>(<number>, c=<number>)
c = <function>(*[<number>], **{'b': <number>}) | t.append(<function>(b)); del t[6:] | c = len([<function>(x) for x in (1, 2)])
"""
ERRORS = "ZeroDivisionError | ValueError | (KeyError, E) | Exception | E | LookupError | AttributeError"
RAISES = (
    "a = 10 // <leaf> | raise E(<leaf>) | raise ValueError(a) from None | D[<leaf>] | raise KeyError | o.nope | pass"
)
COMPOUND = r"""
if <test>:\n<body>\nelse:\n<body> | if <test>:\n<body>\nelif <test>:\n b = <number>
for <v> in range(<few_times>):\n<loop> | for <v> in <items>:\n<loop>\nelse:\n c = <number>
<v> = 0\nwhile <v> < <few_times>:\n <v> += 1\n<loop>\nelse:\n b = 1 | for <v>, <w> in d.items():\n<loop>
for <v> in gen(<number>):\n<loop> | for <v> in chain(<number>):\n<loop>
for <v> in L:\n if len(L) < 4: L.append(<v>)\n<loop> | for <v>, <w> in enumerate(<items>):\n<loop>
for <v> in sorted(e):\n<loop> | for <v> in V(<number>):\n<loop> | for a in <items>: break
try:\n<body>\n <raise>\nexcept <error>:\n b = <number>
try:\n<body>\n <raise>\nexcept <error> as error:\n c = len(error.args)\n log.append(str(error))
try:\n<body>\n <raise>\nexcept <error> as x:\n<body>\nelse:\n b = <number>\nfinally:\n c = 1
try:\n<body>\nfinally:\n c = 1 | try:\n<body>\n <raise>\nexcept <error>:\n<body>\n raise
try:\n<body>\n <raise>\nexcept <error> as x:\n raise E(a) from x
try:\n<body>\n <raise>\nexcept <error>:\n log.append('h')\n raise ValueError(b)
try:\n <raise>\nexcept* E as x:\n c = len(x.exceptions) | with M(<number>, (E, KeyError)) as b:\n<body>\n <raise>
with M(1, Exception), M(<number>) as c:\n<body> | with M(1):\n<body>\n <raise>
with managed(<number>) as c:\n<body>\n <raise> | with contextlib.suppress(<error>):\n<body>\n <raise>
with contextlib.ExitStack() as <v>:\n <v>.enter_context(M(<number>))\n<body>
def <v>(x, k=<number>, *r, z=1):\n nonlocal b\n b += x\n return x + k + z + c\nc = <v>(<number>) + <v>(1, 2, z=b)
def <v>(x):\n yield x\n yield from [a, b]\nfor <w> in <v>(<number>):\n<loop>
<v> = [lambda i=i: i + b for i in range(2)]\nc = <v>[1]() + <v>[0](4)
def <v>():\n def deeper():\n  nonlocal a\n  a = <number>\n  return b\n return deeper\nc = <v>()()
class <v>(C):\n z = a\n def up(self, by): return by + b\nc = <v>().up(<number>)
match <subject>:\n case <sequence>: c = <number>\n case <mapping>: a = <number>\n case <other>: b = <leaf>\n case _: c = 9
"""
# The alternatives of a pattern have a bar between them, too.
SUBJECTS = "t | d | (a, b) | o | S(a) | P(a) | s | a | q | Hue.RED | (a, *t)"
SEQUENCES = "[x, *_] | [1, x] | (x, y) | [x]"
MAPPINGS = "{'k': x} | {'k': 3, **y} | C(n=x) | P(x=1) | S() | Hue.RED"
OTHERS = "int(x)|float(x) if x > 2 | str() as x | 1|2|-1 | None | int() | list()"
RESULTS = "a | (a, b, c) | [o.n, c] | (t, s, d) | {'a': a, 'e': e} | S(a, t) | <number>"
ARGUMENTS = " |  |  | 2 | 1, b=4 | c=True | 1, 2, 3, 4 | q=K | q=[3] | z=1 | 2.5 | b=o.n | q=o.items"
EDITS = """
pass | pass | pass | o.n = <value> | o.m = <value> | G = <value> | D['a'] = <value> | L[:] = [<value>, 2] | del L[1:]
C.k = <value> | p.n = <value> | numbers.seed(1) | C.up = lambda self, by: self.n | o.k = <value> | Q.append(<value>)
K['x'] = <value> | K['y'] = K.pop('x', 1) | o.items = [7, 8, 9] | o.items.reverse() | o.other = C.of(9)
g.__defaults__ = (<value>, 3, 4) | h.__code__ = g.__code__ | defaults.__kwdefaults__['z'] = <value>
M.__exit__ = lambda *a: True | V.__bool__ = lambda self: False | C.twice = staticmethod(lambda x: x) | o.__class__ = Sub
T = (<value>, (4, 5), 'x') | D.clear(); D.update(b=1, a=2) | S.__eq__ = lambda x, y: True | step(3) | rec = lambda n: n
C.m = property(lambda self: 6) | half = functools.partial(va, 1, 2) | w.name = 4
P.norm = lambda self: 0 | box = queue.SimpleQueue() | C.shared[:] = [<value>] | o.shared.append(<value>) | Sub.shared.reverse()
"""
VALUES = "0 | 1 | 7 | -2 | 2.5 | True"

TABLES = {
    "leaf": LEAVES,
    "numbers": NUMBERS,
    "few": FEW,
    "items": f"{FEW}\n{ITEMS}\n{ITEMS}",
    "text": TEXTS,
    "test": TESTS,
    "target": TARGETS,
    "simple": SIMPLE,
    "calls": CALLS,
    "error": ERRORS,
    "compound": COMPOUND,
    "subject": SUBJECTS,
    "sequence": SEQUENCES,
    "mapping": MAPPINGS,
    "other": OTHERS,
    "result": RESULTS,
    "arguments": ARGUMENTS,
    "edit": EDITS,
    "value": VALUES,
    "few_times": "0 | 1 | 2 | 3",
    "raise": RAISES,
}
CHOICES = {
    name: [
        choice.strip().replace("\\n", "\n") for line in table.strip("\n").split("\n") for choice in line.split(" | ")
    ]
    for name, table in TABLES.items()
}
BLANK = re.compile("<([a-z_]+)>")


class Maker:
    """Writes a module of functions; `f` is the one that is called."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.functions: list[str] = []
        self.names = 0
        self.depth = 0  # of compound statements
        self.nesting = 0  # of expressions
        self.in_loop = False

    def write(self, kind: str) -> str:
        template = self.rng.choice(CHOICES[kind])
        self.names += 1
        fresh = {"v": f"v{self.names}", "w": f"w{self.names}"}
        return BLANK.sub(lambda blank: fresh.get(blank[1]) or self.fill(blank[1]), template)

    def fill(self, kind: str) -> str:
        if kind == "number":
            return self.number()
        if kind in ("body", "loop"):
            return self.body(self.in_loop or kind == "loop")
        if kind == "function":
            return self.rng.choice(self.functions)
        return self.write(kind)

    def number(self) -> str:
        if self.nesting == 2 or self.rng.random() < 0.3:
            return self.write("leaf")
        self.nesting += 1
        text = self.write("numbers")
        self.nesting -= 1
        return text

    def body(self, in_loop: bool) -> str:
        before, self.in_loop = self.in_loop, in_loop
        self.depth += 1
        text = self.block()
        self.depth -= 1
        self.in_loop = before
        return textwrap.indent(text, " ")

    def statement(self) -> str:
        chance = self.rng.random()
        if chance < 0.35 and self.depth < 2:
            return self.write("compound")
        if chance < 0.4 and self.in_loop:
            return f"if {self.write('test')}: {self.rng.choice(['break', 'continue'])}"
        if chance < 0.42:
            return f"if {self.write('test')}: return {self.number()}"
        return self.write("calls" if chance > 0.94 and self.functions else "simple")

    def block(self) -> str:
        return "\n".join(self.statement() for _ in range(self.rng.randint(1, 4)))

    def function(self, name: str) -> str:
        while True:
            body = f"global G, Z, L\n{START}\n{self.block()}\nreturn {self.write('result')}"
            source = f"def {name}(a=1, b=2, c=3, *rest, q=None, **others):\n" + textwrap.indent(body, " ")
            try:
                compile(source, "<random>", "exec")
            except SyntaxError:  # `:=` does not go everywhere
                continue
            return source

    def module(self) -> str:
        sources = [PRELUDE]
        for name in ("g", "h", "f"):
            sources.append(self.function(name))
            self.functions.append(name)
        return "\n".join(sources)

    def story(self, calls: int) -> list[tuple[str, str]]:
        """What happens before each call, and its arguments: most calls are like the one before."""
        restores = self.rng.random() < 0.8
        usual = self.write("arguments")
        story = []
        for call in range(calls):
            edit = self.write("edit") if call in (2, calls - 2) else "pass"
            arguments = self.write("arguments") if call == calls - 1 else usual
            story.append(((RESTORE if restores else "") + edit, arguments))
        return story
