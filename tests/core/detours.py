"""Functions with places that a watch gives up at, as text: `f` is called. See test_detours.py."""

import sys

# Objects of C types that no program looks into, and all that calls may leave in them.
PRELUDE = """
import array, collections, dataclasses, datetime, decimal, enum, inspect, io, itertools, logging, queue, re, sys
import contextvars, functools, operator, struct, threading, traceback, types, typing, warnings, weakref
LOG = []
class C: pass
o = C()
o.n, o.items = 0, [1, 2]
def tick():
  o.n += 1
  return o.n
dq, box, arr = collections.deque([3, 1, 2]), queue.SimpleQueue(), array.array('i', [1, 2, 3])
match, dec, day, text = re.match('(a)(b)', 'ab'), decimal.Decimal('1.5'), datetime.datetime(2020, 1, 2), io.StringIO()
older = (i * i for i in range(99))
walk = iter(range(99))
ring = itertools.cycle('abc')
def mark(): pass
def same(*a, **k): return a, k
class F:
  def __init__(self, n=0): self.n = n
  def __del__(self): LOG.append(('del', self.n))
class Manager:
  def __enter__(self): LOG.append('in')
  def __exit__(self, *error): LOG.append(('out', error[0]))
def state():
  rest = []
  while not box.empty(): rest.append(box.get())
  return LOG, rest, list(dq), list(arr), text.getvalue(), vars(o), vars(mark)
"""

EXPRESSIONS = {
    "attribute": "match.string",
    "attribute_of_a_date": "day.year + o.n",
    "attribute_of_a_function": "mark.__name__, mark.__kwdefaults__",
    "call": "box.put(o.n)",
    "call_of_a_type": "collections.deque((1, 2), maxlen=1)",
    "call_with_names": "day.replace(year=2000 + tick())",
    "call_with_a_star": "dq.extend(*[[tick()]])",
    "call_with_stars": "day.replace(**{'year': 2000 + tick()})",
    "method": "match.group(1), match.span()",
    "method_that_changes": "dq.append(tick())",
    "method_is_kept": "dq.count",
    "operator": "dec * 2 + tick()",
    "operator_reflected": "2 - dec, 2 ** dec",
    "operator_in_place": "(lambda a: (a := a + arr))(arr)",
    "operator_that_raises": "dec + 'a'",
    "comparison": "dec < 2, day == day, dec != 1.5",
    "comparison_decides": "'small' if dec < 2 else 'big'",
    "comparison_in_a_chain": "1 < dec < 2",
    "comparison_that_raises": "dec < 'a'",
    "subscript": "dq[0], arr[-1], match[1]",
    "subscript_of_a_slice": "arr[1:]",
    "subscript_that_raises": "arr[9]",
    "iteration": "[x for x in dq]",
    "iteration_of_an_older_generator": "next(older), next(walk), next(ring)",
    "truth": "'full' if dq else 'empty', not arr",
    "in": "3 in dq, 9 not in arr",
    "identity": "dq is dq, match is not day, dec is o",
    "unpacking": "[*dq, *arr]",
    "passed_on": "sorted(dq), len(arr), list(arr), sum(dq)",
    "formatted": "f'{dec!r} {day:%Y} {match[0]}'",
    "call_that_raises": "box.get_nowait()",
    "raises_at_times": "box.put(1) if tick() % 3 else box.get_nowait()",
    "gives_up_at_times": "dq.count(1) if tick() % 3 else sys._getframe().f_code.co_name",
    "frame_name": "sys._getframe().f_code.co_name, sys._getframe(1).f_code.co_name",
    "frame_line": "sys._getframe().f_lineno, sys._getframe(1).f_lineno",
    "stack": "[(s.function, s.lineno) for s in inspect.stack(0)[:4]]",
    "stack_as_text": "[s for s in traceback.format_stack() if 'world>' in s]",
    "warning_1": "warnings.warn('w', stacklevel=1)",
    "warning_2": "warnings.warn('w', UserWarning, 2)",
    "warning_3": "warnings.warn('w', stacklevel=3)",
    "log_record": "logging.getLogger('world').warning('n %s', o.n)",
    "evaluated": "eval('o.n + 1')",
    "type_is_made": "type('T', (C,), {'a': 1}).__module__, type('T', (), {}).__qualname__",
    "namedtuple_is_made": "collections.namedtuple('P', 'a b')(1, 2)",
    "enum_is_made": "(lambda e: (e.A, e.__module__, e.__qualname__))(enum.Enum('E', 'A B'))",
    "dataclass_is_made": "(lambda e: (e(1), e.__module__))(dataclasses.make_dataclass('D', ['a']))",
    "type_variable_is_made": "typing.TypeVar('T').__module__",
    "cast": "decimal.Decimal(tick()), str(dec), int(dec)",
}  # fmt: skip

