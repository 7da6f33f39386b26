"""magneto.compiled_autograd: backwards from a cache, gradients and all else that can be seen as in the eager engine."""

from __future__ import annotations

import contextlib
import functools
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import autograd_programs as programs
import magneto
import pytest
import torch
from autograd_programs import (
    PROGRAMS,
    Log,
    backward,
    captured,
    declined,
    either,
    gradients,
    hooked,
    leaf,
    mlp,
)
from magneto import compiled_autograd
from test_threads import in_threads
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from zoo.compare import raised_by

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_autograd")]


def counts() -> tuple[int, int, int]:
    """How many backwards were captured, found in the cache, and left to the eager engine."""
    group = magneto.counters["compiled_autograd"]
    return group["captures"], group["hits"], group["declined"]


def reasons() -> dict[str, int]:
    return dict(magneto.counters["compiled_autograd_declined"])


def opaque_nodes() -> set[str]:
    return {name.split(": ")[0] for name in magneto.counters["compiled_autograd_opaque"]}


def plain(size: int = 3) -> Tensor:
    """The gradient of a small graph."""
    x = (torch.arange(4.0 * size).reshape(size, 4) / 7).requires_grad_()
    (x.sin() * x).sum().backward()
    assert x.grad is not None
    return x.grad


# ---- programs that only these tests run: errors


class Refused(Exception):
    """What hooks of these programs raise."""


def refuse(kind: type[BaseException], when: bool = True) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        if when:
            raise kind("by a hook")

    return hook


@captured(times=None, opaque=None, declined="saved")
@hooked
def hooks_that_raise(index: int, log: Log, x: Tensor, w: Tensor) -> Any:
    """What was accumulated by then stays."""
    y = x.sin()
    y.register_hook(refuse(KeyboardInterrupt if index == 4 else Refused, when=index > 0))
    w.register_hook(programs.looks(log, "before"))
    loss = (y.exp() + w * 2).sum()
    error = raised_by(loss.backward)
    return error, x.grad, w.grad, raised_by(loss.backward)


@either
@hooked
def hooks_that_return_nonsense(index: int, log: Log, x: Tensor, w: Tensor) -> Any:
    nonsense = (3, torch.ones(2), torch.ones(3, 4, dtype=torch.float64), "gradient", (None, None))[index]
    (y := x * w).register_hook(lambda _: nonsense)
    z = w.sin()
    z.grad_fn.register_hook(lambda *_: (nonsense,))
    return raised_by(y.sum().backward), raised_by(z.sum().backward)


