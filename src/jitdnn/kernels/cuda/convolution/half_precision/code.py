"""How the kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from jitdnn.devices.gpu import GpuDevice, Launch, Source
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.half_precision.arguments import with_arguments
from jitdnn.kernels.cuda.convolution.half_precision.epilogue import pointers_of
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.problems.convolution import Convolution


class _Aligned(Protocol):
    """A plan with what the addresses of the operands must be multiples of, in bytes."""

    @property
    def alignments(self) -> tuple[int, int, int]: ...


_Plan = TypeVar("_Plan", bound=_Aligned)


def by_alignment(
    problem: Convolution, device: GpuDevice, epilogue: Epilogue | None, plan: _Plan, plain: _Plan,
    source: Callable[[Convolution, _Plan, Epilogue | None], Source],
    launches: Callable[[Convolution, _Plan], Sequence[Launch]], arguments: Sequence[str],
) -> GpuKernel | ByAddress:  # fmt: skip
    """The kernel of a plan, with that of the plan `plain` for operands at other addresses than it takes.

    `arguments`: macros that are arguments of the kernels, as arguments.py says.
    """

    def kernel(plan: _Plan) -> GpuKernel:
        runs, pointers = launches(problem, plan), pointers_of(epilogue)
        code = replace(source(problem, plan, epilogue), spills=True)  # of the sizes of any problem
        code, numbers = with_arguments(code, arguments)
        return device.kernel(code, runs, pointers, numbers)

    return kernel(plan) if plan == plain else ByAddress(kernel(plan), lambda: kernel(plain), plan.alignments)
