"""Exceptions in user code: the same error, the same user lines in the traceback, the same state as eager leaves."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import magneto
import pytest
import torch
from torch import nn
from zoo import harness, models


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def user_lines(error: BaseException) -> list[tuple[str, int | None, str | None]]:
    """The frames of this file in a traceback, but for the one that made the call."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.lineno, f.line) for f in frames if f.filename == __file__ and f.name != "raised_by"]


def raised_by(function: Callable[..., Any], *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def same_error(expected: BaseException, actual: BaseException) -> None:
    assert type(expected) is type(actual)
    assert str(expected) == str(actual)
    assert user_lines(expected) == user_lines(actual)
    for name in ("__cause__", "__context__"):
        left, right = getattr(expected, name), getattr(actual, name)
        assert (left is None) == (right is None), name
        if left is not None:
            same_error(left, right)
    assert expected.__suppress_context__ == actual.__suppress_context__


def clean() -> bool:
    """No trace of a watched call is left."""
    return not magneto._C.hook_installed() and not magneto.is_compiling() and sys.exc_info() == (None, None, None)


class Failing(nn.Module):
    """Raises on a chosen call, deep in nested modules and functions, after some effects."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.log: list[str] = []
        self.fail_at = fail_at

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        if self.calls == self.fail_at:
            raise ValueError(f"call {self.calls} fails")
        return x * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.log.append(f"start {self.calls}")
        self.seen += 1
        x = self.inner(x)
        try:
            x = self.helper(x)
        finally:
            self.log.append(f"end {self.calls}")
        return x


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_an_exception_in_any_call_leaves_the_state_of_eager(fail_at: int) -> None:
    torch.manual_seed(0)
    eager, other = Failing(fail_at), Failing(fail_at)
    other.load_state_dict(eager.state_dict())
    compiled = magneto.compile(other)
    for call in range(1, 6):
        x = torch.full((2, 4), float(call))
        if call == fail_at:
            same_error(raised_by(eager, x), raised_by(compiled, x))
        else:
            assert torch.equal(eager(x), compiled(x))
        assert (eager.calls, eager.log) == (other.calls, other.log)
        assert torch.equal(eager.seen, other.seen)
        assert clean()


def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y @ torch.ones(7, 7)


def bad_index(x: torch.Tensor) -> torch.Tensor:
    return x[10]


def missing_attribute(x: torch.Tensor) -> torch.Tensor:
    return x.no_such_method()


def missing_name(x: torch.Tensor) -> torch.Tensor:
    return x + no_such_name  # noqa: F821


def wrong_arguments(x: torch.Tensor) -> torch.Tensor:
    return bad_index(x, x)  # type: ignore[call-arg]


def division(x: torch.Tensor) -> torch.Tensor:
    return x * (1 // (len(x) - len(x)))


def unpacking(x: torch.Tensor) -> torch.Tensor:
    a, b = (x, x, x)
    return a + b


def assertion(x: torch.Tensor) -> torch.Tensor:
    assert x.dim() == 7, "seven dimensions, please"
    return x


def chained(x: torch.Tensor) -> torch.Tensor:
    try:
        return bad_index(x)
    except IndexError as error:
        raise KeyError("chained") from error


def in_context(x: torch.Tensor) -> torch.Tensor:
    try:
        return bad_index(x)
    except IndexError:
        return missing_attribute(x)


def from_none(x: torch.Tensor) -> torch.Tensor:
    try:
        return bad_index(x)
    except IndexError:
        raise RuntimeError("hidden") from None


def reraised(x: torch.Tensor) -> torch.Tensor:
    try:
        return bad_index(x)
    except IndexError:
        raise
    finally:
        x = x + 1


def in_a_comprehension(x: torch.Tensor) -> torch.Tensor:
    return sum([bad_index(x) if i == 2 else x for i in range(4)])


def in_a_generator(x: torch.Tensor) -> torch.Tensor:
    def rows() -> Iterator[torch.Tensor]:
        yield x
        yield bad_index(x)

    return torch.stack(list(rows()))


def in_a_callback(x: torch.Tensor) -> torch.Tensor:
    return sorted([x, x], key=lambda t: t[10])[0]


def in_a_property(x: torch.Tensor) -> torch.Tensor:
    class Lazy:
        @property
        def value(self) -> torch.Tensor:
            return bad_index(x)

    return Lazy().value


def in_an_init(x: torch.Tensor) -> torch.Tensor:
    class Broken:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = bad_index(value)

    return Broken(x).value


def in_an_operator(x: torch.Tensor) -> torch.Tensor:
    class Broken:
        def __radd__(self, other: Any) -> Any:
            raise TypeError("cannot be added")

        __add__ = __radd__

    return Broken() + x


def through_a_context_manager(x: torch.Tensor) -> torch.Tensor:
    @contextlib.contextmanager
    def named() -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            raise LookupError("through the manager") from error

    with named():
        return bad_index(x)


def stop_iteration(x: torch.Tensor) -> torch.Tensor:
    return next(iter([])) + x


def generator_raises_stop(x: torch.Tensor) -> torch.Tensor:
    def rows() -> Iterator[torch.Tensor]:
        yield x
        raise StopIteration

    return torch.stack(list(rows()))


def exception_group(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
    except* ValueError:
        x = x + 1
    return x


def custom_exception(x: torch.Tensor) -> torch.Tensor:
    class Mine(Exception):
        def __str__(self) -> str:
            return "mine, with a text of its own"

    raise Mine


def system_exit(x: torch.Tensor) -> torch.Tensor:
    raise SystemExit(3)


RAISING = [
    wrong_shape,
    bad_index,
    missing_attribute,
    missing_name,
    wrong_arguments,
    division,
    unpacking,
    assertion,
    chained,
    in_context,
    from_none,
    reraised,
    in_a_comprehension,
    in_a_generator,
    in_a_callback,
    in_a_property,
    in_an_init,
    in_an_operator,
    through_a_context_manager,
    stop_iteration,
    generator_raises_stop,
    exception_group,
    custom_exception,
    system_exit,
]


@pytest.mark.parametrize("function", RAISING, ids=lambda function: function.__name__)
def test_the_traceback_is_that_of_eager(function: Callable[..., Any]) -> None:
    x = torch.ones(2, 3)
    compiled = magneto.compile(function)
    for _ in range(3):
        expected, actual = raised_by(function, x), raised_by(compiled, x)
        if type(expected).__name__ == "Mine":
            # The class is made anew by each call.
            assert (type(actual).__name__, str(actual)) == ("Mine", str(expected))
            assert user_lines(expected) == user_lines(actual)
        else:
            same_error(expected, actual)
        assert clean()


def test_an_exception_that_only_other_inputs_raise() -> None:
    """Compiled for one input, then called with one for which eager raises."""

    def picky(x: torch.Tensor, index: int) -> torch.Tensor:
        return (x * 2)[index]

    compiled = magneto.compile(picky)
    x = torch.arange(3.0)
    for index in (0, 0, 1, 7, 7, 0, "a", None, 1):
        if index in (7, "a"):
            same_error(raised_by(picky, x, index), raised_by(compiled, x, index))
        else:
            assert torch.equal(picky(x, index), compiled(x, index))  # type: ignore[arg-type]
        assert clean()


def test_a_kernel_that_raises_in_a_compiled_call() -> None:
    """The values decide: an index out of range is found by the kernel, in eager and in the compiled call alike."""
    table = nn.Embedding(5, 3)
    compiled = magneto.compile(table)
    good, bad = torch.tensor([0, 4]), torch.tensor([0, 9])
    for _ in range(3):
        assert torch.equal(table(good), compiled(good))
        expected, actual = raised_by(table, bad), raised_by(compiled, bad)
        assert type(expected) is type(actual)
        assert str(expected).splitlines()[0] == str(actual).splitlines()[0]
        assert clean()


def test_wrong_arguments_are_refused_as_by_eager() -> None:
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)
    (x,), _ = make_inputs(0, 0)
    for _ in range(2):
        compiled(x)
        for args, kwargs in (
            ((), {}),
            ((x, x), {}),
            ((x,), {"y": 1}),
            ((None,), {}),
            (("text",), {}),
            ((x.int(),), {}),
        ):
            expected = raised_by(lambda a=args, k=kwargs: module(*a, **k))
            actual = raised_by(lambda a=args, k=kwargs: compiled(*a, **k))
            assert (type(expected), str(expected)) == (type(actual), str(actual))
        assert torch.equal(module(x), compiled(x))


class Handling(nn.Module):
    """Uses exceptions as control flow, as libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.order: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x = self.missing(x)
        except AttributeError:
            x = self.linear(x)
        for attempt in range(3):
            try:
                if attempt < 2:
                    raise LookupError(attempt)
                x = x + attempt
            except LookupError as error:
                x = x * (error.args[0] + 2)
                continue
            else:
                x = x - 1
            finally:
                x = x / 2
        with contextlib.suppress(ZeroDivisionError):
            x = x + 1 // 0
        try:
            [][3]
        except IndexError:
            return x.relu()
        return x


def test_exceptions_handled_inside_forward() -> None:
    torch.manual_seed(0)
    pair = harness.Pair(Handling())
    for seed in range(4):
        pair.check(lambda s=seed: ((torch.full((2, 4), float(s)),), {}))
        assert clean()


def test_generators_that_are_closed_or_thrown_into() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        log: list[str] = []

        def steps() -> Iterator[torch.Tensor]:
            try:
                yield x + 1
                yield x + 2
            except ValueError:
                log.append("thrown into")
                yield x + 3
            finally:
                log.append("closed")

        first = steps()
        total = next(first)
        total = total + first.throw(ValueError("now"))  # type: ignore[attr-defined]
        first.close()  # type: ignore[attr-defined]
        second = steps()
        total = total + next(second)
        del second
        return total, log

    pair = harness.Pair(program)
    for seed in range(4):
        pair.check(lambda s=seed: ((torch.full((3,), float(s)),), {}))


def test_a_recursion_error_surfaces() -> None:
    def deeper(x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        return deeper(x + 0, depth + 1)

    x = torch.ones(1)
    compiled = magneto.compile(deeper)
    for _ in range(2):
        assert type(raised_by(deeper, x)) is RecursionError
        assert type(raised_by(compiled, x)) is RecursionError
        assert clean()


def test_deep_recursion_that_ends_is_right() -> None:
    def countdown(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if depth == 0 else countdown(x + 1, depth - 1)

    pair = harness.Pair(countdown)
    for _ in range(3):
        pair.check(lambda: ((torch.zeros(2), 200), {}))


def test_an_exception_in_a_signal_handler_reaches_the_watched_call() -> None:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        pytest.skip("signals need the main thread and a timer")

    class Alarm(Exception):
        pass

    def ring(number: int, frame: Any) -> None:
        raise Alarm

    def patient(x: torch.Tensor) -> torch.Tensor:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            x = x + 0
        return x

    old = signal.signal(signal.SIGALRM, ring)
    try:
        compiled = magneto.compile(patient)
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            error = raised_by(compiled, torch.ones(1))
            assert type(error) is Alarm
            assert ("patient" in {name for name, _, _ in user_lines(error)}) and clean()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Where the tests run in the background, interrupts are ignored."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread is interrupted")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_keyboard_interrupt_during_the_watched_call(interruptible: None) -> None:

    class Interrupted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.interrupt = True
            self.cleaned = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                if self.interrupt:
                    _thread.interrupt_main()
                    for _ in range(1_000_000):
                        pass
                return x + 1
            finally:
                if self.interrupt:
                    self.cleaned += 1

    module = Interrupted()
    compiled = magneto.compile(module)
    assert type(raised_by(compiled, torch.ones(1))) is KeyboardInterrupt
    assert module.cleaned == 1
    assert clean()
    module.interrupt = False
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(1)), torch.full((1,), 2.0))


