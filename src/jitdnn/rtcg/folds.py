"""Reductions of one's own: how two results become one."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.rtcg.expression import Expression


@dataclass(frozen=True)
class Fold:
    """A reduction of one's own: `expression` of (the result so far, the next one), and what no element gives.

    It must be associative; results so far are always those of earlier elements.
    """

    expression: Expression
    neutral: float

    def __repr__(self) -> str:
        return f"fold({self.expression.key}, {self.neutral!r})"


Reduction = str | Fold
