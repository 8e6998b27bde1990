"""Statistics of a batch that several processes divide (SyncBatchNorm): each computes those of its rows, they exchange
two numbers a channel, and so do the backward passes.

With n of all N elements of a channel in a process, mean m and variance v of them:

    M = Σ n/N m,   V = Σ n/N (v + (m − M)²)              one gathering in the forward pass
    dx = γ/σ (g − Σ g / N − x̂ Σ g x̂ / N)                 one sum in the backward pass, x̂ = (x − M) / σ
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.caffe.blob import Blob, Shape
from jitdnn.caffe.layers.base import Layer, copy
from jitdnn.caffe.parts import Part
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction


class SynchronizedStatistics:
    """Of one BatchNorm layer; `mean`, `variance` (divided by N) and `unbiased` (by N − 1) are of the whole batch."""

    def __init__(self, layer: Layer, part: Part) -> None:
        self._layer, self._part = layer, part
        self._mean = reduction("x, share: x * share")
        self._variance = reduction("x, m, share: (x - m) * (x - m) * share")
        self._means = reduction("m, share: m * share")
        self._variances = reduction("m, v, share, mean: share * (v + (m - mean) * (m - mean))")
        self._unbias = elementwise("v, factor: v * factor")
        self._sums = reduction("dy, x, m, r: dy, dy * (x - m) * r")
        self._sums_rectified = reduction("dy, y, x, m, r: g = where(y > 0, dy, 0); g, g * (x - m) * r")
        slope = "gamma * r * (g - share * first - (x - m) * r * share * second)"
        self._slope = elementwise(f"g, x, m, r, gamma, first, second, share: {slope}")
        self._slope_rectified = elementwise(
            f"dy, y, x, m, r, gamma, first, second, share: g = where(y > 0, dy, 0); {slope}"
        )

    def reshape(self, view: Shape) -> None:
        """Take up the shape (N, C, inner) of this process's rows."""
        layer, group = self._layer, self._part.group
        images, channels, inner = view
        self._count, self._whole = images * inner, self._part.whole(images) * inner
        self._column: Shape = (1, channels, 1)
        self._parts = layer.save("statistics", (group.size, 2, channels))
        self.mean, self.variance, self.unbiased = (
            layer.save(name, (channels,)) for name in ("mean", "whole variance", "unbiased")
        )
        self._totals = layer.save("sums", (2, channels))
        self._shares: Blob | None = None

    def compute(self, x: Any) -> None:
        """Find the statistics of the whole batch."""
        parts, rank = self._parts.values, self._part.group.rank
        own, share = parts[rank], 1 / self._count
        self._mean(x, share, axes=(0, 2), out=own[0])
        self._variance(x, own[0].reshape(self._column), share, axes=(0, 2), out=own[1])
        self._part.group.gather_parts(parts)
        shares = self._shares_of_all().values
        means, variances = parts[:, 0, :], parts[:, 1, :]
        self._means(means, shares, axes=0, out=self.mean.values)
        mean = self.mean.values.reshape(1, -1)
        self._variances(means, variances, shares, mean, axes=0, out=self.variance.values)
        factor = self._whole / max(1, self._whole - 1)
        self._unbias(self.variance.values, factor, out=self.unbiased.values)

    def backward(
        self, dy: Any, x: Any, y: Any, rstd: Any, gamma: Any, dx: Any, first: Any, second: Any
    ) -> None:
        """Fill dx; `first` and `second`, where they are wanted, with Σ g and Σ g x̂ of this process's rows. `y` is None
        where the result was not rectified.
        """
        mean, rstd = (each.reshape(self._column) for each in (self.mean.values, rstd))
        totals = self._totals.values
        outputs = (totals[0], totals[1])
        given = (dy, x) if y is None else (dy, y, x)
        (self._sums if y is None else self._sums_rectified)(*given, mean, rstd, axes=(0, 2), out=outputs)
        for wanted, total in ((first, totals[0]), (second, totals[1])):
            if wanted is not None:
                copy(total, wanted)
        if dx is None:
            return
        self._part.sum(totals)
        factor = 1.0 if gamma is None else gamma.reshape(self._column)
        sums = (totals[0].reshape(self._column), totals[1].reshape(self._column))
        slope = self._slope if y is None else self._slope_rectified
        slope(*given, mean, rstd, factor, *sums, 1 / self._whole, out=dx)

    def _shares_of_all(self) -> Blob:
        """What part of all elements each process has, (size, 1)."""
        if self._shares is None:
            counts = self._part.group.gather(self._count.to_bytes(8, "little"))
            numbers = [int.from_bytes(count, "little") / self._whole for count in counts]
            self._shares = self._layer.table("shares", np.array(numbers).reshape(-1, 1))
        return self._shares
