"""magneto.eval_frame with torch: its names, profiler traces, torch.compile at the same time, the example."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import magneto
import pytest
import torch
from magneto import eval_frame
from magneto.eval_frame import GuardedCode

ROOT = Path(__file__).resolve().parent.parent
incumbent = functools.partial(torch.compile, backend="eager")

SPEC_NAMES = """set_eval_frame _PyInterpreterFrame _CacheEntry _ExtraState _debug_get_cache_entry_list reset_code
    skip_code set_guard_error_hook unsupported py_opcode_caches VectorUInt8 GuardedCode"""


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    assert eval_frame.set_eval_frame(None) is None
    assert not magneto._C.hook_installed()
    torch._dynamo.reset()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


class Replace:
    """A callback that gives `old` the code of `new` and counts the frames it was asked about."""

    def __init__(self, old: Callable[..., Any], new: Callable[..., Any]) -> None:
        self.old, self.new, self.asked = old, new, 0
        eval_frame.reset_code(old.__code__)

    def __call__(self, frame: Any, cache_entry: Any, frame_state: dict[str, Any]) -> GuardedCode | None:
        self.asked += 1
        if frame.f_code is not self.old.__code__:
            return None
        return GuardedCode(self.new.__code__, lambda f_locals: True, trace_annotation="triple")

    def __enter__(self) -> Replace:
        eval_frame.set_eval_frame(self)
        return self

    def __exit__(self, *error: object) -> None:
        eval_frame.set_eval_frame(None)
        eval_frame.reset_code(self.old.__code__)


def test_the_module_has_the_names_of_the_contract() -> None:
    for name in SPEC_NAMES.split():
        assert name in eval_frame.__all__ and hasattr(eval_frame, name)


def test_on_other_pythons_the_import_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(magneto._C, "why_no_frame_hook", lambda: "the frame hook needs another CPython")
    monkeypatch.delitem(sys.modules, "magneto.eval_frame")
    with pytest.raises(ImportError, match="needs another CPython"):
        importlib.import_module("magneto.eval_frame")
    assert torch.equal(magneto.compile(double)(torch.ones(2)), torch.full((2,), 2.0))


def test_guarded_code_runs_on_tensors() -> None:
    x = torch.arange(3.0)
    with Replace(double, triple) as callback:
        results = [double(x), double(x)]
    assert all(torch.equal(result, x * 3) for result in results)
    assert callback.asked


def test_look_ups_and_regions_are_in_the_profile(tmp_path: Path) -> None:
    x = torch.ones(2)
    with Replace(double, triple):
        double(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            double(x)
            double(x)
    events = {event.key: event for event in profile.key_averages()}
    assert events["Magneto Cache Lookup"].count >= 2
    assert events["Magneto-Compiled Region: triple"].count == 2
    file = tmp_path / "trace.json"
    profile.export_chrome_trace(str(file))
    trace = json.loads(file.read_text())["traceEvents"]
    regions = [event for event in trace if event.get("name") == "Magneto-Compiled Region: triple"]
    multiplications = [event for event in trace if event.get("name") == "aten::mul"]
    assert len(regions) == len(multiplications) == 2
    for region, inside in zip(regions, multiplications, strict=True):
        assert region["ts"] <= inside["ts"] <= inside["ts"] + inside["dur"] <= region["ts"] + region["dur"]


def test_no_event_is_left_open_by_an_exception() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(x.shape)

    with Replace(double, fails):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(2):
                with pytest.raises(ValueError):
                    double(torch.ones(2))
    assert {event.key: event.count for event in profile.key_averages()}["Magneto-Compiled Region: triple"] == 2


# -- torch.compile at the same time -----------------------------------------------------------------------------------


def test_torch_compile_inside_the_hook() -> None:
    x = torch.arange(3.0)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = incumbent(outer)
    with Replace(double, triple):
        for _ in range(3):
            assert torch.equal(compiled(x), x + 1)
            assert torch.equal(double(x), x * 3)
        assert magneto._C.hook_installed()
    for _ in range(2):
        assert torch.equal(compiled(x), x + 1)


def test_the_hook_inside_a_function_of_torch_compile() -> None:
    x = torch.arange(3.0)
    callback = Replace(double, triple)

    @torch._dynamo.disable
    def hooked(x: torch.Tensor) -> torch.Tensor:
        with callback:
            return double(x)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return hooked(x + 1) - 1

    compiled = incumbent(outer)
    for _ in range(3):
        assert torch.equal(compiled(x), (x + 1) * 3 - 1)
    assert callback.asked


def test_a_function_of_torch_compile_is_given_other_code() -> None:
    """Both replace the code of the same function: the hook's code is what torch.compile gets, or never sees."""
    x = torch.arange(3.0)
    compiled = incumbent(double)
    assert torch.equal(compiled(x), x * 2)
    with Replace(double, triple):
        assert torch.equal(double(x), x * 3)
        compiled(x)
    assert torch.equal(compiled(x), x * 2)


def test_compiling_by_torch_while_other_threads_are_hooked() -> None:
    x = torch.arange(3.0)
    stop, failures = threading.Event(), []

    def hooked() -> None:
        try:
            while not stop.is_set():
                with Replace(double, triple):
                    found = double(x)
                assert torch.equal(found, x * 3) or torch.equal(found, x * 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hooked) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for step in range(6):
            torch._dynamo.reset()
            compiled = incumbent(lambda x, step=step: triple(x) + step)
            for _ in range(3):
                assert torch.equal(compiled(x), x * 3 + step)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


@pytest.mark.skipif(not magneto.is_supported(), reason="calls cannot be captured here")
def test_magneto_compile_inside_the_hook() -> None:
    x = torch.arange(3.0)
    compiled = magneto.compile(lambda x: (x + 1).relu())
    with Replace(double, triple):
        for _ in range(3):
            assert torch.equal(compiled(x), (x + 1).relu())
            assert torch.equal(double(x), x * 3)
    assert compiled.variants()


def test_the_example_folds_and_notices_changes(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("fold_a_global", ROOT / "examples" / "fold_a_global.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() == [9.5, 9.5, 30.5, 9.5]
    out = capsys.readouterr().out
    assert out.count("folded total") == 2
    assert len(eval_frame._debug_get_cache_entry_list(module.total.__code__)) == 2
