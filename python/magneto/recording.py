"""magneto.record: the tensor work of one call as a graph."""

from __future__ import annotations

import collections
import functools
import inspect
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from magneto import _C
from magneto.errors import RecordError
from magneto.graph import Graph

__all__ = ["Calling", "record"]


def record(
    fn: Callable[..., Any], /, *args: Any, live: bool = False, joint: bool = False, dynamic: Any = None, **kwargs: Any
) -> Graph:
    """Records the operators that `fn(*args, **kwargs)` calls, as a graph of ATen operators.

    The program runs on trace tensors, which have everything but data: nothing is computed and nothing is changed.
    With `live=True` it really runs, effects and all, and its operators are noted. Parameters, buffers and other tensors
    that the program reaches come in by reference.

    joint: also record the backward. The graph then takes, after the arguments, the gradients of those outputs that
        require one, and gives, after the outputs, the gradients of the arguments and of the state tensors that do.
    dynamic: sizes that later calls may change. True: all of the tensors among the arguments; otherwise a dict from the
        names of these tensors ("x", "states[0]"), or a list in their order, to True, to dimensions, or to a dict from
        dimension to True, the name of a symbol, or (name, least, greatest). Sizes of one name are equal. A size of 0 or
        1 is never dynamic. The dict may also name integers among the arguments: {"n": True}, {"n": "batch"} or
        {"n": ("batch", least, greatest)}; others are part of the graph, as everything that is no tensor.

    What depends on the contents of tensors raises magneto.DataDependent, and whatever else a graph cannot express
    magneto.RecordError.
    """
    if not callable(fn):
        raise TypeError(f"expected a function or a module to record, got {type(fn).__name__}")
    leaves, structure = pytree.tree_flatten((args, kwargs))
    names = _leaf_names(fn, args, kwargs)
    if len(names) != len(leaves):
        names = [f"leaf{i}" for i in range(len(leaves))]
    sizes = _dynamic_sizes(dynamic, leaves, names)
    if live and any(sizes):
        raise ValueError("a live recording has the sizes of its arguments: dynamic= needs live=False")
    module = fn if isinstance(fn, torch.nn.Module) else None
    recording = _C.Recording(live, module, _StateNames(fn, (args, kwargs)))
    stand_ins: list[Any] = []  # by input
    inputs: dict[int, int] = {}  # from the identity of a tensor; one that comes twice is one input
    which: list[int | None] = []
    for leaf, name, dynamic_sizes in zip(leaves, names, sizes, strict=True):
        which.append(inputs.get(id(leaf)))
        if isinstance(leaf, torch.Tensor) and which[-1] is None:
            inputs[id(leaf)] = which[-1] = len(stand_ins)
            stand_ins.append(recording.input(leaf, name, dynamic_sizes))
        elif which[-1] is None and dynamic_sizes:
            which[-1] = len(stand_ins)
            (_, symbol, least, greatest), *_ = dynamic_sizes
            stand_ins.append(recording.size(leaf, name, symbol, least, greatest))
    calling = Calling(structure, which, leaves)
    given = [leaf if index is None else stand_ins[index] for leaf, index in zip(leaves, which, strict=True)]
    call_args, call_kwargs = pytree.tree_unflatten(given, structure)
    recording.start()
    try:
        # The engine's threads for GPUs are not recorded, so backwards run on this one.
        with torch.autograd.set_multithreading_enabled(False):
            outputs, calling.out_structure = pytree.tree_flatten(fn(*call_args, **call_kwargs))
            gradients = _backward(recording, stand_ins, outputs) if joint else []
    except Exception as error:
        _leave_printing(error)
        if not live and not isinstance(error, RecordError):
            recording.check()  # the program caught a refusal and went on with tensors that have no data
        raise
    finally:
        recording.stop()
    for output in (*outputs, *gradients):
        if isinstance(output, torch.Tensor):
            recording.output(output)
        elif isinstance(output, _SYMBOLIC):
            recording.output_size(output)
    calling.outputs = [_OUTPUT if isinstance(leaf, (torch.Tensor, *_SYMBOLIC)) else leaf for leaf in outputs]
    calling.joint, calling.gradients = joint, [gradient is not None for gradient in gradients]
    graph = recording.finish()
    graph.calling = calling
    return graph


