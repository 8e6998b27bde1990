"""Which programs over rows the normalizations are on processors, one kernel or several in a chain.

Forward, where a row stays in the cache between passes:

    m = sum(x) / n;  v = sum((x - m)^2) / n;  y = (x - m) * rstd * weight + bias

and where it does not, sum(x) and sum(x^2) in f64, which has digits to spare for the numbers of f32, in one pass,
and then y in another. Numbers of f64 are always gone through three times.
"""

from __future__ import annotations

from typing import cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.normalization.batch_norm import is_large, plan_images, suits_images
from jitdnn.kernels.cpu.normalization.channels_last import CHANNELS, in_runs
from jitdnn.kernels.cpu.normalization.group_norm import plan_channels
from jitdnn.kernels.formulas.group_norm import suits_channels
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
    add_result,
    add_row_gradients,
    forward_rows,
    names_of,
    size_of,
)
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.normalization import Normalization
from jitdnn.rtcg.expression import apply
from jitdnn.rtcg.processor import Processor

_ACROSS = 128  # rows that a unit has side by side, where vectors do not go along the row


def plan_of(problem: Normalization, device: Device) -> NormalizationPlan:
    """The steps for a problem in any direction."""
    processor = cast(CpuDevice, device).isa.processor
    if isinstance(problem, BatchNorm) and is_large(problem, processor):
        runs = in_runs(problem, processor)
        if runs is not None or suits_images(problem, processor):
            plan = NormalizationPlan(runs or problem)
            plan_images(plan, CHANNELS if runs else None)
            return plan
    plan = NormalizationPlan(problem)
    if isinstance(problem, GroupNorm) and suits_channels(problem):
        plan_channels(plan, processor)
    elif problem.direction == "bwd":
        if set(problem.rows) == set(problem.sums):
            add_own_gradients(plan)
        else:
            add_parameter_gradients(plan)
            add_row_gradients(plan)
    elif problem.direction == "inference":
        add_inference(plan)
    elif problem.x.dtype == "f64" or _is_cached(plan, processor):
        _whole(plan)
    else:
        _statistics(plan)
        add_result(plan)
    return plan


def _is_cached(plan: NormalizationPlan, processor: Processor) -> bool:
    """Whether a unit's elements stay in the cache from one pass to the next."""
    problem, x = plan.problem, plan.named["x"]
    along = any(x.strides[axis] in (1, -1) and x.shape[axis] > 1 for axis in problem.rows)
    rows = 1 if along else min(_ACROSS, size_of(problem, problem.rows))
    return rows * problem.count * x.nbytes // max(1, x.size) <= processor.l2(cost.NORMALIZATION_UNIT_L2)


# ---- forward


def _whole(plan: NormalizationPlan) -> None:
    """All in one kernel: two passes for the statistics, one for y."""
    problem = plan.problem
    inputs, outputs = names_of(plan)
    rows = forward_rows(plan, inputs, outputs)
    running = next_statistics(problem).scalars
    first = old_statistics(problem)
    if problem.is_centred:
        rows.add_pass(first, {"total": lambda v: v.x}, {"mean": lambda v: v.total * v.share})
        first = {}
    squares: Formula = lambda v: (v.x - v.mean) * (v.x - v.mean)  # noqa: E731
    if not problem.is_centred:
        squares = lambda v: v.x * v.x  # noqa: E731
    rows.add_pass(
        first,
        {"squares": squares},
        {
            "variance": lambda v: v.squares * v.share,
            "rstd": lambda v: inverse(v.variance, v.epsilon),
            **running,
        },
    )
    rows.add_pass(writes={"y": result_of(problem)})
    plan.step(rows, {name: value for name, value in STATISTICS.items() if name in outputs}, problem.rows)


def _statistics(plan: NormalizationPlan) -> None:
    """mean and rstd from sums in f64, in one pass."""
    problem = plan.problem
    inputs, outputs = names_of(plan)
    for name in ("mean", "rstd") if problem.is_centred else ("rstd",):
        if name not in outputs:
            plan.array(name, problem.rows)
            outputs.append(name)
    outputs.remove("y")
    running = next_statistics(problem).scalars
    rows = forward_rows(plan, ["x", *(n for n in inputs if n.startswith("running"))], outputs)
    sums: dict[str, Formula] = {"squares": lambda v: v.x * v.x}
    scalars: dict[str, Formula] = {"variance": lambda v: v.squares * v.share}
    if problem.is_centred:
        sums["total"] = lambda v: v.x
        scalars = {
            "mean": lambda v: v.total * v.share,
            "variance": lambda v: apply("maximum", v.squares * v.share - v.mean * v.mean, 0.0),
        }
    rows.add_pass(
        old_statistics(problem),
        sums,
        {**scalars, "rstd": lambda v: inverse(v.variance, v.epsilon), **running},
    )
    plan.step(rows, {n: v for n, v in STATISTICS.items() if n in outputs}, problem.rows, compute="f64")