class Wrong(Function):
    """Its backward breaks a rule, each time another one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rule: int) -> Tensor:
        ctx.rule = rule
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.rule == 4:
            raise Refused("in a function")
        return ((gradient, None), gradient, (gradient[:1, :3], None), ("gradient", None))[ctx.rule]


@captured(times=None, opaque=None)
@hooked
def functions_that_break_rules(index: int, log: Log, x: Tensor, w: Tensor) -> Any:
    loss = (Wrong.apply(x.sin(), index) + w.exp()).sum()
    return raised_by(loss.backward)


@captured(times=None, declined="saved")
def saved_tensors_that_were_changed(index: int) -> Any:
    x, w, late = leaf(3), torch.randn(3), leaf(3)
    y = (x * w).exp()
    loss = y.sum() + (late * 2).sum()
    if index == 4:
        y.mul_(2)
    elif index % 2:
        w.add_(1)
    return raised_by(loss.backward), x.grad, late.grad


@captured(times=None, opaque=None)
def wrong_calls(_: int) -> Any:
    x = leaf(3)
    y, given = x * 2, (None, torch.randn(2), "gradient")
    errors = [raised_by(functools.partial(y.backward, gradient)) for gradient in given]
    unrelated = raised_by(lambda: torch.autograd.grad(y.sum(), leaf(2)))
    return errors, unrelated, raised_by(torch.ones(3).sum().backward), x.grad


# ---- sizes


def of_size(size: int, length: int = 4) -> tuple[Any, ...]:
    model, x = mlp(4, 6, 2), leaf(size, length, 4)
    loss = model(x).square().mean() + x.sum(0).exp().mean() + x.flatten(1).std(1).sum()
    loss.backward()
    return loss, x.grad, gradients(model)


@captured(times=None, opaque=None)
def sizes_of_batches() -> Iterator[Any]:
    """4 and 6 are sizes of the model, too; 0 and 1 are special."""
    for size in (3, 3, 5, 4, 6, 1, 1, 0, 2, 9, 3):
        yield of_size(size)


@captured(times=None, opaque=None)
def sizes_of_batches_and_lengths() -> Iterator[Any]:
    for size, length in ((3, 4), (5, 4), (5, 7), (7, 5), (4, 4), (1, 9), (9, 1), (2, 6)):
        yield of_size(size, length)


# ---- what is left to the eager engine


@declined("create_graph")
@hooked
def gradients_with_a_history(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    x.register_hook(programs.looks(log, "hook"))
    (x * w).sin().sum().backward(create_graph=True)
    return torch.autograd.grad((x * w).exp().sum(), x, create_graph=True)


@either
@hooked
def double_backward(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    (first,) = torch.autograd.grad((x * w).sin().sum(), x, create_graph=True)
    first.square().sum().backward()
    return torch.autograd.functional.hessian(lambda t: t.pow(3).sum(), w.detach())


@declined("anomaly")
def anomaly_mode(index: int) -> Any:
    with torch.autograd.set_detect_anomaly(True, check_nan=index % 2 == 0):
        x, w = torch.zeros(3, requires_grad=True), leaf(3)
        return raised_by((w * (x.sqrt() * 0)).sum().backward), x.grad, w.grad


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


@declined("dispatch mode")
def a_dispatch_mode(_: int) -> Any:
    x = leaf(3)
    y = x.sin().exp()
    with (tape := Tape()):
        y.sum().backward()
    return [str(call[0]) for call in tape.calls], x.grad


@either
def batched_gradients(_: int) -> Any:
    x = leaf(3)
    return torch.autograd.grad(x.sin() * x, x, torch.randn(2, 3), is_grads_batched=True)


@either
def a_script() -> Iterator[Any]:
    """Torch gives a script a node of its own once it has run."""
    scripted = torch.jit.CompilationUnit("def f(x):\n    return (x * x.tanh() + 1).relu()\n").f
    for _ in range(6):
        x = leaf(3)
        yield backward(scripted(x.exp()) * 2), x.grad


@either
def saved_tensors_that_may_change(_: int) -> Any:
    x = leaf(3)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x.clone()
        z = y.sin()
        y.mul_(2)
        return backward(z * y), x.grad


# ---- one backward inside another


class Inside(Function):
    """Computes its gradient with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin().exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            x.sin().exp().backward(gradient)
        return x.grad


@captured(times=None, opaque=("InsideBackward",))
@hooked
def a_backward_inside_a_function(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    backward(Inside.apply(x * w) + Inside.apply(Inside.apply(x)))


@captured(times=None, opaque=None)
@hooked
def a_backward_inside_a_hook(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    other, y = leaf(4), x * w

    @torch.enable_grad()
    def hook(gradient: Tensor) -> Tensor:
        (other * 3).cos().sum().backward()
        (inner,) = torch.autograd.grad((w.sin() * gradient).sum(), w)
        log.append(programs.noted(inner))
        return gradient * inner

    y.register_hook(hook)
    y.exp().sum().backward()
    return other.grad


# ---- lives


class Mark:
    """Something that dies with the node that it was put on."""


@captured(times=None)
def lives_of_saved_tensors_and_nodes(index: int) -> Any:
    x, refs = leaf(3), []

    def kept(tensor: Tensor) -> Tensor:
        tensor.grad_fn.metadata["mark"] = mark = Mark()
        refs.extend((weakref.ref(tensor), weakref.ref(mark)))
        return tensor

    loss = (kept(x.sin()) * kept(x.cos() * 2)).exp().sum()
    before = [ref() is not None for ref in refs]
    loss.backward(retain_graph=index % 2 == 1)
    after = [ref() is not None for ref in refs]
    del loss
    return before, after, [ref() is not None for ref in refs], x.grad


@captured(times=None, opaque=None)
def lives_while_a_backward_runs(_: int) -> Any:
    """Each node releases what it saved as soon as it is through, and gradients go when they were used."""
    x, saved, passed, alive = leaf(3), [], [], []

    def watch(gradient: Tensor) -> None:
        alive.append([ref() is not None for ref in (*saved, *passed)])
        passed.append(weakref.ref(gradient))

    y = x
    for _ in range(4):
        y = y.sin() * y.cos()
        saved.append(weakref.ref(y))
        y.register_hook(watch)
    loss = y.sum()
    del y
    loss.backward()
    return alive, x.grad


# ---- the table, told in all ways


def named(belongs: Callable[[programs.Program], bool]) -> Any:
    return pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if belongs(program)])


