"""QLinearConv and QLinearMatMul: products of 8-bit integers whose sums are scaled back to 8 bits.

Sums are exact. Each is multiplied by the scale of x and w over that of y, rounded to the nearest, ties to even, and
saturated once the zero of y is added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.convolution import centred, check_taps, conv
from jitdnn.frameworks.onnx.integer_products import convolved, multiplied, sums, takes_bytes
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.products import matmul
from jitdnn.frameworks.onnx.quantization import computable
from jitdnn.frameworks.onnx.spatial import Ints, ones, padding
from jitdnn.graph import primitives as jd


def qlinear_conv(
    x: Any,
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
) -> Any:
    """`bias` is in units of the scale of x times that of w."""
    if takes_bytes(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias):
        found = sums(x, x_scale, x_zero, w, w_scale, w_zero, bias, 0)
        if found is not None:
            rank = x.ndim - 2
            check_taps(w, kernel_shape, site)
            dilation, stride = ones(dilations, rank), ones(strides, rank)
            pairs = padding(auto_pad, pads, x.shape[2:], w.shape[2:], stride, dilation)
            after = float(y_scale.item()), int(y_zero.item())
            return convolved(
                x, int(x_zero.item()), found, after, y_zero.dtype, pairs, stride, dilation, group
            )  # fmt: skip
    total = conv(
        centred(x, x_zero, 0), centred(w, w_zero, 0), None if bias is None else bias.astype(np.float64),
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides, site=site,
    )  # fmt: skip
    factor = np.asarray(x_scale.reshape(()) * w_scale / y_scale.reshape(()))
    if factor.size > 1:
        factor = factor.reshape(-1, *(1,) * (x.ndim - 2))
    return rescaled(total, factor, y_zero.reshape(()))


def qlinear_matmul(
    a: Any,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
    /,
) -> Any:
    """Scales and zeros of one number, of a's rows, of b's columns."""
    if b.ndim == 2 and a.ndim > 1 and takes_bytes(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
        found = (
            sums(a, a_scale, a_zero, b, b_scale, b_zero, None, 1)
            if y_scale.size == y_zero.size == 1
            else None
        )
        if found is not None:
            return multiplied(a, found, (float(y_scale.item()), int(y_zero.item())), y_zero.dtype)
    left = centred(computable(a), _as_list(a_zero), max(a.ndim - 2, 0))
    total = matmul(left, centred(computable(b), _as_list(b_zero), b.ndim - 1))
    factor = np.asarray(_of_lines(a_scale, a.ndim) * _flat(b_scale) / _flat(y_scale))
    return rescaled(total, factor.reshape(()) if factor.size == 1 else factor, _flat(y_zero))


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
