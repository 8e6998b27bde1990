"""Convolutions and products of quantized tensors multiply the bytes themselves.

Quantized graphs say `scale * (q - zero)` before each operator and `rint(y / scale) + zero` behind it. Where x is such a
formula of bytes, and the filter was made of bytes, one scale for each channel of results makes reals of the exact sums
(`quantized_sums.py`), and a quantization behind them becomes part of that scale. What only moves or compares numbers
does so with the bytes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jitdnn.graph.ir import Graph, Node, Slot, Value, ordered
from jitdnn.graph.passes.dead import without_dead
from jitdnn.graph.passes.memo import Memo
from jitdnn.graph.passes.quantized_sums import BYTES, Sums, sums_of
from jitdnn.graph.passes.views import pairs_of
from jitdnn.graph.stored import stored_of
from jitdnn.rtcg.expression import Expression, finish, trace
from jitdnn.rtcg.expression import Graph as Formula

_REAL = np.dtype(np.float32)
_shifted = trace(lambda acc, b: acc + b)


class Scaled(NamedTuple):
    """`scale * (source - zero)` of bytes, or `rint(source / scale) + zero` as bytes."""

    source: Value
    scale: float
    zero: int


def with_integers(graph: Graph, memo: Memo) -> Graph:
    """The graph with products of bytes where both operands are quantized."""
    graph = _without_round_trips(_bytes_first(graph))
    uses = graph.uses()
    maker, nodes, gone = dict(uses.maker), [], set()
    for node in graph.nodes:
        if node in gone:
            continue
        found = _product(node, maker, memo)
        if found is None:
            nodes.append(node)
            continue
        product, before = found
        reader = uses.only_reader(node.output)
        stored = None if reader is None else quantized(reader)
        if reader is not None and stored is not None:
            gone.add(reader)
            node = product.node(memo, reader.output, stored, (*node.origin, *reader.origin))
        else:
            node = product.node(memo, node.output, None, node.origin)
        nodes += [*before, node]
    return without_dead(Graph(graph.inputs, graph.outputs, ordered(nodes)))


# ---- formulas of quantization


def dequantized(node: Node | None) -> Scaled | None:
    """What a node that makes float32 of bytes computes; None for other nodes."""
    if node is None or node.op != "pointwise" or len(node.inputs) != 1 or node.output.dtype != _REAL:
        return None
    (source,) = node.inputs
    if source.dtype not in BYTES or source.array is not None or source.shape != node.output.shape:
        return None
    steps = node.attributes["expression"].instructions
    names = [step.operation for step in steps]
    if names == ["input", "constant", "multiply"]:
        scale, zero = steps[1].number, 0.0
    elif names == ["input", "constant", "subtract", "constant", "multiply"] and steps[2].arguments == (0, 1):
        zero, scale = steps[1].number, steps[3].number
    else:
        return None
    return _scaled(source, scale, zero, source.dtype)


def quantized(node: Node | None) -> Scaled | None:
    """What a node that makes bytes of float32 computes; None for other nodes."""
    if node is None or node.op != "pointwise" or len(node.inputs) != 1 or node.output.dtype not in BYTES:
        return None
    (source,) = node.inputs
    if source.dtype != _REAL or source.shape != node.output.shape:
        return None
    steps = node.attributes["expression"].instructions
    names = [step.operation for step in steps]
    if names[:4] != ["input", "constant", "divide", "rint"] or steps[2].arguments != (0, 1):
        return None
    if len(names) > 4 and (names[4:] != ["constant", "add"] or set(steps[5].arguments) != {3, 4}):
        return None
    return _scaled(source, steps[1].number, steps[4].number if len(names) > 4 else 0.0, node.output.dtype)


def _scaled(source: Value, scale: float, zero: float, kind: np.dtype[Any]) -> Scaled | None:
    limits = np.iinfo(kind)
    if not (zero.is_integer() and limits.min <= zero <= limits.max and math.isfinite(scale) and scale > 0):
        return None
    return Scaled(source, scale, int(zero))


# ---- what only moves or compares numbers does so with their bytes


def _bytes_first(graph: Graph) -> Graph:
    """The graph with views, joins and maxima of bytes in the place of those of what they stand for."""
    maker: dict[Value, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        found = [dequantized(maker.get(value)) for value in node.inputs]
        some = found[0] if found else None
        if (
            some is not None
            and _moves(node)
            and all(
                one is not None and one[1:] == some[1:] and one.source.dtype == some.source.dtype
                for one in found
            )
        ):
            moved = Value(node.output.shape, some.source.dtype)
            sources = tuple(one.source for one in found if one is not None)
            last = maker[node.inputs[0]]
            nodes.append(node.replaced(inputs=sources, outputs=(moved,)))
            nodes.append(last.replaced(inputs=(moved,), outputs=node.outputs))
        else:
            nodes.append(node)
        maker.update((value, nodes[-1]) for value in node.outputs)
    return without_dead(Graph(graph.inputs, graph.outputs, tuple(nodes)))


def _moves(node: Node) -> bool:
    if node.op == "primitive":
        name, args = node.attributes["name"], node.attributes["args"]
        return name == "max_pool" and args[:1] == (Slot(0),) and len(node.inputs) == len(node.outputs) == 1
    return node.op in ("view", "concat")


def _without_round_trips(graph: Graph) -> Graph:
    """The graph without bytes that are made reals and the same bytes again."""
    maker = graph.uses().maker
    same: dict[Value, Value] = {}
    nodes = []
    for old in graph.nodes:
        node = old
        if any(value in same for value in node.inputs):
            node = node.replaced(inputs=tuple(same.get(value, value) for value in node.inputs))
        after = quantized(node)
        before = None if after is None else dequantized(maker.get(after.source))
        if (
            before is not None
            and after is not None
            and before[1:] == after[1:]
            and before.source.dtype == node.output.dtype
            and node.output not in graph.outputs
        ):
            same[node.output] = same.get(before.source, before.source)
            continue
        nodes.append(node)
    return without_dead(Graph(graph.inputs, graph.outputs, tuple(nodes)))


# ---- products


def _product(node: Node, maker: dict[Value, Node], memo: Memo) -> tuple[_Product, list[Node]] | None:
    """A convolution or product as one of bytes, and what is to be done before it; None where that is not what it is."""
    if node.op not in ("conv", "matmul") or node.output.dtype != _REAL:
        return None
    x, w, *rest = node.inputs
    given, stored = dequantized(maker.get(x)), None if w.array is None else stored_of(w.array)
    epilogue = node.attributes.get("epilogue")
    is_plain = not rest and epilogue is None
    is_shifted = len(rest) == 1 and rest[0].array is not None and epilogue == _shifted
    if given is None or stored is None or w.array is None or not (is_plain or is_shifted):
        return None
    axis = 0 if node.op == "conv" else 1
    if len(w.shape) < 2 or (node.op == "matmul" and len(w.shape) != 2):
        return None
    if not node.output.size:
        return None
    bias = rest[0].array if rest else None
    sums = memo.get(
        "sums of bytes",
        (w.array, bias),
        lambda: sums_of(stored, given.scale, given.zero, bias, axis, is_real=True),
        given.scale,
        given.zero,
        axis,
    )
    if sums is None:
        return None
    product, before = _Product(node, given.source, sums), []
    pads = pairs_of(node.attributes.get("padding", 0), len(w.shape) - 2)
    if node.op == "conv" and given.zero and any(map(any, pads)):
        # a border of zeros is one of the byte that stands for 0
        wide = [n + sum(pair) for n, pair in zip(given.source.shape[2:], pads, strict=True)]
        padded = Value((*given.source.shape[:2], *wide), given.source.dtype)
        kwargs = {"pad": ((0, 0), (0, 0), *pads), "value": float(given.zero)}
        attributes = {"name": "transform", "args": (Slot(0),), "kwargs": kwargs}
        before = [Node("primitive", (given.source,), (padded,), attributes, node.origin)]
        bare = node.replaced(attributes={"padding": ((0, 0),) * len(pads)})
        product = product._replace(like=bare, x=padded)
    return product, before


class _Product(NamedTuple):
    """What a convolution or product becomes."""

    like: Node
    x: Value
    sums: Sums

    def node(self, memo: Memo, output: Value, after: Scaled | None, origin: tuple[str, ...]) -> Node:
        """The node that computes it, and quantizes it by `after`."""
        epilogue, arrays = self.sums.epilogue(memo, None if after is None else (after.scale, after.zero))
        attributes = {**self.like.attributes, "epilogue": epilogue}
        constants = (Value(array.shape, array.dtype, array) for array in (self.sums.filter, *arrays))
        return Node(self.like.op, (self.x, *constants), (output,), attributes, origin)


# ---- formulas of bytes


def with_reciprocals(graph: Graph) -> Graph:
    """The graph with factors in the place of constant divisors, in formulas from bytes to bytes.

    A quotient is rounded to a byte, and a division takes as long as all else together. onnxruntime does so too.
    """
    return Graph(graph.inputs, graph.outputs, tuple(map(_with_reciprocals, graph.nodes)))


def _with_reciprocals(node: Node) -> Node:
    if node.op not in ("conv", "matmul", "pointwise") or node.output.dtype not in BYTES:
        return node
    name = "expression" if node.op == "pointwise" else "epilogue"
    expression: Expression | None = node.attributes.get(name)
    if expression is None or not any(value.dtype in BYTES for value in node.inputs):
        return node
    formula = Formula(expression.inputs)
    values: list[Any] = []
    for step in expression.instructions:
        if step.operation == "input":
            values.append(formula.input(step.arguments[0]))
        elif step.operation == "constant":
            values.append(formula.constant(step.number))
        else:
            arguments = [values[place] for place in step.arguments]
            divisor = expression.instructions[step.arguments[-1]]
            if (
                step.operation == "divide"
                and divisor.operation == "constant"
                and _has_reciprocal(divisor.number)
            ):
                values.append(arguments[0] * (1.0 / divisor.number))
            else:
                values.append(formula.apply(step.operation, arguments))
    return node.replaced(attributes={name: finish(formula, values[-1])})


def _has_reciprocal(number: float) -> bool:
    return math.isfinite(number) and 2.0**-100 < abs(number) < 2.0**100
