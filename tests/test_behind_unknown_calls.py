"""Objects with tensors behind unknown calls: they are looked into again, whatever was done to them."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

import magneto
import magneto.testing
import pytest
import torch
from core import random_objects
from torch import Tensor, nn
from zoo import compare, harness

pytestmark = pytest.mark.usefixtures("fresh")

CALLS = 8
layer = nn.Linear(4, 4)


class Box:
    """What unknown code works with."""

    def __init__(self) -> None:
        self.turn = itertools.count()
        self.kept: Any = None


@dataclasses.dataclass
class Result:
    loss: Tensor
    parts: list[Tensor]
    scale: float = 2.0
    names: tuple[str, ...] = ("a", "b")


class Cache:
    def __init__(self, start: float) -> None:
        self.keys = torch.full((2, 4), start)
        self.length = 2
        self.layers = [torch.full((2, 4), start + i) for i in range(2)]


def numbers(turn: int, rows: int = 2) -> Tensor:
    return torch.arange(rows * 4.0).reshape(rows, 4) + turn


def parts_of(value: Any) -> Any:
    if isinstance(value, (Cache, Box, Result)):
        return {name: parts_of(part) for name, part in vars(value).items() if name != "turn"}
    if isinstance(value, dict):
        return {key: parts_of(part) for key, part in value.items()}
    return [parts_of(part) for part in value] if isinstance(value, (list, tuple)) else value


def check(
    function: Callable[..., Any],
    make: Callable[[int], tuple[Any, ...]],
    unknown: Callable[..., Any],
    captures: int | None = 1,
    calls: int = CALLS,
) -> None:
    """`function(unknown, box, *arguments)`, again and again: `box` is what is left of earlier calls."""

    def story(run: Callable[..., Any]) -> list[Any]:
        box, found = Box(), []
        hidden = magneto.disable(unknown)
        for turn in range(calls):
            arguments = make(turn)
            result = run(hidden, box, *arguments)
            found.append((parts_of(result), parts_of(arguments), parts_of(box)))
        return found

    expected = story(function)
    compiled = magneto.compile(function)
    assert compare.difference(expected, story(compiled)) is None
    if captures is not None:
        stats = magneto.counters["stats"]
        assert stats["captures"] <= captures, compiled.misses()
        assert not stats.get("exits")


# ---- what stays as it was


def batch(turn: int) -> tuple[Any, ...]:
    return ({"x": numbers(turn), "labels": numbers(turn + 1), "name": "train"},)


def test_a_batch_behind_a_clock() -> None:
    def step(unknown: Any, box: Box, batch: dict[str, Any]) -> Any:
        y = layer(batch["x"])
        time.perf_counter()
        loss = (y - batch["labels"]).square().mean()
        time.perf_counter()
        return loss + batch["x"].sum(), batch["name"]

    check(step, batch, lambda: None)


def test_a_batch_whose_size_changes() -> None:
    def step(unknown: Any, box: Box, batch: dict[str, Any]) -> Any:
        y = layer(batch["x"]) * batch["x"].shape[0]
        unknown()
        return (y - batch["labels"]).square().mean()

    def make(turn: int) -> tuple[Any, ...]:
        rows = (2, 2, 3, 5, 7, 4, 2, 6)[turn]
        return ({"x": numbers(turn, rows), "labels": numbers(turn + 1, rows)},)

    check(step, make, lambda: None, captures=2)


def test_a_cache_that_the_call_fills() -> None:
    def step(unknown: Any, box: Box, cache: Cache, x: Tensor) -> Any:
        cache.keys = torch.cat([cache.keys, x])
        cache.length += 2
        unknown(cache)
        for i, part in enumerate(cache.layers):
            cache.layers[i] = part + x
        return cache.keys.sum() * cache.length, cache.layers[0] + 1

    check(step, lambda turn: (Cache(turn), numbers(turn)), lambda cache: None, captures=2)


@pytest.mark.parametrize(
    "make_result",
    [
        lambda y: Result(y.sum(), [y, y * 2]),
        lambda y: [y.sum(), [y, y * 2], 2],
        lambda y: {"loss": y.sum(), "parts": (y, y * 2)},
        lambda y: (y.sum(), {"parts": [y * 3]}, "text"),
    ],
)
def test_what_an_unknown_function_returns(make_result: Callable[[Tensor], Any]) -> None:
    def step(unknown: Any, box: Box, x: Tensor) -> Any:
        found = unknown(layer(x))
        if isinstance(found, Result):
            return found.loss + found.parts[1].sum() * found.scale, found.names
        if isinstance(found, dict):
            return found["loss"] * 2 + found["parts"][0].sum()
        return found[0] * 2, found[1]

    check(step, lambda turn: (numbers(turn),), make_result, captures=4)


def test_what_the_call_made_and_passed_on() -> None:
    def step(unknown: Any, box: Box, x: Tensor) -> Any:
        parts, table = [x + 1, x + 2], {"x": x * 2}
        unknown(parts, table)
        parts.append(table["x"] + parts[0])
        return parts, table

    check(step, lambda turn: (numbers(turn),), lambda parts, table: None)


def test_questions_behind_unknown_calls() -> None:
    """What was looked into before a question is looked into again behind it, with what was not."""

    def step(unknown: Any, box: Box, batch: dict[str, Any], cache: Cache) -> Any:
        y = layer(batch["x"])
        found = unknown(y)
        pair = found.parts, cache
        y = y + batch["labels"] * cache.length
        if y.sum().item() > 1e9:
            return None
        cache.length += 1
        y = y * found.scale + pair[0][1] + pair[1].keys
        if y.sum().item() > 1e9:
            return None
        cache.keys = y
        return y + batch["x"] * cache.length, found.parts, pair[1].layers[0]

    def make(turn: int) -> tuple[Any, ...]:
        return (*batch(turn), Cache(turn))

    check(step, make, lambda y: Result(y.sum(), [y, y * 2]), captures=3)


def test_training_with_a_batch() -> None:
    def story(wrap: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch: dict[str, Any]) -> Tensor:
            optimizer.zero_grad()
            y = model(batch["x"])
            time.perf_counter()
            loss = (y - batch["labels"]).square().mean()
            loss.backward()
            optimizer.step()
            time.perf_counter()
            return loss.detach() + batch["x"].mean()

        run = wrap(step)
        return [run(*batch(turn)) for turn in range(CALLS)], list(model.parameters())

    with torch.enable_grad():
        assert compare.difference(story(lambda step: step), story(magneto.compile)) is None
    assert magneto.counters["stats"]["hits"] >= CALLS - 3


# ---- what unknown code changes


def swap(box: Box, batch: dict[str, Any]) -> None:
    if next(box.turn) % 3 == 2:
        batch["x"], batch["labels"] = batch["labels"], batch["x"]


def share(box: Box, batch: dict[str, Any]) -> None:
    if next(box.turn) % 3 == 2:
        batch["labels"] = batch["x"]


def view(box: Box, batch: dict[str, Any]) -> None:
    if next(box.turn) % 3 == 2:
        batch["labels"] = batch["x"][:]


def replace(box: Box, batch: dict[str, Any]) -> None:
    batch["labels"] = torch.full((2, 4), float(next(box.turn)))


def other_kind(box: Box, batch: dict[str, Any]) -> None:
    if next(box.turn) % 3 == 2:
        batch["labels"] = batch["labels"].double()


def other_object(box: Box, batch: dict[str, Any]) -> None:
    if next(box.turn) % 3 == 2:
        batch["labels"] = 3.0


def remember(box: Box, batch: dict[str, Any]) -> None:
    if box.kept is not None and next(box.turn) % 2:
        batch["labels"] = box.kept["labels"]
    box.kept = batch


def forget(box: Box, batch: dict[str, Any]) -> None:
    if next(box.turn) % 3 == 2:
        del batch["labels"]
        batch["labels"] = numbers(99)


def write(box: Box, batch: dict[str, Any]) -> None:
    batch["labels"].mul_(next(box.turn))


DEEDS = [swap, share, view, replace, other_kind, other_object, remember, forget, write]


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("writes", [False, True])
def test_a_batch_that_unknown_code_changes(deed: Callable[..., None], writes: bool) -> None:
    def step(unknown: Any, box: Box, batch: dict[str, Any]) -> Any:
        y = layer(batch["x"]) * 2
        unknown(box, batch)
        if writes:
            batch["x"].add_(1)
        loss = (y - batch["labels"] * 3).sum() + batch["x"].sum()
        batch["y"] = loss
        return loss, batch

    with torch.no_grad():
        check(step, batch, deed, captures=None)


@pytest.mark.parametrize("deed", DEEDS)
def test_tensors_keep_their_identity(deed: Callable[..., None]) -> None:
    def step(unknown: Any, box: Box, batch: dict[str, Any]) -> Any:
        x, labels = batch["x"], batch["labels"]
        y = x + 1
        unknown(box, batch)
        same = x is batch["x"], labels is batch["labels"], batch["x"] is batch["labels"]
        return y + batch["x"], same, [batch["labels"], x, batch["x"]]

    check(step, batch, deed, captures=None)


@pytest.mark.parametrize("same", ["1111111", "0000000", "1010101", "0011100"])
def test_a_tensor_that_comes_back_is_the_one_that_was_passed_or_another(same: str) -> None:
    turns: list[str] = []

    @magneto.disable
    def unknown(x: Tensor) -> Tensor:
        return x if turns[-1] == "1" else x.clone()

    def f(x: Tensor) -> tuple[Tensor, Tensor, bool]:
        y = x + 1
        z = unknown(y)
        z.mul_(2)
        return y + z, y, z is y

    compiled = magneto.compile(f)
    for turn in same:
        turns.append(turn)
        expected, actual = f(torch.ones(3)), compiled(torch.ones(3))
        assert magneto.testing.same(actual[:2], expected[:2], tol=0)
        assert actual[2] is expected[2]
    assert magneto.counters["stats"]["hits"] >= 3


def test_a_state_that_becomes_an_argument() -> None:
    """In some calls the result is what the model itself holds."""
    state = {"x": torch.ones(2, 4), "n": 3}

    def unknown(box: Box, x: Tensor) -> dict[str, Any]:
        return state if next(box.turn) % 3 == 2 else {"x": x * 2, "n": 3}

    def step(unknown: Any, box: Box, x: Tensor) -> Any:
        found = unknown(box, x)
        found["n"] += 1
        before = state["n"]
        found["x"] = found["x"] + x
        return state["x"] * before, found["x"] + found["n"]

    def fresh(turn: int) -> tuple[Any, ...]:
        state.update(x=torch.ones(2, 4), n=3)
        return (numbers(turn),)

    check(step, fresh, unknown, captures=None)


def test_nothing_is_kept_alive() -> None:
    def unknown(y: Tensor) -> Result:
        return Result(y.sum(), [y])

    hidden = magneto.disable(unknown)

    @magneto.compile
    def step(batch: dict[str, Tensor]) -> Tensor:
        found = hidden(layer(batch["x"]))
        return found.loss + batch["labels"].sum() + found.parts[0].sum()

    for turn in range(5):
        given = {"x": numbers(turn), "labels": numbers(turn)}
        references = [weakref.ref(tensor) for tensor in given.values()]
        step(given)
        del given
        gc.collect()
        assert [reference() for reference in references] == [None, None]
    assert magneto.counters["stats"]["hits"] >= 3


# ---- at random


class TensorMaker(random_objects.Maker):
    """The same with tensors in the objects, and with questions to tensors."""

    world = random_objects.WORLD.replace("'text'\n", "'text'\n    self.k = torch.full((2,), float(n))\n")
    deeds = (
        *random_objects.DEEDS,
        "a.k.mul_(2)",
        "a.k",
        "[a.k, b.k]",
        "{'a': a.k}",
        "setattr(a, 'k', b.k)",
        "setattr(a, 'k', a.k[:])",
        "setattr(a, 'k', state.k)",
        "setattr(a, 'k', a.k.double())",
        "setattr(a, 'k', torch.zeros(2))",
    )
    first_lines = ("out, t = [], a.k + 1",)
    result = "out, t, a, b"

    def value(self) -> str:
        return self.node() + ".k" if self.random.random() < 0.2 else super().value()

    def statement(self) -> list[str]:
        kind = self.random.random()
        if kind < 0.2:
            return ["if t.sum().item() > 1e9:", "  out.append(0)"]
        if kind < 0.4:
            return [f"t = t * 2 + {self.node()}.k"]
        if kind < 0.5:
            return [f"{self.node()}.k{self.pick(['.add_(1)', ' = t + 1'])}"]
        return super().statement()


def seen_of(value: Any, known: dict[int, int]) -> Any:
    """What can be told of a value: which objects are one, too."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if id(value) in known:
        return "again", known[id(value)]
    known[id(value)] = len(known)
    if isinstance(value, Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return type(value).__name__, [(key, seen_of(part, known)) for key, part in value.items()]
    parts = value if isinstance(value, (list, tuple)) else vars(value).items()
    return type(value).__name__, [seen_of(part, known) for part in parts]


def play(source: str, story: list[tuple[list[str], str]], wrap: Callable[[Any], Any]) -> list[Any]:
    space: dict[str, Any] = {"torch": torch}
    exec(source, space)
    magneto.disallow_in_graph(space["meddle"])
    function, found = wrap(space["f"]), []
    for deeds, arguments in story:
        space["deeds"][:] = [eval(f"lambda a, b: {deed}", space) for deed in deeds]
        try:
            outcome = seen_of(function(*eval(f"({arguments},)", space)), {})
        except Exception as error:
            outcome = repr(error)
        found.append((outcome, seen_of(space["state"], {})))
    return found


@pytest.mark.parametrize("first_seed", range(0, 6000 if harness.FULL else 400, 50))
def test_random_functions_equal_eager(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        maker = TensorMaker(seed)
        source, story = maker.source(), maker.story(CALLS)
        expected, found = (play(source, story, wrap) for wrap in (lambda function: function, magneto.compile))
        for call, (should_be, was) in enumerate(zip(expected, found, strict=True)):
            assert was == should_be, f"seed {seed}, call {call}\n{source}\n{story}"
    assert magneto.counters["stats"]["hits"] > 50
