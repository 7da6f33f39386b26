"""Graphs of ATen operators: magneto.Graph."""

from magneto._C import Graph, GraphOp, GraphValue

__all__ = ["Graph", "GraphOp", "GraphValue"]
