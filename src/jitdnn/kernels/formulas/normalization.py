"""Formulas of the normalizations that several programs are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from jitdnn.kernels.formulas.named_programs import Formula, NamedPlan, Names, Rows
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.normalization import Normalization
from jitdnn.rtcg.activations import activation
from jitdnn.rtcg.expression import apply
from jitdnn.tensor import TensorDescriptor


class NormalizationPlan(NamedPlan):
    """A plan whose tensors are on the grid of the problem.

    `has_moments`: the target has the reduction "moments"; else there are sums in f64, or several passes.
    """

    def __init__(self, problem: Normalization, has_moments: bool = False) -> None:
        operands = problem.operands
        super().__init__(operands, {operand.name: problem.on_grid(operand.name) for operand in operands})
        self.problem, self.has_moments = problem, has_moments

    def array(self, name: str, same: Sequence[int], dtype: str | None = None) -> None:
        """An array between steps, of one number where the axes `same` are counted as one."""
        grid = self.problem.grid
        shape = [1 if axis in same else extent for axis, extent in enumerate(grid)]
        packed = TensorDescriptor.packed(shape, dtype or self.problem.statistic_dtype)
        self.add_array(name, packed, packed.broadcast_to(grid))


def xhat(v: Names) -> Any:
    """(x - mean) * rstd, or x * rstd where there is no mean."""
    return (v.x - v.mean) * v.rstd if "mean" in v else v.x * v.rstd


def inverse(variance: Any, epsilon: Any) -> Any:
    """rstd of a variance."""
    return 1.0 / apply("sqrt", variance + epsilon)


def result_of(problem: Normalization) -> Formula:
    """y from x, mean, rstd and what there is of weight, bias and z."""

    def formula(v: Names) -> Any:
        scale = v.rstd * v.weight if "weight" in v else v.rstd
        y = (v.x - v.mean) * scale if "mean" in v else v.x * scale
        for term in ("bias", "z"):
            y = y + getattr(v, term) if term in v else y
        return activated(problem, y)

    return formula


def activated(problem: Normalization, y: Any) -> Any:
    """What the activation makes of y."""
    return y if problem.activation == "identity" else activation(problem.activation).forward.of(y)


def gradient_of(problem: Normalization) -> Formula:
    """dy before the activation."""
    if problem.activation == "identity":
        return lambda v: v.dy
    function = activation(problem.activation)
    if problem.saved == "x":
        # as the forward pass computes it
        return lambda v: v.dy * function.from_x.of((v.x - v.mean) * (v.rstd * v.weight) + v.bias)
    slope = function.from_y
    assert slope is not None
    return lambda v: v.dy * slope.of(v.y)


def slope_names(plan: NormalizationPlan) -> list[str]:
    """The inputs of `gradient_of` beside dy, x, mean and rstd."""
    if not isinstance(plan.problem, BatchNorm) or plan.problem.activation == "identity":
        return []
    return ["y"] if plan.problem.saved == "y" else ["weight", "bias"]


class Running(NamedTuple):
    """Parameters and row values for the running statistics; both empty where there are none."""

    parameters: dict[str, float]
    scalars: dict[str, Formula]


OLD_STATISTICS: dict[str, Formula] = {
    "old_mean": lambda v: v.running_mean,
    "old_var": lambda v: v.running_var,
}
#: where row values go
STATISTICS = {"mean": "mean", "rstd": "rstd", "running_mean": "next_mean", "running_var": "next_var"}


def old_statistics(problem: Normalization) -> dict[str, Formula]:
    """The row values that `next_statistics` needs: none where the next ones are those of the batch."""
    if not isinstance(problem, BatchNorm) or problem.running_mean is None or problem.factor == 1:
        return {}
    return OLD_STATISTICS


def next_statistics(problem: Normalization) -> Running:
    """The next running statistics, from the row values mean, variance and `OLD_STATISTICS`."""
    if not isinstance(problem, BatchNorm) or problem.running_mean is None:
        return Running({}, {})
    unbiased = problem.count / max(1, problem.count - 1)
    if problem.factor == 1:
        return Running(
            {"unbiased": unbiased},
            {"next_mean": lambda v: v.mean, "next_var": lambda v: v.variance * v.unbiased},
        )
    return Running(
        {"factor": problem.factor, "unbiased": unbiased},
        {
            "next_mean": lambda v: (1.0 - v.factor) * v.old_mean + v.factor * v.mean,
            "next_var": lambda v: (1.0 - v.factor) * v.old_var + v.factor * (v.variance * v.unbiased),
        },
    )


def channel_moments(plan: NormalizationPlan, space: Sequence[int]) -> int:
    """Add a step that takes mean and sum of squared distances from it over space, for every channel of an image.

    They are in the arrays `channel_mean` and `channel_squares`. Returns the number of elements of each.
    """
    size = prod(plan.problem.grid[axis] for axis in space)
    dtype = None if plan.has_moments else "f64"
    plan.array("channel_mean", space, dtype)
    plan.array("channel_squares", space, dtype)
    if plan.has_moments:
        rows = Rows(["x"], ["channel_mean", "channel_squares"])
        rows.add_pass(joint={("moments", "mean", "rest"): lambda v: v.x})
        plan.step(rows, {"channel_mean": "mean", "channel_squares": "rest"}, space)
        return size
    # distances from the first element: squares of numbers far from 0 would cancel
    rows = Rows(["x"], ["channel_mean", "channel_squares"], {"share": 1.0 / size})
    rows.add_pass({"first": lambda v: v.x})
    rows.add_pass(
        add={"total": lambda v: v.x - v.first, "squares": lambda v: (v.x - v.first) * (v.x - v.first)},
        scalars={
            "distance": lambda v: v.total * v.share,
            "mean": lambda v: v.first + v.distance,
            "rest": lambda v: apply("maximum", v.squares - v.total * v.distance, 0.0),
        },
    )
    plan.step(rows, {"channel_mean": "mean", "channel_squares": "rest"}, space, compute="f64")
    return size


def joint_moments(
    plan: NormalizationPlan,
    size: int,
    members: int,
    others: tuple[Sequence[str], Sequence[str]],
) -> Rows:
    """Begin the program that makes mean, rstd and running statistics of those of `members` channels.

    Each channel has `size` elements. `others` are inputs and outputs beside `channel_mean` and `channel_squares`.
    """
    problem, running = plan.problem, next_statistics(plan.problem)
    parameters = {"part": 1.0 / members, "size": float(size)}
    rows = Rows(
        ["channel_mean", "channel_squares", *others[0]],
        others[1],
        {**parameters, "share": 1.0 / problem.count, "epsilon": problem.epsilon, **running.parameters},
    )
    rows.add_pass(
        old_statistics(problem),
        {"total": lambda v: v.channel_mean},
        {"mean": lambda v: v.total * v.part},
    )

    def squares(v: Names) -> Any:
        distance = v.channel_mean - v.mean
        return v.channel_squares + v.size * distance * distance

    rows.add_pass(
        add={"squares": squares},
        scalars={
            "variance": lambda v: v.squares * v.share,
            "rstd": lambda v: inverse(v.variance, v.epsilon),
            **running.scalars,
        },
    )
    return rows
