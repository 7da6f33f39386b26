"""What extends torch: custom operators, autograd functions, checkpoints, transforms, subclasses and overrides."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .runner import Case, feature, left_to_python, numbers

settings = {"factor": 3.0}


@torch.library.custom_op("magneto_features::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.by, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)


@torch.library.custom_op("magneto_features::add_to", mutates_args={"x"})
def add_to(x: Tensor, y: Tensor) -> None:
    x.add_(y)


LIBRARY = torch.library.Library("magneto_features", "FRAGMENT")
LIBRARY.define("pair(Tensor x, int n=2, *, str mode='sum') -> (Tensor, Tensor[])")
LIBRARY.impl("pair", lambda x, n=2, *, mode="sum": (getattr(x, mode)(), [x + i for i in range(n)]), "CPU")
LIBRARY.define("composed(Tensor x) -> Tensor")
LIBRARY.impl("composed", lambda x: (x * 2).relu() + settings["factor"], "CompositeImplicitAutograd")
LIBRARY.define("count_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.impl("count_", lambda x: x.add_(1), "CPU")
LIBRARY.define("positive(Tensor x) -> Tensor")
LIBRARY.impl("positive", lambda x: x[x > 0].clone(), "CPU")
ops = torch.ops.magneto_features


class World:
    def __init__(self) -> None:
        self.factor: Any = 2.0


def changing(call: Any, **more: Any) -> Case:
    world = World()
    return Case(lambda x: call(x, world), lambda: setattr(world, "factor", 5.0), **more)


@feature(
    graphs=2,
    hits=4,
    cuts=("the call reads a torch._C.Tag, whose contents cannot be guarded",),
    eager="the call reads a torch._C.Tag, whose contents cannot be guarded",
    python=("scaled",),
)
def custom_op() -> Case:
    return changing(lambda x, world: scaled(x, 1.5) + scaled(x * 2, by=world.factor))


@feature(
    graphs=2,
    hits=4,
    cuts=("the call reads a torch._C.Tag, whose contents cannot be guarded",),
    eager="the call reads a torch._C.Tag, whose contents cannot be guarded",
    python=("add_to",),
)
def custom_op_that_writes() -> Case:
    def call(x: Tensor, world: World) -> Any:
        y = x.clone()
        add_to(y, x * world.factor)
        add_to(x, y)
        return y + 1

    return changing(call)


@feature(
    hits=4,
    cuts=("an operator that is not torch's own (magneto_features::pair)",),
    eager="an operator that is not torch's own (magneto_features::pair)",
    python=("<lambda>",),
)
def library_op_of_several_results() -> Case:
    def call(x: Tensor, world: World) -> Any:
        total, parts = ops.pair(x, 3, mode="mean" if world.factor > 3 else "sum")
        return total, parts, parts[1] * 2

    return changing(call)


@feature(
    graphs=2,
    hits=4,
    cuts=("an operator that is not torch's own (magneto_features::count_)",),
    eager="an operator that is not torch's own (magneto_features::count_)",
    python=("<lambda>",),
)
def library_op_in_place_on_state() -> Case:
    state = torch.zeros(4)

    def call(x: Tensor) -> Any:
        ops.count_(state)
        ops.count_(x[0])
        return x + state

    return Case(call, lambda: state.fill_(9), observe=lambda: state)


@feature()
def library_op_composed_of_others() -> Case:
    settings["factor"] = 3.0
    return Case(lambda x: ops.composed(x) + 1, lambda: settings.update(factor=4.0))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * ctx.factor, None


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        return gradient * 7


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@feature()
def autograd_function() -> Case:
    return changing(lambda x, world: Square.apply(x, world.factor) + 1)


@feature()
def autograd_function_with_its_context_apart() -> Case:
    return changing(lambda x, world: (Twice.apply(x), x * world.factor))


@feature(
    hits=3,
    cuts=("the call returns a builtin_function_or_method, which is not understood",),
    eager="the call returns a builtin_function_or_method, which is not understood",
    python=("forward",),
)
def autograd_function_in_place() -> Case:
    return changing(lambda x, world: (InPlace.apply(x), x * world.factor))


@feature()
def autograd_function_that_returns_its_argument() -> Case:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 5

    return changing(lambda x, world: (Same.apply(x), x * world.factor))


@feature(
    graphs=2,
    cuts=(
        "the call runs TensorBase.requires_grad_, which is not understood",
        "the call runs torch.autograd.grad, which is left to Python as a whole",
    ),
)
def gradients_computed_inside() -> Case:
    def call(x: Tensor, world: World) -> Any:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((y**2 * world.factor).sum(), y)
        return gradient, y.requires_grad

    return changing(call)


@feature(
    graphs=3,
    hits=4,
    cuts=(
        "the call reads the attribute 'grad' of a tensor",
        "the call runs torch._tensor.Tensor.backward, which is left to Python as a whole",
        "the call runs torch.nn.modules.module.Module.zero_grad, which is left to Python as a whole",
    ),
    eager="the call reads the attribute 'grad' of a tensor",
)
def backward_inside() -> Case:
    layer = nn.Linear(4, 2)

    def call(x: Tensor) -> Any:
        with torch.enable_grad():
            layer.zero_grad()
            loss = layer(x).pow(2).sum()
            loss.backward()
        return loss.detach(), layer.weight.grad.clone()

    return Case(call, lambda: layer.weight.data.mul_(2), observe=lambda: layer.bias.grad, module=layer)


@feature(
    graphs=2,
    cuts=(
        "the call runs torch._tensor.Tensor.backward, which is left to Python as a whole",
        "the call runs torch.optim.optimizer.Optimizer.zero_grad, which is left to Python as a whole",
        "the call runs torch.optim.sgd.SGD.step, which is left to Python as a whole",
    ),
)
def training_step_inside() -> Case:
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    def call(x: Tensor) -> Any:
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = layer(x).pow(2).sum()
            loss.backward()
            optimizer.step()
        return loss.detach()

    return Case(call, lambda: optimizer.param_groups[0].update(lr=0.5), module=layer)


@feature(varies="whether torch.compile has run in the process")
def checkpointed() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 4))

    def call(x: Tensor) -> Any:
        y = checkpoint(model, x, use_reentrant=False)
        return checkpoint_sequential(list(model), 2, y, use_reentrant=False)

    return Case(call, model.eval, module=model)


@left_to_python("runs _warnings.warn", "<lambda>")
def checkpointed_reentrant() -> Case:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    return Case(lambda x: checkpoint(model, x, use_reentrant=True), lambda: model.append(nn.Tanh()), module=model)


@feature(graphs=2, hits=4, cuts=("torch.func.grad,", "uses a function"), eager="uses a function", python=("<lambda>",))
def func_grad() -> Case:
    def call(x: Tensor, world: World) -> Any:
        return torch.func.grad(lambda y: (y.sin() * world.factor).sum())(x * 2) + 1

    return changing(call)


@feature(graphs=1, hits=3, cuts=("torch.func.vmap,", "uses a function"), eager="uses a function", python=("<lambda>",))
def func_vmap() -> Case:
    def call(x: Tensor, world: World) -> Any:
        return torch.vmap(lambda row: row.dot(row) * world.factor)(x), torch.vmap(torch.outer, in_dims=(0, None))(
            x, x[0]
        )

    return changing(call)


@feature(
    graphs=2,
    hits=4,
    cuts=("torch.func.grad,", "torch.func.vmap,", "uses a function"),
    eager="uses a function",
    python=("<lambda>",),
)
def func_vmap_of_grad() -> Case:
    def call(x: Tensor, world: World) -> Any:
        return torch.vmap(torch.func.grad(lambda row: (row**3).sum() * world.factor))(x * 2) + 1

    return changing(call)


@feature(
    graphs=3,
    hits=3,
    cuts=("torch.func.jacrev,", "torch.func.jacfwd,", "torch.func.jvp,", "torch.func.vjp,", *("uses a function",) * 2),
    eager="uses a function",
    python=("inner",),
)
def func_jacobians() -> Case:
    def call(x: Tensor, world: World) -> Any:
        def inner(row: Tensor) -> Tensor:
            return row.sin() * world.factor

        return (
            torch.func.jacrev(inner)(x[0]) * 2,
            torch.func.jacfwd(inner)(x[0]),
            torch.func.jvp(inner, (x,), (x,)),
            torch.func.vjp(inner, x)[0],
        )

    return changing(call)


@feature()
def functional_call() -> Case:
    model = nn.Linear(4, 4)
    parameters = {"weight": torch.eye(4), "bias": torch.ones(4)}

    def call(x: Tensor) -> Any:
        return torch.func.functional_call(model, parameters, (x,)), model(x)

    return Case(call, lambda: parameters.update(weight=torch.eye(4) * 3), module=model)


@feature(graphs=2, hits=4, cuts=("torch.func.vmap,", "uses a function"), eager="uses a function", python=("one",))
def functional_call_of_an_ensemble() -> Case:
    models = [nn.Linear(4, 2) for _ in range(3)]
    stacked, _buffers = torch.func.stack_module_state(models)
    base = nn.Linear(4, 2, device="meta")

    def call(x: Tensor) -> Any:
        def one(parameters: Any, y: Tensor) -> Tensor:
            return torch.func.functional_call(base, parameters, (y,))

        return torch.vmap(one, in_dims=(0, None))(stacked, x * 2) + 1

    return Case(call, lambda: stacked.update(bias=torch.ones(3, 2)))


class Tagged(Tensor):
    """A subclass that does nothing."""


class Duck:
    """No tensor at all, but torch's functions take it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = [arg.value if isinstance(arg, Duck) else arg for arg in args]
        return Duck(func(*bare, **(kwargs or {})) + settings["factor"])