def check(name: str, **how: Any) -> programs.Told:
    """Tells a program eagerly and with compiled backwards."""
    expected = programs.run(name)
    assert counts() == (0, 0, 0), "it is off unless it is enabled"
    with compiled_autograd.enable(**how):
        actual = programs.run(name)
    assert (found := programs.difference(expected, actual)) is None, found
    return actual


def check_captured(name: str) -> None:
    program, told = PROGRAMS[name], check(name)
    captures, hits, _ = counts()
    assert captures >= 1
    assert all(program.declined and program.declined in reason for reason in reasons()), reasons()
    if program.captures is not None:
        assert captures <= program.captures
        assert captures + hits == told.backwards


@named(lambda program: program.opaque == ())
def test_captured_as_a_whole_it_equals_eager(name: str) -> None:
    check_captured(name)
    assert not opaque_nodes()


@named(lambda program: program.opaque != () and program.declined is not None and program.captures != 0)
def test_captured_around_nodes_that_are_called_as_they_are_it_equals_eager(name: str) -> None:
    check_captured(name)
    assert opaque_nodes().issuperset(PROGRAMS[name].opaque or ())


@named(lambda program: program.captures == 0)
def test_declined_for_a_reason_it_equals_eager(name: str) -> None:
    told = check(name)
    assert counts() == (0, 0, told.backwards)
    assert sum(reasons().values()) == told.backwards
    assert all(PROGRAMS[name].declined in reason for reason in reasons())


@named(lambda program: program.declined is None)
def test_captured_or_declined_it_equals_eager(name: str) -> None:
    told = check(name)
    assert sum(counts()) <= told.backwards


@pytest.mark.parametrize("dynamic", [False, True])
@named(lambda _: True)
def test_whatever_is_dynamic_it_equals_eager(name: str, dynamic: bool) -> None:
    check(name, dynamic=dynamic)


@named(lambda _: True)
def test_the_shadow_mode_finds_no_difference(name: str) -> None:
    with magneto.config.patch(compiled_autograd_verify=True):
        check(name)


@named(lambda program: bool(program.captures))
def test_a_program_told_again_with_other_data_only_hits(name: str) -> None:
    expected = programs.run(name, seed=1)
    with compiled_autograd.enable():
        programs.run(name, seed=0)
        before = counts()
        actual = programs.run(name, seed=1)
    assert programs.difference(expected, actual) is None
    assert (counts()[0], counts()[2]) == (before[0], before[2])
    assert counts()[1] == before[1] + actual.backwards


# ---- how often graphs are captured

GROWING, RETURNING = (3, 3, 5, 5, 7, 9), (3, 3, 5, 5, 3, 7)


@pytest.mark.parametrize(
    ("dynamic", "sizes", "captures"),
    [(None, GROWING, 2), (True, GROWING, 1), (False, RETURNING, 3)],
    ids=["a changing size becomes dynamic", "dynamic from the start", "a graph for each size"],
)
def test_captured_as_often_as_sizes_ask_for(dynamic: bool | None, sizes: tuple[int, ...], captures: int) -> None:
    expected = programs.tell(lambda: map(of_size, sizes))
    with compiled_autograd.enable(dynamic=dynamic):
        actual = programs.tell(lambda: map(of_size, sizes))
    assert programs.difference(expected, actual) is None
    assert counts() == (captures, len(sizes) - captures, 0)


def test_captured_once_more_for_each_dimension_that_begins_to_change() -> None:
    with compiled_autograd.enable():
        for size, length, captures in ((3, 4, 1), (5, 4, 2), (7, 4, 2), (7, 6, 3), (5, 9, 3), (8, 8, 3), (3, 4, 3)):
            of_size(size, length)
            assert counts()[0] <= captures


def test_captured_once_for_each_of_two_losses_that_take_turns() -> None:
    model = mlp(4, 8, 2)
    with compiled_autograd.enable():
        for index in range(8):
            out = model(torch.randn(3, 4))
            (out.square() if index % 2 else out.abs()).mean().backward()
            model.zero_grad()
    assert counts() == (2, 6, 0)


def test_captured_anew_after_the_cache_was_cleared() -> None:
    assert compiled_autograd.is_cache_empty()
    for clear in (compiled_autograd.clear_cache, magneto.reset):
        with compiled_autograd.enable():
            plain()
            assert not compiled_autograd.is_cache_empty()
            clear()
            assert compiled_autograd.is_cache_empty()
            before = counts()[0]
            plain()
            assert counts()[0] == before + 1


