"""magneto.Graph: text and back, runs with checked inputs, hashes, torch.fx, drawings."""

import gc
import itertools
import random
import subprocess
import sys
import weakref
import xml.etree.ElementTree
from pathlib import Path

import magneto
import pytest
import torch
from magneto import Graph
from torch import nn

GOLDEN = Path(__file__).parent / "golden" / "graph"

LINEAR = """argument %0 x: f32[2, 4]
parameter %1 weight: f32[3, 4]
buffer %2 bias: f32[3]
%3: f32[4, 3]{1, 4} in %1 = aten.t(%1)  # model.py:7 forward
%4: f32[2, 3] = aten.addmm(%2, %0, %3)  # model.py:7 forward
%4 = aten.relu_(%4)
return %4
"""


def linear() -> tuple[Graph, list[torch.Tensor]]:
    states = [nn.Parameter(torch.randn(3, 4)), torch.randn(3)]
    return Graph.parse(LINEAR, states=states), states


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


# ---- text


@pytest.mark.parametrize("name", ["words.txt", "symbols.txt"])
def test_a_text_is_read_and_written_back_exactly(name):
    text = golden(name)
    graph = Graph.parse(text)
    graph.verify()
    assert graph.text == text
    assert str(graph) == text


def blocks() -> list[tuple[str, str]]:
    body = golden("errors.txt").split("\n", 1)[1]
    return [tuple(block.strip("\n").rsplit("\n", 1)) for block in body.split("\n\n")]  # type: ignore[misc]


@pytest.mark.parametrize("text, said", blocks())
def test_a_wrong_text_is_refused_with_its_place(text, said):
    if "return" not in text + said:
        text += "\nreturn"
    with pytest.raises(magneto.UserError) as error:
        Graph.parse(text)
    assert str(error.value) in (f"graph text, {said}", f"graph text: {said}")


def test_no_prefix_of_a_text_crashes_the_parser():
    text = golden("words.txt")
    for end in range(len(text) - 1):
        try:
            Graph.parse(text[:end])
        except magneto.UserError:
            continue
        assert text[:end].rstrip("\n %0123456789,").endswith("return")


@pytest.mark.parametrize("name", ["words.txt", "symbols.txt"])
def test_a_text_with_a_slip_is_refused_or_means_something(name):
    text = golden(name)
    choose = random.Random(0)
    kept = 0
    for _ in range(1000):
        at = choose.randrange(len(text))
        slip = choose.choice(
            ["", "0", "9", "-", "%", "[", "]", "(", ")", ",", "'", "\\", "s0", "None", "\n", text[at] * 2]
        )
        try:
            graph = Graph.parse(text[:at] + slip + text[at + 1 :])
        except magneto.UserError as error:
            assert str(error).startswith("graph text")
            continue
        kept += 1
        assert Graph.parse(graph.text).text == graph.text
        assert graph.to_svg() and graph.to_dot() and len(graph.hash) == 40
    assert kept > 50


def test_a_text_may_have_comments_blank_lines_and_other_spaces():
    text = "\n# hello\n  argument  %0 x :f32[ 2 ]# note\r\n\n%1:f32[2]=aten.relu.default( %0 )  # it's: fine\nreturn %1"
    assert Graph.parse(text).text == "argument %0 x: f32[2]\n%1: f32[2] = aten.relu(%0)\nreturn %1\n"


def test_numbers_keep_their_kind_and_their_bits():
    (op,) = (op for op in Graph.parse(golden("words.txt")).ops if op.name == "aten::_local_scalar_dense")
    assert op.expected == 0.5 and type(op.expected) is float
    line = "%1: f32[2] = aten.add.Scalar(%0, {})\n"
    largest, smallest = "9223372036854775807", "-9223372036854775808"
    for number in ("1", "1.0", "True", "-0.0", "1e+300", "0.1", "5e-324", largest, smallest):
        text = "argument %0: f32[2]\n" + line.format(number) + "return %1\n"
        graph = Graph.parse(text)
        assert graph.text == text
        assert repr(graph.ops[0].arguments[1]) == repr(eval(number))


