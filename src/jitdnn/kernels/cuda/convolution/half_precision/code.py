"""How the kernels are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitdnn.devices.gpu import GpuDevice, Launch, Source
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.errors import CompileError
from jitdnn.kernels.algorithm import Device


def compiled(device: Device, source: Source, launches: Sequence[Launch], pointers: int) -> GpuKernel:
    """The kernel; if a shape needs a few registers more than there are, they are spilled."""
    gpu: GpuDevice = device  # type: ignore[assignment]
    try:
        return gpu.kernel(source, launches, pointers)
    except CompileError:
        return gpu.kernel(replace(source, spills=True), launches, pointers)
