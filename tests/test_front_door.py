"""magneto.compile in all its forms, fullgraph, reset, is_compiling and is_supported, and their error messages."""

import functools
import gc
import inspect
import subprocess
import sys
import threading
import warnings
import weakref

import magneto
import pytest
import torch
from magneto import _C
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh")


def scale(x, factor=2.0, *, shift=1.0):
    """Scales and shifts."""
    return torch.relu(x) * factor + shift


disabled_scale = magneto.disable(scale)


def check_compiled(compiled, *args, expected, calls=3):
    """Calls several times, so that the later calls may use what the first captured, and compares bit for bit."""
    for _ in range(calls):
        assert torch.equal(compiled(*args), expected)


def test_compile_as_a_function_equals_eager_and_compiles():
    compiled = magneto.compile(scale)
    x = torch.randn(3, 4)
    check_compiled(compiled, x, expected=scale(x))
    assert compiled.state() == "compiled"
    assert compiled.variants()[0]["hits"] == 2
    assert torch.equal(compiled(x, 3.0, shift=0.5), scale(x, 3.0, shift=0.5))
    assert torch.equal(compiled(torch.ones(5)), scale(torch.ones(5)))


def test_compile_as_decorator_without_and_with_arguments():
    @magneto.compile
    def plain(x):
        return x.sin() + 1

    @magneto.compile()
    def empty(x):
        return x.sin() + 1

    @magneto.compile(dynamic=False, backend="eager", mode="default")
    def full(x):
        return x.sin() + 1

    x = torch.randn(4)
    for compiled in (plain, empty, full):
        check_compiled(compiled, x, expected=x.sin() + 1)
        assert compiled.state() == "compiled"


def test_compiled_function_looks_like_the_original():
    compiled = magneto.compile(scale)
    assert compiled.__name__ == "scale"
    assert compiled.__qualname__ == scale.__qualname__
    assert compiled.__doc__ == scale.__doc__
    assert compiled.__module__ == scale.__module__
    assert compiled.__wrapped__ is scale
    assert compiled.fn is scale
    assert inspect.signature(compiled) == inspect.signature(scale)


def test_compile_on_methods_binds_self():
    class Thing:
        def __init__(self, weight):
            self.weight = weight

        @magneto.compile
        def apply(self, x):
            return x * self.weight + 1

        @magneto.compile
        @staticmethod
        def inner_static(x):
            return x + 2

        @staticmethod
        @magneto.compile
        def outer_static(x):
            return x + 2

        @magneto.compile
        @classmethod
        def of_class(cls, x):
            return x + len(cls.__name__)

    x = torch.randn(3)
    one, two = Thing(2.0), Thing(3.0)
    for _ in range(3):
        assert torch.equal(one.apply(x), x * 2.0 + 1)
        assert torch.equal(two.apply(x), x * 3.0 + 1)
        assert torch.equal(Thing.apply(one, x), x * 2.0 + 1)
        assert torch.equal(one.inner_static(x), x + 2)
        assert torch.equal(Thing.outer_static(x), x + 2)
        assert torch.equal(Thing.of_class(x), x + 5)


def test_compile_on_a_bound_method():
    class Thing:
        weight = 2.0

        def apply(self, x):
            return x * self.weight

    thing = Thing()
    compiled = magneto.compile(thing.apply)
    x = torch.randn(3)
    check_compiled(compiled, x, expected=x * 2.0)
    thing.weight = 5.0
    check_compiled(compiled, x, expected=x * 5.0)


def test_compile_on_a_callable_object_and_on_a_partial():
    class Adder:
        def __call__(self, x):
            return x + 1

    x = torch.randn(3)
    check_compiled(magneto.compile(Adder()), x, expected=x + 1)
    check_compiled(magneto.compile(functools.partial(scale, factor=3.0)), x, expected=scale(x, 3.0))