def test_constants_come_back_with_their_contents():
    graph = Graph.parse(golden("words.txt"))
    half, matrix, empty, flags, complexes, expanded, nan, _, eighth = graph.constants
    assert half.dtype == torch.float64 and half.item() == 0.5
    assert matrix.stride() == (1, 3) and matrix[0].tolist() == [1.0, torch.tensor(0.1).item()]
    assert empty.shape == (0,) and flags.tolist() == [True, False]
    assert complexes.tolist() == [1 + 2j, complex(0, -torch.inf)]
    assert expanded.stride() == (0,) and expanded.dtype == torch.float16
    assert nan.view(torch.int32).item() == 0x7FC00001
    assert eighth.to(torch.float32).tolist() == [1.0, 2.0]


def test_a_number_that_became_a_tensor_still_promotes_as_one():
    text = "argument %0: i64[2]\nconstant %1: f64[] number = 0.5\n%2: f32[2] = aten.mul.Tensor(%0, %1)\nreturn %2\n"
    (result,) = Graph.parse(text).run([torch.tensor([1, 2])])
    assert result.dtype == torch.float32
    (result,) = Graph.parse(text.replace(" number", "").replace("f32[2]", "f64[2]")).run([torch.tensor([1, 2])])
    assert result.dtype == torch.float64


def test_contents_may_be_given_apart():
    contents = torch.randn(100)
    text = "argument %0: f32[100]\nconstant %1: f32[100]\n%2: f32[100] = aten.add.Tensor(%0, %1)\nreturn %2\n"
    graph = Graph.parse(text, constants=[contents])
    x = torch.randn(100)
    assert torch.equal(graph.run([x])[0], x + contents)
    again = Graph.parse(graph.text)
    assert "base64" in graph.text and torch.equal(again.constants[0], contents) and again.text == graph.text
    with pytest.raises(magneto.UserError, match=r"line 2, column 22: expected contents of type f32\[100\]"):
        Graph.parse(text, constants=[contents[:50]])
    with pytest.raises(magneto.UserError, match="as many constants without contents"):
        Graph.parse(text, constants=[contents, contents])
    with pytest.raises(TypeError, match="constants must be tensors, got int"):
        Graph.parse(text, constants=[1])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        y, _ = self.attention(x, x, x, need_weights=True)
        parts = (self.norm(x + y) * torch.tensor([0.5, 2.0] * 8)).chunk(2, dim=-1)
        return self.feed(torch.cat(parts, -1)).masked_fill_(x > 1, float("-inf")), parts[0]


def compiled_graph(module: nn.Module, *inputs: torch.Tensor) -> str:
    if not magneto.is_supported():
        pytest.skip(magneto.is_supported().reason)
    with torch.no_grad():
        (text,) = magneto.explain(module)(*inputs).graphs
    return text


def test_graphs_of_compiled_functions_survive_the_way_through_text():
    text = compiled_graph(Block().eval(), torch.randn(2, 5, 16))
    graph = Graph.parse(text)
    assert graph.text == text and len(graph) > 10


# ---- views


def test_a_graph_shows_what_it_holds():
    graph, states = linear()
    assert len(graph) == 3
    (x,) = graph.inputs
    assert (x.id, x.role, x.name, x.dtype, x.shape, x.stride) == (0, "argument", "x", torch.float32, (2, 4), (4, 1))
    assert (x.device, x.memory, x.type, repr(x)) == (torch.device("cpu"), 0, "f32[2, 4]", "%0")
    assert [name for name, _ in graph.states] == ["weight", "bias"]
    assert all(held is given for (_, held), given in zip(graph.states, states, strict=True))
    transposed, product, relu = graph.ops
    assert (transposed.name, transposed.overload, transposed.line) == ("aten::t", "", ("model.py", 7, "forward"))
    assert [value.id for value in product.arguments[:3]] == [2, 0, 3] and product.arguments[3:] == [1, 1]
    assert transposed.results[0].memory == 1 and relu.results[0].id == 4 and relu.line is None
    assert repr(relu) == "%4 = aten.relu_(%4)"
    assert [value.id for value in graph.outputs] == [4]
    assert repr(graph) == "<magneto.Graph: 1 inputs, 2 states, 3 operators, 1 outputs>"


