"""MatMul, Gemm, their integer forms, and Det."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.convolution import centred
from jitdnn.frameworks.onnx.integer_products import integer_product, takes_bytes
from jitdnn.frameworks.onnx.operator import Array, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.graph import primitives as jd
from jitdnn.graph.tracer import operands_in


def matmul(a: Array, b: Array, /) -> Any:
    """As NumPy's: a vector on either side is a row or a column that is dropped again."""
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    product = jd.matmul(left, right)
    if b.ndim == 1:
        product = product[..., 0]
    return product[..., 0] if a.ndim == 1 and b.ndim == 1 else product[..., 0, :] if a.ndim == 1 else product


def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    /,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Any:
    left = a.T if transA else a
    right = b.T if transB else b
    if c is None or beta == 0.0:
        return jd.matmul(left, right, alpha=alpha)
    if next(operands_in([a, b, c]), None) is not None:
        product = jd.matmul(left, right) if alpha == 1.0 else jd.matmul(left, right, alpha=alpha)
        return pointwise(lambda v, more: v + more * beta, product, c)
    y = np.empty((left.shape[0], right.shape[1]), a.dtype)
    jd.add(c.reshape(1, 1) if c.ndim == 0 else c, out=y)
    return jd.matmul(left, right, alpha=alpha, beta=beta, out=y)


def matmul_integer(a: Any, b: Array, a_zero: Any = None, b_zero: Array | None = None, /) -> Any:
    """Of bytes less their zero points (of a's rows, of b's columns), whose sums float64 holds exactly."""
    if takes_bytes(a, b, b_zero) and (a_zero is None or a_zero.size == 1):
        found = integer_product(a, b, None if a_zero is None else a_zero.reshape(()), b_zero)
        if found is not None:
            return found
    left = centred(a, a_zero, a.ndim - 2) if a.ndim > 1 else centred(a, a_zero, 0)
    return matmul(left, centred(b, b_zero, b.ndim - 1)).astype(np.int32)


def det(x: Array, /) -> Array:
    """Determinants of the matrices of the last two axes, by LAPACK."""
    if x.dtype.itemsize < 4:
        return np.asarray(np.linalg.det(x.astype(np.float32)), x.dtype)
    return np.asarray(np.linalg.det(x))


OPERATORS = table(Det=det, Gemm=gemm, MatMul=matmul, MatMulInteger=matmul_integer)
