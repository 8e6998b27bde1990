"""STOCHASTIC pooling (Zeiler and Fergus 2013, arXiv:1301.3557): in training a window gives one of its values, drawn
with its share of their sum as probability; in testing it gives the mean of its values weighted by themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.layers.windows import Windows
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.pooling import avg_pool, avg_pool_backward
from jitdnn.ops.tensor_ops import add
from jitdnn.ops.transform import transform


class Sampling:
    """Training. All values are 0 or more."""

    def __init__(self) -> None:
        self._passed = elementwise(
            "pick, total, limit, last: minimum(pick + where(total < limit, 1, 0), last)"
        )
        self._chosen = elementwise("y, pick, x, tap: y + where(pick == tap, x, 0)")
        self._given = elementwise("dx, pick, dy, tap: dx + where(pick == tap, dy, 0)")

    def forward(self, x: Array, windows: Windows, drawn: Array, y: Array, pick: Array) -> None:
        """Fill y, and `pick` of the same shape and type with the number of the chosen element in its window; `drawn`
        are random numbers 0 to 1 of that shape.
        """
        room = windows.room(x.shape[:2], x.dtype)
        transform(x, out=windows.inside(room))
        total = np.zeros_like(y)
        for part in windows.meets(room):
            add(part, out=total, beta=1.0)
        limit = drawn * total
        total.fill(0)
        pick.fill(0)
        y.fill(0)
        last = len(windows.taps) - 1
        for part in windows.meets(room):
            add(part, out=total, beta=1.0)
            self._passed(pick, total, limit, last, out=pick)
        for tap, part in enumerate(windows.meets(room)):
            self._chosen(y, pick, part, tap, out=y)

    def backward(self, dy: Array, windows: Windows, pick: Array, dx: Array) -> None:
        """Fill dx: each chosen element has the gradients of its windows."""
        room = windows.room(dx.shape[:2], dx.dtype)
        for tap, part in enumerate(windows.meets(room)):
            self._given(part, pick, dy, tap, out=part)
        transform(windows.inside(room), out=dx)


class Weighting:
    """Testing. With a the mean of a window and q that of its squares y = q / a; where a is not above 0 y is 0."""

    def __init__(self) -> None:
        self._square = elementwise("x: x * x")
        self._ratio = elementwise("q, a: where(a > 0, q / where(a > 0, a, 1), 0)")
        self._share = elementwise("dy, a: where(a > 0, dy / where(a > 0, a, 1), 0)")
        self._joined = elementwise("u, v, x: 2 * x * u - v")

    def forward(self, x: Array, window: Any, arguments: dict[str, Any], y: Array) -> None:
        """Fill y."""
        mean = avg_pool(x, window, count_include_pad=True, **arguments)
        avg_pool(self._square(x), window, out=y, count_include_pad=True, **arguments)
        self._ratio(y, mean, out=y)

    def backward(
        self, dy: Array, x: Array, y: Array, window: Any, arguments: dict[str, Any], dx: Array
    ) -> None:
        """Fill dx: an element x of a window has dy (2 x - y) / (the sum of the window)."""
        mean = avg_pool(x, window, count_include_pad=True, **arguments)
        share = self._share(dy, mean)
        u = avg_pool_backward(share, x.shape, window, count_include_pad=True, **arguments)
        v = avg_pool_backward(share * y, x.shape, window, count_include_pad=True, **arguments)
        self._joined(u, v, x, out=dx)
