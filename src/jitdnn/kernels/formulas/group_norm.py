"""Group normalization by way of the channels: sums over space for every channel, then what a group makes of them.

    forward     channel: mean, sum of (x - mean)^2      group: mean, rstd      y = (x - mean) * scale + bias
    backward    channel: p = sum(dy), q = sum(dy * xhat)      group: a = sum(w * p), b = sum(w * q)
                dx = dy * s + (x - mean) * t + u;  dbias, dweight: p and q summed over the images

Channels last, the channels of a group are a few neighbours, too short for a vector; so are gone through as
many as there are. Backward, the sums are those of dbias and dweight too.
"""

from __future__ import annotations

from typing import Any

from jitdnn.kernels.formulas.named_programs import Formula, Names, Rows
from jitdnn.kernels.formulas.normalization import NormalizationPlan, activated, channel_moments, joint_moments
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.normalization import Normalization
from jitdnn.rtcg.activations import activation

_IMAGE, _GROUP, _MEMBER, _SPACE = 0, 1, 2, 3  # axes of the grid


def suits_channels(problem: GroupNorm) -> bool:
    """Whether to go by way of the channels: where there is space, and a group is no run of memory."""
    x, members = problem.on_grid("x"), problem.grid[_MEMBER]
    space = [abs(s) for n, s in zip(x.shape[_SPACE:], x.strides[_SPACE:], strict=True) if n > 1]
    if not space:
        return False
    if problem.direction == "bwd":
        return True
    return members > 1 and abs(x.strides[_MEMBER]) < min(space)


def add_channels(plan: NormalizationPlan) -> None:
    """The steps in either direction."""
    (_backward if plan.problem.direction == "bwd" else _forward)(plan)


def _space(plan: NormalizationPlan) -> tuple[int, ...]:
    return tuple(range(_SPACE, len(plan.problem.grid)))


def _forward(plan: NormalizationPlan) -> None:
    problem, space = plan.problem, _space(plan)
    outputs = [operand.name for operand in problem.outputs]
    size = channel_moments(plan, space)
    plan.array("offset", space)
    plan.array("scale", space)

    saved = [name for name in ("mean", "rstd") if name in outputs]
    weight = ["weight"] if "weight" in plan.numbers else []
    rows = joint_moments(plan, size, problem.grid[_MEMBER], (weight, ["offset", "scale", *saved]))
    scale: Formula = lambda v: v.rstd * v.weight if "weight" in v else v.rstd  # noqa: E731
    rows.add_pass(writes={"offset": lambda v: v.mean, "scale": scale})
    computing = None if plan.has_moments else "f64"
    plan.step(rows, {name: name for name in saved}, (_MEMBER,), computing, single=space)

    rows = Rows(["x", "offset", "scale", *(["bias"] if "bias" in plan.numbers else [])], ["y"])

    def y(v: Names) -> Any:
        result = (v.x - v.offset) * v.scale
        return activated(problem, result + v.bias if "bias" in v else result)

    rows.add_pass(writes={"y": y})
    plan.step(rows, {}, space)


def _backward(plan: NormalizationPlan) -> None:
    problem, space = plan.problem, _space(plan)
    for name in ("p", "q", "offset", "inverse", "of_dy", "of_x", "rest"):
        plan.array(name, space)

    # one number for each channel: only then are the channels of all groups one axis
    rows = Rows(["mean", "rstd"], ["offset", "inverse"])
    rows.add_pass(writes={"offset": lambda v: v.mean, "inverse": lambda v: v.rstd})
    plan.step(rows, {}, (_MEMBER,), single=space)

    affine = [] if problem.activation == "identity" else ["weight", "bias"]
    rows = Rows(["dy", "x", "offset", "inverse", *affine], ["p", "q"])
    dy = _before_activation(problem)
    rows.add_pass(add={"p": dy, "q": lambda v: dy(v) * ((v.x - v.offset) * v.inverse)})
    plan.step(rows, {"p": "p", "q": "q"}, space)

    weight = ["weight"] if "weight" in plan.numbers else []
    rows = Rows(
        ["p", "q", "rstd", *weight],
        ["of_dy", "of_x", "rest"],
        {"share": 1.0 / problem.count},
    )

    def scaled(v: Names, value: Any) -> Any:
        return value * v.weight if "weight" in v else value

    rows.add_pass(
        add={"ps": lambda v: scaled(v, v.p), "qs": lambda v: scaled(v, v.q)},
        scalars={"a": lambda v: v.ps * v.share, "b": lambda v: v.qs * v.share},
    )
    rows.add_pass(
        writes={
            "of_dy": lambda v: scaled(v, v.rstd),
            "of_x": lambda v: -(v.b * v.rstd * v.rstd),
            "rest": lambda v: -(v.a * v.rstd),
        }
    )
    plan.step(rows, {}, (_MEMBER,), single=space)

    rows = Rows(
        ["dy", "x", "offset", *(["inverse", *affine] if affine else []), "of_dy", "of_x", "rest"], ["dx"]
    )
    rows.add_pass(writes={"dx": lambda v: dy(v) * v.of_dy + ((v.x - v.offset) * v.of_x + v.rest)})
    plan.step(rows, {}, space)

    sums = {name: value for name, value in (("dweight", "q"), ("dbias", "p")) if name in plan.numbers}
    if sums:
        rows = Rows(list(sums.values()), list(sums))
        rows.add_pass(add={f"sum_{value}": _named(value) for value in sums.values()})
        plan.step(
            rows,
            {name: f"sum_{value}" for name, value in sums.items()},
            (_IMAGE,),
            single=space,
            is_last=True,
        )


def _before_activation(problem: Normalization) -> Formula:
    """dy before the activation, which is of what the forward pass computed."""
    if problem.activation == "identity":
        return lambda v: v.dy
    slope = activation(problem.activation).from_x
    return lambda v: v.dy * slope.of((v.x - v.offset) * (v.inverse * v.weight) + v.bias)


def _named(name: str) -> Formula:
    return lambda v: getattr(v, name)
