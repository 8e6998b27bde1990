"""Operators of the domain com.microsoft over 8-bit integers: sums, activations and pools between quantized tensors, and
products whose operand or result is real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitdnn.errors import InvalidShape
from jitdnn.frameworks.onnx import integer_products, pooling, quantization, quantized, quantized_recurrent
from jitdnn.frameworks.onnx.integer_products import multiplied, takes_bytes
from jitdnn.frameworks.onnx.operator import Array, Function, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.products import matmul_integer
from jitdnn.frameworks.onnx.spatial import Ints
from jitdnn.frameworks.onnx.views import bounded
from jitdnn.graph import primitives as jd

_REAL = np.dtype(np.float32)


def _pair(operation: Callable[[Any, Any], Any]) -> Function:
    """Two quantized operands and a quantized result, in one pass."""

    def run(
        a: Array, a_scale: Array, a_zero: Array | None, b: Array, b_scale: Array, b_zero: Array | None,
        y_scale: Array, y_zero: Array | None = None, /,
    ) -> Array:  # fmt: skip
        zeros = [_zero(zero, a) for zero in (a_zero, b_zero, y_zero)]
        return pointwise(
            lambda v, p, z, w, q, x, r, o: jd.rint(operation((v - z) * p, (w - x) * q) / r) + o,
            a, _one(a_scale), zeros[0], b, _one(b_scale), zeros[1], _one(y_scale), zeros[2], dtype=a.dtype,
        )  # fmt: skip

    return run


def _one(scale: Array) -> Array:
    return scale.reshape(()) if scale.size == 1 else scale


def _zero(zero: Array | None, like: Array) -> Array:
    return np.zeros((), like.dtype) if zero is None else _one(zero)


def _each(function: Callable[..., Any]) -> Function:
    """A function of every number between two quantizations, in one pass."""

    def run(
        x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None, /,
        *, alpha: float = 0.01,
    ) -> Array:  # fmt: skip
        return pointwise(
            lambda v, p, z, r, o: jd.rint(function((v - z) * p, alpha) / r) + o,
            x, _one(x_scale), _zero(x_zero, x), _one(y_scale), _zero(y_zero, x), dtype=x.dtype,
        )  # fmt: skip

    return run


def _sigmoid(
    x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None, /
) -> Array:
    found: Array = _each(lambda v, _: 1.0 / (1.0 + jd.exp(-v)))(x, x_scale, x_zero, y_scale, y_zero)
    return found


def _real(x: Array, scale: Array, zero: Array | None) -> Array:
    return pointwise(lambda v, p, z: (v - z) * p, x, _one(scale), _zero(zero, x), dtype=_REAL)


def _stored(x: Any, scale: Array, zero: Array | None, dtype: np.dtype[Any]) -> Array:
    shift = np.zeros((), dtype) if zero is None else _one(zero)
    return pointwise(lambda v, p, z: jd.rint(v / p) + z, x, _one(scale), shift, dtype=shift.dtype)


def global_average_pool(
    x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array, /, *, channels_last: int = 0
) -> Array:
    axes = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    means = jd.reduce(_real(x, x_scale, x_zero), "avg", axes, keepdims=True)
    return _stored(means, y_scale, y_zero, x.dtype)


def average_pool(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    real = _real(x, x_scale, x_zero)
    first, last = (0, x.ndim - 1, *range(1, x.ndim - 1)), (0, *range(2, x.ndim), 1)
    y = pooling.OPERATORS["AveragePool"].function(
        real.transpose(first) if channels_last else real, auto_pad=auto_pad, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    return _stored(y.transpose(last) if channels_last else y, y_scale, y_zero, x.dtype)


def softmax(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array,
    /,
    *,
    axis: int = -1,
    opset: int,
) -> Array:
    over = axis % x.ndim if opset >= 13 else tuple(range(axis % x.ndim, x.ndim))
    return _stored(jd.softmax(_real(x, x_scale, x_zero), over), y_scale, y_zero, x.dtype)


def reduce_mean(
    x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None, /,
    *, axes: Ints = (), keepdims: int = 1,
) -> Array:  # fmt: skip
    over = tuple(axis % x.ndim for axis in axes) or tuple(range(x.ndim))
    means = jd.reduce(_real(x, x_scale, x_zero), "avg", over, keepdims=bool(keepdims))
    return _stored(means, y_scale, y_zero, x.dtype)


def concat(y_scale: Array, y_zero: Array, /, *given: Array, axis: int, site: Site) -> Any:
    """Triples of (values, scale, zero), each brought to the scale of y."""
    if len(given) % 3:
        raise site.refuse(f"{len(given)} inputs after y's are not covered: each takes values, scale and zero")
    same = np.array_equal(y_scale, given[1]) and np.array_equal(y_zero, given[2]) and len(given) == 3
    parts = [
        pointwise(
            lambda v, p, z, r, o: jd.rint((v - z) * p / r) + o,
            x, _one(scale), _one(zero), _one(y_scale), _one(y_zero), dtype=y_zero.dtype,
        )
        for x, scale, zero in zip(given[::3], given[1::3], given[2::3], strict=True)
    ] if not same else [given[0]]  # fmt: skip
    return jd.concat(parts, axis)


def where(
    condition: Array, x: Array, x_scale: Array, x_zero: Array, y: Array, y_scale: Array, y_zero: Array,
    z_scale: Array, z_zero: Array, /,
) -> Array:  # fmt: skip
    return pointwise(
        lambda c, v, p, a, w, q, b, r, o: jd.rint(jd.where(c != 0.0, (v - a) * p, (w - b) * q) / r) + o,
        condition, x, _one(x_scale), _one(x_zero), y, _one(y_scale), _one(y_zero), _one(z_scale), _one(z_zero),
        dtype=x.dtype,
    )  # fmt: skip


def gemm(
    a: Any,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
    /,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """`c` is in units of alpha times both scales; without a scale of y the result is real."""
    left, right = a.T if transA else a, b.T if transB else b
    if takes_bytes(left, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero):
        scale = np.asarray(np.float32(alpha) * a_scale)
        found = integer_products.sums(left, scale, a_zero, b, b_scale, b_zero, c, 1, is_turned=bool(transB))
        if found is not None and y_scale is None:
            return multiplied(left, found, None, _REAL)
        if found is not None and y_scale is not None and y_scale.size == 1:
            after = float(y_scale.item()), 0 if y_zero is None else int(y_zero.item())
            return multiplied(left, found, after, a.dtype)
    sums = matmul_integer(left, right, _one(a_zero), _one(b_zero))
    if c is not None:
        sums = pointwise(lambda v, w: v + w, sums, c)
    factor = np.asarray(np.float32(alpha) * _one(a_scale) * _one(b_scale))
    if y_scale is None:
        return pointwise(lambda v, f: v * f, sums, factor, dtype=_REAL)
    zero = np.zeros((), a.dtype) if y_zero is None else _one(y_zero)
    return quantized.rescaled(sums, np.asarray(factor / _one(y_scale)), zero)


def matmul_integer_to_float(
    a: Array, b: Array, a_scale: Array, b_scale: Array, a_zero: Array | None = None, b_zero: Array | None = None,
    bias: Array | None = None, /,
) -> Array:  # fmt: skip
    sums = matmul_integer(
        a, b, None if a_zero is None else _one(a_zero), None if b_zero is None else _one(b_zero)
    )
    if bias is None:
        return pointwise(lambda v, p, q: v * (p * q), sums, _one(a_scale), _one(b_scale), dtype=_REAL)
    return pointwise(
        lambda v, p, q, c: v * (p * q) + c, sums, _one(a_scale), _one(b_scale), bias, dtype=_REAL
    )


def dynamic_quantize_matmul(
    a: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    site: Site,
) -> Array:
    """a is quantized by the range of its values first."""
    numbers, scale, zero = quantization.dynamic_quantize_linear(a, site=site)
    return matmul_integer_to_float(numbers, b, scale, b_scale, zero, b_zero, bias)


def matmul_bits(
    a: Array,
    b: Array,
    scales: Array,
    zeros: Array | None = None,
    groups: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    site: Site,
) -> Any:
    """a times the transpose of (N, K) weights of 2, 4 or 8 bits, each block of which has a scale and a zero."""
    if bits not in {2, 4, 8} or block_size < 1 or groups is not None:
        raise site.refuse(f"{bits} bits in blocks of {block_size}, or an order of groups, are not covered")
    blocks = -(-K // block_size)
    expected = (N, blocks, block_size * bits // 8)
    if b.shape != expected or scales.size != N * blocks:
        raise InvalidShape(
            f"{site.operator}: b {b.shape} and scales {scales.shape} must be {expected} and {(N, blocks)}"
        )
    bounded((N, blocks * block_size), scales)
    numbers = _unpacked(b.reshape(N, blocks, -1), bits, block_size)
    factor = scales.reshape(N, blocks, 1)
    if zeros is None:
        shift: Array = np.full((1, 1, 1), 1 << (bits - 1), np.uint8)
    elif zeros.dtype == np.uint8:
        shift = _unpacked(zeros.reshape(N, -1), bits, blocks)[..., None]
    else:
        shift = zeros.reshape(N, blocks, 1)
    w = pointwise(lambda v, s, z: (v - z) * s, numbers, factor, shift, dtype=a.dtype)
    y = jd.matmul(a, w.reshape(N, -1)[:, :K].T)
    return y if bias is None else pointwise(lambda v, c: v + c, y, bias)


def _unpacked(x: Array, bits: int, count: int) -> Array:
    """The numbers of a row of bytes, the lowest bits first."""
    if bits == 8:
        return x[..., :count]
    parts = [(x >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*x.shape[:-1], -1)[..., :count]


OPERATORS = table(
    DequantizeLinear=quantization.dequantize_linear,
    DynamicQuantizeLSTM=quantized_recurrent.dynamic_quantize_lstm,
    DynamicQuantizeMatMul=dynamic_quantize_matmul,
    MatMulIntegerToFloat=matmul_integer_to_float,
    MatMulNBits=matmul_bits,
    QGemm=gemm,
    QLinearAdd=_pair(lambda a, b: a + b),
    QLinearAveragePool=average_pool,
    QLinearConcat=concat,
    QLinearConv=quantized.qlinear_conv,
    QLinearGlobalAveragePool=global_average_pool,
    QLinearLeakyRelu=_each(lambda v, alpha: jd.where(v < 0.0, v * alpha, v)),
    QLinearMul=_pair(lambda a, b: a * b),
    QLinearReduceMean=reduce_mean,
    QLinearSigmoid=_sigmoid,
    QLinearSoftmax=softmax,
    QLinearWhere=where,
    QuantizeLinear=quantization.quantize_linear,
)
