"""What all tests share: the --full switch, a fresh start, and `import _core` for the torch-free ones.

The torch-free tests (tests/core) also run on Pythons that have no torch, where the package `magneto` cannot be
imported. They say `import _core`, or `import _frames` for what only tests need, which loads the module that was built
for the running Python: from the folder in MAGNETO_CORE, or from python/magneto.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


class CoreFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in ("_core", "_frames"):
            return None
        folder = Path(os.environ.get("MAGNETO_CORE") or ROOT / "python" / "magneto")
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = folder / f"{name}{suffix}"
            if file.exists():
                return importlib.util.spec_from_file_location(name, file)
        return None


sys.meta_path.append(CoreFinder())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `full`, which take minutes")
    parser.addoption("--update-golden", action="store_true", help="write the golden texts of listings anew")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--full"):
        os.environ["MAGNETO_TEST_FULL"] = "1"  # for modules that look while they are imported, also in other processes


# Tests of the package that mean something where calls cannot be captured.
WITHOUT_CAPTURE = {
    "test_config.py",
    "test_cuda_graph.py",
    "test_dynamic.py",
    "test_eval_frame_torch.py",
    "test_functional.py",
    "test_graph.py",
    "test_guards_torch.py",
    "test_house.py",
    "test_joint.py",
    "test_lazy_opinfo.py",
    "test_opinfo.py",
    "test_recording.py",
    "test_shape_rules.py",
    "test_stubs.py",
    "test_symbolic_lstm.py",
    "test_symbolic_numbers.py",
    "test_symbolic_replay.py",
    "test_symbolic_sizes.py",
    "test_trace_tensors.py",
}


def why_nothing_is_captured() -> str:
    import magneto

    return magneto.is_supported().reason


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    capturing = [item for item in items if item.path.parent == ROOT / "tests" and item.path.name not in WITHOUT_CAPTURE]
    if capturing and (reason := why_nothing_is_captured()):
        for item in capturing:
            item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: ./run test --full"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests tell with record_property("told", text), also those that ran in another process."""
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for text in (text for name, text in report.user_properties if name == "told"):
            terminalreporter.write_line(text)
    if failures := os.environ.get("MAGNETO_TEST_FAILURES"):
        with open(failures, "a", encoding="utf-8") as file:
            for report in (*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")):
                file.write(f"{report.nodeid}\n{report.longreprtext[-3000:]}\n")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is compiled or counted before and after the test, which needs no gradients."""
    import magneto
    import torch

    magneto.reset()
    with torch.no_grad():
        yield
    magneto.reset()


@pytest.fixture(autouse=True)
def nobody_compiles_backwards() -> None:
    """As when a process begins: what one test has trained does not decide how backwards of the next one run."""
    if package := sys.modules.get("magneto"):
        package.compiled_autograd.set_autograd_compiler(None)


@pytest.fixture
def fresh_autograd() -> Iterator[None]:
    """No backward is compiled or counted before and after the test, which leaves no compiler set."""
    import magneto
    from magneto import compiled_autograd

    magneto.reset()
    yield
    assert compiled_autograd.set_autograd_compiler(None) is None, "the test left it enabled"
    compiled_autograd.set_verbose_logger(None)
    magneto.reset()


@pytest.fixture
def lazy_device() -> Iterator[None]:
    """The device `lazy`, with nothing recorded, counted or failed before the test."""
    from lazy_stories import BACKING
    from magneto import lazy

    lazy.init(BACKING)
    lazy.mark_step()
    lazy.wait_device_ops()
    lazy.set_force_fallback([])
    lazy.set_reuse_ir(True)
    lazy.reset_metrics()
    yield
    lazy.set_force_fallback([])
    lazy.set_reuse_ir(True)
