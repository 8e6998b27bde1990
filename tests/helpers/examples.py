"""How many random problems a test draws, where each problem compiles kernels of its own."""

from __future__ import annotations

import os

#: JITDNN_TESTS=thorough: as many as the tests say; otherwise a third, beside which `scripts/fuzz` draws others each day
THOROUGH = os.environ.get("JITDNN_TESTS") == "thorough"


def examples(count: int) -> int:
    """For `max_examples` of hypothesis."""
    return count if THOROUGH else -(-count // 3)
