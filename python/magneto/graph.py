"""Graphs of ATen operators, magneto.Graph, and their way to torch.fx and back."""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import TensorMetadata

from magneto._C import Graph, GraphOp, GraphSize, GraphValue, UserError

__all__ = ["Graph", "GraphOp", "GraphSize", "GraphValue", "expect", "from_fx", "to_fx"]

FLAGS = {
    "grad": "grad_mode",
    "below_inplace": "below_inplace",
    "autocast": "autocast",
    "inference": "inference",
    "derives": "derives",
}


def expect(number: Any, recorded: Any) -> None:
    """Raises UserError if a number is not the one that everything after it relies on."""
    if type(number) is not type(recorded) or repr(number) != repr(recorded):
        raise UserError(f"the graph relies on the number {recorded!r}, but got {number!r}; record it again")


# ---- to fx

# How expressions of sizes, which are written as in Python, become nodes.
BINARY: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.And: operator.and_,
    ast.Or: operator.or_,
}
UNARY: dict[type[ast.AST], Callable[..., Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
CALLS: dict[str, Callable[..., Any]] = {
    "min": torch.sym_min,
    "max": torch.sym_max,
    "float": torch.sym_float,
    "floor": math.floor,
    "ceil": math.ceil,
}
CONSTANTS = {"inf": float("inf"), "nan": float("nan")}


def to_fx(graph: Graph) -> fx.GraphModule:
    return _Exporter(graph).run()


class _Exporter:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.root = nn.Module()
        self.fx = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}  # by value: the last node that made or returned it
        self.sizes: dict[str, Any] = {}  # by expression

    def run(self) -> fx.GraphModule:
        for value in self.graph.inputs:
            name = re.sub(r"\W", "_", value.name) or f"input_{value.id}"
            self.define(self.fx.placeholder(name if name.isidentifier() else f"input_{name}"), value)
        for value, (name, tensor) in zip(self.graph.state_values, self.graph.states, strict=True):
            if tensor is None:
                raise UserError(f"{name or value} has no tensor: hand the states to Graph.parse(text, states=...)")
            self.attribute(value, name or f"state_{value.id}", tensor)
        for value, tensor in zip(self.graph.constant_values, self.graph.constants, strict=True):
            self.attribute(value, f"constant_{value.id}", tensor)
        for name, source, dimension, _, _ in self.graph.symbols:
            node = self.nodes[self.graph.inputs[source].id]
            is_number = dimension < 0
            self.sizes[name] = node if is_number else self.fx.call_function(SIZE, (node, dimension))
        for op in self.graph.ops:
            self.call(op)
        self.fx.output(tuple(self.argument(value) for value in self.graph.outputs))
        module = fx.GraphModule(self.root, self.fx, "MagnetoGraph")
        lines = self.graph.text.split("\n") if self.graph.symbols else []
        module.meta["magneto"] = [line for line in lines if line.startswith(("symbol ", "guard "))]
        return module

    def define(self, node: fx.Node, value: GraphValue) -> None:
        self.nodes[value.id] = node
        self.describe(node, value)

    def describe(self, node: fx.Node, values: Any) -> None:
        node.meta["magneto"] = values
        node.meta["tensor_meta"] = fx.node.map_aggregate(values, _tensor_meta)

    def attribute(self, value: GraphValue, name: str, tensor: torch.Tensor) -> None:
        """Keeps the tensor itself in the module, under a name that is as close to its own as Python allows."""
        *parents, last = [re.sub(r"\W", "_", part) or "_" for part in name.split(".")]
        module = self.root
        for parent in parents:
            child = module._modules.get(parent)
            if child is None and hasattr(module, parent):
                parent += "_"
                child = module._modules.get(parent)
            if child is None:
                child = nn.Module()
                module.add_module(parent, child)
            module = child
        while hasattr(module, last):
            last += "_"
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(last, tensor)
        else:
            module.register_buffer(last, tensor)
        path = next(path for path, held in self.root.named_modules() if held is module)
        node = self.fx.create_node("get_attr", f"{path}.{last}" if path else last)
        self.define(node, value)

    def call(self, op: GraphOp) -> None:
        namespace, name = op.name.split("::")
        target = getattr(getattr(getattr(torch.ops, namespace), name), op.overload or "default")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument, value in zip(target._schema.arguments, op.arguments, strict=True):
            given = self.argument(value)
            if argument.kwarg_only:
                if not _is_default(argument, given):
                    kwargs[argument.name] = given
            else:
                args.append(given)
        positional = target._schema.arguments[: len(args)]
        while args and _is_default(positional[len(args) - 1], args[-1]):
            args.pop()
        node = self.fx.call_function(target, tuple(args), kwargs)
        node.meta["magneto_flags"] = " ".join(flag for flag, member in FLAGS.items() if getattr(op, member)) or "plain"
        if op.line:
            node.meta["stack_trace"] = '  File "{}", line {}, in {}\n'.format(*op.line)
        if op.expected is not None:
            self.fx.call_function(expect, (node, op.expected))
        self.take_results(node, op.results)

    def take_results(self, node: fx.Node, results: list[Any]) -> None:
        if len(results) == 1 and isinstance(results[0], GraphValue):
            return self.define(node, results[0])
        if len(results) == 1 and results[0] is None:
            return self.describe(node, None)
        if len(results) == 1 and isinstance(results[0], list):
            results = results[0]
        self.describe(node, results)
        for index, result in enumerate(results):
            if result is None:
                continue
            item = self.fx.call_function(operator.getitem, (node, index))
            if isinstance(result, list):
                self.take_results(item, [result])
            else:
                self.define(item, result)

    def argument(self, value: Any) -> Any:
        if isinstance(value, GraphValue) and value.role != "size":
            return self.nodes[value.id]
        if isinstance(value, (GraphValue, GraphSize)):
            text = value.type if isinstance(value, GraphValue) else str(value)
            return self.size(ast.parse(text, mode="eval").body)
        if isinstance(value, list):
            return [self.argument(item) for item in value]
        return value

    def size(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Constant):
            return tree.value
        text = ast.unparse(tree)
        if text not in self.sizes:
            self.sizes[text] = CONSTANTS[text] if text in CONSTANTS else self.size_node(tree)
        return self.sizes[text]

    def size_node(self, tree: ast.expr) -> Any:
        match tree:
            case ast.BinOp(left, op, right):
                return self.fx.call_function(BINARY[type(op)], (self.size(left), self.size(right)))
            case ast.UnaryOp(op, operand):
                return self.fx.call_function(UNARY[type(op)], (self.size(operand),))
            case ast.BoolOp(op, [first, *rest]):
                node = self.size(first)
                for item in rest:
                    node = self.fx.call_function(BINARY[type(op)], (node, self.size(item)))
                return node
            case ast.Compare(left, [op], [right]):
                return self.fx.call_function(BINARY[type(op)], (self.size(left), self.size(right)))
            case ast.Call(ast.Name("bits"), [number]):  # of an input that is a float
                return self.size(number)
            case ast.Call(ast.Name(name), args) if name in CALLS:
                return self.fx.call_function(CALLS[name], tuple(self.size(item) for item in args))
        raise UserError(f"torch.fx has no operator for the size {ast.unparse(tree)}")


def _is_default(argument: Any, given: Any) -> bool:
    if not argument.has_default_value():
        return False
    default = argument.default_value
    return type(default) is type(given) and not isinstance(given, fx.Node) and repr(default) == repr(given)


def _tensor_meta(value: Any) -> Any:
    if not isinstance(value, GraphValue):
        return value
    if value.role == "size":
        return None
    return TensorMetadata(torch.Size(value.shape), value.dtype, False, value.stride, None, False, {})


# ---- from fx

SIGNS = {operator.neg: "-", operator.not_: "not "}
SYMBOLS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.truediv: "/",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "and",
    operator.or_: "or",
}
NAMES = {call: name for name, call in CALLS.items()}
NUMBERS = {bool: "bool", int: "i64", float: "f64", complex: "c128"}  # what they become as tensors
SIZE = torch.ops.aten.sym_size.int
UNMARKED_VIEWS = {torch.ops.aten._unsafe_view.default}  # they share memory, but their schemas do not say so


