"""Changes to a model or to its surroundings after which a compiled call must still do what eager does.

Each change is a context manager over a module: it changes something, and undoes it when it ends. `CHANGES` holds those
that matter to the model, `UNRELATED` those that do not and so must not cause a new capture.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class NotHere(Exception):
    """The model has nothing that this change could change."""


@dataclass(frozen=True)
class Change:
    """One change; `visible` says that on some model eager's result must differ, or else the test proves nothing."""

    name: str
    apply: Callable[[nn.Module], contextlib.AbstractContextManager[None]]
    visible: bool = True


CHANGES: dict[str, Change] = {}
UNRELATED: dict[str, Change] = {}

_Body = Callable[[nn.Module], Iterator[None]]


def _change(visible: bool = True, unrelated: bool = False) -> Callable[[_Body], _Body]:
    def register(body: _Body) -> _Body:
        name = body.__name__
        (UNRELATED if unrelated else CHANGES)[name] = Change(name, contextlib.contextmanager(body), visible)
        return body

    return register


def _find(module: nn.Module, wanted: Callable[[nn.Module], bool], last: bool = False) -> nn.Module:
    found = [child for child in module.modules() if wanted(child)]
    if not found:
        raise NotHere
    return found[-1 if last else 0]


def _linear(module: nn.Module) -> nn.Linear:
    """A linear layer that the model calls as a module (inside attention, torch may read its weight without a call)."""
    attention = {c for m in module.modules() if isinstance(m, nn.MultiheadAttention) for c in m.modules()}
    return _find(module, lambda m: isinstance(m, nn.Linear) and m not in attention)


