"""Whole tensors: copied, added, combined, reduced, padded, filled, scaled; against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnn_programs as programs
import jitdnn.cudnn as c
from cudnn_programs import Program

rng = np.random.default_rng(5)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return rng.standard_normal(shape).astype(dtype)


def test_transform_between_layouts_and_types(p: Program) -> None:
    x = normal(2, 3, 4, 5)
    y = np.ascontiguousarray(normal(2, 4, 5, 3)).transpose(0, 3, 1, 2)
    before = y.copy()
    c.cudnnTransformTensor(p.handle, 2.0, p.tensor(x), x, 0.5, p.tensor(y), y)
    np.testing.assert_allclose(y, 2 * x + 0.5 * before, rtol=1e-6)
    half = np.empty((2, 3, 4, 5), np.float16)
    c.cudnnTransformTensor(p.handle, 1.0, p.tensor(x), x, 0.0, p.tensor(half), half)
    np.testing.assert_array_equal(half, x.astype(np.float16))


def test_add_broadcasts(p: Program) -> None:
    a, out = normal(1, 3, 1, 5), normal(2, 3, 4, 5)
    before = out.copy()
    c.cudnnAddTensor(p.handle, 2.0, p.tensor(a), a, 0.5, p.tensor(out), out)
    np.testing.assert_allclose(out, 2 * a + 0.5 * before, rtol=1e-5)
    with pytest.raises(c.CudnnBadParam):
        c.cudnnAddTensor(p.handle, 1.0, p.tensor(out), out, 0.0, p.tensor(a), a)


OPERATIONS = {
    "ADD": lambda a, b: a + b,
    "MUL": lambda a, b: a * b,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "SQRT": lambda a, b: np.sqrt(a),
    "NOT": lambda a, b: 1 - a,
}


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_on_two(p: Program, op: str) -> None:
    a, b, out = np.abs(normal(2, 3, 4, 5)), normal(1, 3, 1, 1), normal(2, 3, 4, 5)
    found = programs.pair(p, a, b, out, op, (1.5, -0.5, 0.25))
    np.testing.assert_allclose(found, OPERATIONS[op](1.5 * a, -0.5 * b) + 0.25 * out, rtol=1e-5, atol=1e-5)


REDUCTIONS = {
    "ADD": np.sum,
    "MUL": np.prod,
    "MIN": np.min,
    "MAX": np.max,
    "AMAX": lambda a, axis, keepdims: np.abs(a).max(axis, keepdims=keepdims),
    "AVG": np.mean,
    "NORM1": lambda a, axis, keepdims: np.abs(a).sum(axis, keepdims=keepdims),
    "NORM2": lambda a, axis, keepdims: np.sqrt((a * a).sum(axis, keepdims=keepdims)),
    "MUL_NO_ZEROS": lambda a, axis, keepdims: np.where(a == 0, 1, a).prod(axis, keepdims=keepdims),
}


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(p: Program, op: str) -> None:
    a, out = normal(2, 3, 4, 5), normal(2, 1, 4, 1)
    a[0, 0] = 0
    found, where = programs.reduction(p, a, out, op, 2.0, 0.5, op in ("MIN", "MAX"))
    wide = a.astype(np.float64)
    np.testing.assert_allclose(
        found, 2 * REDUCTIONS[op](wide, axis=(1, 3), keepdims=True) + 0.5 * out, rtol=2e-5, atol=2e-5
    )
    if where is not None:
        flat = a.transpose(0, 2, 1, 3).reshape(2, 4, 15)
        best = flat.argmin(-1) if op == "MIN" else flat.argmax(-1)
        np.testing.assert_array_equal(where.reshape(2, 4), best)


def test_reduction_of_nothing_and_of_too_little_room(p: Program) -> None:
    a, out = normal(2, 3, 4, 5), normal(2, 3, 4, 5)
    found, _ = programs.reduction(p, a, out, "ADD", 1.0, 0.0, False)
    np.testing.assert_array_equal(found, a)
    how = c.cudnnCreateReduceTensorDescriptor()
    c.cudnnSetReduceTensorDescriptor(
        how, c.CUDNN_REDUCE_TENSOR_MAX, c.CUDNN_DATA_FLOAT, c.CUDNN_PROPAGATE_NAN,
        c.CUDNN_REDUCE_TENSOR_FLATTENED_INDICES, c.CUDNN_32BIT_INDICES,
    )  # fmt: skip
    small = normal(2, 1, 4, 5)
    with pytest.raises(c.CudnnBadParam, match="160"):
        c.cudnnReduceTensor(
            p.handle,
            how,
            np.zeros(159, np.uint8),
            159,
            None,
            0,
            1.0,
            p.tensor(a),
            a,
            0.0,
            p.tensor(small),
            small,
        )


def test_set_and_scale(p: Program) -> None:
    whole = normal(4, 6, 5)
    part, before = whole[1:3, ::2], whole.copy()
    c.cudnnScaleTensor(p.handle, p.tensor(part), part, -2.0)
    np.testing.assert_allclose(part, -2 * before[1:3, ::2])
    c.cudnnSetTensor(p.handle, p.tensor(part), part, 7.5)
    assert (part == 7.5).all()
    np.testing.assert_array_equal(whole[0], before[0])
    np.testing.assert_array_equal(whole[1:3, 1::2], before[1:3, 1::2])
    counts = np.zeros((2, 3, 4), np.int32)
    c.cudnnSetTensor(p.handle, p.tensor(counts), counts, -3)
    assert (counts == -3).all()


def test_padding(p: Program) -> None:
    x = normal(2, 3, 4, 5)
    how = c.cudnnCreateTensorTransformDescriptor()
    c.cudnnSetTensorTransformDescriptor(
        how, 4, c.CUDNN_TENSOR_NHWC, (0, 0, 1, 2), (0, 1, 0, 3), None, c.CUDNN_TRANSFORM_FOLD
    )
    desc = c.cudnnCreateTensorDescriptor()
    size = c.cudnnInitTransformDest(how, p.tensor(x), desc)
    expected = np.pad(x, ((0, 0), (0, 1), (1, 0), (2, 3)))
    assert size == expected.nbytes
    assert c.cudnnGetTensor4dDescriptor(desc)[1:5] == expected.shape
    out = np.full((2, 5, 10, 4), np.nan, np.float32)
    c.cudnnTransformTensorEx(p.handle, how, 3.0, p.tensor(x), x, 0.0, desc, out)
    np.testing.assert_allclose(out.transpose(0, 3, 1, 2), 3 * expected)
    target = c.cudnnCreateFilterDescriptor()
    c.cudnnSetFilterNdDescriptor(target, c.CUDNN_DATA_FLOAT, c.CUDNN_TENSOR_NHWC, 4, expected.shape)
    out[...] = np.nan
    c.cudnnTransformFilter(p.handle, how, 1.0, p.filter(x), x, 0.0, target, out)
    np.testing.assert_array_equal(out.transpose(0, 3, 1, 2), expected)
    c.cudnnSetTensorTransformDescriptor(
        how, 4, c.CUDNN_TENSOR_NHWC, None, None, (2, 2), c.CUDNN_TRANSFORM_FOLD
    )
    with pytest.raises(c.CudnnNotSupported, match="fold"):
        c.cudnnInitTransformDest(how, p.tensor(x), desc)
