"""Recurrent layers over one step, as in streams: one product with both weights, and formulas.

The layers' kernels prepare the weights at each call, which pays over many steps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitdnn.graph.ir import AnyArray, Graph, Node, Slot, Value
from jitdnn.graph.passes.memo import Memo
from jitdnn.ops.activation import sigmoid, tanh
from jitdnn.rtcg.expression import trace

_added = trace(lambda acc, b: acc + b)
_cell = trace(lambda i, f, g, c: sigmoid(f) * c + sigmoid(i) * tanh(g))
_first_cell = trace(lambda i, g: sigmoid(i) * tanh(g))
_state = trace(lambda o, c: sigmoid(o) * tanh(c))
_PLAIN = {"bidirectional": False, "lengths": None}


def single_steps(graph: Graph, memo: Memo) -> Graph:
    """The graph with LSTMs over one step, with constant weights, as a product and formulas."""
    nodes: list[Node] = []
    for node in graph.nodes:
        found = _parts(node) if node.op == "primitive" and node.attributes["name"] == "lstm" else None
        nodes.extend([node] if found is None else _step(node, memo, *found))
    return Graph(graph.inputs, graph.outputs, tuple(nodes))


def _parts(node: Node) -> tuple[Value, list[AnyArray], Value | None, Value | None] | None:
    """x, the weights and the states, None for other layers."""
    kwargs = node.attributes["kwargs"]
    if any(kwargs.get(name, default) != default for name, default in _PLAIN.items()) or set(kwargs) - set(
        _PLAIN
    ):
        return None
    args = [*node.attributes["args"], None, None]
    x, weights, h, c = (_value(node, argument) for argument in args[:4])
    if not isinstance(x, Value) or x.shape[0] != 1 or not isinstance(weights, list):
        return None
    arrays = [one.array for one in weights if isinstance(one, Value) and one.array is not None]
    if len(arrays) != len(weights) or len(arrays) not in (2, 4) or (h is None) != (c is None):
        return None
    if arrays[1].shape[1] * 4 != arrays[1].shape[0] or any(a.dtype != x.dtype for a in arrays):
        return None
    return x, arrays, h, c


def _value(node: Node, argument: Any) -> Any:
    if isinstance(argument, Slot):
        return node.inputs[argument.number]
    if isinstance(argument, (list, tuple)):
        return [_value(node, one) for one in argument]
    return argument


def _step(
    node: Node, memo: Memo, x: Value, weights: list[AnyArray], h: Value | None, c: Value | None
) -> Iterable[Node]:
    _, batch, depth = x.shape
    hidden = weights[1].shape[1]
    has_state = h is not None
    matrix, bias = memo.get("lstm step", weights, functools.partial(_joined, weights, has_state), has_state)
    made: list[Node] = []

    def add(op: str, inputs: tuple[Value, ...], shape: tuple[int, ...], **attributes: Any) -> Value:
        value = Value(shape, x.dtype)
        made.append(Node(op, inputs, (value,), attributes, node.origin))
        return value

    def flat(value: Value, columns: int) -> Value:
        return add("view", (value,), (batch, columns), kind="reshape", argument=(batch, columns))

    row = flat(x, depth)
    if h is not None:
        row = add("concat", (row, flat(h, hidden)), (batch, depth + hidden), axis=1)
    constants = (Value(matrix.shape, matrix.dtype, matrix),)
    if bias is not None:
        constants += (Value(bias.shape, bias.dtype, bias),)  # type: ignore[assignment]
    gates = add("matmul", (row, *constants), (batch, 4 * hidden), epilogue=None if bias is None else _added)

    def gate(number: int) -> Value:
        part = slice(number * hidden, (number + 1) * hidden)
        return add("view", (gates,), (batch, hidden), kind="index", argument=(slice(None), part))

    i, f, g, o = map(gate, range(4))
    if c is None:
        cell = add("pointwise", (i, g), (batch, hidden), expression=_first_cell)
    else:
        cell = add("pointwise", (i, f, g, flat(c, hidden)), (batch, hidden), expression=_cell)
    state = add("pointwise", (o, cell), (batch, hidden), expression=_state)
    for value, held in zip(node.outputs, (state, state, cell), strict=True):
        made.append(
            Node("view", (held,), (value,), {"kind": "reshape", "argument": value.shape}, node.origin)
        )
    return made


def _joined(weights: Sequence[AnyArray], has_state: bool) -> tuple[AnyArray, AnyArray | None]:
    """Both weights as the matrix that (x, h) is multiplied by, and the sum of the biases."""
    w, r, *biases = weights
    matrix = np.ascontiguousarray((np.concatenate([w, r], 1) if has_state else w).T)
    return matrix, (biases[0] + biases[1]).reshape(1, -1) if biases else None
