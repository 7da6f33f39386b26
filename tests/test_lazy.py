"""The lazy device: programs do there what they do on the CPU, to the bit, and repeated steps are one graph each."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import magneto
import numpy
import pytest
import torch
from magneto import lazy
from test_leaks import assert_flat
from test_threads import in_threads
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from zoo import compare, harness, training

Story = Callable[[str], Any]
SEED = 7
STEPS = 2000 if harness.FULL else 200
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """The device, with nothing recorded, counted or failed before the test."""
    lazy.init()
    lazy.mark_step()
    lazy.wait_device_ops()
    lazy.set_force_fallback([])
    lazy.set_reuse_ir(True)
    lazy.reset_metrics()
    yield
    lazy.set_force_fallback([])
    lazy.set_reuse_ir(True)


def count(name: str) -> int:
    return lazy.counter_value(name) or 0


def seen(value: Any) -> Any:
    """What can be told of a value, whichever of the two devices it is on."""
    if not isinstance(value, Tensor):
        return repr(value) if isinstance(value, float) else value
    form = (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.is_conj(), value.is_neg())
    plain = value.detach().cpu()
    return (*form, value.requires_grad, value.is_leaf, compare.bits(plain).numpy().tobytes())


def tell(story: Story, name: str) -> list[Any]:
    torch.manual_seed(SEED)
    return [seen(leaf) for leaf in pytree.tree_leaves(story(name))]


def check(story: Story, times: int = 2) -> None:
    """The story goes on the lazy device as on the CPU, also when it is told again."""
    expected = tell(story, "cpu")
    for _ in range(times):
        assert tell(story, "lazy") == expected


def numbers(name: str, *shape: int, seed: int = 0) -> Tensor:
    """The same on each device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(name)


def grid(name: str, *shape: int) -> Tensor:
    size = torch.Size(shape).numel()
    return torch.arange(float(size), device=name).reshape(shape)


# ---- stories: functions of the device's name, told on both devices


def each(stories: dict[str, Story]) -> Any:
    return pytest.mark.parametrize("story", stories.values(), ids=stories.keys())


CREATION: dict[str, Story] = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones_int": lambda d: torch.ones(2, 3, device=d, dtype=torch.int64),
    "full": lambda d: torch.full((2, 3), 2.5, device=d),
    "full_bool": lambda d: torch.full((2,), True, device=d),
    "full_int": lambda d: torch.full((2,), 3, device=d),
    "arange": lambda d: [torch.arange(5, device=d), torch.arange(1, 2, 0.3, device=d), torch.arange(5.0, device=d)],
    "arange_of_other_lengths": lambda d: [torch.arange(n, device=d) for n in (3, 4, 5, 3)],
    "linspace": lambda d: [torch.linspace(0, 1, 7, device=d), torch.logspace(0, 1, 5, device=d)],
    "eye": lambda d: [torch.eye(3, device=d), torch.eye(3, 2, device=d)],
    "tensor": lambda d: [torch.tensor([[1, 2], [3, 4]], device=d), torch.tensor(1.5, device=d)],
    "tensor_empty": lambda d: torch.tensor([], device=d),
    "tensor_of_arrays": lambda d: torch.tensor(numpy.arange(4.0), device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0, 2.0], device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(3.0, device=d),
    "zeros_like": lambda d: torch.zeros_like(grid(d, 2, 3).t()),
    "full_like": lambda d: torch.full_like(grid(d, 2, 3), 4, dtype=torch.int32),
    "new": lambda d: [grid(d, 2).new_zeros(3), grid(d, 2).new_full((2,), 7.0), grid(d, 2).new_tensor([1, 2])],
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(1),
    "empty_channels_last": lambda d: torch.empty(1, 2, 3, 4, device=d, memory_format=torch.channels_last).zero_(),
    "tril_indices": lambda d: [torch.tril_indices(3, 3, device=d), torch.triu_indices(3, 4, device=d)],
    "complex": lambda d: torch.complex(grid(d, 3), grid(d, 3) + 1),
    "hann": lambda d: torch.hann_window(8, device=d),
    "meshgrid": lambda d: torch.meshgrid(torch.arange(3, device=d), torch.arange(2, device=d), indexing="ij"),
    "empty_sizes": lambda d: [torch.zeros(0, device=d), torch.zeros(2, 0, 3, device=d).sum(1)],
    "under_device": lambda d: created_under(d),
    "default_dtype": lambda d: torch.zeros(2, device=d, dtype=torch.float64) + torch.ones(2, device=d),
}


def created_under(name: str) -> list[Tensor]:
    with torch.device(name):
        made = [torch.zeros(2), torch.arange(3), torch.tensor([1.0]), nn.Linear(2, 2, bias=False).weight * 0]
    assert all(tensor.device.type == name for tensor in made)
    return made


@each(CREATION)
def test_tensors_are_created_as_on_the_cpu(story: Story) -> None:
    check(story)


def writes_a_view(name: str, view: Callable[[Tensor], Tensor]) -> list[Tensor]:
    base = grid(name, 4, 4)
    part = view(base)
    part.mul_(2)
    base.add_(1)
    part.sub_(3)
    return [base, part, view(base) + 0]


