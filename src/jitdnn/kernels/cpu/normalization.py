"""The normalizations as programs over rows (`sweeps`), one kernel or several in a chain.

Forward, where a row stays in the cache between sweeps:

    m = sum(x) / n;  v = sum((x - m)^2) / n;  y = (x - m) * rstd * weight + bias

and where it does not, sum(x) and sum(x^2) in f64, which has digits to spare for the numbers of f32, in one pass,
and then y in another. Numbers of f64 are always gone through three times.

Backward, with xhat = (x - mean) * rstd, g = dy * weight:

    a = sum(g);  b = sum(g * xhat);  dx = rstd * (g - a / n - xhat * b / n)

Where weight and bias belong to a row (batch normalization), a and b give dbias and dweight too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.batch_norm import plan_images, suits_images
from jitdnn.kernels.cpu.group_norm import plan_channels, suits_channels
from jitdnn.kernels.cpu.normalization_formulas import (
    OLD_STATISTICS,
    STATISTICS,
    gradient_of,
    inverse,
    next_statistics,
    result_of,
    xhat,
)
from jitdnn.kernels.cpu.normalization_program import Formula, Names, Plan, Rows
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.normalization import Normalization
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import apply
from jitdnn.tensor import compute_dtype

_CACHED_BYTES = 512 << 10  # of a unit, so that its next sweep finds it in the cache
_ACROSS = 128  # rows that a unit has side by side, where vectors do not go along the row


def plan_of(problem: Normalization) -> Plan:
    """The steps for a problem in any direction."""
    plan = Plan(problem)
    if isinstance(problem, GroupNorm) and suits_channels(problem):
        plan_channels(plan)
    elif isinstance(problem, BatchNorm) and suits_images(problem):
        plan_images(plan)
    elif problem.direction == "bwd":
        if set(problem.rows) == set(problem.sums):
            _own_gradients(plan)
        else:
            _parameter_gradients(plan)
            _row_gradients(plan)
    elif problem.direction == "inference":
        _inference(plan)
    elif problem.x.dtype == "f64" or _is_cached(plan):
        _whole(plan)
    else:
        _statistics(plan)
        _result(plan)
    return plan


def error_bound_of(problem: Normalization) -> float:
    """A dozen roundings, and those of the longest sum in what is computed in."""
    own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
    terms = max(problem.count, problem.x.size // max(1, _size(problem, problem.sums)))
    return 4.0 * own + computing * (16.0 + sqrt(terms))


def _size(problem: Normalization, same: Sequence[int]) -> int:
    size = 1
    for axis, extent in enumerate(problem.grid):
        size *= 1 if axis in same else extent
    return size


def _is_cached(plan: Plan) -> bool:
    """Whether a unit's elements stay in the cache from one sweep to the next."""
    problem, x = plan.problem, plan.tensors["x"]
    along = any(x.strides[axis] in (1, -1) and x.shape[axis] > 1 for axis in problem.rows)
    rows = 1 if along else min(_ACROSS, _size(problem, problem.rows))
    return rows * problem.count * x.nbytes // max(1, x.size) <= _CACHED_BYTES


# ---- forward


def _forward_rows(plan: Plan, inputs: Sequence[str], outputs: Sequence[str]) -> Rows:
    """The beginning of a program that takes statistics."""
    problem = plan.problem
    parameters = {"share": 1.0 / problem.count, "epsilon": problem.epsilon}
    return Rows(inputs, outputs, parameters | next_statistics(problem).parameters)


def _names(plan: Plan) -> tuple[list[str], list[str]]:
    """Inputs and outputs of the whole problem; a state is both."""
    return [o.name for o in plan.problem.sources], [o.name for o in plan.problem.outputs]


def _whole(plan: Plan) -> None:
    """All in one kernel: two sweeps for the statistics, one for y."""
    problem = plan.problem
    inputs, outputs = _names(plan)
    rows = _forward_rows(plan, inputs, outputs)
    running = next_statistics(problem).scalars
    first = OLD_STATISTICS if running else {}
    if problem.is_centred:
        rows.sweep(first, {"total": lambda v: v.x}, {"mean": lambda v: v.total * v.share})
        first = {}
    squares: Formula = lambda v: (v.x - v.mean) * (v.x - v.mean)  # noqa: E731
    if not problem.is_centred:
        squares = lambda v: v.x * v.x  # noqa: E731
    rows.sweep(
        first,
        {"squares": squares},
        {
            "variance": lambda v: v.squares * v.share,
            "rstd": lambda v: inverse(v.variance, v.epsilon),
            **running,
        },
    )
    rows.sweep(writes={"y": result_of(problem)})
    plan.step(rows, {name: value for name, value in STATISTICS.items() if name in outputs}, problem.rows)