# A place in a function `f`: "EXPR" stands for it.
SHAPES = {
    "outermost": "def f():\n  o.n += 1\n  r = EXPR\n  o.items.append(o.n)\n  return r",
    "two_frames_deep": "def h():\n  r = [EXPR]\n  o.n += 1\n  return r\ndef g(): return h(), o.n\ndef f():\n  x = g()\n  return x, o.n",
    "loop": "def f():\n  r = []\n  for i in range(3):\n    r.append((i, EXPR))\n    o.n += 1\n  return r",
    "generator": "def g():\n  for i in (1, 2):\n    o.n += 1\n    yield EXPR\n  LOG.append('end')\ndef f():\n  r = []\n  for x in g(): r.append(x)\n  return r",
    "with": "def f():\n  with Manager():\n    o.n += 1\n    r = EXPR\n    LOG.append('body')\n  return r",
    "finally": "def f():\n  try:\n    o.n += 1\n    return EXPR\n  finally:\n    LOG.append(o.n)",
    "in_the_finally_clause": "def f():\n  try: o.n += 1\n  finally: LOG.append(EXPR)\n  return o.n",
    "handler": "def f():\n  try: o.items[99]\n  except IndexError as e:\n    r = EXPR, str(e)\n    o.n += 1\n  return r, sys.exc_info()",
    "is_handled": "def g():\n  r = EXPR\n  return r\ndef f():\n  try: return g(), o.n\n  except Exception as e: return type(e), str(e)",
    "comprehension": "def f(): return [(x, EXPR) for x in o.items[:2]], {i: EXPR for i in (1,)}",
    "property": "C.k = property(lambda self: [EXPR])\ndef f(): return o.k, o.n",
    "sort_key": "def f():\n  o.n += 1\n  return sorted([3, 1, 2], key=lambda x: (-x, [EXPR])[0]), o.n",
    "operator_method": "class V:\n  def __add__(self, other): return EXPR, other\nv = V()\ndef f(): return v + o.n",
    "closure": "def f():\n  k = [o.n]\n  def g(): return EXPR, k\n  return g()",
    "argument": "def g(*a, **k): return a, k\ndef f():\n  o.n += 1\n  return g(o.n, EXPR, x=EXPR)",
    "recursion": "def f(n=2):\n  o.n += 1\n  r = [n, EXPR]\n  return r + f(n - 1) if n else r",
}  # fmt: skip