def test_arguments_are_shown_as_python_objects():
    ops = {op.name: op for op in Graph.parse(golden("words.txt")).ops}
    copied = ops["aten::_to_copy"].arguments
    assert copied[1:] == [torch.float16, torch.strided, torch.device("cpu"), None, False, torch.preserve_format]
    assert [getattr(item, "id", item) for item in ops["aten::index"].arguments[1]] == [6, None]
    assert ops["aten::gelu"].arguments[1] == "tanh"
    assert [getattr(item, "id", item) for item in ops["aten::split"].results[0]] == [None, 11]


def test_views_outlive_the_graph():
    graph, _ = linear()
    op, value = graph.ops[1], graph.inputs[0]
    del graph
    gc.collect()
    assert op.name == "aten::addmm" and value.name == "x"


# ---- runs


def test_a_run_gives_what_the_operators_give():
    graph, (weight, bias) = linear()
    x = torch.randn(2, 4)
    (result,) = graph.run([x])
    assert torch.equal(result, torch.relu(torch.nn.functional.linear(x, weight, bias)).detach())
    with torch.no_grad():
        weight.zero_()
    assert torch.equal(graph.run([x])[0], torch.relu(bias).expand(2, 3)), "state is used by reference"


@pytest.mark.parametrize(
    "inputs, error, said",
    [
        ([], TypeError, "run expects 1 inputs, got 0"),
        ([torch.zeros(2, 4)] * 2, TypeError, "run expects 1 inputs, got 2"),
        ([1], TypeError, r"input 0 \(x\): expected a torch.Tensor, got int"),
        ([torch.zeros(2, 4, dtype=torch.float64)], magneto.UserError, r"expected f32\[2, 4\], got f64\[2, 4\]"),
        ([torch.zeros(2, 5)], magneto.UserError, r"input 0 \(x\): expected f32\[2, 4\], got f32\[2, 5\]"),
        ([torch.zeros(4, 2).t()], magneto.UserError, r"expected f32\[2, 4\], got f32\[2, 4\]\{1, 2\}"),
        ([torch.zeros(2, 4).to_sparse()], magneto.UserError, "expected a plain tensor, got a sparse"),
    ],
)
def test_wrong_inputs_are_refused(inputs, error, said):
    with pytest.raises(error, match=said):
        linear()[0].run(inputs)


def test_a_graph_without_its_state_says_so():
    with pytest.raises(magneto.UserError, match=r"state 0 \(weight\) has no tensor"):
        Graph.parse(LINEAR).run([torch.zeros(2, 4)])
    with pytest.raises(magneto.UserError, match="expected 2 states, got 1"):
        Graph.parse(LINEAR, states=[torch.zeros(3, 4)])
    with pytest.raises(magneto.UserError, match="states has no tensor 'bias'"):
        Graph.parse(LINEAR, states={"weight": torch.zeros(3, 4)})
    with pytest.raises(magneto.UserError, match=r"state 1 \(bias\): expected f32\[3\], got f32\[4\]"):
        Graph.parse(LINEAR, states={"weight": torch.zeros(3, 4), "bias": torch.zeros(4)}).run([torch.zeros(2, 4)])


def test_an_operator_that_fails_raises_its_own_error():
    text = "argument %0: f32[2]\n%1: f32[3] = aten.view(%0, [3])\nreturn %1"
    with pytest.raises(RuntimeError, match="invalid for input of size 2"):
        Graph.parse(text).run([torch.zeros(2)])


def test_a_number_that_differs_stops_the_run():
    text = "argument %0: f32[]\naten._local_scalar_dense(%0) == 2.0\n%1: f32[] = aten.neg(%0)\nreturn %1"
    graph = Graph.parse(text)
    assert graph.run([torch.tensor(2.0)])[0].item() == -2.0
    with pytest.raises(magneto.UserError, match="came out differently"):
        graph.run([torch.tensor(3.0)])
    module = graph.to_fx()
    assert module(torch.tensor(2.0))[0].item() == -2.0
    with pytest.raises(magneto.UserError, match=r"relies on the number 2.0, but got 3.0"):
        module(torch.tensor(3.0))


def test_a_graph_in_a_cycle_with_its_state_is_collected():
    graph, (weight, _) = linear()
    weight.graph = graph
    graph.run([torch.zeros(2, 4)])
    gone = weakref.ref(weight)
    del graph, weight, _
    gc.collect()
    assert gone() is None


