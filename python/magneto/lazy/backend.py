"""Graphs of the lazy device as they are: their inputs, and runs of one that was seen before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import cast

from torch import Tensor

from magneto import _C
from magneto._C import Graph

__all__ = ["get_latest_computation_graph", "get_tensors_device_data_node", "init", "run_cached_graph"]

LIMIT = 64  # graphs that are remembered by their hash
_remembered: OrderedDict[bytes, Graph] = OrderedDict()


def init(device: str = "cpu") -> None:
    """As ``magneto.lazy.init``."""
    from magneto import lazy

    lazy.init(device)


def pending(tensors: Iterable[Tensor]) -> tuple[Graph, list[Tensor]]:
    """The graph that makes these tensors from what earlier steps have made, and these inputs."""
    return cast(tuple[Graph, list[Tensor]], _C.lazy_pending(list(tensors)))


def remember(tensors: Iterable[Tensor]) -> bytes:
    graph, _ = pending(tensors)
    key = bytes.fromhex(graph.hash)
    _remembered[key] = graph
    _remembered.move_to_end(key)
    if len(_remembered) > LIMIT:
        _remembered.popitem(last=False)
    return key


def get_tensors_device_data_node(tensors: Iterable[Tensor]) -> tuple[list[int], list[Tensor]]:
    """The inputs of the graph that makes these tensors: ids, and values on the device that steps run on."""
    _, inputs = pending(tensors)
    return list(range(len(inputs))), inputs


def run_cached_graph(graph_hash: bytes, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Runs the graph that ``magneto.lazy.get_graph_hash`` returned this hash for."""
    graph = _remembered.get(graph_hash)
    if graph is None:
        raise _C.UserError(
            f"no graph with the hash {graph_hash.hex()} is remembered: the last {LIMIT} are. "
            "Ask for magneto.lazy.get_graph_hash again"
        )
    _remembered.move_to_end(graph_hash)
    results = graph(*inputs)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def get_latest_computation_graph() -> str:
    """The last graph that was run, as text; empty if none was."""
    graph = _C.lazy_latest()
    return "" if graph is None else str(graph)
