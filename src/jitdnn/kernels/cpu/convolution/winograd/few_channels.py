"""Few channels, packed for Winograd's tiles together with the subfilters of the taps.

Where the channels alone would leave most lanes of a vector empty, its lanes are [subfilter of rows]
[subfilter of columns][channel], which is the order they are summed in: one transform of a tile serves several
subfilters. Lanes of a short subfilter hold a value at the point at infinity that nothing reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.cpu.convolution.winograd.axes import is_inside
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def trace_pack_few_channels(module: Module, name: str, p: WinogradPlan, first: int) -> Function:
    """Trace ``name(x, to, slice, row, column, count)`` for the vector of lanes from number ``first`` on.

    ``x`` points to the image's first position and channel; ``slice``, ``row`` and ``column`` are the positions that the
    first subfilters read first, which may be outside; ``count`` columns of each subfilter are packed.
    """
    c, lanes, step = p.c, p.lanes, p.columns.axis.step
    lane_numbers = range(first, min(first + lanes, p.joint_channels))
    sources = [
        (n // c.depth // p.columns.subfilters, n // c.depth % p.columns.subfilters, n % c.depth)
        for n in lane_numbers
    ]
    lines = sorted({(a, channel) for a, _, channel in sources})
    with module.function(
        name, x=c.x.dtype, to=c.dtype, slice=None, row=None, column=None, count=None
    ) as (k, (x, to, slice_, row, column, count), function):  # fmt: skip
        x = x + slice_ * c.x.space[p.untiled]
        there = is_inside(slice_, p.slices.positions)
        blank = k.constant(0, c.dtype, lanes)
        for i in k.range(p.rows.alpha):
            for j in k.range(0, count, lanes):
                at = column + j * step
                found: dict[tuple[int, int, int], Value] = {}
                for a, channel in lines:
                    here = row + (i * p.rows.spacing + p.rows.positions[a])
                    inside = there & (here >= 0) & (here < p.rows.axis.positions)
                    limit = k.select(inside, k.integer(p.columns.axis.positions), 0)
                    line = x + (here * c.x.space[p.tiled[0]] + channel * c.x.channels)
                    needed = [b for b in range(p.columns.subfilters) if (a, b, channel) in sources]
                    for b, vector in zip(needed, _columns(k, p, line, at, limit, needed), strict=True):
                        found[a, b, channel] = vector
                square = [found[source] for source in sources] + [blank] * (lanes - len(sources))
                target = to + (i * p.packed_pitch + j) * lanes
                for position, vector in enumerate(transpose(k, square)):
                    target.store(vector, position * lanes)
    return function


def _columns(
    k: Builder, p: WinogradPlan, line: Pointer, at: Value, limit: Value, needed: Sequence[int]
) -> list[Value]:  # fmt: skip
    """A vector of a line's positions for each of the subfilters ``needed``; zero before 0 and from ``limit`` on."""
    lanes, step, stride = p.lanes, p.columns.axis.step, p.c.x.space[p.tiled[1]]
    positions = [p.columns.positions[b] for b in needed]
    if stride == 1 and step > 1:  # subfilters that read neighbouring positions share the loads
        loaded = []
        for number in range(step):
            begin = at + number * lanes
            loaded.append(line.load(begin, lanes, _mask(k, begin, limit, lanes)))
        return [_every(k, loaded, position, step) for position in positions]
    found = []
    for position in positions:
        begin = at + position
        above, below = (limit - begin).max(0), (-begin).max(0)
        mask = k.mask((above + step - 1) // step, lanes) & ~k.mask((below + step - 1) // step, lanes)
        vector = line.load_strided(begin * stride, step * stride, lanes, mask)
        found.append(k.select(mask, vector, 0.0) if stride == 0 else vector)
    return found


def _mask(k: Builder, begin: Value, limit: Value, lanes: int) -> Value:
    """The lanes from position ``begin`` on that are in [0, limit)."""
    return k.mask(limit - begin, lanes) & ~k.mask(-begin, lanes)


def _every(k: Builder, vectors: Sequence[Value], first: int, step: int) -> Value:
    """Every ``step``-th element from number ``first`` on of consecutive vectors."""
    lanes = vectors[0].lanes
    wanted = [first + i * step for i in range(lanes)]
    result = vectors[0]
    for number, vector in enumerate(vectors):
        pattern = [lanes + n - number * lanes if n // lanes == number else i for i, n in enumerate(wanted)]
        result = k.shuffle(result, vector, pattern)
    return result
