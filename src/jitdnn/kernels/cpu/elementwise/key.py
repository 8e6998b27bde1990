"""What elementwise loops have compiled in."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import REAL_DTYPES


@dataclass(frozen=True)
class ElementwiseCode:
    """What is compiled in: the expressions, and the part of a nest that the code depends on."""

    computing: str  # the type of the arithmetic
    dtypes: tuple[str, ...]  # of the tensors in memory: inputs, then one output for each expression
    expressions: tuple[Expression, ...]
    axes: int
    moves: tuple[str, ...]
    streams: bool  # the output is written past the caches
    plain: tuple[int, ...] = ()  # outputs that alpha and beta do not touch

    @property
    def tensors(self) -> int:
        return len(self.moves)

    @property
    def inputs(self) -> int:
        return len(self.moves) - len(self.expressions)

    @property
    def scales_whole(self) -> bool:
        """Whether alpha and beta touch an output of integers."""
        outputs = enumerate(self.dtypes[self.inputs :])
        return any(n not in self.plain and dtype not in REAL_DTYPES for n, dtype in outputs)

    def __repr__(self) -> str:
        keys = [expression.key for expression in self.expressions]
        return f"{self.computing} {self.dtypes} {keys} {self.axes} {self.moves} {self.streams} {self.plain}"
