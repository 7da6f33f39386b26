"""Hostile code: whatever objects, threads, signals and debuggers do, calls are as in plain Python and nothing crashes."""

import pytest

from core import worlds
from core.hostile import SCENARIOS

pytestmark = worlds.needs_capture

PRELUDE = "LOG, busy = [], []\n"


def play(scenario, compiled):
    """What each call gives, and what it leaves."""
    world = worlds.World(PRELUDE + scenario.source, compiled)
    world.space["again"] = world.compiled or world.space["f"]
    story = []
    for step in scenario.steps:
        world.run(step)
        story.append((world.call(scenario.args), worlds.describe(world.value(scenario.state))))
    return world, story


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_hostile_object_sees_what_it_would_have_seen(name):
    (_, expected), (_, actual) = (play(SCENARIOS[name], compiled) for compiled in (False, True))
    for call, (was, should_be) in enumerate(zip(actual, expected, strict=True)):
        assert was == should_be, f"call {call + 1}"
