"""Wrong arguments to every public function: an exception that says what was expected, never a crash."""

import inspect

import magneto
import pytest
import torch
from magneto import testing

T = torch.zeros(2, 3)


def f(x):
    return x


WRONG = {
    "compile": [((3,), {}), ((f,), {"backend": 3}), ((f,), {"fullgraph": 1}), ((f,), {"unknown": 1}), ((f, f), {})],
    "optimize": [((3,), {}), (("nope",), {}), ((), {"nopython": 1}), ((), {"guard_fail_fn": 3}), ((), {"dynamic": 0})],
    "optimize_assert": [((3,), {}), ((), {"guard_export_fn": "x"}), (("eager", True), {})],
    "OptimizedModule": [((3,), {}), ((), {})],
    "explain": [((3,), {}), ((), {})],
    "record": [((3,), {}), ((), {})],
    "disable": [((3,), {}), ((f,), {"recursive": 3}), ((f, True, 1), {})],
    "run": [((3,), {}), ((f, f), {})],
    "graph_break": [((3,), {}), (("a", "b"), {}), ((), {"message": "a"})],
    "is_compiling": [((1,), {})],
    "is_supported": [((1,), {})],
    "set_stance": [(("eager",), {}), ((3,), {})],
    "reset": [((1,), {})],
    "reset_code_caches": [((1,), {})],
    "allow_in_graph": [((3,), {}), (([3],), {}), ((), {})],
    "disallow_in_graph": [((3,), {}), ((None,), {})],
    "forbid_in_graph": [(("f",), {})],
    "assume_constant_result": [((3,), {})],
    "mark_dynamic": [((3, 0), {}), ((T, 2), {}), ((T, "0"), {}), ((T, True), {}), ((T, 0), {"min": 5}), ((T,), {})]
    + [((T, 0), {"min": "2"}), ((T, 1), {"min": 3, "max": 2})],
    "maybe_mark_dynamic": [((3, 0), {}), ((T, -3), {}), ((T, None), {})],
    "mark_static": [((3,), {}), ((T, [0, 9]), {})],
    "mark_static_address": [((3,), {}), ((T,), {"guard": 1})],
    "register_backend": [((3,), {}), ((f,), {"name": 3}), ((f,), {"tags": "debug"}), ((f,), {"tags": 3})]
    + [((f,), {"name": "native"})],
    "list_backends": [((3,), {}), (("debug",), {}), ((torch.ones(2),), {}), (([3],), {})],
    "lookup_backend": [((3,), {}), (("nope",), {})],
    "on_compile_start": [((3,), {}), ((), {})],
    "on_compile_end": [((3,), {})],
    "remove_callback": [((3,), {})],
    "compile_times": [(("xml",), {}), ((3,), {}), ((), {"aggregate": 1})],
}
CASES = [(name, args, kwargs) for name, wrong in WRONG.items() for args, kwargs in wrong]


def test_every_public_function_is_here():
    public = {name for name in magneto.__all__ if callable(getattr(magneto, name))}
    made_by_magneto = {"Explanation", "Graph"}  # constructed by others
    errors = {name for name in public if inspect.isclass(getattr(magneto, name)) and name.endswith("Error")}
    assert public - made_by_magneto - errors - {"DataDependent"} == set(WRONG)


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)])
def test_wrong_arguments_are_refused_with_a_reason(name, args, kwargs):
    stances = magneto._C.set_stance("default")
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(magneto, name)(*args, **kwargs)
    text = str(caught.value)
    assert len(text) > 15
    # Python's own errors name the function; ours say what was expected, and what came instead.
    ours = isinstance(caught.value, magneto.UserError)
    assert ours or name.rpartition(".")[2] in text or "argument" in text, text
    assert magneto._C.set_stance("default") == stances


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: magneto.config.patch(3).__enter__(), "settings by name"),
        (lambda: magneto.config.patch("cache_limit").__enter__(), "settings by name"),
        (lambda: magneto.config.patch({"nope": 1}).__enter__(), "nope"),
        (lambda: testing.same(1, 2, tol="x"), "tol expects a number"),
        (lambda: testing.same(1, 2, equal_nan=1), "equal_nan expects True or False"),
        (lambda: testing.CompileCounterWithBackend(3), "backend expects a name"),
        (lambda: magneto.set_stance("default")(3), "expects a function"),
        (lambda: magneto.optimize()(3), "optimize expects a function"),
        (lambda: magneto.optimize()(None), "optimize expects a function"),
        (lambda: magneto._C.ScopedFunction(3, "eager"), "expects a callable"),
        (lambda: magneto._C.ScopedFunction(f, "nope"), "'eager', 'skip' or 'run'"),
        (lambda: magneto._C.set_rule(f, "nope"), "unknown rule 'nope'"),
        (lambda: magneto._C.CompiledFunction(3), "needs a callable"),
    ],
)
def test_wrong_arguments_elsewhere_say_what_was_expected(call, words):
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        call()
    assert words in str(caught.value)
