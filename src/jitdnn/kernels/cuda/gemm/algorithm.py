"""What every algorithm on the tensor cores refuses and promises."""

from __future__ import annotations

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Device, storing_roundoff, summation_bound, terms
from jitdnn.kernels.cuda.gemm.code import FUNCTIONS
from jitdnn.problems.problem import Problem

_MOST_GROUPS = 65535  # along the second axis of a grid


def refuse_units(dtype: str, groups: int, device: Device) -> str | None:
    """What the matrix units cannot do of any product."""
    if dtype not in FUNCTIONS:
        return f"the matrix units multiply {', '.join(FUNCTIONS)} here, and the tensors are {dtype}"
    units: GpuDevice = device  # type: ignore[assignment]
    if not units.tensor_flops(dtype):
        return f"{device.name} has no matrix units for {dtype}"
    if groups > _MOST_GROUPS:
        return f"{groups} groups are more than {_MOST_GROUPS}, which a launch can have"
    return None


def arithmetic_of(problem: Problem) -> str:
    """f32 tensors are multiplied as tf32; products of two numbers of half precision are exact."""
    return "tf32" if problem.inputs[0].descriptor.dtype == "f32" else "fp32"


def units_bound(problem: Problem) -> float:
    """The matrix units cut off as they add, so their error grows with the number of terms itself, not its root."""
    bound, dtype = summation_bound(problem), problem.inputs[0].descriptor.dtype
    if dtype == "i8":
        return bound
    bound += terms(problem) * 2.0**-26
    if dtype == "f32":
        bound += 2.0**-10  # both factors are rounded to 11 bits
    return max(bound, 2.0 * storing_roundoff(problem))
