"""Convolution in all directions as an implicit product by warpgroups (`wgmma`) on operands copied by TMA: sm_90a.

Channels-last tensors at addresses that are multiples of 16 bytes are read in place; others are packed into the
workspace first, or refused where none is allowed. A product with too few tiles for the device is split along K, and the
partial sums are added in a fixed order. Shapes are arguments of the kernels, so few kernels are compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.tensor_map import ALIGNMENT
from jitdnn.kernels.algorithm import (
    Epilogue,
    Kernel,
    KernelAlgorithm,
    PlannedKernel,
)
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import (
    ImplicitGemmInPlace,
    ImplicitGemmWgradInPlace,
    refuse_sums,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of, unplannable
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import WGMMA_FUNCTIONS, kernel_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.edges import may_save
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.exchanged import exchanged, filled
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.finish import finish_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.least import FEW_CHANNELS, least_seconds
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.paired import may_be_paired
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pointwise import of_pixels, transposed
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.rows import no_lines
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.wgrad import SEGMENTS
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_arithmetic, tensor_core_bound
from jitdnn.kernels.cuda.gemm.code import Nothing
from jitdnn.kernels.cuda.warpgroup.tile import CLUSTERS, SPLIT, SWAPPED, TILES, WHOLE, Tile
from jitdnn.kernels.gpu.convolution.direct import Direct
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem, byte_dtypes
from jitdnn.tensor import DTYPES, FLOAT8_DTYPES

MAX_EXTENT = 2**30
TF32_CUT = 2.0**-10
"""What is lost of products of f32 that are cut off to tf32, not rounded."""
_FASTER = 0.99
"""Of the time of a product, below which that with its operands in each other's places is worth a kernel of its own."""
BYTES_ERROR = 2.0**-9
"""Of sums of products of 8-bit reals, each addition of which keeps about 14 bits within a stage: behind its 128
products they are moved to f32."""


def refuse_warpgroups(problem: Problem, device: GpuDevice) -> str | None:
    """What no product by warpgroups can do; None if they can."""
    dtype, result = problem.inputs[0].descriptor.dtype, problem.output.dtype
    if device.arch != "sm_90a":
        return f"wgmma is an instruction of sm_90a, and {device.name} is not one"
    if "u8" in (dtype, result):
        return f"integers of 8 bits have a sign here: of {dtype} to {result} direct takes products"
    if byte_dtypes(dtype):
        return None  # the problem says which results they have
    if dtype not in WGMMA_FUNCTIONS:
        return (
            f"wgmma multiplies {', '.join((*WGMMA_FUNCTIONS, *FLOAT8_DTYPES))}, and the tensors are {dtype}"
        )
    if result not in WGMMA_FUNCTIONS:
        return f"results are {', '.join(WGMMA_FUNCTIONS)} here, not {result}"
    return None


def warpgroup_bound(problem: Problem) -> float:
    """The largest relative error of products by warpgroups."""
    bound = tensor_core_bound(problem)
    if problem.has_float8:
        return BYTES_ERROR + bound
    return bound + TF32_CUT if problem.inputs[0].descriptor.dtype == "f32" else bound


def refuse_halves(dtype: str) -> str | None:
    """What cannot be multiplied as scaled numbers of half precision; None if it can."""
    return None if dtype == "f32" else f"f32 is multiplied as f16 here, not {dtype}"


def refuse_lines(problem: Convolution) -> str | None:
    """That there is but one tap along the last axis, so that none share pixels; None if there are several."""
    return no_lines(problem) if problem.filter_spatial[-1] == 1 else None


