"""What the gradients of filters that need no packing share: loops over row blocks of dy, and offsets in dw."""

from __future__ import annotations

from collections.abc import Iterator

from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, split_index
from jitdnn.rtcg.builder import Builder, Value

POINTERS = 3  # x, dy and dw, or x, w and y


def block_count(c: Correlation, block: int) -> int:
    """Blocks of ``block`` rows of dy, in all images."""
    return c.batch * c.axes[0].results * ceil_div(c.axes[1].results, block)


def row_blocks(
    k: Builder, c: Correlation, block: int, first: int | Value = 0, last: int | Value | None = None
) -> Iterator[tuple[Value, Value, Value, Value, Value, Value]]:
    """Blocks [first, last) of ``block`` rows of dy, all by default.

    Each is its image, slice, first row and end, and the elements from it to the next block, of x and of dy.
    """
    extents = (c.batch, c.axes[0].results, ceil_div(c.axes[1].results, block))
    steps = (1, 1, block)
    for number in k.range(first, block_count(c, block) if last is None else last):
        n, d, h = (i * step for i, step in zip(split_index(number, extents), steps, strict=True))
        following = (i * step for i, step in zip(split_index(number + 1, extents), steps, strict=True))
        dn, dd, dh = (new - old for new, old in zip(following, (n, d, h), strict=True))
        x = dn * c.x.batch + dd * (c.axes[0].step * c.x.space[0])
        y = dn * c.y.batch + dd * c.y.space[0]
        next_x, next_y = x + dh * (c.axes[1].step * c.x.space[1]), y + dh * c.y.space[1]
        yield n, d, h, (h + block).min(c.axes[1].results), next_x, next_y


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
