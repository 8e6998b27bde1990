"""The normalizations as programs over rows, one kernel or several in a chain.

Forward, mean and variance come from one sweep ("moments"); a row that fits into registers is read once. Backward, the
sums of a row, then dx. Group normalization goes by way of the channels where a group is no run of memory.
"""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.formulas.group_norm import add_channels, suits_channels
from jitdnn.kernels.formulas.named_programs import Formula, Plan
from jitdnn.kernels.formulas.normalization import (
    OLD_STATISTICS,
    STATISTICS,
    inverse,
    next_statistics,
    result_of,
)
from jitdnn.kernels.formulas.normalization_steps import (
    add_inference,
    add_own_gradients,
    add_parameter_gradients,
    add_row_gradients,
    error_bound_of,
    forward_rows,
    names_of,
)
from jitdnn.kernels.gpu.reduction.chain import Chain, step_kernel
from jitdnn.kernels.gpu.reduction.generator import RowsKernel, refuse_f64
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.normalization import Normalization
from jitdnn.problems.problem import Problem


def plan_of(problem: Normalization) -> Plan:
    """The steps for a problem in any direction."""
    plan = Plan(problem, has_moments=True)
    if isinstance(problem, GroupNorm) and suits_channels(problem):
        add_channels(plan)
    elif problem.direction == "bwd":
        if set(problem.rows) == set(problem.sums):
            add_own_gradients(plan)
        else:
            add_parameter_gradients(plan)
            add_row_gradients(plan)
    elif problem.direction == "inference":
        add_inference(plan)
    else:
        _forward(plan)
    return plan


def _forward(plan: Plan) -> None:
    """Statistics in one sweep, y in another."""
    problem = plan.problem
    inputs, outputs = names_of(plan)
    rows = forward_rows(plan, inputs, outputs)
    running = next_statistics(problem).scalars
    scalars: dict[str, Formula] = {
        "variance": lambda v: v.squares * v.share,
        "rstd": lambda v: inverse(v.variance, v.epsilon),
        **running,
    }
    first = OLD_STATISTICS if running else {}
    if problem.is_centred:
        rows.sweep(first, joint={("moments", "mean", "squares"): lambda v: v.x}, scalars=scalars)
    else:
        rows.sweep(first, {"squares": lambda v: v.x * v.x}, scalars)
    rows.sweep(writes={"y": result_of(problem)})
    plan.step(rows, {name: value for name, value in STATISTICS.items() if name in outputs}, problem.rows)


def kernels_of(plan: Plan, device: Device) -> list[RowsKernel]:
    """The kernels of a plan, in order."""
    return [step_kernel(step, plan.pointers, device) for step in (*plan.steps, *plan.last)]


class RowsNormalization(Algorithm):
    """Teams of threads to a row, or threads to neighbouring rows: the statistics, then the elements."""

    name = "rows"
    problem = Normalization
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return f"{problem.kind} takes no epilogue"
        return refuse_f64(problem, device)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        plan = plan_of(cast(Normalization, problem))
        return plan.room + max(kernel.workspace() for kernel in kernels_of(plan, device))

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return sum(kernel.estimate() for kernel in kernels_of(plan_of(cast(Normalization, problem)), device))

    def error_bound(self, problem: Problem) -> float:
        return error_bound_of(cast(Normalization, problem))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        plan = plan_of(cast(Normalization, problem))
        return Chain([kernel.build() for kernel in kernels_of(plan, device)], plan.offsets, plan.room)
