"""The lazy device: values, views and writes are those of the CPU, to the bit, and so are the errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import magneto
import numpy
import pytest
import torch
from lazy_stories import BACKING, Story, check, count, each, grid, numbers, step
from magneto import lazy
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import compare

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("lazy_device")]


# ---- stories: functions of the device's name, told on both devices


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

    expected, actual = raised(BACKING), raised("lazy")
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
