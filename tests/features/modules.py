"""Modules: hooks of every kind, containers, lazy and parametrized ones, and what is replaced in them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrizations, parametrize

from .runner import Case, feature


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def hooked(register: Callable[[nn.Module, list[Any]], Any], change: Callable[[nn.Module, Any], Any]) -> Case:
    """A model with a hook that may tell a list; `change` gets the model and what `register` returned."""
    model, told = small(), []
    handle = register(model, told)
    return Case(model, lambda: change(model, handle), observe=lambda: list(told), module=model)


def remove(_: nn.Module, handle: Any) -> None:
    handle.remove()


@feature()
def forward_pre_hook_that_replaces_the_input() -> Case:
    return hooked(lambda m, told: m[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,)), remove)


@feature()
def forward_pre_hook_that_only_looks() -> Case:
    def register(model: nn.Module, told: list[Any]) -> Any:
        return model[2].register_forward_pre_hook(lambda m, args: told.append((type(m).__name__, args[0].shape)))

    return hooked(register, remove)


@feature()
def forward_pre_hook_with_keywords() -> Case:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return x * scale

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, scale=2.0)

    model = Outer()

    def double(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "scale": kwargs["scale"] * 2}

    handle = model.inner.register_forward_pre_hook(double, with_kwargs=True)
    return Case(model, handle.remove, module=model)


@feature()
def forward_hook_that_replaces_the_result() -> Case:
    return hooked(lambda m, told: m.register_forward_hook(lambda _, args, y: y + args[0].sum()), remove)


@feature()
def forward_hook_that_keeps_results() -> Case:
    return hooked(lambda m, told: m[0].register_forward_hook(lambda _, args, y: told.append(y)), remove)


@feature()
def forward_hook_with_keywords() -> Case:
    def register(model: nn.Module, told: list[Any]) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, y: Tensor) -> Tensor:
            told.append(sorted(kwargs))
            return y - 1

        return model.register_forward_hook(hook, with_kwargs=True)

    return hooked(register, remove)


@feature()
def forward_hook_that_is_added() -> Case:
    return hooked(lambda m, told: None, lambda m, _: m[2].register_forward_hook(lambda _, args, y: y.exp()))


@feature()
def forward_hooks_in_their_order() -> Case:
    def register(model: nn.Module, told: list[Any]) -> Any:
        model.register_forward_hook(lambda _, args, y: y * 2)
        model.register_forward_hook(lambda _, args, y: told.append("second"))
        return model.register_forward_hook(lambda _, args, y: y + 1, prepend=True)

    def move(model: nn.Module, handle: Any) -> None:
        model._forward_hooks.move_to_end(handle.id)

    return hooked(register, move)


@feature()
def forward_hook_that_is_always_called() -> Case:
    class Raises(nn.Module):
        limit = 2

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            if x.dim() == self.limit:
                raise ValueError("of two dimensions")
            return y

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Raises()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x) + 1
            except ValueError:
                return x - 1

    model, told = Catches(), []
    model.inner.register_forward_hook(lambda m, args, y: told.append((args[0].shape, y is None)), always_call=True)
    return Case(model, lambda: setattr(model.inner, "limit", 3), observe=lambda: list(told), module=model)


@feature()
def forward_hook_that_is_always_called_and_nothing_raised() -> Case:
    def register(model: nn.Module, told: list[Any]) -> Any:
        return model[0].register_forward_hook(lambda m, args, y: told.append(y.shape), always_call=True)

    return hooked(register, remove)


@feature()
def forward_hook_that_writes_in_place() -> Case:
    def hook(_: nn.Module, args: Any, y: Tensor) -> None:
        y.mul_(3)

    return hooked(lambda m, told: m[1].register_forward_hook(hook), remove)


def global_hook(register: Callable[[Callable[..., Any]], Any], hook: Callable[..., Any]) -> Case:
    """A hook of all modules, which acts on this side's only."""
    model = small()
    own = set(model.modules())
    handle = register(lambda m, *args: hook(m, *args) if m in own else None)
    return Case(model, handle.remove, module=model, close=handle.remove)


