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
BATCH = 20
ORDINARY, FULL = 1_000, 20_000  # functions
FIRST = int(os.environ.get("MAGNETO_FUZZ", "0"))  # another seed to begin with


class WatchedWorld(worlds.World):
    """Every call runs in our interpreter."""

    def __init__(self, source: str) -> None:
        super().__init__(source, compiled=False)
        function = self.space["f"]

        def call(*args: Any, **kwargs: Any) -> Any:
            _core.everywhere("watch")
            try:
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


def check(seed: int) -> None:
    maker = Maker(seed)
    source = maker.module()
    story = maker.story(CALLS)
    expected = play(worlds.World(source, compiled=False), story)

    def compare(actual: list[Any], how: str) -> None:
        for call, (was, should_be) in enumerate(zip(actual, expected, strict=True)):
            assert was == should_be, f"seed {seed}, {how}, call {call}\n{source}\n{story}"

    compare(play(WatchedWorld(source), story), "watched")
    for leave in (0, 1 + seed % 3):
        with worlds.settings(leave_at_cut=leave, capture_attempts=CALLS):
            compare(play(worlds.World(source, compiled=True), story), f"compiled, leaves at {leave}")


BATCHES = [
    seed if seed < FIRST + ORDINARY else pytest.param(seed, marks=pytest.mark.full)
    for seed in range(FIRST, FIRST + FULL, BATCH)
]


@pytest.mark.parametrize("first_seed", BATCHES)
def test_random_functions_are_as_in_plain_python(first_seed):
    for seed in range(first_seed, first_seed + BATCH):
        check(seed)
