"""Transposing squares of vectors in registers, and copies that transpose."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.rtcg.builder import Builder, Pointer, Value


def transpose(k: Builder, rows: Sequence[Value]) -> list[Value]:
    """``rows`` of as many lanes as there are rows, transposed: log2(lanes) rounds of two-way shuffles."""
    values, lanes = list(rows), len(rows)
    distance = 1
    while distance < lanes:
        low = [j if not j & distance else lanes + j - distance for j in range(lanes)]
        high = [j + distance if not j & distance else lanes + j for j in range(lanes)]
        for i in range(lanes):
            if not i & distance:
                a, b = values[i], values[i + distance]
                values[i], values[i + distance] = k.shuffle(a, b, low), k.shuffle(a, b, high)
        distance *= 2
    return values


def copy_transposed(
    k: Builder, source: Pointer, row_stride: int, rows: int | Value, run: int | Value,
    target: Pointer, pitch: int, lanes: int, store_mask: Value | None = None, prefetch: int = 0,
) -> None:  # fmt: skip
    """``target[i * pitch + lane] = source[lane * row_stride + i]`` for i < run.

    Lanes at and beyond ``rows`` (at most ``lanes``) become 0; those that ``store_mask`` turns off are not written. With
    ``prefetch`` the element so far behind the one that is read is prefetched, of each row.
    """
    for start in k.range(0, run, lanes):
        left = (run if isinstance(run, Value) else k.integer(run)) - start
        loaded = []
        for lane in range(lanes):
            if isinstance(rows, int):
                count: int | Value = left if lane < rows else 0
            else:
                count = k.select(rows > lane, left, 0)
            if prefetch:
                source.prefetch(start + lane * row_stride + prefetch)
            loaded.append(source.load(start + lane * row_stride, lanes, k.mask(count, lanes)))
        for i, row in enumerate(transpose(k, loaded)):
            with k.when(left > i):
                target.store(row, (start + i) * pitch, store_mask)