def split_steps(name: str, view: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The view is made in one step, the base written in the next, the view read in a third."""
    base = grid(name, 4, 4)
    part = view(base)
    step(name)
    base.mul_(2)
    step(name)
    first = part + 0
    part.add_(10)
    step(name)
    return [first, base + 0, part, base]


def step(name: str) -> None:
    if name == "lazy":
        lazy.mark_step()


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x[:],
    "row": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "slice": lambda x: x[1:3, ::2],
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1)[1:],
    "permute": lambda x: x.view(2, 2, 4).permute(2, 0, 1),
    "view": lambda x: x.view(16)[3:7],
    "chain": lambda x: x[1:].t()[1:].view(3, 3)[::2].t(),
    "reshape": lambda x: x.reshape(2, 8)[1],
    "flatten": lambda x: x.flatten()[5:],
    "diagonal": lambda x: x.diagonal(),
    "diagonal_of_slice": lambda x: x[1:].diagonal(1),
    "as_strided": lambda x: x.as_strided((2, 2), (5, 1), 1),
    "as_strided_of_view": lambda x: x[2:].as_strided((2, 2), (4, 1)),
    "unfold": lambda x: x.unfold(0, 2, 2),
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "squeeze": lambda x: x[:, 1:2].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(1)[2],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split([1, 3])[1],
    "unbind": lambda x: x.unbind(1)[2],
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data[1:],
    "alias": lambda x: torch.ops.aten.alias(x),
    "movedim": lambda x: x.view(2, 2, 4).movedim(0, 2),
    "view_dtype": lambda x: x.view(torch.int32).view(torch.float32)[1:],
    "mT": lambda x: x.mT[2:],
    "hsplit": lambda x: x.hsplit(2)[0],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2))[:, 1],
    "view_as": lambda x: x.view_as(x)[1:],
    "expand_row": lambda x: x[:1].expand(1, 4),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_writes_go_through_views(view: Callable[[Tensor], Tensor]) -> None:
    check(lambda d: writes_a_view(d, view))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_and_bases_see_each_other_across_steps(view: Callable[[Tensor], Tensor]) -> None:
    check(lambda d: split_steps(d, view))


def two_views_in_turns(d: str) -> Any:
    base = grid(d, 4, 4)
    rows, columns = base[1:3], base.t()[1:3]
    step(d)
    rows.add_(1)
    columns.mul_(2)
    rows.add_(columns.sum(0))
    step(d)
    columns.sub_(rows.sum())
    return [base, rows, columns]


def overlapping_reads(d: str) -> Any:
    x = grid(d, 6)
    windows = x.unfold(0, 3, 1)
    x[2] = 100.0
    first = windows * 1
    x.zero_()
    return [first, windows]


def expanded(d: str) -> Any:
    x = grid(d, 1, 3)
    wide = x.expand(4, 3)
    x.add_(1)
    copied = wide.clone()
    step(d)
    x.mul_(3)
    return [wide, copied, wide.contiguous(), wide.sum(0)]


def in_place_views(d: str) -> Any:
    a, b, c, e = (grid(d, 2, 1, 3) for _ in range(4))
    kept = a[0]
    a.squeeze_(1)
    b.unsqueeze_(0)
    c.transpose_(0, 2)
    e.squeeze_()
    e.t_()
    step(d)
    a.add_(1)
    c.mul_(2)
    e.sub_(1)
    return [a, b, c, e, kept, a.is_contiguous(), e.is_contiguous()]


def in_place_views_of_views(d: str) -> Any:
    base = grid(d, 3, 3)
    part = base[1:]
    part.t_()
    part.add_(10)
    step(d)
    part.swapaxes_(0, 1)
    part.mul_(2)
    return [base, part]


def as_strided_in_place(d: str) -> Any:
    base = grid(d, 3, 4)
    other = base.detach()
    base.as_strided_((2, 2), (4, 1), 1)
    base.zero_()
    return [base, other]


def set_to_another(d: str) -> Any:
    a, b = grid(d, 2, 2), grid(d, 3) + 10
    kept = a[0]
    a.set_(b)
    a.add_(1)
    step(d)
    b.mul_(2)
    return [a, b, kept]


def set_to_nothing(d: str) -> Any:
    a = grid(d, 2, 2)
    a.set_()
    return [a, tuple(a.shape)]


def resized(d: str) -> Any:
    x = grid(d, 6)
    x.resize_(2, 2)
    x.add_(1)
    y = grid(d, 2)
    y.resize_(4)
    y.fill_(3)
    z = grid(d, 4)
    z.resize_as_(x)
    z.mul_(2)
    return [x, y, z]


def resized_with_views(d: str) -> Any:
    x = grid(d, 6)
    detached, part = x.detach(), x[2:]
    step(d)
    x.resize_(2, 2)
    x.fill_(9)
    part.add_(1)
    return [x, detached, part]


def out_arguments(d: str) -> Any:
    a, right, wrong = grid(d, 3), torch.empty(3, device=d), torch.empty(0, device=d)
    torch.add(a, 1, out=right)
    torch.mul(a, 2, out=wrong)
    picked = torch.empty(2, device=d)
    torch.index_select(a, 0, torch.tensor([2, 0], device=d), out=picked)
    part = torch.zeros(2, 3, device=d)
    torch.neg(a, out=part[1])
    return [right, wrong, picked, part]


def out_that_grows_beside_another_name(d: str) -> Any:
    grows = torch.empty(0, device=d)
    other = grows.detach()
    step(d)
    torch.mul(grid(d, 3), 2, out=grows)
    return [grows, other, other.numel(), other + 1]


def indexed_writes(d: str) -> Any:
    x = grid(d, 4, 4)
    x[1] = 5.0
    x[:, 2] = grid(d, 4)
    x[x > 12] = -1.0
    x[torch.tensor([0, 3], device=d), torch.tensor([1, 1], device=d)] = 7.0
    x[..., -1] += 1
    x[1:3][0, 1:] *= 2
    x[0, 0] = torch.tensor(3.0)
    x[2] = torch.ones(4)
    return x


def indexed_reads(d: str) -> Any:
    x = grid(d, 4, 4)
    i = torch.tensor([2, 0], device=d)
    return [
        x[i],
        x[:, i],
        x[i, i],
        x[x > 3],
        x[None, 1],
        x[-1, ::2],
        x[torch.tensor([1, 3])],
        x[[0, 1]],
        x[x[:, 1] > 4],
    ]


def swapped_data(d: str) -> Any:
    x, y = grid(d, 3), grid(d, 3) + 1
    x.data, y.data = y.data, x.data
    x.add_(10)
    return [x, y]


def data_of_leaf(d: str) -> Any:
    x = grid(d, 3).requires_grad_()
    x.data.mul_(3)
    x.data = x.data * 2
    y = (x * x).sum()
    y.backward()
    return [x, y, x.grad, x.data]


def conjugates(d: str) -> Any:
    z = torch.complex(grid(d, 3), grid(d, 3) + 1)
    c = z.conj()
    z.mul_(2)
    step(d)
    parts = torch.view_as_real(z)
    parts[0] = 5.0
    return [c, c.imag, c.resolve_conj(), z.real, z.imag, (z * c).sum(), c.is_conj(), c.imag.is_neg(), parts]


def detached(d: str) -> Any:
    x = grid(d, 3).requires_grad_()
    y = x * 2
    free = y.detach()
    step(d)
    with torch.no_grad():
        free.add_(1)
    return [x, y, free, free.requires_grad]


def long_chain(d: str) -> Any:
    x = grid(d, 8)
    y = x
    for i in range(50):
        y = (y + x[i % 8]) * 0.5
        x[i % 8 : i % 8 + 1].copy_(y[:1])
    return [x, y]


def unequal_lengths(d: str) -> Any:
    results = []
    for n in (3, 5, 3, 4, 5):
        x = grid(d, n)
        results += [x * 2, x.cumsum(0), x.sum()]
        step(d)
    return results


def reads_in_the_middle(d: str) -> Any:
    x, read = grid(d, 4), []
    for _ in range(4):
        x = x * 1.5 + 1
        read.append(x[1].item())
        x[0] = read[-1]
    return [x, *read]


def copies_of_parts(d: str) -> Any:
    x, y = grid(d, 4, 4), torch.zeros(4, 4, device=d)
    y.copy_(x.t())
    y[1:3].copy_(x[:2])
    y[:, 0].copy_(torch.tensor(9.0))
    y[3].copy_(torch.arange(4))
    return [y, x.clone(), x.t().contiguous(), x.to(torch.int32), x.t().clone(), x.type(torch.float64), x.bool()]


def with_channels_last(d: str) -> Any:
    x = grid(d, 2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    weight = numbers(d, 5, 3, 3, 3)
    y = F.conv2d(x, weight, padding=1)
    return [x, y, y.contiguous(), F.max_pool2d(y, 2), x.is_contiguous(memory_format=torch.channels_last)]


def with_lists(d: str) -> Any:
    x = grid(d, 3)
    results = torch._foreach_add([x, x * 2], 1.0)
    torch._foreach_mul_(results, 2.0)
    return [results, torch.stack([x, x]), torch.cat([x, x[:1]]), torch.atleast_2d(x, x[0]), torch.block_diag(x, x)]


def masks_with_values(d: str) -> Any:
    x = grid(d, 3, 4)
    x[torch.tensor([True, False, True], device=d)] = grid(d, 2, 4) + 50
    x.index_put_((x > 52,), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], device=d)[: int((x > 52).sum())])
    y = grid(d, 4).requires_grad_()
    (y[y > 1] * 2).sum().backward()
    return [x, y.grad, x.masked_scatter(x > 3, grid(d, 12))]


def packed_sequences(d: str) -> Any:
    packed = nn.utils.rnn.pack_padded_sequence(grid(d, 3, 2, 4), torch.tensor([3, 2]))
    padded, lengths = nn.utils.rnn.pad_packed_sequence(packed)
    assert (packed.data.device.type, packed.batch_sizes.device.type) == (d, "cpu")
    return [packed.data, packed.batch_sizes, padded, lengths]


def with_undefined_sizes(d: str) -> Any:
    x = torch.tensor([3, 1, 3, 2, 0], device=d)
    kept = x[x > 1]
    kept.add_(1)
    return [x.nonzero(), torch.unique(x), kept, torch.bincount(x), x.masked_select(x == 3), torch.where(x > 1), x]


def in_inference_mode(d: str) -> Any:
    with torch.inference_mode():
        x = grid(d, 3)
        y = x.view(3, 1)
        x.mul_(2)
        z = y + 1
        flag = z.is_inference()
        return [x.tolist(), y.tolist(), z.tolist(), flag]


def mixed_with_numbers(d: str) -> Any:
    x = grid(d, 3)
    cpu = torch.tensor(2.0)
    y = x * cpu
    cpu.fill_(100.0)
    return [
        y,
        2 - x,
        2**x,
        x // 2,
        x % 2,
        1 / (x + 1),
        x + True,
        x.int() / 2,
        x.int() * 1.5,
        x > 1,
        -x,
        abs(x),
        ~(x > 1),
    ]


def lists_of_lists(d: str) -> Any:
    x = numbers(d, 4, 6)
    values, order = x.sort(1)
    top = x.topk(2, 1)
    return [
        values,
        order,
        top.values,
        top.indices,
        x.max(1),
        x.min(),
        x.median(),
        x.argmax(1),
        torch.var_mean(x, 0),
        x.std(),
    ]


def linear_algebra(d: str) -> Any:
    x = numbers(d, 4, 4)
    a = x @ x.t() + 4 * torch.eye(4, device=d)
    return [
        a.inverse(),
        torch.linalg.cholesky(a),
        torch.linalg.solve(a, x),
        a.det(),
        torch.linalg.norm(x),
        torch.einsum("ij,jk->ki", x, a),
        torch.bmm(x[None], a[None]),
        torch.baddbmm(x[None], x[None], a[None], alpha=0.5),
        torch.linalg.qr(x),
        torch.linalg.eigvalsh(a),
    ]


ALIASES: dict[str, Story] = {
    story.__name__: story
    for story in (
        two_views_in_turns,
        overlapping_reads,
        expanded,
        in_place_views,
        in_place_views_of_views,
        as_strided_in_place,
        set_to_another,
        set_to_nothing,
        resized,
        resized_with_views,
        out_arguments,
        out_that_grows_beside_another_name,
        indexed_writes,
        indexed_reads,
        swapped_data,
        data_of_leaf,
        conjugates,
        detached,
        long_chain,
        unequal_lengths,
        reads_in_the_middle,
        copies_of_parts,
        with_channels_last,
        with_lists,
        masks_with_values,
        packed_sequences,
        with_undefined_sizes,
        in_inference_mode,
        mixed_with_numbers,
        lists_of_lists,
        linear_algebra,
    )
}


@each(ALIASES)
def test_memory_is_shared_and_changed_as_on_the_cpu(story: Story) -> None:
    check(story)


@each(ALIASES)
def test_all_is_the_same_with_steps_of_three_operators(story: Story) -> None:
    with magneto.config.patch(lazy_graph_limit=3):
        check(story)


@each(ALIASES)
def test_all_is_the_same_one_operator_at_a_time(story: Story) -> None:
    lazy.set_force_fallback({name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()})
    check(story)
    assert count("steps") == 0


# ---- values go out


def test_values_are_read_as_on_the_cpu() -> None:
    def story(d: str) -> Any:
        x = grid(d, 2, 3)
        flag = (x > 2).any()
        return [
            x.tolist(),
            x[1, 2].item(),
            float(x[0, 1]),
            int(x[1, 0]),
            bool(flag),
            len(x),
            [row.tolist() for row in x],
            [1, 2, 3][x[0, 1].long()],
            3.0 in x,
            x.shape,
            x.dim(),
            f"{x[0, 1]:.3f}",
            x.cpu(),
            x.numel(),
            x.element_size(),
            torch.equal(x, x.clone()),
            torch.allclose(x, x + 1e-9),
            list(map(float, x.flatten())),
            "yes" if flag else "no",
            complex(x[0, 1]),
            x.sum().int().item() * 2,
            x.long()[0].tolist(),
            torch.is_nonzero(x[1, 1]),
        ]

    check(story)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: grid(d, 2, 3),
        lambda d: torch.tensor(1.5, device=d),
        lambda d: torch.zeros(0, device=d),
        lambda d: torch.tensor([1, 2], device=d),
        lambda d: torch.tensor([1e10, float("nan"), -1e-5], device=d),
        lambda d: grid(d, 60, 60),
        lambda d: torch.complex(grid(d, 2), grid(d, 2)),
        lambda d: grid(d, 3).bool(),
        lambda d: grid(d, 3).bfloat16(),
        lambda d: grid(d, 3).requires_grad_(),
        lambda d: nn.Parameter(grid(d, 3)),
    ],
)
def test_printing_says_the_same_and_the_device(make: Callable[[str], Tensor]) -> None:
    text = repr(make("lazy"))
    assert "device='lazy:0'" in text
    assert text.replace(" ", "").replace("\n", "").replace(",device='lazy:0'", "") == repr(make("cpu")).replace(
        " ", ""
    ).replace("\n", "")


def test_a_result_with_a_history_prints_the_name_of_its_node() -> None:
    x = grid("lazy", 3).requires_grad_()
    assert "grad_fn=<MulBackward0>" in repr(x * 2)


def test_a_lazy_tensor_says_where_it_is() -> None:
    x = grid("lazy", 2)
    assert (x.device, x.is_cpu, x.layout, x.get_device()) == (torch.device("lazy", 0), False, torch.strided, 0)
    assert x.to("lazy") is x and x.cpu().device.type == "cpu"
    assert not x.is_cuda and not x.is_meta and x.cpu().to("lazy").device == x.device


def test_numpy_gets_the_values_by_way_of_the_cpu_and_refuses_otherwise_as_for_other_devices() -> None:
    x = grid("lazy", 2, 2)
    assert numpy.array_equal(x.cpu().numpy(), numpy.arange(4.0).reshape(2, 2))
    with pytest.raises(TypeError, match="lazy"):
        x.numpy()


def test_many_ways_to_the_device_and_back() -> None:
    source = torch.arange(6.0).reshape(2, 3)
    there = [
        source.to("lazy"),
        source.to(torch.device("lazy", 0)),
        source.to(device="lazy", dtype=torch.float32, copy=True),
        source.to(torch.zeros(1, device="lazy")),
        torch.empty(2, 3, device="lazy").copy_(source),
        source.t().to("lazy").t(),
    ]
    for tensor in there:
        assert tensor.device.type == "lazy"
        for back in (tensor.cpu(), tensor.to("cpu"), tensor.to(source), torch.empty(2, 3).copy_(tensor)):
            assert compare.difference(source, back) is None
    assert there[0].to("cpu", torch.int64).dtype == torch.int64
    assert there[0].double().cpu().tolist() == source.double().tolist()


def test_a_source_that_changes_after_it_was_copied_does_not_matter() -> None:
    source = torch.arange(3.0)
    moved, written = source.to("lazy"), torch.zeros(3, device="lazy")
    written.copy_(source)
    added = written + 1
    added[1:].copy_(source[:2], non_blocking=True)
    written[0] = source[2]
    source.fill_(100)
    assert [moved.tolist(), written.tolist(), added.tolist()] == [[0, 1, 2], [2, 1, 2], [1, 0, 1]]


def test_a_cpu_copy_does_not_see_later_writes() -> None:
    x = torch.zeros(3, device="lazy")
    before = x.cpu()
    x.add_(1)
    target = torch.empty(3).copy_(x)
    x.add_(1)
    lazy.mark_step()
    assert [before.tolist(), target.tolist(), x.tolist()] == [[0] * 3, [1] * 3, [2] * 3]


def test_a_copy_to_the_cpu_keeps_gradients() -> None:
    def story(d: str) -> Any:
        x = grid(d, 3).requires_grad_()
        y = torch.zeros(3).copy_(x * 2)
        (y.cpu() * 3).to(d).sum().backward()
        return [y, x.grad]

    check(story)


@pytest.mark.parametrize(
    "write",
    [
        lambda cpu, x: cpu.add_(x),
        lambda cpu, x: cpu.mul_(x),
        lambda cpu, x: torch.add(x, x, out=cpu),
        lambda cpu, x: cpu.index_put_((torch.tensor([0, 1, 2], device="lazy"),), x),
        lambda cpu, x: cpu.__setitem__(slice(None), x + 1),
        lambda cpu, x: cpu.masked_fill_(x > 0, 5.0),
        lambda cpu, x: torch._foreach_add_([cpu], [x]),
        lambda cpu, x: cpu.addcmul_(x, x),
    ],
)
def test_a_write_to_a_cpu_tensor_is_done_or_refused(write: Callable[[Tensor, Tensor], Any]) -> None:
    expected, actual = torch.zeros(3), torch.zeros(3)
    write(expected, torch.arange(1.0, 4.0)) if "lazy" not in write.__code__.co_consts else expected.copy_(
        torch.arange(1.0, 4.0)
    )
    try:
        write(actual, torch.arange(1.0, 4.0, device="lazy"))
        lazy.mark_step()
    except (RuntimeError, magneto.UserError):
        assert actual.tolist() == [0, 0, 0]
    else:
        assert actual.tolist() == expected.tolist()


# ---- errors that the CPU raises, too


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: grid(d, 2, 3) @ grid(d, 2, 3),
        lambda d: grid(d, 2) + grid(d, 3),
        lambda d: grid(d, 2).view(3),
        lambda d: grid(d, 2)[5],
        lambda d: torch.cat([grid(d, 2), grid(d, 2, 2)]),
        lambda d: grid(d, 2).long().add_(1.5),
        lambda d: grid(d, 2, 2).requires_grad_().add_(1),
        lambda d: F.linear(grid(d, 2), grid(d, 3, 3)),
        lambda d: torch.zeros(2, device=d).item(),
        lambda d: bool(torch.zeros(2, device=d)),
        lambda d: len(torch.tensor(1.0, device=d)),
        lambda d: grid(d, 3).expand(2, 3).add_(1),
        lambda d: F.dropout(grid(d, 2), 2.0),
        lambda d: torch.zeros(-1, device=d),
        lambda d: F.conv2d(grid(d, 1, 2, 3, 3), grid(d, 1, 1, 3, 3)),
        lambda d: grid(d, 2).backward(),
    ],
)
def test_errors_are_those_of_the_cpu(wrong: Callable[[str], Any]) -> None:
    def raised(d: str) -> BaseException | None:
        return compare.raised_by(lambda: (wrong(d), step(d)))

    expected, actual = raised("cpu"), raised("lazy")
    assert expected is not None
    assert type(actual) is type(expected)
    assert str(expected).split("\n")[0] in str(actual)
    check(lambda d: grid(d, 2) + 1)


def test_a_value_that_backward_needs_and_that_was_changed_is_an_error() -> None:
    x = grid("lazy", 3).requires_grad_()
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- copies


def test_a_deep_copy_shares_nothing() -> None:
    def story(d: str) -> Any:
        x = grid(d, 2, 3)
        y = copy.deepcopy(x.t())
        both = copy.deepcopy([x, x])
        assert both[0] is both[1]
        x.add_(1)
        step(d)
        both[0].mul_(2)
        leaf = copy.deepcopy(grid(d, 2).requires_grad_())
        return [x, y, both, leaf, copy.copy(x)]

    check(story)


def test_a_model_is_copied_deeply() -> None:
    def story(d: str) -> Any:
        model = made_model(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), d)
        other = copy.deepcopy(model)
        with torch.no_grad():
            model[0].weight.zero_()
        return [other(numbers(d, 4, 3)), list(other.parameters()), list(model.parameters())]

    check(story)


@pytest.mark.parametrize("make", [lambda d: grid(d, 2, 3), lambda d: grid(d, 3).requires_grad_(), lambda d: grid(d, 0)])
def test_tensors_are_pickled(make: Callable[[str], Tensor]) -> None:
    back = pickle.loads(pickle.dumps(make("lazy")))
    assert back.device.type == "lazy"
    assert seen(back) == seen(make("cpu"))


def test_parameters_and_modules_are_pickled() -> None:
    model = made_model(lambda: nn.Linear(2, 2), "lazy")
    back = pickle.loads(pickle.dumps(model))
    assert isinstance(back.weight, nn.Parameter) and back.weight.device.type == "lazy"
    assert [seen(p) for p in back.parameters()] == [seen(p) for p in model.parameters()]


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_state_is_saved_and_loaded(weights_only: bool) -> None:
    model = made_model(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "lazy")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for where in ("cpu", None):
        file.seek(0)
        state = torch.load(file, map_location=where, weights_only=weights_only)
        assert all(tensor.device.type == (where or "lazy") for tensor in state.values())
        assert {k: seen(v) for k, v in state.items()} == {k: seen(v.detach()) for k, v in model.state_dict().items()}


def test_files_are_not_loaded_onto_the_device_at_once() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.arange(3.0)}, file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="lazy"):
        torch.load(file, map_location="lazy")


def test_states_go_round() -> None:
    def story(d: str) -> Any:
        make = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))  # noqa: E731
        model, other = made_model(make, d), made_model(make, d, seed=1)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        train(model, optimizer, d, 3)
        states = {k: v.cpu() for k, v in model.state_dict().items()}
        other.load_state_dict(states)
        second = torch.optim.Adam(other.parameters(), 0.1)
        second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        losses = train(other, second, d, 3), train(model, optimizer, d, 3)
        assert losses[0] == losses[1]
        return [losses, list(other.state_dict().values())]

    check(story)


def test_a_state_is_loaded_by_assignment() -> None:
    source = made_model(lambda: nn.Linear(2, 2), "lazy")
    target = nn.Linear(2, 2, device="meta")
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.weight.device.type == "lazy"
    assert seen(target(numbers("lazy", 1, 2)).detach()) == seen(source(numbers("lazy", 1, 2)).detach())


# ---- modules


def made_model(make: Callable[[], nn.Module], d: str, seed: int = 0) -> nn.Module:
    """Built on the CPU, with the same values each time."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().to(d)


def test_parameters_without_a_shape_get_one_on_the_device() -> None:
    def story(d: str) -> Any:
        model = nn.LazyLinear(2, device=d)
        torch.manual_seed(SEED)
        assert (model(grid(d, 2, 3)).device.type, model.weight.device.type) == (d, d)
        return [list(model.parameters())]

    check(story)


def test_sparse_gradients_are_refused() -> None:
    model = made_model(lambda: nn.Embedding(4, 2, sparse=True), "lazy")
    with pytest.raises(NotImplementedError, match="SparseLazy"):
        model(torch.tensor([1, 1, 3], device="lazy")).sum().backward()


def test_there_is_one_lazy_device() -> None:
    for call in (lambda: torch.ones(2, device="lazy:1"), lambda: torch.ones(2).to("lazy:1")):
        with pytest.raises(RuntimeError):
            call()


def test_module_to_keeps_ties_and_identities() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("b", torch.ones(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model[0].weight
    model.to("lazy")
    assert model[0].weight is model[1].weight is before
    assert (before.device.type, model.b.device.type, len(list(model.parameters()))) == ("lazy", "lazy", 1)
    model(torch.ones(1, 3, device="lazy")).sum().backward()
    optimizer.step()
    assert model[0].weight.grad is not None and model[0].weight.is_leaf
    model.to("cpu")
    assert model[0].weight is model[1].weight and model[0].weight.device.type == "cpu"


def test_modules_change_dtype_on_the_device() -> None:
    def story(d: str) -> Any:
        model = made_model(lambda: nn.Linear(3, 2), d).double()
        return [model(numbers(d, 2, 3).double()), made_model(lambda: nn.Linear(3, 2), d).bfloat16().weight]

    check(story)


def test_modules_made_on_the_device_draw_what_a_cpu_generator_draws() -> None:
    torch.manual_seed(SEED)
    expected = nn.Sequential(nn.Linear(3, 3), nn.Conv2d(2, 2, 3), nn.Embedding(4, 2), nn.LSTM(2, 2))
    torch.manual_seed(SEED)
    actual = nn.Sequential(
        nn.Linear(3, 3, device="lazy"),
        nn.Conv2d(2, 2, 3, device="lazy"),
        nn.Embedding(4, 2, device="lazy"),
        nn.LSTM(2, 2, device="lazy"),
    )
    assert [seen(p) for p in actual.parameters()] == [seen(p) for p in expected.parameters()]


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[str], tuple[Tensor, ...]]]] = {
    "linear_3d": (lambda: nn.Linear(4, 5), lambda d: (numbers(d, 2, 3, 4),)),
    "linear_of_transposed": (lambda: nn.Linear(3, 5), lambda d: (numbers(d, 2, 3, 4).transpose(1, 2),)),
    "bilinear": (lambda: nn.Bilinear(3, 4, 2), lambda d: (numbers(d, 5, 3), numbers(d, 5, 4))),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding="same"), lambda d: (numbers(d, 2, 3, 8),)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), lambda d: (numbers(d, 1, 3, 4, 4),)),
    "conv_grouped": (lambda: nn.Conv2d(4, 4, 3, groups=4, dilation=2), lambda d: (numbers(d, 1, 4, 8, 8),)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), lambda d: (numbers(d, 2, 3, 4, 4),)),
    "instance_norm": (lambda: nn.InstanceNorm2d(3, affine=True), lambda d: (numbers(d, 2, 3, 4, 4),)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), lambda d: (numbers(d, 2, 4, 3, 3),)),
    "layer_norm": (lambda: nn.LayerNorm(4), lambda d: (numbers(d, 2, 4),)),
    "rms_norm": (lambda: nn.RMSNorm(4), lambda d: (numbers(d, 2, 4),)),
    "embedding": (lambda: nn.Embedding(5, 3, padding_idx=0), lambda d: (torch.tensor([[1, 0, 4]], device=d),)),
    "embedding_bag": (lambda: nn.EmbeddingBag(5, 3), lambda d: (torch.tensor([[1, 0, 4]], device=d),)),
    "lstm_cell": (lambda: nn.LSTMCell(3, 4), lambda d: (numbers(d, 2, 3),)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda d: (numbers(d, 2, 5, 8),) * 3),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
        lambda d: (numbers(d, 2, 5, 8), numbers(d, 2, 3, 8)),
    ),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        lambda d: (numbers(d, 1, 2, 12, 12),),
    ),
    "upsample": (lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), lambda d: (numbers(d, 1, 2, 4, 4),)),
    "pads": (
        lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ZeroPad2d(2), nn.CircularPad2d(1)),
        lambda d: (numbers(d, 1, 2, 4, 4),),
    ),
    "activations": (
        lambda: nn.Sequential(nn.GELU(), nn.PReLU(), nn.Softplus(), nn.ELU(inplace=True), nn.GLU(), nn.Hardswish()),
        lambda d: (numbers(d, 3, 4),),
    ),
    "silu": (nn.SiLU, lambda d: (numbers(d, 3, 4),)),
    "mish": (nn.Mish, lambda d: (numbers(d, 3, 4),)),
    "softmaxes": (lambda: nn.Sequential(nn.Softmax(1), nn.LogSoftmax(1), nn.Hardtanh()), lambda d: (numbers(d, 3, 4),)),
    "folds": (
        lambda: nn.Sequential(nn.Unfold(2), nn.Fold((4, 4), 2), nn.PixelShuffle(2)),
        lambda d: (numbers(d, 1, 4, 4, 4),),
    ),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), lambda d: (numbers(d, 2, 3),)),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), lambda d: (numbers(d, 2, 3),)),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_modules_give_the_same_results_gradients_and_buffers(name: str, mode: str) -> None:
    make, inputs = MODULES[name]

    def story(d: str) -> Any:
        model = made_model(make, d).train(mode == "train")
        args = tuple(x.detach().requires_grad_(x.is_floating_point()) for x in inputs(d))
        results = model(*args)
        sum(r.pow(2).sum() for r in pytree.tree_leaves(results) if isinstance(r, Tensor)).backward()
        return [results, [a.grad for a in args], [p.grad for p in model.parameters()], list(model.buffers())]

    check(story)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_modules_give_nearly_the_same(make: Any, bidirectional: bool) -> None:
    """The CPU has ways of its own for them, which sum up in another order."""

    def story(d: str) -> list[Tensor]:
        model = made_model(lambda: make(3, 4, 2, bidirectional=bidirectional), d)
        result, _ = model(numbers(d, 5, 2, 3))
        result.square().sum().backward()
        return [result.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]

    for ours, eager in zip(story("lazy"), story("cpu"), strict=True):
        torch.testing.assert_close(ours, eager)


