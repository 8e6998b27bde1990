"""Several programs over rows, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.kernels.formulas.named_programs import Step
from jitdnn.kernels.gpu.reduction.generator import RowsKernel


class Chain:
    """Kernels one after the other, which share pointers, and arrays between them at offsets of the workspace."""

    def __init__(self, kernels: Sequence[Kernel], offsets: Sequence[int], room: int) -> None:
        self._kernels, self._offsets, self._room = kernels, offsets, room

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        every = (*pointers, *(workspace + offset for offset in self._offsets))
        for kernel in self._kernels:
            kernel(stream, every, alpha, beta, workspace + self._room)


def step_kernel(step: Step, pointers: int, device: Device) -> RowsKernel:
    """The kernel of a step of a plan, which has so many pointers."""
    return RowsKernel(
        step.program, step.tensors, step.axes, cast(GpuDevice, device), step.plain, step.operands, pointers,
        step.compute,
    )  # fmt: skip
