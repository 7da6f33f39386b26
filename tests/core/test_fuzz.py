"""Random functions over shared state, called again and again with edits in between: plain Python against compiled."""

import os
import random
import textwrap

import pytest

from core import worlds

pytestmark = [
    worlds.needs_capture,
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),  # what is written at random is not always sensible
]

CALLS = 6
PRELUDE = """
import queue, random
numbers = random.Random(3)
box = queue.SimpleQueue()
class C:
  k = 3
  def up(self, by): self.n += by; return self.n
  @property
  def double(self): return self.n * 2
o, p = C(), C()
o.n, o.m, p.n, p.m = 1, 2, 3, 4
L, D, G = [1, 2], {'a': 1, 'b': 2}, 5
def tail(x):
  box.put(len(x))
  x.append(2)
  return len(x)
def drain():
  out = []
  while not box.empty(): out.append(box.get())
  return out
"""
STATE = "(drain(), vars(o), vars(p), L, D, G)"


class Maker:
    """Writes a module of functions; `f` is the one that is called."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.functions: list[str] = []

    def number(self, depth: int = 2) -> str:
        rng = self.rng
        leaves = [
            "a",
            "b",
            "c",
            "o.n",
            "o.m",
            "p.n",
            "o.k",
            "G",
            "D['a']",
            "D['b']",
            "L[0]",
            "len(L)",
            str(rng.randint(-3, 9)),
        ]
        if depth == 0 or rng.random() < 0.3:
            return rng.choice(leaves)
        left, right = self.number(depth - 1), self.number(depth - 1)
        return rng.choice(
            [
                f"({left} + {right})", f"({left} - {right})", f"({left} * {right} % 97)", f"-{left}", f"({left} // 3)",
                f"({left} if {self.test()} else {right})", f"[{left}, {right}][0]", f"({left}, {right})[1]",
                f"min({left}, {right})", f"abs({left})", "o.double", f"int({left} < {right})",
            ]
        )  # fmt: skip

    def test(self) -> str:
        left, right = self.number(0), self.number(0)
        return self.rng.choice(
            [f"{left} < {right}", f"{left} == {right}", f"{left} % 2", f"not {left}", f"{left} is not None"]
        )

    def target(self) -> str:
        return self.rng.choice(["a", "b", "c", "o.n", "o.m", "p.n", "p.z", "D['a']", "D['c']", "G", "L[-1]"])

    def statement(self, depth: int) -> str:
        rng, value = self.rng, self.number()
        simple = [
            f"{self.target()} = {value}", f"{self.target()} = {value}", f"o.n += {value}", f"a, b = {value}, {self.number()}",
            f"L.append({value})", f"D['{rng.choice('abz')}'] = {value}", f"o.up({value})", f"c = o.up(1) + {value}",
            f"box.put({value})", f"box.put([{value}, 'x'])", "c = int(numbers.random() * 10)", f"p.last = ({value}, [b])",
            f"D.pop('z', {value})", "t = [a]; c = tail(t) + len(t)", "u = [b]; w = (u, [a, u]); box.put(u); c = len(w[0]) + w[1][0]",
            "k = C(); k.n = a; r = k.up; box.put(2); c = r(1) + k.n", "k = C(); k.n = b; r = k.up; box.put(k); c = r(1)",
            "box.put(abs); c = box.get()(b) if box.qsize() == 1 else 0", f"t = [{value}]; t.append(b); c = t[0]", f"c = max([{value}, 2], key=lambda v: -v)",
        ]  # fmt: skip
        if self.functions:
            simple += [f"c = {rng.choice(self.functions)}({value}, c={self.number()})"] * 3
        if depth == 0 or rng.random() < 0.65:
            return rng.choice(simple)
        body = textwrap.indent(self.block(depth - 1), "  ")
        return rng.choice(
            [
                f"if {self.test()}:\n{body}\nelse:\n  b = {value}",
                f"for i{depth} in range({rng.randint(0, 3)}):\n{body}",
                f"i{depth} = 0\nwhile i{depth} < {rng.randint(0, 3)}:\n  i{depth} += 1\n{body}",
                f"try:\n{body}\n  a = 10 // {self.number(0)}\nexcept ZeroDivisionError:\n  b = {value}",
                f"try:\n{body}\nfinally:\n  c = 1",
            ]
        )

    def block(self, depth: int) -> str:
        return "\n".join(self.statement(depth) for _ in range(self.rng.randint(1, 4)))

    def function(self, name: str) -> str:
        body = (
            "global G\n" + self.block(2) + f"\nreturn {self.rng.choice(['a', '(a, b, c)', '[o.n, c]', self.number()])}"
        )
        return f"def {name}(a=1, b=2, c=3):\n" + textwrap.indent(body, "  ")

    def module(self) -> str:
        sources = []
        for name in ("g", "h"):
            sources.append(self.function(name))
            self.functions.append(name)
        return "\n".join([PRELUDE, *sources, self.function("f")])

    def edit(self) -> str:
        value = self.rng.choice(["0", "1", "7", "-2", "2.5", "True"])
        return self.rng.choice(
            ["pass", "pass", f"o.n = {value}", f"o.m = {value}", f"G = {value}", f"D['a'] = {value}", f"L[:] = [{value}, 2]",
             "del L[1:]", f"C.k = {value}", f"p.n = {value}", "numbers.seed(1)", "C.up = lambda self, by: self.n"]
        )  # fmt: skip


def play(source: str, edits: list[str], compiled: bool) -> list:
    world = worlds.World(source, compiled)
    story = []
    for step in edits:
        story.append((world.call(), worlds.describe(world.value(STATE))))
        world.run(step)
    return story


COUNT = int(os.environ.get("MAGNETO_FUZZ", "200"))  # more seeds: MAGNETO_FUZZ=5000


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_functions_are_as_in_plain_python(seed):
    maker = Maker(seed)
    source, edits = maker.module(), [maker.edit() for _ in range(CALLS)]
    expected = play(source, edits, compiled=False)
    for leave in (0, 1, 2):
        with worlds.settings(leave_at_cut=leave, capture_attempts=CALLS):
            actual = play(source, edits, compiled=True)
        for call, (was, should_be) in enumerate(zip(actual, expected, strict=True)):
            assert was == should_be, f"seed {seed}, call {call}, leave {leave}\n{source}\n{edits}"