def _leave_printing(error: Exception) -> None:
    """Torch's printing turns functorch off until its frames are gone, and the traceback would keep them."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == torch._tensor_str.__file__:
            frame.clear()


_OUTPUT = object()
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Calling:
    """How the arguments of a recorded function become the inputs of its graph, and its outputs the result."""

    def __init__(self, structure: pytree.TreeSpec, which: list[int | None], arguments: list[Any]) -> None:
        self.structure = structure
        self.which = which  # for each leaf of the arguments, the input that it is, or None for one that was baked in
        self.baked = [None if index is not None else leaf for index, leaf in zip(which, arguments, strict=True)]
        self.out_structure = structure
        self.outputs: list[Any] = []  # for each leaf of the result, _OUTPUT or what it always is
        self.joint = False
        self.gradients: list[bool] = []  # whether there is one, for each argument and state that requires it

    def __call__(self, run: Callable[[list[Any]], list[Any]], args: Any, kwargs: Any) -> Any:
        tangents = kwargs.pop("gradients", ()) if self.joint else ()
        results = iter(run([*self.inputs(args, kwargs), *tangents]))
        leaves = [next(results) if leaf is _OUTPUT else leaf for leaf in self.outputs]
        result = pytree.tree_unflatten(leaves, self.out_structure)
        return (result, [next(results) if defined else None for defined in self.gradients]) if self.joint else result

    def inputs(self, args: Any, kwargs: Any) -> list[Any]:
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        if structure != self.structure:
            raise TypeError(f"expected arguments of the structure {self.structure}, got {structure}")
        inputs: dict[int, Any] = {}
        for leaf, index, baked in zip(leaves, self.which, self.baked, strict=True):
            if index is None:
                if leaf is not baked and leaf != baked:
                    raise ValueError(f"the graph was recorded with {baked!r} where {leaf!r} is given now")
            elif inputs.setdefault(index, leaf) is not leaf:
                raise ValueError("the graph was recorded with one tensor for two arguments; now they differ")
        return [inputs[i] for i in range(len(inputs))]


def _backward(recording: _C.Recording, arguments: list[Any], outputs: list[Any]) -> list[torch.Tensor | None]:
    """The gradients of the arguments and of the state that require one."""
    arguments = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    ends = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
    targets = [t for t in (*arguments, *recording.states()) if t.requires_grad]
    if not ends or not targets:
        return []
    tangents = [recording.gradient(t, f"gradient{i}") for i, t in enumerate(ends)]
    try:
        found = recording.gradients(ends, tangents, targets)
        return list(torch.autograd.grad(ends, targets, tangents, allow_unused=True)) if found is None else found
    except RuntimeError as error:
        if "SymInt equality" not in str(error):
            raise
        reason = "torch cannot differentiate an operator by a symbolic number, as in x ** n: leave n out of dynamic"
        raise RecordError(reason) from error


_Size = tuple[int, str, Any, int | None]  # the least size of a dimension is an integer, that of a number may be None
_NUMBER = -1  # the dimension of an argument that is a number itself


def _dynamic_sizes(dynamic: Any, leaves: list[Any], names: list[str]) -> list[list[_Size]]:
    """For each leaf of the arguments, its dynamic sizes: dimension or _NUMBER, name, least, greatest."""
    numbers = {name: leaf for name, leaf in zip(names, leaves, strict=True) if type(leaf) is int}
    tensors = {name: leaf for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, torch.Tensor)}
    if dynamic is True:
        wishes = dict.fromkeys(tensors, True)
    elif isinstance(dynamic, (list, tuple)):
        if len(dynamic) != len(tensors):
            raise ValueError(f"dynamic has {len(dynamic)} items for {len(tensors)} tensors: {', '.join(tensors)}")
        wishes = dict(zip(tensors, dynamic, strict=True))
    else:
        wishes = dict(dynamic or {})
    if unknown := wishes.keys() - tensors.keys() - numbers.keys():
        known = f"the tensors are: {', '.join(tensors)}" + ("; the integers: " if numbers else "") + ", ".join(numbers)
        raise ValueError(f"dynamic names {', '.join(map(repr, unknown))}; {known}")
    return [
        _sizes_of(tensors[name], wishes.get(name), name) if name in tensors else _number_of(wishes.get(name), name)
        for name in names
    ]


def _symbol_of(wish: Any, name: str, least: int | None) -> tuple[str, int | None, int | None]:
    match wish:
        case True:
            return "", least, None
        case str():
            return wish, least, None
        case (str(symbol), int() | None as lower, int() | None as greatest):
            return symbol, lower, greatest
    raise ValueError(f"dynamic: {name} expects True, a name or (name, least, greatest), not {wish!r}")


def _number_of(wish: Any, name: str) -> list[_Size]:
    return [] if wish is None or wish is False else [(_NUMBER, *_symbol_of(wish, name, None))]


def _sizes_of(tensor: torch.Tensor, wish: Any, name: str) -> list[_Size]:
    if wish is None or wish is False:
        return []
    wished = range(tensor.dim()) if wish is True else (wish,) if isinstance(wish, int) else wish
    wanted = wished if isinstance(wished, dict) else dict.fromkeys(wished, True)
    sizes: list[_Size] = []
    for dimension, size in wanted.items():
        if not isinstance(dimension, int) or not -tensor.dim() <= dimension < tensor.dim():
            raise ValueError(f"dynamic: {name} has {tensor.dim()} dimensions, and no dimension {dimension!r}")
        symbol, least, greatest = _symbol_of(size, name, 2)
        sizes.append((dimension % tensor.dim(), symbol, 2 if least is None else least, greatest))
    return sizes


def _leaf_names(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The arguments' names as the program writes them: "x", "mask", "states[0]"."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        bound = inspect.signature(target).bind(*args, **kwargs)
    except (TypeError, ValueError):
        named: list[tuple[str, Any]] = [(f"args[{i}]", arg) for i, arg in enumerate(args)] + list(kwargs.items())
    else:
        named = []
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                named += [(f"{name}[{i}]", item) for i, item in enumerate(value)]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                named += list(value.items())
            else:
                named.append((name, value))
        order = {name: i for i, name in enumerate(kwargs)}  # leaves come in the order in which they were given
        count = len(args)
        named = named[:count] + sorted(named[count:], key=lambda item: order.get(item[0], 0))
    return [name + pytree.keystr(path) for name, value in named for path, _ in pytree.tree_leaves_with_path(value)]


class _StateNames:
    """Names the tensors that a program reaches without being given them; looks only as far as it is asked."""

    def __init__(self, *roots: Any) -> None:
        self.names: dict[int, str] = {}
        self.found = _reachable(roots)

    def __call__(self, tensor: torch.Tensor) -> str | None:
        names = self.names
        while id(tensor) not in names:
            tensors = next(self.found, None)
            if tensors is None:
                return None
            for path, other in tensors:
                names.setdefault(id(other), path)
        return names[id(tensor)]


_Named = list[tuple[str, torch.Tensor]]


def _reachable(roots: tuple[Any, ...]) -> Iterator[_Named]:
    """Tensors in modules, and then in closures, defaults, globals that functions name, containers and attributes."""
    seen: set[Any] = set()  # modules, and the identities of others
    todo = collections.deque(("", root) for root in roots)
    while todo:
        path, value = todo.popleft()
        if isinstance(value, torch.nn.Module):
            walked, modules = [], [(path, value)]
            while modules:  # in the order of named_modules()
                name, module = named = modules.pop()
                if module in seen:
                    continue
                seen.add(module)
                walked.append(named)
                prefix = f"{name}." if name else ""
                if tensors := _own_tensors(prefix, module):
                    yield tensors
                if inner := module._modules:
                    modules += [(prefix + child, each) for child, each in inner.items() if each is not None][::-1]
            todo += [(name, _Attributes(module)) for name, module in walked]
        elif isinstance(value, torch.Tensor):
            yield _with_gradient(path, value)
        elif id(value) not in seen and not isinstance(value, _WITHOUT_PARTS):
            seen.add(id(value))
            todo += [(f"{path}.{name}" if path and name else path or name, item) for name, item in _parts(value)]


def _own_tensors(prefix: str, module: torch.nn.Module) -> _Named:
    tensors: _Named = []
    for members in (module._parameters, module._buffers):
        for name, item in members.items() if members else ():
            if item is not None:
                tensors.append((prefix + name, item))
                if item.is_leaf and (gradient := item.grad) is not None:
                    tensors.append((f"{prefix}{name}.grad", gradient))
    return tensors


def _with_gradient(path: str, tensor: torch.Tensor) -> _Named:
    gradient = tensor.grad if tensor.is_leaf else None
    return [(path, tensor)] if gradient is None else [(path, tensor), (f"{path}.grad", gradient)]


_WITHOUT_PARTS = (str, bytes, int, float, complex, type, types.ModuleType)


class _Attributes:
    """A module whose parameters, buffers and submodules have been seen."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _Attributes):
        seen = {"_parameters", "_buffers", "_modules"}
        yield from ((name, item) for name, item in vars(value.module).items() if name not in seen)
        yield "forward", type(value.module).forward
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not filled yet
                continue
        for code in _codes(value.__code__):
            yield from ((name, value.__globals__[name]) for name in code.co_names if name in value.__globals__)
        yield from _numbered(value.__defaults__ or ())
        yield from (value.__kwdefaults__ or {}).items()
        yield from vars(value).items()
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield value.__func__.__name__, value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from _numbered(value.args)
        yield from value.keywords.items()
    elif isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from _numbered(value)
    else:
        yield from getattr(value, "__dict__", {}).items()
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if isinstance(base.__dict__.get(name), types.MemberDescriptorType) and hasattr(value, name):
                    yield name, getattr(value, name)


def _numbered(items: Any) -> Iterator[tuple[str, Any]]:
    return ((str(i), item) for i, item in enumerate(items))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and that of the functions written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
