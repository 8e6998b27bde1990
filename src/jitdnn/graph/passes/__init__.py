"""Passes: graphs from graphs that compute the same and cost less. Each is a function of a graph."""

from __future__ import annotations

from jitdnn.graph.ir import Graph
from jitdnn.graph.passes.dead import without_dead

PASSES = (without_dead,)


def optimized(graph: Graph) -> Graph:
    """A graph after all passes."""
    for transform in PASSES:
        graph = transform(graph)
    return graph
