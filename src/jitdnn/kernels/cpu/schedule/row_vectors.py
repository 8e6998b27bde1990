"""Vectors of an image's row: the positions that neighbouring results read, with or without a test of the boundaries.

Result i of a vector reads position ``first + i * step``. Where the row is contiguous a vector is one load, or for
a small step a few loads whose lanes are shuffled together; else it is a gather. Nothing outside the row is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cpu.correlation import View
from jitdnn.rtcg.builder import Builder, Pointer, Value

_MOST_PIECES = 4  # a step beyond it costs more in shuffles than a gather

# Slots of the load ports (two a cycle) that one vector takes, as measured on current x86-64.
_CONTIGUOUS = 1.75  # most are not aligned and touch two cache lines
_PIECE = 1.75  # a load and the shuffle that takes lanes from it
_GATHERED_LANE = 2.0

Masks = tuple[Value | None, ...]


@dataclass(frozen=True)
class RowVector:
    """How a vector is read from a row of ``positions`` that are ``stride`` elements apart."""

    step: int
    stride: int
    positions: int
    lanes: int

    @property
    def _is_contiguous(self) -> bool:
        return self.stride == 1 and self.step == 1

    @property
    def _is_shuffled(self) -> bool:
        return self.stride == 1 and 1 < self.step <= _MOST_PIECES and self.lanes > 1

    @property
    def unmasked(self) -> Masks:
        """The masks of a vector that is inside of the row: none."""
        return (None,) * (len(self._pieces()) if self._is_shuffled else 1)

    @property
    def registers(self) -> int:
        """Registers in use while a vector is loaded, besides its own: a value to multiply, or shuffle patterns."""
        return len(self._pieces()) + 3 if self._is_shuffled else 1

    @property
    def slots(self) -> float:
        """Cost of one vector in slots of the load ports."""
        if self.stride == 0:
            return 1.0
        if self._is_contiguous:
            return _CONTIGUOUS
        return _PIECE * self.step if self._is_shuffled else _GATHERED_LANE * self.lanes

    def _pieces(self) -> list[int]:
        """The loads of a shuffled vector, as offsets from its first position; the last load ends with the vector."""
        last = (self.lanes - 1) * self.step + 1 - self.lanes
        return [*range(0, last, self.lanes), last]

    def masks(self, k: Builder, first: Value, lowest: int, highest: int) -> Masks:
        """The masks of a vector's loads, to be computed once for many rows.

        Lane 0 reads position ``first``, which is from ``lowest`` to ``highest``: where no lane can be outside of the
        row, the mask is None.
        """
        if self._is_shuffled:
            return tuple(
                self._inside(k, first + piece, 1, lowest + piece, highest + piece) for piece in self._pieces()
            )
        return (self._inside(k, first, self.step, lowest, highest),)

    def _inside(self, k: Builder, first: Value, step: int, lowest: int, highest: int) -> Value | None:
        mask = None
        if highest + (self.lanes - 1) * step >= self.positions:
            left = k.integer(self.positions) - first
            count = left if step == 1 else (left + (step - 1)).max(0) // step
            mask = k.mask(count, self.lanes)
        if lowest < 0:
            before = -first if step == 1 else ((step - 1) - first).max(0) // step
            after = ~k.mask(before, self.lanes)
            mask = after if mask is None else mask & after
        return mask

    def load(self, row: Pointer, first: Value, masks: Masks) -> Value:
        """The vector; lanes outside are 0. ``row`` points to position 0."""
        k = row.k
        if self._is_shuffled:
            return self._shuffled(row, first, masks)
        vector = row.load_strided(first * self.stride, self.stride * self.step, self.lanes, masks[0])
        if self.stride == 0 and masks[0] is not None:  # a broadcast ignores the mask
            vector = k.select(masks[0], vector, 0.0)
        return vector

    def _shuffled(self, row: Pointer, first: Value, masks: Masks) -> Value:
        k, lanes, starts = row.k, self.lanes, self._pieces()
        loaded = [row.load(first + start, lanes, mask) for start, mask in zip(starts, masks, strict=True)]
        positions = [lane * self.step for lane in range(lanes)]
        owner = [next(i for i, start in enumerate(starts) if at < start + lanes) for at in positions]
        vector = loaded[0]
        for number in range(1, len(starts)):
            pattern = []
            for lane, at in enumerate(positions):
                if owner[lane] == number:
                    pattern.append(lanes + at - starts[number])
                else:  # lanes of later loads are set later
                    pattern.append(at if number == 1 and owner[lane] == 0 else lane)
            vector = k.shuffle(vector, loaded[number], pattern)
        return vector


def group_vector(view: View, channels: int, groups: int, lanes: int) -> RowVector:
    """How one channel of neighbouring groups is read: from adjacent channels, or with the stride of the groups."""
    stride = view.groups[0]
    if 1 < stride == channels and view.channels == 1:
        return RowVector(stride, 1, groups * stride, lanes)
    return RowVector(1, stride, groups, lanes)
