"""Finished sums to the user's tensor: scale, epilogue, blend and layout, in one pass.

    y = alpha * epilogue(sum, operands) + beta * y        (y is not read where beta is 0)

A tile of sums is [rows][vectors * lanes]. Its lanes go along one axis of y and its rows along a box of others.
Where the lanes' axis is contiguous in y a row is stored as it is; where the last axis of the box is, squares
are transposed first; else the lanes are scattered.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.transpose import transpose
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.lowering import lower



@dataclass(frozen=True)
class Placement:
    """Where a tile goes in one tensor: the stride of each axis of the box and of the lanes."""

    box: tuple[int, ...]
    lanes: int


@dataclass(frozen=True)
class TileStore:
    """A tile's shape and its placement in y and in each operand of the epilogue."""

    dtype: str
    box: tuple[int, ...]
    extents: tuple[int, ...]  # of the whole tensor along the axes of the box
    vectors: int
    y: Placement
    operands: tuple[Placement, ...]
    epilogue: Epilogue | None

    @property
    def is_transposed(self) -> bool:
        return self.y.lanes != 1 and self.y.box[-1] == 1 and self.box[-1] > 1

    def joins(self) -> bool:
        """True if the last two axes of the box are one run in every tensor."""
        if len(self.box) < 2 or self.box[-1] != self.extents[-1]:
            return False
        return all(p.box[-2] == self.extents[-1] * p.box[-1] for p in (self.y, *self.operands))

    def joined(self) -> TileStore:
        """The same with the last two axes of the box as one."""
        return self._with_axes(
            (*self.box[:-2], self.box[-2] * self.box[-1]),
            (*self.extents[:-2], self.extents[-2] * self.extents[-1]),
            [*range(len(self.box) - 2), len(self.box) - 1],
        )

    def squeezed(self, kept: Sequence[int]) -> TileStore:
        """The same with only the axes numbered ``kept``; the box has side 1 along the others."""
        return self._with_axes(
            tuple(self.box[i] for i in kept), tuple(self.extents[i] for i in kept), kept
        )

    def _with_axes(self, box: tuple[int, ...], extents: tuple[int, ...], kept: Sequence[int]) -> TileStore:
        def keep(p: Placement) -> Placement:
            return Placement(tuple(p.box[i] for i in kept), p.lanes)

        operands = tuple(keep(p) for p in self.operands)
        return replace(self, box=box, extents=extents, y=keep(self.y), operands=operands)


class Blend:
    """alpha, beta and the epilogue as they are applied to one vector."""

    def __init__(self, k: Builder, alpha: Value, beta: Value, epilogue: Epilogue | None) -> None:
        self.k, self.alpha, self.beta, self.epilogue = k, alpha, beta, epilogue

    def store(
        self, y: Pointer, stride: int, value: Value, operands: Sequence[Value], mask: Value | None
    ) -> None:
        """Finish ``value`` and store its lanes at ``stride``."""
        k, lanes = self.k, value.lanes
        if self.epilogue is not None:
            value = lower(k, self.epilogue.expression, [value, *operands])
        result = k.register(value * k.splat(self.alpha, lanes))
        with k.when(self.beta != 0.0):
            old = y.load_strided(0, stride, lanes, mask)
            result.set(k.fma(k.splat(self.beta, lanes), old, result.get()))
        y.store_strided(result.get(), 0, stride, mask)


def trace_store(module: Module, name: str, store: TileStore) -> Function:
    """Trace ``name(sums, scale, y, operands..., valid lanes, valid extent of each axis of the box...)``.

    ``scale`` points to alpha and beta, two doubles; the other pointers to the tile's first element.
    """
    operands = {f"operand{i}": store.dtype for i in range(len(store.operands))}
    valid = {f"valid{i}": None for i in range(len(store.box))}
    with module.function(
        name, sums=store.dtype, scale="f64", y=store.dtype, **operands, valid_lanes=None, **valid
    ) as (k, (sums, scale, y, *rest), function):
        count = len(store.operands)
        pointers, lanes_valid, extents = rest[:count], rest[count], rest[count + 1 :]
        kept = [i for i, side in enumerate(store.box) if side > 1] or [len(store.box) - 1]
        tile, extents = store.squeezed(kept), [extents[i] for i in kept]
        while tile.joins():
            extents = [*extents[:-2], extents[-2] * tile.extents[-1]]
            tile = tile.joined()
        alpha, beta = (k.convert(scale.load(i), store.dtype) for i in range(2))
        writer = _Writer(k, tile, Blend(k, alpha, beta, store.epilogue), sums, [y, *pointers])
        if tile.is_transposed:
            writer.transposed(lanes_valid, extents)
        else:
            writer.rows(lanes_valid, extents)
    return function


