"""magneto.explain: run a function and tell what Magneto made of it, in words for someone who never read this code."""

import contextlib
import functools
import re
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from magneto import _C
from magneto.errors import UserError, UserTypeError
from magneto.front_door import name_of
from magneto.optimized_module import ModuleProxy, OptimizedModule
from magneto.settings import config

__all__ = ["Explanation", "explain"]

# What to do about a reason, by the first pattern that fits it.
_ADVICE = (
    (r"\bgradient|requires_grad", "If you do not need gradients here, call it under torch.no_grad()."),
    (r"\bdisabled\b", "It calls a function marked with magneto.disable; compile what is around that call instead."),
    (
        r"\.item\(|\btolist\b|\bnumpy\b|\bvalue of a tensor\b|\btruth\b",
        "Asking a tensor for a value decides what happens next; keep the decision in tensors (torch.where), or compile "
        "the parts before and after it.",
    ),
    (
        r"\b(sets|changes|deletes|leaves|advances|writes)\b",
        "The function changes something that existed before the call; return the new value instead, or compile only "
        "the part that computes.",
    ),
    (r"\bsubclass\b", "Pass plain torch.Tensor arguments."),
    (r"\bargument\b", "Pass tensors, numbers, strings, and lists, tuples or dicts of them."),
    (r"\bno tensor", "There are no tensor operations to compile; leave it as plain Python."),
    (
        r"\bopcode|\binstruction|\bwritten in C\b|\bguarded\b|\bframes\b",
        "Compile the functions that do the tensor work instead.",
    ),
)
_NO_ADVICE = "Nothing is wrong with your program: results are the same, only not faster."
_GUARDS_SHOWN = 8


@dataclass(frozen=True)
class Explanation:
    """What Magneto made of a function; print it to read it."""

    name: str
    graph_count: int
    op_count: int
    guard_count: int
    graphs: list[str]  # the text of each graph, newest first
    guards: list[str]  # what is checked before a graph runs again; a line may sum up many checks
    reasons: dict[str, int]  # why calls could not be captured, and how often
    recompiles: dict[str, int]  # which check failed, so that the function was captured again, and how often
    breaks: dict[str, int]  # where programs are in several parts, because nobody knows what happens there
    timings: dict[str, float]  # in milliseconds: first_call, second_call, watch, build
    state: str  # "compiled" or "eager"
    programs: list[str] = field(default_factory=list)  # newest first; with `config.listings` next to their source

    def __str__(self) -> str:
        lines = [*self._outcome(), *self._breaks(), *self._reasons(), *self._recompiles(), self._timings()]
        return "\n".join([self.name, *(f"  {line}" for line in lines)])

    def _outcome(self) -> list[str]:
        if self.state != "compiled":
            return ["not compiled: it runs as plain Python, with the same results"]
        graphs = _count(self.graph_count, "graph")
        lines = [f"compiled: {graphs}, {_count(self.op_count, 'operation')}, {_count(self.guard_count, 'guard')}"]
        if self.guards:
            lines.append("  guards are checked before each compiled call; if one fails, the call is captured again:")
            lines += [f"    {guard}" for guard in self.guards[:_GUARDS_SHOWN]]
        if len(self.guards) > _GUARDS_SHOWN:
            lines.append(f"    and {len(self.guards) - _GUARDS_SHOWN:,} more, in .guards")
        return lines

    def _reasons(self) -> list[str]:
        lines = []
        what = "some calls were not compiled" if self.state == "compiled" else "not compiled"
        for reason, count in self.reasons.items():
            lines.append(f"{what} because {reason}")
            lines.append(f"  seen in {_count(count, 'call')}. {_advice(reason)}")
        return lines

    def _breaks(self) -> list[str]:
        return [f"in several parts because {reason}" for reason in self.breaks]

    def _recompiles(self) -> list[str]:
        return [
            f"captured again because {reason} ({_count(count, 'time')})" for reason, count in self.recompiles.items()
        ]

    def _timings(self) -> str:
        times = self.timings
        text = f"first call {times['first_call']:.2f} ms, second call {times['second_call']:.2f} ms"
        if self.state == "compiled":
            text += f"; of all captures: watching {times['watch']:.2f} ms, building {times['build']:.2f} ms"
        return text


def explain(fn: Callable[..., Any]) -> Callable[..., Explanation]:
    """``explain(fn)(*args, **kwargs)`` calls `fn` twice with these arguments and tells what Magneto made of it.

    Something that is compiled already is used as it is, and what it did before is told, too; anything else is compiled
    for this purpose only. The two calls are real ones, effects included, and their results are dropped.
    """
    if not callable(fn) or isinstance(fn, type):
        raise UserTypeError(
            f"magneto.explain expects a function, a method or an nn.Module, got {fn!r} of type {type(fn).__name__}"
        )
    call, compiled = _call_and_compiled(fn)

    def explain_call(*args: Any, **kwargs: Any) -> Explanation:
        # With fullgraph=True the reason is an error, and is told all the same.
        quiet = contextlib.suppress(UserError) if compiled.whole else contextlib.nullcontext()
        started = time.perf_counter()
        with quiet:
            call(*args, **kwargs)
        between = time.perf_counter()
        with quiet:
            call(*args, **kwargs)
        ended = time.perf_counter()
        return _explanation(compiled, {"first_call": between - started, "second_call": ended - between})

    return explain_call


def _call_and_compiled(fn: Callable[..., Any]) -> tuple[Callable[..., Any], _C.CompiledFunction]:
    if compiled := _compiled_of(fn):
        call: Callable[..., Any] = compiled
        if isinstance(fn, types.MethodType):
            call = functools.partial(compiled, fn.__self__)
        elif isinstance(fn, nn.Module) and not isinstance(fn, OptimizedModule):
            call = functools.partial(compiled, fn)
        return call, compiled
    target = fn._orig_mod if isinstance(fn, ModuleProxy) else fn
    compiled = _C.CompiledFunction(target, name_of(target))
    return compiled, compiled


def _compiled_of(fn: object) -> _C.CompiledFunction | None:
    if isinstance(fn, types.MethodType):
        return _compiled_of(fn.__func__)
    if isinstance(fn, OptimizedModule):
        return _compiled_of(fn._magneto_call)
    if isinstance(fn, _C.CompiledFunction):
        return fn
    if isinstance(fn, nn.Module):
        # An instance of a compiled class.
        return _compiled_of(type(fn).__call__)
    return None


def _explanation(compiled: _C.CompiledFunction, seconds: Mapping[str, float]) -> Explanation:
    variants = compiled.variants()
    reasons = compiled.failures()
    if unsupported := _C.supported():
        reasons = {unsupported: 2}
    elif not config.enabled:
        reasons = {"the setting magneto.config.enabled is False": 2}
    timings = {name: 1e3 * value for name, value in seconds.items()}
    timings["watch"] = sum(variant["watch_ms"] for variant in variants)
    timings["build"] = sum(variant["build_ms"] for variant in variants)
    return Explanation(
        name=compiled.name,
        graph_count=sum(len(variant["graphs"]) for variant in variants),
        op_count=sum(variant["ops"] for variant in variants),
        guard_count=sum(variant["guard_count"] for variant in variants),
        graphs=[graph for variant in variants for graph in variant["graphs"]],
        guards=[guard for variant in variants for guard in variant["guards"]],
        reasons=reasons,
        recompiles=compiled.misses(),
        breaks=compiled.breaks(),
        timings=timings,
        state="compiled" if variants else "eager",
        programs=[variant["program"] for variant in variants],
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _advice(reason: str) -> str:
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, reason)), _NO_ADVICE)
