"""Convolutions with channels first by algorithms for channels last: operands are copied before, the result after.

A copy moves a tensor twice at the speed of memory, whatever the two layouts are. An algorithm that reads 16 bytes of
neighbouring channels at a time takes 4 to 8 times as many instructions for channels that are not contiguous, or refuses
them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import (
    Algorithm,
    Epilogue,
    Kernel,
    KernelAlgorithm,
    PlannedKernel,
    version_over,
)
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import with_few_inputs
from jitdnn.kernels.cuda.convolution.half_precision.copied import SAME, Copied, room_of
from jitdnn.kernels.formulas.elementwise import ElementwiseGenerator
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import OPERANDS, Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor, compute_dtype, packed_strides

Ends = list[TensorDescriptor] | None


class ChannelsLast(KernelAlgorithm[Convolution, GpuDevice]):
    """Another algorithm between a copy to channels last and one back: forward and data gradient."""

    problem = Convolution
    takes_float8 = False

    def __init__(self, elementwise: ElementwiseGenerator, inner: Algorithm) -> None:
        self._elementwise, self._inner = elementwise, inner
        self.name = f"{inner.name}_copied"  # type: ignore[misc]
        self.version = version_over(self.version, [inner])  # type: ignore[misc]
        self.has_exact_products = inner.has_exact_products  # type: ignore[misc]
        self.is_elementwise = inner.is_elementwise  # type: ignore[misc]
        self.rounded = tuple(f"{name}_copied" for name in inner.rounded)  # type: ignore[misc]

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if reason := self._refuse_copies(problem):
            return reason
        return self._inner.refuse(self._lasting(problem), device, epilogue)

    def _refuse_copies(self, problem: Convolution) -> str | None:
        """Why nothing is to be copied."""
        if problem.direction == "bwd_filter":
            return f"a filter's gradient reads two tensors: {self._inner.name} takes them as they are"
        if problem.is_integer:
            return f"it copies reals, not {problem.x.dtype}"
        if not self._copied(problem):
            return f"channels are neighbours already: {self._inner.name} reads them"
        return None

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        if problem.has_float8 or self._refuse_copies(problem):
            return 0.0
        own = self._lasting(problem)
        least = self._inner.least_seconds(own, device, epilogue)
        if not least:
            return 0.0
        return least + ROUNDED * sum(
            self._elementwise.estimate(SAME, ends, device) for ends in self._ends(problem, own) if ends
        )

    def _ends(self, problem: Convolution, own: Convolution) -> tuple[Ends, Ends]:
        """What is copied before, and behind, from where to where; None for nothing."""
        order, copied = OPERANDS[problem.direction], self._copied(problem)
        before = [problem.inputs[0].descriptor, own.inputs[0].descriptor] if order[0] in copied else None
        behind = [own.output, problem.output] if order[-1] in copied else None
        return before, behind

    def _copied(self, problem: Convolution) -> tuple[str, ...]:
        """The tensors that are copied, of x and y: those whose channels lie apart."""
        return tuple(name for name in "xy" if not _is_last(getattr(problem, name)))

    def _lasting(self, problem: Convolution) -> Convolution:
        """The problem with these tensors in channels last."""
        return _lasting(problem, self._copied(problem))

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        own = self._lasting(problem)
        before, behind = self._ends(problem, own)
        rooms = [room_of(tensors[end]) if tensors else 0 for tensors, end in ((before, 1), (behind, 0))]
        seconds = self._inner.estimate(own, device, epilogue)
        seconds += sum(self._elementwise.estimate(SAME, ends, device) for ends in (before, behind) if ends)

        def copy(tensors: list[TensorDescriptor] | None) -> Kernel | None:
            if tensors is None:
                return None
            return self._elementwise.build(SAME, tensors, device, computing=compute_dtype(problem.dtype))

        def build() -> Kernel:
            return Copied(copy(before), self._inner.build(own, device, epilogue), copy(behind), rooms)

        return PlannedKernel(sum(rooms) + self._inner.workspace(own, device, epilogue), seconds, build)

    def arithmetic(self, problem: Problem) -> str:
        return self._inner.arithmetic(problem)

    def error_of(self, problem: Convolution) -> float:
        return self._inner.error_bound(problem)

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return self._inner.spreads(self._lasting(problem), device, epilogue)


class FewChannelsLast(ChannelsLast):
    """`stem` for dgrad of layers with few input channels, and the like: dy, which has many, is copied first."""

    def _refuse_copies(self, problem: Convolution) -> str | None:
        if with_few_inputs(problem).direction != "bwd_data":
            return "it is for data gradients of layers with few input channels, and the like"
        return super()._refuse_copies(problem)

    def _copied(self, problem: Convolution) -> tuple[str, ...]:
        return tuple(name for name in super()._copied(problem) if name == OPERANDS[problem.direction][0])


@lru_cache(64)  # of the algorithms that look at one problem
def _lasting(problem: Convolution, copied: tuple[str, ...]) -> Convolution:
    return replace(
        problem,
        x=_last(problem.x) if "x" in copied else problem.x,
        y=_last(problem.y) if "y" in copied else problem.y,
    )


def _is_last(tensor: TensorDescriptor) -> bool:
    return tensor.strides[1] == 1 or tensor.shape[1] == 1


def _last(tensor: TensorDescriptor) -> TensorDescriptor:
    order = (0, *range(2, len(tensor.shape)), 1)
    return TensorDescriptor(tensor.shape, packed_strides(tensor.shape, order), tensor.dtype)
