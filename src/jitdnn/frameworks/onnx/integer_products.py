"""Products of 8-bit integers as nodes that multiply the bytes, where the device has instructions for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.frameworks.onnx.operator import Array
from jitdnn.frameworks.onnx.pointwise import pointwise
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


class _Bytes(NamedTuple):
    """A constant filter for products of bytes: w - zero = filter + `shift`.

    Where there is a shift, `filter` has one more channel of results (of each group), of ones: what it gives, times the
    shift, is missing. `of_ones` are the products with an image of ones: of the filter's own channels, of one of ones.
    """

    filter: Array
    shift: Array | None
    of_ones: tuple[Array, Array]


def _bytes_of(
    w: Array, zero: Array | None, axis: int, groups: int, of_ones: Callable[[Array], Array]
) -> _Bytes | None:
    """`axis`: that of the channels of results, along which `zero` may lie."""
    shape = [1] * w.ndim
    shape[axis] = -1
    if zero is not None and zero.size not in (1, w.shape[axis]):
        return None
    zeros = (
        np.zeros([1] * w.ndim, w.dtype)
        if zero is None
        else zero.reshape(shape if zero.size > 1 else [1] * w.ndim)
    )
    ones = np.ones_like(np.take(w, [0], axis), np.int8)
    whole = centred_bytes(w, zeros)
    if whole is not None:
        return _Bytes(np.ascontiguousarray(whole), None, (of_ones(whole), of_ones(ones)))
    signed = w if w.dtype == np.int8 else (w ^ np.uint8(128)).view(np.int8)
    shift = (128 if w.dtype == np.uint8 else 0) - zeros.astype(np.int32)
    parts = [part for own in np.split(signed, groups, axis) for part in (own, ones)]
    return _Bytes(np.concatenate(parts, axis), shift.reshape(-1), (of_ones(signed), of_ones(ones)))


def _joined(
    own: Any, ones: Any, held: _Bytes, zero: Array | None, shape: Callable[[Array], Array]
) -> Operand:
    """The products of integers less both zeros, as int32. `shape` lays out what there is one of for each channel."""
    of_own, of_one = (shape(each) for each in held.of_ones)
    if held.shift is None:
        return own if zero is None else pointwise(lambda v, z, c: v - z * c, own, zero, of_own)  # type: ignore[return-value]
    shift = shape(held.shift) if held.shift.size > 1 else held.shift.reshape(())
    if zero is None:
        return pointwise(lambda v, r, s: v + s * r, own, ones, shift)  # type: ignore[return-value]
    return pointwise(  # type: ignore[return-value]
        lambda v, r, s, z, c, n: v - z * c + s * (r - z * n), own, ones, shift, zero, of_own, of_one
    )


def integer_product(a: Operand, b: Array, a_zero: Array | None, b_zero: Array | None) -> Operand | None:
    """The product with a constant matrix as int32, of bytes less their zeros; None if instructions do not do it."""
    if (
        b.ndim != 2
        or a.ndim < 2
        or a.shape[-1] != b.shape[0]
        or not 0 < b.shape[0] <= MOST_PRODUCTS
        or not b.size
    ):
        return None

    def prepared() -> _Bytes | None:
        return _bytes_of(b, b_zero, 1, 1, lambda w: w.sum(0, np.int32))

    held: _Bytes | None = a.tracer.memo.get("integers", (b, b_zero), prepared)
    if held is None:
        return None
    kinds = [((*a.shape[:-1], held.filter.shape[1]), np.dtype(np.int32))]
    sums = a.tracer.add("matmul", [a, held.filter], kinds, epilogue=None)[0]
    if held.shift is None:
        return _joined(sums, None, held, a_zero, lambda each: each)
    return _joined(sums[..., :-1], sums[..., -1:], held, a_zero, lambda each: each)


def integer_convolution(
    x: Operand, w: Array, x_zero: Array | None, w_zero: Array | None, pads: Pairs, stride: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Operand | None:  # fmt: skip
    """The convolution by a constant filter as int32, of bytes less their zeros, its border 0; None if instructions do
    not do it."""
    shape = output_shape(x.shape, w.shape, stride, pads, dilation, groups)
    if not 0 < w[:1].size <= MOST_PRODUCTS or 0 in shape:
        return None

    def prepared() -> _Bytes | None:
        return _bytes_of(
            w, w_zero, 0, groups, lambda f: _of_ones(f, x.shape[2:], shape[2:], pads, stride, dilation)
        )

    how = (x.shape[2:], pads, tuple(stride), tuple(dilation), groups)
    held: _Bytes | None = x.tracer.memo.get("integers", (w, w_zero), prepared, how)
    if held is None:
        return None
    wide = (shape[0], held.filter.shape[0], *shape[2:])
    sums = x.tracer.add(
        "conv", [x, held.filter], [(wide, np.dtype(np.int32))], epilogue=None, stride=tuple(stride), padding=pads,
        dilation=tuple(dilation), groups=groups,
    )[0]  # fmt: skip
    rank, flat = len(shape) - 2, (1,) * (len(shape) - 2)
    if held.shift is None or groups == 1:
        own, ones = (sums, None) if held.shift is None else (sums[:, :-1], sums[:, -1:])
        return _joined(
            own, ones, held, x_zero, lambda e: e.reshape(-1, *(flat if e.ndim == 1 else e.shape[1:]))
        )
    apart = sums.reshape(shape[0], groups, -1, *shape[2:])

    def of_groups(each: Array) -> Array:
        space = flat if each.ndim == 1 else each.shape[1:]
        return each.reshape(1 if len(each) == 1 else groups, -1, *space)

    found = _joined(apart[:, :, :-1], apart[:, :, -1:], held, x_zero, of_groups)
    assert found.ndim == rank + 3
    return found.reshape(*shape)


def _of_ones(
    filters: Array, image: Sequence[int], results: Sequence[int], pads: Pairs, stride: Sequence[int],
    dilation: Sequence[int],
) -> Array:  # fmt: skip
    """The sums of the taps that read the image, not its border, of each channel and result: (K, space)."""
    sums = filters.sum(1, np.int64)
    if not any(map(any, pads)):
        whole: Array = sums.reshape(len(sums), -1).sum(1, np.int32).reshape(-1, *(1,) * len(image))
        return whole
    for extent, count, (before, _), s, d in zip(image, results, pads, stride, dilation, strict=True):
        at = np.arange(count)[:, None] * s - before + np.arange(sums.shape[1]) * d
        inside = ((at >= 0) & (at < extent)).astype(np.int64)
        # this axis of taps goes, and one of results comes last
        sums = np.tensordot(sums, inside, (1, 1))
    found: Array = sums.astype(np.int32)
    return found