WHOLE = {
    "attribute_is_written": "def f():\n  o.n += 1\n  mark.calls = [o.n]\n  day.year = 3",
    "attribute_of_a_function_is_written": "def f():\n  mark.calls = o.n\n  o.n += 1\n  return mark.calls, vars(mark)",
    "attribute_of_a_function_is_counted": "mark.calls = 0\ndef g():\n  mark.calls += 1\n  return mark.calls\ndef f(): return g(), g()",
    "attribute_of_a_new_function": "def f():\n  def g(a, b=o.n): return a\n  g.x = [o.n]\n  o.n += 1\n  return g(g.x), g.__defaults__, g.__dict__, g.__qualname__, g.__module__",
    "attribute_is_deleted": "def f():\n  mark.x = o.n\n  LOG.append(dict(vars(mark)))\n  del mark.x\n  return o.n",
    "item_is_written": "def f():\n  o.n += 1\n  dq[0] = o.n\n  arr[1] += 1\n  del dq[-1]\n  dq.append(o.n)\n  return o.n",
    "operator_in_place": "def f():\n  global dec\n  dec += tick()\n  dec *= 2\n  return dec",
    "in_place_on_a_deque": "def f():\n  global dq\n  before = dq\n  dq += [tick()]\n  return before is dq, len(dq)",
    "made_inside_and_used": "def f():\n  d = collections.deque([o.n])\n  d.append(tick())\n  d += [3]\n  r = d[0], len(d), list(d), 3 in d, bool(d), d == d, d is dq\n  o.last = d\n  return r, d, o.last is d",
    "stream_made_inside": "def f():\n  s = io.StringIO()\n  s.write('a')\n  s.write(str(tick()))\n  print('x', file=s)\n  return s.getvalue(), s.closed",
    "number_made_inside": "def f():\n  a = decimal.Decimal(tick()) / 4\n  o.total = a + getattr(o, 'total', 0)\n  return a, o.total > 1, -a, abs(a), int(a), round(a, 1), a.as_tuple()",
    "date_made_inside": "def f():\n  d = day + datetime.timedelta(days=tick())\n  return d, d - day, d > day, d.isoformat(), (d - day).days, max(d, day) is d, hash(d) == hash(d)",
    "array_made_inside": "def f():\n  a = array.array('d', [1, tick()])\n  a.append(2)\n  b = memoryview(a)\n  return a[1], a[1:], sum(a), b[0], [x for x in a], a.itemsize",
    "match_made_inside": "def f():\n  m = re.compile('(?P<x>\\\\d+)').search('ab%d' % tick())\n  return m['x'], m.group('x'), m.span(), bool(m), m.re.pattern, m.groupdict()",
    "held_by_attribute": "o.d = collections.deque()\ndef f():\n  o.d.append(tick())\n  if len(o.d) > 3: o.d.popleft()\n  return list(o.d), o.d[0], o.d[0] < 3",
    "older_generator_in_a_loop": "def f():\n  r = []\n  for x in older:\n    r.append(x)\n    if len(r) > tick() % 4: break\n  return r",
    "older_iterator_in_an_attribute": "o.it = iter([[i] for i in range(99)])\ndef f():\n  a = next(o.it)\n  a.append(tick())\n  return a, next(o.it), list(zip(o.it, 'ab'))",
    "older_generator_is_sent_to": "def make():\n  x = 0\n  while True:\n    x += (yield x) or 1\ng = make()\nnext(g)\ndef f():\n  o.n += 1\n  return g.send(o.n), next(g), o.n",
    "older_generator_sees_state": "def make():\n  while True:\n    o.n += 1\n    yield o.n\ng = make()\ndef f():\n  a = o.n\n  b = next(g)\n  o.n += 10\n  return a, b, o.n",
    "class_statement": "def f():\n  k = tick()\n  class D(C):\n    x = k\n    def m(self): return __class__, self.x, k\n  d = D()\n  return D.__module__, D.__qualname__, d.x, d.m()[1:], D.m.__qualname__, D",
    "class_made_by_type": "def f():\n  t = type('T', (C,), {'x': tick()})\n  return t.__module__, t.__qualname__, t().x, issubclass(t, C)",
    "class_made_by_a_metaclass": "class M(type):\n  def __new__(m, *a, **k):\n    c = super().__new__(m, *a, **k)\n    c.from_ = sys._getframe(1).f_code.co_name\n    return c\ndef g(): return M('T', (C,), {'x': tick()})\ndef f():\n  t = g()\n  return t.__module__, t.from_, t.x",
    "class_of_data": "def f():\n  @dataclasses.dataclass\n  class D:\n    a: int = 1\n    b: list = dataclasses.field(default_factory=list)\n  d = D(tick())\n  d.b.append(2)\n  return d, D.__module__, D.__qualname__, d == D(o.n, [2])",
    "class_of_choices": "def f():\n  class E(enum.Enum):\n    A = 1\n    B = tick()\n  return E.A, E.__module__, E.__qualname__, E['A'] is E.A, [e.name for e in E]",
    "named_tuple": "def f():\n  P = collections.namedtuple('P', 'a b')\n  p = P(1, tick())\n  return p, p.b, P.__module__, P.__qualname__, p._replace(a=3), P._fields",
    "named_tuple_by_typing": "def f():\n  P = typing.NamedTuple('P', [('a', int)])\n  class Q(typing.NamedTuple):\n    a: int = 1\n  return P.__module__, P(tick()).a, Q().a, Q.__module__, Q.__qualname__",
    "type_variables": "def g(): return typing.TypeVar('T', bound=int), typing.ParamSpec('P')\ndef f():\n  o.n += 1\n  t, p = g()\n  return t.__module__, t.__bound__, p.__module__, typing.NewType('N', int).__module__",
    "warnings_from_two_depths": "def g(level):\n  o.n += 1\n  warnings.warn(f'w{o.n}', stacklevel=level)\n  return o.n\ndef h(level):\n  a = g(level)\n  return a, g(level)\ndef f():\n  return [h(level) for level in (1, 2, 3)], h(1)",
    "log_records_from_two_depths": "log = logging.getLogger('world')\ndef g(n):\n  log.warning('g %d', n)\n  o.n += 1\ndef h():\n  g(o.n)\n  log.error('h', stacklevel=2)\n  return o.n\ndef f():\n  a = h()\n  log.info('no')\n  log.log(40, 'f')\n  return a",
    "frames_at_several_depths": "def g(n): return sys._getframe(n).f_code.co_name, sys._getframe(n).f_lineno\ndef h(n):\n  o.n += 1\n  return g(n), o.n\ndef f():\n  a = h(0)\n  b = h(1)\n  return a, b, h(2)",
    "frame_is_kept": "def g(): return sys._getframe(1)\ndef f():\n  a, b = tick(), [1]\n  fr = g()\n  b.append(fr.f_locals['a'])\n  return sorted(fr.f_locals), fr.f_locals['b'] is b, fr.f_back.f_code.co_name",
    "locals": "def g():\n  x, y = tick(), [2]\n  r = dict(locals())\n  x = 3\n  return r, sorted(locals())\ndef f(): return g(), list(locals())",
    "dir_and_vars": "def f():\n  x = tick()\n  y = x\n  return dir(), sorted(vars())",
    "text_is_evaluated": "def g(a):\n  b = [a]\n  exec('LOG.append(b); b.append(a)')\n  return eval('a + len(b)'), eval('a', {'a': 9}), b\ndef f(): return g(tick()), g(2)",
    "text_is_executed": "def f():\n  s = {}\n  exec('def k(x): return x + o.n', globals(), s)\n  return s['k'](tick())",
    "super": "class B:\n  def m(self): return 'B', tick()\n  @property\n  def p(self): return o.n\nclass D(B):\n  def __init__(self):\n    super().__init__()\n    self.x = 1\n  def m(self): return super().m(), super().p, dec + 1\nd = D()\ndef f(): return d.m(), D().m()",
    "super_in_a_new_class": "def f():\n  class D(C):\n    def __init__(self): super().__init__(); self.x = tick()\n    def __setattr__(self, n, v): super().__setattr__(n, [v])\n  return D().x",
    "gives_up_by_state": "def g():\n  if o.n % 3 == 2: return sys._getframe(1).f_lineno\n  return dec + o.n\ndef f():\n  o.n += 1\n  return g(), o.n",
    "raises_by_state": "def g():\n  return dq[o.n % 4]\ndef f():\n  o.n += 1\n  return g(), o.n",
    "raises_by_state_and_is_handled": "def g():\n  try: return dq[o.n % 4], dec / (o.n % 3)\n  except (IndexError, ArithmeticError) as e: return type(e), e.__traceback__.tb_lineno\n  finally: LOG.append(o.n)\ndef f():\n  o.n += 1\n  return g(), g(), o.n",
    "two_functions": "def g(): return dec * o.n, mark.__dict__\ndef h(): return day.year, sys._getframe(1).f_lineno\ndef f():\n  o.n += 1\n  a = g()\n  mark.n = o.n\n  b = h()\n  return a, b, g()",
    "recursion": "def g(n):\n  dq.append(n)\n  r = [dec + n, sys._getframe(1).f_code.co_name if n == 1 else None]\n  if n: r.append(g(n - 1))\n  mark.depth = n\n  return r\ndef f(): return g(3), tick()",
    "many_places": "def f():\n  o.n += 1\n  r = []\n" + "".join(f"  mark.a{i} = o.n\n  r.append(dec + {i} if day.year > {i} else match[0])\n" for i in range(20)) + "  return r",
    "many_places_in_many_frames": "".join(f"def g{i}(x):\n  mark.a{i} = x\n  return dec + x\n" for i in range(20)) + "def f():\n  o.n += 1\n  return [" + ", ".join(f"g{i}(o.n)" for i in range(20)) + "]",
    "finaliser_in_the_middle": "def f():\n  a = F(1)\n  o.n += 1\n  mark.x = F(2)\n  LOG.append('a')\n  a = None\n  LOG.append('b')\n  dec + 1\n  mark.x = F(3)\n  LOG.append('c')\n  F(4)\n  day.year\n  LOG.append('d')\n  return o.n",
    "finaliser_of_an_argument": "def g(x):\n  LOG.append('in')\n  y = dec + 1\n  mark.k = 1\n  LOG.append('out')\n  return y\ndef f():\n  r = g(F())\n  LOG.append('back')\n  box.put(F())\n  box.get()\n  LOG.append('end')\n  return r",
    "weak_reference": "def f():\n  c = C()\n  r = weakref.ref(c, lambda _: LOG.append(('dead', o.n)))\n  mark.x = 1\n  o.n += 1\n  alive = r() is c\n  c = None\n  LOG.append('dropped')\n  dec + 1\n  return alive, r()",
    "weak_reference_to_what_a_cut_made": "class D(collections.deque): pass\ndef f():\n  d = D([tick()])\n  r = weakref.ref(d, lambda _: LOG.append('dead'))\n  a = r()[0], d[0]\n  del d\n  LOG.append('dropped')\n  return a, r()",
    "finaliser_of_a_deque": "def f():\n  d = collections.deque([F(), F()])\n  LOG.append(len(d))\n  d.pop()\n  LOG.append('popped')\n  d = 1\n  LOG.append(tick())\n  return d",
    "lambda_that_looks_behind_c": "def f():\n  o.n += 1\n  return sorted([2, 1], key=lambda x: (x, LOG.append(sys._getframe(1).f_lineno))[0]), dec + 1",
    "unknown_class_from_python": "class D(collections.deque):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.made = sys._getframe(1).f_code.co_name\n  def __getitem__(self, i): return super().__getitem__(i), sys._getframe(1).f_lineno\ndef f():\n  d = D([1, tick()])\n  return d.made, d[0], list(d)",
    "descriptor_that_looks": "class P:\n  def __get__(self, obj, owner): return sys._getframe(1).f_code.co_name\n  def __set__(self, obj, value): LOG.append((value, sys._getframe(1).f_lineno))\nC.p = P()\ndef g():\n  o.p = tick()\n  return o.p\ndef f(): return g(), dec + 1",
    "partial": "import functools\np = functools.partial(dq.append, 5)\nq = functools.partial(sys._getframe)\ndef f():\n  p()\n  return q(0).f_code.co_name, q(1).f_code.co_name, tick()",
    "context_of_numbers": "def f():\n  with decimal.localcontext() as c:\n    c.prec = 3\n    r = decimal.Decimal(1) / 3 + tick()\n  return r, decimal.Decimal(1) / 3",
    "handler_of_two": "def f():\n  try:\n    try: dq[tick() + 99]\n    except IndexError as e: raise KeyError(dec + 1) from e\n    finally: LOG.append(sys.exc_info()[0])\n  except KeyError as e:\n    LOG.append(sys.exc_info()[1] is e)\n    raise",
    "generator_leaves": "def g():\n  with Manager():\n    a = yield dec + tick()\n    LOG.append(a)\n    yield sys._getframe(1).f_code.co_name\ndef f():\n  x = g()\n  r = [next(x), x.send(3)]\n  x.close()\n  return r, list(g())",
    "context_manager_of_a_generator": "import contextlib\n@contextlib.contextmanager\ndef m():\n  LOG.append('in')\n  try: yield dec + tick()\n  finally: mark.out = o.n\ndef f():\n  with m() as a, Manager():\n    mark.inside = a\n    b = day.year\n  return a, b",
    "globals_are_written": "def f():\n  global made\n  made = collections.deque([tick()])\n  made.append(2)\n  globals()['other'] = dec + 1\n  return made, other",
    "deep_copies": "import copy\ndef f(): return copy.deepcopy({'d': dq, 'n': [tick(), dec]}), copy.copy(arr)",
    "sorted_by_dates": "days = [day + datetime.timedelta(days=i) for i in (3, 1, 2)]\ndef f(): return sorted(days), min(days), [d.day for d in days if d > days[1]], tick()",
    "dict_of_unknown_keys": "table = {dec: 1, day: 2}\ndef f():\n  table[decimal.Decimal(tick())] = 3\n  return table[dec], day in table, len(table), table.get(decimal.Decimal('1.5'))",
    "coroutine": "async def g(): return dec + tick(), sys._getframe(1).f_code.co_name\ndef f():\n  c = g()\n  try: c.send(None)\n  except StopIteration as e: return e.value",
    "tracebacks": "def g(): raise ValueError(dec + tick())\ndef f():\n  try: g()\n  except ValueError as e: return traceback.format_exc(), [s.name for s in traceback.extract_tb(e.__traceback__)]",
    "identity_of_what_is_made": "def f():\n  a = decimal.Decimal(tick())\n  l = [a]\n  b = +a\n  return l[0] is a, a is b, a == b, [x is a for x in (a, b)], id(a) == id(l[0])",
    "counter_and_default_dict": "count, table = collections.Counter(), collections.defaultdict(list)\ndef f():\n  count['a'] += 1\n  count.update('ab')\n  table[tick() % 2].append(1)\n  return count.most_common(1), dict(table), 'z' in table, collections.OrderedDict(a=1)",
    "temporary_objects_die": "class D(collections.deque):\n  def __del__(self): LOG.append('D')\ndef f():\n  x = D([1]).maxlen\n  LOG.append('a')\n  y = D([2]) + D([3])\n  LOG.append('b')\n  z = D() == D()\n  LOG.append('c')\n  D().append(F(2))\n  LOG.append('d')\n  return tick()",
    "arguments_die": "def f():\n  dq.count(F(1))\n  LOG.append('a')\n  box.put(F(2))\n  LOG.append('b')\n  box.get()\n  LOG.append('c')\n  mark.f = F(tick())\n  LOG.append('d')\n  mark.f = 1",
    "frame_dies_with_an_exception": "def g():\n  x = F(1)\n  return dq[99]\ndef f():\n  try: g()\n  except IndexError: LOG.append('h')\n  LOG.append('after')\n  return tick()",
    "generator_dies": "def g():\n  x = F(1)\n  yield dec + 1\n  LOG.append('never')\ndef f():\n  for y in g(): break\n  LOG.append('left')\n  return y, tick()",
    "handled_exception_is_seen_below": "def h():\n  if dq: return sys.exc_info()[0], traceback.format_exc()\ndef f():\n  try: o.items[99]\n  except IndexError: r = h()\n  return r, tick()",
    "raised_again_below": "def h():\n  if dq: raise\ndef f():\n  try: o.items[99]\n  except IndexError: h()",
    "debugger_begins_below": "def h():\n  if dq: pass\n  def tool(frame, event, arg):\n    if frame.f_code.co_filename == '<world>': LOG.append((event, frame.f_code.co_name, frame.f_lineno))\n    return tool\n  sys.settrace(tool)\ndef g():\n  a = 1\n  return a\ndef f():\n  h()\n  r = g(), tick()\n  sys.settrace(None)\n  return r",
    "recursion_limit": "def h(n=0):\n  if dq: pass\n  try: return h(n + 1)\n  except RecursionError: return n > 200\ndef g(): return h()\ndef f(): return tick(), g()",
    "interrupt": "class K:\n  def __index__(self):\n    if o.n % 2: raise KeyboardInterrupt('k')\n    return 1\nk = K()\ndef g():\n  try: dq.rotate(k)\n  finally: LOG.append(o.n)\ndef f():\n  o.n += 1\n  g()\n  return o.n",
    "state_is_changed_below": "def h():\n  if dq: LOG.append((o.n, list(o.items)))\n  o.n += 5\n  o.items.append(o.n)\ndef f():\n  o.n += 1\n  o.items[0] = a = o.n\n  h()\n  return o.n - a, len(o.items), o.items[-1]",
    "variable_is_changed_below": "def f():\n  x = [o.n]\n  def h():\n    nonlocal x\n    if dq: x = [x, 2]\n    return x\n  a = h()\n  o.n += 1\n  return a, x, a is x",
    "new_object_is_changed_below": "class D:\n  def m(self): return sorted(vars(self))\ndef h(c):\n  for x in dq: setattr(c, f'a{x}', [x])\n  c.__class__ = D\ndef f():\n  c = C()\n  c.z = tick()\n  h(c)\n  return c.m(), c.a1, type(c)",
    "special_methods": "class P:\n  def __iter__(self): return iter(dq)\n  def __len__(self): return len(dq)\n  def __contains__(self, x): return x in dq\n  def __call__(self, x): return dec + x\n  def __hash__(self): return hash(dec)\n  def __eq__(self, x): return dec == 1\n  def __bool__(self): return dq[0] > 1\np = P()\ndef f(): return list(p), len(p), 3 in p, p(tick()), p == 2, not p, [*p], sum(p)",
    "function_that_looks_behind_a_question": "def g():\n  if dq: return sys._getframe(1).f_code.co_name, tick()\ndef f(): return g(), o.n",
    "function_that_warns_behind_a_loop": "def g():\n  for x in dq: warnings.warn('g', stacklevel=2)\ndef f():\n  g()\n  return tick()",
    "module_of_a_named_tuple": "def f(): return collections.namedtuple('P', 'a b').__module__",
    "hook_of_an_attribute": "class P:\n  def __getattr__(self, n): return n, dec + 1, sys._getframe(1).f_code.co_name\np = P()\ndef f(): return p.z, tick()",
    "operator_method_behind_c": "class N:\n  def __radd__(self, other): return sys._getframe(1).f_code.co_name, other\nn = N()\ndef f(): return dec + n, tick()",
    "comparison_behind_c": "class E:\n  def __eq__(self, other):\n    LOG.append(sys._getframe(1).f_code.co_name)\n    return True\ne = E()\ndef f(): return dq.count(e), tick()",
    "callback_behind_c": "def g(x):\n  warnings.warn('key', stacklevel=2)\n  return -x\ndef f(): return max(arr, key=g), tick()",
    "base_of_a_class_statement": "class B:\n  def __init_subclass__(cls): LOG.append(sys._getframe(1).f_code.co_name)\ndef f():\n  class D(B): y = tick()\n  return D.y",
    "warning_of_c": "class X:\n  def __index__(self): return Y(1)\nclass Y(int): pass\nx = X()\ndef f():\n  dq.rotate(x)\n  return tick()",
    "caller_of_a_method": "w = operator.methodcaller('warn', 'm')\ndef f():\n  w(warnings)\n  return tick()",
    "eval_is_passed_on": "def f():\n  x = tick()\n  return list(map(eval, ['x', 'x + 1']))",
    "getframe_is_passed_on": "def g(): return [x.f_code.co_name for x in map(sys._getframe, [0, 1, 2])]\ndef f(): return g(), dec + tick()",
}  # fmt: skip


