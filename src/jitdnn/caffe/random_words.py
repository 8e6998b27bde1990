"""The numbers that a layer's random choices in a pass follow from, where the net computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.parts import Part
from jitdnn.ops.dropout import DropoutState, dropout_by
from jitdnn.ops.elementwise import elementwise


class RandomWords:
    """The state of a dropout in memory that stays where it is, so that graphs of a GPU's calls read what is new.

    Which elements are kept follows from their places in the whole batch: of one that several processes divide each
    makes the choices of all, and takes those of its rows.
    """

    def __init__(self, device: NetDevice | None, part: Part | None = None) -> None:
        self._device, self._part = device, part
        self._words: Any = None
        self._ones: Any = None  # of the whole batch's shape, where it is divided
        self._factors: Any = None  # 1 / (1 - ratio) or 0 for each of its elements
        self._kept = elementwise("x, factor: where(factor == 0, 0, x * factor)")

    def draw(self, random: np.random.Generator) -> None:
        """Take the next state from a layer's generator: all that forward and backward of one pass need."""
        words = DropoutState(int(random.integers(1 << 64, dtype=np.uint64))).words()
        if self._device is None:
            self._words = words
            return
        self._device.send(self._memory(), words)

    def apply(self, x: Any, ratio: float, out: Any) -> None:
        """out = x / (1 − ratio), or 0 with probability `ratio`; the same choices until `draw` is called again."""
        words = self._words if self._device is None else self._memory()
        if self._part is None:
            dropout_by(x, ratio, words, out)
            return
        rows = x.shape[0]
        shape = (self._part.whole(rows), *x.shape[1:])
        if self._ones is None or tuple(self._ones.shape) != shape:
            empty = np.empty if self._device is None else self._device.empty
            self._ones, self._factors = empty(shape, x.dtype), empty(shape, x.dtype)
            if self._device is None:
                self._ones.fill(1)
            else:  # not by a kernel: where code is compiled ahead none runs
                self._device.upload(self._ones, np.ones(shape, x.dtype))
        dropout_by(self._ones, ratio, words, self._factors)
        first = self._part.first(rows)
        self._kept(x, self._factors[first : first + rows], out=out)

    def _memory(self) -> Any:
        if self._words is None:
            assert self._device is not None
            words = DropoutState(0).words()
            self._words = self._device.empty(words.shape, words.dtype)
        return self._words