LOSSES: dict[str, Story] = {
    "cross_entropy": lambda d: F.cross_entropy(
        leaf(d, 4, 5), torch.tensor([1, 4, 0, -100], device=d), label_smoothing=0.1
    ),
    "cross_entropy_probabilities": lambda d: F.cross_entropy(leaf(d, 4, 5), numbers(d, 4, 5).softmax(1)),
    "nll": lambda d: F.nll_loss(leaf(d, 2, 5).log_softmax(1), torch.tensor([1, 4], device=d), numbers(d, 5).abs()),
    "mse": lambda d: F.mse_loss(leaf(d, 4), numbers(d, 4, seed=1)),
    "smooth_l1": lambda d: F.smooth_l1_loss(leaf(d, 4), numbers(d, 4, seed=1)),
    "huber": lambda d: F.huber_loss(leaf(d, 4), numbers(d, 4, seed=1)),
    "bce": lambda d: F.binary_cross_entropy_with_logits(leaf(d, 4), numbers(d, 4, seed=1).sigmoid()),
    "kl": lambda d: F.kl_div(leaf(d, 2, 4).log_softmax(1), numbers(d, 2, 4, seed=1).softmax(1), reduction="batchmean"),
    "ctc": lambda d: F.ctc_loss(
        leaf(d, 6, 1, 4).log_softmax(2), torch.tensor([[1, 2]], device=d), torch.tensor([6]), torch.tensor([2])
    ),
    "cosine": lambda d: F.cosine_embedding_loss(
        leaf(d, 2, 4), numbers(d, 2, 4, seed=1), torch.tensor([1, -1], device=d)
    ),
    "triplet": lambda d: F.triplet_margin_loss(leaf(d, 2, 4), numbers(d, 2, 4, seed=1), numbers(d, 2, 4, seed=2)),
}


