"""The seven learning-rate policies of Caffe's solvers, and two things more.

Symbols: base = base_lr, γ = gamma, i = iteration (from 0).

    fixed      base
    step       base · γ^⌊i / stepsize⌋
    exp        base · γ^i
    inv        base · (1 + γ i)^−power
    multistep  base · γ^(number of stepvalues reached, at most one more in each iteration)
    poly       base · (1 − i / max_iter)^power
    sigmoid    base / (1 + e^(−γ (i − stepsize))): it rises for γ > 0, and falls for γ < 0, as DIGITS writes it

Not Caffe's, but of later trainings:

    cosine     base · (1 + cos(π i / max_iter)) / 2 (Loshchilov and Hutter, 2017, without restarts)
    onecycle   from base / 25 at the first iteration up to base at iteration stepsize, then down to base / 250,000 at
               the last, both along half a cosine: r(a, b, t) = b + (a − b) (1 + cos π t) / 2, t from 0 to 1 (Smith and
               Topin, 2018; the numbers are those of PyTorch's OneCycleLR, which has the momentum fall and rise, too)

and with any policy `warmup_iter` and `warmup_start_lr`, as Intel's Caffe calls them: in the first warmup_iter
iterations the rate rises evenly from warmup_start_lr to what the policy says of iteration warmup_iter.
"""

from __future__ import annotations

import math

from jitdnn.caffe.schema import SolverParameter
from jitdnn.errors import InvalidArgument

POLICIES: dict[str, tuple[str, ...]] = {  # the fields that each policy cannot do without
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma", "power"),
    "multistep": ("gamma",),
    "poly": ("power", "max_iter"),
    "sigmoid": ("gamma", "stepsize"),
    "cosine": ("max_iter",),
    "onecycle": ("max_iter", "stepsize"),
}
# by what onecycle divides base for its first rate, and that for its last one
_FIRST, _LAST = 25.0, 1e4


class LearningRate:
    """The learning rate of a solver at each iteration. Its only state is multistep's `current_step`."""

    def __init__(self, solver: SolverParameter) -> None:
        """Check the fields of the policy; InvalidArgument names the one that is missing or out of range."""
        self.solver = solver
        self.current_step = 0
        policy = solver.lr_policy
        if policy not in POLICIES:
            what = f"unknown lr_policy {policy!r}" if policy else "lr_policy is not set"
            raise InvalidArgument(f"{what}{solver.where('lr_policy')}: there are {', '.join(POLICIES)}").at(
                solver.place("lr_policy")
            )
        missing = [name for name in POLICIES[policy] if not solver.has(name)]
        if missing:
            raise InvalidArgument(
                f"lr_policy {policy!r}{solver.where('lr_policy')} needs {' and '.join(missing)}"
            ).at(solver.place("lr_policy"))
        if not solver.has("base_lr") or not 0 <= solver.base_lr < math.inf:
            raise InvalidArgument(
                f"base_lr is {solver.base_lr:g}{solver.where('base_lr')}: a solver needs one of at least 0, and finite"
            ).at(solver.place("base_lr"))
        if "gamma" in POLICIES[policy] and policy != "sigmoid" and solver.gamma < 0:
            raise InvalidArgument(
                f"gamma is {solver.gamma:g}{solver.where('gamma')}: it must not be negative"
            ).at(solver.place("gamma"))
        if policy == "step" and solver.stepsize <= 0:
            raise InvalidArgument(
                f"stepsize is {solver.stepsize}{solver.where('stepsize')}: it must be positive"
            ).at(solver.place("stepsize"))
        if policy == "onecycle" and not 0 < solver.stepsize < solver.max_iter:
            raise InvalidArgument(
                f"stepsize is {solver.stepsize}{solver.where('stepsize')}: with lr_policy 'onecycle' it is the "
                f"iteration with the highest rate, from 1 to {solver.max_iter - 1}, one before max_iter"
            ).at(solver.place("stepsize"))
        if policy == "sigmoid" and solver.stepsize < 0:
            raise InvalidArgument(
                f"stepsize is {solver.stepsize}{solver.where('stepsize')}: it must not be negative"
            ).at(solver.place("stepsize"))

        if solver.warmup_iter < 0 or not 0 <= solver.warmup_start_lr <= solver.base_lr:
            raise InvalidArgument(
                f"warmup_iter is {solver.warmup_iter}{solver.where('warmup_iter')}, warmup_start_lr "
                f"{solver.warmup_start_lr:g}{solver.where('warmup_start_lr')}: neither may be negative, and the rate "
                f"must not start above base_lr, {solver.base_lr:g}"
            ).at(solver.place("warmup_iter"))

    def at(self, iteration: int) -> float:
        """Return the rate of the iteration; call it once for each, in order (multistep counts steps)."""
        warm = self.solver.warmup_iter
        if iteration < warm:
            start, end = self.solver.warmup_start_lr, LearningRate(self.solver)._of_policy(warm)
            return start + (end - start) * iteration / warm
        return self._of_policy(iteration)

    def _of_policy(self, iteration: int) -> float:
        solver = self.solver
        base, gamma = solver.base_lr, solver.gamma
        match solver.lr_policy:
            case "step":
                return base * gamma ** (iteration // solver.stepsize)
            case "exp":
                return float(base * gamma**iteration)
            case "inv":
                return float(base * (1 + gamma * iteration) ** -solver.power)
            case "multistep":
                values = solver.stepvalue
                if self.current_step < len(values) and iteration >= values[self.current_step]:
                    self.current_step += 1
                return float(base * gamma**self.current_step)
            case "poly":
                # beyond max_iter, where Caffe's formula leaves the real numbers, the rate stays at its end
                return float(base * max(0.0, 1 - iteration / solver.max_iter) ** solver.power)
            case "cosine":
                done = min(1.0, iteration / max(1, solver.max_iter))
                return base * (1 + math.cos(math.pi * done)) / 2
            case "onecycle":
                return _one_cycle(base, iteration, solver.stepsize, solver.max_iter - 1)
            case "sigmoid":
                return base / (1 + _exp(-gamma * (iteration - solver.stepsize)))
        return base


def _one_cycle(base: float, iteration: int, highest: int, last: int) -> float:
    first = base / _FIRST
    if iteration <= highest:
        return _along_cosine(first, base, iteration / highest)
    return _along_cosine(base, first / _LAST, min(1.0, (iteration - highest) / max(1, last - highest)))


def _along_cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