def test_a_signal_handler_without_an_exception_is_served_once() -> None:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "raise_signal"):
        pytest.skip("signals need the main thread")
    calls: list[int] = []

    def noisy(x: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGUSR1)
        for _ in range(1000):
            pass
        return x + len(calls)

    old = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    try:
        compiled = magneto.compile(noisy)
        for call in range(1, 4):
            assert torch.equal(compiled(torch.zeros(1)), torch.full((1,), float(call)))
            assert len(calls) == call
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_what_a_failed_call_kept_alive_is_let_go() -> None:
    """A traceback holds the frames; when it goes, their locals go."""
    import gc
    import weakref

    kept: list[weakref.ref[Any]] = []

    def fails(x: torch.Tensor) -> torch.Tensor:
        local = x + 1
        kept.append(weakref.ref(local))
        raise ValueError("no")

    compiled = magneto.compile(fails)
    for _ in range(3):
        error = raised_by(compiled, torch.ones(1))
        assert kept[-1]() is not None
        del error
        gc.collect()
        assert kept[-1]() is None


# -- errors that depend on numbers and sizes which a capture leaves open -----------------------------------------------


HANDLED = [
    "x[k]", "x[0:k] + x", "-x[k]", "x.view(k)", "x.narrow(0, 0, k)", "x.sum(dim=k)", "torch.softmax(x, k)",
    "torch.cat([x, x], dim=k)", "x.transpose(0, k)", "x.chunk(k)[0]", "x.unfold(0, k, 1)", "torch.arange(k)",
    "torch.ones(k, 2)", "x.topk(k)[0]", "x @ torch.ones(k)", "x.expand(k)", "x.reshape(k, -1)", "F.pad(x, (0, k))",
    "x.unflatten(0, (k, -1))", "torch.dropout(x, float(k), False)", "x.index_fill_(0, torch.tensor([k]), 1)",
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("expression", HANDLED)
def test_an_error_that_is_handled_comes_only_where_it_comes_in_eager(expression: str, dynamic: bool | None) -> None:
    space: dict[str, Any] = {"torch": torch, "F": nn.functional}
    source = (
        f"def f(x, k):\n  try: return {expression}, ''\n  except Exception as e: return x * 2, str(e).split('\\n')[0]"
    )
    exec(source, space)
    for numbers in ((7, 9, 2, 3), (-7, -9, 3, 5), (11, 12, 5, 1), (2, 3, 7, 9), (10**20, 10**21, 2, 4)):
        compiled = magneto.compile(space["f"], dynamic=dynamic)
        for k in (*numbers, *numbers):
            expected, actual = (function(torch.arange(5.0), k) for function in (space["f"], compiled))
            assert actual[1] == expected[1], (k, numbers)
            assert torch.equal(actual[0], expected[0]), (k, numbers)


def test_an_error_that_ends_an_iteration_comes_where_the_tensor_ends() -> None:
    class Rows:
        def __init__(self, count: int) -> None:
            self.data = torch.arange(float(count))

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.data[index]

    compiled = magneto.compile(lambda rows: torch.stack([row * 2 for row in rows]).sum())
    assert [compiled(Rows(n)).item() for n in (3, 4, 5, 6, 3)] == [6, 12, 20, 30, 6]