def leaf(d: str, *shape: int) -> Tensor:
    return numbers(d, *shape).requires_grad_()


@each(LOSSES)
def test_losses_are_the_same(story: Story) -> None:
    def with_gradient(d: str) -> Any:
        loss = story(d)
        leaves = []
        node = loss.grad_fn
        todo = [node]
        while todo:
            for before, _ in todo.pop().next_functions:
                if before is not None:
                    todo.append(before)
                    leaves += [before.variable] if hasattr(before, "variable") else []
        loss.backward()
        return [loss, [x.grad for x in leaves]]

    check(with_gradient)


def test_attention_goes_the_ways_of_the_cpu() -> None:
    def story(d: str) -> Any:
        results = []
        for causal, masked, p in ((False, False, 0.0), (True, False, 0.0), (False, True, 0.0), (False, False, 0.3)):
            q, k, v = (numbers(d, 2, 2, 5, 8, seed=i).requires_grad_() for i in range(3))
            mask = (numbers(d, 5, 5) > 0).logical_or(torch.eye(5, device=d).bool()) if masked else None
            torch.manual_seed(0)
            y = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
            y.sum().backward()
            results += [y, q.grad, k.grad, v.grad]
        return results

    check(story)


def test_an_encoder_that_is_evaluated_is_near_the_cpu_which_has_a_kernel_of_its_own_for_it() -> None:
    def run(d: str) -> Tensor:
        model = made_model(lambda: training.encoder(2), d).eval()
        with torch.no_grad():
            return model(numbers(d, 2, 5, 32)).cpu()

    torch.testing.assert_close(run("lazy"), run("cpu"))


# ---- autograd


class Doubled(torch.autograd.Function):
    """Saves a tensor and counts its backwards."""

    backwards = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        Doubled.backwards += 1
        (x,) = ctx.saved_tensors
        return gradient * 2 * x * ctx.factor, None


