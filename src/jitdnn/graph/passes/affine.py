"""Scales and shifts by channel, which normalizations with known statistics are, become part of constant filters."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from jitdnn.graph.ir import AnyArray, Graph, Node, Value, ordered
from jitdnn.graph.passes.memo import Memo
from jitdnn.rtcg.expression import trace

_shifted = trace(lambda acc, b: acc + b)


def folded_affine(graph: Graph, memo: Memo) -> Graph:
    """The graph without scales and shifts of convolutions by constant filters."""
    uses = graph.uses()
    maker = dict(uses.maker)
    gone: set[Node] = set()
    nodes = {node: node for node in graph.nodes}
    for node in graph.nodes:
        if node.op != "pointwise" or not node.attributes.get("is_affine"):
            continue
        x, scale, shift = node.inputs
        root = maker.get(x)
        if root is None or root.op != "conv" or uses.only_reader(x) is not node:
            continue
        w, *rest = root.inputs[1:]
        epilogue = root.attributes.get("epilogue")
        if w.array is None or scale.array is None or shift.array is None or len(rest) > 1:
            continue
        if rest and (rest[0].array is None or epilogue != _shifted):
            continue
        bias = rest[0].array if rest else None
        parts = (w.array, scale.array, shift.array, bias)
        weight, offset = memo.get("affine", parts, functools.partial(_folded, *parts))
        gone.add(root)
        nodes[node] = maker[node.output] = root.replaced(
            inputs=(root.inputs[0], _value(weight), _value(offset)),
            outputs=node.outputs,
            attributes={"epilogue": _shifted},
            origin=(*root.origin, *node.origin),
        )
    return Graph(graph.inputs, graph.outputs, ordered([nodes[n] for n in graph.nodes if n not in gone]))


def _folded(
    w: AnyArray, scale: AnyArray, shift: AnyArray, bias: AnyArray | None
) -> tuple[AnyArray, AnyArray]:
    factor, offset = scale.astype(np.float64).reshape(-1), shift.astype(np.float64)
    with np.errstate(all="ignore"):
        weight = w.astype(np.float64) * factor.reshape(-1, *(1,) * (w.ndim - 1))
        if bias is not None:
            offset = offset + bias.astype(np.float64).reshape(offset.shape) * factor.reshape(offset.shape)
    return weight.astype(w.dtype), offset.astype(shift.dtype)


def _value(array: Any) -> Value:
    return Value(array.shape, array.dtype, array)