class WarpgroupGemm(KernelAlgorithm[Convolution, GpuDevice]):
    """fprop and dgrad as an implicit GEMM by `wgmma`: K runs over taps, with channels inside."""

    name = "implicit_gemm_wgmma"
    version: ClassVar[int] = 7
    problem = Convolution
    uses_workspace: ClassVar[bool] = True
    parts: ClassVar[int] = 1
    is_scaled: ClassVar[bool] = False
    is_divided: ClassVar[bool] = False
    divides_rows: ClassVar[bool] = False
    is_blockwise: ClassVar[bool] = False
    """See `plan_of`."""

    def __init__(self, tiles: tuple[Tile, ...] = (*TILES, *CLUSTERS, *WHOLE)) -> None:
        self._tiles = tiles

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        reason = refuse_warpgroups(problem, device) or unplannable(problem, self.is_scaled)
        if not reason and problem.is_integer:
            reason = refuse_sums(math.prod(problem.w.shape[1:]))
        if reason or not problem.output.size:
            return reason
        if not all(operand.descriptor.size for operand in problem.inputs):
            return "there is nothing to multiply"
        extents = (*problem.spatial, *problem.output_spatial, problem.n, problem.c, problem.k)
        pixels = problem.n * max(math.prod(problem.spatial), math.prod(problem.output_spatial))
        if max(*extents, pixels) >= MAX_EXTENT:
            return (
                f"{max(*extents, pixels)} pixels or channels: at most {MAX_EXTENT} fit the kernel's indices"
            )
        found = self.sizes(problem, device)
        return found if isinstance(found, str) else None

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        """That of packing, where operands must be, and of bytes."""
        if not self._has_bound(problem, device):
            return 0.0
        may_change_places = self.parts == 1 and not self.is_scaled and transposed(problem) is not None
        return least_seconds(
            problem, device, self._tiles, self.uses_workspace, self.parts, self.is_scaled, self.is_divided,
            self.divides_rows, self.is_blockwise, may_change_places,
        )  # fmt: skip

    def _has_bound(self, problem: Convolution, device: GpuDevice) -> bool:
        """Whether a bound is worth its time, and nothing that is quickly found speaks against a plan."""
        x, w, y = problem.x, problem.w, problem.y
        is_halves = self.is_scaled or self.parts > 1
        dtypes = ("f32",) if is_halves else WGMMA_FUNCTIONS
        return (
            all(tensor.dtype in dtypes and tensor.size for tensor in (x, w, y))
            and (is_halves or self._says_more(problem))
            and not refuse_warpgroups(problem, device)
            and not unplannable(problem, is_halves)
        )

    def _says_more(self, problem: Convolution) -> bool:
        """Whether more than the bytes of the tensors is known, of numbers as they are: operands must be packed."""
        is_forward = problem.direction == "fwd"
        data = problem.x if is_forward else problem.y
        channels = problem.w.shape[1] if is_forward else problem.k // problem.groups
        # a multiple of whole pieces lies ready for the copy engine
        return data.strides[1] != 1 or channels * DTYPES[data.dtype] % ALIGNMENT != 0

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        """The plan that is expected to be fastest on this device, or why there is none."""
        fusion = Fusion(finish=finish_of(epilogue, problem.output.dtype)) if epilogue else NOTHING
        how = self.parts, None, fusion, self.is_scaled
        plan = plan_of(problem, device, self._tiles, True, *how)
        # the same serves those that may have no workspace where it needs none
        if not self.uses_workspace and (not isinstance(plan, Plan) or plan.workspace):
            plan = plan_of(problem, device, self._tiles, False, *how)
        if not isinstance(plan, Plan):
            return plan
        plan = self._inside(problem, device, fusion, _FASTER * plan.seconds) or plan
        for other in [] if epilogue else self._others(problem, device, _FASTER * plan.seconds):
            if isinstance(other, Plan) and other.seconds < _FASTER * plan.seconds:
                plan = other
        return plan

    def _inside(
        self, problem: Convolution, device: GpuDevice, fusion: Fusion, limit: float, is_in_lines: bool = False
    ) -> Plan | None:
        """The plan without products of padding, of layers that have some, if it takes less than the limit."""
        if problem.direction == "bwd_filter" or self.parts > 1 or self.is_scaled or self._tiles[0].swaps:
            return None
        if (problem.direction == "bwd_data" and max(problem.stride) > 1) or not may_save(problem):
            return None
        best = None
        for axes in (1, 2):
            how = {"fusion": fusion, "is_in_lines": is_in_lines, "skips_padding": axes, "limit": limit}
            plan = plan_of(problem, device, self._tiles, True, **how)
            if isinstance(plan, Plan) and plan.workspace and not self.uses_workspace:
                plan = plan_of(problem, device, self._tiles, False, **how)
            if isinstance(plan, Plan) and plan.seconds < limit:
                best, limit = plan, _FASTER * plan.seconds
        return best

    def _others(self, problem: Convolution, device: GpuDevice, limit: float) -> Iterator[Plan | str]:
        """Plans of the same products with the operands in each other's places, or stride phases in pairs, without
        workspace; none that takes more than the limit, in seconds."""
        if self.parts > 1 or self.is_scaled:
            return
        if may_be_paired(problem):
            yield plan_of(problem, device, self._tiles, False, is_paired=True, limit=limit)
        other = transposed(problem)
        if other and not unplannable(other):
            plan = plan_of(other, device, self._tiles, False, limit=limit)
            yield plan if isinstance(plan, str) else of_pixels(plan)
        elif problem.groups == 1 and (problem.direction == "fwd" or max(problem.stride) == 1):
            channels = problem.k if problem.direction == "fwd" else problem.c
            if tiles := filled(self._tiles, channels):
                yield plan_of(problem, device, tiles, False, pixels_are_columns=True, limit=limit)

    def arithmetic(self, problem: Problem) -> str:
        return tensor_core_arithmetic(problem)

    def error_of(self, problem: Convolution) -> float:
        return warpgroup_bound(problem)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        if not problem.output.size:
            return PlannedKernel(0, 1e-6, Nothing)
        plan, bare = self.sizes(problem, device, epilogue), self.sizes(problem, device)
        assert isinstance(plan, Plan), plan
        assert isinstance(bare, Plan), bare

        def other() -> Kernel:
            if (
                problem.has_float8 or self.parts > 1
            ):  # no more exact than tf32 is what multiplies f32 at any address
                return Direct().build_in_place(problem, device, epilogue)
            return self._other().build(problem, device, epilogue)

        # the epilogue counts for the choice of a tile; other algorithms' estimates are without it, and so is this
        return PlannedKernel(
            plan.workspace, bare.seconds, lambda: kernel_of(plan, problem.output, device, epilogue, other)
        )

    def _other(self) -> ImplicitGemmInPlace | ImplicitGemmWgradInPlace:
        """What takes operands at any address."""
        return ImplicitGemmInPlace()


