"""A net that one of several processes runs: which rows of every batch are its own, and how results of parts become
those of the whole.

In training each process has some rows of each batch, one behind the other by rank; a net that is tested runs whole
batches, and the processes take turns. Layers say what they need of that: a loss divides by the count of the whole
batch, a dropout draws for the whole batch and takes its rows, a source of data goes on by whole batches. So the sum of
all processes' gradients is the gradient of one that has the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.groups import Group

#: whose statistics a BatchNorm layer takes in training: those of the whole batch, or of each process's rows
BATCH_NORMS = ("synchronized", "local")


class Part:
    """The rows of this process in the batches of a net that is trained."""

    def __init__(self, group: Group, batch_norm: str = "synchronized") -> None:
        self.group = group
        self.batch_norm = batch_norm
        self._batch: int | None = None

    def rows(self, batch: int, what: str) -> slice:
        """Which rows of a batch are this process's. Raises InvalidArgument if a batch cannot be divided."""
        size = self.group.size
        if batch < size:
            raise InvalidArgument(
                f"{what} has {batch} rows, and {size} processes divide them: give it {size} or more, or take fewer "
                f"processes"
            )
        if self._batch is None:
            self._batch = batch
        elif self._batch != batch and (batch % size or self._batch % size):
            raise InvalidArgument(
                f"{what} has {batch} rows and another source of data {self._batch}: so that {size} processes can "
                f"divide "
                f"both, both must be multiples of {size}, or the same"
            )
        return _rows(batch, self.group.rank, size)

    def whole(self, count: int) -> int:
        """How many all processes have of something of which this one has `count`, as many for each row."""
        own, batch = self._own()
        if count * batch % own:
            raise NotSupported(
                f"{count} of something for {own} rows of a batch of {batch} cannot be told for the whole batch: take a "
                f"batch that is a multiple of {self.group.size}"
            )
        return count * batch // own

    def first(self, count: int) -> int:
        """How many of them the processes before this one have."""
        own, batch = self._own()
        return count * (batch * self.group.rank // self.group.size) // own

    def sum(self, array: Any) -> None:
        """Replace an array by the sum over all processes."""
        self.group.sum(array)

    def _own(self) -> tuple[int, int]:
        batch = self.group.size if self._batch is None else self._batch
        rows = _rows(batch, self.group.rank, self.group.size)
        return rows.stop - rows.start, batch


@dataclass
class Turns:
    """Whose turn the next batch of a net is: that of each process in turn."""

    rank: int
    size: int
    passed: int = 0  # batches so far

    @property
    def is_mine(self) -> bool:
        """Whether this process runs the next batch."""
        return self.passed % self.size == self.rank


def _rows(batch: int, rank: int, size: int) -> slice:
    return slice(batch * rank // size, batch * (rank + 1) // size)