def _statistics(plan: Plan) -> None:
    """mean and rstd from sums in f64, in one pass."""
    problem = plan.problem
    inputs, outputs = _names(plan)
    for name in ("mean", "rstd") if problem.is_centred else ("rstd",):
        if name not in outputs:
            plan.array(name, problem.rows)
            outputs.append(name)
    outputs.remove("y")
    running = next_statistics(problem).scalars
    rows = _forward_rows(plan, ["x", *(n for n in inputs if n.startswith("running"))], outputs)
    sums: dict[str, Formula] = {"squares": lambda v: v.x * v.x}
    scalars: dict[str, Formula] = {"variance": lambda v: v.squares * v.share}
    if problem.is_centred:
        sums["total"] = lambda v: v.x
        scalars = {
            "mean": lambda v: v.total * v.share,
            "variance": lambda v: apply("maximum", v.squares * v.share - v.mean * v.mean, 0.0),
        }
    rows.sweep(
        OLD_STATISTICS if running else {},
        sums,
        {**scalars, "rstd": lambda v: inverse(v.variance, v.epsilon), **running},
    )
    plan.step(rows, {n: v for n, v in STATISTICS.items() if n in outputs}, problem.rows, compute="f64")


def _result(plan: Plan) -> None:
    """y from mean and rstd."""
    problem = plan.problem
    inputs = [o.name for o in problem.inputs if not o.name.startswith("running")]
    inputs += [name for name in ("mean", "rstd") if name in plan.numbers]
    rows = Rows(inputs, ["y"])
    rows.sweep(writes={"y": result_of(problem)})
    plan.step(rows, {}, problem.rows)


def _inference(plan: Plan) -> None:
    """rstd * weight of every channel first, then y."""
    problem = plan.problem
    plan.array("rstd", problem.rows)
    plan.alias("mean", "running_mean")
    rows = Rows(["running_var"], ["rstd"], {"epsilon": problem.epsilon})
    rows.sweep(
        {"old_var": lambda v: v.running_var}, scalars={"rstd": lambda v: inverse(v.old_var, v.epsilon)}
    )
    plan.step(rows, {"rstd": "rstd"}, problem.rows)
    _result(plan)


# ---- backward


def _own_gradients(plan: Plan) -> None:
    """All gradients in one kernel, where weight and bias are those of a row."""
    problem = plan.problem
    inputs, outputs = _names(plan)
    rows, gradient = Rows(inputs, outputs, {"share": 1.0 / problem.count}), gradient_of(problem)
    rows.sweep(
        add={"dbias": gradient, "dweight": lambda v: gradient(v) * xhat(v)},
        scalars={"a": lambda v: v.dbias * v.share, "b": lambda v: v.dweight * v.share},
    )

    def dx(v: Names) -> Any:
        scale = v.rstd * v.weight if "weight" in v else v.rstd
        return scale * (gradient(v) - v.a - xhat(v) * v.b)

    writes: dict[str, Formula] = {"dx": dx}
    if "dz" in outputs:
        writes["dz"] = gradient
    rows.sweep(writes=writes)
    plan.step(rows, {name: name for name in ("dweight", "dbias") if name in outputs}, problem.rows)


def _parameter_gradients(plan: Plan) -> None:
    """dweight and dbias. They come first: dx may lie where dy is."""
    problem = plan.problem
    inputs, outputs = _names(plan)
    wanted = [name for name in ("dweight", "dbias") if name in outputs]
    if not wanted:
        return
    rows = Rows([name for name in inputs if name != "weight"], wanted)
    formulas: dict[str, Formula] = {"dweight": lambda v: v.dy * xhat(v), "dbias": lambda v: v.dy}
    rows.sweep(add={name: formulas[name] for name in wanted})
    plan.step(rows, {name: name for name in wanted}, problem.sums)


def _row_gradients(plan: Plan) -> None:
    """dx, where weight belongs to the elements of a row."""
    problem = plan.problem
    inputs, _ = _names(plan)
    rows = Rows(inputs, ["dx"], {"share": 1.0 / problem.count})

    def g(v: Names) -> Any:
        return v.dy * v.weight if "weight" in v else v.dy

    sums: dict[str, Formula] = {"gx": lambda v: g(v) * xhat(v)}
    scalars: dict[str, Formula] = {"b": lambda v: v.gx * v.share}
    if problem.is_centred:
        sums["g"] = g
        scalars["a"] = lambda v: v.g * v.share
    rows.sweep(add=sums, scalars=scalars)

    def dx(v: Names) -> Any:
        offset = xhat(v) * v.b
        return v.rstd * (g(v) - v.a - offset if "a" in v else g(v) - offset)

    rows.sweep(writes={"dx": dx})
    plan.step(rows, {}, problem.rows)


class SweepsNormalization(Algorithm):
    """Sweeps over the rows of any strides: the statistics, then the elements while they are in the cache."""

    name = "sweeps"
    problem = Normalization
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return f"{problem.kind} takes no epilogue" if epilogue is not None else None

    def workspace(self, problem: Problem, device: Device) -> int:
        return plan_of(cast(Normalization, problem)).workspace(device)

    def estimate(self, problem: Problem, device: Device) -> float:
        return plan_of(cast(Normalization, problem)).estimate(device)

    def error_bound(self, problem: Problem) -> float:
        return error_bound_of(cast(Normalization, problem))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return plan_of(cast(Normalization, problem)).build(device)