class WarpgroupGemmInPlace(WarpgroupGemm):
    """`implicit_gemm_wgmma` without workspace: nothing is packed, and no tile is split along K."""

    name = "implicit_gemm_wgmma_in_place"
    uses_workspace = False


class WarpgroupGemmInLines(WarpgroupGemm):
    """fprop and dgrad by `wgmma`: the taps of a line of the filter share one copy of the data.

    Lines go on behind their last window, so a few of each line's results are none. Products of few columns are limited
    by the copies of pixels.
    """

    name = "implicit_gemm_wgmma_in_lines"

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.has_float8:
            return "products of 8-bit reals are moved to f32 behind each 128, and several taps have more"
        return super().refusal(problem, device, epilogue)

    def _has_bound(self, problem: Convolution, device: GpuDevice) -> bool:
        return not refuse_lines(problem) and super()._has_bound(problem, device)

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        if reason := refuse_lines(problem):
            return reason
        fusion = Fusion(finish=finish_of(epilogue, problem.output.dtype)) if epilogue else NOTHING
        plan = plan_of(problem, device, self._tiles, True, fusion=fusion, is_in_lines=True)
        if not isinstance(plan, Plan):
            return plan
        return self._inside(problem, device, fusion, _FASTER * plan.seconds, True) or plan


