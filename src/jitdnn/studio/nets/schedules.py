"""Learning rates over a training: Caffe's policies with their steps in percent of the training, whatever its length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jitdnn.caffe.policies import LearningRate
from jitdnn.caffe.schema import SolverParameter
from jitdnn.studio import texts


@dataclass(frozen=True)
class Schedule:
    """A policy for a form: its title, what it is good for, and the options that it reads with their defaults."""

    title: str
    about: str
    options: dict[str, Any]


SCHEDULES = {
    "multistep": Schedule(
        texts.mark("Steps"),
        texts.mark("drops at the percents of the training that are named"),
        {"gamma": 0.2, "steps": (60.0, 85.0)},
    ),
    "poly": Schedule(texts.mark("To zero"), texts.mark("falls to zero at the end"), {"power": 1.0}),
    "cosine": Schedule(
        texts.mark("Cosine"), texts.mark("falls slowly, fast, and slowly to zero at the end"), {}
    ),
    "onecycle": Schedule(
        texts.mark("One cycle"),
        texts.mark(
            "rises from a 25th to the learning rate in so many percent of the training, then falls to almost zero"
        ),
        {"step": 30.0},
    ),
    "exp": Schedule(
        texts.mark("Exponential"),
        texts.mark("falls by the same part with each percent of the training"),
        {"gamma": 0.95},
    ),
    "step": Schedule(
        texts.mark("Even steps"),
        texts.mark("drops again and again after so many percent of the training"),
        {"gamma": 0.1, "step": 33.0},
    ),
    "inv": Schedule(
        texts.mark("Inverse"), texts.mark("falls ever more slowly"), {"gamma": 0.1, "power": 0.5}
    ),
    "sigmoid": Schedule(
        texts.mark("Sigmoid"),
        texts.mark("falls around so many percent of the training"),
        {"gamma": 0.1, "step": 50.0},
    ),
    "fixed": Schedule(texts.mark("Fixed"), texts.mark("stays as it is"), {}),
}


def set_policy(solver: SolverParameter, policy: str, options: Any) -> None:
    """Set the fields of a policy in a solver whose max_iter is set; `options` has gamma, power, step and steps, of
    which those that are None have the schedule's default.

    γ is meant for each percent of the training: exp takes its root, inv and sigmoid divide it; sigmoid's is negative,
    so that it falls.
    """
    defaults = SCHEDULES[policy].options
    given = {name: getattr(options, name) for name in defaults}
    value = {name: defaults[name] if found is None else found for name, found in given.items()}
    percent = max(solver.max_iter, 1) / 100
    solver.lr_policy = policy
    match policy:
        case "multistep":
            solver.gamma = value["gamma"]
            solver.stepvalue = [max(1, math.ceil(step * percent)) for step in value["steps"]]
        case "step":
            solver.gamma, solver.stepsize = value["gamma"], max(1, math.ceil(value["step"] * percent))
        case "exp":
            solver.gamma = value["gamma"] ** (1 / percent)
        case "inv":
            solver.gamma, solver.power = value["gamma"] / percent, value["power"]
        case "poly":
            solver.power = value["power"]
        case "onecycle" if solver.max_iter < 2:
            solver.lr_policy = "fixed"
        case "onecycle":
            solver.stepsize = min(max(1, math.ceil(value["step"] * percent)), solver.max_iter - 1)
        case "sigmoid":
            solver.gamma, solver.stepsize = -value["gamma"] / percent, math.ceil(value["step"] * percent)


def rates(solver: SolverParameter, points: int = 120) -> list[float]:
    """The learning rate at so many iterations from the first to the last, by the solver's own code."""
    rate = LearningRate(solver)
    last = max(solver.max_iter - 1, 0)
    wanted = {last * k // max(points - 1, 1) for k in range(points)}
    # multistep counts its steps as it goes, at most one more in each iteration
    passed = {
        value + k for value in solver.stepvalue for k in range(len(solver.stepvalue)) if value + k <= last
    }
    found = [(iteration, rate.at(iteration)) for iteration in sorted(wanted | passed)]
    return [value for iteration, value in found if iteration in wanted]