@left_to_python("argument args[0] is a tensor subclass Tagged", "<lambda>")
def subclass_as_an_argument() -> Case:
    return Case(
        lambda x: (x * 2, type(x + 1).__name__, x.as_subclass(Tensor) + 1),
        inputs=lambda i: (numbers(i)[0].as_subclass(Tagged),),
        later=numbers,
    )


@feature(
    hits=3,
    cuts=("the call runs TensorBase.as_subclass, which is not understood", "the call uses a tensor subclass Tagged"),
    eager="the call uses a tensor subclass Tagged",
)
def subclass_made_inside() -> Case:
    def call(x: Tensor, world: World) -> Any:
        y = x.as_subclass(Tagged)
        return y * world.factor, isinstance(y, Tagged), x + 1

    return changing(call)


@feature(
    graphs=0,
    hits=0,
    eager="the call uses a builtin_function_or_method that an unknown function may have changed",
    python=("<lambda>", "__torch_function__", "call"),
)
def subclass_with_an_override() -> Case:
    told: list[str] = []

    class Telling(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            told.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def call(x: Tensor, world: World) -> Any:
        y = (x.as_subclass(Telling) * world.factor).sum()
        return y.as_subclass(Tensor), x + 1

    return changing(call, observe=lambda: list(told))


@left_to_python("asks torch._VariableFunctionsClass.add for a value", "__init__", "__torch_function__", "call")
def object_with_an_override() -> Case:
    settings["factor"] = 3.0

    def call(x: Tensor) -> Any:
        return torch.add(Duck(x), 1).value, torch.sin(Duck(x)).value

    return Case(call, lambda: settings.update(factor=4.0))


@feature()
def parameter_as_an_argument() -> Case:
    return Case(
        lambda x: (x * 2, type(x).__name__, x.requires_grad),
        inputs=lambda i: (nn.Parameter(numbers(i)[0]),),
        later=numbers,
    )


@feature(
    graphs=2,
    hits=3,
    cuts=("torch._C._push_on_torch_function_stack", "the call uses a method that an unknown function may have changed"),
    eager="the call uses a method that an unknown function may have changed",
)
def torch_function_mode() -> Case:
    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.sin else result

    def call(x: Tensor, world: World) -> Any:
        with Doubling():
            y = torch.sin(x)
        return y + torch.sin(x) * world.factor

    return changing(call)


@left_to_python("returns a collections.deque", "<lambda>", "__torch_dispatch__", "call")
def torch_dispatch_mode() -> Case:
    seen: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def call(x: Tensor, world: World) -> Any:
        with Noting():
            y = torch.sin(x) + 1
        return y * world.factor

    return changing(call, observe=lambda: list(seen))


@feature()
def scripted_function() -> Case:
    @torch.jit.script
    def inner(x: Tensor, n: int) -> Tensor:
        for i in range(n):
            x = x + i
        return x

    return changing(lambda x, world: inner(x, int(world.factor)) * 2)


@feature(
    hits=2,
    cuts=(
        "the call lets C code call torch._VariableFunctionsClass.sin",
        "the call passes torch._VariableFunctionsClass.add to _functools.reduce",
        "the call uses a map that an unknown function may have changed",
    ),
    eager="the call lets C code call torch._VariableFunctionsClass.sin",
)
def partials_and_methods_of_torch() -> Case:
    layer = functools.partial(torch.nn.functional.leaky_relu, negative_slope=0.3)

    def call(x: Tensor, world: World) -> Any:
        return (
            layer(x),
            Tensor.mul(x, world.factor),
            torch.Tensor.__add__(x, 1),
            list(map(torch.sin, x)),
            functools.reduce(torch.add, x),
        )

    return changing(call)


@feature(
    hits=3,
    cuts=("an operator that is not torch's own (magneto_features::positive)",),
    eager="an operator that is not torch's own (magneto_features::positive)",
    python=("<lambda>",),
)
def library_op_whose_sizes_depend_on_contents() -> Case:
    return changing(lambda x, world: ops.positive(x) * world.factor)
