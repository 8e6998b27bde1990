"""A learning rate to begin with, found by a short training whose rate rises from almost nothing (Smith, 2017).

    rate of iteration i      LOW (HIGH / LOW)^(i / (n − 1)), n iterations
    loss                     as a mean that forgets, s ← β s + (1 − β) loss, divided by 1 − β^(i + 1)

It ends where that mean is several times its best. What is suggested is the rate at which it falls fastest, per
decade of the rate, before its lowest place.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jitdnn.caffe import Solver, SolverParameter
from jitdnn.caffe.events import Event, Iterated
from jitdnn.caffe.load import parse_file
from jitdnn.studio.nets.options import Options
from jitdnn.studio.nets.runs import write
from jitdnn.studio.store import SOLVER

LOW, HIGH = 1e-6, 10.0
#: iterations, at most and at least, whatever time they take
MOST: Final = 140
LEAST: Final = 40
_WARM = 2  # iterations at LOW that compile what runs, and are timed
_BETA = 0.9
_WORSE = 4.0  # times the best mean, where it ends
_EARLY = 12  # iterations before which it does not end, since the mean says little yet
# a fall of the mean by less than this part of it is none
_FALL = 0.02


def find_rate(
    text: str,
    options: Mapping[str, Any],
    dataset: Mapping[str, Any],
    home: str | Path,
    seconds: float = 60.0,
) -> dict[str, Any]:
    """Train the net from its start with a rising rate, for about so many seconds, and say what came of it, as JSON's
    types: `rates`, `losses` and `smooth` of each iteration, `suggestion` (None where the loss never fell), `lowest`,
    the rate with the lowest mean, `is_whole`, whether it came to the end of the range or to where it diverges,
    `has_diverged`, and `seconds`. Nothing of it is kept; policy, warm-up and the average of weights are left out.

    Raises JitdnnError for a net that cannot be trained.
    """
    with tempfile.TemporaryDirectory(prefix="jitdnn-rate-") as scratch:
        folder = Path(scratch).resolve()  # its files name those of the home relative to it
        write(folder, text, options, dataset, Path(home).resolve())
        watched = _Watched(_solver(folder, Options.of(options)), seconds)
        return watched.run()


def _solver(folder: Path, options: Options) -> Solver:
    parameter = parse_file(folder / SOLVER, SolverParameter)
    for name in (
        *("test_iter", "test_interval", "snapshot", "display", "warmup_iter", "warmup_start_lr", "ema_decay"),
        *("stepsize", "stepvalue", "power"),
    ):
        parameter.clear(name)
    parameter.snapshot_after_train = False
    parameter.lr_policy, parameter.base_lr, parameter.gamma = "exp", LOW, 1.0
    limit = options.memory_limit or None
    return Solver(parameter, file=folder / SOLVER, device="cpu", memory_limit=limit)


class _Watched:
    """A solver while its rate rises."""

    def __init__(self, solver: Solver, seconds: float) -> None:
        self._solver, self._seconds = solver, seconds
        self._rates: list[float] = []
        self._losses: list[float] = []
        self._smooth: list[float] = []
        self._mean = 0.0
        self._has_diverged = self._is_late = False

    def run(self) -> dict[str, Any]:
        begun = time.monotonic()
        self._solver.step(1)
        one = time.monotonic()
        self._solver.step(_WARM - 1)
        each = (time.monotonic() - one) / (_WARM - 1)
        left = self._seconds - (time.monotonic() - begun)
        count = max(LEAST, min(MOST, int(left / max(each, 1e-6))))
        self._deadline = time.monotonic() + max(2 * left, self._seconds)
        self._solver.iteration = 0
        self._solver.parameter.gamma = (HIGH / LOW) ** (1 / (count - 1))
        self._solver.listener = self._look
        self._solver.step(count)
        lowest, suggestion = suggested(self._rates, self._smooth)
        return {
            "rates": self._rates,
            "losses": self._losses,
            "smooth": self._smooth,
            "suggestion": suggestion,
            "lowest": lowest,
            "is_whole": not self._is_late,
            "has_diverged": self._has_diverged,
            "seconds": time.monotonic() - begun,
        }

    def _look(self, event: Event) -> None:
        if not isinstance(event, Iterated):
            return
        loss = float(event.loss)
        if not math.isfinite(loss):
            self._has_diverged = True
            self._solver.stop()
            return
        self._mean = _BETA * self._mean + (1 - _BETA) * loss
        mean = self._mean / (1 - _BETA ** (len(self._losses) + 1))
        self._rates.append(event.rate)
        self._losses.append(loss)
        self._smooth.append(mean)
        best = min(self._smooth)
        if len(self._losses) > _EARLY and mean > best + (_WORSE - 1) * abs(best):
            self._has_diverged = True
            self._solver.stop()
        elif time.monotonic() > self._deadline:
            self._is_late = True
            self._solver.stop()


def suggested(rates: Sequence[float], smooth: Sequence[float]) -> tuple[float | None, float | None]:
    """The rate with the lowest mean loss, and that where the mean falls fastest before it; None for each where it does
    not fall."""
    if len(rates) < 3:
        return None, None
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    before = max(smooth[: lowest + 1])
    if before - smooth[lowest] <= _FALL * abs(before):
        return None, None
    slopes = {
        at: (smooth[at + 1] - smooth[at - 1]) / math.log(rates[at + 1] / rates[at - 1])
        for at in range(1, min(lowest + 1, len(smooth) - 1))
    }
    if not slopes:
        return rates[lowest], None
    steepest = min(slopes, key=slopes.__getitem__)
    return rates[lowest], float(f"{rates[steepest]:.2g}")