@feature()
def global_forward_hook() -> Case:
    def hook(m: nn.Module, args: Any, y: Tensor) -> Tensor | None:
        return y * 2 if isinstance(m, nn.Linear) else None

    return global_hook(module_hooks.register_module_forward_hook, hook)


@feature()
def global_forward_pre_hook() -> Case:
    return global_hook(module_hooks.register_module_forward_pre_hook, lambda m, args: (args[0] + 1,))


@feature()
def global_forward_hook_that_is_always_called() -> Case:
    told: list[str] = []
    register = functools.partial(module_hooks.register_module_forward_hook, always_call=True)
    case = global_hook(register, lambda m, args, y: told.append(type(m).__name__))
    case.observe = lambda: list(told)
    return case


@feature()
def full_backward_hook_without_gradients() -> Case:
    def register(model: nn.Module, told: list[Any]) -> Any:
        return model[0].register_full_backward_hook(lambda m, inputs, outputs: told.append("backward"))

    return hooked(register, lambda m, _: m[0].register_forward_hook(lambda _, args, y: -y))


@feature()
def hooks_of_the_state_dict() -> Case:
    def register(model: nn.Module, told: list[Any]) -> Any:
        model.register_state_dict_post_hook(lambda m, state, prefix, meta: told.append(len(state)))
        return model.register_load_state_dict_post_hook(lambda m, keys: told.append("loaded"))

    def load(model: nn.Module, _: Any) -> None:
        model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})

    return hooked(register, load)


@feature(hits=4, eager="uses a tensor subclass UninitializedParameter")
def lazy_modules() -> Case:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.ReLU())
    return Case(model, lambda: model.eval(), observe=lambda: [type(m).__name__ for m in model], module=None)


@feature()
def weight_norm() -> Case:
    model = parametrizations.weight_norm(nn.Linear(4, 4))

    def change() -> None:
        with torch.no_grad():
            model.parametrizations.weight.original0.mul_(2)
        parametrize.remove_parametrizations(model, "weight")

    return Case(model, change, module=model)


@feature()
def spectral_norm_in_evaluation() -> Case:
    model = parametrizations.spectral_norm(nn.Linear(4, 4)).eval()
    return Case(
        model,
        lambda: parametrize.remove_parametrizations(model, "weight", leave_parametrized=False) and None,
        module=model,
    )


@feature(varies="whether the bound method that Module.__setattr__ looks into is seen to die")
def spectral_norm_in_training() -> Case:
    model = parametrizations.spectral_norm(nn.Linear(4, 4))
    return Case(model, model.eval, module=model)


@feature()
def orthogonal_parametrization() -> Case:
    model = parametrizations.orthogonal(nn.Linear(4, 4))
    return Case(
        model,
        lambda: parametrize.remove_parametrizations(model, "weight", leave_parametrized=False) and None,
        inputs=lambda i: (torch.full((1, 4), i + 1.0),),
        module=model,
    )


@feature()
def old_weight_norm_with_hooks() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.utils.weight_norm(nn.Linear(4, 4))
    return Case(model, lambda: model.weight_g.data.mul_(2), module=model)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


@feature()
def parametrization_of_ones_own() -> Case:
    model = nn.Linear(4, 4)
    parametrize.register_parametrization(model, "weight", Symmetric())
    return Case(model, lambda: parametrize.remove_parametrizations(model, "weight"), module=model)


@feature(
    graphs=2,
    hits=1,
    cuts=(
        "the call changes an item under an unusual key",
        "the call returns a generator that has a handler or finally clause to run",
    ),
    eager="the call changes an item under an unusual key",
    python=("forward",),
    settles=False,
)
def cached_parametrization() -> Case:
    model = nn.Linear(4, 4)
    parametrize.register_parametrization(model, "weight", Symmetric())

    def call(x: Tensor) -> Tensor:
        with parametrize.cached():
            return model(x) + model(x * 2) + model.weight.sum()

    return Case(call, lambda: model.parametrizations.weight.original.data.mul_(2), module=model)


