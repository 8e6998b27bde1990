"""Cross-entropy as programs over rows of classes (`cross_entropy_programs`), of any strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from jitdnn.devices.cpu import CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.reduction.generator import build_sweeps, estimate_sweeps, workspace_sweeps
from jitdnn.kernels.formulas.cross_entropy import error_bound_of, plan_of, refusal
from jitdnn.kernels.formulas.named_programs import Step
from jitdnn.problems.cross_entropy import CrossEntropy
from jitdnn.problems.problem import Problem

_SHORTEST = 12  # neighbours in a row that are worth a vector


class _Chain:
    """The kernels of all steps, with the arrays that they leave for each other at `offsets` of the workspace."""

    def __init__(self, kernels: Sequence[CpuKernel], offsets: Sequence[int], room: int) -> None:
        self._kernels, self._offsets, self._room = kernels, offsets, room

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        every = (*pointers, *(workspace + offset for offset in self._offsets))
        for kernel in self._kernels:
            kernel(stream, every, alpha, beta, workspace + self._room)


def _mode(problem: CrossEntropy, step: Step) -> str | None:
    """Short rows of neighbours: even a part of a vector at a time is faster than gathering."""
    is_short = step.axes == (1,) and problem.x.strides[1] == 1 and problem.classes >= _SHORTEST
    return "along" if is_short else None


class SweptCrossEntropy(Algorithm):
    """Sweeps over the rows of classes, of any strides; the losses of all rows are added by a second kernel."""

    name = "sweeps"
    problem = CrossEntropy
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "cross_entropy takes no epilogue"
        return refusal(cast(CrossEntropy, problem))

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        loss = cast(CrossEntropy, problem)
        plan = plan_of(loss)
        return plan.room + max(
            workspace_sweeps(s.program, s.tensors, s.axes, device, s.compute, _mode(loss, s))
            for s in plan.steps
        )

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        loss = cast(CrossEntropy, problem)
        return sum(
            estimate_sweeps(s.program, s.tensors, s.axes, device, s.compute, _mode(loss, s))
            for s in plan_of(loss).steps
        )

    def error_bound(self, problem: Problem) -> float:
        return error_bound_of(cast(CrossEntropy, problem))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        loss = cast(CrossEntropy, problem)
        plan = plan_of(loss)
        kernels = [
            build_sweeps(
                s.program, s.tensors, s.axes, device, s.plain, s.operands, len(plan.numbers), s.compute,
                _mode(loss, s),
            )
            for s in plan.steps
        ]  # fmt: skip
        return kernels[0] if not plan.offsets else _Chain(kernels, plan.offsets, plan.room)
