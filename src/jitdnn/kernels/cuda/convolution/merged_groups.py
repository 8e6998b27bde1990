"""wgrads of small groups in f32: several groups as one, of which the diagonal blocks are the result.

A warpgroup product of a few channels by a few is mostly padding. As many groups as have 64 channels are merged into
one, so that tiles are full: products with channels of another group are computed, and left in the workspace. A copy
takes the gradient of each group from there.

Floor on an H100 for 64x128x56x56 in 32 groups, 3x3: 62 us by bytes; products of halves take 89 GFLOP with those that
are discarded, 150 to 200 us.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel, PlannedKernel
from jitdnn.kernels.cuda.convolution.by_others import ByOthers
from jitdnn.kernels.cuda.convolution.half_precision.copied import SAME, Copied, room_of
from jitdnn.kernels.formulas.elementwise import ElementwiseGenerator
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor, compute_dtype, packed_strides

_CHANNELS = 64
"""Of a group that stands for several, in or out, at most."""


class MergedGroups(ByOthers):
    """Filter gradients of groups in f32 by products of fewer, larger groups, nearly as exact as f32 products."""

    name = "groups_merged"
    has_exact_products = False
    takes_no_epilogue = "a filter's gradient takes no epilogue here"

    def __init__(self, elementwise: ElementwiseGenerator, *others: Algorithm) -> None:
        """`others`: what may run the larger groups."""
        super().__init__(*others)
        self._elementwise = elementwise

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.is_integer or problem.dtype != "f32":
            return f"it multiplies f32, not {problem.x.dtype}: grouped takes 16 bits"
        merged = merge(problem)
        if merged is None:
            return (
                f"it is for filter gradients of several groups, two of which have at most {_CHANNELS} channels in and "
                f"out: implicit_gemm takes larger ones, {problem.groups} of {problem.w.shape[1]} channels"
            )
        if self._inner(merged, device) is None:
            return f"no algorithm takes {merged}"
        return None

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        """That of the copy behind, and of the quickest of the larger groups."""
        merged = merge(problem) if problem.dtype == "f32" and not problem.is_integer else None
        if merged is None:
            return 0.0
        copying = self._elementwise.estimate(SAME, diagonal(problem, merged), device)
        return ROUNDED * (
            copying + min((_least(one, merged, device) for one in self._of_math(merged)), default=0.0)
        )

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        merged = merge(problem)
        assert merged is not None
        inner = self._inner(merged, device)
        assert inner is not None
        blocks, room = diagonal(problem, merged), room_of(merged.w)
        seconds = inner.estimate(merged, device) + self._elementwise.estimate(SAME, blocks, device)

        def build() -> Kernel:
            copy = self._elementwise.build(SAME, blocks, device, computing=compute_dtype(problem.dtype))
            return Copied(None, inner.build(merged, device), copy, (0, room))

        return PlannedKernel(room + inner.workspace(merged, device), seconds, build)

    def error_of(self, problem: Convolution) -> float:
        merged = merge(problem)
        assert merged is not None
        return max(other.error_bound(merged) for other in self._of_math(merged))

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        merged = merge(problem)
        assert merged is not None
        inner = self._inner(merged, device)
        assert inner is not None
        return inner.spreads(merged, device)


def _least(inner: Algorithm, merged: Convolution, device: GpuDevice) -> float:
    """What an algorithm takes at least for the larger groups; infinite where it does not take them."""
    found = inner.least_seconds(merged, device)
    return found if found or inner.refuse(merged, device) is None else inf


class MergedGroupsTf32(MergedGroups):
    """`groups_merged` for f32 that is rounded to tf32."""

    name = "groups_merged_tf32"

    def arithmetic(self, problem: Problem) -> str:
        return "tf32"


def merge(problem: Convolution) -> Convolution | None:
    """The filter's gradient with as many groups taken for one as have 64 channels; None if there are no two."""
    channels = max(problem.w.shape[1], problem.k // problem.groups)
    most = _CHANNELS // max(1, channels)
    together = max((n for n in range(1, most + 1) if problem.groups % n == 0), default=1)
    if problem.direction != "bwd_filter" or together == 1 or 0 in problem.x.shape or 0 in problem.y.shape:
        return None
    shape = (problem.k, together * problem.w.shape[1], *problem.filter_spatial)
    strides = packed_strides(shape, (0, *range(2, len(shape)), 1))
    w = TensorDescriptor(shape, strides, problem.w.dtype)
    return replace(problem, w=w, groups=problem.groups // together)


def diagonal(problem: Convolution, merged: Convolution) -> list[TensorDescriptor]:
    """The gradient among what the merged one has, and where it goes: [merged group][group][k][c][taps]."""
    together, c, k = problem.groups // merged.groups, problem.w.shape[1], problem.k // problem.groups
    shape = (merged.groups, together, k, c, *problem.filter_spatial)
    found = []
    for w, aside in ((merged.w, c), (problem.w, 0)):
        of_k, of_c, *taps = w.strides
        strides = (together * k * of_k, k * of_k + aside * of_c, of_k, of_c, *taps)
        found.append(TensorDescriptor(shape, strides, w.dtype))
    return found
