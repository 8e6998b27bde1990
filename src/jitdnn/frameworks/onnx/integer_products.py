"""Products of 8-bit integers as nodes that multiply the bytes, where the device has instructions for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.pointwise import Array
from jitdnn.frameworks.onnx.spatial import Pairs
from jitdnn.graph import primitives as jd
from jitdnn.graph.operand import Operand
from jitdnn.graph.passes.quantized_sums import BYTES, MOST_PRODUCTS, Sums, centred_bytes, sums_of
from jitdnn.graph.stored import Stored
from jitdnn.problems.convolution import output_shape


def takes_bytes(x: Any, *constants: Any) -> bool:
    """Whether x is an operand of 8-bit integers that the device multiplies, and all else is known."""
    return (
        isinstance(x, Operand)
        and x.tracer.has_dot
        and x.dtype in BYTES
        and x.size > 0
        and not any(isinstance(one, Operand) for one in constants)
    )


def sums(
    x: Operand, x_scale: Array, x_zero: Array, w: Array, w_scale: Array, w_zero: Array, bias: Array | None, axis: int,
    is_turned: bool = False,
) -> Sums | None:  # fmt: skip
    """What multiplies the operand by a filter whose channels of results are on this axis; None if bytes do not say it.

    `bias` is in units of both scales. `is_turned`: the filter is the transpose of the matrix w.
    """
    if x_scale.size != 1 or x_zero.size != 1 or x_scale.dtype != np.float32:
        return None
    if any(one.size not in (1, w.shape[axis - is_turned]) for one in (w_scale, w_zero)):
        return None
    scale, zero = float(x_scale.item()), int(x_zero.item())

    def prepared() -> Sums | None:
        shape = (-1, *(1,) * (w.ndim - 1 - axis))
        numbers = (one.reshape(()) if one.size == 1 else one.reshape(shape) for one in (w_scale, w_zero))
        return sums_of(Stored(w.T if is_turned else w, *numbers), scale, zero, bias, axis, is_real=False)

    arrays = (w, w_scale, w_zero, bias)
    found: Sums | None = x.tracer.memo.get(
        "sums of an operator", arrays, prepared, scale, zero, axis, is_turned
    )
    return found


def convolved(
    x: Operand, zero: int, sums: Sums, after: tuple[float, int], dtype: Any, pads: Pairs, stride: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Operand:  # fmt: skip
    """The convolution of an operand whose border is `zero`, its results stored as `after`, a scale and a zero, says."""
    if zero and any(map(any, pads)):
        x, pads = jd.transform(x, pad=((0, 0), (0, 0), *pads), value=float(zero)), ((0, 0),) * len(pads)
    shape = output_shape(x.shape, sums.filter.shape, stride, pads, dilation, groups)
    epilogue, arrays = sums.epilogue(x.tracer.memo, after)
    return x.tracer.add(
        "conv", [x, sums.filter, *arrays], [(shape, dtype)], epilogue=epilogue, stride=tuple(stride), padding=pads,
        dilation=tuple(dilation), groups=groups,
    )[0]  # fmt: skip


def multiplied(a: Operand, sums: Sums, after: tuple[float, int] | None, dtype: Any) -> Operand:
    """The product of an operand and a constant matrix, stored so; with None as reals."""
    shape = (*a.shape[:-1], sums.filter.shape[1])
    epilogue, arrays = sums.epilogue(a.tracer.memo, after)
    return a.tracer.add("matmul", [a, sums.filter, *arrays], [(shape, dtype)], epilogue=epilogue)[0]


def integer_product(a: Operand, b: Array, b_zero: Array | None) -> tuple[Operand, Array] | None:
    """The product with a constant matrix as int32, and the sums of its columns; None if bytes do not hold it."""

    def prepared() -> tuple[Array, Array] | None:
        w = centred_bytes(b, b_zero)
        return None if w is None else (np.ascontiguousarray(w), w.sum(0, np.int32))

    if (
        b.ndim != 2
        or a.ndim < 2
        or a.shape[-1] != b.shape[0]
        or not 0 < b.shape[0] <= MOST_PRODUCTS
        or not b.size
    ):
        return None
    found = a.tracer.memo.get("integers", (b, b_zero), prepared)
    if found is None:
        return None
    kinds = [((*a.shape[:-1], b.shape[1]), np.dtype(np.int32))]
    return a.tracer.add("matmul", [a, found[0]], kinds, epilogue=None)[0], found[1]
