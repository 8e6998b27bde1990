"""Batch, layer, RMS and group normalization as programs over rows.

The algorithm, and steps that plans of several targets have in common.

Backward, with xhat = (x - mean) * rstd, g = dy * weight:

    a = sum(g);  b = sum(g * xhat);  dx = rstd * (g - a / n - xhat * b / n)

Where weight and bias belong to a row (batch normalization), a and b give dbias and dweight too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue
from jitdnn.kernels.formulas.named_programs import Formula, Names, Rows
from jitdnn.kernels.formulas.normalization import (
    NormalizationPlan,
    gradient_of,
    inverse,
    next_statistics,
    result_of,
    xhat,
)
from jitdnn.kernels.formulas.row_algorithms import RowAlgorithm, RowGenerator
from jitdnn.problems.normalization import Normalization
from jitdnn.tensor import compute_dtype


class RowNormalization(RowAlgorithm[Normalization]):
    """Passes over every row: the statistics, then the elements. `plan_of` says which steps suit the device."""

    problem = Normalization

    def __init__(
        self, generator: RowGenerator, plan_of: Callable[[Normalization, Device], NormalizationPlan]
    ) -> None:
        super().__init__(generator)
        self.plan_of = plan_of

    def plan(self, problem: Normalization, device: Device, epilogue: Epilogue | None) -> NormalizationPlan:
        return self.plan_of(problem, device)

    def error_of(self, problem: Normalization) -> float:
        return error_bound_of(problem)


def error_bound_of(problem: Normalization) -> float:
    """A dozen roundings, and those of the longest sum in what is computed in."""
    own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
    terms = max(problem.count, problem.x.size // max(1, size_of(problem, problem.sums)))
    return 4.0 * own + computing * (16.0 + sqrt(terms))


def size_of(problem: Normalization, same: Sequence[int]) -> int:
    """Elements of the grid where the axes `same` are counted as one."""
    count = 1
    for axis, extent in enumerate(problem.grid):
        count *= 1 if axis in same else extent
    return count


def forward_rows(plan: NormalizationPlan, inputs: Sequence[str], outputs: Sequence[str]) -> Rows:
    """The beginning of a program that takes statistics."""
    problem = plan.problem
    parameters = {"share": 1.0 / problem.count, "epsilon": problem.epsilon}
    return Rows(inputs, outputs, parameters | next_statistics(problem).parameters)


def names_of(plan: NormalizationPlan) -> tuple[list[str], list[str]]:
    """Inputs and outputs of the whole problem; a state is both."""
    return [o.name for o in plan.problem.sources], [o.name for o in plan.problem.outputs]


def add_result(plan: NormalizationPlan) -> None:
    """y from mean and rstd."""
    problem = plan.problem
    inputs = [o.name for o in problem.inputs if not o.name.startswith("running")]
    inputs += [name for name in ("mean", "rstd") if name in plan.numbers]
    rows = Rows(inputs, ["y"])
    rows.add_pass(writes={"y": result_of(problem)})
    plan.step(rows, {}, problem.rows)


def add_inference(plan: NormalizationPlan) -> None:
    """rstd * weight of every channel first, then y."""
    problem = plan.problem
    plan.array("rstd", problem.rows)
    plan.alias("mean", "running_mean")
    rows = Rows(["running_var"], ["rstd"], {"epsilon": problem.epsilon})
    rows.add_pass(
        {"old_var": lambda v: v.running_var}, scalars={"rstd": lambda v: inverse(v.old_var, v.epsilon)}
    )
    plan.step(rows, {"rstd": "rstd"}, problem.rows)
    add_result(plan)


# ---- backward


def add_own_gradients(plan: NormalizationPlan) -> None:
    """All gradients in one kernel, where weight and bias are those of a row."""
    problem = plan.problem
    inputs, outputs = names_of(plan)
    rows, gradient = Rows(inputs, outputs, {"share": 1.0 / problem.count}), gradient_of(problem)
    rows.add_pass(
        add={"dbias": gradient, "dweight": lambda v: gradient(v) * xhat(v)},
        scalars={"a": lambda v: v.dbias * v.share, "b": lambda v: v.dweight * v.share},
    )

    def dx(v: Names) -> Any:
        scale = v.rstd * v.weight if "weight" in v else v.rstd
        return scale * (gradient(v) - v.a - xhat(v) * v.b)

    writes: dict[str, Formula] = {"dx": dx}
    if "dz" in outputs:
        writes["dz"] = gradient
    rows.add_pass(writes=writes)
    plan.step(rows, {name: name for name in ("dweight", "dbias") if name in outputs}, problem.rows)


def add_parameter_gradients(plan: NormalizationPlan) -> None:
    """dweight and dbias. They come first: dx may lie where dy is."""
    problem = plan.problem
    inputs, outputs = names_of(plan)
    wanted = [name for name in ("dweight", "dbias") if name in outputs]
    if not wanted:
        return
    gradient, is_plain = gradient_of(problem), problem.activation == "identity"
    rows = Rows([name for name in inputs if name != "weight" or not is_plain], wanted)
    formulas: dict[str, Formula] = {"dweight": lambda v: gradient(v) * xhat(v), "dbias": gradient}
    rows.add_pass(add={name: formulas[name] for name in wanted})
    plan.step(rows, {name: name for name in wanted}, problem.sums)


def add_row_gradients(plan: NormalizationPlan) -> None:
    """dx, where weight belongs to the elements of a row."""
    problem = plan.problem
    inputs, _ = names_of(plan)
    rows, gradient = Rows(inputs, ["dx"], {"share": 1.0 / problem.count}), gradient_of(problem)

    def g(v: Names) -> Any:
        return gradient(v) * v.weight if "weight" in v else gradient(v)

    sums: dict[str, Formula] = {"gx": lambda v: g(v) * xhat(v)}
    scalars: dict[str, Formula] = {"b": lambda v: v.gx * v.share}
    if problem.is_centred:
        sums["g"] = g
        scalars["a"] = lambda v: v.g * v.share
    rows.add_pass(add=sums, scalars=scalars)

    def dx(v: Names) -> Any:
        offset = xhat(v) * v.b
        return v.rstd * (g(v) - v.a - offset if "a" in v else g(v) - offset)

    rows.add_pass(writes={"dx": dx})
    plan.step(rows, {}, problem.rows)