def test_symbolic_sizes_run_at_other_sizes():
    graph = Graph.parse(golden("symbols.txt"))
    for sizes in ((4, 8, 3), (6, 5, 3)):
        x = torch.randn(sizes)
        flat, half, scaled = graph.run([x])
        assert torch.equal(flat, x.view(-1, 3).t()) and torch.equal(half, x[: sizes[0] // 2])
        assert torch.equal(scaled, x * sizes[1])
    with pytest.raises(ValueError, match=r"x\.size\(0\) % 2 == 0 does not hold: x\.size\(0\) is 5"):
        graph.run([torch.randn(5, 8, 3)])
    with pytest.raises(ValueError, match="other sizes"):
        graph.run([torch.randn(4, 8, 4)])


# ---- hashes


def changed(old: str, new: str) -> str:
    assert old in LINEAR
    return Graph.parse(LINEAR.replace(old, new)).hash


def test_names_lines_and_numbers_do_not_change_the_hash():
    plain = Graph.parse(LINEAR).hash
    assert len(plain) == 40 and int(plain, 16)
    assert changed(" x:", " y:") == plain
    assert changed("  # model.py:7 forward", "") == plain
    assert changed("%4", "%40") == plain


def test_everything_else_changes_the_hash():
    plain = Graph.parse(LINEAR).hash
    hashes = {
        plain,
        changed("relu_", "sigmoid_"),
        changed("f32[2, 4]", "f64[2, 4]"),
        changed("f32[2, 4]", "f32[2, 4]{1, 2}"),
        changed("buffer", "parameter"),
        changed("addmm(%2, %0, %3)", "addmm(%2, %0, %3, beta=2)"),
        changed("addmm(%2, %0, %3)", "addmm(%2, %0, %3, beta=2.0)"),
        changed(" in %1", ""),
        changed("relu_(%4)", "relu_(%4) [grad]"),
        changed("return %4", "return %4, %4"),
    }
    assert len(hashes) == 10
    constant = "constant %0: f32[2] = [1.0, 2.0]\n%1: f32[2] = aten.neg(%0)\nreturn %1"
    assert Graph.parse(constant).hash != Graph.parse(constant.replace("2.0", "3.0")).hash


def test_the_hash_is_the_same_in_another_process():
    code = f"import magneto; print(magneto.Graph.parse({LINEAR!r}).hash)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == Graph.parse(LINEAR).hash


# ---- torch.fx


def runs_alike(graph: Graph, module: torch.fx.GraphModule, *inputs: torch.Tensor) -> bool:
    with torch.no_grad():
        given = module(*inputs)
    wanted = graph.run(inputs)
    return len(given) == len(wanted) and all(
        torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
        for a, b in zip(given, wanted, strict=True)
    )


def test_fx_gives_the_same_results_from_the_same_state():
    graph, (weight, bias) = linear()
    module = graph.to_fx()
    x = torch.randn(2, 4)
    assert runs_alike(graph, module, x)
    assert module.weight is weight and module.bias is bias
    with torch.no_grad():
        weight.mul_(2)
    assert runs_alike(graph, module, x)


def test_fx_nodes_are_operators_with_shapes_and_lines():
    nodes = list(linear()[0].to_fx().graph.nodes)
    assert [node.op for node in nodes] == ["placeholder", "get_attr", "get_attr", *["call_function"] * 3, "output"]
    product = nodes[4]
    assert product.target is torch.ops.aten.addmm.default and len(product.args) == 3 and not product.kwargs
    assert product.meta["tensor_meta"].shape == (2, 3) and product.meta["tensor_meta"].dtype == torch.float32
    assert 'File "model.py", line 7, in forward' in product.meta["stack_trace"]
    assert nodes[5].target is torch.ops.aten.relu_.default and nodes[6].args[0] == (nodes[5],)


@pytest.mark.parametrize("through_a_run", [False, True])
def test_the_way_through_fx_and_back_keeps_the_hash(through_a_run):
    graph, states = linear()
    x = torch.randn(2, 4)
    again = Graph.from_fx(graph.to_fx(), [x] if through_a_run else None)
    assert again.hash == graph.hash and again.text == graph.text
    assert all(held is given for (_, held), given in zip(again.states, states, strict=True))
    assert torch.equal(again.run([x])[0], graph.run([x])[0])


def test_every_kind_of_argument_and_result_survives_the_way_through_fx():
    text = "\n".join(line for line in golden("words.txt").splitlines() if not line.startswith("%28"))  # a nan's bits
    states = [torch.randn(8, 8), torch.tensor(0)]
    graph = Graph.parse(text, states=states)
    again = Graph.from_fx(graph.to_fx())
    assert again.hash == graph.hash
    assert [op.line for op in again.ops] == [op.line for op in graph.ops]


def test_fx_of_compiled_functions_gives_the_same_results():
    module = Block().eval()
    x = torch.randn(2, 5, 16)
    text = compiled_graph(module, x)
    shapes = {}
    for tensor in module.parameters():
        shapes.setdefault(tuple(tensor.shape), []).append(tensor)
    states = [shapes[value.shape].pop(0) for value in Graph.parse(text).state_values]
    graph = Graph.parse(text, states=states)
    exported = graph.to_fx()
    assert runs_alike(graph, exported, x)
    assert Graph.from_fx(exported).hash == graph.hash
    assert Graph.from_fx(exported, [x]).hash == graph.hash


@pytest.mark.parametrize("how", [{"live": True}, {}, {"joint": True}])
def test_recorded_graphs_survive_the_ways_through_text_and_fx(how):
    module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).train("joint" in how)
    x = torch.randn(2, 5, 16)
    graph = magneto.record(module, x, **how)
    states = dict(graph.states)
    assert {"norm1.weight", "linear2.bias"} <= set(states) and states["norm1.weight"] is module.norm1.weight
    again = Graph.parse(graph.text, states=states)
    assert again.text == graph.text and again.hash == graph.hash
    exported = graph.to_fx()
    assert Graph.from_fx(exported).hash == graph.hash
    if "joint" not in how:
        assert runs_alike(graph, exported, x) and torch.equal(again.run([x])[0], graph.run([x])[0])


def test_a_graph_comes_from_a_module_that_another_tracer_made():
    from torch.fx.experimental.proxy_tensor import make_fx

    weight = torch.randn(4, 4)

    def work(x):
        y = x.t() @ weight
        y.add_(1)
        a, b = y.chunk(2)
        return torch.native_dropout(a, 0.5, False)[0], b.to(torch.float64)

    x = torch.randn(4, 3)
    module = make_fx(work)(x)
    graph = Graph.from_fx(module)
    assert [op.name for op in graph.ops][:2] == ["aten::t", "aten::mm"]
    for mine, theirs in zip(graph.run([x]), work(x), strict=True):
        assert torch.equal(mine, theirs)
    assert Graph.from_fx(module, [x]).run([x])[1].dtype == torch.float64


def test_a_training_step_that_another_tracer_made_runs_alike_everywhere():
    from torch.fx.experimental.proxy_tensor import make_fx

    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.Flatten(), nn.Dropout(), nn.Linear(64, 5)
    )

    def step(x):
        loss = net(x).logsumexp(-1).sum()
        return loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))

    x = torch.randn(2, 3, 6, 6)
    module = make_fx(step)(x)
    graph = Graph.from_fx(module)
    before = [buffer.clone() for buffer in net.buffers()]

    def run(work):
        with torch.no_grad():
            for buffer, old in zip(net.buffers(), before, strict=True):
                buffer.copy_(old)
            torch.manual_seed(0)
            return [tensor.clone() for tensor in (*work(x.clone()), *net.buffers())]

    wanted = run(module)
    for work in (lambda x: graph.run([x]), graph.to_fx()):
        assert all(torch.equal(a, b) for a, b in zip(run(work), wanted, strict=True))
    assert graph.hash == Graph.from_fx(graph.to_fx()).hash == Graph.from_fx(graph.to_fx(), [x]).hash
    assert len(graph.states) == len(list(net.parameters())) + len(list(net.buffers()))


