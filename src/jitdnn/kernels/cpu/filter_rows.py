"""What the gradients of filters that need no packing share: walking through dy, and places in dw."""

from __future__ import annotations

from collections.abc import Iterator

from jitdnn.kernels.cpu.blocked import group_offset
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.rtcg.builder import Builder, Value

POINTERS = 3  # x, dy and dw


def row_blocks(
    k: Builder, c: Correlation, block: int, first: int | Value = 0, last: int | Value | None = None
) -> Iterator[tuple[Value, Value, Value, Value, Value, Value]]:
    """Every block of ``block`` rows of dy, of images [first, last): its image, its slice, its first row and its
    end; how many elements of x ahead the next block is, and of dy."""
    rows, slices = c.axes[1].results, c.axes[0].results
    for n in k.range(first, c.batch if last is None else last):
        for d in k.range(slices):
            for h in k.range(0, rows, block):
                yield n, d, h, (h + block).min(rows), *_ahead(k, c, block, d, h)


def _ahead(k: Builder, c: Correlation, block: int, d: Value, h: Value) -> tuple[Value, Value]:
    """The digits of a block's number counted up by one, as offsets in x and dy."""
    is_row = h + block < c.axes[1].results
    is_slice = is_row | (d + 1 < c.axes[0].results)
    down = k.select(is_row, k.integer(block), -h)
    along = k.select(is_row, k.integer(0), k.select(is_slice, k.integer(1), -d))
    image = k.select(is_slice, k.integer(0), 1)
    x = image * c.x.batch + along * (c.axes[0].step * c.x.space[0])
    y = image * c.y.batch + along * c.y.space[0]
    return x + down * (c.axes[1].step * c.x.space[1]), y + down * c.y.space[1]


def tap_offset(c: Correlation, tap_d: Value, tap_h: Value) -> Value:
    """Offset in a filter of the first tap of a row of taps."""
    offset = tap_h * 0 + sum(axis.taps.start * stride for axis, stride in zip(c.axes, c.w.space, strict=True))
    for axis, tap, stride in zip(c.axes, (tap_d, tap_h), c.w.space, strict=False):
        offset = offset + tap * (axis.taps.increment * stride)
    return offset


def filter_offset(
    c: Correlation, group: Value, result: Value, channel: Value, tap_d: Value, tap_h: Value
) -> Value:
    """Offset of a filter's value at the first tap of a row of taps."""
    offset = group_offset(group, c.groups, c.w.groups) + tap_offset(c, tap_d, tap_h)
    return offset + result * c.w.results + channel * c.w.channels
