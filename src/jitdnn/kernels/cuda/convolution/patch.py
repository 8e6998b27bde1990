"""Convolutions whose filter and padding are multiples of the stride: contiguous taps become channels (space to depth).

Along such an axis as many neighbours as the stride are always read together: they are the pixels of a convolution of
stride 1 with so many times the channels. Patches that touch without overlap (patch embeddings, downsampling, and the
transposed convolutions that are their gradients), whose filter is as large as its stride, are left with one tap. Where
neighbours along the axis and channels are contiguous, in x as in the filter, nothing is copied: the best algorithm of
that convolution runs on the same memory. 16x16 patches of interleaved images become 16 taps of 48 channels instead of
256 of 3; patches that are whole images become one tap, a matrix product; a transposed convolution of 21 channels by
16x16 taps with stride 8, of 64 stride phases, becomes one of 168 channels with 8.

Floors on an H100, bf16, fprop: 4096 patches of 3x2x14x14 -> 1280, 12.3 GFLOP, 25 to 31 us of `mma` at 400 to 500
TFLOP/s; 64x3x224x224 -> 768 in 16x16 patches, 14.8 GFLOP, 30 to 37 us; their bytes take 6 and 13 us at 3.0 TB/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Epilogue, PlannedKernel
from jitdnn.kernels.cuda.convolution.by_others import ByOthers
from jitdnn.kernels.cuda.convolution.half_precision.shape import HALVES
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor

_OVERLAPPING = 1.25
"""Factor on the estimate of patches that overlap, of which 1.0 to 2.5 were measured; at their own strides others share
what they read among taps."""


class Patch(ByOthers):
    """Filters and padding of whole strides, as convolutions of fewer taps and more channels: all directions."""

    name = "patch"
    version: ClassVar[int] = 2
    dtypes: ClassVar[tuple[str, ...]] = HALVES

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.is_integer or problem.dtype not in self.dtypes:
            return (
                f"it multiplies {' and '.join(self.dtypes)}, not {problem.x.dtype}: direct takes every type"
            )
        folded = fold(problem)
        if folded is None:
            return (
                "taps become channels where, along an axis, filter and padding are multiples of the stride, nothing is "
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
        of_axes = zip(problem.stride, folded.stride, folded.filter_spatial, strict=True)
        if any(own != left and taps > 1 for own, left, taps in of_axes):
            seconds *= _OVERLAPPING
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


class PatchF32(Patch):
    """`patch` for f32, by products that are nearly as exact as f32 products."""

    name = "patch_f32"
    version: ClassVar[int] = 1
    rounded: ClassVar[tuple[str, ...]] = ("patch_tf32",)
    dtypes = ("f32",)
    has_exact_products = False

    def error_of(self, problem: Convolution) -> float:
        folded = fold(problem)
        assert folded is not None
        return max(other.error_bound(folded) for other in self._of_math(folded))


class PatchTf32(PatchF32):
    """`patch` for f32 that is rounded to tf32."""

    name = "patch_tf32"
    rounded = ()

    def arithmetic(self, problem: Problem) -> str:
        return "tf32"


def fold(problem: Convolution) -> Convolution | None:
    """The same convolution with fewer taps and more channels; None if no taps follow the channels in memory."""
    if problem.groups != 1 or problem.mode != "cross_correlation":
        return None
    if 0 in problem.x.shape or 0 in problem.y.shape:
        return None
    axes = [axis for axis in range(len(problem.spatial)) if _strides(problem, axis) is not None]
    if not axes:
        return None
    # the innermost axis is next to channels that are last, the outermost next to those that are first
    folds = [_joined(problem, order) for order in (axes[::-1], axes)]
    best = max(folds, key=lambda folded: folded.c)
    return best if best.c > problem.c else None


class _Strides(NamedTuple):
    """An axis in units of its stride: those of x that are read, those of the filter, and the padding."""

    extent: int
    taps: int
    padding: tuple[int, int]


def _strides(problem: Convolution, axis: int) -> _Strides | None:
    """The axis in units of its stride; None if one is read in part, or is not read and must become zero."""
    step, taps, (before, _) = problem.stride[axis], problem.filter_spatial[axis], problem.padding[axis]
    if step == 1 or taps % step or before % step or problem.dilation[axis] > 1:
        return None
    extent, rest = divmod(problem.spatial[axis], step)
    taps, before = taps // step, before // step
    after = problem.output_spatial[axis] - 1 + taps - extent - before
    if extent == 0 or (rest and (after > 0 or problem.direction == "bwd_data")):
        return None
    return _Strides(extent, taps, (before, after))


def _joined(problem: Convolution, axes: Sequence[int]) -> Convolution:
    """The convolution with neighbours along each of the axes among the channels where they are contiguous."""
    x, w, stride, padding = problem.x, problem.w, list(problem.stride), list(problem.padding)
    for axis in axes:
        strides = _strides(problem, axis)
        assert strides is not None
        pair = _merged(x, w, 2 + axis, stride[axis], strides)
        if pair is not None:
            (x, w), stride[axis], padding[axis] = pair, 1, strides.padding
    return replace(problem, x=x, w=w, stride=tuple(stride), padding=tuple(padding))


def _merged(
    x: TensorDescriptor, w: TensorDescriptor, at: int, step: int, strides: _Strides
) -> tuple[TensorDescriptor, TensorDescriptor] | None:
    """x and w with `step` neighbours along an axis among their channels, before or behind those that there are."""
    channels = w.shape[1]
    for is_outer in (True, False):  # neighbours outside of channels, as in nhwc, or inside
        inner_steps = []
        for tensor in (x, w):
            channel, tap = tensor.strides[1], tensor.strides[at]
            inner, outer = (channel, tap) if is_outer else (tap, channel)
            if channels == 1:
                inner_steps.append(tap)
            elif outer == inner * (channels if is_outer else step):
                inner_steps.append(inner)
        if len(inner_steps) == 2:
            first, second = inner_steps
            return _with(x, at, strides.extent, step, first), _with(w, at, strides.taps, step, second)
    return None


def _with(tensor: TensorDescriptor, at: int, extent: int, step: int, channel_stride: int) -> TensorDescriptor:
    """The tensor with `step` times the channels, and `extent` positions along an axis."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[1], shape[at] = shape[1] * step, extent
    strides[1], strides[at] = channel_stride, strides[at] * step
    # the step of an axis of one position means nothing, but kernels may ask for vectors at each position
    for axis in range(2, len(shape)):
        if shape[axis] == 1:
            strides[axis] = shape[1] * abs(channel_stride)
    return TensorDescriptor(tuple(shape), tuple(strides), tensor.dtype, tensor.offset)
