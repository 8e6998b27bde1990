"""The numbers that a layer's random choices in a pass follow from, where the net computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.caffe.device import NetDevice
from jitdnn.ops.dropout import DropoutState, dropout_by


class RandomWords:
    """The state of a dropout in memory that stays where it is, so that graphs of a GPU's calls read what is new."""

    def __init__(self, device: NetDevice | None) -> None:
        self._device = device
        self._words: Any = None

    def draw(self, random: np.random.Generator) -> None:
        """Take the next state from a layer's generator: all that forward and backward of one pass need."""
        words = DropoutState(int(random.integers(1 << 64, dtype=np.uint64))).words()
        if self._device is None:
            self._words = words
            return
        self._device.send(self._memory(), words)

    def apply(self, x: Any, ratio: float, out: Any) -> None:
        """out = x / (1 − ratio), or 0 with probability `ratio`; the same choices until `draw` is called again."""
        dropout_by(x, ratio, self._words if self._device is None else self._memory(), out)

    def _memory(self) -> Any:
        if self._words is None:
            assert self._device is not None
            words = DropoutState(0).words()
            self._words = self._device.empty(words.shape, words.dtype)
        return self._words
