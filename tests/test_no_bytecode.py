"""A compiled call runs no Python bytecode of the model: the interpreter's own profile events are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import magneto
import pytest
import torch
from zoo import harness, models

pytestmark = pytest.mark.usefixtures("fresh")


def python_frames(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """The Python functions entered while a function is called, in order."""
    entered: list[str] = []

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        function(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return entered


def traced_opcodes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """How many bytecode instructions CPython runs in frames that start during the call."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        function(*args, **kwargs)
    finally:
        sys.settrace(None)
    return count


def compiled_model(name: str) -> tuple[torch.nn.Module, Any, models.MakeInputs]:
    if harness.unsupported():
        pytest.skip(harness.unsupported())
    module, make_inputs = models.get(name)
    compiled = magneto.compile(module)
    for seed in range(2):
        args, kwargs = make_inputs(0, seed)
        compiled(*args, **kwargs)
    if harness.state(compiled) != "compiled":
        pytest.skip(f"stays eager: {harness.why_eager(compiled)}")
    if between := set(magneto.counters["unknown_call"]) - {"bool"}:
        pytest.skip(f"compiled in parts; what runs between them may be Python: {', '.join(sorted(between))}")
    return module, compiled, make_inputs


@pytest.mark.parametrize("name", harness.sample())
@torch.no_grad()
def test_a_compiled_call_enters_no_python_function(name: str) -> None:
    module, compiled, make_inputs = compiled_model(name)
    args, kwargs = make_inputs(0, 5)
    assert len(python_frames(module, *args, **kwargs)) > 5, "the counter does not count"
    entered = python_frames(compiled, *args, **kwargs)
    # An output class with a constructor of its own is built by that constructor; nothing else may run.
    allowed = {"ModelOutput.__post_init__", "ModelOutput.__setitem__", "ModelOutput.__setattr__"}
    model_code = [where for where in entered if where not in allowed and not where.endswith("Output.__init__")]
    assert not model_code, f"{len(entered)} Python functions ran: {model_code[:10]}"


@pytest.mark.parametrize("name", ["mlp", "resnet", "transformer_encoder"])
@torch.no_grad()
def test_a_debugger_sees_every_instruction_of_a_compiled_model(name: str) -> None:
    module, compiled, make_inputs = compiled_model(name)
    args, kwargs = make_inputs(0, 5)
    traced_opcodes(module, *args, **kwargs)  # on CPython 3.12 the first such tracer of a process sees nothing
    assert traced_opcodes(compiled, *args, **kwargs) >= traced_opcodes(module, *args, **kwargs) > 50
    assert python_frames(compiled, *args, **kwargs) == []


@torch.no_grad()
def test_counters_see_a_hit_for_each_compiled_call() -> None:
    _, compiled, make_inputs = compiled_model("mlp")
    hits, captures = harness.stat("hits"), harness.stat("captures")
    for seed in range(5):
        args, kwargs = make_inputs(0, seed)
        compiled(*args, **kwargs)
    assert harness.stat("hits") == hits + 5
    assert harness.stat("captures") == captures


@torch.no_grad()
def test_a_profiled_first_call_gives_the_right_result() -> None:
    """A profiler or tracer that is on during the first call still sees the model's functions and the right result."""
    module, make_inputs = models.get("mlp")
    args, kwargs = make_inputs(0, 0)
    eager_frames = python_frames(module, *args, **kwargs)
    compiled = magneto.compile(module)
    compiled_frames = python_frames(compiled, *args, **kwargs)
    assert [name for name in eager_frames if "MLP" in name] == [name for name in compiled_frames if "MLP" in name]
    assert torch.equal(compiled(*args, **kwargs), module(*args, **kwargs))