def _norm(module: nn.Module) -> nn.Module:
    return _find(module, lambda m: isinstance(getattr(m, "eps", None), float))


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for a while; what was not there before is deleted again."""
    namespace = vars(owner) if hasattr(owner, "__dict__") else {}
    there = name in namespace
    old = namespace.get(name) if there else None
    setattr(owner, name, value)
    try:
        yield
    finally:
        if there:
            setattr(owner, name, old)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def replaced_item(container: Any, key: Any, value: Any) -> Iterator[None]:
    old = container[key]
    container[key] = value
    try:
        yield
    finally:
        container[key] = old


# Modes


@_change()
def train_mode(module: nn.Module) -> Iterator[None]:
    module.train()
    yield
    module.eval()


@_change()
def train_mode_of_one_dropout(module: nn.Module) -> Iterator[None]:
    dropout = _find(module, lambda m: isinstance(m, nn.Dropout) and m.p > 0)
    dropout.train()
    yield
    dropout.eval()


@_change()
def dropout_probability_while_training(module: nn.Module) -> Iterator[None]:
    dropout = _find(module, lambda m: isinstance(m, nn.Dropout))
    module.train()
    with replaced(dropout, "p", 0.9):
        yield
    module.eval()


# Parameters and buffers


@_change()
def weight_changed_in_place(module: nn.Module) -> Iterator[None]:
    weight = _linear(module).weight
    old = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1.5)
    yield
    with torch.no_grad():
        weight.copy_(old)


@_change()
def every_parameter_changed_in_place(module: nn.Module) -> Iterator[None]:
    parameters = list(module.parameters())
    old = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p in parameters:
            p.add_(0.01)
    yield
    with torch.no_grad():
        for p, value in zip(parameters, old, strict=True):
            p.copy_(value)


@_change()
def parameter_replaced(module: nn.Module) -> Iterator[None]:
    linear = _linear(module)
    old = linear.weight
    linear.weight = nn.Parameter(old.detach() * 0.5)
    yield
    linear.weight = old


@_change()
def parameter_replaced_in_the_dict(module: nn.Module) -> Iterator[None]:
    linear = _linear(module)
    with replaced_item(linear._parameters, "weight", nn.Parameter(linear.weight.detach() * 0.5)):
        yield


@_change()
def every_parameter_replaced(module: nn.Module) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for child in module.modules():
            for name, old in child._parameters.items():
                if old is not None:
                    stack.enter_context(replaced_item(child._parameters, name, nn.Parameter(old.detach() * 1.1)))
        yield


@_change()
def bias_removed(module: nn.Module) -> Iterator[None]:
    linear = _find(module, lambda m: isinstance(m, nn.Linear) and m.bias is not None)
    with replaced_item(linear._parameters, "bias", None):
        yield


@_change()
def parameter_data_replaced(module: nn.Module) -> Iterator[None]:
    weight = _linear(module).weight
    old = weight.data
    weight.data = old * 0.5
    yield
    weight.data = old


@_change()
def parameter_data_with_other_strides(module: nn.Module) -> Iterator[None]:
    weight = _linear(module).weight
    old = weight.data
    weight.data = (old * 0.5).t().contiguous().t()
    yield
    weight.data = old


@_change()
def parameter_data_of_another_shape(module: nn.Module) -> Iterator[None]:
    """Eager raises here, and so must the compiled call, in the same words."""
    weight = _linear(module).weight
    old = weight.data
    weight.data = torch.zeros(3, 5)
    yield
    weight.data = old


@_change()
def model_in_bfloat16(module: nn.Module) -> Iterator[None]:
    module.bfloat16()
    yield
    module.float()


@_change(visible=False)
def requires_grad_flipped(module: nn.Module) -> Iterator[None]:
    module.requires_grad_(False)
    yield
    module.requires_grad_(True)


@_change()
def buffer_replaced(module: nn.Module) -> Iterator[None]:
    for child in module.modules():
        for name, old in child._buffers.items():
            if old is not None and old.numel() > 1:
                with replaced_item(child._buffers, name, old * 1.5 if old.is_floating_point() else old.flip(-1)):
                    yield
                return
    raise NotHere


@_change()
def buffer_changed_in_place(module: nn.Module) -> Iterator[None]:
    for child in module.modules():
        for old in child._buffers.values():
            if old is not None and old.numel() > 1:
                saved = old.clone()
                old.copy_(old * 1.5 if old.is_floating_point() else old.flip(-1))
                yield
                old.copy_(saved)
                return
    raise NotHere


# Attributes


@_change()
def eps_changed(module: nn.Module) -> Iterator[None]:
    norm = _norm(module)
    with replaced(norm, "eps", norm.eps + 0.5):
        yield


@_change()
def eps_changed_through_a_new_dict(module: nn.Module) -> Iterator[None]:
    norm = _norm(module)
    old = norm.__dict__
    norm.__dict__ = {**old, "eps": norm.eps + 0.5}
    yield
    norm.__dict__ = old


@_change(visible=False)
def equal_dict_in_place_of_the_dict(module: nn.Module) -> Iterator[None]:
    linear = _linear(module)
    old = linear.__dict__
    linear.__dict__ = dict(old)
    yield
    linear.__dict__ = old


@_change()
def config_asks_for_hidden_states(module: nn.Module) -> Iterator[None]:
    if not hasattr(module, "config"):
        raise NotHere
    old = module.config.output_hidden_states
    module.config.output_hidden_states = True
    yield
    module.config.output_hidden_states = old


@_change()
def config_asks_for_tuples(module: nn.Module) -> Iterator[None]:
    if not hasattr(module, "config"):
        raise NotHere
    old = module.config.return_dict
    module.config.return_dict = False
    yield
    module.config.return_dict = old


@_change(visible=False)
def config_asks_for_another_attention(module: nn.Module) -> Iterator[None]:
    if getattr(getattr(module, "config", None), "_attn_implementation", None) != "sdpa":
        raise NotHere
    module.config._attn_implementation = "eager"
    yield
    module.config._attn_implementation = "sdpa"


@_change()
def plain_attribute_changed(module: nn.Module) -> Iterator[None]:
    if not hasattr(module, "scale"):
        raise NotHere
    with replaced(module, "scale", 0.25):
        yield


@_change()
def attribute_that_is_a_function_changed(module: nn.Module) -> Iterator[None]:
    if getattr(module, "activation", None) is not torch.relu:
        raise NotHere
    with replaced(module, "activation", torch.tanh):
        yield


@_change()
def missing_attribute_raises(module: nn.Module) -> Iterator[None]:
    linear = _linear(module)
    old = linear._parameters.pop("weight")
    yield
    bias = linear._parameters.pop("bias")
    linear._parameters.update(weight=old, bias=bias)


# Submodules


def _parent_of(module: nn.Module, wanted: nn.Module) -> tuple[nn.Module, str]:
    for parent in module.modules():
        for name, child in parent._modules.items():
            if child is wanted:
                return parent, name
    raise NotHere


@_change()
def submodule_swapped(module: nn.Module) -> Iterator[None]:
    old = _linear(module)
    parent, name = _parent_of(module, old)
    new = copy.deepcopy(old)
    with torch.no_grad():
        new.weight.mul_(0.5)
    setattr(parent, name, new)
    yield
    setattr(parent, name, old)


@_change()
def submodule_swapped_for_another_kind(module: nn.Module) -> Iterator[None]:
    class Halved(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 0.5

    old = _linear(module)
    parent, name = _parent_of(module, old)
    new = Halved(old.in_features, old.out_features, old.bias is not None).eval()
    new.load_state_dict(old.state_dict())
    parent._modules[name] = new
    yield
    parent._modules[name] = old


def _layers(module: nn.Module) -> nn.Module:
    """The list of equal layers that most models are built from."""

    def equal_layers(m: nn.Module) -> bool:
        kinds = [type(child) for child in m.children()]
        return isinstance(m, (nn.ModuleList, nn.Sequential)) and len(kinds) > 1 and len(set(kinds)) == 1

    return _find(module, equal_layers)


@_change()
def layers_in_another_order(module: nn.Module) -> Iterator[None]:
    modules = _layers(module)._modules
    first, second = list(modules)[:2]
    modules[first], modules[second] = modules[second], modules[first]
    yield
    modules[first], modules[second] = modules[second], modules[first]


@_change()
def last_layer_removed(module: nn.Module) -> Iterator[None]:
    modules = _layers(module)._modules
    name, layer = modules.popitem()
    yield
    modules[name] = layer


@_change()
def parametrized_weight(module: nn.Module) -> Iterator[None]:
    class Double(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * 2

    linear = _linear(module)
    old = linear.weight
    nn.utils.parametrize.register_parametrization(linear, "weight", Double())
    yield
    nn.utils.parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
    linear.weight = old


# Hooks


@_change()
def forward_hook(module: nn.Module) -> Iterator[None]:
    handle = _linear(module).register_forward_hook(lambda m, args, result: result * 2)
    yield
    handle.remove()


@_change()
def forward_hook_with_keywords(module: nn.Module) -> Iterator[None]:
    hook = _linear(module).register_forward_hook(lambda m, args, kwargs, result: result * 2, with_kwargs=True)
    yield
    hook.remove()


@_change()
def forward_pre_hook(module: nn.Module) -> Iterator[None]:
    handle = _linear(module).register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    yield
    handle.remove()


@_change()
def forward_hook_on_the_root(module: nn.Module) -> Iterator[None]:
    def hook(m: nn.Module, args: Any, result: Any) -> Any:
        return ("seen by the hook", result)

    handle = module.register_forward_hook(hook)
    yield
    handle.remove()


@_change()
def global_forward_hook(module: nn.Module) -> Iterator[None]:
    def hook(m: nn.Module, args: Any, result: Any) -> Any:
        return result * 1.5 if isinstance(m, nn.Linear) else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    yield
    handle.remove()


@_change()
def global_forward_pre_hook(module: nn.Module) -> Iterator[None]:
    def hook(m: nn.Module, args: Any) -> Any:
        return (args[0] * 1.5,) if isinstance(m, nn.Linear) else None

    handle = nn.modules.module.register_module_forward_pre_hook(hook)
    yield
    handle.remove()


@_change()
def hook_that_raises(module: nn.Module) -> Iterator[None]:
    def hook(m: nn.Module, args: Any, result: Any) -> Any:
        raise ValueError("the hook says no")

    handle = _linear(module).register_forward_hook(hook)
    yield
    handle.remove()


# Code: functions, classes, closures


def _scaled(function: Callable[..., Any], factor: float) -> Callable[..., Any]:
    def scaled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * factor

    return scaled


@_change()
def functional_linear_replaced(module: nn.Module) -> Iterator[None]:
    with replaced(F, "linear", _scaled(F.linear, 1.5)):
        yield


@_change()
def functional_layer_norm_replaced(module: nn.Module) -> Iterator[None]:
    with replaced(F, "layer_norm", _scaled(F.layer_norm, 1.5)):
        yield


@_change()
def module_global_of_linear_replaced(module: nn.Module) -> Iterator[None]:
    """The name `F` in the file that defines `nn.Linear` leads to other functions."""
    other = types.SimpleNamespace(linear=_scaled(F.linear, 1.5))
    with replaced(sys.modules["torch.nn.modules.linear"], "F", other):
        yield


@_change()
def class_method_patched(module: nn.Module) -> Iterator[None]:
    with replaced(nn.Linear, "forward", _scaled(nn.Linear.forward, 1.5)):
        yield


@_change()
def class_of_the_model_patched(module: nn.Module) -> Iterator[None]:
    kind = type(module)
    old = kind.forward

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return ("patched", old(self, *args, **kwargs))

    with replaced(kind, "forward", forward):
        yield


@_change()
def module_call_patched(module: nn.Module) -> Iterator[None]:
    old = nn.Module._call_impl

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = old(self, *args, **kwargs)
        return result * 1.5 if isinstance(self, nn.Linear) else result

    with replaced(nn.Module, "_call_impl", call):
        yield


@_change()
def code_of_a_method_changed(module: nn.Module) -> Iterator[None]:
    def forward(self, input):  # type: ignore[no-untyped-def]
        return F.linear(input, self.weight, self.bias) * 1.5

    old = nn.Linear.forward.__code__
    nn.Linear.forward.__code__ = forward.__code__
    yield
    nn.Linear.forward.__code__ = old


@_change()
def instance_method_shadowed(module: nn.Module) -> Iterator[None]:
    linear = _linear(module)
    with replaced(linear, "forward", _scaled(linear.forward, 1.5)):
        yield


@_change()
def forward_of_the_root_shadowed(module: nn.Module) -> Iterator[None]:
    old = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return ("shadowed", old(*args, **kwargs))

    with replaced(module, "forward", forward):
        yield


@_change()
def class_of_an_instance_assigned(module: nn.Module) -> Iterator[None]:
    class Halved(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 0.5

    linear = _linear(module)
    old = linear.__class__
    linear.__class__ = Halved
    yield
    linear.__class__ = old


@_change()
def base_classes_changed(module: nn.Module) -> Iterator[None]:
    class Extra(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 0.5

    class Late(nn.Linear):
        pass

    linear = _linear(module)
    old = linear.__class__
    linear.__class__ = Late
    Late.__bases__ = (Extra,)
    yield
    linear.__class__ = old


@_change()
def closure_cell_changed(module: nn.Module) -> Iterator[None]:
    """A decorated forward keeps the function it wraps in a cell."""
    for child in module.modules():
        forward = type(child).forward
        for cell in getattr(forward, "__closure__", None) or ():
            old = cell.cell_contents
            if isinstance(old, types.FunctionType) and old.__name__ == "forward":

                def wrapped(*args: Any, _old: Any = old, **kwargs: Any) -> Any:
                    result = _old(*args, **kwargs)
                    return result * 1.5 if isinstance(result, torch.Tensor) else ("through the cell", result)

                cell.cell_contents = wrapped
                yield
                cell.cell_contents = old
                return
    raise NotHere


@_change()
def builtin_patched(module: nn.Module) -> Iterator[None]:
    """Layers are taken in reverse by every loop that counts them."""
    if "enumerate" not in type(module).forward.__code__.co_names:
        raise NotHere
    old = builtins.enumerate
    with replaced(builtins, "enumerate", lambda items: [(i + 1, x) for i, x in old(items)]):
        yield


@_change()
def builtin_shadowed_by_a_global(module: nn.Module) -> Iterator[None]:
    if "enumerate" not in type(module).forward.__code__.co_names:
        raise NotHere
    owner = importlib.import_module(type(module).__module__)
    with replaced(owner, "enumerate", lambda items: [(i + 1, x) for i, x in enumerate(items)]):
        yield


@_change(visible=False)
def builtin_replaced_by_one_that_counts(module: nn.Module) -> Iterator[None]:
    old = builtins.isinstance

    def counting(value: Any, kind: Any) -> bool:
        return old(value, kind)

    with replaced(builtins, "isinstance", counting):
        yield


# torch's global state


@_change()
def grad_mode_on(module: nn.Module) -> Iterator[None]:
    with torch.enable_grad():
        yield


@_change()
def inference_mode_on(module: nn.Module) -> Iterator[None]:
    with torch.inference_mode():
        yield


@_change(visible=False)
def default_dtype_double(module: nn.Module) -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@_change()
def autocast_on(module: nn.Module) -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@_change(visible=False)
def deterministic_algorithms(module: nn.Module) -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@_change(visible=False)
def attention_kernels_restricted(module: nn.Module) -> Iterator[None]:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


@_change(visible=False)
def matmul_precision_lowered(module: nn.Module) -> Iterator[None]:
    old = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(old)


@_change()
def torch_function_mode(module: nn.Module) -> Iterator[None]:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            return result * 1.5 if function is F.linear else result

    with Mode():
        yield


@_change()
def torch_dispatch_mode(module: nn.Module) -> Iterator[None]:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            matmul = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return result * 1.5 if function in matmul else result

    with Mode():
        yield


# Changes that nothing depends on: results stay, and so must the compiled version


@_change(visible=False, unrelated=True)
def new_attribute_on_a_submodule(module: nn.Module) -> Iterator[None]:
    with replaced(_linear(module), "note_to_self", 1):
        yield


@_change(visible=False, unrelated=True)
def new_attribute_on_the_root(module: nn.Module) -> Iterator[None]:
    with replaced(module, "note_to_self", 1):
        yield


@_change(visible=False, unrelated=True)
def new_global_in_the_models_file(module: nn.Module) -> Iterator[None]:
    with replaced(sys.modules[type(module).__module__], "note_to_self", 1):
        yield


@_change(visible=False, unrelated=True)
def new_global_in_functional(module: nn.Module) -> Iterator[None]:
    with replaced(F, "note_to_self", 1):
        yield


@_change(visible=False, unrelated=True)
def new_class_attribute(module: nn.Module) -> Iterator[None]:
    with replaced(nn.Linear, "note_to_self", 1):
        yield


@_change(visible=False, unrelated=True)
def new_builtin(module: nn.Module) -> Iterator[None]:
    with replaced(builtins, "note_to_self", 1):
        yield


@_change(visible=False, unrelated=True)
def weights_updated_in_place(module: nn.Module) -> Iterator[None]:
    """A step of an optimiser must not throw the compiled version away."""
    yield from every_parameter_changed_in_place(module)


@_change(visible=False, unrelated=True)
def another_module_built(module: nn.Module) -> Iterator[None]:
    copy.deepcopy(module)
    nn.Linear(2, 2)(torch.ones(1, 2))
    yield


@_change(visible=False, unrelated=True)
def random_seed_set(module: nn.Module) -> Iterator[None]:
    torch.manual_seed(99)
    yield


@_change(visible=False, unrelated=True)
def hook_added_and_removed(module: nn.Module) -> Iterator[None]:
    _linear(module).register_forward_hook(lambda *args: None).remove()
    yield