@feature()
def module_list() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for index, layer in enumerate(self.layers):
                x = layer(x) * (index + 1)
            return x + self.layers[-1](x) + sum(layer.weight.sum() for layer in self.layers[1:]) + len(self.layers)

    model = Model()
    return Case(model, lambda: model.layers.insert(1, nn.Linear(4, 4, bias=False)), module=model)


@feature()
def module_dict() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.paths = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            found = {name: path(x) for name, path in self.paths.items()}
            if "c" in self.paths:
                found["d"] = self.paths["c"](x)
            return found

    model = Model()
    return Case(model, lambda: model.paths.update({"c": nn.Sigmoid()}), module=model)


@feature()
def parameter_list_and_dict() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shifts = nn.ParameterList([torch.ones(4) * i for i in range(3)])
            self.named = nn.ParameterDict({"scale": torch.full((4,), 2.0)})

        def forward(self, x: Tensor) -> Tensor:
            return sum(x + shift for shift in self.shifts) * self.named["scale"] + len(self.shifts)

    model = Model()
    return Case(model, lambda: model.shifts.append(torch.ones(4) * 9), module=model)


@feature()
def sequential() -> Case:
    model = small()
    return Case(model, lambda: model.append(nn.Softmax(-1)), module=model)


@feature()
def submodule_replaced() -> Case:
    model = small()
    return Case(model, lambda: setattr(model, "1", nn.Tanh()), module=model)


@feature()
def parameter_replaced() -> Case:
    model = small()
    return Case(model, lambda: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 4))), module=model)


@feature()
def parameter_data_replaced() -> Case:
    model = small()
    return Case(model, lambda: setattr(model[0].weight, "data", torch.ones(4, 4)), module=model)


@feature()
def module_in_another_dtype() -> Case:
    model = small()
    return Case(lambda x: model(x.to(model[0].weight.dtype)), model.double, module=model)


@feature()
def module_frozen_and_thawed() -> Case:
    model = small()
    return Case(
        lambda x: (model(x), [p.requires_grad for p in model.parameters()]),
        lambda: model.requires_grad_(False),
        module=model,
    )


@feature()
def forward_replaced_on_an_instance() -> Case:
    model = small()
    return Case(model, lambda: setattr(model[1], "forward", lambda x: x * 5), module=model)


@feature()
def shared_submodule() -> Case:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    return Case(model, lambda: layer.register_forward_hook(lambda m, args, y: y + 1), module=model)


@feature()
def recurrent_module() -> Case:
    model = nn.LSTM(4, 3, num_layers=2, bidirectional=True)
    return Case(
        model,
        lambda: model.weight_ih_l0.data.mul_(2),
        inputs=lambda i: (torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(i)),),
        module=model,
    )


@feature()
def attention_module() -> Case:
    model = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    return Case(
        lambda x: model(x, x, x, need_weights=True),
        model.train,
        inputs=lambda i: (torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(i)),),
        module=model,
    )


@feature()
def module_apply_and_named_things() -> Case:
    model = small()

    def call(x: Tensor) -> Any:
        total = {name: p.sum() for name, p in model.named_parameters()}
        kinds = [type(m).__name__ for m in model.modules()]
        return total, kinds, len(list(model.children())), x * next(model.parameters()).mean()

    return Case(call, lambda: model.append(nn.Linear(2, 2)), module=model)


@feature()
def get_submodule_and_get_parameter() -> Case:
    model = small()

    def call(x: Tensor) -> Any:
        return model.get_submodule("0")(x) + model.get_parameter("0.bias")

    return Case(call, lambda: setattr(model, "0", nn.Linear(4, 4)), module=model)