class Dirty(torch.autograd.Function):
    """Changes its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def backward_twice(d: str) -> Any:
    x = leaf(d, 3)
    y = (x**3).sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    error = compare.raised_by(y.backward)
    return [first, x.grad, type(error), str(error)[:60]]


def higher_derivatives(d: str) -> Any:
    x = leaf(d, 3)
    (first,) = torch.autograd.grad((x.sin() ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    second.sum().backward()
    return [first, second, x.grad]


def hooked(d: str) -> Any:
    x, seen_by_hooks = leaf(d, 3), []
    y = x * 2
    y.retain_grad()
    handle = x.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: seen_by_hooks.append(g) or g + 1)
    x.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * 2))
    z = y.sum()
    z.grad_fn.register_hook(lambda gi, go: seen_by_hooks.extend([*gi, *go]))
    z.backward()
    handle.remove()
    return [x.grad, y.grad, seen_by_hooks]


def own_function(d: str) -> Any:
    x = leaf(d, 3)
    y = Doubled.apply(x, 1.5)
    y.sum().backward()
    z = x.detach().clone().requires_grad_()
    w = Dirty.apply(z * 1)
    w.sum().backward()
    return [y, x.grad, w, z.grad]


def checkpointed(d: str, use_reentrant: bool, preserve: bool = True) -> Any:
    model = made_model(lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh(), nn.Linear(3, 3)), d)
    x = leaf(d, 4, 3)
    torch.manual_seed(SEED)
    y = checkpoint(model, x, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    y.sum().backward()
    return [y, x.grad, [p.grad for p in model.parameters()]]


def views_with_gradients(d: str) -> Any:
    x = leaf(d, 4, 4)
    y = x * 1
    y[1:].mul_(2)
    y.t()[0].copy_(torch.ones(4))
    part = y.diagonal()
    part.add_(x[0])
    y.pow(2).sum().backward()
    return [y, part, x.grad]


def written_after_views(d: str) -> Any:
    x = leaf(d, 4)
    y = x * 1
    part = y[1:3]
    step(d)
    y.mul_(x)
    step(d)
    part.add_(1)
    (y.sum() + part.sum()).backward()
    return [y, part, x.grad]


def accumulated(d: str) -> Any:
    x = leaf(d, 3)
    for i in range(3):
        (x * i).sum().backward()
        step(d)
    x.grad.zero_()
    (x * 5).sum().backward()
    return x.grad


def saved_tensor_hooks(d: str) -> Any:
    x = leaf(d, 3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(d)):
        y = (x.exp() * x).sum()
    y.backward()
    return [y, x.grad]


def saved_on_cpu(d: str) -> Any:
    x = leaf(d, 3)
    with torch.autograd.graph.save_on_cpu():
        y = (x.exp() * x).sum()
    y.backward()
    return [y, x.grad]


def jacobians(d: str) -> Any:
    x = numbers(d, 3)
    f = lambda t: (t**2).cumsum(0)  # noqa: E731
    return [torch.autograd.functional.jacobian(f, x), torch.autograd.functional.hvp(lambda t: f(t).sum(), x, x)]


def transformed_functions(d: str) -> Any:
    x = numbers(d, 3, 2)
    f = lambda t: (t.sin() * t).sum()  # noqa: E731
    return [torch.func.grad(f)(x), torch.func.vmap(torch.func.grad(f))(x), torch.func.vmap(lambda t: t.sum())(x)]


def forward_mode(d: str) -> Any:
    x = numbers(d, 3)
    return torch.func.jvp(lambda t: t.sin() * t, (x,), (x,))


def unused_and_partial(d: str) -> Any:
    x, y = leaf(d, 3), leaf(d, 3)
    z = x * 2
    grads = torch.autograd.grad(z.sum(), [x, y], allow_unused=True, retain_graph=True)
    batched = torch.autograd.grad(z, x, torch.eye(3, device=d), is_grads_batched=True, retain_graph=True)
    return [grads[0], grads[1], batched, torch.autograd.grad(z, x, z.detach())]


def no_grad_modes(d: str) -> Any:
    x = leaf(d, 3)
    with torch.no_grad():
        y = x * 2
        x.add_(1)
    with torch.enable_grad():
        z = x * 3
    return [y, z, x, z.requires_grad]


def gradient_penalty(d: str) -> Any:
    model = made_model(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), d)
    x = leaf(d, 5, 3)
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    ((g.norm(2, 1) - 1) ** 2).mean().backward()
    return [g, [p.grad for p in model.parameters()]]


AUTOGRAD: dict[str, Story] = {
    story.__name__: story
    for story in (
        backward_twice,
        higher_derivatives,
        hooked,
        own_function,
        views_with_gradients,
        written_after_views,
        accumulated,
        saved_tensor_hooks,
        saved_on_cpu,
        jacobians,
        transformed_functions,
        forward_mode,
        unused_and_partial,
        no_grad_modes,
        gradient_penalty,
    )
}
AUTOGRAD["checkpoint"] = lambda d: checkpointed(d, False)
AUTOGRAD["checkpoint_reentrant"] = lambda d: checkpointed(d, True)


@each(AUTOGRAD)
def test_gradients_are_those_of_the_cpu(story: Story) -> None:
    check(story)


def test_a_checkpoint_draws_the_same_masks_again() -> None:
    x = torch.ones(64, device="lazy", requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()


# ---- optimizers


def train(model: nn.Module, optimizer: torch.optim.Optimizer, d: str, steps: int, **more: Any) -> list[str]:
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        loss = model(numbers(d, 8, 3, seed=i)).pow(2).mean()
        loss.backward()
        optimizer.step(**more)
        losses.append(loss)
    return [repr(loss.item()) for loss in losses]


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "SGD_dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "SGD_foreach": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.1}),
    "Adam_amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    "Adam_foreach": (torch.optim.Adam, {"lr": 0.1, "foreach": True}),
    "Adam_tensor_lr": (torch.optim.Adam, {"lr": torch.tensor(0.1)}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1}),
    "AdamW_foreach": (torch.optim.AdamW, {"lr": 0.1, "foreach": True}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.1}),
    "Adamax_foreach": (torch.optim.Adamax, {"lr": 0.1, "foreach": True}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "Adagrad_foreach": (torch.optim.Adagrad, {"lr": 0.1, "foreach": True}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.1}),
    "NAdam_foreach": (torch.optim.NAdam, {"lr": 0.1, "foreach": True}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.1}),
    "RMSprop_centered": (torch.optim.RMSprop, {"lr": 0.1, "centered": True, "momentum": 0.9}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.1}),
    "Rprop_foreach": (torch.optim.Rprop, {"lr": 0.1, "foreach": True}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.1}),
    "LBFGS": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 4}),
    "LBFGS_wolfe": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 4, "line_search_fn": "strong_wolfe"}),
    "Muon": (torch.optim.Muon, {"lr": 0.1}),
}


def small_model(d: str, bias: bool = True) -> nn.Module:
    return made_model(lambda: nn.Sequential(nn.Linear(3, 4, bias), nn.Tanh(), nn.Linear(4, 2, bias)), d)


def test_every_optimizer_for_dense_parameters_is_tried() -> None:
    kinds = {k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)}
    assert kinds - {torch.optim.Optimizer, torch.optim.SparseAdam} == {kind for kind, _ in OPTIMIZERS.values()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_on_the_cpu(name: str) -> None:
    kind, settings = OPTIMIZERS[name]

    def story(d: str) -> Any:
        model = small_model(d, bias=kind is not torch.optim.Muon)
        optimizer = kind(model.parameters(), **settings)
        if kind is not torch.optim.LBFGS:
            return [train(model, optimizer, d, 5), list(model.parameters()), optimizer.state_dict()["state"]]
        losses = []
        for i in range(5):

            def closure(i: int = i) -> Tensor:
                optimizer.zero_grad()
                loss = model(numbers(d, 8, 3, seed=i)).pow(2).mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure))
        return [losses, list(model.parameters())]

    check(story)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("LBFGS", "LBFGS_wolfe", "Adafactor", "ASGD")])
def test_steps_of_an_optimizer_become_one_graph(name: str) -> None:
    kind, settings = OPTIMIZERS[name]
    model = small_model("lazy", bias=kind is not torch.optim.Muon)
    optimizer = kind(model.parameters(), **settings)

    def one_step() -> None:
        optimizer.zero_grad()
        model(numbers("lazy", 8, 3)).pow(2).mean().backward()
        optimizer.step()

    for _ in range(10):  # RAdam changes its way after some steps
        one_step()
    made, found = count("graphs made"), count("graphs found")
    for _ in range(10):
        one_step()
    assert count("graphs made") == made
    assert count("graphs found") == found + 10


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda i: 1 / (i + 1)),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_rates_that_change_every_step_make_no_new_graphs(name: str, kind: type[torch.optim.Optimizer]) -> None:
    made = []

    def story(d: str) -> Any:
        model = small_model(d)
        optimizer = kind(model.parameters(), lr=0.1)
        scheduler = SCHEDULERS[name](optimizer)
        losses = []
        for i in range(12):
            losses += train(model, optimizer, d, 1)
            scheduler.step()
            if i in (4, 11):
                made.append(count("graphs made"))
        return [losses, list(model.parameters())]

    check(story)
    assert made[2] == made[3] == made[4] == made[5]


@pytest.mark.parametrize(
    "clip",
    [
        lambda p: nn.utils.clip_grad_norm_(p, 0.1),
        lambda p: nn.utils.clip_grad_norm_(p, 0.1, float("inf")),
        lambda p: nn.utils.clip_grad_value_(p, 0.01),
        lambda p: nn.utils.clip_grad_norm_(p, 1e9, error_if_nonfinite=True),
    ],
    ids=["norm", "inf_norm", "value", "error_if_nonfinite"],
)
def test_gradients_are_clipped(clip: Callable[[Any], Any]) -> None:
    def story(d: str) -> Any:
        model = small_model(d)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        norms = []
        for i in range(4):
            optimizer.zero_grad()
            model(numbers(d, 8, 3, seed=i)).pow(2).mean().backward()
            norms.append(clip(list(model.parameters())))
            optimizer.step()
        return [norms, list(model.parameters())]

    check(story)


def test_averages_of_weights_are_the_same() -> None:
    def story(d: str) -> Any:
        model = small_model(d)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            train(model, optimizer, d, 1)
            averaged.update_parameters(model)
        return list(averaged.parameters())

    check(story)


# ---- steps and graphs


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, i: x * (i + 0.5),
        lambda x, i: x + i,
        lambda x, i: torch.add(x, x, alpha=i + 2),
        lambda x, i: x.pow(i + 0.5),
        lambda x, i: x.clamp(max=i + 0.5),
        lambda x, i: torch.full((3,), i + 0.5, device="lazy") + x,
        lambda x, i: x.fill_(i + 0.5),
        lambda x, i: F.leaky_relu(x, i + 0.1),
        lambda x, i: x.lerp(x + 1, i + 0.1),
        lambda x, i: x.addcmul(x, x, value=i + 0.5),
        lambda x, i: F.threshold(x, i + 0.5, 0),
        lambda x, i: torch.where(x > i, x, 0.5 * i),
        lambda x, i: x.masked_fill(x > 1, i + 0.5),
        lambda x, i: torch._foreach_mul([x, x], i + 0.5)[0],
        lambda x, i: torch._foreach_addcdiv([x], [x], [x + 1], [i + 0.5])[0],
        lambda x, i: F.dropout(x, (i + 1) / 20),
    ],
)
def test_numbers_that_change_every_step_make_no_new_graphs(operation: Callable[[Tensor, int], Tensor]) -> None:
    made, results = [], []
    for i in range(8):
        results.append(operation(torch.arange(3.0, device="lazy"), i))
        lazy.mark_step()
        made.append(count("graphs made"))
    assert made[3] == made[-1]


def test_the_numbers_of_each_step_are_its_own() -> None:
    def story(d: str) -> Any:
        results = []
        for i in (0.0, -0.0, 1.0, float("nan"), float("inf"), 2, 3, 1.0, 1):
            x = grid(d, 3)
            results += [x * i, torch.add(x, x, alpha=i), x.pow(i), torch.full_like(x, i), x.lerp(x + 1, float(i))]
            results += [x.long() * i, torch.full((2,), i, device=d)]
            step(d)
        return results

    check(story)


def test_a_repeated_step_is_found() -> None:
    for i in range(6):
        x = torch.full((3,), 2.0, device="lazy")
        y = (x * 3).sum()
        assert y.item() == 18.0
        assert (count("graphs made"), count("graphs found")) == (1, i)


def test_shapes_that_alternate_are_found_again() -> None:
    for i in range(12):
        n = (3, 5, 4)[i % 3]
        assert (torch.ones(n, device="lazy") * 2).sum().item() == 2 * n
    assert (count("graphs made"), count("graphs found")) == (3, 9)


def test_what_lives_at_the_end_of_a_step_decides_its_graph() -> None:
    for keep in (False, True, False, True):
        x = torch.ones(3, device="lazy")
        y = x * 2
        z = y + 1
        if not keep:
            del y
        lazy.mark_step()
        assert z.tolist() == [3.0] * 3
        if keep:
            assert y.tolist() == [2.0] * 3
    assert (count("graphs made"), count("graphs found")) == (2, 2)


def test_nothing_runs_before_a_value_is_needed() -> None:
    x = torch.ones(3, device="lazy")
    for _ in range(10):
        x = x * 2
    assert count("steps") == 0
    assert x[0].item() == 1024.0
    assert (count("steps"), count("operators recorded")) == (1, 12)


def test_reading_what_is_there_ends_no_step() -> None:
    x = torch.ones(3, device="lazy")
    lazy.mark_step()
    y = x + 1
    assert x.tolist() == [1.0] * 3
    assert count("steps") == 1
    assert y.tolist() == [2.0] * 3
    assert count("steps") == 2


def test_an_empty_step_is_none() -> None:
    lazy.mark_step()
    lazy.mark_step("lazy")
    lazy.mark_step(devices=["lazy:0"], wait=False)
    assert count("steps") == 0


@pytest.mark.parametrize("wait", [True, False])
def test_mark_step_and_waiting(wait: bool) -> None:
    x = torch.ones(3, device="lazy") + 1
    lazy.mark_step(wait=wait)
    lazy.wait_device_ops(["lazy"])
    assert count("steps") == 1
    assert x.tolist() == [2.0] * 3 and count("steps") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: lazy.mark_step("cpu"),
        lambda: lazy.mark_step(devices=["lazy", "meta"]),
        lambda: lazy.wait_device_ops(["cuda:0"]),
        lambda: lazy.sync_multi([], ["cpu"]),
        lambda: lazy.sync_multi([torch.ones(1)], []),
        lambda: lazy.get_tensor_id(torch.ones(1)),
        lambda: lazy.get_tensors_text([torch.ones(1)]),
        lambda: lazy.get_graph_hash([torch.ones(1)]),
    ],
)
def test_other_devices_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(magneto.UserError, match="lazy"):
        call()


def test_a_device_with_no_such_name_is_an_error() -> None:
    with pytest.raises((RuntimeError, magneto.UserError)):
        lazy.mark_step("nowhere")


def test_sync_multi_makes_values() -> None:
    x, y = torch.ones(3, device="lazy"), torch.zeros(2, device="lazy")
    lazy.sync_multi([x, y], ["lazy"])
    assert count("steps") == 1
    assert (x.tolist(), y.tolist()) == ([1.0] * 3, [0.0] * 2) and count("steps") == 1


def test_a_long_step_is_cut_at_the_limit() -> None:
    def story(d: str) -> Any:
        x = grid(d, 3)
        for i in range(100):
            x = x * 0.5 + i
        return x

    with magneto.config.patch(lazy_graph_limit=50):
        check(story, 1)
        assert count("steps ended at the limit") == 4
        made = count("graphs made")
        check(story, 3)
        assert count("graphs made") == made


def test_optimizers_end_steps_if_asked_to() -> None:
    for asked, expected in ((True, 3), (False, 0)):
        with magneto.config.patch(lazy_optimizer_steps=asked):
            model = small_model("lazy")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            lazy.reset_metrics()
            for _ in range(3):
                model(torch.ones(1, 3, device="lazy")).sum().backward()
                optimizer.step()
            assert count("steps") == expected


def test_an_optimizer_of_other_devices_ends_no_step() -> None:
    model = small_model("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(3, device="lazy") * 2
    train(model, optimizer, "cpu", 1)
    assert count("steps") == 0
    assert x.tolist() == [2.0] * 3


@pytest.mark.parametrize("runs_beside", [True, False])
def test_steps_run_beside_the_program_or_in_it(runs_beside: bool) -> None:
    with magneto.config.patch(lazy_async=runs_beside):
        check(lambda d: [train(m := small_model(d), torch.optim.AdamW(m.parameters()), d, 5), list(m.parameters())])
        slow = slow_step()
        lazy.mark_step(wait=False)
        before = count_of_runs()
        lazy.wait_device_ops()
        assert count_of_runs() - before == (1 if runs_beside else 0)
        assert slow.shape == (300, 300)


def slow_step() -> Tensor:
    x = torch.ones(300, 300, device="lazy")
    for _ in range(60):
        x = (x @ x).clamp(0, 1)
    return x


def count_of_runs() -> int:
    return int(lazy.metrics_report().split("Metric: execute\n  TotalSamples: ")[1].split()[0])


def test_the_next_steps_are_recorded_while_one_runs() -> None:
    """Writes of later steps wait for reads of earlier ones."""
    results = []
    for i in range(10):
        x = slow_step()
        y = torch.full((300, 300), float(i), device="lazy")
        lazy.mark_step(wait=False)
        total = y + x
        y.zero_()
        lazy.mark_step(wait=False)
        results.append(total.sum() / 90000)
    assert [round(r.item(), 3) for r in results] == [i + 1.0 for i in range(10)]


# ---- looking inside


def test_texts_and_drawings_show_what_was_recorded() -> None:
    x = torch.ones(2, device="lazy")
    lazy.mark_step()
    y, z = (x + 1).relu(), x.sigmoid()
    text = lazy.get_tensors_text([y])
    assert "aten.relu" in text and "aten.add" in text and "sigmoid" not in text
    assert magneto.Graph.parse(lazy.get_tensors_backend([y])).hash == lazy.get_graph_hash([y]).hex()
    dot, svg = lazy.get_tensors_dot([y]), lazy.get_tensors_svg([y])
    assert dot.startswith("digraph") and "relu" in dot
    assert "<svg" in svg and "relu" in svg
    assert count("steps") == 1, "looking ends no step"
    assert (y.tolist(), z[0].item()) == ([2.0, 2.0], torch.ones(1).sigmoid().item())


def test_there_is_nothing_to_see_of_values_that_are_there() -> None:
    x = torch.ones(2, device="lazy") * 2
    lazy.mark_step()
    assert "aten" not in lazy.get_tensors_text([x])


def test_ids_are_those_of_views() -> None:
    x = torch.ones(2, device="lazy")
    assert lazy.get_tensor_id(x) == lazy.get_tensor_id(x.detach()) == lazy.get_tensor_id(x.data)
    assert lazy.get_tensor_id(x) != lazy.get_tensor_id(x[:1])
    assert lazy.get_tensor_id(x) != lazy.get_tensor_id(torch.ones(2, device="lazy"))


HASH = """
import torch, magneto
from magneto import lazy
lazy.init()
{before}
x = torch.ones(2, 3, device="lazy")
lazy.mark_step()
y = (x * {factor}).relu() + x.sum({dim})
print(lazy.get_graph_hash([y]).hex())
"""


def hash_elsewhere(factor: float = 0.5, dim: int = 0, before: str = "") -> str:
    code = HASH.format(factor=factor, dim=dim, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_hashes_are_the_same_in_another_process_and_say_what_is_computed() -> None:
    x = torch.ones(2, 3, device="lazy")
    lazy.mark_step()
    y = (x * 0.5).relu() + x.sum(0)
    mine = lazy.get_graph_hash([y])
    assert isinstance(mine, bytes)
    assert mine.hex() == hash_elsewhere().strip()
    assert mine.hex() == hash_elsewhere(before="torch.ones(7, device='lazy').exp()").strip()
    assert mine.hex() == hash_elsewhere(before="[1 for _ in range(10)]\n\n\n").strip()
    assert lazy.get_graph_hash([y * 1]) != mine
    assert mine != lazy.get_graph_hash([(x * 0.5).relu() + x.sum(1, keepdim=True)])


def test_a_graph_runs_again_on_other_inputs() -> None:
    x = torch.arange(3.0, device="lazy")
    lazy.mark_step()
    y = x * 2 + 1
    ids, inputs = lazy.backend.get_tensors_device_data_node([y])
    key = lazy.get_graph_hash([y])
    assert len(ids) == len(inputs) == len(set(ids))
    assert any(torch.equal(tensor, torch.arange(3.0)) for tensor in inputs)
    (again,) = lazy.backend.run_cached_graph(key, inputs)
    assert again.tolist() == y.tolist() == [1, 3, 5]
    others = [tensor + 1 if tensor.dim() else tensor for tensor in inputs]
    assert lazy.backend.run_cached_graph(key, others)[0].tolist() == [3, 5, 7]
    assert "aten.mul" in lazy.backend.get_latest_computation_graph()


def test_graphs_with_draws_and_writes_run_again() -> None:
    x = torch.zeros(4, device="lazy")
    lazy.mark_step()
    y = x.add_(1) * 2
    key = lazy.get_graph_hash([y])
    _, inputs = lazy.backend.get_tensors_device_data_node([y])
    copies = [tensor.clone() for tensor in inputs]
    assert lazy.backend.run_cached_graph(key, copies)[0].tolist() == [2.0] * 4
    assert (x.tolist(), y.tolist()) == ([1.0] * 4, [2.0] * 4)


def test_a_hash_that_is_unknown_or_forgotten_is_an_error() -> None:
    with pytest.raises(magneto.UserError, match="no graph with the hash 0102"):
        lazy.backend.run_cached_graph(b"\x01\x02", [])
    x = torch.ones(2, device="lazy")
    lazy.mark_step()
    first = lazy.get_graph_hash([x + 1])
    for n in range(lazy.backend.LIMIT):
        lazy.get_graph_hash([torch.ones(n + 1, device="lazy")])
    with pytest.raises(magneto.UserError, match=first.hex()):
        lazy.backend.run_cached_graph(first, [])


def test_forced_operators_run_one_at_a_time_and_are_counted() -> None:
    lazy.set_force_fallback(["aten::mul", "aten::relu"])
    assert lazy.get_force_fallback() == ["aten::mul", "aten::relu"]
    x = torch.ones(2, device="lazy")
    y = (x * 3).relu() + 1
    assert y.tolist() == [4.0, 4.0]
    assert (count("aten::mul"), count("aten::relu")) == (1, 1)
    assert "aten::mul" in lazy.counter_names() and "aten::add" not in lazy.counter_names()
    lazy.set_force_fallback("")
    assert lazy.get_force_fallback() == []
    assert (x * 3).tolist() == [3.0, 3.0] and count("aten::mul") == 1
    lazy.set_force_fallback("aten::mul")
    assert lazy.get_force_fallback() == ["aten::mul"]


def test_forced_draws_are_those_of_the_device() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4, device="lazy").tolist()
    lazy.set_force_fallback(["aten::uniform_", "aten::rand"])
    torch.manual_seed(3)
    assert torch.rand(4, device="lazy").tolist() == expected


def test_operators_with_results_of_unknown_size_are_counted() -> None:
    torch.arange(4, device="lazy").nonzero()
    assert count("aten::nonzero") == 1


def test_training_falls_back_nowhere() -> None:
    for make in (lambda: small_model("lazy"), lambda: made_model(conv_net, "lazy")):
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        shape = (2, 3) if isinstance(model[0], nn.Linear) else (2, 3, 8, 8)
        for _ in range(2):
            optimizer.zero_grad()
            model(numbers("lazy", *shape)).sum().backward()
            optimizer.step()
    assert [name for name in lazy.counter_names() if "::" in name] == []


def test_without_reuse_each_step_is_made() -> None:
    lazy.set_reuse_ir(False)
    for _ in range(3):
        assert (torch.ones(2, device="lazy") + 1).tolist() == [2.0, 2.0]
    assert (count("graphs made"), count("graphs found")) == (3, 0)
    lazy.set_reuse_ir(True)
    for _ in range(3):
        assert (torch.ones(2, device="lazy") + 1).tolist() == [2.0, 2.0]
    assert (count("graphs made"), count("graphs found")) == (4, 2)


def test_cleared_caches_forget_graphs_and_no_values() -> None:
    def once() -> None:
        assert (torch.ones(2, device="lazy") + 1).tolist() == [2.0, 2.0]

    once()
    pending = torch.ones(3, device="lazy") * 4
    lazy.clear_ir_cache()
    assert pending.tolist() == [4.0] * 3
    made = count("graphs made")
    once()
    assert count("graphs made") == made + 1


def test_the_cache_is_dropped_at_its_limit() -> None:
    with magneto.config.patch(lazy_cache_limit=20):
        for n in range(1, 30):
            assert (torch.ones(n, device="lazy") + 1).sum().item() == 2 * n
    assert count("caches dropped") > 0


def test_the_cache_is_dumped(tmp_path: Path) -> None:
    lazy.clear_ir_cache()
    (torch.ones(2, device="lazy") + 1).relu().tolist()
    (torch.ones(2, device="lazy") + 1).sigmoid().tolist()
    for file in (tmp_path / "steps.dot", str(tmp_path / "again.dot")):
        lazy.dump_ir_cache(file)
        text = Path(file).read_text()
        assert text.startswith("digraph") and text.count("aten::ones") == 1
        assert "aten::relu" in text and "aten::sigmoid" in text and text.rstrip().endswith("}")


def test_metrics_are_reported_and_reset() -> None:
    assert lazy.counter_value("steps") is None
    assert lazy.metrics_report() == "" and lazy.counter_names() == []
    for _ in range(3):
        (torch.ones(2, device="lazy") + 1).tolist()
    report = lazy.metrics_report()
    assert "Metric: execute\n  TotalSamples: 3\n" in report
    assert "50%=" in report and "Counter: steps\n  Value: 3\n" in report
    lazy.reset_metrics()
    assert lazy.metrics_report() == ""


def test_frames_are_kept_on_demand() -> None:
    lazy.clear_ir_cache()
    with magneto.config.patch(lazy_frames=True):
        x = torch.ones(2, device="lazy")
        y = in_a_function(x)
        frames = dict(lazy.get_frames())
    (name,) = [name for name in frames if "exp" in name]
    assert "test_lazy.py" in frames[name][0] and "in_a_function" in frames[name][0]
    assert "test_frames_are_kept_on_demand" in frames[name][1]
    assert y.tolist() == x.exp().tolist()
    lazy.clear_ir_cache()
    torch.ones(2, device="lazy")
    assert all(not kept for _, kept in lazy.get_frames())


def in_a_function(x: Tensor) -> Tensor:
    return x.exp()


def test_the_names_of_the_other_module_are_there() -> None:
    from magneto.lazy import _C_compat

    x = torch.ones(2, device="lazy") + 1
    assert "aten.add" in _C_compat._get_tensors_text([x])
    _C_compat._mark_step("lazy", [], True)
    _C_compat._wait_device_ops([])
    assert _C_compat._counter_value("steps") == 1
    _C_compat._sync_multi([x], [], True, True)
    for name in vars(_C_compat):
        if name.startswith("_") and not name.startswith("__"):
            assert callable(getattr(_C_compat, name))


def test_small_settings() -> None:
    assert lazy.get_default_device_type() == "cpu" and lazy.is_initialized()
    before = lazy.get_symbolic_shape_mode()
    lazy.set_symbolic_shape_mode(True)
    assert lazy.get_symbolic_shape_mode() is True
    lazy.set_symbolic_shape_mode(before)


# ---- random numbers

DRAWS: dict[str, Callable[..., Tensor]] = {
    "rand": lambda d, **k: torch.rand(5, device=d, **k),
    "randn": lambda d, **k: torch.randn(40, device=d, **k),
    "randint": lambda d, **k: torch.randint(0, 100, (5,), device=d, **k),
    "randperm": lambda d, **k: torch.randperm(9, device=d, **k),
    "normal": lambda d, **k: torch.normal(0.0, 2.0, (5,), device=d, **k),
    "normal_tensors": lambda d, **k: torch.normal(torch.zeros(4, device=d), torch.ones(4, device=d), **k),
    "bernoulli": lambda d, **k: torch.bernoulli(torch.full((9,), 0.5, device=d), **k),
    "multinomial": lambda d, **k: torch.multinomial(torch.ones(5, device=d), 3, **k),
    "poisson": lambda d, **k: torch.poisson(torch.full((5,), 3.0, device=d), **k),
    "uniform_": lambda d, **k: torch.empty(5, device=d).uniform_(1, 2, **k),
    "exponential_": lambda d, **k: torch.empty(5, device=d).exponential_(**k),
    "random_": lambda d, **k: torch.empty(5, device=d).random_(10, **k),
    "geometric_": lambda d, **k: torch.empty(5, device=d).geometric_(0.5, **k),
    "cauchy_": lambda d, **k: torch.empty(5, device=d).cauchy_(**k),
    "log_normal_": lambda d, **k: torch.empty(5, device=d).log_normal_(**k),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_a_cpu_generator_with_the_same_seed(name: str) -> None:
    draw, generator = DRAWS[name], torch.Generator().manual_seed(11)
    expected = [draw("cpu", generator=generator) for _ in range(3)]
    for _ in range(2):
        torch.manual_seed(11)
        assert [seen(draw("lazy")) for _ in range(3)] == [seen(x) for x in expected]
    lazy.manual_seed(11)
    assert seen(draw("lazy")) == seen(expected[0])


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_that_is_given_is_drawn_from_in_the_order_of_the_program(name: str) -> None:
    draw = DRAWS[name]

    def story(d: str) -> Any:
        generator = torch.Generator().manual_seed(5)
        first = draw(d, generator=generator)
        between = draw("cpu", generator=generator)
        second = draw(d, generator=generator)
        state = generator.get_state()
        generator.manual_seed(6)
        return [first, between, second, state, draw(d, generator=generator)]

    check(story)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(x, 0.3, inplace=True),
        lambda x: F.alpha_dropout(x, 0.3, training=True),
        lambda x: F.feature_alpha_dropout(x, 0.3, training=True),
        lambda x: F.dropout2d(x, 0.3),
        lambda x: F.dropout1d(x, 0.5),
        lambda x: F.dropout(x, 1.0),
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.gumbel_softmax(x),
        lambda x: torch.native_dropout(x, 0.5, True)[0],
    ],
)
def test_noise_is_that_of_the_cpu(drop: Callable[[Tensor], Tensor]) -> None:
    def story(d: str) -> Any:
        x = numbers(d, 2, 4, 5).requires_grad_()
        y = drop(x * 1)
        y.sum().backward()
        return [y, x.grad]

    check(story)


def test_a_seed_counts_from_where_it_was_set() -> None:
    torch.manual_seed(1)
    first = torch.rand(3, device="lazy")
    torch.manual_seed(1)
    second = torch.rand(3, device="lazy")
    third = torch.rand(3, device="lazy")
    assert first.tolist() == second.tolist() != third.tolist()


def test_the_generators_of_the_devices_do_not_disturb_each_other() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    torch.rand(30, device="lazy").tolist()
    torch.randperm(30, device="lazy").tolist()
    torch.multinomial(torch.ones(4, device="lazy"), 2).tolist()
    assert torch.rand(3).tolist() == expected


def test_draws_that_nobody_keeps_still_count() -> None:
    torch.manual_seed(1)
    torch.rand(3, device="lazy")
    kept = torch.rand(3, device="lazy")
    generator = torch.Generator().manual_seed(1)
    torch.rand(3, generator=generator)
    assert kept.tolist() == torch.rand(3, generator=generator).tolist()


# ---- mixed precision


def test_lower_precision_is_the_same() -> None:
    def story(d: str) -> Any:
        model = made_model(lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)), d)
        half = copy.deepcopy(model).to(torch.bfloat16)
        x = numbers(d, 3, 4)
        y = half(x.to(torch.bfloat16)).float() + model(x)
        y.sum().backward()
        return [y, [p.grad for p in half.parameters()], [p.grad for p in model.parameters()]]

    check(story)


def test_autocast_of_the_cpu_does_nothing_to_lazy_tensors() -> None:
    x = numbers("lazy", 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype == torch.float32


def test_autocast_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="unsupported autocast device_type"), torch.autocast("lazy", torch.bfloat16):
        pass


# ---- data


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_feeds_the_device(workers: int) -> None:
    data = TensorDataset(torch.arange(24.0).reshape(8, 3), torch.arange(8))

    def story(d: str) -> Any:
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(data, 3, shuffle=True, num_workers=workers, generator=generator)
        model = small_model(d)
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        losses = []
        for _ in range(2):
            for x, y in loader:
                loss = F.cross_entropy(model(x.to(d)), y.to(d) % 2)
                loss.backward()
                optimizer.step()
                losses.append(loss)
        return losses

    check(story, 1)


def test_a_loader_collates_lazy_items() -> None:
    items = [(torch.full((2,), float(i), device="lazy"), i) for i in range(4)]
    batches = list(DataLoader(items, 2))
    assert [(x.device.type, x.tolist(), y.tolist()) for x, y in batches] == [
        ("lazy", [[0, 0], [1, 1]], [0, 1]),
        ("lazy", [[2, 2], [3, 3]], [2, 3]),
    ]


# ---- threads


def test_threads_train_their_own_models() -> None:
    def trained(d: str, index: int) -> list[Any]:
        with torch.enable_grad():
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
            with torch.no_grad():
                for i, p in enumerate(model.parameters()):
                    p.copy_(numbers("cpu", *p.shape, seed=10 * index + i))
            model.to(d)
            optimizer = torch.optim.AdamW(model.parameters(), 0.1)
            return [*train(model, optimizer, d, 20), [seen(p) for p in model.parameters()]]

    expected = [trained("cpu", index) for index in range(4)]

    def work(index: int) -> None:
        assert trained("lazy", index) == expected[index]

    in_threads(work, 4)


def test_threads_share_a_tensor() -> None:
    shared = torch.zeros(4, device="lazy")
    base = torch.arange(8.0, device="lazy")
    lock = threading.Lock()

    def work(index: int) -> None:
        for i in range(100):
            with lock:
                shared.add_(1)
            part = base[index : index + 2] * (i + 1)
            assert part.tolist() == [(i + 1.0) * index, (i + 1.0) * (index + 1)]
            if i % 10 == index:
                lazy.mark_step(wait=False)

    in_threads(work, 4)
    assert shared.tolist() == [400.0] * 4


def test_threads_read_one_pending_value() -> None:
    for _ in range(20):
        x = torch.ones(50, device="lazy")
        for _ in range(20):
            x = x + 1

        def work(index: int, x: Tensor = x) -> None:
            assert x.sum().item() == 21 * 50

        in_threads(work, 4)


def test_threads_clear_the_cache_while_others_record() -> None:
    def work(index: int) -> None:
        for i in range(100):
            if index == 0:
                lazy.clear_ir_cache()
            x = torch.full((3,), float(i), device="lazy")
            assert (x + index).tolist() == [float(i + index)] * 3

    in_threads(work, 4)


# ---- memory


def test_memory_is_flat_over_many_steps() -> None:
    model = made_model(conv_net, "lazy")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def cycle() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, 8, 8).to("lazy")).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(20):
        cycle()
    assert_flat(cycle, STEPS)


def test_memory_is_flat_without_reads() -> None:
    model = small_model("lazy")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def cycle() -> None:
        model(torch.ones(2, 3, device="lazy")).sum().backward()
        optimizer.step()

    assert_flat(cycle, STEPS)


@pytest.mark.parametrize(
    "cycle",
    [
        lambda: torch.arange(5000, device="lazy").nonzero(),
        lambda: torch.unique(torch.arange(5000, device="lazy")),
        lambda: compare.raised_by(lambda: torch.ones(5000, device="lazy") @ torch.ones(7, device="lazy")),
        lambda: torch.arange(5000.0).to("lazy").tolist(),
        lambda: torch.ones(5000, device="lazy").view(50, 100).t().contiguous().cpu(),
        lambda: (lazy.get_tensors_text([torch.ones(500, device="lazy") + 1]), lazy.mark_step()),
        lambda: (lazy.clear_ir_cache(), (torch.ones(5000, device="lazy") + 1).cpu()),
        lambda: torch.ones(5000, device="lazy").resize_(2, 3).cpu(),
    ],
)
def test_memory_is_flat_whatever_a_step_does(cycle: Callable[[], Any]) -> None:
    for _ in range(20):
        cycle()
    assert_flat(cycle, STEPS)


def test_memory_is_flat_when_nothing_is_recorded_at_last() -> None:
    state = [torch.arange(5000, device="lazy")]
    lazy.mark_step()

    def cycle() -> None:
        state[0] = torch.unique(torch.masked_select(state[0], state[0].cpu() >= 0))

    assert_flat(cycle, STEPS)


def test_dead_values_are_freed_while_a_step_runs() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x = torch.ones(1000, 1000, device="lazy")
    for _ in range(200):
        x = x + 1
    assert x[0, 0].item() == 201.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 100 * 1024


# ---- whole trainings


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 5),
    )


class LanguageModel(nn.Module):
    """The loss of a small model of `transformers`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import transformers

        if kind == "gpt2":
            config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
            self.model = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.BertConfig(
                vocab_size=50,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=16,
            )
            self.model = transformers.BertForMaskedLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, labels=tokens).loss