class _Writer:
    def __init__(
        self, k: Builder, store: TileStore, blend: Blend, sums: Pointer, pointers: Sequence[Pointer]
    ) -> None:
        self.k, self.tile, self.blend, self.sums, self.pointers = k, store, blend, sums, pointers
        self.lanes = k.lanes(store.dtype)
        self.placements = (store.y, *store.operands)

    def _sum(self, row: int, vector: int) -> Value:
        return self.sums.load((row * self.tile.vectors + vector) * self.lanes, self.lanes)

    def _store(self, offsets: Sequence[int], strides: Sequence[int], value: Value, mask: Value) -> None:
        y, *others = (p + o for p, o in zip(self.pointers, offsets, strict=True))
        operands = [
            o.load_strided(0, stride, self.lanes, mask) for o, stride in zip(others, strides[1:], strict=True)
        ]
        self.blend.store(y, strides[0], value, operands, mask)

    def rows(self, valid_lanes: Value, valid: Sequence[Value]) -> None:
        """Lanes as they are: each row's vectors to y, masked at the end."""
        for row, point in enumerate(itertools.product(*(range(side) for side in self.tile.box))):
            inside = self.k.integer(0) == 0
            for place, extent in zip(point, valid, strict=True):
                inside = inside & (extent > place) if place else inside
            with self.k.when(inside):
                for vector in range(self.tile.vectors):
                    self._row_vector(point, row, vector, valid_lanes)

    def _row_vector(self, point: Sequence[int], row: int, vector: int, valid_lanes: Value) -> None:
        first = vector * self.lanes
        with self.k.when(valid_lanes > first):
            mask = self.k.mask(valid_lanes - first, self.lanes)
            offsets = [_offset(p, point) + first * p.lanes for p in self.placements]
            self._store(offsets, [p.lanes for p in self.placements], self._sum(row, vector), mask)

    def transposed(self, valid_lanes: Value, valid: Sequence[Value]) -> None:
        """Squares of (pixels of one run) x (lanes) turned, so that stores go along the run."""
        k, lanes, run = self.k, self.lanes, self.tile.box[-1]
        for outer in itertools.product(*(range(side) for side in self.tile.box[:-1])):
            inside = k.integer(0) == 0
            for place, extent in zip(outer, valid, strict=False):
                inside = inside & (extent > place) if place else inside
            row = _flat(self.tile.box[:-1], outer) * run
            for start, vector in itertools.product(range(0, run, lanes), range(self.tile.vectors)):
                left = valid[-1] - start
                with k.when(inside & (left > 0) & (valid_lanes > vector * lanes)):
                    self._square(outer, row, start, vector, valid_lanes, k.mask(left.min(run - start), lanes))

    def _square(
        self, outer: Sequence[int], row: int, start: int, vector: int, valid_lanes: Value, mask: Value
    ) -> None:
        k, lanes = self.k, self.lanes
        there = min(lanes, self.tile.box[-1] - start)
        blank = k.constant(0, self.tile.dtype, lanes)
        square = [self._sum(row + start + i, vector) if i < there else blank for i in range(lanes)]
        for lane, value in enumerate(transpose(k, square)):
            with k.when(valid_lanes > vector * lanes + lane):
                offsets = [
                    _offset(p, (*outer, start)) + (vector * lanes + lane) * p.lanes for p in self.placements
                ]
                self._store(offsets, [p.box[-1] for p in self.placements], value, mask)


def _offset(placement: Placement, point: Sequence[int]) -> int:
    return sum(i * stride for i, stride in zip(point, placement.box, strict=True))


def _flat(box: Sequence[int], point: Sequence[int]) -> int:
    index = 0
    for side, i in zip(box, point, strict=True):
        index = index * side + i
    return index
