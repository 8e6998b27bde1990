"""Convolution of f32 by products of one number of half precision each, as exact as rounded tf32."""

from __future__ import annotations

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, summation_bound
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
    refuse_halves,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import Divided
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.gemm.algorithm import tensor_core_bound
from jitdnn.kernels.cuda.warpgroup.tile import SCALED, Tile
from jitdnn.problems.convolution import Convolution

ROUNDED_ERROR = 2.0**-10 + 2.0**-19
"""Of two factors that are rounded to 11 bits, and of the sums of a stage, of 128 products at most."""


class _Scaled(WarpgroupGemm):
    """f32 as one number of half precision, which has as many bits as tf32 and is multiplied twice as fast.

    A power of two brings each tensor's largest number to 2^13; those below 2^-27 of it have fewer bits, and below 2^-37
    none. What is not finite stays what it is.
    """

    name = "implicit_gemm_scaled_f16"
    is_scaled = True
    has_exact_products = False

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return refuse_halves(problem.inputs[0].descriptor.dtype) or super().refusal(problem, device, epilogue)

    def error_of(self, problem: Convolution) -> float:
        return tensor_core_bound(problem)


class WarpgroupGemmScaled(_Scaled):
    """fprop and dgrad of f32, as exact as tf32 that is rounded."""

    def __init__(self, tiles: tuple[Tile, ...] = SCALED) -> None:
        super().__init__(tiles)


class WarpgroupWgradScaled(_Scaled, WarpgroupWgrad):
    """wgrad of f32, as exact as tf32 that is rounded."""


class _ScaledByStages(_Scaled):
    """Sums of each stage are moved to f32, so that the tensor cores truncate those of few products."""

    def error_of(self, problem: Convolution) -> float:
        return ROUNDED_ERROR + summation_bound(problem)


class WarpgroupWgradScaledDivided(Divided, _ScaledByStages, WarpgroupWgrad):
    """wgrad of f32, as exact as tf32 that is rounded, of operands that the product itself rounds.

    They are those of 64 pixels at a time, x in shared memory and dy in registers. What is not finite is computed by
    multiply-adds.
    """

    name = "implicit_gemm_scaled_f16_divided"
    is_divided = True
    divides_rows = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(
            problem,
            device,
            self._tiles,
            True,
            2,
            is_divided=self.is_divided,
            divides_rows=self.divides_rows,
            is_rough=True,
        )


class WarpgroupWgradScaledDividedInLines(Divided, _ScaledByStages, WarpgroupWgradInLines):
    """wgrad of f32, as exact as tf32 that is rounded, in lines whose numbers are rounded in shared memory."""

    name = "implicit_gemm_scaled_f16_divided_in_lines"
    is_divided = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(
            problem, device, self._tiles, True, 2, is_divided=self.is_divided, is_in_lines=True, is_rough=True
        )


class WarpgroupWgradScaledBlockwise(_ScaledByStages, WarpgroupWgrad):
    """wgrad of f32 with one tap, as exact as tf32 that is rounded, packed in blocks of pixels by channels.

    Each has a power of two of its own that brings its largest number to 2^13.
    """

    name = "implicit_gemm_scaled_f16_blockwise"
    is_blockwise = True

    def sizes(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True, is_scaled=True, is_blockwise=self.is_blockwise)
