"""Numbers that a graph takes and gives: integer arguments that later calls may change, and sizes as outputs."""

from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from magneto import Graph

PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "factor": lambda x, n: x * n,
    "integer factor": lambda x, n: x.to(torch.int32) * n + n,
    "scalar": lambda x, n: torch.add(x, x, alpha=n) / (n + 1) - x**n,
    "view": lambda x, n: x.reshape(-1).view(n, -1).sum(1),
    "factory": lambda x, n: (torch.arange(n), torch.zeros(n, 3) + x[0, 0], x.new_full((2, n), n / 2)),
    "slice": lambda x, n: (x[:, :n] * 2, x.narrow(1, 0, n).sum(1)),
    "expand": lambda x, n: x.unsqueeze(0).expand(n, -1, -1).contiguous(),
    "repeat": lambda x, n: x.repeat(n, 1),
    "sizes and numbers": lambda x, n: torch.full((x.shape[0] + n,), x.shape[0] * n),
    "outputs": lambda x, n: (n, n * 2, x.shape[0] * n, n / 2, n % 2 == x.shape[0] % 2, {"x": x + n}),
    "an argument as it came": lambda x, n: (x, n),
}


def same(found: Any, expected: Any) -> None:
    found, expected = (torch.utils._pytree.tree_flatten(each) for each in (found, expected))
    assert found[1] == expected[1]
    for one, other in zip(found[0], expected[0], strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
        else:
            assert one == other


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_other_numbers_and_sizes(name):
    program = PROGRAMS[name]
    graph = magneto.record(program, torch.rand(4, 12), 3, dynamic={"x": [0], "n": True})
    for rows, n in ((4, 3), (6, 2), (8, 4), (2, 6), (10, 12), (14, 4)):
        x = torch.rand(rows, 12) + 1
        same(graph(x, n), program(x, n))


QUESTIONS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "tile": lambda x, n: x.view(-1, n).t().contiguous() + 1,
    "cut": lambda x, n: torch.cat([x[:n], x[n:] * 2]),
    "pieces": lambda x, n: x.split(n, 1),
    "padding": lambda x, n: torch.nn.functional.pad(x, (n, n)),
    "bounds": lambda x, n: (x.clamp(-n, n), x[:, : min(n, 5)] * max(n, 2)),
    "steps": lambda x, n: torch.arange(0, n, 2) * 1.5,
    "best": lambda x, n: x.topk(n, 1).values,
    "mask": lambda x, n: (x.masked_fill(x > 0.5, n), torch.where(x > 0.5, x, n)),
    "triangle": lambda x, n: torch.ones(n, n).tril(),
}


@pytest.mark.parametrize("recorded", [1, 3, 6])
@pytest.mark.parametrize("name", QUESTIONS)
def test_any_number_is_served_as_by_eager_or_refused(name, recorded):
    program = QUESTIONS[name]
    graph = magneto.record(program, torch.rand(4, 12), recorded, dynamic={"x": [0], "n": True})
    served = set()
    for rows in range(1, 8):
        for n in (*range(-2, 14), 24, 48, 72):
            x = torch.rand(rows, 12)
            try:
                found = graph(x, n)
            except (ValueError, RuntimeError):
                continue
            same(found, program(x, n))
            served.add((rows, n))
    assert (4, recorded) in served and len(served) > 5


@pytest.mark.parametrize("name", ["factor", "view", "expand", "repeat"])
def test_the_backward_depends_on_numbers_as_eager_does(name):
    program = PROGRAMS[name]
    graph = magneto.record(program, torch.rand(4, 12, requires_grad=True), 3, joint=True, dynamic={"x": [0], "n": "n"})
    for rows, n in ((6, 2), (8, 4), (2, 6), (10, 12), (14, 4)):
        x = torch.rand(rows, 12, requires_grad=True)
        expected = program(x, n)
        tangent = torch.rand_like(expected)
        found, gradients = graph(x, n, gradients=[tangent])
        same(found, expected.detach())
        same(gradients, list(torch.autograd.grad(expected, [x], tangent)))


def test_what_torch_cannot_differentiate_is_refused():
    x = torch.rand(4, requires_grad=True)
    with pytest.raises(magneto.RecordError, match="leave n out of dynamic"):
        magneto.record(lambda x, n: x**n, x, 3, joint=True, dynamic={"n": True})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.bool])
def test_short_dtypes_meet_the_whole_number(dtype):
    graph = magneto.record(lambda x, n: x * n + n, torch.ones(3).to(dtype), 3, dynamic={"n": True})
    x = torch.tensor([1, 0, 1]).to(dtype)
    for number in (2, 257, 1001, -300, 70000):
        same(graph(x, number), x * number + number)


@pytest.mark.parametrize("number", [-3, 0, 1, 2, 7])
def test_a_number_may_be_anything_unless_the_program_asks(number):
    graph = magneto.record(lambda x, n: (x * n, n), torch.ones(3), 1, dynamic={"n": True})
    assert graph.guards == []
    x = torch.randn(3)
    same(graph(x, number), (x * number, number))


def test_what_the_program_asks_of_a_number_becomes_a_guard():
    graph = magneto.record(lambda x, n: x * n if n > 2 else x, torch.ones(3), 5, dynamic={"n": ("count", None, 64)})
    assert graph.guards == ["n >= 3", "n <= 64"]
    for wrong in (2, 65):
        with pytest.raises(ValueError, match=f"n [<>]= .* does not hold: n is {wrong}"):
            graph(torch.ones(3), wrong)


