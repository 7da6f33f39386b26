"""Programs that write to modules and to other state: counters, caches, running statistics, what they build inside."""

from __future__ import annotations

import copy
import types
from typing import Any

import torch
from torch import Tensor, nn

from .modules import small
from .runner import Case, feature, left_to_python


class Counter(nn.Module):
    """Counts its calls in an attribute and in a buffer."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.step.add_(1)
        return x * self.step + self.calls


@feature(graphs=2, hits=4)
def counters_in_attributes_and_buffers() -> Case:
    model = Counter()
    return Case(model, lambda: model.step.zero_(), observe=lambda: model.calls, module=model)


@feature(varies="whether the bound method that Module.__setattr__ looks into is seen to die")
def buffer_counted_by_assignment() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.step += 1
        return x * self.step

    model = Keeper(forward, step=nn.Buffer(torch.zeros(())))
    return Case(model, lambda: model.step.zero_(), module=model)


@feature(varies="whether the bound method that Module.__setattr__ looks into is seen to die")
def buffer_assigned_anew() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            return x - self.mean

    model = Model()
    return Case(model, lambda: setattr(model, "mean", torch.ones(4)), module=model)


@feature(graphs=2, hits=4)
def cache_in_a_dict() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[int, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] not in self.cache:
                self.cache[x.shape[0]] = torch.arange(x.shape[0]).float()
            return x * self.cache[x.shape[0]][:, None]

    model = Model()
    return Case(
        model,
        lambda: model.cache.clear() or model.cache.update({3: torch.ones(3)}),
        observe=lambda: dict(model.cache),
        module=model,
    )


@feature(graphs=2, hits=4)
def growing_cache() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = torch.zeros(0, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.keys = torch.cat([self.keys, x])
            return x @ self.keys.T

    model = Model()
    return Case(model, lambda: setattr(model, "keys", torch.ones(1, 4)), observe=lambda: model.keys, module=model)


@feature()
def batch_norm_in_training() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return Case(model, model.eval, module=model)


@feature(graphs=3, hits=3, cuts=("float",))
def batch_norm_with_a_cumulative_mean() -> Case:
    model = nn.BatchNorm1d(4, momentum=None)
    return Case(
        model, lambda: setattr(model, "track_running_stats", False) or setattr(model, "momentum", 0.5), module=model
    )


@feature()
def dropout_in_training() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())
    return Case(model, lambda: setattr(model[1], "p", 0.2), module=model)


@feature()
def module_switched_between_training_and_evaluation() -> Case:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4)).eval()
    return Case(model, model.train, module=model)


@feature(graphs=2, hits=4)
def module_that_switches_itself() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.on = nn.Dropout(0.5), True

        def forward(self, x: Tensor) -> Tensor:
            self.drop.train(self.on)
            y = self.drop(x)
            self.drop.eval()
            return y + self.drop(x)

    model = Model()
    return Case(model, lambda: setattr(model, "on", False), module=model)


@feature()
def non_persistent_buffer_and_extra_state() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4), persistent=False)
            self.extra = 1

        def get_extra_state(self) -> int:
            return self.extra

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.sum(0))
            self.extra += 1
            return x + self.seen

    model = Model()
    return Case(model, lambda: model.seen.zero_(), observe=lambda: model.seen, module=model)


class Keeper(nn.Module):
    """Runs a method of the feature's as its forward."""

    def __init__(self, forward: Any, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)
        self.own_forward = forward

    def forward(self, x: Tensor) -> Any:
        return self.own_forward(self, x)


def setter(owner: Any, **values: Any) -> Any:
    """A change that sets attributes."""
    return lambda: [setattr(owner, name, value) for name, value in values.items()]


@feature(hits=4, eager="drops an object that it has looked into")
def hook_that_removes_itself() -> Case:
    model, told = small(), []

    def arm() -> None:
        def hook(m: nn.Module, args: Any, y: Tensor) -> Tensor:
            told.append("once")
            handle.remove()
            return y * 2

        handle = model[0].register_forward_hook(hook)

    arm()
    return Case(model, arm, observe=lambda: list(told), module=model)


@feature(
    graphs=4,
    hits=2,
    cuts=(
        "the call runs weakref.ReferenceType, which is not understood",
        "the call uses a weakref.ReferenceType that an unknown function has made",
        "the call uses a weakref.ReferenceType that an unknown function may have changed",
    ),
    eager="the call sets the attribute 'next_id' of a type that existed before it",
    varies="whether torch.compile has run in the process",
)
def hook_that_adds_a_hook() -> Case:
    model = small()

    def hook(m: nn.Module, args: Any, y: Tensor) -> None:
        if len(m._forward_hooks) < 4:
            m.register_forward_hook(lambda m, args, y: y + 1)

    model[0].register_forward_hook(hook)
    hooks = model[0]._forward_hooks
    return Case(model, hooks.clear, observe=lambda: len(hooks), module=model)


@feature(varies="the new parameter may have the address of the one before")
def parameter_assigned_in_forward() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.weight = nn.Parameter(self.weight * self.factor)
        return x * self.weight

    model = Keeper(forward, weight=nn.Parameter(torch.ones(4)), factor=2.0)
    return Case(model, setter(model, factor=0.5), module=model)


@feature(graphs=2, hits=4)
def buffer_registered_in_forward() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        if not hasattr(self, "first"):
            self.register_buffer("first", x.sum(0))
        return x + self.first

    model = Keeper(forward)
    return Case(model, lambda: model.first.zero_(), module=model)


