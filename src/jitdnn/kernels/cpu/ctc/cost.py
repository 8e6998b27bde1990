"""The estimated cycles of CTC loss on one thread."""

from __future__ import annotations

from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.ctc_loss import CtcLoss

_STATE_CYCLES = 60.0  # of a vector of labels and one of blanks


def cycles(problem: CtcLoss, lanes: int) -> float:
    times, n, symbols = problem.x.shape
    states = ceil_div(problem.longest + 1, lanes) * _STATE_CYCLES + 2.0 * problem.longest + 50.0
    rows = ceil_div(symbols, lanes) * 15.0
    if problem.direction == "fwd":
        return times * n * (states + (rows if problem.inputs_are == "logits" else 0.0)) + n * 200.0
    return times * n * (3.0 * states + 2.0 * rows) + n * 400.0