def test_example_inputs_and_state_are_not_changed():
    graph = Graph.parse(
        "argument %0: f32[2]\nbuffer %1 b: f32[2]\n%0 = aten.add_.Tensor(%0, %1)\n%1 = aten.mul_.Scalar(%1, 2)\nreturn",
        states=[torch.ones(2)],
    )
    x = torch.ones(2)
    again = Graph.from_fx(graph.to_fx(), [x])
    assert x.tolist() == [1, 1] and again.states[0][1].tolist() == [1, 1]
    again.run([x])
    assert x.tolist() == [2, 2] and graph.states[0][1].tolist() == [2, 2]


def test_modules_that_are_not_graphs_of_operators_are_refused():
    traced = torch.fx.symbolic_trace(lambda x: torch.relu(x))
    with pytest.raises(magneto.UserError, match="relu is call_function relu"):
        Graph.from_fx(traced)
    with pytest.raises(TypeError, match=r"expects a torch\.fx\.GraphModule, got int"):
        Graph.from_fx(1)
    bare = linear()[0].to_fx()
    for node in bare.graph.nodes:
        node.meta.clear()
    with pytest.raises(magneto.UserError, match="pass example_inputs"):
        Graph.from_fx(bare)
    with pytest.raises(magneto.UserError, match="expects 1 example inputs, got 0"):
        Graph.from_fx(bare, [])
    assert len(Graph.from_fx(bare, [torch.zeros(2, 4)])) == 3


