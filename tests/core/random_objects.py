"""Functions, written at random, that work with objects which unknown code meddles with in between."""

import random

WORLD = """
class Node:
  def __init__(self, n=1, child=None):
    self.n, self.x, self.text = n, n / 2, 'text'
    self.items, self.table, self.pair, self.child = [n, 'b', [n]], {'a': n, 'b': [2]}, (n, [3]), child
class Named(dict):
  pass
state = Node(5, Node(6))
deeds = []
def meddle(a, b):
  return deeds.pop(0)(a, b) if deeds else None
def deed(function):
  deeds.append(function)
"""
PARTS = [".n", ".x", ".text", ".items", ".items[0]", ".items[2]", ".items[2][0]", ".table", ".table['a']"]
PARTS += [".table['b']", ".table['b'][0]", ".pair", ".pair[0]", ".pair[1]", ".child", ".child.n", ".child.items"]
LISTS = [".items", ".items[2]", ".table['b']", ".pair[1]", ".child.items"]
DEEDS = [
    "None",
    "a.items",
    "(a, b)",
    "[a.items, b, 3]",
    "{'a': a, 'b': [1]}",
    "Node(7, Node())",
    "Node(7, a)",
    "Named(a=a.items)",
    "state",
    "state.items",
    "a.n",
    "setattr(a, 'n', a.n + 1)",
    "setattr(a, 'x', 'a text')",
    "setattr(a, 'items', list(a.items))",
    "setattr(a, 'items', b.items)",
    "setattr(a, 'items', state.items)",
    "setattr(state, 'items', a.items)",
    "setattr(state, 'child', a)",
    "setattr(a, 'table', dict(a.table))",
    "setattr(a, 'child', b)",
    "setattr(a, 'child', Node(8, Node()))",
    "setattr(a, 'child', state)",
    "setattr(a, 'more', 3)",
    "delattr(a, 'text')",
    "setattr(a, 'pair', (a.n, a.items))",
    "a.items.append(a.n)",
    "a.items[2].clear()",
    "a.items.__setitem__(0, b)",
    "a.items.__setitem__(2, a.items[2][:])",
    "a.table.__setitem__('a', a.table['a'] + 1)",
    "a.table.update(b=a.items)",
    "a.table.__setitem__('c', 1)",
    "b.table.clear()",
    "a.__dict__.update(vars(b))",
]
ARGUMENTS = [
    "Node(1, Node()), Node(2, Node(3))",
    "Node(1, Node()), Node(2, Node(3))",
    "Node(1, Node(4)), Node(2, Node(3))",
    "*(lambda n: (n, n))(Node(1, Node()))",
    "*(lambda n: (Node(1, n), n))(Node(2, Node()))",
    "state, Node(2, Node())",
    "Node(2, state), state.child",
]


class Maker:
    world, deeds = WORLD, DEEDS
    first_lines, result = ("out = []",), "out, a, b"

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["a", "b"]

    def pick(self, choices):
        return self.random.choice(choices)

    def node(self) -> str:
        return self.pick(["a", "a", "a", "b", "b", "state"])

    def value(self) -> str:
        kind = self.random.random()
        if kind < 0.2:
            return self.pick(["1", "2.5", "'new'", "[1, 2]", "{'a': 1}", "(1, [2])", "Node(9)", "None"])
        if kind < 0.35:
            return f"[{self.node()}, {self.node()}{self.pick(PARTS)}]"
        return self.node() + self.pick(PARTS) if kind < 0.85 else self.pick(self.names)

    def meddling(self) -> list[str]:
        call = f"meddle({self.pick(['a', 'b'])}, {self.pick(['a', 'b'])})"
        if self.random.random() < 0.3:
            return [call]
        name = f"v{len(self.names)}"
        self.names.append(name)
        uses = [
            f"if isinstance({name}, Node): out.append({name}{self.pick(PARTS)})",
            f"elif isinstance({name}, (list, tuple)): out.append({name}[0])",
            f"elif isinstance({name}, dict): {name}['a'] = {name}.get('a'), {name}",
        ]
        return [f"{name} = {call}", *(uses if self.random.random() < 0.8 else [])]

    def statement(self) -> list[str]:
        kind = self.random.random()
        if kind < 0.1:
            return [f"{self.node()}{self.pick(['.n', '.x', '.items', '.child', '.new'])} = {self.value()}"]
        if kind < 0.25:
            return [f"{self.node()}{self.pick(LISTS)}{self.pick(['.append({})', '[0] = {}']).format(self.value())}"]
        if kind < 0.35:
            return [f"{self.node()}.table[{self.pick(['a', 'new'])!r}] = {self.value()}"]
        if kind < 0.4:
            return [f"{self.node()}.n += 1"]
        if kind < 0.45:
            return [f"out.append({self.node()}{self.pick(LISTS)} is {self.node()}{self.pick(LISTS)})"]
        if kind < 0.6:
            return [f"for e in {self.node()}{self.pick(LISTS)}:", "  out.append(e)"]
        if kind < 0.7:
            question = self.pick([".n == 1", ".items", ".table", ".text", ".x == 2"])
            return [f"if {self.node()}{question}:", *("  " + line for line in self.statement())]
        return [f"out.append({self.value()})"]

    def lines(self) -> list[str]:
        return self.meddling() if self.random.random() < 0.3 else self.statement()

    def source(self) -> str:
        lines = [*self.first_lines, *(line for _ in range(self.random.randint(4, 10)) for line in self.lines())]
        return self.world + "def f(a, b):\n" + "".join(f"  {line}\n" for line in [*lines, f"return {self.result}"])

    def story(self, count: int) -> list[tuple[list[str], str]]:
        """Mostly the same, so that programs are found again, and then not."""
        usual, arguments = [self.pick(self.deeds) for _ in range(6)], self.pick(ARGUMENTS)
        calls = []
        for _ in range(count):
            deeds = [deed if self.random.random() < 0.9 else self.pick(self.deeds) for deed in usual]
            calls.append((deeds, arguments if self.random.random() < 0.8 else self.pick(ARGUMENTS)))
        return calls
