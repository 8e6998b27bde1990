"""Adding up the lanes of several vectors at once."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.rtcg.builder import Builder, Value


def add_lanes(k: Builder, vectors: Sequence[Value]) -> Value:
    """The sum of the lanes of each vector, as one vector with a lane for each of them.

    There are lanes up to the next power of two; those beyond repeat the last vector's.
    """
    count = 1 << (len(vectors) - 1).bit_length()
    values = [*vectors, *[vectors[-1]] * (count - len(vectors))]
    while len(values) > 1:
        values = [_add_pairs(k, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    total = values[0]
    while total.lanes > count:
        total = _add_pairs(k, total, None)
    return total


def _add_pairs(k: Builder, a: Value, b: Value | None) -> Value:
    """The sums of neighbouring lanes of ``a``, then of ``b``."""
    lanes = a.lanes * (1 if b is None else 2)
    if lanes == 2:
        return k.extract(a, 0) + k.extract(a, 1)
    b = a if b is None else b
    return k.shuffle(a, b, range(0, lanes, 2)) + k.shuffle(a, b, range(1, lanes, 2))
