"""Formulas that read a convolution or a product become its epilogue: biases, activations, residuals, scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.graph.ir import Graph, Node, Uses, Value, ordered
from jitdnn.graph.passes.formulas import MOST_STEPS, composed
from jitdnn.graph.passes.quantized_sums import BYTES
from jitdnn.rtcg.expression import Expression, finish, trace
from jitdnn.rtcg.expression import Graph as Formula
from jitdnn.rtcg.functions import maximum, minimum, rint
from jitdnn.tensor import compute_dtype, dtype_name

_MOST_OPERANDS = 6
_nothing = trace(lambda acc: acc)


def with_epilogues(graph: Graph) -> Graph:
    """The graph with formulas as epilogues of the nodes whose results they alone read."""
    uses = graph.uses()
    maker = dict(uses.maker)
    gone: set[Node] = set()
    nodes: dict[Node, Node] = {node: node for node in graph.nodes}
    for node in graph.nodes:
        if node.op != "pointwise":
            continue
        # of several candidates the last: the others are operands that are there by then
        order = {one: number for number, one in enumerate(graph.nodes)}
        found = [
            m for m in (maker.get(v) for v in node.inputs) if m is not None and m.op in ("conv", "matmul")
        ]
        found.sort(key=lambda m: -order.get(m, 0))
        for root in found:
            joined = _joined(root, node, uses)
            if joined is not None:
                gone.add(root)
                nodes[node] = maker[node.output] = joined
                break
    kept = [nodes[node] for node in graph.nodes if node not in gone]
    kept = [node for node in kept if node not in gone]
    return Graph(graph.inputs, graph.outputs, ordered(kept))


def _joined(root: Node, node: Node, uses: Uses) -> Node | None:
    y, result = root.output, node.output
    reader = uses.only_reader(y)
    if reader is None or reader is not node:
        return None
    if y.shape != result.shape or not (y.dtype == result.dtype or _becomes_bytes(root, result)):
        return None
    if y.dtype.kind in "iu" and y.dtype.itemsize > 1:  # which are added as integers, and not in an epilogue
        return None
    operands = [value for value in node.inputs if value is not y]
    own = list(root.inputs[2:])
    if len(operands) + len(own) > _MOST_OPERANDS or not all(_fits(value, y) for value in operands):
        return None
    first: Expression = root.attributes.get("epilogue") or _nothing
    if y.dtype.kind in "iu":  # what the formula reads is what was stored
        first = _saturated(first, y.dtype)
    parts = [first if value is y else None for value in node.inputs]
    expression, origins = composed(node.attributes["expression"], parts)
    sources: list[Value] = []
    for number, place in origins:
        if parts[number] is None:
            sources.append(node.inputs[number])
        else:
            sources.append(y if place == 0 else own[place - 1])
    # the sum comes first
    expression, sources = _first(expression, sources, y)
    if len(expression.instructions) > MOST_STEPS:
        return None
    return root.replaced(
        inputs=(*root.inputs[:2], *sources[1:]),
        outputs=(result,),
        attributes={"epilogue": expression},
        origin=(*root.origin, *node.origin),
    )


def _saturated(expression: Expression, kind: np.dtype[Any]) -> Expression:
    """The formula as an integer type holds its result."""
    low, high = float(np.iinfo(kind).min), float(np.iinfo(kind).max)
    bounded = trace(lambda v: minimum(maximum(v if _is_rounded(expression) else rint(v), low), high))
    return composed(bounded, [expression])[0]


def _is_rounded(expression: Expression) -> bool:
    """Whether the result is `rint` of something, or a whole number more."""
    steps = expression.instructions
    last = steps[-1]
    if last.operation == "add":
        parts = [steps[place] for place in last.arguments]
        numbers = [step.number for step in parts if step.operation == "constant"]
        rounded = [step for step in parts if step.operation == "rint"]
        return len(numbers) == len(rounded) == 1 and numbers[0].is_integer()
    return last.operation == "rint"


def _becomes_bytes(root: Node, result: Value) -> bool:
    """Whether products of bytes are stored as bytes."""
    return root.inputs[0].dtype in BYTES and result.dtype in BYTES


def _first(expression: Expression, sources: list[Value], y: Value) -> tuple[Expression, list[Value]]:
    """The formula with y as its first input, and every value once."""
    arranged = [y, *(value for value in dict.fromkeys(sources) if value is not y)]
    if arranged == sources:
        return expression, sources
    graph = Formula([f"x{number}" for number in range(len(arranged))])
    place = {value: graph.input(number) for number, value in enumerate(arranged)}
    made = finish(graph, expression.interpret([place[v] for v in sources], graph.constant, graph.apply))
    return made, arranged


def _fits(value: Value, y: Value) -> bool:
    """Whether an epilogue can read it: of y's type or that of its sums, broadcast to y."""
    names = dtype_name(value.dtype), dtype_name(y.dtype) or ""
    if names[0] not in (names[1], compute_dtype(names[1])) or len(value.shape) > len(y.shape):
        return False
    return all(a in (1, b) for a, b in zip(reversed(value.shape), reversed(y.shape), strict=False))