def tokens(d: str, seed: int) -> Tensor:
    return torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(seed)).to(d)


TRAININGS: dict[str, tuple[Callable[[], nn.Module], Callable[[str, int], Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5)),
        lambda d, i: numbers(d, 8, 6, seed=i),
    ),
    "conv": (conv_net, lambda d, i: numbers(d, 4, 3, 8, 8, seed=i)),
    "encoder": (lambda: training.encoder(2), lambda d, i: numbers(d, 2, 5, 32, seed=i)),
    "gpt2": (lambda: LanguageModel("gpt2"), tokens),
    "bert": (lambda: LanguageModel("bert"), tokens),
}


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_of_fifty_steps_is_that_of_the_cpu_in_one_graph_per_step(name: str, reads: bool) -> None:
    make, batch = TRAININGS[name]
    counts: list[tuple[int, int, int]] = []

    def story(d: str) -> Any:
        model = made_model(make, d).train()
        torch.manual_seed(SEED)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        losses: list[Any] = []
        for i in range(50):
            optimizer.zero_grad()
            result = model(batch(d, i))
            loss = (
                result if result.dim() == 0 else F.cross_entropy(result.flatten(0, -2), result.flatten(0, -2).argmax(1))
            )
            loss.backward()
            optimizer.step()
            losses.append(loss.item() if reads else loss.detach())
            if d == "lazy":
                counts.append((count("graphs made"), count("graphs found"), count("steps")))
        return [losses, list(model.parameters()), list(model.buffers())]

    check(story, 1)
    for before, after in itertools.pairwise(counts[5:]):
        assert (after[0] - before[0], after[1] - before[1], after[2] - before[2]) == (0, 1, 1)
    assert [name for name in lazy.counter_names() if "::" in name] == []
