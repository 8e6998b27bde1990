"""The constants of products of quantized operands: sums of products of bytes, and what makes reals or bytes of them.

    sum over (s_x (x - z)) (s_w w) + bias  =  s_x s_w (sum over x w  -  z sum over w  +  bias / (s_x s_w))

so that a result is (sum + offset) * factor, with two numbers for each channel of results. Sums of products of 8-bit
integers are exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from jitdnn.graph.ir import AnyArray
from jitdnn.graph.passes.memo import Memo
from jitdnn.graph.stored import Stored
from jitdnn.rtcg.expression import Expression, Graph, finish
from jitdnn.rtcg.functions import rint

#: types that are multiplied as they are
BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
#: products of two bytes whose sum 32 bits hold
MOST_PRODUCTS = (1 << 16) - 1
_WHOLE = 1e-3  # a bias so near to a whole number of units was one before it was scaled


class Sums(NamedTuple):
    """Result = (sum of products with `filter`, of int8, + `offset`) * `factor`, which broadcast to the result."""

    filter: AnyArray
    offset: AnyArray
    factor: AnyArray

    def epilogue(self, memo: Memo, after: tuple[float, int] | None) -> tuple[Expression, list[AnyArray]]:
        """The formula of a sum and further operands, and these; `after`: scale and zero by which results are stored."""
        factor = self.factor
        if after is not None:
            factor = memo.get("requantized", (factor,), lambda: factor / np.float32(after[0]), after[0])
        arrays = [self.offset] if self.offset.any() else []
        is_one = bool((factor == factor.flat[0]).all())
        graph = Graph(["acc", *(["offset"] if arrays else []), *([] if is_one else ["factor"])])
        value = graph.input(0)
        if arrays:
            value = value + graph.input(1)
        value = value * (float(factor.flat[0]) if is_one else graph.input(len(arrays) + 1))
        if after is not None:
            value = rint(value) + float(after[1]) if after[1] else rint(value)
        return finish(graph, value), arrays if is_one else [*arrays, factor]


def sums_of(
    w: Stored, scale: float, zero: int, bias: AnyArray | None, axis: int, *, is_real: bool
) -> Sums | None:
    """The constants for x = scale * (q - zero) and a filter whose channels of results are its axis `axis`.

    `bias`: reals with `is_real`, else in units of both scales. None if bytes do not say it: a filter with zeros of its
    own, scales or a bias along another axis, sums beyond 32 bits.
    """
    integers = centred_bytes(w.integers, w.zero)
    if integers is None or not 0 < math.prod(integers.shape) // max(integers.shape[axis], 1) <= MOST_PRODUCTS:
        return None
    wide = np.broadcast_to(w.scale, integers.shape)
    others = tuple(n for n in range(integers.ndim) if n != axis)
    each = wide[tuple(slice(None) if n == axis else slice(1) for n in range(integers.ndim))]
    if w.scale.dtype != np.float32 or not (wide == each).all() or not (np.isfinite(each) & (each > 0)).all():
        return None
    shape = (-1, *(1,) * (integers.ndim - 2)) if axis == 0 else (-1,)
    factor = each.reshape(shape) * np.float32(scale)
    offset = -float(zero) * integers.sum(others, np.int64).reshape(shape)
    if bias is not None:
        along = bias.shape[-1:] if axis else bias.shape[:1]  # the axis of its channels, if it has one
        if bias.size != 1 and (bias.size != factor.size or along != (factor.size,)):
            return None
        with np.errstate(all="ignore"):
            units = bias.astype(np.float64).reshape(shape) / (factor if is_real else 1.0)
        if not np.isfinite(units).all():
            return None
        whole = np.rint(units)
        offset = offset + np.where(abs(units - whole) < _WHOLE, whole, units)
    return Sums(np.ascontiguousarray(integers), offset.astype(np.float32), factor)


def centred_bytes(integers: AnyArray, zero: AnyArray | None) -> AnyArray | None:
    """8-bit integers less their zero, which broadcasts to them, as int8; None if that does not hold them."""
    zeros = np.zeros((), np.int16) if zero is None else zero.astype(np.int16)
    if integers.dtype == np.int8 and not zeros.any():
        return integers
    if integers.dtype not in BYTES or not integers.size:
        return None
    less = integers - zeros
    return less.astype(np.int8) if less.min() >= -128 and less.max() <= 127 else None
