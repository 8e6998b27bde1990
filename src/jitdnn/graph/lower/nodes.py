"""One function for each kind of node."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import jitdnn
from jitdnn.graph.ir import AnyArray, Node, filled
from jitdnn.graph.lower.builder import Builder, order_of, viewed
from jitdnn.graph.primitives import function_of
from jitdnn.rtcg.expression import Expression

Lower = Callable[[Builder, Node], None]
_RECURRENT = ("gru", "lstm", "rnn")  # their second argument is a list of weights


def pointwise(b: Builder, node: Node) -> None:
    operands = [b.kernel_array(value) for value in node.inputs]
    out = b.result(node.output, _pointwise_order(b, node))
    b.run(node.attributes["expression"], operands, out)


def _pointwise_order(b: Builder, node: Node) -> tuple[int, ...] | None:
    """That of the largest operand that is no constant and has as many axes; of what is to be `b.turned` channels
    last: it is transposed here, once, instead of by each convolution that reads it."""
    if b.is_last and node.output in b.turned:
        return channels_last(len(node.output.shape))
    best, order = -1, None
    for value in node.inputs:
        array = b.array(value)
        if value.array is None and array.ndim == len(node.output.shape) and array.size > best:
            best, order = array.size, order_of(array)
    return order


def channels_last(rank: int) -> tuple[int, ...]:
    """(N, C, space) with the channels innermost."""
    return (0, *range(2, rank), 1)


def convolution(b: Builder, node: Node) -> None:
    x, w, *operands = node.inputs
    rank = len(node.output.shape)
    is_last = b.is_last and rank > 2
    out = b.result(node.output, channels_last(rank) if is_last else None)
    kwargs = {k: v for k, v in node.attributes.items() if k in ("stride", "padding", "dilation", "groups")}
    filters = b.filter(w, lambda a: a, "conv") if w.array is not None else b.array(w)
    b.call(
        jitdnn.conv, b.image(x), filters, *(b.array(o) for o in operands),
        epilogue=node.attributes.get("epilogue"), out=out, **kwargs,
    )  # fmt: skip


def matmul(b: Builder, node: Node) -> None:
    """A product with a constant matrix is a convolution by one tap of a row of pixels."""
    left, right, *operands = node.inputs
    epilogue = node.attributes.get("epilogue")
    if right.array is not None and len(right.shape) == 2 and left.size and right.size:
        depth, columns = right.shape
        rows = left.size // depth
        seen = viewed(b.array(left), (rows, depth))
        a = b.dense(b.array(left)).reshape(rows, depth) if seen is None else seen
        out = b.result(node.output)
        flat = viewed(out, (rows, columns))
        y = b.new((rows, columns), node.output.dtype) if flat is None else flat
        filters = b.filter(right, lambda m: m.T[:, :, None, None], "product")
        more = [_row_pixels(b, b.array(o), node.output.shape, rows, columns) for o in operands]
        b.call(jitdnn.conv, _pixels(a), filters, *more, epilogue=epilogue, out=_pixels(y))
        if flat is None:
            b.copy(y.reshape(node.output.shape), out)
        return
    out = b.result(node.output)
    alpha = 1.0 if epilogue is None else factor_of(epilogue)
    b.call(jitdnn.matmul, b.array(left), b.array(right), alpha=1.0 if alpha is None else alpha, out=out)
    if epilogue is not None and alpha is None:
        b.run(epilogue, [out, *(b.array(o) for o in operands)], out)


def factor_of(expression: Expression) -> float | None:
    """The number that a formula of one value multiplies it by, None if it does anything else."""
    if expression.arity == 1 and len(expression.instructions) == 3:
        value, other, last = expression.instructions
        number = next((step.number for step in (value, other) if step.operation == "constant"), None)
        if number is not None and {value.operation, other.operation} == {"input", "constant"}:
            if last.operation == "multiply":
                return number
            # a power of two divides as exactly as its reciprocal multiplies
            if last.operation == "divide" and other.operation == "constant" and math.frexp(number)[0] == 0.5:
                return 1.0 / number
    return None


def _pixels(matrix: AnyArray) -> AnyArray:
    """(rows, columns) as one image of a row of pixels: (1, columns, 1, rows)."""
    return matrix.T[None, :, None, :]


def _row_pixels(b: Builder, operand: AnyArray, shape: tuple[int, ...], rows: int, columns: int) -> AnyArray:
    wide = np.broadcast_to(operand, (*(1,) * (len(shape) - operand.ndim), *operand.shape))
    if wide.size == wide.shape[-1]:
        return np.broadcast_to(wide.reshape(1, -1), (1, wide.shape[-1])).T[None, :, None, :]
    full = np.broadcast_to(wide, shape)
    flat = viewed(full, (rows, columns))
    if flat is None:
        copy = b.new(shape, operand.dtype)
        b.copy(full, copy)
        flat = copy.reshape(rows, columns)
    return _pixels(flat)


def view(b: Builder, node: Node) -> None:
    (x,) = node.inputs
    array, kind, argument = b.array(x), node.attributes["kind"], node.attributes["argument"]
    if kind == "transpose":
        found: AnyArray | None = array.transpose(argument)
    elif kind == "index":
        found = array[(*argument, ...) if Ellipsis not in argument else argument]
    elif kind == "broadcast":
        found = np.broadcast_to(array, argument)
    else:
        found = viewed(array, argument)
        if found is None:
            target = b.targets.get(node.output)
            if target is not None:
                back = viewed(target, array.shape)
                if back is not None:
                    b.copy(array, back)
                    b.arrays[node.output] = target
                    return
            copy = b.new(array.shape, array.dtype)
            b.copy(array, copy)
            found = copy.reshape(argument)
    assert found is not None
    _settle(b, node, 0, found)


def concat(b: Builder, node: Node) -> None:
    axis = node.attributes["axis"]
    out = b.arrays.get(node.output)
    if out is None:
        out = b.result(node.output, order_of(b.array(node.inputs[0])))
    start = 0
    for value in node.inputs:
        end = start + value.shape[axis]
        part = out[(*(slice(None),) * axis, slice(start, end))]
        held = b.array(value)
        if value.array is not None or not _is_same(held, part):
            b.copy(held, part)
        start = end


def _is_same(one: AnyArray, other: AnyArray) -> bool:
    return (
        one.__array_interface__["data"][0] == other.__array_interface__["data"][0]
        and one.shape == other.shape
        and one.strides == other.strides
    )


def copy(b: Builder, node: Node) -> None:
    (x,) = node.inputs
    b.copy(b.array(x), b.result(node.output, order_of(b.array(x))))


def primitive(b: Builder, node: Node) -> None:
    name = node.attributes["name"]
    arrays = [b.given(value) if name in _RECURRENT else b.array(value) for value in node.inputs]
    function = function_of(name)
    args, kwargs = filled(node.attributes["args"], arrays), filled(node.attributes["kwargs"], arrays)
    if name in _RECURRENT:
        constant = {id(value.array) for value in node.inputs if value.array is not None}
        args = [
            b.weights(a) if isinstance(a, (list, tuple)) and all(id(w) in constant for w in a) else a
            for a in args
        ]
    target = b.targets.get(node.outputs[0]) if len(node.outputs) == 1 else None
    if target is not None:
        b.call(function, *args, out=target, **kwargs)
        b.arrays[node.outputs[0]] = target
        return
    results = b.call(function, *args, **kwargs)
    for number, found in enumerate(results if isinstance(results, tuple) else (results,)):
        _settle(b, node, number, found)


def _settle(b: Builder, node: Node, number: int, found: AnyArray) -> None:
    """Take an array as a result; where somebody waits for it elsewhere it is copied."""
    value = node.outputs[number]
    target = b.targets.get(value)
    if target is not None:
        if not _is_same(found, target):
            b.copy(found, target)
        found = target
    b.arrays[value] = found


LOWER: dict[str, Lower] = {
    "concat": concat, "conv": convolution, "copy": copy, "matmul": matmul, "pointwise": pointwise,
    "primitive": primitive, "view": view,
}  # fmt: skip
