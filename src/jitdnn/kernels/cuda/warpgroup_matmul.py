"""Matrix products by warpgroups (sm_90a): convolutions with a single tap, run by the kernels of warpgroup_gemm.

See matmul.py for the orientations.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, PlannedKernel, storing_roundoff
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import refuse_sums
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    refuse_halves,
    refuse_warpgroups,
    warpgroup_bound,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of, unplannable
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import kernel_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.finish import finish_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import HALVES_ERROR
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_arithmetic
from jitdnn.kernels.cuda.gemm.code import Reordered
from jitdnn.kernels.cuda.matmul import (
    Orientation,
    TensorCoreMatmulInPlace,
    indices_of,
    orientation_of,
    orientations,
    refuse_extents,
    refuse_uneven,
)
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH, Finish
from jitdnn.kernels.cuda.warpgroup.tile import CLUSTERS, TILES, WHOLE, Tile
from jitdnn.kernels.gpu.matmul import TiledGemm
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import Problem

_MAX_BATCH = 2**20
_FASTER, _FASTER_FINISHED = 0.99, 0.9
"""Of the time with rows as they are, below which transposed matrices are worth a kernel of their own: an epilogue reads
its operands by whole sectors where rows are as they are."""


class WarpgroupMatmul(KernelAlgorithm[MatMul, GpuDevice]):
    """Matrix products as convolutions with one tap, by `wgmma`; few tiles are split along k."""

    name = "matrix_units_wgmma"
    version: ClassVar[int] = 7
    problem = MatMul
    uses_workspace: ClassVar[bool] = True
    parts: ClassVar[int] = 1
    divides_rows: ClassVar[bool] = False

    def __init__(self, tiles: tuple[Tile, ...] = (*TILES, *CLUSTERS, *WHOLE)) -> None:
        self._tiles = tiles

    def refusal(self, problem: MatMul, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        reason = refuse_extents(problem) or refuse_uneven(problem) or refuse_warpgroups(problem, device)
        if not reason and problem.a.dtype == "i8":
            reason = refuse_sums(problem.k)
        if reason:
            return reason
        count = problem.c.size // (problem.m * problem.n)
        if count > _MAX_BATCH or count * max(problem.m, problem.k) >= 2**30:
            return f"{count} products of {problem.m} and {problem.k} rows do not fit the kernel's indices"
        found = self.sizes(problem, device, epilogue is not None)
        return found if isinstance(found, str) else None

    def sizes(
        self, problem: MatMul, device: GpuDevice, has_epilogue: bool = True, finish: Finish = NO_FINISH
    ) -> tuple[Orientation, Plan] | str:
        """The orientation and the plan that are expected to be fastest, or why there are none."""
        return _plan(
            problem,
            device,
            self._tiles,
            self.uses_workspace,
            self.parts,
            has_epilogue,
            finish,
            self.divides_rows,
        )

    def arithmetic(self, problem: Problem) -> str:
        return tensor_core_arithmetic(problem)

    def error_of(self, problem: MatMul) -> float:
        return warpgroup_bound(problem)

    def plan(self, problem: MatMul, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        found = self.sizes(problem, device, epilogue is not None, finish_of(epilogue, problem.c.dtype))
        bare = self.sizes(problem, device, epilogue is not None)  # as other algorithms estimate
        assert not isinstance(found, str), found
        assert not isinstance(bare, str), bare
        orientation, plan = found

        def other() -> Kernel:
            if (
                problem.has_float8 or self.parts > 1
            ):  # what multiplies f32 at any address is no more exact than tf32
                kernel = TiledGemm().build_in_place(problem, device, epilogue)
            else:
                kernel = TensorCoreMatmulInPlace().build(problem, device, epilogue)
            return Reordered(kernel, (1, 0)) if orientation.is_transposed else kernel

        def build() -> Kernel:
            indices = indices_of(problem, orientation, "channel_", "pixel.c")
            if not problem.batch:
                indices = [index.split(" %")[0].strip("()") for index in indices]
            kernel = kernel_of(plan, problem.c, device, epilogue, other, indices)
            return Reordered(kernel, (1, 0)) if orientation.is_transposed else kernel

        return PlannedKernel(plan.workspace, bare[1].seconds, build)


class WarpgroupMatmulInPlace(WarpgroupMatmul):
    """`matrix_units_wgmma` without workspace: nothing is packed, and k is not split."""

    name = "matrix_units_wgmma_in_place"
    uses_workspace = False


class WarpgroupMatmulHalves(WarpgroupMatmul):
    """f32 as two numbers of half precision; see convolution/warpgroup_gemm."""

    name = "matrix_units_3xf16"
    parts = 2
    has_exact_products = False

    def refusal(self, problem: MatMul, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return refuse_halves(problem.a.dtype) or super().refusal(problem, device, epilogue)

    def arithmetic(self, problem: Problem) -> str:
        return "fp32"

    def error_of(self, problem: MatMul) -> float:
        return max(HALVES_ERROR, 2.0 * storing_roundoff(problem))


class WarpgroupMatmulThirds(WarpgroupMatmulHalves):
    """f32 as three numbers of bf16; see convolution/warpgroup_gemm."""

    name = "matrix_units_6xbf16"
    parts = 3
    is_elementwise = True


class WarpgroupMatmulDivided(WarpgroupMatmulHalves):
    """f32 with one operand divided into halves in registers, 64 numbers of a row at a time; the other one is packed."""

    name = "matrix_units_3xf16_divided"
    divides_rows = True


@lru_cache(512)
def _plan(
    problem: MatMul,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool,
    parts: int,
    has_epilogue: bool,
    finish: Finish,
    divides_rows: bool,
) -> tuple[Orientation, Plan] | str:
    found: list[tuple[Orientation, Plan]] = []
    fusion = Fusion(finish=finish) if finish != NO_FINISH else NOTHING
    reason = ""
    for name in orientations(problem, has_epilogue):
        orientation = orientation_of(problem, name)
        one, batch = orientation.problem, orientation.batch
        refused = unplannable(one, parts > 1)
        plan = refused or plan_of(
            one, device, tiles, uses_workspace, parts, batch, fusion, divides_rows=divides_rows
        )
        if isinstance(plan, str):
            reason = reason or plan
        else:
            found.append((orientation, plan))
    if not found:
        return reason
    rows_cost = _FASTER_FINISHED if has_epilogue else _FASTER
    return min(found, key=lambda one: one[1].seconds * (rows_cost if one[0].name == "rows" else 1.0))
