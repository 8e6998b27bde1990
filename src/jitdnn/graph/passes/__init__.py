"""Passes: graphs from graphs that compute the same and cost less. Each is a function of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitdnn.graph.ir import Graph
from jitdnn.graph.passes.affine import folded_affine
from jitdnn.graph.passes.dead import without_dead
from jitdnn.graph.passes.epilogues import with_epilogues
from jitdnn.graph.passes.integers import with_integers, with_reciprocals
from jitdnn.graph.passes.memo import Memo
from jitdnn.graph.passes.narrow import narrowed
from jitdnn.graph.passes.normalizations import with_normalizations
from jitdnn.graph.passes.pointwise import fused_pointwise
from jitdnn.graph.passes.recurrent import single_steps
from jitdnn.graph.passes.scalars import with_numbers
from jitdnn.graph.passes.turned import with_turned_formulas
from jitdnn.graph.passes.views import joined_views, with_padding


def optimized(graph: Graph, memo: Memo, has_dot: bool = False) -> Graph:
    """A graph after all passes. `memo` keeps what they make of constants; `has_dot`: bytes are multiplied faster than
    reals, by instructions for their dot products.
    """
    graph = joined_views(single_steps(without_dead(graph), memo))
    graph = with_normalizations(graph, memo)
    graph = with_numbers(with_padding(folded_affine(graph, memo)))
    if has_dot:
        graph = with_integers(graph, memo)
    graph = with_epilogues(with_turned_formulas(with_epilogues(fused_pointwise(graph))))
    return without_dead(with_reciprocals(graph))


def narrowing(dtype: np.dtype[Any]) -> Callable[[Graph, Memo, bool], Graph]:
    """All passes, after which what was float32 is stored as `dtype` inside of the graph."""

    def passes(graph: Graph, memo: Memo, has_dot: bool = False) -> Graph:
        return narrowed(optimized(graph, memo, has_dot), dtype, memo)

    return passes


__all__ = ["Memo", "narrowing", "optimized"]
