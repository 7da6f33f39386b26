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


@pytest.mark.parametrize("mode", runner.MODES)
@pytest.mark.parametrize("module", MODULES)
def test_every_test_ends_as_without_us(module, mode):
    plain = runner.run(module, "plain")
    assert plain.end == "finished", plain.output
    assert plain.outcomes
    ours = runner.run(module, mode)
    assert ours.work > 0
    found, expected = runner.differences(module, mode), runner.exceptions(module, mode)
    new, needless = runner.verdict(found, expected)
    assert not new, ({name: found[name] for name in new}, ours.output[-10_000:])
    assert not needless
