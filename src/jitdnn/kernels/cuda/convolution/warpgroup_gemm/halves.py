"""Convolution of f32 as implicit products by warpgroups of numbers of half precision: two of f16, or three of bf16."""

from __future__ import annotations

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, storing_roundoff
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
    refuse_halves,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.finish import finish_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.tile import CLUSTERS, DIVIDED, TILES, Tile
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

HALVES_ERROR = 2.0**-20
"""Of products of halves, which have 22 bits, and of sums that are moved to f32 after each stage."""


class _Halves(WarpgroupGemm):
    """f32 as two numbers of half precision, three products of which are added: nearly as exact as f32 products.

    The sum of two f16 has 22 bits, of numbers down to 2^-37 of the largest. What is not finite is computed by
    multiply-adds.
    """

    name = "implicit_gemm_3xf16"
    parts = 2
    is_scaled = True
    has_exact_products = False

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return refuse_halves(problem.inputs[0].descriptor.dtype) or super().refusal(problem, device, epilogue)

    def arithmetic(self, problem: Problem) -> str:
        return "fp32"

    def error_of(self, problem: Convolution) -> float:
        return max(HALVES_ERROR, 2.0 * storing_roundoff(problem))


class WarpgroupGemmHalves(_Halves):
    """fprop and dgrad of f32 as two numbers of f16, by three products."""

    rounded = ("implicit_gemm_scaled_f16", "implicit_gemm_wgmma")


class _Thirds(_Halves):
    """f32 as three numbers of bf16, six products of which are added: numbers 2^122 times smaller than others keep bits.

    Halves have a range of 2^37, below which less and less of a number is left: that is enough where the error of a
    result is relative to the largest results, but not where it is to be relative to its own terms. What is not finite
    is computed by multiply-adds.
    """

    name = "implicit_gemm_6xbf16"
    parts = 3
    is_elementwise = True


class WarpgroupGemmThirds(_Thirds):
    """fprop and dgrad of f32 as three numbers of bf16, for elementwise accuracy."""


class WarpgroupWgradThirds(_Thirds, WarpgroupWgrad):
    """wgrad of f32 as three numbers of bf16, for elementwise accuracy."""


class WarpgroupGemmDivided(_Halves):
    """fprop and dgrad of f32 whose data are divided in registers, of each pixel 64 channels at a time.

    They are read as they are, and by the product alone; the filter is packed. A number that is 2^-37 times the largest
    of those channels is lost.
    """

    name = "implicit_gemm_3xf16_divided"
    rounded = ("implicit_gemm_wgmma",)
    divides_rows = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        fusion = Fusion(finish=finish_of(epilogue, problem.output.dtype)) if epilogue else NOTHING
        return plan_of(problem, device, self._tiles, True, 2, None, fusion, divides_rows=self.divides_rows)


class WarpgroupWgradHalves(_Halves, WarpgroupWgrad):
    """wgrad of f32 as two numbers of f16, by three products."""

    rounded = ("implicit_gemm_scaled_f16",)


class Divided(WarpgroupGemm):
    """Of products that divide their operands themselves, some tiles have warpgroups that do nothing else."""

    def __init__(self, tiles: tuple[Tile, ...] = (*TILES, *CLUSTERS, *DIVIDED)) -> None:
        super().__init__(tiles)


class WarpgroupWgradDivided(Divided, _Halves, WarpgroupWgrad):
    """wgrad of f32 whose halves are made in shared memory: nothing is read but by the product itself.

    The numbers of 64 pixels at a time are scaled, so those of 2^-37 of their largest are not lost. Where each is read
    by few tiles this takes less time than a pass over all of them before.
    """

    name = "implicit_gemm_3xf16_divided"
    rounded = ("implicit_gemm_scaled_f16_divided",)
    is_divided = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True, 2, is_divided=self.is_divided)


class WarpgroupWgradDividedInLines(Divided, _Halves, WarpgroupWgradInLines):
    """wgrad of f32 whose halves are made in shared memory, of x once for the taps along the last axis."""

    name = "implicit_gemm_3xf16_divided_in_lines"
    rounded = ("implicit_gemm_scaled_f16_divided_in_lines",)
    is_divided = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True, 2, is_divided=self.is_divided, is_in_lines=True)


class WarpgroupWgradDividedRows(Divided, _Halves, WarpgroupWgrad):
    """wgrad of f32 whose halves the product itself makes: of x in shared memory, of dy in registers."""

    name = "implicit_gemm_3xf16_divided_mixed"
    rounded = ("implicit_gemm_scaled_f16_divided",)
    is_divided = True
    divides_rows = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(
            problem, device, self._tiles, True, 2, is_divided=self.is_divided, divides_rows=self.divides_rows
        )


class WarpgroupWgradBlockwise(_Halves, WarpgroupWgrad):
    """wgrad of f32 with one tap, packed as halves in blocks of 64 pixels by 64 channels that are scaled by themselves.

    So one pass packs both operands, without another before it that looks for their largest numbers.
    """

    name = "implicit_gemm_3xf16_blockwise"
    rounded = ("implicit_gemm_scaled_f16_blockwise",)
    is_blockwise = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True, 2, is_blockwise=self.is_blockwise)


class WarpgroupWgradRows(_Halves, WarpgroupWgrad):
    """wgrad of f32 whose dy is divided in registers, of each channel 64 pixels at a time; x is packed."""

    name = "implicit_gemm_3xf16_divided_dy"
    rounded = ("implicit_gemm_scaled_f16",)
    divides_rows = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True, 2, divides_rows=self.divides_rows)