# ---- switching it on and off


def test_it_is_on_inside_of_enable_and_off_inside_of_disable() -> None:
    states = []
    for manager in (compiled_autograd.enable, compiled_autograd.disable, compiled_autograd.enable):
        with compiled_autograd.enable(), manager():
            plain()
            states.append(sum(counts()))
    plain()
    assert states == [1, 1, 2] and sum(counts()) == 2


def test_what_was_set_before_is_set_again_even_after_an_error() -> None:
    native, factory = compiled_autograd.native, lambda: Taping()
    current = compiled_autograd.set_autograd_compiler
    assert current(native) is None
    with contextlib.suppress(Refused), compiled_autograd.enable(factory):
        with compiled_autograd.disable():
            assert current(None) is None
        assert current(factory) is factory
        raise Refused
    assert current(factory) is native
    assert current(None) is factory
    with compiled_autograd.enable():
        assert current(native) is native


def test_hooks_of_a_root_that_is_not_needed_are_called_while_another_thread_compiles() -> None:
    begun, done = threading.Event(), threading.Event()

    def compile_meanwhile() -> None:
        with compiled_autograd.enable():
            begun.set()
            done.wait()

    def retained() -> Tensor | None:
        x, other = leaf(3), leaf(3)
        (y := x * 2).retain_grad()
        y.backward(torch.ones(3), inputs=[other])
        return y.grad

    alone = retained()
    thread = threading.Thread(target=compile_meanwhile)
    thread.start()
    begun.wait()
    try:
        beside = retained()
    finally:
        done.set()
        thread.join()
    assert alone is not None and beside is not None and torch.equal(alone, beside)


def test_it_belongs_to_the_thread() -> None:
    def other(_: int) -> None:
        assert compiled_autograd.set_autograd_compiler(None) is None
        with torch.enable_grad():
            plain()

    with compiled_autograd.enable():
        in_threads(other, 1)
        assert sum(counts()) == 0
        plain()
        assert counts() == (1, 0, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: compiled_autograd.enable(3).__enter__(),
        lambda: compiled_autograd.enable(dynamic="yes").__enter__(),
        lambda: compiled_autograd.set_autograd_compiler(3),
        lambda: compiled_autograd.set_verbose_logger("print"),
    ],
)
def test_a_wrong_argument_is_an_error_that_says_what_was_expected(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"callable|None|bool|expected"):
        call()


# ---- the logger


def test_the_logger_is_told_of_new_nodes_and_changed_sizes_and_of_no_hits() -> None:
    messages: list[str] = []
    assert compiled_autograd.set_verbose_logger(messages.append) is None
    with compiled_autograd.enable():
        plain()
        assert len(messages) == 1 and "new node" in messages.pop()
        plain()
        assert not messages
        plain(size=5)
        text = "".join(messages)
        assert "Backward0" in text and "3" in text and "5" in text
        messages.clear()
        leaf(3, 4).sin().exp().sum().backward()
        assert "ExpBackward0" in "".join(messages)
    assert compiled_autograd.set_verbose_logger(None) == messages.append
    assert compiled_autograd.set_verbose_logger(None) is None


# ---- compilers written in Python


