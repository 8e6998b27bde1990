"""Convolutions whose filter is as large as its stride, whose contiguous taps become channels.

Patches that touch without overlap (patch embeddings, downsampling, and the transposed convolutions that are their
gradients) hold every element of x once. Where the taps of an axis and the channels are contiguous, in x as in the
filter, they are the channels of a convolution with one tap along that axis. 16x16 patches of interleaved images become
16 taps of 48 channels instead of 256 of 3; patches that are whole images one tap, a matrix product. Nothing is copied:
the best algorithm of that convolution runs on the same memory.

Floors on an H100, bf16, forward: 4096 patches of 3x2x14x14 -> 1280, 12.3 GFLOP, 25 to 31 us of `mma` at 400 to 500
TFLOP/s; 64x3x224x224 -> 768 in 16x16 patches, 14.8 GFLOP, 30 to 37 us; their bytes take 6 and 13 us at 3.0 TB/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Epilogue, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.half_precision.shape import HALVES
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor


class Patch(KernelAlgorithm[Convolution, GpuDevice]):
    """Patches without overlap in all directions, as convolutions of fewer taps and more channels."""

    name = "patch"
    problem = Convolution
    takes_float8 = False

    def __init__(self, *others: Algorithm) -> None:
        """`others`: what may run the convolution of fewer taps."""
        self._others = others
        self._inner = lru_cache(512)(self._fastest)

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.is_integer or problem.dtype not in HALVES:
            return f"it multiplies bf16 and f16, not {problem.x.dtype}: direct takes every type"
        folded = fold(problem)
        if folded is None:
            return (
                "taps become channels where, along an axis, filter and stride are equal, nothing is padded or "
                "dilated, and both are contiguous in x and in the filter, as in nhwc; direct takes any problem"
            )
        if epilogue is not None and problem.direction == "bwd_data":
            return "the epilogue of a gradient of the data has another shape than the result it computes"
        if self._inner(folded, device, epilogue) is None:
            return f"no algorithm takes {folded}"
        return None

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        inner, folded = self._chosen(problem, device, epilogue)
        workspace = inner.workspace(folded, device, epilogue)
        seconds = inner.estimate(folded, device, epilogue)
        return PlannedKernel(workspace, seconds, lambda: inner.build(folded, device, epilogue))

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        inner, folded = self._chosen(problem, device, epilogue)
        return inner.spreads(folded, device, epilogue)

    def _chosen(
        self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None
    ) -> tuple[Algorithm, Convolution]:
        folded = fold(problem)
        assert folded is not None
        inner = self._inner(folded, device, epilogue)
        assert inner is not None
        return inner, folded

    def _fastest(self, folded: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> Algorithm | None:
        """The algorithm that should be fastest on the folded convolution."""
        takers = [other for other in self._others if other.refuse(folded, device, epilogue) is None]
        return min(takers, key=lambda other: other.estimate(folded, device, epilogue), default=None)


def fold(problem: Convolution) -> Convolution | None:
    """The same convolution with fewer taps and more channels; None if no taps follow the channels in memory."""
    if problem.groups != 1 or problem.mode != "cross_correlation":
        return None
    if 0 in problem.x.shape or 0 in problem.y.shape:
        return None
    axes = [
        axis
        for axis, taps in enumerate(problem.filter_spatial)
        if taps > 1
        and taps == problem.stride[axis]
        and problem.padding[axis] == (0, 0)
        and problem.dilation[axis] == 1
        # what no patch holds must become zero
        and not (problem.direction == "bwd_data" and problem.spatial[axis] % taps)
    ]
    # the innermost axis is next to channels that are last, the outermost next to those that are first
    folds = [_joined(problem, order) for order in (axes[::-1], axes)]
    best = max(folds, key=lambda folded: folded.c)
    return best if best.c > problem.c else None


def _joined(problem: Convolution, axes: Sequence[int]) -> Convolution:
    """The convolution with the taps of each of the axes among the channels where they are contiguous."""
    x, w, stride = problem.x, problem.w, list(problem.stride)
    for axis in axes:
        pair = _merged(x, w, axis, problem.output_spatial[axis])
        if pair is not None:
            (x, w), stride[axis] = pair, 1
    return replace(problem, x=x, w=w, stride=tuple(stride))


def _merged(
    x: TensorDescriptor, w: TensorDescriptor, axis: int, patches: int
) -> tuple[TensorDescriptor, TensorDescriptor] | None:
    """x and w with the taps of an axis among their channels, before or behind those that there are."""
    at, taps, channels = 2 + axis, w.shape[2 + axis], w.shape[1]
    for is_outer in (True, False):  # taps outside of channels, as in nhwc, or inside
        steps = []
        for tensor in (x, w):
            channel, tap = tensor.strides[1], tensor.strides[at]
            inner, outer = (channel, tap) if is_outer else (tap, channel)
            if channels == 1:
                steps.append(tap)
            elif outer == inner * (channels if is_outer else taps):
                steps.append(inner)
        if len(steps) == 2:
            return _with(x, at, patches, channels * taps, steps[0], taps), _with(
                w, at, 1, channels * taps, steps[1], 1
            )
    return None


def _with(
    tensor: TensorDescriptor, at: int, extent: int, channels: int, channel_stride: int, patch: int
) -> TensorDescriptor:
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[1], shape[at] = channels, extent
    strides[1], strides[at] = channel_stride, strides[at] * patch
    return TensorDescriptor(tuple(shape), tuple(strides), tensor.dtype, tensor.offset)
