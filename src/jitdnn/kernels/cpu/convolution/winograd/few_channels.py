"""Few channels, laid out for Winograd's tiles together with the phases of the taps.

Where the channels alone would leave most lanes of a vector empty, its lanes are [phase of rows][phase of columns]
[channel], which is the order they are summed in: one transform of a tile does for several phases. Lanes of a phase
that lacks the last place hold a value there that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def trace_folded_fill(module: Module, name: str, p: WinogradPlan, first: int) -> Function:
    """Trace ``name(x, to, slice, row, column, count)`` for the vector of lanes from number ``first`` on.

    ``x`` points to the image's first position and channel; ``slice``, ``row`` and ``column`` are the positions that the
    first phases read first, which may be outside; ``count`` is that of the columns to fill of each phase.
    """
    c, lanes, unit = p.c, p.lanes, p.columns.axis.step
    numbers = range(first, min(first + lanes, p.folded))
    sources = [
        (n // c.depth // p.columns.phases, n // c.depth % p.columns.phases, n % c.depth) for n in numbers
    ]
    lines = sorted({(a, channel) for a, _, channel in sources})
    with module.function(
        name, x=c.x.dtype, to=c.dtype, slice=None, row=None, column=None, count=None
    ) as (k, (x, to, slice_, row, column, count), function):  # fmt: skip
        x = x + slice_ * c.x.space[p.third]
        there = (slice_ >= 0) & (slice_ < p.slices.positions)
        blank = k.constant(0, c.dtype, lanes)
        for i in k.range(p.rows.places):
            for j in k.range(0, count, lanes):
                at = column + j * unit
                found: dict[tuple[int, int, int], Value] = {}
                for a, channel in lines:
                    here = row + (i * p.rows.gap + p.rows.positions[a])
                    is_inside = there & (here >= 0) & (here < p.rows.axis.positions)
                    limit = k.select(is_inside, k.integer(p.columns.axis.positions), 0)
                    line = x + (here * c.x.space[p.tiled[0]] + channel * c.x.channels)
                    needed = [b for b in range(p.columns.phases) if (a, b, channel) in sources]
                    for b, vector in zip(needed, _columns(k, p, line, at, limit, needed), strict=True):
                        found[a, b, channel] = vector
                square = [found[source] for source in sources] + [blank] * (lanes - len(sources))
                target = to + (i * p.read_pitch + j) * lanes
                for place, vector in enumerate(transpose(k, square)):
                    target.store(vector, place * lanes)
    return function


def _columns(
    k: Builder, p: WinogradPlan, line: Pointer, at: Value, limit: Value, needed: Sequence[int]
) -> list[Value]:  # fmt: skip
    """A vector of a line's positions for each of the phases ``needed``; zero outside and from ``limit`` on."""
    lanes, unit, stride = p.lanes, p.columns.axis.step, p.c.x.space[p.tiled[1]]
    positions = [p.columns.positions[b] for b in needed]
    if stride == 1 and unit > 1:  # the phases of neighbouring positions share what is loaded
        parts = []
        for part in range(unit):
            begin = at + part * lanes
            parts.append(line.load(begin, lanes, _inside(k, begin, limit, lanes)))
        return [_every(k, parts, position, unit) for position in positions]
    found = []
    for position in positions:
        begin = at + position
        above, below = (limit - begin).max(0), (-begin).max(0)
        mask = k.mask((above + unit - 1) // unit, lanes) & ~k.mask((below + unit - 1) // unit, lanes)
        vector = line.load_strided(begin * stride, unit * stride, lanes, mask)
        found.append(k.select(mask, vector, 0.0) if stride == 0 else vector)
    return found


def _inside(k: Builder, begin: Value, limit: Value, lanes: int) -> Value:
    return k.mask(limit - begin, lanes) & ~k.mask(-begin, lanes)


def _every(k: Builder, parts: Sequence[Value], first: int, step: int) -> Value:
    """Every ``step``-th element from number ``first`` on of vectors that follow each other."""
    lanes = parts[0].lanes
    wanted = [first + i * step for i in range(lanes)]
    result = parts[0]
    for number, part in enumerate(parts):
        pattern = [lanes + n - number * lanes if n // lanes == number else i for i, n in enumerate(wanted)]
        result = k.shuffle(result, part, pattern)
    return result