STEPS = {
    "type_changes": ("def f(): return dec + 1, o.n", ["pass", "pass", "pass", "pass", "dec = 2", "dec = 2.5", "dec = 'a'", "dec = decimal.Decimal(3)"]),
    "function_changes": ("def g(): return dec + 1\ndef f(): return g(), o.n", ["pass"] * 4 + ["g = lambda: 5", "def g(): return dec", "pass", "g.__code__ = (lambda: 7).__code__"]),
    "attribute_decides": ("def g(): return dec + 1\ndef f():\n  r = g()\n  return (r, o.n) if o.n else r", ["o.n = 0"] * 3 + ["o.n = 1", "o.n = 0", "o.n = 'a'", "del o.n", "o.n = 5"]),
    "property_appears": ("def f():\n  mark.x = 1\n  return o.n, dec + 1", ["pass"] * 4 + ["C.n = property(lambda self: 7)", "pass", "del C.n", "pass"]),
    "method_changes": ("class D(collections.deque): pass\nd = D([1])\ndef f():\n  d.append(o.n)\n  return len(d), d[0], list(d)", ["pass"] * 4 + ["D.append = lambda self, x: LOG.append(x)", "pass", "D.__len__ = lambda self: 77", "D.__getitem__ = lambda self, i: i"]),
    "object_is_replaced": ("x = dq\ndef f():\n  x.append(1)\n  return len(x), x[0]", ["pass"] * 4 + ["x = collections.deque([7])", "x = [8]", "x = C()", "x = dq"]),
    "builtin_is_hidden": ("def f():\n  mark.x = 1\n  return len(dq), dec + 1", ["pass"] * 4 + ["len = lambda x: 99", "pass", "del len", "pass"]),
    "list_grows_meanwhile": ("def f():\n  r = [dec + x for x in o.items]\n  mark.n = len(o.items)\n  return r", ["o.items.append(3)", "pass", "pass", "pass", "o.items.append(4)", "o.items.clear()", "o.items[:] = ['a']", "o.items = (1,)"]),
}  # fmt: skip

