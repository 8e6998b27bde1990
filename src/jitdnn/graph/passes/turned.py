"""Formulas behind the transpose of a product are computed before it, where the product can take them as its epilogue.

A layer of rows between convolutions is a transpose, products, a transpose, and then a scale and a residual in the order
of the convolutions: `(y^T) * scale + x` is `(y * scale^T + x^T)^T`, whose transposes are views.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.graph.ir import Graph, Node, Uses, Value, ordered
from jitdnn.graph.passes.dead import without_dead
from jitdnn.graph.passes.views import joined_views


def with_turned_formulas(graph: Graph) -> Graph:
    """The graph with such formulas between the product and the transpose."""
    uses = graph.uses()
    maker = dict(uses.maker)
    nodes: list[Node] = []
    is_changed = False
    for node in graph.nodes:
        order = _order(node, maker, uses)
        made = None if order is None else _turned(node, order)
        for one in made or (node,):
            maker.update(dict.fromkeys(one.outputs, one))
            nodes.append(one)
        is_changed = is_changed or made is not None
    if not is_changed:
        return graph
    return without_dead(joined_views(Graph(graph.inputs, graph.outputs, ordered(nodes))))


def _order(node: Node, maker: dict[Value, Node], uses: Uses) -> tuple[int, ...] | None:
    """The order of the axes in which a formula alone reads a product, None if it does not."""
    if node.op != "pointwise":
        return None
    for value in node.inputs:
        view = maker.get(value)
        if view is None or view.op != "view" or view.attributes["kind"] != "transpose":
            continue
        product = maker.get(view.inputs[0])
        if product is None or product.op != "matmul" or value.shape != node.output.shape:
            continue
        if uses.only_reader(value) is node and uses.only_reader(view.inputs[0]) is view:
            return tuple(view.attributes["argument"])
    return None


def _turned(node: Node, order: Sequence[int]) -> list[Node] | None:
    """The formula over operands in the order of the product, with the transposes before and behind it."""
    rank = len(order)
    inverse = tuple(int(axis) for axis in np.argsort(order))
    before: list[Node] = []
    inputs: list[Value] = []
    for value in node.inputs:
        if value.array is not None:
            wide = value.array.reshape((1,) * (rank - value.array.ndim) + value.array.shape)
            turned = wide.transpose(inverse)
            inputs.append(Value(turned.shape, value.dtype, turned))
            continue
        if len(value.shape) != rank:
            return None
        made = Value(tuple(value.shape[axis] for axis in inverse), value.dtype)
        before.append(Node("view", (value,), (made,), {"kind": "transpose", "argument": inverse}))
        inputs.append(made)
    shape = tuple(node.output.shape[axis] for axis in inverse)
    formula = node.replaced(inputs=tuple(inputs), outputs=(Value(shape, node.output.dtype),))
    behind = Node("view", formula.outputs, node.outputs, {"kind": "transpose", "argument": tuple(order)})
    return [*before, formula, behind]
