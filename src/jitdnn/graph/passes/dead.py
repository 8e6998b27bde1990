"""Nodes whose results nobody reads."""

from __future__ import annotations

from jitdnn.graph.ir import Graph


def without_dead(graph: Graph) -> Graph:
    """The graph without nodes that contribute nothing to its outputs."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return Graph(graph.inputs, graph.outputs, tuple(reversed(kept)))