def from_fx(module: fx.GraphModule, example_inputs: Sequence[torch.Tensor] | None = None) -> Graph:
    if not isinstance(module, fx.GraphModule):
        raise TypeError(f"from_fx expects a torch.fx.GraphModule, got {type(module).__name__}")
    _check_targets(module)
    if example_inputs is not None:
        recorder = _run_on_copies(module, example_inputs)
        return _Importer(module, recorder.noted, symbolic=False).run()
    return _Importer(module, _read_meta(module), symbolic=True).run()


def _is_operator(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and node.target is not SIZE


def _check_targets(module: fx.GraphModule) -> None:
    known = {SIZE, operator.getitem, expect, *SIGNS, *SYMBOLS, *NAMES}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or _is_operator(node):
            continue
        if node.op != "call_function" or node.target not in known:
            what = f"{node.op} {getattr(node.target, '__name__', node.target)}"
            raise UserError(f"from_fx expects ATen operators such as torch.ops.aten.add.Tensor, but {node} is {what}")


class Described(NamedTuple):
    """A tensor as the text of a graph has it."""

    identity: object  # equal for the same tensor
    memory: object  # equal for tensors that share memory
    type: str


def _described(item: Any) -> Any:
    if isinstance(item, GraphValue) and item.role != "size":
        return Described(item.id, item.memory, item.type)
    if not isinstance(item, torch.Tensor):
        return item
    if not all(type(number) is int for number in (*item.shape, *item.stride())):
        raise UserError("from_fx cannot read symbolic sizes that are not its own: pass example_inputs")
    sizes, strides = (", ".join(map(str, numbers)) for numbers in (item.shape, item.stride()))
    kind = f"{_words(item.dtype)}[{sizes}]{{{strides}}} {item.device}"
    return Described(id(item), item.untyped_storage()._cdata, kind)


def _words(thing: object) -> str:
    return str(thing).removeprefix("torch.")


class _Recorder(fx.Interpreter):
    """Runs a module and notes what each node makes, at once: later operators may change it."""

    def __init__(self, module: fx.GraphModule, constants: dict[str, torch.Tensor]):
        super().__init__(module, garbage_collect_values=False)
        self.constants = constants
        self.noted: dict[fx.Node, Any] = {}

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.constants[target] if target in self.constants else super().get_attr(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.noted[n] = fx.node.map_aggregate(result, _described)
        return result


def _run_on_copies(module: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> _Recorder:
    nodes = module.graph.find_nodes(op="placeholder")
    if len(nodes) != len(example_inputs):
        raise UserError(f"from_fx expects {len(nodes)} example inputs, got {len(example_inputs)}")
    for given in example_inputs:
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"from_fx expects tensors as example inputs, got {type(given).__name__}")
    # A copy of a number that became a tensor would no longer count as one.
    constants = {str(node.target): _fetch(module, node) for node in module.graph.nodes if _role(node) == "constant"}
    clone = copy.deepcopy(module)
    recorder = _Recorder(clone, constants)
    with torch._C._AutoDispatchBelowAutograd(), torch.random.fork_rng():
        recorder.run(*copy.deepcopy([given.detach() for given in example_inputs]))
    pairs = zip(module.graph.nodes, clone.graph.nodes, strict=True)
    recorder.noted = {node: recorder.noted[copied] for node, copied in pairs}
    return recorder


def _read_meta(module: fx.GraphModule) -> dict[fx.Node, Any]:
    makers = [node for node in module.graph.nodes if node.op in ("placeholder", "get_attr") or _is_operator(node)]
    if all("magneto" in node.meta for node in makers):
        return {node: fx.node.map_aggregate(node.meta.get("magneto"), _described) for node in module.graph.nodes}
    if all("val" in node.meta for node in makers if node.op != "get_attr"):
        return _read_vals(module)
    raise UserError("the nodes do not say what tensors they make: pass example_inputs")


def _read_vals(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """`val` says what tensors are, but not which share memory: that is read off the schemas of the operators."""
    noted: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            noted[node] = _described(_fetch(module, node))
        elif node.target is operator.getitem:
            source, index = node.args
            noted[node] = noted[source][index]
        else:
            noted[node] = fx.node.map_aggregate(node.meta.get("val"), _described)
            if _is_operator(node):
                noted[node] = _share_memory(node, noted)
    return noted


def _share_memory(node: fx.Node, noted: dict[fx.Node, Any]) -> Any:
    target: Any = node.target
    made, schema = noted[node], target._schema
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    tensors = [noted[item] for item in given.values() if isinstance(item, fx.Node)]
    if (target.is_view or target in UNMARKED_VIEWS) and tensors:
        return _move(made, tensors[0].memory)
    written = {
        min(argument.alias_info.before_set): given[argument.name]
        for argument in schema.arguments
        if argument.alias_info and argument.alias_info.is_write and isinstance(given.get(argument.name), fx.Node)
    }
    listed = [made] if len(schema.returns) == 1 else list(made or [])
    for position, result in enumerate(schema.returns):
        names = result.alias_info.before_set if result.alias_info else ()
        for name in names:
            if name in written:
                listed[position] = noted[written[name]]
    return listed[0] if len(schema.returns) == 1 else listed


def _move(made: Any, memory: object) -> Any:
    if isinstance(made, Described):
        return made._replace(memory=memory)
    return [_move(item, memory) for item in made] if isinstance(made, (tuple, list)) else made


def _role(node: fx.Node) -> str | None:
    value = node.meta.get("magneto")
    return value.role if isinstance(value, GraphValue) else None


def _fetch(module: Any, node: fx.Node) -> torch.Tensor:
    for part in str(node.target).split("."):
        module = getattr(module, part)
    if not isinstance(module, torch.Tensor):
        raise UserError(f"from_fx expects attributes that are tensors, but {node.target} is a {type(module).__name__}")
    return module


class _Importer:
    """Writes the text of the graph, so that what operators and arguments mean is decided in one place: the parser."""

    def __init__(self, module: fx.GraphModule, noted: dict[fx.Node, Any], symbolic: bool):
        self.module = module
        self.noted = noted  # what each node makes: Described, numbers, or tuples and lists of them
        self.header = list(module.meta.get("magneto", ())) if symbolic else []
        self.lines: list[str] = []
        self.states: list[torch.Tensor] = []
        self.constants: list[torch.Tensor] = []
        self.inputs: list[fx.Node] = []
        self.numbers: dict[object, int] = {}  # of values, by Described.identity
        self.memories: dict[object, int] = {}  # by Described.memory: the first value that lives there
        self.sizes: dict[fx.Node, str] = {}  # expressions
        self.flags = "grad" if torch.is_grad_enabled() else "plain"  # of operators that do not say

    def run(self) -> Graph:
        outputs: list[str] = []
        takers: dict[str, Callable[[fx.Node], None]] = {
            "placeholder": self.placeholder,
            "get_attr": self.attribute,
            "call_function": self.call,
            "output": lambda node: outputs.extend(self.output(node.args[0])),
        }
        for op, take in takers.items():
            for node in self.module.graph.nodes:
                if node.op == op:
                    take(node)
        symbols, guards = ([line for line in self.header if line.startswith(word)] for word in ("symbol", "guard"))
        lines = [*symbols, *self.lines, *guards, "return " + ", ".join(outputs)]
        return Graph.parse("\n".join(lines), states=self.states, constants=self.constants)

    # ---- values

    def described(self, node: fx.Node) -> Described:
        described = self.noted[node]
        if not isinstance(described, Described):
            raise UserError(f"from_fx expects {node} to be a tensor, but it is {described}")
        return described

    def definition(self, described: Described, name: str = "") -> str:
        number = len(self.numbers)
        self.numbers[described.identity] = number
        first = self.memories.setdefault(described.memory, number)
        named = " " + _quoted(name) if name else ""
        return f"%{number}{named}: {described.type}" + ("" if first == number else f" in %{first}")

    def name(self, node: fx.Node) -> str:
        value = node.meta.get("magneto")
        return value.name if isinstance(value, GraphValue) else str(node.target)

    def placeholder(self, node: fx.Node) -> None:
        if _role(node) == "size" and self.header:
            number = Described(object(), object(), node.meta["magneto"].type)
            self.sizes[node] = number.type
            self.inputs.append(node)
            self.lines.append("size " + self.definition(number, self.name(node)))
            return
        described = self.described(node)
        if described.identity in self.numbers:
            raise UserError(f"from_fx expects each input to be another tensor, but {node} is given twice")
        self.inputs.append(node)
        self.lines.append("argument " + self.definition(described, self.name(node)))

    def attribute(self, node: fx.Node) -> None:
        tensor = _fetch(self.module, node)
        described = self.described(node)
        if described.identity in self.numbers:
            return
        role = _role(node) or ("parameter" if isinstance(tensor, nn.Parameter) else "buffer")
        line = f"{role} {self.definition(described, self.name(node))}"
        if role == "constant":
            self.constants.append(tensor)
            line += " number" if node.meta["magneto"].is_number else ""
        else:
            self.states.append(tensor)
        self.lines.append(line)

    def output(self, outputs: Any) -> list[str]:
        listed = [outputs] if isinstance(outputs, fx.Node) else outputs
        if not isinstance(listed, (tuple, list)) or not all(isinstance(item, fx.Node) for item in listed):
            raise UserError(f"from_fx expects a module that returns tensors, not {outputs}")
        return [self.text(node) for node in listed]

    def tensor(self, described: Described) -> str:
        return f"%{self.numbers[described.identity]}"

    # ---- operators

    def call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            self.noted[node] = self.noted[source][index]
        elif node.target is expect:
            pass  # written with the operator
        elif _is_operator(node):
            self.operation(node)
        else:
            self.sizes[node] = self.size(node)

    def operation(self, node: fx.Node) -> None:
        target: Any = node.target
        declared = {argument.name: argument.type for argument in target._schema.arguments}
        words = [self.argument(kind, item) for kind, item in zip(declared.values(), node.args, strict=False)]
        words += [f"{key}={self.argument(declared[key], item)}" for key, item in node.kwargs.items()]
        line = f"{target.name().replace('::', '.')}({', '.join(words)})"
        if results := self.results(target._schema.returns, self.noted[node]):
            line = f"{results} = {line}"
        for user in node.users:
            if user.target is expect:
                line += f" == {self.text(user.args[1])}"
        line += f" [{node.meta.get('magneto_flags', self.flags)}]"
        places = re.findall(r'File "(.*)", line (\d+), in (.*)', node.meta.get("stack_trace") or "")
        if places:
            file, number, function = map(_escaped, places[-1])
            line += f"  # {file}:{number} " + function.replace(" ", r"\x20")
        self.lines.append(line)

    def results(self, returns: Sequence[Any], made: Any) -> str:
        texts = [self.result(item) for item in ([made] if len(returns) == 1 else made or [])]
        return "" if all(text == "_" for text in texts) else ", ".join(texts)

    def result(self, made: Any) -> str:
        if isinstance(made, Described):
            return self.tensor(made) if made.identity in self.numbers else self.definition(made)
        if isinstance(made, (tuple, list)) and made:
            return "[" + ", ".join(map(self.result, made)) + "]"
        return "_"

    def argument(self, declared: Any, item: Any) -> str:
        """Where an operator wants a tensor, torch makes one of a Python number."""
        if isinstance(declared, torch.OptionalType):
            declared = declared.getElementType()
        if not isinstance(declared, torch.TensorType) or type(item) not in NUMBERS:
            return self.text(item)
        constant = Described(object(), object(), f"{NUMBERS[type(item)]}[]")
        self.lines.append(f"constant {self.definition(constant)} number = {self.text(item)}")
        return self.tensor(constant)

    def text(self, item: Any) -> str:
        if isinstance(item, fx.Node):
            if item in self.sizes:
                return self.sizes[item]
            return self.tensor(self.described(item))
        if isinstance(item, (tuple, list)):
            return "[" + ", ".join(map(self.text, item)) + "]"
        if isinstance(item, str):
            return _quoted(item)
        if isinstance(item, complex):
            real, imaginary = repr(item.real), repr(item.imag)
            return f"({real}{'' if imaginary.startswith('-') else '+'}{imaginary}j)"
        return _words(item)

    def size(self, node: fx.Node) -> str:
        if not self.header:
            if not isinstance(self.noted[node], (bool, int, float)):
                raise UserError(f"from_fx cannot read the symbolic size {node}: pass example_inputs")
            return repr(self.noted[node])
        if node.target is SIZE:
            source, dimension = node.args
            place = f" from input {self.inputs.index(source)} dimension {dimension}"
            return next(line.split()[1] for line in self.header if re.search(place + r"\b", line))
        words = [self.text(item) for item in node.args]
        if node.target in NAMES:
            return f"{NAMES[node.target]}({', '.join(words)})"
        if node.target in SIGNS:
            return f"({SIGNS[node.target]}{words[0]})"
        return f"({words[0]} {SYMBOLS[node.target]} {words[1]})"


def _escaped(text: str) -> str:
    escape = lambda match: r"\n" if match.group() == "\n" else rf"\x{ord(match.group()):02x}"  # noqa: E731
    return re.sub(r"[\x00-\x1f\x7f]", escape, text.replace("\\", r"\\"))


def _quoted(text: str) -> str:
    return "'" + _escaped(text).replace("'", r"\'") + "'"