def test_compile_on_a_module_class_compiles_calls_of_its_instances():
    @magneto.compile
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(x).relu()

    assert isinstance(Net, type)
    one, two = Net().eval(), Net().eval()
    x = torch.randn(3, 4)
    for net in (one, two, one):
        check_compiled(net, x, expected=net.linear(x).relu())
    assert sorted(one.state_dict()) == ["linear.bias", "linear.weight"]
    assert Net.__call__.state() == "compiled"
    # Other modules are left alone.
    assert nn.Module.__call__ is not Net.__call__


def test_compile_on_a_plain_class_with_call():
    @magneto.compile
    class Adder:
        def __init__(self, amount):
            self.amount = amount

        def __call__(self, x):
            return x + self.amount

    x = torch.randn(3)
    check_compiled(Adder(2), x, expected=x + 2)
    check_compiled(Adder(3), x, expected=x + 3)


def test_a_class_without_call_is_an_error():
    class Empty:
        pass

    with pytest.raises(magneto.UserError, match=r"Empty has no __call__.*give one of its methods"):
        magneto.compile(Empty)


def test_compiling_twice_compiles_the_original():
    once = magneto.compile(scale)
    assert magneto.compile(once).fn is scale
    module = nn.Linear(2, 2)
    assert magneto.compile(magneto.compile(module))._orig_mod is module


def test_compile_with_disable_gives_back_what_was_given():
    module = nn.Linear(2, 2)
    assert magneto.compile(scale, disable=True) is scale
    assert magneto.compile(module, disable=True) is module
    assert magneto.compile(disable=True)(scale) is scale


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "nativ"}, r"unknown backend 'nativ'; expected one of 'aten_eager', 'eager', 'inductor', 'native'"),
        ({"mode": "fast"}, r"unknown mode 'fast'; expected one of 'default', 'reduce-overhead'"),
        ({"options": {"a": 1}}, r"backend 'native' has no options, got options=\{'a': 1\}"),
        ({"options": {}, "mode": "default"}, r"mode or options, not both"),
    ],
)
def test_wrong_values_are_user_errors_that_say_what_was_expected(arguments, message):
    with pytest.raises(magneto.UserError, match=message):
        magneto.compile(scale, **arguments)
    # Also before there is anything to decorate.
    with pytest.raises(magneto.UserError, match=message):
        magneto.compile(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": 3}, r"backend expects a name \(.*'native'.*\) or a callable .*, got 3 of type int"),
        ({"fullgraph": 1}, r"fullgraph expects True or False, got 1 of type int"),
        ({"disable": "no"}, r"disable expects True or False, got 'no' of type str"),
        ({"dynamic": "auto"}, r"dynamic expects True, False or None, got 'auto' of type str"),
        ({"mode": 1}, r"mode expects one of 'default'.*got 1 of type int"),
        ({"options": [1]}, r"options expects a dict or None, got \[1\] of type list"),
    ],
)
def test_wrong_types_are_user_errors_and_type_errors(arguments, message):
    with pytest.raises(magneto.UserError, match=message) as caught:
        magneto.compile(scale, **arguments)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("door", [magneto.compile, magneto.disable, magneto.explain])
def test_what_cannot_be_called_is_an_error_that_names_it(door):
    with pytest.raises(magneto.UserError, match=rf"{door.__name__} expects a function.*got 3 of type int") as caught:
        door(3)
    assert isinstance(caught.value, TypeError)


def test_exceptions_of_the_function_surface_with_its_traceback():
    def fails(x):
        y = x + 1
        raise KeyError(y.shape[0])

    compiled = magneto.compile(fails)
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            compiled(torch.ones(7))
        assert caught.value.args == (7,)
        assert caught.traceback[-1].name == "fails"