def test_numbers_of_one_name_are_equal():
    x = torch.ones(4, 3)
    graph = magneto.record(lambda x, n, m: x * n + m, x, 4, 4, dynamic={"x": {0: "rows"}, "n": "rows", "m": "rows"})
    assert torch.equal(graph(torch.ones(6, 3), 6, 6), torch.full((6, 3), 12.0))
    with pytest.raises(ValueError, match=r"m is 5, expected x\.size\(0\) = 6"):
        graph(torch.ones(6, 3), 6, 5)
    with pytest.raises(magneto.UserError, match="one name must be equal"):
        magneto.record(lambda x, n: x * n, x, 3, dynamic={"x": {0: "rows"}, "n": "rows"})


def test_numbers_that_nobody_named_are_part_of_the_graph():
    graph = magneto.record(lambda x, n, m: x * n + m, torch.ones(3), 2, 5, dynamic={"n": True})
    assert torch.equal(graph(torch.ones(3), 7, 5), torch.full((3,), 12.0))
    with pytest.raises(ValueError, match="recorded with 5 where 6 is given"):
        graph(torch.ones(3), 7, 6)


@pytest.mark.parametrize("wrong", [2.0, True, "2", None, torch.tensor(2)])
def test_a_number_must_be_an_integer(wrong):
    graph = magneto.record(lambda x, n: x * n, torch.ones(3), 2, dynamic={"n": True})
    with pytest.raises(TypeError, match="expected an integer"):
        graph.run([torch.ones(3), wrong])


def test_numbers_that_do_not_fit_64_bits_are_refused():
    graph = magneto.record(lambda x, n: x * n, torch.ones(3), 2, dynamic={"n": True})
    with pytest.raises(OverflowError):
        graph.run([torch.ones(3), 2**64])


def test_wrong_wishes_say_what_was_expected():
    x = torch.ones(3)
    with pytest.raises(ValueError, match="the tensors are: x; the integers: n"):
        magneto.record(lambda x, n, t: x, x, 3, True, dynamic={"t": True})
    with pytest.raises(ValueError, match="expects True, a name or"):
        magneto.record(lambda x, n: x, x, 3, dynamic={"n": [0]})
    with pytest.raises(ValueError, match="live=False"):
        magneto.record(lambda x, n: x * n, x, 3, dynamic={"n": True}, live=True)


# ---- graphs as text and as torch.fx

TEXT = """
symbol rows = 4 in 2.. from input 0 dimension 0 as x
symbol n = 3 in .. from input 1 as n
symbol s2 = 64 in 2.. unknown
argument %0 x: f32[rows, 2]
size %1 n: n
%2: f32[rows, 2] = aten.mul.Scalar(%0, n)
%3: f32[n, rows] = aten.full([n, rows], float(rows) / 2.0, dtype=f32)
return %2, %3, rows*n, float(n), n <= rows
""".strip()


def recorded(symbol: str = "n") -> Graph:
    program = PROGRAMS["outputs"]
    return magneto.record(program, torch.rand(4, 12), 3, dynamic={"x": [0], "n": symbol})


def test_the_text_is_read_back():
    graph = Graph.parse(TEXT)
    assert [value.role for value in graph.inputs] == ["argument", "size"]
    assert [value.role for value in graph.outputs] == ["result", "result", "size", "size", "size"]
    assert graph.outputs[3].type == "float(n)"
    assert Graph.parse(graph.text).text == graph.text
    graph.verify()
    x = torch.rand(5, 2)
    same(graph.run([x, 6]), [x * 6, torch.full((6, 5), 2.5), 30, 6.0, False])
    for each in (recorded(), magneto.record(PROGRAMS["factory"], torch.rand(4, 12), 3, dynamic={"n": True})):
        again = Graph.parse(each.text)
        assert again.text == each.text
        assert again.hash == each.hash


def test_the_hash_tells_outputs_apart():
    one, other = (Graph.parse(TEXT.replace("rows*n,", text)) for text in ("rows*n,", "rows + n,"))
    assert one.hash != other.hash


def test_graphs_with_numbers_go_to_fx_and_back():
    graph = recorded()
    module = graph.to_fx()
    x = torch.rand(6, 12)
    with torch.no_grad():
        same(list(module(x, 5)), graph.run([x, 5]))
    again = Graph.from_fx(module)
    assert again.hash == graph.hash
    same(again.run([x, 7]), graph.run([x, 7]))


def test_pictures_show_numbers():
    assert "return" in recorded().to_svg()
    assert "n" in recorded().to_dot()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TEXT.replace("size %1 n: n", "size %1 n: 3"), "expected an integer in symbols"),
        (TEXT.replace("size %1 n: n", "size %1 n: float(n)"), "expected an integer in symbols"),
        (TEXT.replace("size %1 n: n", "argument %1 n: i64[]"), "n is a number that no input has"),
        (TEXT.replace("aten.mul.Scalar(%0, n)", "aten.mul.Tensor(%0, %1)"), "%1 is a size, not a tensor"),
        (TEXT.replace("aten.mul.Scalar(%0, n)", "aten.mul.Scalar(%0, s2)"), "s2 is unknown to runs"),
        (TEXT.replace("rows*n,", "rows*s2,"), r"rows\*s2 is unknown to runs"),
        (TEXT.replace("rows*n,", "3,"), "expected a value such as %3, or a size"),
        (TEXT.replace("return", "guard s2 == 64\nreturn"), "cannot be told"),
    ],
)
def test_texts_that_mean_nothing_are_refused(text: str, reason: str):
    with pytest.raises(magneto.UserError, match=reason):
        Graph.parse(text)
