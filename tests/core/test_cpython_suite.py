"""CPython's own test-suite passes and fails as without us: in our interpreter, and with every function captured."""

import importlib.util

import pytest

from core import worlds
from core.suite import runner

pytestmark = [
    worlds.needs_capture,
    pytest.mark.skipif(not importlib.util.find_spec("test"), reason="this Python comes without its tests"),
]

MODULES = [
    module if module in runner.SAMPLE else pytest.param(module, marks=pytest.mark.full) for module in runner.MODULES
]


def test_a_module_that_is_not_there_is_an_error():
    missing = runner.run("test_of_nothing", "plain")
    assert missing.end != "finished" and "No module named" in missing.output
    assert not missing.outcomes


@pytest.mark.parametrize("mode", runner.MODES)
@pytest.mark.parametrize("module", MODULES)
def test_every_test_ends_as_without_us(module, mode):
    plain = runner.run(module, "plain")
    assert plain.end == "finished", plain.output
    assert plain.outcomes
    ours = runner.run(module, mode)
    if mode == "watch":
        assert ours.watched > 0.99 * ours.events
    else:  # half of what the module with the fewest has, or less
        assert ours.hits > 4 * len(ours.outcomes)
    found, expected = runner.differences(module, mode), runner.exceptions(module, mode)
    new, needless = runner.verdict(found, expected)
    assert not new, ({name: found[name] for name in new}, ours.output[-10_000:])
    assert not needless