def test_symbolic_sizes_run_at_other_sizes_in_fx():
    graph = Graph.parse(golden("symbols.txt"))
    module = graph.to_fx()
    for sizes in ((4, 8, 3), (6, 5, 3)):
        x = torch.randn(sizes)
        flat, half, scaled = module(x)
        assert torch.equal(flat, x.view(-1, 3).t()) and torch.equal(half, x[: sizes[0] // 2])
        assert torch.equal(scaled, x * sizes[1])
    again = Graph.from_fx(module)
    assert again.hash == graph.hash and again.text == graph.text
    fixed = Graph.from_fx(module, [torch.randn(4, 8, 3)])
    assert fixed.symbols == [] and "[32, 3]" in fixed.text
    assert graph.symbols == [("s0", 0, 0, 2, 64), ("s1", 0, 1, 2, None)]
    assert "x.size(0) % 2 == 0" in graph.guards


# ---- drawings


def drawing(graph: Graph) -> xml.etree.ElementTree.Element:
    return xml.etree.ElementTree.fromstring(graph.to_svg())


def boxes(svg: xml.etree.ElementTree.Element) -> list[tuple[float, ...]]:
    space = "{http://www.w3.org/2000/svg}"
    found = [group.find(space + "rect") for group in svg.iter(space + "g")]
    return [tuple(float(box.get(key)) for key in ("x", "y", "width", "height")) for box in found if box is not None]


def chain(count: int) -> Graph:
    """Each operator also takes a result from far above, and the input."""
    lines = ["argument %0 mask: f32[2]", "%1: f32[2] = aten.relu(%0)"]
    for i in range(2, count + 1):
        lines.append(f"%{i}: f32[2] = aten.addcmul(%{i - 1}, %{max(1, i - 7)}, %{0 if i % 5 == 0 else max(1, i - 40)})")
    return Graph.parse("\n".join([*lines, f"return %{count}"]))


def test_a_drawing_names_operators_state_and_lines(tmp_path):
    graph, _ = linear()
    text = graph.to_svg(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text() == text
    for word in ("addmm", "bias, x, %3", "f32[2, 3]", "model.py:7 forward", "return"):
        assert word in text
    assert len(boxes(drawing(graph))) == 5
    dot = graph.to_dot()
    assert dot.startswith("digraph") and dot.count("->") == 4 and "weight" in dot


def test_odd_names_do_not_break_a_drawing():
    text = "argument %0 '<a & \"b\" \\\\ c>': f32[2]\n%1: f32[2] = aten.relu(%0)  # <x>.py:1 <lambda>\nreturn %1"
    graph = Graph.parse(text)
    assert len(boxes(drawing(graph))) == 3
    assert '\\"b\\"' in graph.to_dot()


@pytest.mark.parametrize("count", [30, 2000])
def test_the_boxes_of_a_drawing_stand_apart_and_inside(count):
    svg = drawing(chain(count))
    width, height = float(svg.get("width")), float(svg.get("height"))
    found = boxes(svg)
    assert len(found) == count + 2
    rows: dict[float, list[tuple[float, float]]] = {}
    for x, y, w, h in found:
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        rows.setdefault(y + h / 2, []).append((x, x + w))
    for row in rows.values():
        row.sort()
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(row))
    assert width < 3000 and height < 80 * (count + 3)
