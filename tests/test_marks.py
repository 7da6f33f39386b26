"""Wishes about the sizes of single tensors: a marked dimension is open from the first capture on, or never."""

import magneto
import pytest
import torch
from test_sizes import no_grad, same  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_grad")


def fn(x):
    return x * 2 + x.shape[0], x.sum(0)


def captures_of(function, tensors, mark, **options) -> int:
    compiled = magneto.compile(function, **options)
    before = magneto.counters["stats"]["captures"]
    for x in tensors:
        mark(x)
        same(compiled(x), function(x))
    return magneto.counters["stats"]["captures"] - before


def rows(*counts):
    return [torch.rand(n, 4) for n in counts]


@pytest.mark.parametrize("mark", [magneto.mark_dynamic, magneto.maybe_mark_dynamic])
@pytest.mark.parametrize("dynamic", [None, False])
def test_a_dynamic_dimension_is_open_at_once(mark, dynamic):
    assert captures_of(fn, rows(3, 5, 7, 2, 9), lambda x: mark(x, 0), dynamic=dynamic) == 1


def test_a_static_dimension_is_never_open():
    assert captures_of(fn, rows(3, 5, 7, 3, 5), lambda x: magneto.mark_static(x, 0)) == 3
    assert captures_of(fn, rows(3, 5, 7, 3, 5), magneto.mark_static, dynamic=True) == 3


def test_other_dimensions_are_as_ever():
    tensors = [torch.rand(n, m) for n, m in ((3, 4), (5, 4), (5, 6), (7, 8), (9, 10))]
    assert captures_of(fn, tensors, lambda x: magneto.mark_dynamic(x, 0)) == 2
    tensors = [torch.rand(n, m) for n, m in ((3, 4), (3, 5), (3, 6), (5, 7), (5, 8))]
    assert captures_of(fn, tensors, lambda x: magneto.mark_static(x, 0)) <= 4


def test_dynamic_is_stronger_than_static():
    def mark(x):
        magneto.mark_static(x)
        magneto.mark_dynamic(x, 0)

    assert captures_of(fn, rows(3, 5, 7), mark) == 1


def test_inside_containers():
    compiled = magneto.compile(lambda batch: batch["x"][0] * 2)
    before = magneto.counters["stats"]["captures"]
    for x in rows(3, 5, 7):
        magneto.mark_dynamic(x, 0)
        same(compiled({"x": [x]}), x * 2)
    assert magneto.counters["stats"]["captures"] - before == 1


def pinned(x):
    y = x + 1
    for _ in range(x.shape[0]):
        y = y * 2
    return y


def test_a_dynamic_dimension_that_must_be_fixed_is_an_error():
    compiled = magneto.compile(pinned)
    for n in (3, 3, 5):
        x = torch.rand(n, 4)
        magneto.mark_dynamic(x, 0)
        with pytest.raises(magneto.UserError, match=r"dimension 0 of .*mark_dynamic.*test_marks.py:\d+ in pinned"):
            compiled(x)
    for x in rows(3, 5):
        same(compiled(x), pinned(x))


def test_one_that_may_be_fixed_is_none():
    assert captures_of(pinned, rows(3, 5, 3, 5), lambda x: magneto.maybe_mark_dynamic(x, 0)) == 2


def test_sizes_of_one_stay_forms_of_their_own():
    assert captures_of(fn, rows(1, 3, 5, 1, 0), lambda x: magneto.mark_dynamic(x, 0)) == 3


def test_marks_are_no_secret():
    def read(x):
        return x + len(getattr(x, "_magneto_dynamic", ())), sorted(vars(x)), "_magneto_static" in x.__dict__

    compiled = magneto.compile(read)
    for n in (3, 3, 5):
        x = torch.rand(n, 4)
        same(compiled(x), read(x))
        magneto.mark_dynamic(x, 0)
        same(compiled(x), read(x))
        magneto.mark_static(x)
        same(compiled(x), read(x))
