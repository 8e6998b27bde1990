"""Convolution in all directions as an implicit product on the tensor cores (`mma.sync`), for sm_80 and later.

Channels-last tensors are read where they are. Others, and those whose channels no wide copy divides, are packed into
the workspace first, or are read element by element where no workspace is wanted. A product with too few tiles for the
device is split along K, and the partial sums are added in a fixed order. wgrad sums over pixels, which are many, for
results that are few: it is nearly always split.
"""

from __future__ import annotations

import math
from typing import ClassVar

from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.code import kernel_of, wgrad_kernel_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.cost import plan_of, wgrad_plan_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import Plan, WgradPlan
from jitdnn.kernels.cuda.gemm.algorithm import arithmetic_of, refuse_tensor_cores, tensor_core_bound
from jitdnn.kernels.cuda.gemm.code import Nothing
from jitdnn.kernels.cuda.gemm.plan import TILES, Tile
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

_MAX_TAPS = 1024
_MAX_PHASES = 512
_EXACT_I32 = 2**31 // 2**14  # products of two i8 whose sum an i32 holds


class ImplicitGemm(Algorithm):
    """K runs over taps, with channels inside; multistage tiles on the tensor cores, sums in f32 (i32 of i8)."""

    name: ClassVar[str] = "implicit_gemm"
    problem: ClassVar[type[Problem]] = Convolution
    deterministic: ClassVar[bool] = True
    uses_workspace: ClassVar[bool] = True

    def __init__(self, tiles: tuple[Tile, ...] = TILES) -> None:
        self._tiles = tiles

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        return refuse_tensor_cores(problem.x.dtype, problem.groups, device) or _refuse_extents(problem)

    def arithmetic(self, problem: Problem) -> str:
        return arithmetic_of(problem)

    def error_bound(self, problem: Problem) -> float:
        return tensor_core_bound(problem)

    def plan(self, problem: Problem, device: Device) -> Plan:
        """The plan that is expected to be fastest on this device."""
        assert isinstance(problem, Convolution)
        return plan_of(problem, device, self._tiles, self.uses_workspace)  # type: ignore[arg-type]

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self.plan(problem, device).workspace if problem.output.size else 0

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.plan(problem, device).seconds if problem.output.size else 1e-6

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(problem, Convolution)
        if not problem.output.size:
            return Nothing()
        return kernel_of(self.plan(problem, device), problem.output, device, epilogue)


class ImplicitGemmInPlace(ImplicitGemm):
    """The same without workspace: nothing is packed, and no tile is split along K."""

    name: ClassVar[str] = "implicit_gemm_in_place"
    uses_workspace: ClassVar[bool] = False


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
    if problem.is_integer and length > _EXACT_I32:
        return f"a sum of {length} products of two i8 may exceed an i32: at most {_EXACT_I32} cannot"
    if problem.direction == "bwd_data":
        phases = math.prod(problem.stride)
        if phases > _MAX_PHASES:
            return f"strides {problem.stride} make {phases} stride phases: at most {_MAX_PHASES} are taken"
    return None


class ImplicitGemmWgrad(Algorithm):
    """Channels of dy by taps and channels of x; K runs over pixels; sums in f32."""

    name: ClassVar[str] = "implicit_gemm"
    problem: ClassVar[type[Problem]] = Convolution
    deterministic: ClassVar[bool] = True
    uses_workspace: ClassVar[bool] = True

    def __init__(self, tiles: tuple[Tile, ...] = TILES) -> None:
        self._tiles = tiles

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if epilogue is not None:
            return "a filter's gradient takes no epilogue here"
        columns = math.prod(problem.w.shape[1:])
        if columns >= 2**30:
            return f"{columns} elements of a filter channel are more than the {2**30} that fit the kernel's indices"
        return refuse_tensor_cores(problem.x.dtype, problem.groups, device)

    def arithmetic(self, problem: Problem) -> str:
        return arithmetic_of(problem)

    def error_bound(self, problem: Problem) -> float:
        return tensor_core_bound(problem)

    def plan(self, problem: Problem, device: Device) -> WgradPlan:
        """The plan that is expected to be fastest on this device."""
        assert isinstance(problem, Convolution)
        return wgrad_plan_of(problem, device, self._tiles, self.uses_workspace)  # type: ignore[arg-type]

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self.plan(problem, device).workspace

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.plan(problem, device).seconds

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return wgrad_kernel_of(self.plan(problem, device), device)


class ImplicitGemmWgradInPlace(ImplicitGemmWgrad):
    """The same without workspace: nothing is packed, and no tile is split along K."""

    name: ClassVar[str] = "implicit_gemm_in_place"
    uses_workspace: ClassVar[bool] = False
