"""Views of views, and borders that a convolution can have by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.graph.ir import Graph, Node, ordered


def joined_views(graph: Graph) -> Graph:
    """The graph with transposes of transposes, and reshapes of reshapes, as one or none."""
    maker: dict[Any, Node] = {}
    same: dict[Any, Any] = {}  # values that are others
    nodes = []
    for old in graph.nodes:
        node = old
        if any(value in same for value in node.inputs):
            node = node.replaced(inputs=tuple(same.get(value, value) for value in node.inputs))
        if node.op == "view":
            node = _joined(node, maker)
            x = node.inputs[0]
            kind, argument = node.attributes["kind"], node.attributes["argument"]
            is_idle = kind == "transpose" and tuple(argument) == tuple(range(len(argument)))
            is_idle = is_idle or (kind in ("reshape", "broadcast") and x.shape == node.output.shape)
            if is_idle and node.output not in graph.outputs:
                same[node.output] = x
                continue
        for value in node.outputs:
            maker[value] = node
        nodes.append(node)
    return Graph(graph.inputs, graph.outputs, tuple(nodes))


def _joined(node: Node, maker: dict[Any, Node]) -> Node:
    inner = maker.get(node.inputs[0])
    if inner is None or inner.op != "view":
        return node
    kinds = inner.attributes["kind"], node.attributes["kind"]
    if kinds == ("transpose", "transpose"):
        first, second = inner.attributes["argument"], node.attributes["argument"]
        return node.replaced(
            inputs=inner.inputs, attributes={"argument": tuple(first[axis] for axis in second)}
        )
    if kinds == ("reshape", "reshape"):
        return node.replaced(inputs=inner.inputs)
    return node


def with_padding(graph: Graph) -> Graph:
    """The graph with borders of zeros as the padding of the convolutions that alone read them."""
    uses = graph.uses()
    nodes = {node: node for node in graph.nodes}
    gone: set[Node] = set()
    for node in graph.nodes:
        before = uses.maker.get(node.inputs[0]) if node.op == "conv" else None
        if before is None or before.op != "primitive" or before.attributes["name"] != "transform":
            continue
        kwargs = before.attributes["kwargs"]
        if uses.only_reader(node.inputs[0]) is not node or set(kwargs) - {"pad", "value"}:
            continue
        pads = [tuple(pair) for pair in kwargs.get("pad", ())]
        if kwargs.get("value", 0.0) != 0.0 or len(pads) != len(node.output.shape) or any(map(any, pads[:2])):
            continue
        own = pairs_of(node.attributes.get("padding", 0), len(pads) - 2)
        joined = tuple((a + c, b + d) for (a, b), (c, d) in zip(own, pads[2:], strict=True))
        gone.add(before)
        nodes[node] = node.replaced(
            inputs=(before.inputs[0], *node.inputs[1:]),
            attributes={"padding": joined},
            origin=(*before.origin, *node.origin),
        )
    return Graph(graph.inputs, graph.outputs, ordered([nodes[n] for n in graph.nodes if n not in gone]))


def pairs_of(padding: Any, rank: int) -> list[tuple[int, int]]:
    """Padding as jd.conv takes it, as (before, after) for each axis."""
    if isinstance(padding, int):
        return [(padding, padding)] * rank
    each: Sequence[Any] = padding
    return [(p, p) if isinstance(p, int) else (p[0], p[1]) for p in each]
