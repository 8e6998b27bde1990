"""Batch normalization of large images in the order of memory.

    forward     channel of an image: mean, sum of (x - mean)^2      channel: mean, rstd      y
    backward    channel of an image: p = sum(g), q = sum(g * xhat)      channel: dbias, dweight      dx, dz

with g = dy * act'(y). The pieces of one channel are far from each other, and short: going from piece to piece would
wait for memory at each. So each image's channels are done in a row, and put together afterwards. But where the rows of
space are runs of memory and all of a channel stays in the L2 cache, all is done channel by channel: later passes find
it there, and there is one loop's beginning and end for each piece less.
"""

from __future__ import annotations

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

_IMAGE, _SPACE = 0, 2  # axes of the grid
_LEAST_BYTES = 512 << 10  # smaller tensors stay in the cache, whatever the order
_CHANNEL_BYTES = 256 << 10  # of x in one channel, which stays in L2 beside dy


def suits_images(problem: BatchNorm) -> bool:
    """Whether to go image by image: where there is space, several images, and too much for the cache."""
    return (
        problem.mode == "spatial"
        and problem.direction != "inference"
        and problem.x.nbytes >= _LEAST_BYTES
        and problem.grid[_IMAGE] > 1
        and any(extent > 1 for extent in problem.grid[_SPACE:])
        and not _is_cached(problem)
    )


def _is_cached(problem: BatchNorm) -> bool:
    """Whether a channel is runs of memory that together stay in the cache."""
    is_run = any(problem.x.strides[axis] == 1 and problem.x.shape[axis] > 1 for axis in problem.rows)
    return is_run and problem.count * problem.x.nbytes // problem.x.size <= _CHANNEL_BYTES


def plan_images(plan: NormalizationPlan) -> None:
    """The steps, forward or backward."""
    if plan.problem.direction == "bwd":
        _backward(plan)
    else:
        _forward(plan)


def _forward(plan: NormalizationPlan) -> None:
    problem = plan.problem
    space = tuple(range(_SPACE, len(problem.grid)))
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
    plan.step(rows, {}, space)


def _backward(plan: NormalizationPlan) -> None:
    problem, gradient = plan.problem, gradient_of(plan.problem)
    space = tuple(range(_SPACE, len(problem.grid)))
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
    plan.step(rows, {}, space)
