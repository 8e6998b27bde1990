"""Constants of one element become numbers in the formulas that read them."""

from __future__ import annotations

from jitdnn.graph.ir import Graph, Node
from jitdnn.graph.passes.formulas import composed, computing, merged, number_of


def with_numbers(graph: Graph) -> Graph:
    """The graph with numbers in the place of constants of one element, where the arithmetic stays the same."""
    return Graph(graph.inputs, graph.outputs, tuple(map(_node, graph.nodes)))


def _node(node: Node) -> Node:
    if node.op != "pointwise" or len(node.inputs) < 2:
        return node
    rank = max((len(v.shape) for v in node.inputs if number_of(v) is None), default=-1)
    parts = [number_of(v) if len(v.shape) <= rank else None for v in node.inputs]
    if not any(part is not None for part in parts) or all(part is not None for part in parts):
        return node
    expression, origins = composed(node.attributes["expression"], parts)
    if not expression.used():
        return node
    expression, inputs = merged(expression, [node.inputs[number] for number, _ in origins])
    if computing(expression, inputs, node.output) != computing(
        node.attributes["expression"], node.inputs, node.output
    ):
        return node
    return node.replaced(inputs=inputs, attributes={"expression": expression, "is_affine": False})
