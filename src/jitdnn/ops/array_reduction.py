"""Reductions of arrays on a GPU, with the expression that is reduced in the same kernel; products; single numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import InvalidShape, InvalidType
from jitdnn.ops.array_dtypes import BOOL
from jitdnn.ops.array_expression import (
    LazyArray,
    applied,
    form_of,
    formula_of_form,
    identity,
    inputs_of,
    store,
)
from jitdnn.ops.matmul import matmul
from jitdnn.ops.reduction import ReductionKernel
from jitdnn.retention import Recent
from jitdnn.tensor import DeviceArray, TensorDescriptor, dtype_name, dtype_of

_kernels: Recent[Any, ReductionKernel] = Recent(512)


def reduced(
    reduce: str, array: DeviceArray, axis: Any, dtype: Any, out: DeviceArray | None, keepdims: bool
) -> DeviceArray:
    """An array, or an expression in the same kernel, reduced over axes."""
    form = array.form if isinstance(array, LazyArray) else None
    if form is None or form.dtype.kind in "iu":  # integers are reduced in real arithmetic: not their products
        made = array.compute() if isinstance(array, LazyArray) else array
        form = identity(made)
    is_whole = form.dtype.kind in "iub"
    if dtype is not None:
        name = dtype_of(dtype)
    elif reduce in ("argmin", "argmax"):
        name = "i64"
    elif reduce in ("min", "max") or not is_whole:
        name = dtype_name(form.dtype) or "f32"
    else:
        name = "u64" if form.dtype.kind == "u" else "i64"
    key = ("reduction", reduce, form.steps, len(form.arrays), len(form.numbers), name, form.dtype == BOOL)
    kernel = _kernels.recall(key)
    if kernel is None:
        kernel = _kernels.put(key, ReductionKernel(formula_of_form(form), (reduce,), name))
    result: DeviceArray = kernel(*inputs_of(form), axes=axis, keepdims=keepdims, out=out)
    return result


def mean(array: DeviceArray, axis: Any, dtype: Any, out: DeviceArray | None, keepdims: bool) -> DeviceArray:
    """The average over axes."""
    is_whole = array.dtype.kind in "iub"
    name = "f64" if is_whole else dtype_name(array.dtype) or "f32"
    wanted = name if dtype is None else dtype_of(dtype)
    total = reduced("add", array, axis, "f64" if "f64" in (name, wanted) else "f32", None, keepdims)
    count = array.size // max(1, total.size)
    form = form_of("divide", (total, float(count)))
    if out is None:
        out = DeviceArray.empty(array.gpu, TensorDescriptor.packed(form.shape, wanted))
    store(form, out)
    return out


def dot(x: DeviceArray, y: Any) -> Any:
    """The product of vectors or matrices."""
    if not isinstance(y, DeviceArray):
        raise InvalidType(
            f"the product of an array on a GPU and {shown(y)}: both must be there (jitdnn.to_device)"
        )
    if x.ndim == 1 and y.ndim == 1:
        if x.shape != y.shape:
            raise InvalidShape(f"the dot product of shapes {x.shape} and {y.shape}: they must be equal")
        return applied("multiply", x, y).sum(
            dtype=None if x.dtype.kind in "iub" else np.result_type(x.dtype, y.dtype)
        )
    return matmul(x, y)


def item(array: DeviceArray) -> Any:
    """The number in an array of one element."""
    if array.size != 1:
        raise InvalidShape(
            f"an array of shape {array.shape} is no number, and neither true nor false: it has {array.size}"
        )
    return array.numpy().reshape(-1)[0].item()
