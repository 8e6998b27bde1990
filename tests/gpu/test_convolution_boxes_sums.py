"""Sums by channel of formulas of what convolutions in boxes give, with a tensor and numbers of channels beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convolution_cases import convolution
from jitdnn.kernels.cuda.convolution.boxes import correlation_plan as results
from jitdnn.kernels.cuda.convolution.boxes.algorithm import summed_convolution
from jitdnn.kernels.cuda.convolution.boxes.sums import summing_of
from jitdnn.rtcg.expression import trace, where
from jitdnn.tensor import TensorDescriptor
from warpgroup_cases import on_hopper  # noqa: F401


def _gradient(x: Any, mean: Any, rstd: Any, weight: Any, bias: Any, dy: Any) -> Any:
    """The gradient of a leaky rectifier behind a normalization."""
    return where((x - mean) * rstd * weight + bias > 0, dy, 0.01 * dy)


FORMULAS = (
    trace(_gradient),
    trace(lambda x, mean, rstd, weight, bias, dy: _gradient(x, mean, rstd, weight, bias, dy) * (x - mean)),
)
WORDS = (
    "bwd_data n2 c32 d5 h9 w17 k32 t3 r3 s3 pad1 bf16",
    "bwd_data n5 c24 d3 h5 w9 k40 t2 r3 s3 pad1 bf16",
    "fwd n3 c40 h9 w20 k64 r3 s3 pad1 dil2 f16",
    "bwd_data n2 c40 d3 h10 w18 k8 t3 r2 s2 pad2x0x1 dil1x3x2 f16",
    "fwd n2 c16 w70 k32 s5 pad2 bf16",
)


def _bits(values: Any, dtype: str) -> Any:
    if dtype == "f16":
        return values.astype(np.float16)
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _numbers(bits: Any, dtype: str) -> Any:
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class _Memory:
    """An array on a device, in the order of a descriptor of packed memory."""

    def __init__(self, device: Any, descriptor: TensorDescriptor, values: Any) -> None:
        order = np.argsort([-stride for stride in descriptor.strides], kind="stable")
        self.order, self.shape, self.device = order, descriptor.shape, device
        self.memory = device.allocate(values.nbytes + 64)
        self.dtype = values.dtype
        device.write(self.memory.pointer, np.ascontiguousarray(values.transpose(order)))

    @property
    def pointer(self) -> int:
        return int(self.memory.pointer)

    def read(self) -> Any:
        found = np.empty([self.shape[axis] for axis in self.order], self.dtype)
        self.device.read(found, self.pointer)
        return found.transpose(np.argsort(self.order))


@pytest.mark.parametrize("by_image", [False, True])
@pytest.mark.parametrize("words", WORDS)
def test_sums_of_a_gradient(words: str, by_image: bool, cuda_device: Any) -> None:
    """Both sums of a normalization's gradient, of whatever box has room, twice with the same bits."""
    problem = convolution(f"conv_{words} nhwc")
    rng, dtype, y = np.random.default_rng(3), problem.dtype, problem.output
    narrow = (y.shape[0] if by_image else 1, y.shape[1], *(1 for _ in y.shape[2:]))
    numbers = [rng.standard_normal(narrow).astype(np.float32) for _ in range(4)]
    form = TensorDescriptor(narrow, (y.shape[1], 1, *(1 for _ in y.shape[2:])), "f32")
    operands = [y, form, form, form, form, y]
    inputs = [
        _bits(rng.standard_normal(one.descriptor.shape) * 0.3, dtype)
        for one in (*problem.inputs, problem.outputs[0])
    ]
    a, b, beside = (_numbers(one, dtype) for one in inputs)
    expected = problem.reference(a, b)
    axes = tuple(axis for axis in range(expected.ndim) if axis > 1 or (axis == 0 and not by_image))
    summing = summing_of(problem, FORMULAS, operands, 5, by_image)
    assert not isinstance(summing, str)
    layer = results.Layer.of(problem)
    for own in filter(None, (layer, layer.turned)):
        boxes = list(own.boxes(cuda_device.shared_bytes, summing))
        for box in {boxes[0], boxes[-1]}:
            found = summed_convolution(problem, FORMULAS, operands, 5, by_image, cuda_device, (box,))
            assert not isinstance(found, str), found
            kernel, room = found
            memories = [
                _Memory(cuda_device, o.descriptor, v) for o, v in zip(problem.inputs, inputs, strict=False)
            ]
            memories.append(_Memory(cuda_device, y, np.full_like(inputs[2], 0x7FFF)))
            flat = TensorDescriptor.packed(narrow[:2], "f32")
            totals = [_Memory(cuda_device, flat, np.full(narrow[:2], np.nan, np.float32)) for _ in range(2)]
            given = [_Memory(cuda_device, y, inputs[2])]
            given += [_Memory(cuda_device, flat, one.reshape(narrow[:2])) for one in numbers]
            workspace = cuda_device.allocate(room)
            cuda_device.write(workspace.pointer, np.full(room, 0xFF, np.uint8))
            pointers = [one.pointer for one in (*memories, *totals, *given)]
            before: Any = None
            for _ in range(2):
                kernel(None, pointers, 1.0, 0.0, workspace.pointer)
                stored = _numbers(memories[2].read(), dtype)
                assert np.linalg.norm(stored - expected) < 1e-2 * np.linalg.norm(expected)
                sums = [one.read() for one in totals]
                assert before is None or all(map(np.array_equal, before, sums))
                before = sums
            wide = [beside, *(one.astype(np.float64) for one in numbers), stored]
            z = (wide[0] - wide[1]) * wide[2] * wide[3] + wide[4]
            dz = np.where(z > 0, stored, 0.01 * stored)
            for made, exact in zip(sums, (dz, dz * (wide[0] - wide[1])), strict=True):
                total = exact.sum(axes).reshape(made.shape)
                # a result whose sign is within rounding may be on either side
                assert np.abs(made - total).max() < 1e-4 * np.abs(exact).sum(axes).max()


def test_what_is_refused() -> None:
    problem = convolution("conv_bwd_data n2 c32 h9 w9 k32 r3 s3 pad1 bf16 nhwc")
    y = problem.output
    first = TensorDescriptor.packed(y.shape, "bf16")
    for operands, reason in (
        ([y, first], "channels innermost"),
        ([y, y, y], "one tensor"),
        ([y, TensorDescriptor((1, 32, 1, 1), (32, 1, 1, 1), "bf16")], "are f32"),
        ([y, *[TensorDescriptor((1, 32, 1, 1), (32, 1, 1, 1), "f32")] * 9], "at most 8"),
    ):
        assert reason in str(summing_of(problem, FORMULAS, operands, 0, True))
    assert "two are summed" in str(summing_of(problem, FORMULAS[:1], [y], 0, True))
