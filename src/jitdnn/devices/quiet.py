"""Waiting for a quiet machine before something is measured."""

from __future__ import annotations

import time

_SETTLE_STEP = 0.004  # seconds


def settle(longest: float = 0.5) -> None:
    """Wait until no thread of this process works, at most ``longest`` seconds. For use before measuring.

    The threads of a BLAS or of OpenMP go on spinning after their last call, up to a tenth of a second, and take
    a core from whoever is measured next.
    """
    deadline = time.perf_counter() + longest
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(_SETTLE_STEP)
        if time.process_time() - before < _SETTLE_STEP / 10:
            return
