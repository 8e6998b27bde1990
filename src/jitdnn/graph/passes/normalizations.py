"""Layer and RMS normalizations that exporters spell out become one primitive.

    mean = ReduceMean(x);  d = x - mean;  v = ReduceMean(d^2);  y = d / sqrt(v + epsilon) * weight + bias

and the same without mean and bias. Axes, epsilon and parameters must be what the primitive takes, and whatever lies
between must be read by nobody else; else the nodes stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.graph.ir import AnyArray, Graph, Node, Slot, Uses, Value
from jitdnn.graph.passes.dead import without_dead
from jitdnn.graph.passes.formulas import number_of
from jitdnn.graph.passes.memo import Memo
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.rtcg.functions import power, sqrt

_SUBTRACTED = trace(lambda a, b: a - b)
_ADDED = trace(lambda a, b: a + b)
_MULTIPLIED = trace(lambda a, b: a * b)
_DIVIDED = trace(lambda a, b: a / b)
_POWER = trace(lambda a, b: power(a, b))
_ROOT = trace(lambda a: sqrt(a))
_RECIPROCAL = trace(lambda a: 1.0 / a)
_TYPES = ("f2", "f4", "f8")


class _Found(NamedTuple):
    """A normalization: what is normalized over the axes from `axis` on, and whether its mean is subtracted."""

    x: Value
    axis: int
    epsilon: float
    has_mean: bool


def with_normalizations(graph: Graph, memo: Memo) -> Graph:
    """The graph with normalizations that are spelled out as `layer_norm` and `rms_norm`."""
    search = _Search(graph.uses())
    nodes: list[Node] = []
    made: dict[Node, Node] = {}
    for node in graph.nodes:
        found = search.normalization(node)
        if found is not None:
            last, replaced = search.whole(node, found, memo)
            if replaced is not None:
                made[last] = replaced
    if not made:
        return graph
    nodes = [made.get(node, node) for node in graph.nodes]
    return without_dead(Graph(graph.inputs, graph.outputs, tuple(nodes)))


class _Search:
    """Patterns that end in a node, found from their ends."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def _formula(self, value: Value, expression: Expression) -> tuple[Value, ...] | None:
        """What a formula of this kind reads that makes a value."""
        node = self._uses.maker.get(value)
        if node is None or node.op != "pointwise" or node.attributes["expression"] != expression:
            return None
        return node.inputs

    def _either(self, value: Value, expression: Expression) -> Iterator[tuple[Value, Value]]:
        """The same for one that takes two values in any order, in both."""
        inputs = self._formula(value, expression)
        if inputs is not None:
            yield inputs[0], inputs[1]
            yield inputs[1], inputs[0]

    def normalization(self, node: Node) -> _Found | None:
        """What a node normalizes, before weights and biases."""
        if node.op != "pointwise" or len(node.inputs) != 2 or node.output.dtype.str[1:] not in _TYPES:
            return None
        for d, root in self._quotients(node.output):
            if d.shape != node.output.shape or d.dtype != node.output.dtype:
                continue
            for variance, epsilon in self._sums(root):
                square = self._mean(variance, d.shape)
                if square is not None and self._is_square(square[0], d):
                    found = self._centred(d, square[1], epsilon)
                    return found or _Found(d, square[1], epsilon, False)
        return None

    def _quotients(self, y: Value) -> Iterator[tuple[Value, Value]]:
        """(d, r) where y = d / sqrt(r), also as a product."""
        divided = self._formula(y, _DIVIDED)
        pairs = [] if divided is None else [divided]
        for d, factor in self._either(y, _MULTIPLIED):
            inverse = self._formula(factor, _RECIPROCAL)
            if inverse is not None:
                pairs.append((d, inverse[0]))
            quotient = self._formula(factor, _DIVIDED)
            if quotient is not None and number_of(quotient[0]) == 1.0:
                pairs.append((d, quotient[1]))
        for d, below in pairs:
            root = self._formula(below, _ROOT)
            if root is not None:
                yield d, root[0]

    def _sums(self, root: Value) -> Iterator[tuple[Value, float]]:
        """(v, epsilon) where a value is v + epsilon."""
        for variance, constant in self._either(root, _ADDED):
            epsilon = number_of(constant)
            if epsilon is not None and epsilon >= 0.0 and variance.shape == root.shape:
                yield variance, epsilon

    def _mean(self, value: Value, shape: tuple[int, ...]) -> tuple[Value, int] | None:
        """(x, axis) where a value is the mean of x, of this shape, over its last axes, which are left as 1."""
        made = value
        node = self._uses.maker.get(value)
        while node is not None and node.op == "view" and node.attributes["kind"] == "reshape":
            value = node.inputs[0]
            node = self._uses.maker.get(value)
        if node is None or node.op != "primitive" or node.attributes["name"] != "reduce":
            return None
        args, kwargs = node.attributes["args"], node.attributes["kwargs"]
        if len(args) != 3 or args[:2] != (Slot(0), "avg") or set(kwargs) - {"keepdims"}:
            return None
        (x,), rank = node.inputs, len(shape)
        over = args[2] if isinstance(args[2], Sequence) else (args[2],)
        axes = sorted(int(axis) % rank for axis in over)
        if x.shape != shape or not axes or axes != list(range(axes[0], rank)):
            return None
        return (x, axes[0]) if made.shape == (*shape[: axes[0]], *(1,) * len(axes)) else None

    def _is_square(self, value: Value, d: Value) -> bool:
        raised = self._formula(value, _POWER)
        if raised is not None and number_of(raised[1]) == 2.0 and value.shape == d.shape:
            return self._is_same(raised[0], d)
        both = self._formula(value, _MULTIPLIED)
        return both is not None and all(self._is_same(one, d) for one in both)

    def _is_same(self, one: Value, other: Value) -> bool:
        """Whether two values are one, or the same difference: some exporters write it twice."""
        if one is other:
            return True
        differences = self._formula(one, _SUBTRACTED), self._formula(other, _SUBTRACTED)
        return differences[0] is not None and differences[0] == differences[1] and one.dtype == other.dtype

    def _centred(self, d: Value, axis: int, epsilon: float) -> _Found | None:
        difference = self._formula(d, _SUBTRACTED)
        if difference is None or difference[0].shape != d.shape or difference[0].dtype != d.dtype:
            return None
        x, subtracted = difference
        mean = self._mean(subtracted, x.shape)
        return _Found(x, axis, epsilon, True) if mean is not None and mean == (x, axis) else None

    def whole(self, node: Node, found: _Found, memo: Memo) -> tuple[Node, Node | None]:
        """The last node of a normalization with its weight and bias, and what takes its place: None if some of what
        lies in between is read elsewhere."""
        last, parameters = node, list[AnyArray]()
        for expression in (_MULTIPLIED, _ADDED)[: 2 if found.has_mean else 1]:
            longer = self._parameter(last, expression, found, memo)
            if longer is None:
                break
            last, array = longer
            parameters.append(array)
        x = found.x
        inner, origin = self._inside(last, x)
        if inner is None:
            return last, None
        inputs = (x, *(Value(array.shape, array.dtype, array) for array in parameters))
        attributes = {
            "name": "layer_norm" if found.has_mean else "rms_norm",
            "args": tuple(Slot(number) for number in range(len(inputs))),
            "kwargs": {"axis": found.axis, "epsilon": found.epsilon},
        }
        return last, Node("primitive", inputs, last.outputs, attributes, origin)

    def _parameter(
        self, last: Node, expression: Expression, found: _Found, memo: Memo
    ) -> tuple[Node, AnyArray] | None:
        """The node that alone reads a result and multiplies it by constants, or adds them, and these in full shape."""
        reader = self._uses.only_reader(last.output)
        if reader is None or reader.op != "pointwise" or reader.output.shape != last.output.shape:
            return None
        shape = found.x.shape[found.axis :]
        for one, other in self._either(reader.output, expression):
            array = other.array
            if one is not last.output or array is None or array.dtype != found.x.dtype:
                continue
            leading = array.shape[: max(0, array.ndim - len(shape))]
            if reader.output.dtype != array.dtype or any(extent != 1 for extent in leading):
                return None
            return reader, memo.get("parameter", (array,), functools.partial(_filled, array, shape), shape)
        return None

    def _inside(self, last: Node, x: Value) -> tuple[set[Node] | None, tuple[str, ...]]:
        """The nodes between a value and a last node, None if others read what they make; and their origins."""
        inside: dict[Node, None] = {last: None}
        stack: list[Any] = [last]
        while stack:
            for value in stack.pop().inputs:
                maker = None if value is x else self._uses.maker.get(value)
                if maker is not None and maker not in inside:
                    inside[maker] = None
                    stack.append(maker)
        for node in inside:
            if node is last:
                continue
            for value in node.outputs:
                if value in self._uses.leaving or any(
                    r not in inside for r in self._uses.readers.get(value, ())
                ):
                    return None, ()
        return set(inside), tuple(name for node in reversed(inside) for name in node.origin)


def _filled(array: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """A parameter that is broadcast, in the shape in which it is applied."""
    flat = array.reshape(array.shape[max(0, array.ndim - len(shape)) :])
    return np.ascontiguousarray(np.broadcast_to(flat, shape))
