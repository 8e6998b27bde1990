"""Cross-entropy as programs over rows of classes: every score is read once."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.formulas.cross_entropy import CrossEntropyPlan, error_bound_of, plan_of, refusal
from jitdnn.kernels.gpu.reduction.chain import Chain, step_kernel
from jitdnn.kernels.gpu.reduction.generator import RowsKernel, refuse_f64
from jitdnn.problems.cross_entropy import CrossEntropy
from jitdnn.problems.problem import Problem


class RowsCrossEntropy(Algorithm):
    """A team of threads to a row of scores, or threads to neighbouring rows; then the losses of all rows."""

    name = "rows"
    problem = CrossEntropy
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "cross_entropy takes no epilogue"
        return refuse_f64(problem, device) or refusal(cast(CrossEntropy, problem))

    def _plan(self, problem: Problem, device: Device) -> tuple[CrossEntropyPlan, list[RowsKernel]]:
        plan = plan_of(cast(CrossEntropy, problem), has_powers=True)
        return plan, [step_kernel(step, len(plan.numbers), device) for step in plan.steps]

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        plan, kernels = self._plan(problem, device)
        return plan.room + max(kernel.workspace() for kernel in kernels)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return sum(kernel.estimate() for kernel in self._plan(problem, device)[1])

    def error_bound(self, problem: Problem) -> float:
        return error_bound_of(cast(CrossEntropy, problem))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        plan, kernels = self._plan(problem, device)
        return Chain([kernel.build() for kernel in kernels], plan.offsets, plan.room)
