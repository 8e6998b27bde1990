"""What an NVIDIA GPU is busy with while a run trains there, by NVML, the library of its driver that nvidia-smi asks."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, Final

#: series: shares of one, and degrees Celsius
BUSY, MEMORY, DEGREES = "gpu/busy", "gpu/memory", "gpu/degrees"
_CORE: Final = 0  # NVML_TEMPERATURE_GPU


class _Utilization(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]  # percent of the last moments


class _Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class GpuLoad:
    """The load of one GPU; `GpuLoad.of(device)` finds it."""

    def __init__(self, nvml: Any, handle: c_void_p) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def of(cls, device: str) -> GpuLoad | None:
        """That of `cuda` or `cuda:N`, numbered as CUDA numbers this process's GPUs; None for another device, and where
        the driver does not tell."""
        kind, _, number = device.partition(":")
        if kind != "cuda" or not (number or "0").isdecimal():
            return None
        try:
            cuda, nvml = _library("libcuda.so.1"), _library("libnvidia-ml.so.1")
            # the driver knows GPUs by their place on the bus, whatever CUDA_VISIBLE_DEVICES hides and in which order
            ordinal, bus, handle = c_int(), ctypes.create_string_buffer(32), c_void_p()
            find = nvml.nvmlDeviceGetHandleByPciBusId_v2
            find.argtypes = [c_char_p, POINTER(c_void_p)]
            done = (
                cuda.cuInit(0) == 0
                and cuda.cuDeviceGet(byref(ordinal), int(number or 0)) == 0
                and cuda.cuDeviceGetPCIBusId(bus, len(bus), ordinal) == 0
                and nvml.nvmlInit_v2() == 0
                and find(bus.value, byref(handle)) == 0
            )
        except (OSError, AttributeError):  # no such library, or an older one
            return None
        return cls(nvml, handle) if done else None

    def read(self) -> dict[str, float]:
        """What the driver tells now: shares of the time that kernels ran and of the memory that is taken, by all
        programs, and the temperature. What it does not tell is left out."""
        busy, memory, degrees = _Utilization(), _Memory(), c_uint()
        found: dict[str, float] = {}
        if self._nvml.nvmlDeviceGetUtilizationRates(self._handle, byref(busy)) == 0:
            found[BUSY] = busy.gpu / 100
        if self._nvml.nvmlDeviceGetMemoryInfo(self._handle, byref(memory)) == 0 and memory.total:
            found[MEMORY] = memory.used / memory.total
        if self._nvml.nvmlDeviceGetTemperature(self._handle, _CORE, byref(degrees)) == 0:
            found[DEGREES] = float(degrees.value)
        return found


def _library(name: str) -> Any:
    return ctypes.CDLL(name)