class Taping:
    """A compiler that notes the operators of a backward and repeats them."""

    def __init__(self, raises_in: str = "", off_by: int = 0, substitutes: bool = False) -> None:
        self.raises_in, self.off_by, self.substitutes = raises_in, off_by, substitutes
        self.events: list[str] = []
        self.runs: list[tuple[Any, ...]] = []
        self.around = contextlib.ExitStack()

    def happens(self, name: str) -> None:
        self.events.append(name)
        if name == self.raises_in:
            raise Refused(name)

    def begin_capture(self, inputs: list[Tensor], sizes: list[int]) -> Any:
        self.happens("begin_capture")
        self.inputs = [t.clone() for t in inputs] if self.substitutes else list(inputs)
        self.sizes = list(sizes)
        self.tape = self.around.enter_context(Tape())
        return (self.inputs, self.sizes) if self.substitutes else None

    def end_capture(self, outputs: list[Any]) -> Any:
        self.outputs = list(outputs)
        self.happens("end_capture")
        self.around.close()
        return self.wrapper, self.compiled

    def close(self) -> None:
        self.around.close()
        self.happens("close")

    def wrapper(self, compiled: Any, inputs: Any, sizes: Any, scalars: Any, hooks: Any) -> list[Any]:
        assert compiled == self.compiled
        self.happens("run")
        self.runs.append((len(inputs), list(sizes), scalars, hooks))
        return [t if t is None or not self.off_by else t + self.off_by for t in compiled(inputs, sizes)]

    def compiled(self, inputs: list[Tensor], sizes: list[int]) -> list[Any]:
        now = {id(was): is_now for was, is_now in zip(self.inputs, inputs, strict=True)}
        numbers = dict(zip(self.sizes, sizes, strict=True))

        def current(value: Any) -> Any:
            return now.get(id(value), value) if isinstance(value, Tensor) else numbers.get(value, value)

        def is_leaf(value: Any) -> bool:
            return not isinstance(value, (list, tuple, dict))

        for function, args, kwargs, was in self.tape.calls:
            args, kwargs = pytree.tree_map(current, (tuple(args), dict(kwargs)), is_leaf=is_leaf)
            result = function(*args, **kwargs)
            now.update(zip(map(id, pytree.tree_leaves(was)), pytree.tree_leaves(result), strict=True))
        return [current(value) for value in self.outputs]


def makers(**how: Any) -> tuple[Callable[[], Taping], list[Taping]]:
    """A factory of compilers, and those that it has made."""
    made: list[Taping] = []
    return lambda: (made.append(Taping(**how)), made[-1])[1], made


@named(lambda program: program.opaque == () and program.captures is not None)
def test_captured_by_a_python_compiler_it_equals_eager(name: str) -> None:
    factory, made = makers()
    told = check(name, compiler=factory, dynamic=False)
    captures, hits, left = counts()
    assert captures <= len(made) and left == 0 and captures + hits == told.backwards
    assert all(compiler.events[:3] == ["begin_capture", "end_capture", "close"] for compiler in made)


def test_captured_with_what_a_python_compiler_gives_in_exchange() -> None:
    expected, (factory, made) = plain(), makers(substitutes=True)
    with compiled_autograd.enable(factory):
        assert torch.equal(plain(), expected) and torch.equal(plain(), expected)
    assert counts() == (1, 1, 0) and len(made) == 1
    assert made[0].tape.calls and made[0].runs
    assert all(scalars == [] and hooks == [] for _, _, scalars, hooks in made[0].runs)


def test_captured_with_dynamic_sizes_a_python_compiler_is_told_them() -> None:
    expected, (factory, made) = [plain(size) for size in (3, 5, 9)], makers()
    with compiled_autograd.enable(factory, dynamic=True):
        assert all(torch.equal(plain(size), want) for size, want in zip((3, 5, 9), expected, strict=True))
    assert len(made) == 1 and counts() == (1, 2, 0)
    for size, (_, sizes, _, _) in zip((5, 9), made[0].runs[-2:], strict=True):
        assert size in sizes


@pytest.mark.parametrize("where", ["begin_capture", "end_capture", "run"])
def test_an_error_of_a_python_compiler_surfaces_and_it_is_closed(where: str) -> None:
    expected, (factory, made) = plain(), makers(raises_in=where)
    with compiled_autograd.enable(factory):
        with pytest.raises(Refused, match=where):
            for _ in range(2):
                plain()
    assert "close" in made[0].events
    compiled_autograd.clear_cache()
    factory, made = makers()
    with compiled_autograd.enable(factory):
        assert torch.equal(plain(), expected)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("compiler", "wanted"),
    [
        (object(), "begin_capture"),
        (type("Half", (Taping,), {"end_capture": lambda *_: 3})(), "runtime_wrapper"),
        (type("Short", (Taping,), {"wrapper": lambda *_: []})(), "output"),
        (type("None", (Taping,), {"wrapper": lambda *_: 3})(), "list"),
    ],
)
def test_what_a_python_compiler_must_give_is_said(compiler: Any, wanted: str) -> None:
    with compiled_autograd.enable(lambda: compiler):
        with pytest.raises((TypeError, ValueError, AttributeError), match=wanted):
            for _ in range(2):
                plain()
    assert torch.equal(plain(), plain())


def test_the_shadow_mode_notices_a_wrong_result() -> None:
    factory, _ = makers(off_by=1)
    with magneto.config.patch(compiled_autograd_verify=True), compiled_autograd.enable(factory):
        with pytest.raises(magneto.InternalError):
            for _ in range(2):
                plain()


