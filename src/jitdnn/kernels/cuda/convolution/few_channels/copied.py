"""Data gradients with few input channels whose dy is channels first: dy is copied to channels last before.

The kernel stages 16 bytes of neighbouring channels at a time; of channels that lie apart it stages numbers, 4 to 8
times as many instructions. A copy moves dy twice at the speed of memory.
"""

from __future__ import annotations

from dataclasses import replace

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, Kernel, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import FewChannels, with_few_inputs
from jitdnn.kernels.cuda.convolution.half_precision.copied import SAME, Copied, room_of
from jitdnn.kernels.formulas.elementwise import ElementwiseGenerator
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor, compute_dtype, packed_strides


class FewChannelsCopied(KernelAlgorithm[Convolution, GpuDevice]):
    """The same behind a copy of dy, or of x of layers with few output channels, to channels last."""

    problem = Convolution

    def __init__(self, elementwise: ElementwiseGenerator, inner: FewChannels) -> None:
        self._elementwise, self._inner = elementwise, inner
        self.name = f"{inner.name}_copied"  # type: ignore[misc]
        self.has_exact_products = inner.has_exact_products  # type: ignore[misc]

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if with_few_inputs(problem).direction != "bwd_data":
            return "it is for data gradients of layers with few input channels, and the like"
        first = problem.inputs[0].descriptor
        if first.strides[1] == 1 or first.shape[1] == 1:
            return f"channels are neighbours already: {self._inner.name} reads them"
        return self._inner.refusal(_lasting(problem), device, epilogue)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        own = _lasting(problem)
        inner = self._inner.plan(own, device, epilogue)
        tensors = [problem.inputs[0].descriptor, own.inputs[0].descriptor]
        room = room_of(tensors[1])

        def build() -> Kernel:
            copy = self._elementwise.build(SAME, tensors, device, computing=compute_dtype(problem.dtype))
            return Copied(copy, inner.build(), room)

        seconds = inner.seconds + self._elementwise.estimate(SAME, tensors, device)
        return PlannedKernel(room + inner.workspace, seconds, build)

    def arithmetic(self, problem: Problem) -> str:
        return self._inner.arithmetic(problem)

    def error_of(self, problem: Convolution) -> float:
        return self._inner.error_of(problem)

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return self._inner.spreads_to(_lasting(problem), device, epilogue)


def _lasting(problem: Convolution) -> Convolution:
    """The problem with its first operand in channels last."""
    first = problem.x if problem.direction == "fwd" else problem.y
    order = (0, *range(2, len(first.shape)), 1)
    copy = TensorDescriptor(first.shape, packed_strides(first.shape, order), first.dtype)
    return replace(problem, x=copy) if problem.direction == "fwd" else replace(problem, y=copy)
