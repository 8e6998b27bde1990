"""What each of Caffe's six solvers makes of a gradient: its histories, its formula, the fields that it reads.

Symbols: g the gradient with its decay, lr = rate · lr_mult, μ = momentum, δ = delta, ρ = rms_decay, and for Adam
β₁ = momentum, β₂ = momentum2, t = iteration + 1. A rule says what d is, and then w ← w − d.

    SGD        h ← μ h + lr g,                                             d = h
    Nesterov   h ← μ h + lr g,                                             d = (1 + μ) h − μ h_before
    AdaGrad    h ← h + g²,                                                 d = lr g / (√h + δ)
    RMSProp    h ← ρ h + (1 − ρ) g²,                                       d = lr g / (√h + δ)
    AdaDelta   h ← μ h + (1 − μ) g²,  e = g √((u + δ) / (h + δ)),
               u ← μ u + (1 − μ) e²,                                       d = lr e
    Adam       m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,             d = lr √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + δ)

The learning rate of SGD and Nesterov is inside of the history: when it drops, the updates follow over the time that the
momentum keeps. Adam's δ stands beside the root before its bias is taken out (ε̂ in its paper).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

from jitdnn.caffe.schema import SolverParameter
from jitdnn.errors import InvalidArgument, NotSupported

Numbers = Callable[[SolverParameter, int], tuple[float, ...]]
Check = Callable[[SolverParameter], None]


@dataclass(frozen=True)
class UpdateRule:
    """One of the solvers.

    `histories` are the names of its histories, `formula` the statements that make `d` and, named as `results` says,
    the next histories from g, lr, the histories and the `constants`, whose values `numbers` returns for an
    iteration: the first is multiplied by the rate and called lr.
    """

    histories: tuple[str, ...]
    formula: str
    results: tuple[str, ...]
    constants: tuple[str, ...]
    numbers: Numbers
    check: Check

    def text(self, is_l2: bool, keeps_update: bool) -> str:
        """The whole formula: of a weight w and its sum of gradients to the next w and histories.

        With `keeps_update` its last result is d.
        """
        inputs = ("w", "total", *self.histories, "share", "decay", "lr", *self.constants)
        decayed = "w" if is_l2 else "sign(w)"
        results = ("w - d", *self.results, *(("d",) if keeps_update else ()))
        return f"{', '.join(inputs)}: g = share * total + decay * {decayed}; {self.formula}; {', '.join(results)}"


def rule_of(solver: SolverParameter) -> UpdateRule:
    """Return the rule of the solver's type, its fields checked.

    Raises NotSupported for a type that is none of Caffe's, InvalidArgument for a field that is out of range.
    """
    rule = RULES.get(solver.type)
    if rule is None:
        near = difflib.get_close_matches(solver.type[:20].lower(), [name.lower() for name in RULES], n=1)
        meant = [name for name in RULES if near and name.lower() == near[0]]
        hint = f"; did you mean {meant[0]!r}?" if meant else ""
        raise NotSupported(
            f"solver type {solver.type!r}{solver.where('type')}: there are {', '.join(RULES)}{hint}"
        ).at(solver.place("type"))
    rule.check(solver)
    return rule


def _within(solver: SolverParameter, name: str, below: float) -> None:
    value = getattr(solver, name)
    if not 0 <= value < below:
        most = f" and less than {below:g}" if below < math.inf else ""
        raise InvalidArgument(
            f"{name} is {value:g}{solver.where(name)}: with type {solver.type!r} it must be at least 0{most}"
        ).at(solver.place(name))


def _check_momentum(solver: SolverParameter) -> None:
    _within(solver, "momentum", math.inf)


def _no_momentum(solver: SolverParameter) -> None:
    if solver.momentum != 0:
        raise InvalidArgument(
            f"momentum is {solver.momentum:g}{solver.where('momentum')}: type {solver.type!r} has none, "
            "take the line out or use SGD, Nesterov or Adam"
        ).at(solver.place("momentum"))
    _within(solver, "delta", math.inf)


def _check_rms(solver: SolverParameter) -> None:
    _no_momentum(solver)
    _within(solver, "rms_decay", 1.0)


def _check_delta(solver: SolverParameter) -> None:
    _within(solver, "momentum", 1.0)
    _within(solver, "delta", math.inf)


def _check_adam(solver: SolverParameter) -> None:
    _check_delta(solver)
    _within(solver, "momentum2", 1.0)


def _momentum(solver: SolverParameter, iteration: int) -> tuple[float, ...]:
    return 1.0, solver.momentum


def _adagrad(solver: SolverParameter, iteration: int) -> tuple[float, ...]:
    return 1.0, solver.delta


def _rmsprop(solver: SolverParameter, iteration: int) -> tuple[float, ...]:
    return 1.0, solver.rms_decay, 1 - solver.rms_decay, solver.delta


def _adadelta(solver: SolverParameter, iteration: int) -> tuple[float, ...]:
    return 1.0, solver.momentum, 1 - solver.momentum, solver.delta


def _adam(solver: SolverParameter, iteration: int) -> tuple[float, ...]:
    first, second, t = solver.momentum, solver.momentum2, iteration + 1
    correction = math.sqrt(1 - second**t) / (1 - first**t)
    return correction, first, 1 - first, second, 1 - second, solver.delta


RULES: dict[str, UpdateRule] = {
    "SGD": UpdateRule(("h",), "d = mu * h + lr * g", ("d",), ("mu",), _momentum, _check_momentum),
    "Nesterov": UpdateRule(
        ("h",),
        "n = mu * h + lr * g; d = n + mu * (n - h)",
        ("n",),
        ("mu",),
        _momentum,
        _check_momentum,
    ),
    "AdaGrad": UpdateRule(
        ("h",), "n = h + g * g; d = lr * g / (sqrt(n) + delta)", ("n",), ("delta",), _adagrad, _no_momentum
    ),
    "RMSProp": UpdateRule(
        ("h",),
        "n = rho * h + fresh * g * g; d = lr * g / (sqrt(n) + delta)",
        ("n",),
        ("rho", "fresh", "delta"),
        _rmsprop,
        _check_rms,
    ),
    "AdaDelta": UpdateRule(
        ("h", "u"),
        "n = mu * h + fresh * g * g; e = g * sqrt((u + delta) / (n + delta)); d = lr * e; "
        "next = mu * u + fresh * e * e",
        ("n", "next"),
        ("mu", "fresh", "delta"),
        _adadelta,
        _check_delta,
    ),
    "Adam": UpdateRule(
        ("m", "v"),
        "first = mu * m + fresh * g; second = mu2 * v + fresh2 * g * g; "
        "d = lr * first / (sqrt(second) + delta)",
        ("first", "second"),
        ("mu", "fresh", "mu2", "fresh2", "delta"),
        _adam,
        _check_adam,
    ),
}
