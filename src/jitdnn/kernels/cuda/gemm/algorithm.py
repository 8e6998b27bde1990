"""Refusals and error bounds of every product on the tensor cores."""

from __future__ import annotations

from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import (
    ARITHMETIC,
    KernelAlgorithm,
    OwnProblem,
    storing_roundoff,
    summation_bound,
    terms,
)
from jitdnn.kernels.cuda.gemm.code import MMA_FUNCTIONS
from jitdnn.kernels.cuda.gemm.plan import FMA_TILES, TILES, Tile
from jitdnn.problems.problem import Problem

_MAX_GROUPS = 65535  # along the second axis of a grid
_FEW_COLUMNS = 4
"""Columns for which the tiled contraction of gpu/gemm has tiles of their own: those here would be empty mostly."""


def refuse_tensor_cores(dtype: str, groups: int, device: GpuDevice) -> str | None:
    """What the tensor cores cannot do of any product; None if they can."""
    if dtype not in MMA_FUNCTIONS:
        return f"the tensor cores multiply {', '.join(MMA_FUNCTIONS)} here, and the tensors are {dtype}"
    if not device.tensor_flops(dtype):
        return f"{device.name} has no tensor cores for {dtype}"
    return refuse_groups(groups)


def refuse_groups(groups: int) -> str | None:
    """Why a launch cannot have so many groups; None if it can."""
    if groups > _MAX_GROUPS:
        return f"{groups} groups are more than {_MAX_GROUPS}, which a launch can have"
    return None


class TensorCoreAlgorithm(KernelAlgorithm[OwnProblem, GpuDevice]):
    """Multistage tiles on the tensor cores, sums in f32 (i32 of i8), by the best of the given tiles."""

    uses_workspace: ClassVar[bool] = True
    takes_float8 = False

    def __init__(self, tiles: tuple[Tile, ...] = TILES) -> None:
        self._tiles = tiles

    def refuse_units(self, dtype: str, groups: int, device: GpuDevice) -> str | None:
        """What the units that multiply cannot do of any product; None if they can."""
        return refuse_tensor_cores(dtype, groups, device)

    def arithmetic(self, problem: Problem) -> str:
        return tensor_core_arithmetic(problem)

    def error_of(self, problem: OwnProblem) -> float:
        return tensor_core_bound(problem)


class MultiplyAddAlgorithm(TensorCoreAlgorithm[OwnProblem]):
    """The same kernels with multiply-adds of f32 on the ordinary units: sums of the numbers themselves."""

    version: ClassVar[int] = 2

    def __init__(self, tiles: tuple[Tile, ...] = FMA_TILES) -> None:
        super().__init__(tiles)

    def refuse_units(self, dtype: str, groups: int, device: GpuDevice) -> str | None:
        if dtype != "f32":
            return f"the multiply-adds here are of f32, and the tensors are {dtype}"
        return refuse_groups(groups)

    def refuse_few(self, columns: int) -> str | None:
        """Why a product of so few columns is not for these tiles; None if it is."""
        if columns <= _FEW_COLUMNS:
            return (
                f"of {columns} columns a tile would be empty mostly: direct and tiled_gemm have narrow ones"
            )
        return None

    def arithmetic(self, problem: Problem) -> str:
        return "fp32"

    def error_of(self, problem: OwnProblem) -> float:
        return summation_bound(problem)


def tensor_core_arithmetic(problem: Problem) -> str:
    """f32 tensors are multiplied as tf32; products of two numbers of 16 or 8 bits are exact, and so are sums of
    integers, which are then scaled in the type that the problem asks for."""
    dtype = problem.inputs[0].descriptor.dtype
    if dtype == "i8":
        return ARITHMETIC[problem.dtype]
    return "tf32" if dtype == "f32" else "fp32"


def tensor_core_bound(problem: Problem) -> float:
    """The bound of sums on the tensor cores: they truncate as they add, so it grows with the number of terms itself."""
    bound, dtype = summation_bound(problem), problem.inputs[0].descriptor.dtype
    if dtype == "i8":
        return bound
    bound += terms(problem) * 2.0**-26
    if dtype == "f32":
        bound += 2.0**-10  # both factors are rounded to 11 bits
    return max(bound, 2.0 * storing_roundoff(problem))
