"""QuantizeLinear and DequantizeLinear: numbers of few bits, with a scale and a zero for a tensor, an axis or a block.

A real number r is stored as q for r = scale * (q - zero). Quotients are rounded to the nearest integer, ties to even,
before the zero is added, and saturated. Types of less than 8 bits are computed as 8-bit integers, of which the values
are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.errors import InvalidShape
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import is_real, pointwise
from jitdnn.frameworks.onnx.reduction import reduced
from jitdnn.frameworks.onnx.views import converted, element_type
from jitdnn.graph import primitives as jd
from jitdnn.graph.operand import Operand, Untraceable
from jitdnn.graph.passes.quantized_sums import BYTES
from jitdnn.graph.stored import Stored, remember

#: the least and greatest number of the types that are narrower than 8 bits, by their names
NARROW = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
_UINT8 = 2


def quantize_linear(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    /,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    site: Site,
) -> Array:
    """The division is in the type that `precision` names, else in that of x."""
    dtype = zero.dtype if zero is not None else element_type(output_dtype or _UINT8)
    if zero is not None and output_dtype and element_type(output_dtype) != dtype:
        raise site.refuse(
            f"output_dtype {element_type(output_dtype)} with a zero of type {dtype} is not covered"
        )
    kind = element_type(precision) if precision else x.dtype if is_real(x) else scale.dtype
    view, scale, zero = _aligned(x, scale, zero, axis, block_size, site)
    if not (dtype.kind in "iu" or dtype.name in NARROW):
        quotient = pointwise(lambda v, s: v / s, view, scale, dtype=np.dtype(np.float32))
        if zero is not None and np.any(zero.astype(np.float32)):
            raise site.refuse(f"a zero other than 0 of type {dtype.name} is not covered")
        return converted(quotient, dtype, bool(saturate), "up", site).reshape(x.shape)
    y = _integers(view, scale, zero, dtype, kind)
    return y.reshape(x.shape)


def _integers(x: Any, scale: Array, zero: Array | None, dtype: np.dtype[Any], kind: np.dtype[Any]) -> Array:
    low, high = NARROW.get(dtype.name, (None, None))
    stored = dtype if low is None else np.dtype(np.int8 if low else np.uint8)
    if kind.itemsize <= 2:  # a quotient of half precision is rounded before it is made an integer
        if isinstance(x, Operand):
            raise Untraceable("a fused formula is rounded once")
        x, scale = pointwise(lambda v, s: v / s, x, scale, dtype=kind), np.ones((), kind)
    shift = np.zeros((), np.int8) if zero is None else computable(zero)
    if low is None:
        return pointwise(lambda v, s, z: jd.rint(v / s) + z, x, scale, shift, dtype=stored)
    y = pointwise(
        lambda v, s, z: jd.minimum(jd.maximum(jd.rint(v / s) + z, low), high), x, scale, shift, dtype=stored
    )
    return y.astype(dtype)


def dequantize_linear(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    /,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    site: Site,
) -> Array:
    dtype = element_type(output_dtype) if output_dtype else scale.dtype
    view, scale, zero = _aligned(x, scale, zero, axis, block_size, site)
    view, zero = computable(view), None if zero is None else computable(zero)
    if zero is None or not np.any(zero):
        y = pointwise(lambda v, s: v * s, view, scale, dtype=dtype)
    else:
        y = pointwise(lambda v, s, z: (v - z) * s, view, scale, zero, dtype=dtype)
    y = y.reshape(x.shape)
    if isinstance(y, np.ndarray) and view.dtype in BYTES and not block_size:
        remember(y, Stored(view, scale, np.zeros((), np.int8) if zero is None else zero))
    return y


def dynamic_quantize_linear(x: Array, /, *, site: Site) -> tuple[Array, Array, Array]:
    """The range of x, which 0 belongs to, as 256 numbers."""
    axes, kind = tuple(range(x.ndim)), np.dtype(np.float32)
    if x.size:
        least, most = (reduced(x, op, axes, False, site) if axes else x for op in ("min", "max"))
    else:
        least = most = np.zeros((), kind)
    scale = pointwise(_step, least, most, dtype=kind)
    zero = pointwise(
        lambda low, s: jd.rint(jd.minimum(jd.maximum(-jd.minimum(low, 0.0) / s, 0.0), 255.0)), least, scale,
        dtype=np.dtype(np.uint8),
    )  # fmt: skip
    y = pointwise(lambda v, s, z: jd.rint(v / s) + z, x, scale, zero, dtype=np.dtype(np.uint8))
    return y, scale, zero


def _step(low: Any, high: Any) -> Any:
    """A 255th of the range, or of 1 where there is none."""
    span = jd.maximum(high, 0.0) - jd.minimum(low, 0.0)
    return jd.where(span == 0.0, 1.0, span) / 255.0


def computable(x: Array) -> Array:
    """The same numbers in a type that this library computes with."""
    if x.dtype.name in NARROW:
        return x.astype(np.int8 if NARROW[x.dtype.name][0] else np.uint8)
    if x.dtype.name.startswith("float") and x.dtype.itemsize == 1 and x.dtype.name not in _BYTE_FLOATS:
        return x.astype(np.float32)
    return x


_BYTE_FLOATS = ("float8_e4m3fn", "float8_e5m2")


def _aligned(
    x: Array, scale: Array, zero: Array | None, axis: int, block: int, site: Site
) -> tuple[Array, Array, Array | None]:
    """x, scale and zero in shapes that broadcast against each other: of blocks, x with an axis more where they divide
    it."""
    if scale.ndim == 0 or (scale.ndim == 1 and scale.size == 1 and not block):
        # a list of one number is one for all
        return x, scale.reshape(()), None if zero is None else zero.reshape(())
    axis = axis % x.ndim
    if not block:
        if scale.shape != (x.shape[axis],):
            raise InvalidShape(
                f"{site.operator}: scales of shape {scale.shape} do not fit axis {axis} of {x.shape}: one number, or "
                f"{x.shape[axis]} of them, or a block_size"
            )
        shape = (-1, *(1,) * (x.ndim - 1 - axis))
        return x, scale.reshape(shape), None if zero is None else zero.reshape(shape)
    blocks = -(-x.shape[axis] // block)
    if scale.shape != (*x.shape[:axis], blocks, *x.shape[axis + 1 :]):
        raise InvalidShape(
            f"{site.operator}: scales of shape {scale.shape} do not fit blocks of {block} along axis {axis} of "
            f"{x.shape}"
        )
    if x.shape[axis] % block:
        parts = [None if p is None else np.repeat(p, block, axis) for p in (scale, zero)]
        cut = (slice(None),) * axis + (slice(x.shape[axis]),)
        scale, zero = (None if p is None else p[cut] for p in parts)  # type: ignore[assignment]
        return x, scale, zero
    view = x.reshape(*x.shape[:axis], blocks, block, *x.shape[axis + 1 :])
    return view, np.expand_dims(scale, axis + 1), None if zero is None else np.expand_dims(zero, axis + 1)


OPERATORS = table(
    DequantizeLinear=dequantize_linear,
    DynamicQuantizeLinear=dynamic_quantize_linear,
    QuantizeLinear=quantize_linear,
)
