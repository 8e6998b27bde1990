"""Convolution in all directions as an implicit product on the tensor cores (`mma.sync`), for sm_80 and later.

Channels-last tensors are read in place. Others, and those whose channels no wide copy divides, are packed into the
workspace first, or are read element by element where no workspace is allowed. A product with too few tiles for the
device is split along K, and the partial sums are added in a fixed order. wgrad sums over pixels, which are many, for
few results: it is nearly always split.
"""

from __future__ import annotations

import math

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, PlannedKernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.code import kernel_of, wgrad_kernel_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.cost import (
    least_seconds,
    least_wgrad_seconds,
    plan_of,
    wgrad_plan_of,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import Plan, WgradPlan
from jitdnn.kernels.cuda.gemm.algorithm import MultiplyAddAlgorithm, TensorCoreAlgorithm
from jitdnn.kernels.cuda.gemm.code import Nothing
from jitdnn.problems.convolution import Convolution

_MAX_TAPS = 1024
_MAX_PHASES = 512
_EXACT_I32 = (2**31 - 1) // 2**14  # products of two i8 whose sum an i32 holds, all of them -128 * -128


def refuse_sums(length: int) -> str | None:
    """Why sums of so many products of two i8 do not fit; None if they do."""
    if length > _EXACT_I32:
        return f"a sum of {length} products of two i8 may exceed an i32: at most {_EXACT_I32} cannot"
    return None


class ImplicitGemm(TensorCoreAlgorithm[Convolution]):
    """fprop and dgrad as an implicit GEMM by `mma.sync`: K runs over taps, with channels inside."""

    name = "implicit_gemm"
    problem = Convolution

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return self.refuse_units(problem.x.dtype, problem.groups, device) or _refuse_extents(problem)

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        if _has_empty(problem) or self.refusal(problem, device, epilogue):
            return 0.0
        return least_seconds(problem, device, self._tiles, self.uses_workspace)

    def sizes(self, problem: Convolution, device: GpuDevice) -> Plan:
        """The plan that is expected to be fastest on this device."""
        return plan_of(problem, device, self._tiles, self.uses_workspace)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        if not problem.output.size:
            return PlannedKernel(0, 1e-6, Nothing)
        plan, y = self.sizes(problem, device), problem.output
        return PlannedKernel(plan.workspace, plan.seconds, lambda: kernel_of(plan, y, device, epilogue))


class ImplicitGemmInPlace(ImplicitGemm):
    """`implicit_gemm` without workspace: nothing is packed, and no tile is split along K."""

    name = "implicit_gemm_in_place"
    uses_workspace = False


def _has_empty(problem: Convolution) -> bool:
    return 0 in problem.x.shape or 0 in problem.w.shape or 0 in problem.y.shape


def _refuse_extents(problem: Convolution) -> str | None:
    taps = math.prod(problem.filter_spatial)
    if taps > _MAX_TAPS:
        return f"a filter of {taps} taps is larger than {_MAX_TAPS}: direct or fft take it"
    length = (
        math.prod(problem.w.shape[1:]) if problem.direction == "fwd" else problem.k // problem.groups * taps
    )
    if max(problem.spatial + problem.output_spatial) >= 2**28:
        return f"images of more than {2**28} positions along an axis do not fit the kernel's indices"
    if length >= 2**30:
        return f"a sum has {length} terms: at most {2**30} fit the kernel's indices"
    reason = refuse_sums(length) if problem.is_integer else None
    if reason:
        return reason
    if problem.direction == "bwd_data":
        phases = math.prod(problem.stride)
        if phases > _MAX_PHASES:
            return f"strides {problem.stride} make {phases} stride phases: at most {_MAX_PHASES} are taken"
    return None


class ImplicitGemmWgrad(TensorCoreAlgorithm[Convolution]):
    """wgrad as an implicit GEMM by `mma.sync`: channels of dy by taps and channels of x; K runs over pixels."""

    name = "implicit_gemm"
    problem = Convolution
    takes_no_epilogue = "a filter's gradient takes no epilogue here"

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        columns = math.prod(problem.w.shape[1:])
        if columns >= 2**30:
            return f"{columns} elements of a filter channel are more than the {2**30} that fit the kernel's indices"
        return self.refuse_units(problem.x.dtype, problem.groups, device)

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        if _has_empty(problem) or self.refusal(problem, device, epilogue):
            return 0.0
        return least_wgrad_seconds(problem, device, self._tiles, self.uses_workspace)

    def sizes(self, problem: Convolution, device: GpuDevice) -> WgradPlan:
        """The plan that is expected to be fastest on this device."""
        return wgrad_plan_of(problem, device, self._tiles, self.uses_workspace)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = self.sizes(problem, device)
        return PlannedKernel(plan.workspace, plan.seconds, lambda: wgrad_kernel_of(plan, device))


class ImplicitGemmWgradInPlace(ImplicitGemmWgrad):
    """`implicit_gemm` without workspace: nothing is packed, and no tile is split along K."""

    name = "implicit_gemm_in_place"
    uses_workspace = False


class ImplicitGemmFma(MultiplyAddAlgorithm[Convolution], ImplicitGemm):
    """fprop and dgrad as an implicit GEMM by multiply-adds in f32, as exact as `direct`."""

    name = "implicit_gemm_fma"

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        columns = problem.output.shape[1] // problem.groups
        return super().refusal(problem, device, epilogue) or self.refuse_few(columns)


class ImplicitGemmFmaWgrad(MultiplyAddAlgorithm[Convolution], ImplicitGemmWgrad):
    """wgrad as an implicit GEMM by multiply-adds in f32; K runs over pixels."""

    name = "implicit_gemm_fma"

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        channels = problem.k // problem.groups
        return super().refusal(problem, device, epilogue) or self.refuse_few(channels)
