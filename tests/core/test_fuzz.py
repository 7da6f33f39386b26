"""Random functions over shared state, called again and again with edits in between: plain Python against our interpreter
against programs."""

import os
from typing import Any

import _core
import pytest

from core import worlds
from core.random_functions import STATE, Maker

pytestmark = [
    worlds.needs_capture,
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),  # what is written at random is not always sensible
]

CALLS = 6
BATCH = 100
ORDINARY, FULL = 1_000, 20_000  # functions
FIRST = int(os.environ.get("MAGNETO_FUZZ", "0"))  # another seed to begin with


def is_watched() -> bool:
    return bool(_core.is_compiling())


class WatchedWorld(worlds.World):
    """Every call runs in our interpreter."""

    def __init__(self, source: str) -> None:
        super().__init__(source, compiled=False)
        self.watched = 0  # calls
        function = self.space["f"]

        def call(*args: Any, **kwargs: Any) -> Any:
            _core.everywhere("watch")
            try:
                self.watched += is_watched()
                return function(*args, **kwargs)
            finally:
                _core.everywhere("off")

        self.compiled = call


def play(world: worlds.World, story: list[tuple[str, str]]) -> list[Any]:
    seen = []
    for edit, arguments in story:
        edited = worlds.outcome(lambda edit=edit: world.run(edit))
        seen.append((edited, world.call(arguments), worlds.describe(world.value(STATE))))
    return seen


def check(seed: int) -> int:
    """How often the function was compiled, of two times."""
    maker = Maker(seed)
    source = maker.module()
    story = maker.story(CALLS)
    expected = play(worlds.World(source, compiled=False), story)

    def compare(actual: list[Any], how: str) -> None:
        for call, (was, should_be) in enumerate(zip(actual, expected, strict=True)):
            assert was == should_be, f"seed {seed}, {how}, call {call}\n{source}\n{story}"

    watched = WatchedWorld(source)
    compare(play(watched, story), "watched")
    assert watched.watched == CALLS
    compiled = leave = 0
    for _ in range(2):
        with worlds.settings(leave_at_cut=leave, capture_attempts=CALLS):
            world = worlds.World(source, compiled=True)
            compare(play(world, story), f"compiled, leaves at {leave}")
            programs = [variant["program"] for variant in world.compiled.variants()]
            compiled += bool(programs)
            cuts = max((program.count("cut:") for program in programs), default=0)
            leave = 1 + seed % min(3, max(1, cuts))
    return compiled


BATCHES = [
    seed if seed < FIRST + ORDINARY else pytest.param(seed, marks=pytest.mark.full)
    for seed in range(FIRST, FIRST + FULL, BATCH)
]


@pytest.mark.parametrize("first_seed", BATCHES)
def test_random_functions_are_as_in_plain_python(first_seed):
    with worlds.counted() as counts:
        compiled = sum(check(seed) for seed in range(first_seed, first_seed + BATCH))
    # Half of what the poorest of many batches had, or less: who compiles nothing tests nothing.
    assert compiled > 2 * BATCH // 4
    assert counts["hits"] > 2 * BATCH
    assert counts["exits"] > 0