WRONG = {
    "order_of_deaths": ("a capture that gives up behind an unknown call keeps what the call made", "def g(x):\n  y = F(2)\n  LOG.append('g')\ndef f():\n  g(F(1))\n  LOG.append('back')\n  return tick()"),
}  # fmt: skip
# Functions that are captured in each call, or soon never again.
OPEN = "nothing is learnt while numbers are left open"
SLOW = {
    "frames_and_a_number": (OPEN, "def f():\n  box.put(str(tick()))\n  return sys._getframe().f_lineno"),
    "number_for_a_type": ("a number that a C type is called with is fixed", "def f(): return decimal.Decimal(tick())"),
    "number_in_a_list": ("a number in what is passed to unknown code is fixed", "def f(): box.put([tick()])"),
    "type_with_names": ("where an object was made is not gone around", "def f(): return collections.deque((1, 2), maxlen=1)"),
    "always_raises": ("nothing is learnt from a call that raises", "def f(): return dq[99]"),
    "frames_in_a_property": ("CPython could take over further out", "C.k = property(lambda self: sys._getframe(1).f_lineno)\ndef f(): return o.k, tick()"),
    "frames_in_a_key": ("CPython could take over further out", "def f(): return sorted([2, 1], key=lambda x: sys._getframe(1).f_lineno), tick()"),
}  # fmt: skip

