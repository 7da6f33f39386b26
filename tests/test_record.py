"""What the recorder notes, what it refuses, and that replays equal eager to the bit."""

import math
import struct
import warnings

import magneto
import numpy as np
import pytest
import torch
from magneto import _C
from torch import Tensor, nn
from zoo import harness

pytestmark = pytest.mark.skipif(bool(harness.unsupported()), reason="nothing can be captured here")

ONES = torch.ones(3)


@pytest.fixture(autouse=True)
def fresh():
    magneto.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    magneto.reset()


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def look(value):
    """Everything about a result that a program can see."""
    if isinstance(value, Tensor):
        base = value._base
        described = [tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, bits(value)]
        return [*described, value._version, base is not None, None if base is None else bits(base)]
    if isinstance(value, (tuple, list)):
        return [type(value), *map(look, value)]
    if isinstance(value, float):
        return struct.pack("d", value)
    return value


def outcome(function, *args):
    """The result, or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = look(function(*args))
        except Exception as error:
            result = (type(error), str(error))
    return result, [(w.category, str(w.message)) for w in warned]


def agree(function, *calls, compiled=None):
    """Compares each call with eager, on fresh copies of the arguments and the same generator state."""
    compiled = compiled or magneto.compile(function)
    for args in calls:
        seen = []
        for candidate in (function, compiled):
            torch.manual_seed(7)
            own = [a.clone() if isinstance(a, Tensor) else a for a in args]
            seen.append((outcome(candidate, *own), [look(a) for a in own], look(torch.get_rng_state())))
        assert seen[0] == seen[1]
    return compiled


def replayed(function, *calls):
    """As `agree`, and the graph did run."""
    compiled = agree(function, *calls)
    assert harness.state(compiled) == "compiled", harness.why_eager(compiled)
    assert harness.stat("hits") > 0
    return magneto.explain(compiled)(*calls[-1]).graphs


# ---- what is recorded


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t(),
        lambda x: x[1:],
        lambda x: x.view(3, 2)[1],
        lambda x: x.t() * 2,
        lambda x: (x + 1).expand(2, 2, 3),
        lambda x: torch.split(x * 2, 1),
        lambda x: (x * 2).unbind(1),
        lambda x: x.add_(1),
        lambda x: x[0].mul_(3),
        lambda x: [x * 2] * 2,
        lambda x: x.sort(dim=1),
        lambda x: x.to(torch.float64).max(dim=0).values,
        lambda x: torch.tensor([1.0, 2.0, 3.0]) * x,
        lambda x: torch.tensor([1.0, 2.0, 3.0]).add_(x[0]),
        lambda x: torch.tensor(3).add(x),
        lambda x: torch.as_tensor([2.0, 1.0, 0.5]).mul_(x[0]),
        lambda x: torch.unsafe_chunk(torch.tensor([1.0, 2, 3, 4, 5, 6]), 2)[0].add_(x[0]),
        lambda x: torch.ops.aten._unsafe_view(torch.tensor([1.0, 2, 3, 4, 5, 6]), [2, 3]).add_(x),
        lambda x: torch.unsafe_split(torch.tensor([1.0, 2, 3, 4, 5, 6]), 3)[1].add_(x[1]),
        lambda x: torch.max_pool1d(x[None], 2),
        lambda x: x.type(torch.float64),
        lambda x: torch.rand(3) + torch.nn.functional.dropout(x, 0.5),
        lambda x: torch.empty(2, 3).copy_(x),
    ],
)
def test_replays_equal_eager(function):
    x = torch.arange(6.0).view(2, 3)
    replayed(function, (x,), (x - 3,), (x * 5,))


def assign(x):
    y = x.clone()
    y[0] = 1.0
    y[:, 1] += 2
    return y


def test_assignment_by_index():
    x = torch.arange(6.0).view(2, 3)
    replayed(assign, (x,), (x - 3,), (x * 5,))


def test_lstm():
    weights = [torch.randn(16, 3), torch.randn(16, 4), torch.randn(16), torch.randn(16)]

    def function(x):
        start = torch.zeros(1, 2, 4)
        return torch.lstm(x, (start, start), weights, True, 1, 0.0, False, False, True)

    replayed(function, (torch.randn(2, 5, 3),), (torch.randn(2, 5, 3),), (torch.randn(2, 5, 3),))


def test_batch_norm_updates_its_statistics():
    norms = [nn.BatchNorm1d(3), nn.BatchNorm1d(3)]
    compiled = magneto.compile(lambda x: norms[0](x))
    for _ in range(4):
        x = torch.randn(5, 3)
        assert torch.equal(compiled(x), norms[1](x))
        assert torch.equal(norms[0].running_mean, norms[1].running_mean)
        assert torch.equal(norms[0].num_batches_tracked, norms[1].num_batches_tracked)


# ---- dead operators


def out_of_range(i):
    torch.ones(4)[i]
    return i + 1


def zero_division(i):
    i // i
    i % i
    return i + 1


@pytest.mark.parametrize(("function", "bad"), [(out_of_range, 9), (zero_division, 0)])
def test_an_unused_operator_still_raises(function, bad):
    good = torch.tensor([1, 2])
    compiled = agree(function, (good,), (good,), (torch.tensor([bad, 1]),), (good,))
    assert harness.state(compiled) == "compiled"
    with pytest.raises((IndexError, RuntimeError)):
        compiled(torch.tensor([bad, 1]))


def test_unused_operators_that_cannot_raise_are_dropped():
    def function(x):
        x.sin()
        x.sum()
        x / 0
        return x + 1

    (graph,) = replayed(function, (ONES,), (ONES,))
    assert "aten.add" in graph
    assert not any(name in graph for name in ("sin", "sum", "div"))


# ---- values


def by_sign(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def test_a_branch_on_a_value():
    graphs = replayed(by_sign, (ONES,), (ONES,), (-ONES,), (-ONES,), (ONES,))
    assert len(graphs) == 3  # what is asked for, and one for each answer
    assert not any("aten._local_scalar_dense" in graph for graph in graphs)


def test_a_value_as_an_index():
    calls = [torch.tensor(row) for row in ([1.0, 5.0, 2.0], [0.0, 7.0, 1.0], [9.0, 5.0, 2.0], [1.0, 2.0, 3.0])]
    replayed(lambda x: x[int(x.argmax())] + 1, *((x,) for x in calls))


NUMBERS = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, 5e-324]


@pytest.mark.parametrize("first", NUMBERS)
@pytest.mark.parametrize("second", NUMBERS)
def test_floats_are_compared_to_the_bit(first, second):
    def function(x):
        return x + 1, float(x)

    a, b = (torch.tensor(number, dtype=torch.float64) for number in (first, second))
    replayed(function, (a,), (b,), (a,), (b,))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.complex64])
def test_numbers_of_each_type(dtype):
    def function(x):
        return x.logical_not(), x.item(), type(x.item()), bool(x)

    agree(function, *((torch.tensor(number).to(dtype),) for number in (0, 1, 1, 0, 2, 1)))


def test_extreme_integers():
    def function(x):
        return x * 1, int(x)

    ends = torch.iinfo(torch.int64)
    replayed(function, *((torch.tensor(n),) for n in (ends.min, ends.max, ends.min, -1, 2**53, 2**53 + 1)))


def test_a_value_after_a_write_to_an_argument():
    def function(x):
        x.view(-1)[0].add_(1)
        return x * 2 if x.sum() > 0 else x - 1

    replayed(function, (ONES,), (-ONES,), (ONES,), (-ONES,))


def test_a_value_after_a_random_number():
    def function(x):
        x = x + torch.rand(3)
        return x * 2 if x.sum() > 0 else x - 1

    replayed(function, (ONES,), (-5 * ONES,), (ONES,), (-5 * ONES,))


def test_a_write_after_a_value_happens_once():
    def function(x):
        if x.sum() > 0:
            return x.add_(1)
        return x.sub_(1)

    replayed(function, (ONES,), (ONES,), (-ONES,), (-ONES,), (ONES,))


def test_a_value_after_a_write_to_fresh_memory():
    def function(x):
        x = x.clone()
        x.add_(1)
        return x * 2 if x.sum() > 0 else x - 1

    replayed(function, (ONES,), (ONES,), (-5 * ONES,), (-5 * ONES,), (ONES,))


# ---- what is refused


DATA = np.array([1.0, 2.0, 3.0], dtype=np.float32)
FOREIGN = bytearray(struct.pack("3f", 1, 2, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.data + 1,
        lambda x: x + x.tolist()[0],
        lambda x: torch.from_numpy(DATA) + x,
        lambda x: torch.frombuffer(FOREIGN, dtype=torch.float32) + x,
        lambda x: x + x.storage_offset(),
        lambda x: x + len(x.nonzero()),
        lambda x: x[x > 0] + 1,
        lambda x: x * 2 if torch.equal(x, ONES) else x - 1,
    ],
)
def test_in_parts(function):
    replayed(function, (ONES,), (-ONES,), (torch.arange(3.0),), (ONES,), (-ONES,))
    assert _C.counters()["graph_break"]


@pytest.mark.parametrize("function", [lambda x: torch.empty(3)])
def test_refused(function):
    compiled = magneto.compile(function)
    for x in (ONES, -ONES, torch.arange(3.0)):
        result = compiled(x)
        assert result.shape == function(x).shape
    assert harness.state(compiled) != "compiled"
    assert _C.counters()["eager"]


def test_memory_of_others_is_read_each_time():
    compiled = magneto.compile(lambda x: torch.from_numpy(DATA) + x)
    before = compiled(ONES)
    DATA[0] += 1
    try:
        assert torch.equal(compiled(ONES), before + torch.tensor([1.0, 0, 0]))
    finally:
        DATA[0] -= 1


@torch.jit.script
def scripted(x):
    return torch.relu(x) * 2 + 1


@torch.jit.script
def scripted_offset(x):
    return x + x.storage_offset()


@torch.jit.script
def scripted_seed(x):
    torch.manual_seed(3)
    return x + 1


@torch.jit.script
def scripted_leaf(x):
    return x + int(x.is_leaf)


@torch.jit.script
def scripted_fork(x):
    return torch.jit.wait(torch.jit.fork(scripted, x))


def test_a_script_function_is_recorded():
    replayed(lambda x: scripted(x), (ONES,), (-ONES,), (ONES,))


@pytest.mark.parametrize("function", [scripted_offset, scripted_seed, scripted_leaf, scripted_fork])
def test_script_functions_that_are_refused(function):
    compiled = magneto.compile(lambda x: function(x))
    for x in (torch.arange(6.0), torch.arange(6.0)[2:], torch.arange(6.0)[:4]):
        torch.manual_seed(1)
        expected, after = function(x), torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(compiled(x), expected)
        assert torch.equal(torch.rand(1), after)
    assert harness.state(compiled) != "compiled"


# ---- errors and warnings


def test_an_error_after_a_write_leaves_what_eager_leaves():
    def function(x, i):
        x.add_(1)
        return x[i]

    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    compiled = agree(function, (ONES, good), (ONES, good), (ONES, bad), (ONES, good))
    assert harness.state(compiled) == "compiled"


def test_warnings_come_with_results_and_with_errors():
    def function(x, out, i):
        x.add_(1)
        torch.add(x, 1, out=out)  # resizes what is not empty, and warns
        return x[i] + out.sum()

    def call(good):
        return torch.ones(3), torch.ones(2), torch.tensor([0, 1] if good else [0, 9])

    warned = outcome(function, *call(True))[1]
    assert warned
    agree(function, call(True), call(True), call(False), call(True))
