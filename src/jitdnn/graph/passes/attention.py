"""Attention that exporters spell out becomes one primitive, which stores no scores.

    softmax(q k^T * scale + mask) v

The factor may be a divisor or come with the product, and the mask, which is added to all that comes before it, may be
missing. Heads have up to `_MOST_COLUMNS` elements, and whatever lies between is read by nobody else; else the nodes
stay as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jitdnn.graph.ir import Graph, Node, Slot, Uses, Value
from jitdnn.graph.passes.dead import without_dead
from jitdnn.graph.passes.formulas import composed, number_of
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.tensor import dtype_name

_ADDED = trace(lambda a, b: a + b)
_TYPES = ("f16", "bf16", "f32")
_MOST_COLUMNS = 256  # of a head: what kernels of GPUs hold in registers


class _Scores(NamedTuple):
    """What softmax is taken of: q and k^T, the number that their product is multiplied by, and the mask."""

    q: Value
    turned: Value
    scale: float
    mask: Value | None
    nodes: tuple[Node, ...]


def with_attention(graph: Graph) -> Graph:
    """The graph with `attention` where it is spelled out."""
    graph = without_dead(graph)
    uses = graph.uses()
    made = {node: found for node in graph.nodes if (found := _attention(node, uses)) is not None}
    if not made:
        return graph
    nodes = [one for node in graph.nodes for one in made.get(node, (node,))]
    return without_dead(Graph(graph.inputs, graph.outputs, tuple(nodes)))


def _attention(node: Node, uses: Uses) -> tuple[Node, ...] | None:
    """What takes the place of a product of weights and values."""
    if node.op != "matmul" or len(node.inputs) != 2 or node.attributes.get("epilogue") is not None:
        return None
    weights, v = node.inputs
    softmax = uses.maker.get(weights)
    if softmax is None or uses.only_reader(weights) is not node or not _is_softmax(softmax):
        return None
    found = _scores(softmax, uses)
    if found is None:
        return None
    q, turned, rank = found.q, found.turned, len(weights.shape)
    tensors = [q, turned, v, *([] if found.mask is None else [found.mask])]
    if rank not in (3, 4) or any(len(one.shape) != rank for one in (q, turned, v)):
        return None
    if any(one.dtype != q.dtype for one in tensors) or dtype_name(q.dtype) not in _TYPES:
        return None
    batch = weights.shape[:-2]
    if any(one.shape[:-2] != batch for one in (q, turned, v)) or 0 in (*weights.shape, *q.shape, *v.shape):
        return None
    if max(q.shape[-1], v.shape[-1]) > _MOST_COLUMNS:
        return None
    origin = (*(name for one in reversed(found.nodes) for name in one.origin), *softmax.origin, *node.origin)
    return _made(node, found, v, origin)


def _is_softmax(node: Node) -> bool:
    if node.op != "primitive" or node.attributes["name"] != "softmax":
        return False
    args, kwargs = node.attributes["args"], node.attributes["kwargs"]
    if len(args) not in (2, 3) or args[0] != Slot(0) or kwargs or args[2:] not in ((), ("accurate",)):
        return False
    rank = len(node.output.shape)
    axes = args[1] if isinstance(args[1], tuple) else (args[1],)
    return len(axes) == 1 and isinstance(axes[0], int) and axes[0] % rank == rank - 1


def _scores(softmax: Node, uses: Uses) -> _Scores | None:
    """What softmax is taken of, from its operand back to the product."""
    value, reader, scale, mask, nodes = softmax.inputs[0], softmax, 1.0, None, list[Node]()
    while True:
        node = uses.maker.get(value)
        if node is None or uses.only_reader(value) is not reader or value.dtype != softmax.output.dtype:
            return None
        nodes.append(node)
        if node.op == "matmul":
            factor = _factor(node.attributes.get("epilogue"))
            if len(node.inputs) != 2 or factor is None:
                return None
            return _Scores(*node.inputs, scale * factor, mask, tuple(nodes))
        if node.op != "pointwise":
            return None
        inner = [one for one in node.inputs if one.shape == value.shape and _is_path(one, uses)]
        if not inner:
            return None
        scaled = _scaled(node, inner[0])
        if scaled is not None:
            scale *= scaled
            value = inner[0]
        elif node.attributes["expression"] == _ADDED and mask is None and scale == 1.0:
            one, other = node.inputs
            # of two that look like scores, the one that comes of a product
            value, mask = (one, other) if one is inner[0] else (other, one)
            if not _is_broadcast(mask, value):
                return None
        else:
            return None
        reader = node


def _is_path(value: Value, uses: Uses) -> bool:
    """Whether a product, or a formula of one, makes a value."""
    node = uses.maker.get(value)
    while node is not None and node.op == "pointwise":
        same = [one for one in node.inputs if one.shape == node.output.shape]
        node = uses.maker.get(same[0]) if same else None
    return node is not None and node.op == "matmul"


def _scaled(node: Node, value: Value) -> float | None:
    """The number by which a formula multiplies a value, None if it does anything else."""
    if value not in node.inputs:
        return None
    parts = [None if one is value else number_of(one) for one in node.inputs]
    if any(part is None and one is not value for part, one in zip(parts, node.inputs, strict=True)):
        return None
    expression, origins = composed(node.attributes["expression"], parts)
    return _factor(expression) if len(origins) == 1 else None


def _factor(expression: Expression | None) -> float | None:
    """The number that a formula of one value multiplies it by, or that it divides it by; None for other formulas."""
    if expression is None:
        return 1.0
    steps = expression.instructions
    if expression.arity != 1 or len(steps) != 3 or steps[-1].operation not in ("multiply", "divide"):
        return None
    first, second = (steps[place] for place in steps[-1].arguments)
    if steps[-1].operation == "divide":
        return 1.0 / second.number if (first.operation, second.operation) == ("input", "constant") else None
    if {first.operation, second.operation} != {"input", "constant"}:
        return None
    return second.number if second.operation == "constant" else first.number


def _is_broadcast(mask: Value, scores: Value) -> bool:
    """Whether a mask is added to scores as they are, to all of whose keys it is the same or has a number for each."""
    try:
        return np.broadcast_shapes(mask.shape, scores.shape) == scores.shape and number_of(mask) is None
    except ValueError:
        return False


def _made(node: Node, found: _Scores, v: Value, origin: tuple[str, ...]) -> tuple[Node, ...]:
    nodes: list[Node] = []

    def viewed(value: Value, shape: tuple[int, ...], kind: str, argument: Any) -> Value:
        result = Value(shape, value.dtype)
        nodes.append(Node("view", (value,), (result,), {"kind": kind, "argument": argument}, origin))
        return result

    def as_heads(value: Value) -> Value:
        """With an axis of one head, where there are but three."""
        if len(value.shape) != 3:
            return value
        shape = (value.shape[0], 1, *value.shape[1:])
        return viewed(value, shape, "reshape", shape)

    turned = as_heads(found.turned)
    n, h, d, s = turned.shape
    k = viewed(turned, (n, h, s, d), "transpose", (0, 1, 3, 2))
    inputs = [as_heads(found.q), k, as_heads(v)]
    if found.mask is not None:
        inputs.append(as_heads(found.mask))
    attributes = {
        "name": "attention",
        "args": tuple(Slot(number) for number in range(len(inputs))),
        "kwargs": {"scale": found.scale},
    }
    y = node.output
    if len(y.shape) == 4:
        nodes.append(Node("primitive", tuple(inputs), (y,), attributes, origin))
        return tuple(nodes)
    result = Value((*inputs[0].shape[:3], v.shape[-1]), y.dtype)
    nodes.append(Node("primitive", tuple(inputs), (result,), attributes, origin))
    nodes.append(Node("view", (result,), (y,), {"kind": "reshape", "argument": y.shape}, origin))
    return tuple(nodes)
