"""Replays of graphs with symbolic sizes: equal to eager at every size that fits, else refused before anything ran."""

import threading

import pytest
import torch
from magneto import Graph

VIEWS = """
symbol s0 = 4 in 2..64 from input 0 dimension 0 as x
symbol s1 = 8 in 2.. from input 0 dimension 1 as x
argument %0 x: f32[s0, s1, 3]
%1: f32[s0*s1, 3] in %0 = aten.view(%0, [s0*s1, 3])
%2: f32[3, s0*s1]{1, 3} in %0 = aten.t(%1)
%3: f32[s0 // 2, s1, 3] = aten.slice.Tensor(%0, end=s0 // 2)
%4: f32[s0, s1, 3] = aten.mul.Scalar(%0, s1)
%5: f32[s0, s1, 3] = aten.mul.Scalar(%0, float(s0)**(-0.5))
%6: f32[s1 + 1, 2, s0] = aten.full([s1 + 1, 2, s0], float(s1) / 2.0, dtype=f32, device=cpu, pin_memory=False)
%7: i64[s0*s1] = aten.arange.start(1, s0*s1 + 1, device=cpu, pin_memory=False)
guard s0 % 2 == 0
return %2, %3, %4, %5, %6, %7
"""


def views(x: torch.Tensor) -> list[torch.Tensor]:
    s0, s1, _ = x.shape
    return [
        x.view(s0 * s1, 3).t(),
        x[: s0 // 2],
        x * s1,
        x * s0**-0.5,
        torch.full([s1 + 1, 2, s0], s1 / 2),
        torch.arange(1, s0 * s1 + 1),
    ]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert one.dtype == other.dtype


@pytest.mark.parametrize("shape", [(4, 8, 3), (2, 2, 3), (64, 5, 3), (6, 100, 3), (10, 3, 3)])
def test_one_graph_serves_every_size_that_fits(shape: tuple[int, ...]):
    x = torch.randn(shape)
    assert_same(Graph.parse(VIEWS).run([x]), views(x))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.empty(5, 8, 3), r"x\.size\(0\) % 2 == 0 does not hold: x\.size\(0\) is 5"),
        (torch.empty(66, 8, 3), r"x\.size\(0\) <= 64 does not hold: x\.size\(0\) is 66"),
        (torch.empty(4, 1, 3), r"x\.size\(1\) >= 2 does not hold: x\.size\(1\) is 1"),
        (torch.empty(4, 8, 2), r"x\.size\(2\) is 2, expected 3"),
        (torch.empty(4, 3, 8).transpose(1, 2), r"x\.stride\(1\) is 1, expected 3"),
    ],
)
def test_other_sizes_are_refused_in_words(x: torch.Tensor, reason: str):
    graph = Graph.parse(VIEWS)
    with pytest.raises(ValueError, match="recorded for other sizes: " + reason):
        graph.run([x])
    good = torch.randn(2, 4, 3)
    assert_same(graph.run([good]), views(good))


def test_nothing_ran_when_sizes_are_refused():
    graph = Graph.parse("""
symbol s0 = 4 in 2.. from input 0 dimension 0 as x
symbol s1 = 4 in 2.. from input 1 dimension 0 as y
argument %0 x: f32[s0]
argument %1 y: f32[s1]
%0 = aten.mul_.Scalar(%0, s0)
guard s0 == s1
return %0
""")
    x, y = torch.ones(3), torch.ones(3)
    assert graph.run([x, y])[0] is x
    assert x.tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match=r"x\.size\(0\) == y\.size\(0\) does not hold"):
        graph.run([x, torch.ones(4)])
    assert x.tolist() == [3, 3, 3]


def test_sizes_that_do_not_fit_64_bits_are_refused():
    graph = Graph.parse("""
symbol s0 = 2 in 2.. from input 0 dimension 0 as x
argument %0 x: f32[s0]{0}
%1: f32[s0] = aten.mul.Scalar(%0, s0*s0*s0*s0)
return %1
""")
    assert graph.run([torch.ones(1).expand(3)])[0].tolist() == [81.0] * 3
    with pytest.raises(ValueError, match=r"does not fit 64 bits: x\.size\(0\) is 131072"):
        graph.run([torch.ones(1).expand(2**17)])


def test_threads_bind_their_own_sizes():
    graph = Graph.parse(VIEWS)
    wrong: list[BaseException] = []

    def work(count: int) -> None:
        try:
            for _ in range(50):
                x = torch.randn(count, count + 1, 3)
                assert_same(graph.run([x]), views(x))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(2 * i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
