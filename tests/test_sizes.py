"""Sizes and numbers that change from call to call: static first, open from the second capture on."""

import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.usefixtures("no_grad")

SIZES = (3, 5, 7, 4, 9, 2, 11)


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def same(found: Any, expected: Any) -> None:
    found, expected = (pytree.tree_flatten(each) for each in (found, expected))
    assert found[1] == expected[1]
    for one, other in zip(found[0], expected[0], strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
            assert torch.equal(one, other)
        else:
            assert one == other


def captures_of(fn: Callable[..., Any], calls: list[tuple[Any, ...]], **options: Any) -> int:
    """Calls both ways, on copies of the same arguments, and compares the results and what became of the arguments."""
    compiled = magneto.compile(fn, **options)
    before = magneto.counters["stats"]["captures"]
    eager_before = dict(magneto.counters["eager"])
    for args in calls:
        given, kept = (pytree.tree_map_only(torch.Tensor, copy_of, args) for _ in range(2))
        torch.manual_seed(1)
        expected = fn(*kept)
        torch.manual_seed(1)
        same(compiled(*given), expected)
        same(given, kept)
    assert dict(magneto.counters["eager"]) == eager_before
    return magneto.counters["stats"]["captures"] - before


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides."""
    whole = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return torch.as_strided(whole.clone(), tensor.shape, tensor.stride(), tensor.storage_offset())


weight, bias = torch.rand(8, 4), torch.rand(8)


def norm(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()


def attention(x):
    q = F.linear(x, weight, bias)
    heads = q.view(x.shape[0], -1, 2, 4).transpose(1, 2)
    scores = heads @ heads.transpose(-1, -2) / math.sqrt(heads.shape[-1])
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    mixed = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ heads
    return mixed.transpose(1, 2).reshape(*x.shape[:-1], -1)


def hidden_shape(x):
    shape = (*x.shape[:-1], -1, 2)
    batch, length = x.shape[:2]
    return F.linear(x, weight).view(shape), torch.arange(length).expand(batch, -1), x.new_zeros(x.size())


def in_place(x):
    x[:, 0] += x.shape[0]
    x[1:] *= 2
    y = x.clone()
    y[: x.shape[1] // 2] = 7
    return y, x[0]


def numbers(x):
    rows, columns = x.shape
    return rows * columns, rows / 2, rows % 2 == 0, [rows, (columns, {"k": -rows})], x + rows, x.numel(), len(x)


def sized(x):
    return x.shape, x.size()[1:], x.shape + (2,), x * 2


def random(x):
    return F.dropout(x, 0.5), torch.rand(x.shape[0], 2), torch.randperm(len(x))


def pieces(x):
    half = x.shape[1] // 2
    a, b = x[:, :half], x[:, half:]
    return torch.cat([-b, a], 1), torch.stack([x, x]), x.chunk(2, 1), F.pad(x, (1, 2)), x[..., None, :]


def loop(x):
    parts = [x[i] * i for i in range(3)]
    return torch.stack(parts), sum(n * 2 for n in (1, 2))


def sums(x):
    rows = [x[i] for i in range(3)]
    return sum(rows), sum(x * n for n in (1, 2)), sum(rows, x), sum([1, x, 0.5]), sum([2.5, 1]), sum([])


def called(x):
    return double(x, n=x.shape[0]) + double(x)


def double(x, n=1):
    return x * n


def over_sizes(x):
    whole, parts = 1, []
    for size in x.shape:
        whole *= size
        parts += [size + 1]
    doubled = [2 * size for size in x.shape]
    return x.reshape(whole), x.new_zeros(doubled), parts


def copied_sizes(x):
    sizes = list(x.shape[1:])
    joined = [x.shape[0] * 2] + sizes
    return x.new_ones(joined), tuple(sizes), x * sizes[0], isinstance(sizes, (list, tuple))


def changed_sizes(x):
    sizes = list(x.shape)
    sizes.append(sizes[0])
    return x * sizes[-1], sizes


def asked_sizes(x):
    if not x.shape or not all(isinstance(size, int) and size > 1 for size in x.shape):
        return x
    return x + 1 if x.shape[1:] else x.sum()


def drawn_sizes(x):
    def sizes():
        rows = x.shape[0]
        for size in x.shape:
            yield size + rows

    total = 0
    for size in sizes():
        total += size
    return x * total


def grown_lists(x):
    sizes = [2]
    same = sizes
    sizes += [x.shape[0]]
    same += (x.shape[0] + 1, 5)
    return x * sizes[1] + same[2], sizes


FUNCTIONS: dict[Callable[..., Any], Callable[[int], tuple[int, ...]]] = {
    norm: lambda n: (n, 4),
    attention: lambda n: (2, n, 4),
    hidden_shape: lambda n: (n, 3, 4),
    in_place: lambda n: (n + 2, 6),
    numbers: lambda n: (n, 4),
    sized: lambda n: (n, 4),
    random: lambda n: (n, 4),
    pieces: lambda n: (n, 8),
    loop: lambda n: (n + 2, 4),
    sums: lambda n: (3, n),
    called: lambda n: (n, 4),
    over_sizes: lambda n: (n, 4),
    copied_sizes: lambda n: (3, n),
    changed_sizes: lambda n: (n, 4),
    asked_sizes: lambda n: (n, 4),
    drawn_sizes: lambda n: (n, 4),
    grown_lists: lambda n: (n, 4),
}


@pytest.mark.parametrize("fn", FUNCTIONS, ids=operator.attrgetter("__name__"))
def test_the_second_size_is_captured_for_all(fn):
    assert captures_of(fn, [(torch.rand(FUNCTIONS[fn](n)),) for n in SIZES]) == 2


@pytest.mark.parametrize("fn", FUNCTIONS, ids=operator.attrgetter("__name__"))
def test_dynamic_captures_once(fn):
    assert captures_of(fn, [(torch.rand(FUNCTIONS[fn](n)),) for n in SIZES], dynamic=True) == 1


@pytest.mark.parametrize("fn", FUNCTIONS, ids=operator.attrgetter("__name__"))
def test_not_dynamic_captures_each(fn):
    calls = [(torch.rand(FUNCTIONS[fn](n)),) for n in SIZES]
    assert captures_of(fn, calls + calls, dynamic=False) == len(SIZES)


def test_two_sizes_of_two_tensors():
    calls = [(torch.rand(n, m), torch.rand(m, k)) for n, m, k in ((2, 3, 4), (5, 6, 7), (4, 9, 8), (9, 3, 5))]
    assert captures_of(lambda a, b: a @ b + b.shape[1], calls) == 2


def test_a_size_of_one_is_a_form_of_its_own():
    calls = [(torch.rand(n, 4),) for n in (3, 5, 1, 7, 1, 0, 8)]
    assert captures_of(lambda x: x + x.sum(0), calls) == 4


def test_a_branch_on_a_size_makes_two_forms():
    def fn(x):
        return x + 1 if x.shape[0] > 6 else x - 1

    assert captures_of(fn, [(torch.rand(n, 4),) for n in (3, 5, 4, 7, 9, 2, 11)]) == 3


def test_sizes_that_must_be_equal():
    def fn(x, y):
        return x * y if x.shape == y.shape else x.sum() - y.sum()

    calls = [(torch.rand(n), torch.rand(m)) for n, m in ((3, 3), (5, 5), (6, 6), (4, 5), (7, 5), (7, 7))]
    assert captures_of(fn, calls) <= 4


def test_a_size_that_a_loop_runs_over_is_pinned_once():
    def fn(x):
        for _ in range(x.shape[0]):
            x = x * 1.5
        return x

    calls = [(torch.rand(n, 4),) for n in (2, 3, 4, 3, 2, 4)]
    assert captures_of(fn, calls) == 3


def test_strides_are_part_of_it():
    calls = [(torch.rand(n, 4),) for n in (3, 5)] + [(torch.rand(4, n).t(),) for n in (3, 6, 7, 8)]
    assert captures_of(lambda x: x.t().contiguous().view(-1) * 2, calls) <= 4


def test_an_error_for_some_sizes_is_eagers():
    def fn(x):
        return x.view(2, -1) + 1

    compiled = magneto.compile(fn)
    for n in (4, 6, 5, 8):
        x = torch.rand(n)
        try:
            expected = fn(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match="invalid for input of size 5"):
                compiled(x)
            assert "invalid for input of size 5" in str(error)
        else:
            same(compiled(x), expected)


def test_errors_of_sums_are_eagers():
    def fn(x, start):
        seen.append(len(x))
        try:
            return sum((part for part in (x, x[1:], x)), start)
        except (RuntimeError, TypeError) as error:
            return str(error)

    seen = []
    compiled = magneto.compile(fn)
    for start in (0, "", "text", [1]):
        for n in (4, 5, 6, 7):
            assert compiled(torch.rand(n), start) == fn(torch.rand(n), start)
    assert seen == [n for n in (4, 5, 6, 7) * 4 for _ in range(2)]


def test_numbers_among_the_arguments():
    def fn(x, n, m=2):
        return x[:n] * n, torch.zeros(n, m), n + m

    calls = [(torch.rand(20, 2), n) for n in (3, 5, 7, 9, 2)]
    assert captures_of(fn, calls) == 2


def test_a_number_that_decides_is_pinned():
    def fn(x, n):
        return x + 1 if n == 3 else x * n

    assert captures_of(fn, [(torch.rand(3), n) for n in (3, 5, 7, 9, 3, 4)]) <= 3


def test_sizes_behind_a_cut():
    def fn(x):
        y = x * 2
        total = y.sum().item()
        return y + x.shape[0], total, y.shape[0] + 1

    assert captures_of(fn, [(torch.rand(n, 4),) for n in SIZES]) <= 4


def test_a_size_that_was_pinned_is_known_behind_two_cuts():
    def fn(x):
        n = x.shape[0]
        y = x + n if n == 5 else x - n  # n is open before, one number from here on
        first = y.sum().item()
        second = y.max().item()
        return y * n, first, second, n

    assert captures_of(fn, [(torch.rand(n, 4),) for n in (3, 5, 5, 7, 5, 9)]) <= 6


def looks_at_tensors(x):
    """Where C code that is not torch's looks at tensors, sizes cannot stay open."""
    y = x + 1
    if (x > 0).all():
        y = y * 2
    return functools.reduce(operator.add, [y, y, y])


def test_a_part_for_all_sizes_does_not_keep_whole_forms_from_running():
    compiled = magneto.compile(looks_at_tensors)
    stats = magneto.counters["stats"]
    for size in (3, 3, 3, 5, 5, 3, 5):
        same(compiled(torch.ones(size)), looks_at_tensors(torch.ones(size)))
    before = stats["hits"], stats["captures"], stats["exits"]
    for size in (3, 5, 3, 5):
        same(compiled(torch.ones(size)), looks_at_tensors(torch.ones(size)))
    assert (stats["hits"], stats["captures"], stats["exits"]) == (before[0] + 4, before[1], before[2])


def test_a_part_for_all_sizes_is_kept_where_no_form_is_whole():
    def f(x):
        y = x + 1
        z = y.sum().item()
        sys._getframe()  # ends the watch
        return y * z

    compiled = magneto.compile(f)
    for size in (3, 3, 5, 7):
        same(compiled(torch.ones(size)), f(torch.ones(size)))
    assert len(compiled.variants()) == 2


def test_data_is_never_baked_in():
    def fn(x):
        if bool((x > 0.5).any()):
            return x * 2
        return [len(row) for row in x], float(x.max())

    compiled = magneto.compile(fn)
    for n in SIZES:
        for factor in (1, 0.1):
            x = torch.linspace(0, factor, 3 * n).view(n, 3)
            same(compiled(x), fn(x))


def test_a_module():
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    compiled = magneto.compile(model)
    before = magneto.counters["stats"]["captures"]
    for batch, length in ((2, 5), (3, 7), (4, 9), (3, 4)):
        x = torch.rand(batch, length, 16)
        same(compiled(x), model(x))
    assert magneto.counters["stats"]["captures"] - before <= 2


def test_buffers_that_are_written():
    norm = torch.nn.BatchNorm1d(4)
    twin = torch.nn.BatchNorm1d(4)
    compiled = magneto.compile(norm)
    before = magneto.counters["stats"]["captures"]
    for n in SIZES:
        x = torch.rand(n, 4)
        same(compiled(x), twin(x))
        same(dict(norm.state_dict()), dict(twin.state_dict()))
    assert magneto.counters["stats"]["captures"] - before == 2


class Cache:
    def __init__(self):
        self.keys = None
        self.steps = 0

    def update(self, new):
        self.keys = new if self.keys is None else torch.cat([self.keys, new], 1)
        self.steps += 1
        return self.keys


def test_a_cache_that_grows():
    def step(x):
        keys = cache.update(x * 2)
        return (keys @ x.transpose(1, 2)).softmax(1), keys.shape[1]

    compiled = magneto.compile(step)
    caches = [Cache(), Cache()]
    before = magneto.counters["stats"]["captures"]
    for _ in range(12):
        x = torch.rand(2, 1, 4)
        cache = caches[0]
        found = compiled(x)
        cache = caches[1]
        same(found, step(x))
        same(caches[0].keys, caches[1].keys)
        assert caches[0].steps == caches[1].steps
    assert magneto.counters["stats"]["captures"] - before <= 5


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2
        self.heads = 4

    def forward(self, x):
        return x.view(self.heads, -1) * self.factor


def test_a_number_of_the_state_that_changes():
    module = Scaled()
    compiled = magneto.compile(module)
    before = magneto.counters["stats"]["captures"]
    for factor in range(2, 9):
        module.factor = factor
        x = torch.rand(8)
        same(compiled(x), module(x))
    assert magneto.counters["stats"]["captures"] - before == 2
    module.heads = 2
    same(compiled(x), module(x))
