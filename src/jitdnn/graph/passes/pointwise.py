"""Runs of formulas over equal elements become one formula: what lies in between is never in memory."""

from __future__ import annotations

from jitdnn.graph.ir import Graph, Node, Uses, ordered
from jitdnn.graph.passes.dead import without_dead
from jitdnn.graph.passes.formulas import MOST_INPUTS, MOST_STEPS, composed, computing, merged

_CHEAP = 4  # operations that are done twice rather than kept


def fused_pointwise(graph: Graph) -> Graph:
    """The graph with each formula put into the one that reads it, where that is the only one or it is cheap."""
    uses = graph.uses()
    nodes: dict[Node, Node] = {node: node for node in graph.nodes}
    maker = dict(uses.maker)
    for node in graph.nodes:
        if node.op != "pointwise":
            continue
        found = node
        for value in dict.fromkeys(node.inputs):
            inner = maker.get(value)
            if inner is not None and _may_move(inner, node, uses):
                found = _joined(found, inner) or found
        if found is not node:
            nodes[node] = maker[node.output] = found
    return without_dead(Graph(graph.inputs, graph.outputs, ordered([nodes[node] for node in graph.nodes])))


def _may_move(inner: Node, outer: Node, uses: Uses) -> bool:
    if inner.op != "pointwise" or inner.output.shape != outer.output.shape or inner.output in uses.leaving:
        return False
    readers = uses.readers[inner.output]
    if len(readers) == 1:
        return True
    steps = [
        s for s in inner.attributes["expression"].instructions if s.operation not in ("input", "constant")
    ]
    return len(steps) <= _CHEAP and all(
        reader.op == "pointwise" and reader.output.shape == inner.output.shape for reader in readers
    )


def _joined(outer: Node, inner: Node) -> Node | None:
    """One node for both, None where that would be another arithmetic, or too much."""
    if inner.output.dtype.kind not in "fb" and inner.output.dtype.name != "bfloat16":
        return None
    first, second = inner.attributes["expression"], outer.attributes["expression"]
    parts = [first if value is inner.output else None for value in outer.inputs]
    expression, origins = composed(second, parts)
    values = [inner.inputs[place] if parts[n] is not None else outer.inputs[n] for n, place in origins]
    expression, inputs = merged(expression, values)
    if len(inputs) > MOST_INPUTS or len(expression.instructions) > MOST_STEPS:
        return None
    kinds = {
        computing(first, inner.inputs, inner.output),
        computing(second, outer.inputs, outer.output),
        computing(expression, inputs, outer.output),
    }
    if len(kinds) > 1:
        return None
    return outer.replaced(
        inputs=inputs,
        attributes={"expression": expression, "is_affine": False},
        origin=(*inner.origin, *outer.origin),
    )
