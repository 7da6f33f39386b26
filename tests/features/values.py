"""Programs that ask tensors for values: numbers, lists, arrays, texts, branches, and where they run."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import magneto
import numpy
import torch
from torch import Tensor

from .runner import BEFORE, Case, feature, left_to_python, numbers


class State:
    """What the changes of this file set."""

    def __init__(self) -> None:
        self.factor: Any = 2.0
        self.told: list[Any] = []


def reading(call: Any, **more: Any) -> Case:
    """A function of a tensor and of a state, whose factor is another one after the change."""
    state = State()
    return Case(
        lambda x: call(x, state), lambda: setattr(state, "factor", 5.0), observe=lambda: list(state.told), **more
    )


@feature(graphs=2, cuts=("the call runs TensorBase.item, which is not understood",))
def item_that_is_carried_along() -> Case:
    def call(x: Tensor, state: State) -> Any:
        total = (x * 2).sum().item()
        state.told.append(total)
        return x * state.factor, total

    return reading(call)


@feature(graphs=2, hits=4, cuts=("TensorBase.item",))
def item_that_is_computed_with() -> Case:
    def call(x: Tensor, state: State) -> Any:
        scale = x.abs().max().item()
        return x / scale * state.factor, scale + 1, -scale

    return reading(call)


@feature(graphs=2, hits=4, cuts=("int",))
def item_that_is_a_size() -> Case:
    def call(x: Tensor, state: State) -> Any:
        count = int((x > 0).sum())
        return torch.zeros(count) + state.factor, x.view(-1)[:count] * 2, count

    return reading(call)


@feature(graphs=2, hits=4, cuts=("TensorBase.item",))
def item_that_is_an_index() -> Case:
    def call(x: Tensor, state: State) -> Any:
        best = x.view(-1).argmax().item()
        return x.view(-1)[best] * state.factor, best

    return reading(call)


@feature(graphs=3, hits=3, cuts=("TensorBase.item", "int"))
def item_as_a_key_and_a_list_index() -> Case:
    table = {True: "more", False: "less"}

    def call(x: Tensor, state: State) -> Any:
        words = ["none", "one", "two", "three", "four"]
        return table[(x.sum() > 0).item()], words[int((x[0] > 0).sum())], x * state.factor

    return reading(call)


@feature(graphs=3, hits=4, cuts=("bool", "bool"))
def truth_of_a_tensor() -> Case:
    def call(x: Tensor, state: State) -> Any:
        y = x * state.factor if x.sum() > 0 else x - 1
        return y.relu() if (y > 3).any() else y + 1

    return reading(call)


@feature(graphs=2, hits=4, cuts=("bool",))
def truth_with_effects_on_both_sides() -> Case:
    def call(x: Tensor, state: State) -> Any:
        state.told.append("before")
        x.add_(1)
        if x.mean() > 1:
            state.told.append("large")
            x.mul_(state.factor)
        state.told.append(x.shape)
        return x + 1

    return reading(call)


@feature(graphs=3, hits=4, cuts=("_operator.not_", "bool"))
def truth_in_and_or_not() -> Case:
    def call(x: Tensor, state: State) -> Any:
        flag = (x.sum() > 0 and x[0, 0] > 0) or not x[1, 1] > 0
        return x * state.factor, flag

    return reading(call)


@feature(graphs=5, hits=4, cuts=("bool",))
def loop_until_small() -> Case:
    def call(x: Tensor, state: State) -> Any:
        steps = 0
        while x.abs().max() > 0.2 and steps < 5:
            x = x / state.factor
            steps += 1
        return x, steps

    return reading(call)


@feature(
    graphs=2,
    hits=3,
    cuts=("bool", "complex", "float", "int"),
    eager="an index looks at a tensor whose sizes may change",
)
def float_int_bool_complex_index() -> Case:
    def call(x: Tensor, state: State) -> Any:
        y = x.sum()
        return float(y), int(y), bool(y), complex(y), round(float(y), 2), [1, 2, 3][torch.tensor(1)], y * state.factor

    return reading(call)


@feature(
    hits=3,
    cuts=("the call runs TensorBase.tolist, which is not understood",),
    eager="the call does no tensor work",
    settles=False,
)
def tolist() -> Case:
    def call(x: Tensor, state: State) -> Any:
        rows = (x * state.factor).tolist()
        return [sum(row) for row in rows], rows[0][1], x + rows[1][2]

    return reading(call)


@feature(
    graphs=2,
    hits=3,
    cuts=(
        "the call runs TensorBase.numpy, which is not understood",
        "the call runs torch._VariableFunctionsClass.from_numpy, which is not understood",
        "the call uses a numpy.ndarray that an unknown function may have changed",
    ),
    eager="the call uses a numpy.ndarray that an unknown function may have changed",
)
def numpy_of_a_result() -> Case:
    def call(x: Tensor, state: State) -> Any:
        array = (x * state.factor).numpy()
        return torch.from_numpy(numpy.sin(array)) + 1, array.shape

    return reading(call)


@left_to_python("uses a numpy.ndarray", "<lambda>", "call")
def numpy_that_shares_memory() -> Case:
    def call(x: Tensor, state: State) -> Any:
        array = x.numpy()
        array += 1
        y = x * state.factor
        array[0] = 0
        return x + y, x

    return reading(call)


@feature(varies="the new object may have the address of the one before")
def numpy_array_as_an_argument() -> Case:
    def call(array: Any, x: Tensor) -> Any:
        y = torch.from_numpy(array) + x
        return y, torch.as_tensor(array * 2), torch.tensor(array).sum(), y.numpy() + array

    return Case(call, inputs=lambda i: (numpy.arange(12.0, dtype=numpy.float32).reshape(3, 4) + i, *numbers(i)))


@feature(
    graphs=2,
    hits=3,
    cuts=(
        "the call reads a numpy.ndarray, whose contents cannot be guarded",
        "the call runs ndarray.mean, which is not understood",
        "the call runs torch._VariableFunctionsClass.from_numpy, which is not understood",
        "the call uses a numpy.float32 that an unknown function may have changed",
    ),
    eager="the call reads a numpy.ndarray, whose contents cannot be guarded",
)
def numpy_array_as_state() -> Case:
    table = numpy.arange(4.0, dtype=numpy.float32)

    def call(x: Tensor) -> Any:
        return x * torch.from_numpy(table), x + float(table[1]), table.mean()

    return Case(call, lambda: table.__iadd__(3))


@feature(
    graphs=2,
    hits=2,
    cuts=(
        "the call reads a numpy.float32, whose contents cannot be guarded",
        "the call reads a numpy.int64, whose contents cannot be guarded",
    ),
    eager="the call reads a numpy.float32, whose contents cannot be guarded",
)
def numpy_scalars() -> Case:
    state = {"scale": numpy.float32(2.5), "n": numpy.int64(3)}

    def call(x: Tensor) -> Any:
        return x * state["scale"], x + float(state["scale"]), torch.ones(int(state["n"]))

    return Case(call, lambda: state.update(scale=numpy.float32(0.5)))


@feature(
    hits=1,
    cuts=(
        "the call runs TensorBase.numpy, which is not understood",
        "the call runs numpy.asarray, which is not understood",
        "the call runs numpy.multiply, which is not understood",
        "the call uses a builtin_function_or_method that an unknown function may have changed",
        "the call uses a numpy.ndarray that an unknown function may have changed",
    ),
    eager="the call uses a builtin_function_or_method that an unknown function may have changed",
)
def numpy_functions_of_tensors() -> Case:
    def call(x: Tensor, state: State) -> Any:
        return numpy.asarray(x).sum(), numpy.multiply(x, state.factor), torch.tensor(numpy.exp(x.numpy())) + x

    return reading(call)


@feature(graphs=3, cuts=("float", "print", "print"))
def printed() -> Case:
    def call(x: Tensor, state: State) -> Any:
        y = x * state.factor
        print("before", y.shape, state.factor)
        y = y + 1
        print(y[0], float(y.sum()), sep=" | ")
        return y * 2

    return reading(call)


@feature(
    graphs=6,
    hits=2,
    cuts=(
        "the call runs float, which is not understood",
        "the call runs torch._C._DisableFuncTorch, which is not understood",
    ),
    eager="the call runs torch._C._DisableFuncTorch, which is not understood",
)
def formatted() -> Case:
    def call(x: Tensor, state: State) -> Any:
        y = x * state.factor
        return f"{y[0, 0]:.3f}", f"{y.shape}", repr(y[0]), str(y.dtype), f"{float(y.sum())}", y

    return reading(call)


@feature(graphs=3, hits=4, cuts=("TensorBase.masked_select", "_operator.getitem"))
def masked() -> Case:
    def call(x: Tensor, state: State) -> Any:
        kept = x[x > 0]
        return kept * state.factor, kept.shape[0], x.masked_select(x < 0).sum(), kept.mean()

    return reading(call)


@feature(
    graphs=4,
    hits=3,
    cuts=(
        "sizes that depend on the contents of a tensor (aten::nonzero)",
        "the call runs TensorBase.nonzero, which is not understood",
        "the call runs torch._VariableFunctionsClass._unique2, which is not understood",
        "the call runs torch._VariableFunctionsClass.argwhere, which is not understood",
    ),
    eager="sizes that depend on the contents of a tensor (aten::nonzero)",
)
def nonzero_and_unique() -> Case:
    def call(x: Tensor, state: State) -> Any:
        places = (x > 0).nonzero()
        rows, columns = torch.where(x > 0)
        values, counts = (x > 0).int().unique(return_counts=True)
        return places * 2, rows + columns, values, counts, x[rows, columns] * state.factor, torch.argwhere(x < 0)

    return reading(call)


@feature(
    graphs=4, cuts=("TensorBase.equal", "torch._VariableFunctionsClass.allclose", "torch._VariableFunctionsClass.equal")
)
def tensors_compared() -> Case:
    def call(x: Tensor, state: State) -> Any:
        return torch.equal(x, x.clone()), torch.allclose(x, x * state.factor), x.equal(x + 1), x * state.factor

    return reading(call)


@feature(graphs=2, hits=4)
def tensor_in_a_list() -> Case:
    def call(x: Tensor, state: State) -> Any:
        rows = [x.sum(), x.mean(), x.max()]
        return max(rows), sorted(rows), rows.index(max(rows)), sum(rows) * state.factor

    return reading(call)


@feature(graphs=2, cuts=("bool",))
def assertion_on_contents() -> Case:
    def call(x: Tensor, state: State) -> Any:
        assert not x.isnan().any(), "a number expected"
        torch._assert(x.shape[0] == 3, "three rows")
        return x * state.factor

    return reading(call)


@feature(hits=4, cuts=("bool",), raises=True)
def error_that_depends_on_contents() -> Case:
    def call(x: Tensor, state: State) -> Any:
        y = x * state.factor
        if y.sum() > 0:
            raise ValueError(f"positive, factor {state.factor}")
        return y

    return reading(call)


@feature()
def is_compiling() -> Case:
    def call(x: Tensor, state: State) -> Any:
        if torch.compiler.is_compiling() or torch.jit.is_scripting() or torch.jit.is_tracing():
            return x * 100
        return x * state.factor

    return reading(call)


@feature()
def math_of_numbers() -> Case:
    def call(x: Tensor, state: State) -> Any:
        return x * math.sqrt(state.factor) + math.floor(state.factor / 2), math.prod(x.shape), math.inf * x

    return reading(call)


@feature(graphs=3, cuts=("TensorBase.data_ptr",))
def data_pointer_and_identity() -> Case:
    def call(x: Tensor, state: State) -> Any:
        y = x.view(-1)
        return y.data_ptr() == x.data_ptr(), y is x, (x + 1).data_ptr() == x.data_ptr(), y * state.factor

    return reading(call)


@feature(
    graphs=2,
    hits=3,
    cuts=("the call reads the attribute '_version' of a tensor", "the call reads the attribute '_version' of a tensor"),
    eager="the call reads the attribute '_version' of a tensor",
)
def version_counter() -> Case:
    def call(x: Tensor, state: State) -> Any:
        before = x._version
        x.add_(1)
        return x._version - before, x * state.factor

    return reading(call)


@left_to_python("leaves an object whose end others notice", "<lambda>", "call")
def storage_and_pickle_inside() -> Case:
    def call(x: Tensor, state: State) -> Any:
        buffer = io.BytesIO()
        torch.save(x, buffer)
        buffer.seek(0)
        return torch.load(buffer) * state.factor, copy.deepcopy(x) + 1, copy.copy(x), x.untyped_storage().nbytes()

    return reading(call)


@feature(graphs=2, cuts=("apart", "graph_break"), python=("apart",))
def disabled_and_broken() -> Case:
    @magneto.disable
    def apart(y: Tensor) -> Tensor:
        return y + 1

    def call(x: Tensor, state: State) -> Any:
        y = apart(x * state.factor)
        magneto.graph_break()
        return y * 2

    return reading(call)


@feature(graphs=2, hits=3, cuts=("TensorBase.item",))
def large_numbers() -> Case:
    def call(x: Tensor, state: State) -> Any:
        n = int((x.abs().sum() * 1000).item())
        return n * 2**60, n << 70, -n // 3, divmod(n, 10), float(n) * 1e300 * 1e10, x * n * state.factor

    return reading(call)


def _value(tensor: Tensor) -> Any:
    v = tensor.item()
    return v, v == v, (1 if v > 0 else 2), abs(v), -v, tensor * 2


@feature(graphs=1, hits=3, cuts=("the call runs TensorBase.item, which is not understood",))
def nan_infinities_and_zeros() -> Case:
    later = [math.nan, -0.0, 0.0, math.inf, -math.inf, math.nan] * 2
    return Case(
        _value, inputs=lambda i: (torch.tensor(i % 3 + 1.0),), later=lambda i: (torch.tensor(later[i - BEFORE]),)
    )


@feature(graphs=2, cuts=("TensorBase.item", "TensorBase.tolist"))
def values_of_other_types() -> Case:
    later = [torch.bool, torch.int64, torch.float64] * 3

    def call(x: Tensor) -> Any:
        return x[0].item(), x.sum().item(), x.tolist()

    return Case(call, inputs=lambda i: (torch.ones(2),), later=lambda i: (torch.ones(2, dtype=later[i - BEFORE]),))


@feature(graphs=2, cuts=("TensorBase.item",))
def division_by_a_value() -> Case:
    return Case(
        lambda x: (1 / x[0].item(), x * 2),
        inputs=lambda i: (torch.full((2,), i % 3 + 1.0),),
        later=lambda i: (torch.full((2,), float(i % 2)),),
    )