class WarpgroupGemmSwapped(WarpgroupGemm):
    """dgrad of f32, as exact as tf32, with the filter as the first operand of the tensor cores: it is read as it lies.

    wgmma takes f32 from shared memory along K alone, where a filter's channels of x are innermost; from registers it
    takes what threads bring. So nothing is packed. Rows of the product are channels, and its columns pixels.
    """

    name = "implicit_gemm_wgmma_swapped"
    takes_no_epilogue = "results leave as the tensor cores have them: apply it to the result"

    def __init__(self, tiles: tuple[Tile, ...] = SWAPPED) -> None:
        super().__init__(tiles)

    def _has_bound(self, problem: Convolution, device: GpuDevice) -> bool:
        return problem.x.dtype == "f32" and super()._has_bound(problem, device)

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        dtype = problem.inputs[0].descriptor.dtype
        if dtype != "f32":
            return f"operands of {dtype} are read across from shared memory"
        return super().refusal(problem, device, epilogue)


class WarpgroupGemmSwappedInLines(WarpgroupGemmSwapped):
    """`implicit_gemm_wgmma_swapped` with the taps of a line of the filter sharing one copy of the data."""

    name = "implicit_gemm_wgmma_swapped_in_lines"

    def _has_bound(self, problem: Convolution, device: GpuDevice) -> bool:
        return not refuse_lines(problem) and super()._has_bound(problem, device)

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        if reason := refuse_lines(problem):
            return reason
        return plan_of(problem, device, self._tiles, True, is_in_lines=True)


class WarpgroupWgrad(WarpgroupGemm):
    """wgrad as an implicit GEMM by `wgmma`: channels of dy by taps and channels of x; K runs over pixels."""

    version: ClassVar[int] = 7
    takes_no_epilogue = "a filter's gradient takes no epilogue here"

    def __init__(self, tiles: tuple[Tile, ...] = (*TILES, *CLUSTERS, *SPLIT)) -> None:
        super().__init__(tiles)

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        least = super().least_of(problem, device, epilogue)
        other = self._exchanged(problem) if least else None
        if other is None:
            return least
        return min(least, least_seconds(other, device, self._tiles))

    def _says_more(self, problem: Convolution) -> bool:
        # f32 has no plan
        few = min(problem.w.shape[1], problem.k // problem.groups) <= FEW_CHANNELS
        return few or problem.x.dtype == "f32"

    def _others(self, problem: Convolution, device: GpuDevice, limit: float) -> Iterator[Plan | str]:
        other = self._exchanged(problem)
        if other and not unplannable(other):
            plan = plan_of(other, device, self._tiles, True, limit=limit)
            # what packs takes the operands by their place among the arguments
            if isinstance(plan, Plan) and not any(plan.packs):
                yield of_pixels(plan)

    def _exchanged(self, problem: Convolution) -> Convolution | None:
        return exchanged(problem) if self.uses_workspace and self.parts == 1 else None

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        other = self._exchanged(problem)
        if other is None or not any(side for sides in other.padding for side in sides):
            return None
        plan = self.sizes(problem, device, epilogue)
        # the rows of its product are those of x
        if isinstance(plan, str) or plan.tables.maps[0].operand != 0:
            return None
        return "other taps, where dy is extended by zeros as far as the taps reach"

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)  # 8-bit reals are multiplied as f16

    def _other(self) -> ImplicitGemmInPlace | ImplicitGemmWgradInPlace:
        return ImplicitGemmWgradInPlace()


class WarpgroupWgradInLines(WarpgroupWgrad):
    """wgrad by `wgmma` line by line: a run of pixels of x is copied once for all taps along the last axis.

    The copy engine is what limits gradients of few channels of dy.
    """

    name = "implicit_gemm_wgmma_in_lines"

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True, is_in_lines=True)

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.output_spatial[-1] % SEGMENTS[-1] == 0:
            return None
        return "other taps, where segments of dy end beyond its lines and are filled with zeros"


class WarpgroupWgradInPlace(WarpgroupWgrad):
    """`implicit_gemm_wgmma` without workspace: nothing is packed, and no tile is split along K."""

    name = "implicit_gemm_wgmma_in_place"
    uses_workspace = False
