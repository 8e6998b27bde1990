"""Input that register tiles read from x itself, without a packed input tile.

Packing an input tile (microkernel/packing.py) resolves strides, padding and types by a copy. A filter of one tap over
an image without padding needs none of it: every element that a tile reads is an element of x. It only takes that the
lanes of a vector are neighbours, and that the channels of a block do not evict each other from the L2 cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import InputTile
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.processor import Processor

_WAYS = 4  # lines of each set of the L2 cache that a block may occupy


def may_be_unpacked(c: Correlation, processor: Processor, box: Sequence[int]) -> bool:
    """True if every product reads an element of x as it is: one tap, no padding, the type of the arithmetic.

    An image with a stride is packed: else the pixels between those that are used would be loaded with them. So is one
    whose channels are neighbours where the pixels of a register tile, a ``box``, would evict each other.
    """
    return (
        c.taps == 1
        and c.depth > 0
        and c.x.dtype == c.dtype
        and (c.x.channels != 1 or _pixels_fit_sets(c, processor, box))
        and all(axis.step == 1 or axis.results == 1 for axis in c.axes)
        and not any(axis.is_padded for axis in c.axes)
        and _channels_fit_sets(c, processor)
    )


def _pixels_fit_sets(c: Correlation, processor: Processor, box: Sequence[int]) -> bool:
    """True if neighbouring pixels, whose channels a register tile reads side by side, stay in the L1 cache.

    They may take half of its ways, beside a panel that streams by.
    """
    line, stride = processor.line_bytes, abs(c.x.space[2]) * ITEM_BYTES[c.dtype]
    sets = cost.L1_WAY_BYTES // line
    if stride % line == 0:
        sets //= math.gcd(stride // line, sets)
    return sets * cost.l1_ways(processor) // 2 >= math.prod(box)


def _channels_fit_sets(c: Correlation, processor: Processor) -> bool:
    """True if neighbouring channels fall into enough sets of the L2 cache for all of them to stay there."""
    line, stride = processor.line_bytes, abs(c.x.channels) * ITEM_BYTES[c.dtype]
    sets = 1 << (processor.l2(cost.GEMM_L2_WAY) // line).bit_length() - 1  # a power of two
    if stride % line == 0:
        sets //= math.gcd(stride // line, sets)
    return c.depth <= sets * _WAYS


def bytes_in_cache(c: Correlation, block: Sequence[int], channels: int, line_bytes: int) -> int:
    """Bytes of the cache lines that a block of results reads from so many channels of x."""
    line = line_bytes // ITEM_BYTES[c.dtype]
    length, pieces = 1, 1
    strides = [*c.x.space[::-1], c.x.batch]
    for extent, stride in zip(block[::-1], strides, strict=True):
        if pieces == 1 and abs(stride) <= length + line:
            length += (extent - 1) * abs(stride)
        else:
            pieces *= extent
    lines = 1 + (length - 1) / line  # on average over all alignments
    if abs(c.x.channels) < length + line:
        lines = min(lines, abs(c.x.channels) / line)
    return int(pieces * channels * lines * line_bytes)


def input_as_input_tile(c: Correlation, block: tuple[int, int, int, int]) -> InputTile:
    """The strides of x as those of an input tile that begins with what the block's first result reads."""
    first, second, third = c.axes
    lows = first.taps.offset, second.taps.offset, third.taps.offset
    steps = first.step, second.step, third.step
    return InputTile(block, lows, block[1:], steps, c.x.batch, c.x.channels, c.x.space, False)
