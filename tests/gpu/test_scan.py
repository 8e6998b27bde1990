"""Results so far on GPUs: along and across, short rows and long ones in parts, any type, from either end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import Buffer
from jitdnn.kernels.gpu.reduction.scan import build_scan
from jitdnn.rtcg.expression import trace, where
from jitdnn.rtcg.folds import Fold, Reduction
from jitdnn.tensor import TensorDescriptor, compute_dtype, numpy_dtype

PLAIN = trace(lambda x: x)
NUMPY: dict[str, Any] = {
    "add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def scanned(
    device: Any, x: Any, tensors: tuple[TensorDescriptor, TensorDescriptor], axis: int,
    reduction: Reduction = "add", is_exclusive: bool = False, is_reverse: bool = False, computing: str | None = None,
) -> Any:  # fmt: skip
    computing = computing or compute_dtype(tensors[0].dtype)
    kernel, room = build_scan(PLAIN, reduction, is_exclusive, tensors, axis, is_reverse, device, computing)
    source, target = Buffer(tensors[0]), Buffer(tensors[1])
    source.values[...] = x
    outside = target.outside()
    memories = [device.allocate(b.memory.nbytes + 16) for b in (source, target)]
    for memory, buffer in zip(memories, (source, target), strict=True):
        device.write(memory.pointer, buffer.memory)
    scratch = device.allocate(max(1, room))
    pointers = [
        m.pointer + b.pointer - b.memory.ctypes.data for m, b in zip(memories, (source, target), strict=True)
    ]
    kernel(None, pointers, 1.0, 0.0, scratch.pointer)
    device.synchronize()
    device.read(target.memory, memories[1].pointer)
    assert (target.outside() == outside).all(), "wrote beside its output"
    return target.values.copy()


def expected(x: Any, axis: int, reduction: str, is_exclusive: bool, is_reverse: bool) -> Any:
    turned = np.flip(x, axis) if is_reverse else x
    result = NUMPY[reduction].accumulate(turned, axis=axis)
    if is_exclusive:
        first = {"add": 0, "multiply": 1, "max": -np.inf, "min": np.inf}[reduction]
        result = np.roll(result, 1, axis).astype(np.float64)
        index: list[Any] = [slice(None)] * x.ndim
        index[axis] = 0
        result[tuple(index)] = first
    return np.flip(result, axis) if is_reverse else result


CASES = [
    ((1,), 0, "f32"),
    ((7, 10), 1, "f32"),
    ((7, 10), 0, "f32"),
    ((5, 700), 1, "bf16"),
    ((3, 5000), 1, "f16"),
    ((2, 60001), 1, "f32"),
    ((60001, 2), 0, "f32"),
    ((4, 90, 30), 1, "f64"),
    ((300, 6), 1, "u8"),
    ((1, 30000), 1, "i8"),
]


@pytest.mark.parametrize(("shape", "axis", "dtype"), CASES)
def test_sums_so_far(shape: tuple[int, ...], axis: int, dtype: str, device: Any) -> None:
    number = CASES.index((shape, axis, dtype))
    reduction, is_exclusive, is_reverse = ("add", "max", "min")[number % 3], number % 2 == 1, number % 4 > 1
    x = np.random.default_rng(0).integers(0, 4, shape)
    result = "f64" if dtype in ("u8", "i8") else dtype
    tensors = TensorDescriptor.packed(shape, dtype), TensorDescriptor.packed(shape, result)
    for kind in {"add", reduction}:
        ours = scanned(
            device, x, tensors, axis, kind, is_exclusive, is_reverse, "f64" if result == "f64" else "f32"
        )
        wanted = expected(x, axis, kind, is_exclusive, is_reverse).astype(numpy_dtype(result))
        np.testing.assert_array_equal(ours.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("shape", [(3, 900), (900, 3), (2, 20000)])
def test_whole_numbers(shape: tuple[int, int], device: Any) -> None:
    x = np.random.default_rng(1).integers(-(2**40), 2**40, shape)
    tensors = TensorDescriptor.packed(shape, "i64"), TensorDescriptor.packed(shape, "i64")
    axis = int(shape[0] < shape[1])
    for kind in ("add", "max"):
        np.testing.assert_array_equal(
            scanned(device, x, tensors, axis, kind, computing="i64"), NUMPY[kind].accumulate(x, axis=axis)
        )


@pytest.mark.parametrize("shape", [(4, 37), (2, 50000), (20000, 3)])
def test_a_fold_that_does_not_commute(shape: tuple[int, int], device: Any) -> None:
    """The last number that is not 0."""
    x = np.random.default_rng(0).integers(0, 3, shape).astype(np.float32)
    last = Fold(trace(lambda a, b: where(b == 0.0, a, b)), 0.0)
    axis = int(shape[0] < shape[1])
    tensors = TensorDescriptor.packed(shape, "f32"), TensorDescriptor.packed(shape, "f32")
    ours = scanned(device, x, tensors, axis, last)
    lines = np.moveaxis(x, axis, -1)
    wanted = np.zeros_like(lines)
    sofar = np.zeros(lines.shape[0], np.float32)
    for i in range(lines.shape[1]):
        sofar = np.where(lines[:, i] == 0, sofar, lines[:, i])
        wanted[:, i] = sofar
    np.testing.assert_array_equal(np.moveaxis(ours, axis, -1), wanted)


@pytest.mark.parametrize("strides", [(-3, 40), (1, 9), (300, -2), (0, 1)])
def test_any_strides(strides: tuple[int, int], device: Any) -> None:
    x = np.random.default_rng(0).integers(0, 9, (8, 100))
    x = x[:1] if strides[0] == 0 else x
    tensors = TensorDescriptor((8, 100), strides, "f32"), TensorDescriptor((8, 100), (-1, 8), "f32")
    for axis in (0, 1):
        ours = scanned(device, x, tensors, axis)
        np.testing.assert_array_equal(ours, np.cumsum(np.broadcast_to(x, (8, 100)), axis))


@pytest.mark.parametrize("shape", [(1, 1 << 20), (1 << 20, 1), (4096, 4096)])
def test_compiles(shape: tuple[int, int], architecture: Any) -> None:
    tensors = TensorDescriptor.packed(shape, "bf16"), TensorDescriptor.packed(shape, "f32")
    for axis in (0, 1):
        build_scan(PLAIN, "add", False, tensors, axis, False, architecture, "f32")
