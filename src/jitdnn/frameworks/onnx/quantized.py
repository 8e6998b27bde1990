"""QLinearConv and QLinearMatMul: products of 8-bit integers whose sums are scaled back to 8 bits.

Sums are exact. Each is multiplied by the scale of x and w over that of y, rounded to the nearest, ties to even, and
saturated once the zero of y is added.
"""

from __future__ import annotations

import numpy as np

from jitdnn.frameworks.onnx.convolution import centred, conv
from jitdnn.frameworks.onnx.operator import Site, table
from jitdnn.frameworks.onnx.pointwise import Array, pointwise
from jitdnn.frameworks.onnx.products import matmul
from jitdnn.frameworks.onnx.quantization import computable
from jitdnn.frameworks.onnx.spatial import Ints
from jitdnn.graph import primitives as jd


def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Array:
    """`bias` is in units of the scale of x times that of w."""
    sums = conv(
        centred(x, x_zero, 0), centred(w, w_zero, 0), None if bias is None else bias.astype(np.float64),
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides, site=site,
    )  # fmt: skip
    factor = np.asarray(x_scale.reshape(()) * w_scale / y_scale.reshape(()))
    if factor.size > 1:
        factor = factor.reshape(-1, *(1,) * (x.ndim - 2))
    return rescaled(sums, factor, y_zero.reshape(()))


def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
    /,
) -> Array:
    """Scales and zeros of one number, of a's rows, of b's columns."""
    left = centred(computable(a), _as_list(a_zero), max(a.ndim - 2, 0))
    sums = matmul(left, centred(computable(b), _as_list(b_zero), b.ndim - 1))
    factor = np.asarray(_of_lines(a_scale, a.ndim) * _flat(b_scale) / _flat(y_scale))
    return rescaled(sums, factor.reshape(()) if factor.size == 1 else factor, _flat(y_zero))


def rescaled(sums: Array, factor: Array, zero: Array) -> Array:
    """Sums times the factor, rounded, plus the zero, of whose type the result is."""
    return pointwise(lambda v, f, z: jd.rint(v * f) + z, sums, factor, zero, dtype=zero.dtype)


def _flat(values: Array) -> Array:
    return values.reshape(()) if values.size == 1 else values


def _as_list(values: Array) -> Array:
    return values.reshape(-1) if values.size > 1 else values.reshape(())


def _of_lines(values: Array, rank: int) -> Array:
    if values.size == 1:
        return values.reshape(())
    return values if values.ndim > 1 or rank < 2 else values.reshape(-1, 1)


OPERATORS = table(QLinearConv=qlinear_conv, QLinearMatMul=qlinear_matmul)
