"""Convolutions that are another convolution, which the fastest of several algorithms computes."""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Epilogue, KernelAlgorithm, fastest, version_over
from jitdnn.problems.convolution import Convolution


class ByOthers(KernelAlgorithm[Convolution, GpuDevice]):
    """An algorithm that states its problem as another one, for algorithms that compute in the same math mode."""

    problem = Convolution
    takes_float8 = False

    def __init__(self, *others: Algorithm) -> None:
        """`others`: what may run the other convolution."""
        self._others = others
        self.version = version_over(self.version, others)  # type: ignore[misc]
        self._inner = lru_cache(512)(self._fastest)

    def _fastest(
        self, other: Convolution, device: GpuDevice, epilogue: Epilogue | None = None
    ) -> Algorithm | None:
        """The algorithm that should be fastest on the other convolution; None if none takes it."""
        return fastest(self._of_math(other), other, device, epilogue)

    def _of_math(self, other: Convolution) -> list[Algorithm]:
        """Those that compute in the math mode of this one."""
        return [one for one in self._others if one.arithmetic(other) == self.arithmetic(other)]
