"""A run as it is found: its name, what kind of program wrote it, its options, and its points."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

Point = tuple[str, int, float]
#: of one run
MOST_POINTS: Final = 5_000_000
MOST_SERIES: Final = 1000
_TESTED: Final = ("val", "valid", "validation", "test", "eval", "dev")
_RATES: Final = {"lr", "learning_rate", "learning rate", "rate", "lr-0", "lr/group0"}


@dataclass
class Found:
    """One run; `points` are (series, iteration, value), `files` (name, content) what is worth keeping beside it."""

    name: str
    kind: str
    points: list[Point] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    files: list[tuple[str, bytes]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The highest iteration."""
        return max((at for _, at, _ in self.points), default=0)


def series_name(name: str) -> str:
    """The name of a series as the studio's charts know it: `loss`, `lr`, `val accuracy`, `val loss`, or its own."""
    words = [word for word in re.split(r"[/_\s.]+", name.strip().lower()) if word]
    if name.strip().lower() in _RATES or words[-2:] == ["learning", "rate"] or words[-1:] == ["lr"]:
        return "lr"
    is_tested = any(word in _TESTED for word in words)
    rest = [word for word in words if word not in (*_TESTED, "train", "training", "epoch", "step")]
    if rest in (["loss"], ["total", "loss"]):
        return "val loss" if is_tested else "loss"
    if rest in (["accuracy"], ["acc"]):
        return "val accuracy" if is_tested else "train accuracy"
    if is_tested and rest:
        return f"val {' '.join(rest)}"[:100]
    return name.strip()[:100] or "value"


def is_point(at: Any, value: Any) -> bool:
    """Whether an iteration and a value can be kept."""
    numbers = (int, float)
    return (
        isinstance(at, numbers) and isinstance(value, numbers) and not isinstance(value, bool)
        and not math.isnan(at) and 0 <= at < 1 << 53
    )  # fmt: skip
