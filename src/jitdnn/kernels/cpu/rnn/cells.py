"""The cells as expressions: what becomes of a unit's sums in a step, and of the gradient of its output.

Where a cell is clipped its derivative is 0. The derivatives are written with what was kept: the gates after their
functions.
"""

from __future__ import annotations

from typing import Any

from jitdnn.rtcg.activations import ACTIVATIONS, relu, sigmoid, tanh
from jitdnn.rtcg.expression import Expression, trace, where

GATE = trace(lambda x, u: sigmoid(x + u))
NEW = trace(lambda x, u: tanh(x + u))
LSTM_OUT = trace(lambda o, c: o * tanh(c))
GRU_NEW = trace(lambda x, r, m: tanh(x + r * m))
GRU_OUT = trace(lambda z, n, h: (1.0 - z) * n + z * h)


def plain(cell: str) -> Expression:
    """h of the cells relu and tanh."""
    return NEW if cell == "tanh" else trace(lambda x, u: relu(x + u))


def lstm_cell(clip: tuple[float, float] | None) -> Expression:
    """c of (f, c', i, g)."""

    def clipped(f: Any, before: Any, i: Any, g: Any) -> Any:
        c = f * before + i * g
        if clip is None:
            return c
        low, high = clip
        return where(c < low, low, where(c > high, high, c))

    return trace(clipped)


def lstm_cell_slope(clip: tuple[float, float] | None) -> Expression:
    """The gradient of c from (that of the next step, that of h, o, c)."""

    def slope(dc: Any, dh: Any, o: Any, c: Any) -> Any:
        t = tanh(c)
        total = dc + dh * o * (1.0 - t) * (1.0 + t)
        if clip is None:
            return total
        low, high = clip
        return where((c > low) & (c < high), total, 0.0)

    return trace(slope)


# gradients of the sums: of i and f from (dc, what the gate is multiplied by, the gate), of g, of o
LSTM_GATE_SLOPE = trace(lambda dc, other, gate: dc * other * gate * (1.0 - gate))
LSTM_NEW_SLOPE = trace(lambda dc, i, g: dc * i * (1.0 - g) * (1.0 + g))
LSTM_OUT_SLOPE = trace(lambda dh, c, o: dh * tanh(c) * o * (1.0 - o))
CELL_BEFORE = trace(lambda dc, f: dc * f)

GRU_NEW_SLOPE = trace(lambda dh, z, n: dh * (1.0 - z) * (1.0 - n) * (1.0 + n))
GRU_UPDATE_SLOPE = trace(lambda dh, h, z, n: dh * (h - n) * z * (1.0 - z))
GRU_RESET_SLOPE = trace(lambda dn, m, r: dn * m * r * (1.0 - r))
TIMES = trace(lambda a, b: a * b)


def plain_slope(cell: str) -> Expression:
    """The gradient of the sum from (that of h, h)."""
    return ACTIVATIONS[cell].backward("y")