def test_wrong_arguments_raise_what_the_function_would_raise():
    compiled = magneto.compile(scale)
    with pytest.raises(TypeError, match="scale"):
        compiled()
    compiled(torch.ones(2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        compiled(torch.ones(2), nope=1)


def test_fullgraph_passes_results_through_where_capture_works():
    @magneto.compile(fullgraph=True)
    def good(x):
        return x.relu() + 1

    x = torch.randn(3)
    check_compiled(good, x, expected=x.relu() + 1)
    assert good.state() == "compiled"
    assert good.__name__ == "good"


def test_fullgraph_raises_where_capture_fails_and_says_why():
    def bad(x):
        return disabled_scale(x)

    said = r"(?s)fullgraph=True.*bad.*could not be captured.*disabled.*or compile w"
    with pytest.raises(magneto.UserError, match=said):
        magneto.compile(bad, fullgraph=True)(torch.ones(2))
    # Without it the same call is simply eager.
    assert torch.equal(magneto.compile(bad)(torch.ones(2)), scale(torch.ones(2)))


def test_fullgraph_goes_on_raising_after_magneto_has_given_up():
    runs = []

    @magneto.compile(fullgraph=True)
    def bad(x):
        runs.append(1)
        return disabled_scale(x)

    for _ in range(magneto.config.capture_attempts + 3):
        with pytest.raises(magneto.UserError, match="could not be captured"):
            bad(torch.ones(2))
    assert len(runs) <= magneto.config.capture_attempts


def test_fullgraph_on_methods_and_modules():
    class Thing:
        @magneto.compile(fullgraph=True)
        def add(self, x):
            return x + 1

    x = torch.randn(2, 3)
    check_compiled(Thing().add, x, expected=x + 1)
    linear = nn.Linear(3, 2)
    check_compiled(magneto.compile(linear, fullgraph=True), x, expected=linear(x))


def test_fullgraph_is_quiet_when_compiling_is_switched_off():
    @magneto.compile(fullgraph=True)
    def bad(x):
        return disabled_scale(x)

    with magneto.config.patch(enabled=False):
        assert torch.equal(bad(torch.ones(2)), scale(torch.ones(2)))


def test_disable_in_all_its_forms():
    @magneto.disable()
    def one(x):
        return x + 1

    @magneto.disable(recursive=False)
    def two(x):
        return x + 1

    class Thing:
        @magneto.disable
        def method(self, x):
            return x + 1

    x = torch.randn(2)
    for disabled in (one, two, Thing().method, magneto.disable(torch.nn.Identity())):
        assert disabled(x).shape == x.shape
    assert one.__name__ == "one"
    with pytest.raises(magneto.UserError, match="recursive expects True or False, got 3 of type int"):
        magneto.disable(scale, recursive=3)


def test_disable_of_something_compiled_runs_the_original():
    compiled = magneto.compile(scale)
    disabled = magneto.disable(compiled)
    assert disabled.__wrapped__ is scale
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(disabled(x), scale(x))
    assert compiled.state() == "new"

    module = nn.Linear(3, 2)
    off = magneto.disable(magneto.compile(module))
    assert off._orig_mod is module
    assert torch.equal(off(x), module(x))
    assert list(off.state_dict()) == ["weight", "bias"]


def test_is_compiling_is_true_only_while_a_call_is_watched():
    seen = []

    def look(x):
        seen.append(magneto.is_compiling())
        return x + 1

    assert not magneto.is_compiling()
    magneto.compile(look)(torch.ones(2))
    assert seen == [True]
    assert not magneto.is_compiling()
    with magneto.config.patch(enabled=False):
        magneto.compile(look)(torch.ones(2))
    assert seen == [True, False]


def test_reset_drops_what_was_compiled_and_the_counters():
    compiled = magneto.compile(scale)
    module = magneto.compile(nn.Linear(3, 3))
    x = torch.randn(3)
    for _ in range(2):
        compiled(x)
        module(x)
    assert compiled.variants() and module._magneto_call.variants()
    magneto.reset()
    assert compiled.variants() == [] and module._magneto_call.variants() == []
    assert compiled.state() == "new"
    assert magneto.counters["stats"]["captures"] == 0
    check_compiled(compiled, x, expected=scale(x))
    assert magneto.counters["stats"]["captures"] == 1


def test_reset_makes_a_function_that_gave_up_try_again():
    wish = {"fail": True}

    @magneto.compile
    def sometimes(x):
        return (sys._getframe(), scale(x))[1] if wish["fail"] else scale(x)

    for _ in range(magneto.config.capture_attempts + 1):
        sometimes(torch.ones(2))
    assert sometimes.state() == "eager"
    wish["fail"] = False
    magneto.reset()
    check_compiled(sometimes, torch.ones(2), expected=scale(torch.ones(2)))
    assert sometimes.state() == "compiled"


def test_a_dropped_compiled_function_takes_the_original_along():
    def local(x):
        return x + 1

    compiled = magneto.compile(local)
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    dead = weakref.ref(local)
    del local, compiled
    gc.collect()
    assert dead() is None


def test_threads_may_call_compile_and_reset_at_the_same_time():
    compiled = magneto.compile(scale)
    errors = []
    stop = threading.Event()

    def work(seed):
        try:
            with torch.no_grad():
                for i in range(150):
                    x = torch.full((1 + (seed + i) % 5, 3), float(i))
                    assert torch.equal(compiled(x), scale(x))
                    other = magneto.compile(lambda y: y * 2)
                    assert torch.equal(other(x), x * 2)
        except BaseException as error:
            errors.append(error)

    def resets():
        while not stop.is_set():
            magneto.reset()
            stop.wait(0.002)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    resetting = threading.Thread(target=resets)
    for thread in [*threads, resetting]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    resetting.join()
    assert errors == []


def test_is_supported_is_true_here_or_says_why():
    support = magneto.is_supported()
    assert bool(support) == (support.reason == "")
    assert support.reason == _C.supported()


def test_an_unsupported_python_runs_eagerly_and_says_so_once(monkeypatch):
    reason = "Python 9.9 is not known"
    monkeypatch.setattr(_C, "supported", lambda: reason)
    monkeypatch.setattr("magneto.registry._warned", False)
    assert not magneto.is_supported()
    assert magneto.is_supported().reason == reason
    with pytest.warns(RuntimeWarning, match=r"everything runs eagerly.*Python 9\.9 is not known") as caught:
        compiled = magneto.compile(scale)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        magneto.compile(scale)
        assert torch.equal(compiled(torch.ones(2)), scale(torch.ones(2)))
    assert magneto.counters["eager"][reason] >= 1
    assert reason in str(magneto.explain(compiled)(torch.ones(2)))
    with pytest.raises(magneto.UserError, match=r"Python 9\.9 is not known"):
        magneto.compile(scale, fullgraph=True)(torch.ones(2))


def test_import_stays_light():
    code = (
        "import sys, torch; before = set(sys.modules); import magneto; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new & {'transformers', 'numpy', 'sympy', 'torchvision', 'IPython', 'pandas'}), "
        "'torch._dynamo' in set(sys.modules) - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] False"


def test_every_public_name_is_there():
    assert sorted(magneto.__all__) == sorted(set(magneto.__all__))
    for name in magneto.__all__:
        assert getattr(magneto, name) is not None
    assert magneto.__version__.count(".") == 2
    assert issubclass(magneto.UserError, ValueError)
    assert issubclass(magneto.InternalError, RuntimeError)


def test_an_argument_that_is_no_part_of_a_graph_is_told_with_the_line_of_the_call() -> None:
    class Own(torch.Tensor):
        pass

    compiled = magneto.compile(lambda x: x + 1, fullgraph=True)
    with pytest.raises(
        magneto.UserError, match=r"tensor subclass Own\n  at .*test_front_door.py:\d+ in .*\n    .*ones\(2\)"
    ):
        compiled(torch.ones(2).as_subclass(Own))
