"""Winograd's minimal filtering in f32 with products by the multiply-adds of implicit_gemm.

The sums are those of the plain algorithms, whose names and bounds these have. Where its tiles are slower, or the
numbers are of another type, the tiled contraction of gpu/gemm computes the products.
"""

from __future__ import annotations

from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import KernelAlgorithm, PlannedKernel, version_over
from jitdnn.kernels.gpu.convolution.winograd.algorithm import (
    OnCudaCores,
    Winograd2,
    Winograd4,
    WinogradWgrad2,
    WinogradWgrad4,
)
from jitdnn.problems.matmul import MatMul


class _ByMultiplyAdds(OnCudaCores):
    version: ClassVar[int] = 3
    is_across: ClassVar[bool] = True

    def __init__(self, products: KernelAlgorithm[MatMul, GpuDevice]) -> None:
        self._products = products
        self.version = version_over(self.version, [products])  # type: ignore[misc]

    def multiply(self, problem: MatMul, device: GpuDevice) -> PlannedKernel:
        plain = super().multiply(problem, device)
        if self._products.refuse(problem, device) is not None:
            return plain
        tiled = self._products.plan(problem, device, None)
        return tiled if tiled.seconds < plain.seconds else plain


class Winograd4Fma(_ByMultiplyAdds, Winograd4):
    """Forward and data, in tiles of four results an axis."""


class Winograd2Fma(_ByMultiplyAdds, Winograd2):
    """Forward and data, in tiles of two results an axis: nearly as exact as a plain sum."""


class WinogradWgrad4Fma(_ByMultiplyAdds, WinogradWgrad4):
    """The filter's gradient over tiles of four results an axis."""


class WinogradWgrad2Fma(_ByMultiplyAdds, WinogradWgrad2):
    """The filter's gradient over tiles of two results an axis."""
