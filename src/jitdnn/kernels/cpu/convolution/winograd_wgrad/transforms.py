"""Packing and transforms of the tiles of x and of dy for a filter's gradient.

A unit of tiles of up to a vector of channels is first packed as [row][column][lane], with zeros where the tensor ends;
then each tile of it is transformed and stored as

    [point][block of channels][tile][lane]

so that the products read both operands one tile after the other.
"""

from __future__ import annotations

from jitdnn.kernels.cpu.convolution.winograd.axes import is_inside
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import UnitTransform
from jitdnn.kernels.cpu.microkernel.constant_matrix import apply_to_grid
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def trace_transform(module: Module, name: str, t: UnitTransform) -> Function:
    """Trace ``name(source, to, scratch, channels, d, h, w)``.

    ``source`` points to position 0 of the first channel, of which ``channels`` are there; d, h, w are the first
    positions of the unit, and may be outside. ``to`` is where the unit's first tile goes at the first point.
    """
    pack, tiles = _trace_pack(module, f"{name}_pack", t), _trace_tiles(module, f"{name}_tiles", t)
    origins = dict.fromkeys(("d", "h", "w"))
    with module.function(
        name, source=t.view.dtype, to=t.dtype, scratch=t.dtype, channels=None, **origins
    ) as (k, (source, to, scratch, *rest), function):  # fmt: skip
        k.call(pack, source, scratch, *rest)
        k.call(tiles, scratch, to)
    return function


def _trace_pack(module: Module, name: str, t: UnitTransform) -> Function:
    depth, rows, _ = t.readings
    origins = dict.fromkeys(("d", "h", "w"))
    with module.function(
        name, source=t.view.dtype, scratch=t.dtype, channels=None, **origins
    ) as (k, (source, scratch, channels, d, h, w), function):  # fmt: skip
        is_there = is_inside(d, depth.bound)
        source = source + k.select(is_there, d, 0) * t.view.space[0]
        for i in k.range(rows.elements):
            at = h + i * rows.spacing
            inside = is_there & is_inside(at, rows.bound)
            row = source + k.select(inside, at, 0) * t.view.space[1]
            target = scratch + i * (t.packed_pitch * t.lanes)
            pack = _pack_transposed if t.is_transposed else _pack_copied
            pack(k, t, row, target, inside, w, channels)
    return function


def _pack_transposed(
    k: Builder, t: UnitTransform, row: Pointer, target: Pointer, inside: Value, first: Value, channels: Value
) -> None:
    """Squares of channels by positions, transposed; a channel that is not there repeats the last one."""
    lanes, reading = t.lanes, t.readings[2]
    spacing, limit = reading.spacing, k.select(inside, k.integer(reading.bound), 0)
    starts = [channels.min(c + 1) * t.view.channels - t.view.channels for c in range(lanes)]
    for j in k.range(0, reading.elements, lanes):
        w = first + j * spacing
        # lane i reads position w + i * spacing, which must be in [0, limit)
        after = (limit - w + (spacing - 1)).max(0) // spacing
        before = (k.integer(spacing - 1) - w).max(0) // spacing
        mask = k.mask(after, lanes) & ~k.mask(before, lanes)
        square = [(row + start).load_strided(w, spacing, lanes, mask) for start in starts]
        for i, vector in enumerate(transpose(k, square)):
            target.store(vector, (j + i) * lanes)


def _pack_copied(
    k: Builder, t: UnitTransform, row: Pointer, target: Pointer, inside: Value, first: Value, channels: Value
) -> None:
    lanes, reading = t.lanes, t.readings[2]
    for j in k.range(reading.elements):
        w = first + j * reading.spacing
        here = inside & is_inside(w, reading.bound)
        mask = k.mask(k.select(here, channels, 0), lanes)
        pixel = row + k.select(here, w, 0) * t.view.space[2]
        vector = pixel.load_strided(0, t.view.channels, lanes, mask)
        if t.view.channels == 0:  # a broadcast load ignores its mask
            vector = k.select(mask, vector, 0.0)
        target.store(vector, j * lanes)


def _trace_tiles(module: Module, name: str, t: UnitTransform) -> Function:
    lanes, (_, rows, columns) = t.lanes, t.readings
    with module.function(name, scratch=t.dtype, to=t.dtype) as (k, (scratch, to), function):
        for i in k.range(rows.unit_tiles):
            for j in k.range(columns.unit_tiles):
                tile = scratch + (
                    i * (rows.tile_step * t.packed_pitch * lanes) + j * (columns.tile_step * lanes)
                )
                grid = [
                    [tile.load((a * t.packed_pitch + b) * lanes, lanes) for b in range(columns.extent)]
                    for a in range(rows.extent)
                ]
                target = to + (i * columns.unit_tiles + j) * lanes
                for a, line in enumerate(apply_to_grid(k, t.matrices, grid)):
                    for b, value in enumerate(line):
                        target.store(value, (a * len(t.matrices[1]) + b) * t.pitch)
    return function
