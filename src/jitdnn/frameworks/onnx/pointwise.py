"""One traced function over every element, with NumPy's broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from jitdnn.errors import NotSupported
from jitdnn.frameworks.onnx.operator import Array
from jitdnn.graph import primitives as jd
from jitdnn.graph.tracer import operands_in
from jitdnn.rtcg.expression import Expression, trace

_MOST = 2**63 - 1


def is_real(x: Array) -> bool:
    """True for the floating types, bfloat16 among them."""
    return bool(x.dtype.kind == "f" or x.dtype.name == "bfloat16")


@functools.lru_cache(4096)
def _kernel(expression: Expression) -> Any:
    """One kernel for equal formulas, however often they are traced: its calls are remembered."""
    return jd.elementwise(expression)


def pointwise(function: Callable[..., Any], *arrays: Any, dtype: np.dtype[Any] | None = None) -> Array:
    """The function over the arrays, of the first one's type unless `dtype` says another.

    A result of no axes comes from arrays of no axes, as everywhere in ONNX.
    """
    operand = next(operands_in(arrays), None)
    if operand is not None:
        kind = arrays[0].dtype if dtype is None else dtype
        return cast(Array, operand.tracer.pointwise(trace(function), arrays, kind))
    for array in arrays:
        if array.dtype == object:
            raise NotSupported("text is not covered")
        if array.dtype == np.uint64 and array.size and array.max() > _MOST:
            raise NotSupported(
                "uint64 from 2^63 on is not covered: integers are computed as 64 bits with a sign"
            )
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    out = np.empty(shape or (1,), arrays[0].dtype if dtype is None else dtype)
    operands = [array.reshape(1) if array.ndim == 0 else array for array in arrays]
    if out.size:
        _kernel(trace(function))(*operands, out=out)
    return out.reshape(shape)


def applied(function: Callable[..., Any], x: Array, **arguments: Any) -> Any:
    """A function of the library over one array, also over one of no axes, which it does not know."""
    if x.ndim == 0:
        return function(x.reshape(1), **arguments).reshape(())
    return function(x, **arguments)
