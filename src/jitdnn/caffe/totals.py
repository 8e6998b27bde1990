"""Means of a net's outputs over the batches of a test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jitdnn.caffe.blob import Array


class Totals:
    """Sums of outputs in double precision. One whose rows are as many as it happens (Filter) has no mean."""

    def __init__(self) -> None:
        self.sums: dict[str, Array] = {}
        self.batches = 0

    def add(self, outputs: Mapping[str, Array]) -> None:
        """Add those of a batch."""
        for name, values in outputs.items():
            if not self.batches:
                self.sums[name] = values.astype(np.float64)
            elif name in self.sums and self.sums[name].shape == values.shape:
                self.sums[name] += values
            else:
                self.sums.pop(name, None)
        self.batches += 1

    def means(self) -> dict[str, Array]:
        """The mean of each output, by name; nothing before the first batch."""
        return {name: total / self.batches for name, total in self.sums.items()}