# ---- what happens in the middle of a backward


@pytest.mark.parametrize(
    "change",
    [
        compiled_autograd.clear_cache,
        magneto.reset,
        lambda: compiled_autograd.set_autograd_compiler(None),
        lambda: compiled_autograd.set_autograd_compiler(compiled_autograd.native),
        lambda: compiled_autograd.enable(lambda: Taping()).__enter__(),
        torch.enable_grad()(plain),
        gc.collect,
    ],
)
def test_a_hook_may_change_what_is_compiled(change: Callable[[], Any]) -> None:
    def gradient(hook: Callable[[Tensor], Any]) -> Tensor | None:
        x = torch.arange(3.0, requires_grad=True)
        (y := x.sin()).register_hook(hook)
        (y.exp() * y).sum().backward()
        return x.grad

    expected = gradient(lambda _: None)
    for changes_at in (0, 1, 2):
        magneto.reset()
        with compiled_autograd.enable():
            for index in range(4):
                when = index == changes_at
                assert torch.equal(gradient(lambda _, when=when: (change() if when else None, None)[1]), expected)


# ---- beside others


def test_the_cache_keeps_no_tensor_of_the_program() -> None:
    with compiled_autograd.enable():
        refs = []
        for _ in range(3):
            model, x = mlp(4, 8, 2), torch.randn(3, 4)
            out = model(x)
            given = torch.randn(3, 2)
            out.backward(given)
            refs += [weakref.ref(t) for t in (x, out, given, *model.parameters(), *gradients(model))]
            del model, x, out, given
        gc.collect()
        assert counts() == (1, 2, 0)
        assert [ref() is not None for ref in refs] == [False] * len(refs)


def test_captured_backwards_of_compiled_modules_equal_eager() -> None:
    def story(wrap: Callable[[nn.Module], Any]) -> Iterator[Any]:
        call = wrap(model := mlp(4, 8, 2))
        return programs.trained(model, lambda _: call(torch.randn(3, 4)).square().mean())

    expected = programs.tell(lambda: story(lambda model: model))
    with compiled_autograd.enable():
        actual = programs.tell(lambda: story(magneto.compile))
    assert programs.difference(expected, actual) is None
    assert counts() == (1, programs.STEPS - 1, 0)
    assert magneto.counters["stats"]["hits"] >= programs.STEPS - 2


def test_captured_inside_of_a_compiled_step_equals_eager() -> None:
    def story(wrap: Callable[[Any], Any]) -> Iterator[Any]:
        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            return loss

        model, call = mlp(4, 8, 2), wrap(step)
        for _ in range(12):
            model.zero_grad()
            yield call(torch.randn(3, 4)), gradients(model)

    expected = programs.tell(lambda: story(lambda step: step))
    with compiled_autograd.enable():
        actual = programs.tell(lambda: story(magneto.compile))
    assert programs.difference(expected, actual) is None


def test_captured_after_a_transform_of_torch_func_which_takes_the_hook_away() -> None:
    with compiled_autograd.enable():
        torch.func.grad(torch.sum)(torch.ones(3))
        plain()
    assert counts()[0] == 1


BESIDE_TORCH = """
    import magneto, torch
    from magneto import compiled_autograd as ours
    from torch._dynamo import compiled_autograd as theirs

    def gradient():
        x = (torch.arange(12.0).reshape(3, 4) / 7).requires_grad_()
        (x.sin() * x).exp().sum().backward()
        return x.grad

    def compiler(graph):
        return torch.compile(graph, backend="eager")

    def same():
        for _ in range(2):
            assert torch.equal(gradient(), expected)

    def hits():
        return magneto.counters["compiled_autograd"]["hits"]

    expected = gradient()
    for turn in range(2):
        if {theirs_first} or turn:
            with theirs._enable(compiler):
                same()
        before = hits()
        with ours.enable():
            same()
        assert hits() > before
        same()
        assert hits() <= before + 2
    with theirs._enable(compiler):
        with ours.enable():
            same()
        same()
    with ours.enable():
        with theirs._enable(compiler):
            same()
        same()
    same()
    print("done")
"""


@pytest.mark.parametrize("theirs_first", [True, False])
def test_torchs_own_compiled_autograd_works_before_and_after(theirs_first: bool) -> None:
    script = textwrap.dedent(BESIDE_TORCH).replace("{theirs_first}", str(theirs_first))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
