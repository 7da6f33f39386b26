"""Guards that users build, with torch: tensor metadata, torch's state, and modules whose guards run no code."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import magneto.guards as guards
import pytest
import torch


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if armed:
            raise AssertionError("a guard called __torch_function__")
        return super().__torch_function__(func, types, args, kwargs or {})


armed = False


def match(tensor: torch.Tensor, **dimensions: Any) -> guards.RootGuardManager:
    root = guards.RootGuardManager()
    root.local_manager("x").add_tensor_guard(tensor, **dimensions)
    root.local_manager("o").getattr_manager("t").add_tensor_guard(tensor, **dimensions)
    return root


def verdict(root: Any, tensor: Any) -> bool:
    owner = torch.nn.Module()
    owner.__dict__["t"] = tensor
    f_locals = {"x": tensor, "o": owner}
    answers = {root.check(f_locals) for _ in range(4)} | {root(f_locals), root.check_verbose(f_locals).result}
    assert len(answers) == 1
    return answers.pop()


BASE = torch.arange(6.0).reshape(2, 3)
DIFFERENT: dict[str, Callable[[], Any]] = {
    "dtype": lambda: BASE.double(),
    "sizes": lambda: torch.zeros(3, 2),
    "dimensions": lambda: torch.zeros(6),
    "strides": lambda: torch.zeros(3, 2).t(),
    "device": lambda: torch.zeros(2, 3, device="meta"),
    "layout": lambda: BASE.to_sparse(),
    "gradient": lambda: BASE.clone().requires_grad_(),
    "class": lambda: torch.nn.Parameter(BASE.clone(), requires_grad=False),
    "subclass": lambda: BASE.as_subclass(Subclass),
    "negative_bit": lambda: torch.zeros(2, 3, dtype=torch.cfloat).conj().imag,
    "inference": lambda: inference(),
    "no_tensor": lambda: 3,
    "nothing": lambda: None,
}


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2, 3)


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_tensor_guard_notices_a_difference_in(name):
    root = match(BASE)
    assert verdict(root, BASE) and verdict(root, torch.ones(2, 3))
    other = DIFFERENT[name]()
    assert not verdict(root, other)
    assert root.check_verbose({"x": other, "o": None}).reason.startswith("`")
    if isinstance(other, torch.Tensor):
        assert verdict(match(other), other) and not verdict(match(other), BASE)


def test_conjugated_tensors_are_told_apart():
    plain = torch.zeros(2, dtype=torch.cfloat)
    assert not verdict(match(plain), plain.conj())
    assert verdict(match(plain.conj()), plain.conj())


def test_a_change_in_place_is_noticed_on_the_fast_path():
    module = torch.nn.Linear(2, 2)
    root = guards.RootGuardManager()
    parameters = root.local_manager("self").getattr_manager("_parameters")
    parameters.getitem_manager("weight").add_tensor_guard(module.weight)
    f_locals = {"self": module}
    assert all(root.check(f_locals) for _ in range(5))
    module.weight.requires_grad_(False)
    assert not root.check(f_locals)
    assert "requiring grad" in root.check_verbose(f_locals).reason
    module.weight.requires_grad_(True)
    assert all(root.check(f_locals) for _ in range(5))
    module.weight.data = torch.zeros(3, 2)
    assert not root.check(f_locals)
    assert root.check_verbose(f_locals).reason.startswith("`self.weight` is Parameter f32[3, 2]")


class Renamed(torch.nn.Parameter):
    pass


SPARE = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.double))
SIX = torch.zeros(2, 2, 2, 2, 2, 2)
# What to guard; how to change it; how to undo that.
IN_PLACE: dict[str, tuple[Callable[[], torch.Tensor], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "transposed": (lambda: torch.zeros(4, 4), lambda t: t.t_(), lambda t: t.t_()),
    "resized": (lambda: torch.zeros(4, 4), lambda t: t.resize_(2, 8), lambda t: t.resize_(4, 4)),
    "fewer_dimensions": (lambda: torch.zeros(1, 4), lambda t: t.squeeze_(0), lambda t: t.unsqueeze_(0)),
    "strides_of_a_single_row": (
        lambda: torch.zeros(1, 4), lambda t: t.as_strided_((1, 4), (7, 1)), lambda t: t.as_strided_((1, 4), (4, 1)),
    ),
    "strides_of_nothing": (
        lambda: torch.zeros(0, 4), lambda t: t.as_strided_((0, 4), (8, 2)), lambda t: t.as_strided_((0, 4), (4, 1)),
    ),
    "strides_of_a_view": (
        lambda: torch.zeros(99)[::3][:8].view(2, 4), lambda t: t.as_strided_((2, 4), (5, 3)),
        lambda t: t.as_strided_((2, 4), (12, 3)),
    ),
    "six_dimensions": (
        lambda: SIX.transpose(0, 1), lambda t: t.transpose_(2, 3), lambda t: t.transpose_(2, 3)
    ),
    "data": (
        lambda: torch.nn.Parameter(torch.zeros(4, 4)), lambda t: setattr(t, "data", torch.zeros(4, 8)[:, ::2]),
        lambda t: setattr(t, "data", torch.zeros(4, 4)),
    ),
    "dtype": (
        lambda: torch.zeros(4, 4), lambda t: setattr(t, "data", torch.zeros(4, 4, dtype=torch.half)),
        lambda t: setattr(t, "data", torch.zeros(4, 4)),
    ),
    "gradient": (lambda: torch.zeros(4, 4), lambda t: t.requires_grad_(), lambda t: t.requires_grad_(False)),
    "gradient_of_a_parameter": (
        lambda: torch.nn.Parameter(torch.zeros(4)), lambda t: t.requires_grad_(False), lambda t: t.requires_grad_()
    ),
    "history": (
        lambda: torch.zeros(4), lambda t: t.add_(torch.ones(4, requires_grad=True)), lambda t: t.detach_()
    ),
    "class": (
        lambda: torch.nn.Parameter(torch.zeros(4)), lambda t: setattr(t, "__class__", Renamed),
        lambda t: setattr(t, "__class__", torch.nn.Parameter),
    ),
    "swapped": (
        lambda: torch.nn.Parameter(torch.zeros(4, 4)), lambda t: torch.utils.swap_tensors(t, SPARE),
        lambda t: torch.utils.swap_tensors(t, SPARE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_tensor_that_was_changed_in_place_fails_until_that_is_undone(name):
    make, change, undo = IN_PLACE[name]
    tensor = make()
    root = match(tensor)
    for _ in range(2):
        assert verdict(root, tensor)
        change(tensor)
        assert not verdict(root, tensor)
        undo(tensor)
    assert verdict(root, tensor)


def test_flags_that_no_operator_looks_at_make_no_difference():
    plain, detached = torch.zeros(4, 4), torch.zeros(4, 4, requires_grad=True).detach()
    for one, other in [(plain, detached), (detached, plain)]:
        root = match(one)
        assert verdict(root, one) and verdict(root, other) and not verdict(root, other[:2])


def test_guarded_sizes_may_differ_from_those_of_the_tensor_at_hand():
    root = match(torch.zeros(4, 4), sizes=[2, 8], strides=[8, 1])
    assert verdict(root, torch.zeros(2, 8)) and not verdict(root, torch.zeros(4, 4))
    odd = match(torch.zeros(4, 4), sizes=[4, 4], strides=[1, 4])
    assert verdict(odd, torch.zeros(4, 4).t()) and not verdict(odd, torch.zeros(4, 4))


def test_dimensions_may_be_dynamic_one_by_one():
    root = match(BASE, sizes=[None, 3], strides=[3, 1])
    assert verdict(root, torch.zeros(7, 3)) and not verdict(root, torch.zeros(2, 4))
    assert not verdict(root, torch.zeros(3, 7).t())
    free = match(BASE, sizes=[None, None], strides=[None, None])
    assert verdict(free, torch.zeros(5, 8).t()) and not verdict(free, torch.zeros(5))
    alone = guards.RootGuardManager()
    alone.local_manager("x").add_tensor_guard(BASE, sizes=[None, 3], strides=[3, 1])
    assert alone.check_verbose({"x": torch.zeros(1)}).reason == "`x` is f32[1], was f32[any, 3]"


@pytest.mark.parametrize(
    ("sizes", "error"), [([1], ValueError), ([1, 2, 3], ValueError), (["a", "b"], TypeError), (3, TypeError)]
)
def test_wrong_dimensions_are_refused(sizes, error):
    with pytest.raises(error, match="dimension"):
        match(BASE, sizes=sizes)


def test_layouts_without_strides_can_be_guarded():
    sparse = BASE.to_sparse()
    root = match(sparse)
    assert verdict(root, sparse) and not verdict(root, BASE) and not verdict(root, torch.zeros(3, 3).to_sparse())


def test_a_subclass_is_matched_without_running_its_code():
    global armed
    tensor = BASE.as_subclass(Subclass)
    root = match(tensor)
    root.local_manager("x").tensor_property_manager("dtype").add_equals_guard(torch.float32)
    armed = True
    try:
        assert verdict(root, tensor) and not verdict(root, BASE)
    finally:
        armed = False


def test_a_subclass_is_not_kept_alive():
    kind = type("Short", (torch.Tensor,), {})
    tensor = BASE.as_subclass(kind)
    root = match(tensor)
    assert verdict(root, tensor)
    seen = weakref.ref(kind)
    del kind, tensor
    gc.collect()
    assert seen() is None
    assert not verdict(root, BASE.as_subclass(type("Short", (torch.Tensor,), {})))


def test_tensors_that_answer_in_python_are_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(TypeError, match="in Python"):
        match(TwoTensor(BASE, BASE))
    root = match(BASE)
    root.local_manager("x").tensor_property_manager("shape").add_equals_guard((2, 3))
    assert not verdict(root, TwoTensor(BASE, BASE))


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("dtype", torch.float32, BASE.double()),
        ("device", torch.device("cpu"), BASE.to("meta")),
        ("layout", torch.strided, BASE.to_sparse()),
        ("ndim", 2, torch.zeros(3)),
        ("shape", (2, 3), torch.zeros(3, 2)),
        ("stride", (3, 1), torch.zeros(3, 2).t()),
        ("numel", 6, torch.zeros(3)),
        ("storage_offset", 0, torch.zeros(9)[3:].reshape(2, 3)),
        ("requires_grad", False, BASE.clone().requires_grad_()),
        ("is_leaf", True, BASE.clone().requires_grad_() + 1),
        ("is_conj", False, torch.zeros(2, 3, dtype=torch.cfloat).conj()),
        ("is_neg", False, torch.zeros(2, 3, dtype=torch.cfloat).conj().imag),
        ("is_inference", False, inference()),
    ],
)
def test_tensor_properties_are_sources(name, value, other):
    root = guards.RootGuardManager()
    place = root.local_manager("x").tensor_property_manager(name)
    place.add_equals_guard(value)
    place.add_type_guard(type(value))
    assert place.source == f"x.{name}"
    assert root.check({"x": BASE}) and not root.check({"x": other}) and not root.check({"x": 3})
    assert f"`x.{name}` is" in root.check_verbose({"x": other}).reason


def test_an_unknown_property_is_refused_with_the_list():
    with pytest.raises(ValueError, match="dtype, device, layout"):
        guards.RootGuardManager().local_manager("x").tensor_property_manager("colour")


def test_aliased_inputs_are_noticed():
    root = guards.RootGuardManager()
    places = [root.local_manager(name) for name in "ab"]
    for place in places:
        place.add_tensor_guard(BASE)
    root.add_no_aliasing_guard(*places)
    other = torch.zeros(2, 3)
    for _ in range(3):
        assert root.check({"a": BASE, "b": other}) and not root.check({"a": BASE, "b": BASE})


# -- torch's state ----------------------------------------------------------------------------------------------------


class Mode(torch.overrides.TorchFunctionMode):
    pass


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Set:
    """Sets something for the time of a `with`."""

    def __init__(self, setter: Callable[[Any], Any], value: Any, before: Any) -> None:
        self.setter, self.value, self.before = setter, value, before

    def __enter__(self) -> None:
        self.setter(self.value)

    def __exit__(self, *error: object) -> None:
        self.setter(self.before)


STATES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast_cpu": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_cuda": lambda: Set(lambda on: torch.set_autocast_enabled("cuda", on), True, False),
    "autocast_dtype": lambda: Set(lambda kind: torch.set_autocast_dtype("cpu", kind), torch.float16, torch.bfloat16),
    "default_dtype": lambda: Set(torch.set_default_dtype, torch.float64, torch.float32),
    "default_device": lambda: Set(torch.set_default_device, "meta", None),
    "deterministic": lambda: Set(torch.use_deterministic_algorithms, True, False),
    "matmul_precision": lambda: Set(torch.set_float32_matmul_precision, "medium", "highest"),
    "half_reduction": lambda: Set(
        lambda on: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", on), False, True
    ),
    "autocast_dtype_elsewhere": lambda: Set(
        lambda kind: torch.set_autocast_dtype("mps", kind), torch.bfloat16, torch.float16
    ),
    "threads": lambda: Set(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()),
    "function_mode": Mode,
    "dispatch_mode": DispatchMode,
}


@pytest.mark.filterwarnings("ignore:.*autocast")
@pytest.mark.parametrize("name", STATES)
def test_torchs_state_is_guarded(name):
    alone = guards.GlobalStateGuard()
    root = guards.RootGuardManager()
    root.add_global_state_guard()
    assert alone.check() and alone.reason() == "" and root.check({})
    with STATES[name]():
        assert not alone.check() and not root.check({})
        assert alone.reason() and root.check_verbose({}).reason == alone.reason()
    assert alone.check() and alone.reason() == "" and root.check({})


def test_another_default_device_is_another_state():
    torch.set_default_device("cpu")
    try:
        state = guards.GlobalStateGuard()
        assert state.check()
        torch.set_default_device("meta")
        assert not state.check() and "default device" in state.reason()
    finally:
        torch.set_default_device(None)


def test_a_mode_is_not_kept_alive():
    mode = Mode()
    with mode:
        state = guards.GlobalStateGuard()
        assert state.check()
    seen = weakref.ref(mode)
    del mode
    assert seen() is None and not state.check()


# -- TensorGuards and friends -----------------------------------------------------------------------------------------


def test_tensor_guards_know_their_tensors():
    a, b = torch.zeros(2, 3), torch.zeros(4)
    checks = guards.TensorGuards(a, b)
    assert checks.check(a, b) and checks.check(a + 1, b + 1)
    assert not checks.check(b, a) and not checks.check(a, 3)
    assert guards.TensorGuards(a, a.clone()).check(a, a) is False
    assert checks.check_verbose(a, b, tensor_check_names=["a", "b"]) is True
    assert checks.check_verbose(a, a, tensor_check_names=["a", "b"]) == "`a` and `b` are the same tensor"
    assert checks.check_verbose(a.double(), b, tensor_check_names=["a", "b"]) == "`a` is f64[2, 3], was f32[2, 3]"


def test_tensor_guards_take_dynamic_dimensions():
    checks = guards.TensorGuards(BASE, dynamic_dims_sizes=[[2, None]], dynamic_dims_strides=[[None, 1]])
    assert checks.check(torch.zeros(2, 9)) and not checks.check(torch.zeros(3, 3))


@pytest.mark.parametrize(
    ("misuse", "error"),
    [
        (lambda: guards.TensorGuards(3), TypeError),
        (lambda: guards.TensorGuards(BASE, dynamic_dims_sizes=3), TypeError),
        (lambda: guards.TensorGuards(BASE, dynamic_dims_sizes=[]), ValueError),
        (lambda: guards.TensorGuards(BASE, dynamic_dims_sizes=[[1]]), ValueError),
        (lambda: guards.TensorGuards(BASE).check(), TypeError),
        (lambda: guards.TensorGuards(BASE).check(BASE, BASE), TypeError),
        (lambda: guards.TensorGuards(BASE).check_verbose(BASE, tensor_check_names=[]), ValueError),
        (lambda: guards.TensorGuards(BASE).check_verbose(BASE), TypeError),
        (lambda: guards.assert_size_stride(BASE, [2, 3], (3, 1)), TypeError),
        (lambda: guards.assert_size_stride(BASE, ("a", "b"), (3, 1)), TypeError),
        (lambda: guards.assert_size_stride(BASE, (2, 3), (2**70, 1)), TypeError),
    ],
)
def test_misuse_is_an_exception(misuse, error):
    with pytest.raises(error):
        misuse()


def test_assert_size_stride_compares_what_addresses_elements():
    assert guards.assert_size_stride(BASE, (2, 3), (3, 1))
    assert guards.assert_size_stride(torch.zeros(1, 3), (1, 3), (77, 1))
    assert guards.assert_size_stride(torch.zeros(0, 3), (0, 3), (5, 5))
    with pytest.raises(AssertionError, match="expected size 3==4, stride 1==1 at dim=1"):
        guards.assert_size_stride(BASE, (2, 4), (3, 1))
    with pytest.raises(AssertionError, match=r"stride 3==4 at dim=0 \(in some_op\)"):
        guards.assert_size_stride(BASE, (2, 3), (4, 1), "some_op")
    with pytest.raises(AssertionError, match="2 dimensions"):
        guards.assert_size_stride(BASE, (2,), (3,))


# -- a whole module ---------------------------------------------------------------------------------------------------


def guard_module(place: Any, module: torch.nn.Module) -> None:
    place.add_type_guard(type(module))
    place.getattr_manager("training").add_equals_guard(module.training)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            place.getattr_manager("_parameters").getitem_manager(name).add_tensor_guard(parameter)
    place.getattr_manager("_modules").add_keys_guard(module._modules)
    for name, child in module._modules.items():
        guard_module(place.getattr_manager("_modules").getitem_manager(name), child)


def test_the_guards_of_a_module_follow_it_and_run_no_python():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.LayerNorm(2), torch.nn.Dropout()))
    root = guards.RootGuardManager()
    guard_module(root.local_manager("self"), model)
    f_locals = {"self": model}
    frames: list[str] = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name) if event == "call" else None)
    answers = [root.check(f_locals) for _ in range(5)]
    sys.setprofile(None)
    assert frames in ([], ["<listcomp>"]) and all(answers)
    model.eval()
    assert root.check_verbose(f_locals).reason == "`self.training` is False, was True"
    assert not root.check(f_locals)
    model.train()
    assert root.check(f_locals)
    model[1][1].eval()
    assert root.check_verbose(f_locals).reason == "`self[1][1].training` is False, was True"
    model[1][1].train()
    model[1].append(torch.nn.ReLU())
    assert not root.check(f_locals)
    del model[1][2]
    assert root.check(f_locals)
    seen = weakref.ref(model)
    del model, f_locals
    gc.collect()
    assert seen() is None
