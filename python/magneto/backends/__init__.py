"""Backends: what runs a captured graph, by name, by entry point, or as a callable (gm, example_inputs) -> callable."""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeVar

import torch
from torch import fx

from magneto import _C
from magneto.errors import BackendError, UserError, UserTypeError
from magneto.graph import Graph, GraphValue

__all__ = ["Backend", "list_backends", "lookup_backend", "lowering", "register_backend"]

Backend = Callable[..., Callable[..., Any]]
B = TypeVar("B", bound=Backend)

ENTRY_POINTS = ("magneto_backends", "torch_dynamo_backends")  # the first one that has a name gives it its meaning

_lock = threading.RLock()
_backends: dict[str, Backend] = {}  # owned by _lock
_tags: dict[str, frozenset[str]] = {}  # likewise


def register_backend(
    compiler_fn: B | None = None, name: str | None = None, tags: Sequence[str] = ()
) -> B | Callable[[B], B]:
    """Gives a backend a name for ``magneto.compile(backend=name)``; without the first argument, gives a decorator.

    A backend is called as ``compiler_fn(gm, example_inputs)`` for each graph: `gm` is a torch.fx.GraphModule of ATen
    operators, `example_inputs` are zeros that look like the tensors that it will be called with. It returns what is
    called instead: a callable that takes these inputs and returns a tuple or list like that of `gm`.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise UserTypeError(f"register_backend: name expects a text, got {name!r} of type {type(name).__name__}")
    texts = frozenset(_texts("register_backend: tags", tags))

    def register(backend: B) -> B:
        if not callable(backend):
            raise UserTypeError(
                f"register_backend expects a callable (gm, example_inputs) -> callable, got {backend!r} of type "
                f"{type(backend).__name__}"
            )
        chosen = name or getattr(backend, "__name__", "")
        if not chosen:
            raise UserError(f"register_backend: {backend!r} has no __name__, so give it a name")
        with _lock:
            if chosen in _backends:
                raise UserError(f"there is a backend {chosen!r} already; choose another name")
            _backends[chosen] = backend
            _tags[chosen] = texts
        return backend

    return register if compiler_fn is None else register(compiler_fn)


def list_backends(exclude_tags: Iterable[str] | None = ("debug", "experimental")) -> list[str]:
    """The names that ``magneto.compile(backend=...)`` takes, without those that have one of the tags."""
    excluded = frozenset(_texts("list_backends: exclude_tags", () if exclude_tags is None else exclude_tags))
    with _lock:
        registered = {name for name in _backends if not _tags[name] & excluded}
    return sorted(registered | _entry_points().keys())


def lookup_backend(compiler_fn: str | Backend) -> Backend:
    """The backend of that name; a callable is its own."""
    if callable(compiler_fn):
        return compiler_fn
    if not isinstance(compiler_fn, str):
        raise UserTypeError(
            f"backend expects a name ({_names()}) or a callable (gm, example_inputs) -> callable, got "
            f"{compiler_fn!r} of type {type(compiler_fn).__name__}"
        )
    with _lock:
        if compiler_fn in _backends:
            return _backends[compiler_fn]
    if compiler_fn not in (found := _entry_points()):
        raise UserError(f"unknown backend {compiler_fn!r}; expected one of {_names()}, or a callable")
    loaded = found[compiler_fn].load()
    with _lock:
        if compiler_fn not in _backends:
            register_backend(loaded, name=compiler_fn)
        return _backends[compiler_fn]


def lowering(
    backend: str | Backend, mode: str | None, options: Mapping[str, Any] | None
) -> Callable[[Graph], Callable[..., Any] | None] | None:
    """What makes something runnable of each graph; None: the native tiers run it."""
    compiler = lookup_backend(backend)
    taken = _keywords(compiler) if mode or options else frozenset()  # a signature takes long to find out
    if options and "options" not in taken:
        raise UserError(f"the backend {backend!r} has no options, got options={dict(options)!r}; leave it out")
    if compiler is native:
        return None
    keywords = {name: given for name, given in (("mode", mode), ("options", options)) if given and name in taken}

    def lower(graph: Graph) -> Callable[..., Any] | None:
        if reason := _why_native(graph):
            _C.count("backend_skipped", reason)
            return None
        with torch.no_grad():
            return _compile(compiler, graph, keywords)

    return lower


def _compile(compiler: Backend, graph: Graph, keywords: Mapping[str, Any]) -> Callable[..., Any]:
    name = getattr(compiler, "__qualname__", type(compiler).__qualname__)
    try:
        made = compiler(graph.to_fx(), [_example(value) for value in graph.inputs], **keywords)
    except Exception as error:
        raise BackendError(
            f"the backend {name} failed on a graph of {len(graph)} operators with {type(error).__name__}: {error}"
        ) from error
    if not callable(made):
        raise BackendError(f"the backend {name} must return a callable, but returned {made!r}")
    return made


def _why_native(graph: Graph) -> str:
    # torch.fx can say neither that a number must be the recorded one nor under which autocast an operator runs.
    if any(op.expected is not None for op in graph.ops):
        return "the graph relies on a number that it asks from a tensor"
    if any(op.autocast for op in graph.ops):
        return "an operator of the graph depends on autocast"
    if any(op.derives for op in graph.ops):
        return "gradients are needed, and what a backend makes runs below autograd"
    return ""


def _example(value: GraphValue) -> torch.Tensor | int:
    if value.role == "size":
        return value.hint or 0
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride, strict=True))
    memory = torch.zeros(last + 1 if 0 not in value.shape else 0, dtype=value.dtype, device=value.device)
    return memory.as_strided(value.shape, value.stride)


def _keywords(backend: Backend) -> frozenset[str]:
    try:
        parameters = inspect.signature(backend).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset({"mode", "options"})
    return frozenset(parameter.name for parameter in parameters)


def _texts(name: str, given: Any) -> list[str]:
    try:
        items = None if isinstance(given, str) else list(given)
    except TypeError:
        items = None
    if items is None or not all(isinstance(item, str) for item in items):
        raise UserTypeError(f"{name} expects texts such as ('debug',), got {given!r}")
    return items


def _entry_points() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group in ENTRY_POINTS:
        for point in entry_points(group=group):
            found.setdefault(point.name, point)
    return found


def _names() -> str:
    return ", ".join(repr(name) for name in list_backends(exclude_tags=None))


# ---- the built-in ones


@register_backend
def native(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Magneto's own tiers. magneto.compile needs no torch.fx for it; others may hand it graphs of ATen operators."""
    graph = _graph_of(gm, example_inputs)
    return lambda *inputs: tuple(graph.run(inputs))


@register_backend
def eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs the captured graph as it is, operator by operator in Python: to look at, and to debug with."""
    return gm.forward


@register_backend
def aten_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Runs the lowered graph unoptimised: its functional form, or as it is where an operator has no functional one."""
    try:
        return _graph_of(gm, example_inputs).functional().to_fx().forward
    except UserError:
        return gm.forward


@register_backend
def inductor(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """PyTorch's own code generator, where it is installed; `mode` and `options` are those of its settings."""
    from magneto.backends.inductor import compile_with_inductor

    return compile_with_inductor(gm, example_inputs, mode, options)


def _graph_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Graph:
    described = all("magneto" in node.meta for node in gm.graph.nodes if node.op == "placeholder")
    return Graph.from_fx(gm, None if described else example_inputs)
