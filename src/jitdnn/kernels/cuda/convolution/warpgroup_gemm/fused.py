"""Convolutions with a prologue on x and sums by channel of y, by warpgroups: sm_90a."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Algorithm,
    Epilogue,
    Kernel,
    KernelAlgorithm,
    PlannedKernel,
)
from jitdnn.kernels.cuda.convolution.summed import refuse_elsewhere
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import MAX_EXTENT, TF32_CUT, refuse_warpgroups
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of, unplannable
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import plain_kernel
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.problems.problem import Problem, byte_dtypes
from jitdnn.tensor import TensorDescriptor

_MOST_LINES = 2**15 - 512
"""Along all axes of space but the innermost: numbers of 16 bits, windows that begin outside of the image included."""
_PROLOGUE_ERROR = 4.0
"""Unit roundoffs: of an activation, and of what is behind it, as it is multiplied."""


class WarpgroupFused(KernelAlgorithm[FusedConvolution, GpuDevice]):
    """fprop with either, and wgrad with a prologue."""

    name = "implicit_gemm_wgmma"
    version: ClassVar[int] = 4
    problem = FusedConvolution

    def __init__(self, separate: Algorithm, tiles: tuple[Tile, ...] = TILES) -> None:
        """`separate`: what takes operands at any address."""
        self._separate, self._tiles = separate, tiles

    def refusal(self, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        own = problem.convolution
        if epilogue is not None and (problem.has_sums or problem.direction == "bwd_filter"):
            return "neither sums by channel nor a filter's gradient take an epilogue here"
        if problem.is_by_image:
            return "sums by channel are those of all images here, not of each"
        if byte_dtypes(own.inputs[0].descriptor.dtype):
            return "numbers of 8 bits are fused with nothing but an epilogue: the separate kernels take them"
        fusion = fusion_of(problem)
        reason = refuse_warpgroups(own, device) or fusion.refuse() or unplannable(own)
        if reason:
            return reason
        if not problem.output.size or not all(operand.descriptor.size for operand in own.inputs):
            return "there is nothing to multiply"
        for name in ("scale", "shift", "sums", "squares"):
            tensor: TensorDescriptor | None = getattr(problem, name)
            if tensor is not None and tensor.strides != (1,) and tensor.shape != (1,):
                return f"{name} has stride {tensor.strides[0]}: numbers of channels must lie side by side"
        extents = (*own.spatial, *own.output_spatial, own.n, own.c, own.k)
        pixels = own.n * max(math.prod(own.spatial), math.prod(own.output_spatial))
        if max(*extents, pixels) >= MAX_EXTENT:
            return (
                f"{max(*extents, pixels)} pixels or channels: at most {MAX_EXTENT} fit the kernel's indices"
            )
        if problem.has_prologue and max((1, *own.spatial[:-1])) > _MOST_LINES:
            return f"{max(own.spatial[:-1])} lines: the prologue finds positions among at most {_MOST_LINES}"
        if reason := refuse_elsewhere(self._separate, problem, device, epilogue):
            return reason
        found = self.sizes(problem, device)
        return found if isinstance(found, str) else None

    def sizes(self, problem: FusedConvolution, device: GpuDevice) -> Plan | str:
        """The plan that is expected to be fastest on this device, or why there is none."""
        return plan_of(problem.convolution, device, self._tiles, True, 1, None, fusion_of(problem))

    def arithmetic(self, problem: Problem) -> str:
        return "tf32" if problem.dtype == "f32" else "fp32"

    def error_of(self, problem: FusedConvolution) -> float:
        bound = tensor_core_bound(problem.convolution)
        if problem.dtype == "f32":
            return bound + (2.0 if problem.has_prologue else 1.0) * TF32_CUT
        return bound + (_PROLOGUE_ERROR * UNIT_ROUNDOFF[problem.dtype] if problem.has_prologue else 0.0)

    def plan(self, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = self.sizes(problem, device)
        assert isinstance(plan, Plan), plan
        # another kernel takes operands that the copy engine does not, in the same workspace
        room = max(plan.workspace, self._separate.workspace(problem, device, epilogue))
        return PlannedKernel(room, plan.seconds, lambda: self._build(plan, problem, device, epilogue))

    def _build(
        self, plan: Plan, problem: FusedConvolution, device: GpuDevice, epilogue: Epilogue | None
    ) -> Kernel:
        kernel = _InOrder(plain_kernel(plan, problem.convolution.output, device, epilogue), problem)
        if max(plan.alignments) == 1:
            return kernel
        first, second, result = plan.alignments
        alignments = (first, second, *(1 for _ in problem.inputs[2:]), result)
        return ByAddress(kernel, lambda: self._separate.build(problem, device, epilogue), alignments)


def fusion_of(problem: FusedConvolution) -> Fusion:
    if not problem.has_prologue:
        return Fusion(has_sums=problem.has_sums)
    return Fusion(problem.activation, problem.coef, problem.convolution.c, problem.has_sums)


class _InOrder:
    """A kernel that takes the convolution's operands, those of the epilogue, then what is fused with it."""

    def __init__(self, kernel: Kernel, problem: FusedConvolution) -> None:
        self._kernel, self._inputs, self._outputs = kernel, len(problem.inputs), len(problem.outputs)
        self._is_plain = problem.has_sums

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        x, second, *parameters = pointers[: self._inputs]
        result, *sums = pointers[self._inputs : self._inputs + self._outputs]
        behind = pointers[self._inputs + self._outputs :]
        if self._is_plain:  # neither touches what is summed
            alpha, beta = 1.0, 0.0
        self._kernel(stream, (x, second, result, *behind, *parameters, *sums), alpha, beta, workspace)
