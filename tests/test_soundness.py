"""Compiled functions give eager's results, effects and errors, whatever the program does between two calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import weakref

import magneto
import pytest
import torch
from soundness import effects, identity, reads, runner, tensors
from torch import Tensor

assert effects and identity and reads and tensors  # importing them registers their programs


@pytest.mark.parametrize("name", runner.PROGRAMS)
def test_compiled_calls_equal_eager_calls(name: str) -> None:
    found = runner.difference(name, runner.eager, runner.compiled)
    assert found is None, found


@pytest.mark.parametrize("name", runner.PROGRAMS)
def test_a_result_that_never_changes_would_be_noticed(name: str) -> None:
    """A program whose calls all look alike would prove nothing."""
    assert runner.difference(name, runner.eager, runner.frozen) is not None


@pytest.mark.parametrize("name", runner.PROGRAMS)
def test_programs_are_repeatable(name: str) -> None:
    """Two eager runs agree, so that a difference is the compiler's."""
    found = runner.difference(name, runner.eager, runner.eager)
    assert found is None, found


def compiled_after(function: object, *args: object) -> object:
    compiled = magneto.compile(function)
    for _ in range(2):
        compiled(*args)
    return compiled


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def test_a_compiled_function_does_not_keep_its_first_argument() -> None:
    compiled = magneto.compile(lambda x: x.view(2, 2) * 2)
    x = runner.base()
    seen = weakref.ref(x)
    compiled(x)
    del x
    assert seen() is None


def test_a_watched_call_lets_go_of_its_temporaries() -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = [0]

    def kernel(x: Tensor) -> Tensor:
        alive.append(weakref.ref(x))
        most[0] = max(most[0], sum(tensor() is not None for tensor in alive))
        return x * 1

    library = torch.library.Library("magneto_soundness_temporaries", "FRAGMENT")
    library.define("look(Tensor x) -> Tensor")
    library.impl("look", kernel, "CPU")
    look = torch.ops.magneto_soundness_temporaries.look.default

    def call(x: Tensor) -> Tensor:
        for _ in range(20):
            look(x)
            x = x.mul(2)
        return x

    call(runner.base())
    eager = most[0]
    alive.clear()
    most[0] = 0
    magneto.compile(call)(runner.base())
    assert most[0] <= eager + 2


def test_results_share_no_memory_with_later_results() -> None:
    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.unsafe_split(torch.tensor([1.0, 2.0, 3.0, 4.0]), 2)[0], x * 2

    compiled = compiled_after(call, runner.base())
    compiled(runner.base())[0].zero_()
    assert torch.equal(compiled(runner.base())[0], torch.tensor([1.0, 2.0]))


def test_an_older_tuple_comes_back_as_the_same_object() -> None:
    pair = (1, (2, 3))
    compiled = compiled_after(lambda x: (x * 2, pair), runner.base())
    assert compiled(runner.base())[1] is pair


def run_apart(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, which it may bring down."""
    start = "import sys, gc, threading\nimport magneto, torch\ntorch.set_grad_enabled(False)\n"
    source = start + textwrap.dedent(program)
    paths = f"import sys\nsys.path[:0] = {[path for path in sys.path if path]!r}\n"
    return subprocess.run([sys.executable, "-c", paths + source], capture_output=True, text=True, timeout=300)


CRASHES = {
    "keyword that is no valid text": """
        f = magneto.compile(lambda x, **more: x * len(more))
        for _ in range(3):
            assert f(torch.ones(1), **{"\\ud800": 1}).item() == 1
        """,
    "argument changed by another thread": """
        pair = [[1, "a"], torch.randn(400, 400)]
        f = magneto.compile(lambda pair: (pair[1] @ pair[1] @ pair[1], pair[0]))
        f(pair), f(pair)
        stop = []
        def replace():
            while not stop:
                pair[0] = [1, "a"]
        thread = threading.Thread(target=replace)
        thread.start()
        wrong = [r for r in (f(pair)[1] for _ in range(300)) if r != [1, "a"]]
        stop.append(1)
        thread.join()
        assert not wrong
        """,
    "argument changed by an operator": """
        library = torch.library.Library("magneto_soundness_crash", "FRAGMENT")
        library.define("clear(Tensor x) -> Tensor")
        def kernel(x):
            global others
            outer.clear()
            others = [[9, 9, 9] for _ in range(1000)]
            return x * 2
        library.impl("clear", kernel, "CPU")
        outer = []
        def call(x, outer):
            inner = outer[0]
            return torch.ops.magneto_soundness_crash.clear(x), inner
        f = magneto.compile(call)
        for _ in range(6):
            outer[:] = [[1, "a"]]
            outer[0][0] = 1
            assert f(torch.ones(1), outer)[1] == [1, "a"]
        """,
    "compiled function dropped by its own operator": """
        library = torch.library.Library("magneto_soundness_crash", "FRAGMENT")
        library.define("drop(Tensor x) -> Tensor")
        def kernel(x):
            f.reset()
            gc.collect()
            return x * 2
        library.impl("drop", kernel, "CPU")
        f = magneto.compile(lambda x: torch.ops.magneto_soundness_crash.drop(x) + 1)
        for _ in range(6):
            assert f(torch.ones(1)).item() == 3
        """,
    "deep recursion": """
        def call(x, n):
            return x if n == 0 else call(x + 1, n - 1)
        f = magneto.compile(call)
        assert f(torch.zeros(1), 900).item() == 900
        assert f(torch.zeros(1), 300).item() == f(torch.zeros(1), 300).item() == 300
        try:
            f(torch.zeros(1), 100000)
        except RecursionError:
            print("stopped")
        """,
    "argument that contains itself": """
        loop = [torch.ones(1)]
        loop.append(loop)
        f = magneto.compile(lambda loop: loop[0] * 2)
        assert f(loop).item() == f(loop).item() == 2
        """,
    "thousands of arguments": """
        f = magneto.compile(lambda *xs, **more: sum(xs) + sum(more.values()))
        xs = [torch.ones(1) for _ in range(2000)]
        more = {f"k{i}": torch.ones(1) for i in range(200)}
        for _ in range(3):
            assert f(*xs, **more).item() == 2200
        """,
}


@pytest.mark.parametrize("name", CRASHES)
def test_nothing_brings_the_interpreter_down(name: str) -> None:
    done = run_apart(CRASHES[name])
    assert done.returncode == 0, done.stderr[-2000:]
