"""What the algorithms of resizing share: the taps of three axes as tables that the code reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel, WithTables, first_extra
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Kernel, TypedAlgorithm
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.resize import Resize, Taps
from jitdnn.rtcg.builder import Builder, Pointer
from jitdnn.rtcg.compile import Library
from jitdnn.tensor import TensorDescriptor, compute_dtype

AXES = 3
_TRIVIAL = Taps(np.zeros(1, np.int64), np.ones((1, 1)), 1)


def axes_of(problem: Resize) -> tuple[Taps, Taps, Taps]:
    """The taps of exactly three axes; those that are missing come first and do nothing."""
    first, second, third = [*[_TRIVIAL] * (AXES - len(problem.taps)), *problem.taps]
    return first, second, third


def strides_of(tensor: TensorDescriptor) -> tuple[int, ...]:
    """Strides along N, C and three axes of space."""
    return (*tensor.strides[:2], *[0] * (2 + AXES - len(tensor.shape)), *tensor.strides[2:])


def outer_tables(axes: Sequence[Taps], real: str) -> dict[str, np.ndarray[Any, Any]]:
    """Starts and weights of the axes, by name: row after row."""
    element = np.float32 if real == "f32" else np.float64
    tables: dict[str, np.ndarray[Any, Any]] = {}
    for axis, taps in enumerate(axes):
        tables[f"start{axis}"] = np.ascontiguousarray(taps.start, np.int64)
        tables[f"weights{axis}"] = np.ascontiguousarray(taps.weights, element)
    return tables


def is_plain(axes: Sequence[Taps]) -> bool:
    """Every output is one input, as it is."""
    return all(taps.width == 1 and bool((taps.weights == 1).all()) for taps in axes)


class Tables:
    """The tables in traced code: their addresses are among the extras."""

    def __init__(self, k: Builder, args: Pointer, pointers: int, names: Sequence[str]) -> None:
        self.k, self.args, self.first, self.names = k, args, first_extra(pointers), names

    def pointer(self, name: str, dtype: str) -> Pointer:
        return self.k.pointer(self.args, self.first + self.names.index(name), dtype)


def kernel_with(
    tables: Mapping[str, np.ndarray[Any, Any]], library: Library, tasks: int, device: CpuDevice, slots: Slots,
    values: Mapping[str, int],
) -> Kernel:  # fmt: skip
    """A kernel whose code reads tables: their addresses are among the values of the slots."""
    addresses = {name: int(table.ctypes.data) for name, table in tables.items()}
    kernel = CpuKernel(library, [("resize", tasks)], 2, device.threads, slots.pack({**values, **addresses}))
    return WithTables(kernel, tables)


class ResizeAlgorithm(TypedAlgorithm[Resize, CpuDevice]):
    """What the algorithms of resizing share."""

    problem = Resize
    deterministic = True
    takes_no_epilogue = "resizing takes no epilogue"

    def error_of(self, problem: Resize) -> float:
        # weights of a sum of 1 that are rounded, multiplied and added; cubic ones reach 1.5 in size an axis
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 32.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
