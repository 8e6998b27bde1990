"""The programs over rows that normalizations are on GPUs, one kernel or several in a chain.

Forward, mean and variance come from one pass ("moments"); a row that fits into registers is read once. Backward, the
sums of a row, then dx. Group normalization works by channels where a group is no contiguous run of memory.
"""

from __future__ import annotations

from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.formulas.group_norm import add_channels, suits_channels
from jitdnn.kernels.formulas.named_programs import Formula
from jitdnn.kernels.formulas.normalization import (
    STATISTICS,
    NormalizationPlan,
    inverse,
    next_statistics,
    old_statistics,
    result_of,
)
from jitdnn.kernels.formulas.normalization_steps import (
    add_inference,
    add_own_gradients,
    add_parameter_gradients,
    add_row_gradients,
    forward_rows,
    names_of,
)
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.normalization import Normalization


def plan_of(problem: Normalization, _device: Device) -> NormalizationPlan:
    """The steps for a problem in any direction."""
    plan = NormalizationPlan(problem, has_moments=True)
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


def _forward(plan: NormalizationPlan) -> None:
    """Statistics in one pass, y in another."""
    problem = plan.problem
    inputs, outputs = names_of(plan)
    rows = forward_rows(plan, inputs, outputs)
    running = next_statistics(problem).scalars
    scalars: dict[str, Formula] = {
        "variance": lambda v: v.squares * v.share,
        "rstd": lambda v: inverse(v.variance, v.epsilon),
        **running,
    }
    first = old_statistics(problem)
    if problem.is_centred:
        rows.add_pass(first, joint={("moments", "mean", "squares"): lambda v: v.x}, scalars=scalars)
    else:
        rows.add_pass(first, {"squares": lambda v: v.x * v.x}, scalars)
    rows.add_pass(writes={"y": result_of(problem)})
    plan.step(rows, {name: value for name, value in STATISTICS.items() if name in outputs}, problem.rows)