@feature()
def attribute_deleted_in_forward() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.temporary = x * 2
        y = self.temporary + 1
        del self.temporary
        return y + hasattr(self, "temporary") + 2 * hasattr(self, "flag")

    model = Keeper(forward)
    return Case(model, setter(model, flag=1), observe=lambda: sorted(vars(model)), module=model)


@feature(hits=3, eager="the call makes a Parameter, which is not understood")
def module_added_in_forward() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        if len(self.layers) < 2:
            self.layers.append(nn.Linear(4, 4))
        for layer in self.layers:
            x = layer(x)
        return x

    model = Keeper(forward, layers=nn.ModuleList())
    return Case(model, lambda: model.layers.pop(0), module=model)


@left_to_python("makes a Parameter", "<lambda>")
def module_built_in_the_call() -> Case:
    sizes = types.SimpleNamespace(width=4)
    return Case(lambda x: nn.Sequential(nn.Linear(4, sizes.width), nn.Dropout())(x), setter(sizes, width=2))


@feature()
def state_dict_read_inside() -> Case:
    model = small()
    return Case(
        lambda x: {name: value.sum() + x.sum() for name, value in model.state_dict().items()},
        lambda: model.append(nn.Linear(2, 2)),
        module=model,
    )


@feature()
def state_dict_loaded_inside() -> Case:
    model = small()
    other = {name: value * 2 for name, value in model.state_dict().items()}

    def call(x: Tensor) -> Tensor:
        y = model(x)
        model.load_state_dict(other)
        return y + model(x)

    return Case(call, lambda: other.update({"0.bias": torch.ones(4)}), module=model)


@left_to_python("asks whether two values are the same object", "<lambda>")
def module_copied_inside() -> Case:
    model = small()
    return Case(lambda x: copy.deepcopy(model)(x) + model(x), lambda: model.append(nn.Tanh()), module=model)


@feature(
    graphs=9,
    hits=4,
    cuts=(
        "the call reads the attribute 'grad' of a tensor",
        "the call runs setattr of 'data', which is not understood",
    ),
    eager="the call reads the attribute 'grad' of a tensor",
)
def module_cast_inside() -> Case:
    model = small()

    def call(x: Tensor) -> Tensor:
        return model.double()(x.double()).float() + model.float()(x.float())

    return Case(call, lambda: model.append(nn.Tanh()), module=model)


@feature()
def moving_average_of_weights() -> Case:
    model = small()
    average = copy.deepcopy(model)

    @torch.no_grad()
    def call(x: Tensor) -> Tensor:
        for own, other in zip(average.parameters(), model.parameters(), strict=True):
            own.lerp_(other, 0.1)
        return average(x)

    return Case(call, lambda: model[0].weight.data.fill_(3), module=average)


@feature()
def many_tensors_updated_at_once() -> Case:
    model, rate = small(), types.SimpleNamespace(value=0.9)

    @torch.no_grad()
    def call(x: Tensor) -> Any:
        torch._foreach_mul_(list(model.parameters()), rate.value)
        return model(x)

    return Case(call, setter(rate, value=1.5), module=model)


@feature(graphs=2, hits=4)
def state_that_is_the_last_result() -> Case:
    cell, state = nn.GRUCell(4, 4), types.SimpleNamespace(hidden=None)

    def call(x: Tensor) -> Any:
        before = state.hidden
        state.hidden = cell(x, before)
        return state.hidden, before

    return Case(call, setter(state, hidden=None), observe=lambda: state.hidden, module=cell)


@feature()
def results_kept_in_a_list() -> Case:
    history: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        y = x * 2
        history.append(y[0])
        return y

    return Case(call, lambda: [row.zero_() for row in history], observe=lambda: list(history))


@feature(
    hits=4, cuts=("the call looks at a list that it has changed",), eager="the call looks at a list that it has changed"
)
def results_kept_and_summed() -> Case:
    history: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        history.append(x * 2)
        return sum(history)

    return Case(call, history.clear, observe=lambda: list(history))


@feature(graphs=3, hits=3)
def number_that_counts() -> Case:
    state = types.SimpleNamespace(count=0)

    def call(x: Tensor) -> Any:
        state.count += 1
        return x * state.count, torch.full((2,), state.count), x + (10 if state.count % 2 else 0)

    return Case(call, setter(state, count=100), observe=lambda: state.count)


@feature(graphs=2, hits=4)
def something_every_third_call() -> Case:
    state = types.SimpleNamespace(count=0, told=[])

    def call(x: Tensor) -> Tensor:
        state.count += 1
        if state.count % 3 == 0:
            state.told.append(x.sum())
        return x * 2

    return Case(call, setter(state, count=1), observe=lambda: (state.count, list(state.told)))


@feature()
def buffer_written_through_overlapping_views() -> Case:
    buffer = torch.zeros(6)

    def call(x: Tensor) -> Any:
        head, tail = buffer[:4], buffer[2:]
        head.add_(x[0].detach())
        tail.mul_(2)
        x[1].copy_(head)
        return head, tail, buffer.clone(), x[1]

    return Case(call, lambda: buffer.fill_(1), observe=lambda: buffer)


@feature(graphs=2, hits=4)
def learning_rate_that_changes_with_each_call() -> Case:
    state, weight = types.SimpleNamespace(rate=2.0), torch.ones(4)

    def call(x: Tensor) -> Any:
        state.rate *= 0.5
        weight.sub_(x[0].detach() * state.rate)
        return weight * 2

    return Case(call, setter(state, rate=7.0), observe=lambda: (weight, state.rate))
