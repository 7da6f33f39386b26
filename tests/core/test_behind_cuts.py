"""Objects behind unknown calls, which may have changed them in any way: arguments, what the call made, what it got."""

import _core
import pytest

from core import worlds
from core.random_objects import Maker

pytestmark = worlds.needs_capture

CALLS = 8
BATCH = 25
ORDINARY, FULL = 1_000, 20_000  # functions


def play(source: str, story: list[tuple[list[str], str]], compiled: bool) -> tuple[worlds.World, list]:
    world = worlds.World(source, compiled)
    _core.set_rule(world.space["meddle"], "disallow")
    seen = []
    for deeds, arguments in story:
        world.run("deeds.clear()")
        for deed in deeds:
            world.run(f"deed(lambda a, b: {deed})")
        seen.append((world.call(arguments), worlds.describe(world.value("state"))))
    return world, seen


def check(seed: int) -> int:
    """How often the function was compiled, of two times."""
    maker = Maker(seed)
    source, story = maker.source(), maker.story(CALLS)
    _, expected = play(source, story, False)
    compiled = 0
    for leave in (0, 1 + seed % 3):
        with worlds.settings(leave_at_cut=leave, capture_attempts=CALLS):
            world, actual = play(source, story, True)
            for call, (was, should_be) in enumerate(zip(actual, expected, strict=True)):
                assert was == should_be, f"seed {seed}, leaves at {leave}, call {call}\n{source}\n{story}"
            compiled += bool(world.compiled.variants())
    return compiled


@pytest.mark.parametrize(
    "first_seed",
    [seed if seed < ORDINARY else pytest.param(seed, marks=pytest.mark.full) for seed in range(0, FULL, BATCH)],
)
def test_random_functions_are_as_in_plain_python(first_seed):
    with worlds.counted() as counts:
        compiled = sum(check(seed) for seed in range(first_seed, first_seed + BATCH))
    # Half of what the poorest of many batches had, or less: who compiles nothing tests nothing.
    assert compiled > 2 * BATCH // 4
    assert counts["hits"] > 2 * BATCH
    assert counts["exits"] > BATCH // 8