if sys.version_info < (3, 12):  # later ones run such a list in the same frame
    SLOW["number_on_the_stack"] = (OPEN, "def f(): return tick(), [x for x in dq]")

# How to make an object, and an attribute, a method call, an operation, a comparison and a subscript of one called `x`.
OBJECTS = {
    "deque": ("collections.deque([3, 1, o.n])", "x.maxlen", "x.append(o.n)", "x + x", "x == x", "x[0]"),
    "queue": ("queue.SimpleQueue()", "x.put", "x.put([o.n])", "x == 1", "x != None", "x.get_nowait()"),
    "array": ("array.array('i', [1, 2, 3])", "x.typecode", "x.append(o.n)", "x * 2", "x < x", "x[1:]"),
    "match": ("re.match('(a)(?P<b>b)', 'ab')", "x.string", "x.group('b')", "x + 1", "x < 1", "x['b']"),
    "number": ("decimal.Decimal('1.5')", "x.real", "x.quantize(x)", "x ** 2 - o.n", "x < 2 <= o.n", "x[0]"),
    "date": ("datetime.datetime(2020, 1, 2)", "x.year", "x.isoformat()", "x - x", "x >= x", "x[0]"),
    "stream": ("io.StringIO('ab\\ncd')", "x.closed", "x.write(str(o.n))", "x % 2", "x == x", "x.read()"),
    "generator": ("(i * i for i in range(99))", "x.gi_running", "x.send(None)", "x @ x", "x is None", "next(x)"),
    "iterator": ("iter([5, [6], 7, 8])", "x.__length_hint__()", "x.__next__()", "x + [1]", "x == x", "list(x)[:1]"),
    "context_variable": ("contextvars.ContextVar('v', default=0)", "x.name", "x.set(o.n)", "x - 1", "x == 1", "x.get()"),
    "local_of_a_thread": ("threading.local()", "x.missing", "setattr(x, 'a', o.n)", "x + x", "x == x", "vars(x)"),
    "memory": ("memoryview(b'abc')", "x.nbytes", "x.tobytes()", "x + b'd'", "x == b'abc'", "x[0]"),
    "bytes": ("bytearray(b'ab')", "x.nope", "x.append(99)", "x + b'c'", "x < b'b'", "x[-1]"),
    "mapping": ("types.MappingProxyType({'a': 1})", "x.keys()", "x.get('a')", "x | {'b': o.n}", "x == {'a': 1}", "x['a']"),
    "cache": ("functools.lru_cache(lambda a: [a])", "x.__wrapped__(1)", "x.cache_info()", "x + 1", "x == x", "x(o.n % 2)"),
    "struct": ("struct.Struct('<ih')", "x.size", "x.pack(o.n, 2)", "x * 2", "x == x", "x.unpack(b'abcdef')"),
}  # fmt: skip
USES = {
    "attribute": "r = ATTRIBUTE", "method": "r = METHOD", "operation": "r = OPERATION", "comparison": "r = COMPARISON",
    "subscript": "r = SUBSCRIPT", "iteration": "r = [y for y, z in zip(x, 'ab')]", "loop": "for r in x: break",
    "truth": "r = 1 if x else 2", "not": "r = not x", "in": "r = 5 in x", "item_is_set": "x[0] = 1\nr = 1",
    "attribute_is_set": "x.a = o.n\nr = x.a", "identity": "r = x is x, x is None, [x][0] is x", "type": "r = type(x).__name__, isinstance(x, C)",
    "passed_on": "r = same(x, k=x)", "returned": "r = x", "stored": "o.x = x\nr = o.x is x\ndel o.x", "logged": "LOG.append(repr(type(x)))\nr = len(LOG)",
    "in_place": "y = x\ny += x\nr = y is x", "length": "r = len(x)", "key": "r = {x: 1}[x]", "with": "with x as y: r = y is x", "unpacked": "a, *b = x\nr = a",
    "all": "r = []\nr.append(METHOD)\nr.append(ATTRIBUTE)\nr.append(COMPARISON)\no.n += 1\nr.append(SUBSCRIPT)",
}  # fmt: skip
SOURCES = {
    "global": "x = MAKE\ndef f():\n    o.n += 1\nUSE\n    return r, o.n",
    "argument": "x_ = MAKE\ndef h(x):\nUSE\n    return r\ndef f(): return h(x_), tick()",
    "attribute": "o2 = C()\no2.x = MAKE\ndef f():\n    x = o2.x\n    o.n += 1\nUSE\n    return r, o.n",
    "made_inside": "def f():\n    x = MAKE\n    o.n += 1\nUSE\n    return r, o.n",
    "handled": "x_ = MAKE\ndef f():\n  x = x_\n  try:\nUSE\n  except Exception as e: r = type(e), str(e), e.__traceback__.tb_lineno\n  finally: LOG.append(o.n)\n  o.n += 1\n  return r, o.n",
}  # fmt: skip
