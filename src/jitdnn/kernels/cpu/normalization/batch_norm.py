"""Batch normalization of large images in the order of memory.

    forward     channel of an image: mean, sum of (x - mean)^2      channel: mean, rstd      y
    backward    channel of an image: p = sum(g), q = sum(g * xhat)      channel: dbias, dweight      dx, dz

with g = dy * act'(y). The pieces of one channel are far from each other, and short: going from piece to piece would
wait for memory at each. So each image's channels are done in a row, and put together afterwards. But where the rows of
space are runs of memory and all of a channel stays in the L2 cache, all is done channel by channel: later passes find
it there, and there is one loop's beginning and end for each piece less.
"""

from __future__ import annotations

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.formulas.named_programs import Formula, Names, Rows
from jitdnn.kernels.formulas.normalization import (
    STATISTICS,
    NormalizationPlan,
    channel_moments,
    gradient_of,
    joint_moments,
    result_of,
    slope_names,
    xhat,
)
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.rtcg.processor import Processor

_IMAGE, _SPACE = 0, 2  # axes of the grid


def is_large(problem: BatchNorm, processor: Processor) -> bool:
    """Whether the order of memory matters: where a batch's own statistics are taken of too much for the cache."""
    return (
        problem.mode == "spatial"
        and problem.direction != "inference"
        and problem.x.nbytes >= processor.l2(cost.NORMALIZATION_TENSOR_L2)
    )


def suits_images(problem: BatchNorm, processor: Processor) -> bool:
    """Whether to go image by image: a large problem with space and several images, whose channels are not cached."""
    return (
        problem.grid[_IMAGE] > 1
        and any(extent > 1 for extent in problem.grid[_SPACE:])
        and not _is_cached(problem, processor)
    )


def _is_cached(problem: BatchNorm, processor: Processor) -> bool:
    """Whether a channel is runs of memory that together stay in the cache."""
    is_run = any(problem.x.strides[axis] == 1 and problem.x.shape[axis] > 1 for axis in problem.rows)
    channel = problem.count * problem.x.nbytes // problem.x.size
    return is_run and channel <= processor.l2(cost.NORMALIZATION_CHANNEL_L2)


def plan_images(plan: NormalizationPlan, run: tuple[int, ...] | None = None) -> None:
    """The steps, forward or backward. `run`: the axes that results are written along, by default those of space."""
    space = tuple(range(_SPACE, len(plan.problem.grid)))
    if plan.problem.direction == "bwd":
        _backward(plan, space, run or space)
    else:
        _forward(plan, space, run or space)


def _forward(plan: NormalizationPlan, space: tuple[int, ...], run: tuple[int, ...]) -> None:
    problem = plan.problem
    outputs = [operand.name for operand in problem.outputs if operand.name != "y"]
    size = channel_moments(plan, space)
    for name in ("mean", "rstd"):
        if name not in outputs:
            plan.array(name, problem.rows)
            outputs.append(name)

    states = [name for name in outputs if name.startswith("running")]
    rows = joint_moments(plan, size, problem.grid[_IMAGE], (states, outputs))
    plan.step(rows, {name: STATISTICS[name] for name in outputs}, (_IMAGE,), "f64", single=space)

    inputs = [operand.name for operand in problem.inputs]
    rows = Rows([*inputs, "mean", "rstd"], ["y"])
    rows.add_pass(writes={"y": result_of(problem)})
    plan.step(rows, {}, run)


def _backward(plan: NormalizationPlan, space: tuple[int, ...], run: tuple[int, ...]) -> None:
    problem, gradient = plan.problem, gradient_of(plan.problem)
    names = slope_names(plan)
    plan.array("p", space)
    plan.array("q", space)
    plan.array("a", problem.rows)
    plan.array("b", problem.rows)

    rows = Rows(["dy", "x", *names, "mean", "rstd"], ["p", "q"])
    rows.add_pass(add={"p": gradient, "q": lambda v: gradient(v) * xhat(v)})
    plan.step(rows, {"p": "p", "q": "q"}, space)

    wanted = [name for name in ("dweight", "dbias") if name in plan.numbers]
    rows = Rows(["p", "q"], ["a", "b", *wanted], {"share": 1.0 / problem.count})
    rows.add_pass(
        add={"dbias": lambda v: v.p, "dweight": lambda v: v.q},
        scalars={"mean_g": lambda v: v.dbias * v.share, "mean_gx": lambda v: v.dweight * v.share},
    )
    plan.step(
        rows, {"a": "mean_g", "b": "mean_gx", **{name: name for name in wanted}}, (_IMAGE,), single=space
    )

    weight = ["weight"] if "weight" in plan.numbers and "weight" not in names else []
    outputs = ["dx", *(["dz"] if "dz" in plan.numbers else [])]
    rows = Rows(["dy", "x", *names, *weight, "mean", "rstd", "a", "b"], outputs)

    def dx(v: Names) -> object:
        scale = v.rstd * v.weight if "weight" in v else v.rstd
        return scale * (gradient(v) - v.a - xhat(v) * v.b)

    writes: dict[str, Formula] = {"dx": dx, "dz": gradient}
    rows.add_pass(writes={name: writes[name] for name in outputs})
    plan.step(rows, {}, run)
