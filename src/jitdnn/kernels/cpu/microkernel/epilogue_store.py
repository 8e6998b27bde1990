"""The store of a register tile's sums to y: epilogue, scaling and layout in one pass.

    y = alpha * epilogue(sum, operands) + beta * y        (y is not read where beta is 0)

A tile of sums is [rows][vectors * lanes]. Its lanes lie along one axis of y, its rows along a box of other axes. Where
the lanes' axis has the smaller stride in y rows are stored as they are; where the box's last axis has, squares of
vectors are transposed first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.microkernel.nontemporal import is_aligned
from jitdnn.kernels.cpu.microkernel.scale import blend_integers
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.offsets import scale
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.lowering import lower, lower_together
from jitdnn.rtcg.vector_math import element_of
from jitdnn.tensor import REAL_DTYPES


@dataclass(frozen=True)
class TileStrides:
    """The strides of a tile in one tensor: those of each axis of the box, and that of the lanes."""

    dtype: str
    box: tuple[int, ...]
    lanes: int


@dataclass(frozen=True)
class TileStore:
    """A tile's shape, and its strides in y and in each operand of the epilogue."""

    dtype: str
    box: tuple[int, ...]
    extents: tuple[int, ...]  # of the tensor along the axes of the box
    vectors: int
    y: TileStrides
    operands: tuple[TileStrides, ...]
    epilogue: Epilogue | None
    sums: str | None = None  # the type of the sums in memory, where it is not that of the arithmetic
    streams: bool = False  # complete, aligned rows are written by non-temporal stores, where y is not read

    @property
    def is_transposed(self) -> bool:
        """True if the box's last axis has a smaller stride in y than the lanes' axis."""
        return self.box[-1] > 1 and 0 < abs(self.y.box[-1]) < abs(self.y.lanes)

    def joins(self) -> bool:
        """True if the last two axes of the box are a single one in every tensor."""
        if len(self.box) < 2 or self.box[-1] != self.extents[-1]:
            return False
        return all(p.box[-2] == self.extents[-1] * p.box[-1] for p in (self.y, *self.operands))

    def joined(self) -> TileStore:
        """The same with the last two axes of the box as a single one."""
        return self._with_axes(
            (*self.box[:-2], self.box[-2] * self.box[-1]),
            (*self.extents[:-2], self.extents[-2] * self.extents[-1]),
            [*range(len(self.box) - 2), len(self.box) - 1],
        )

    def squeezed(self, axes: Sequence[int]) -> TileStore:
        """The same with only some ``axes``; the box has side 1 along the others."""
        return self._with_axes(tuple(self.box[i] for i in axes), tuple(self.extents[i] for i in axes), axes)

    def _with_axes(self, box: tuple[int, ...], extents: tuple[int, ...], axes: Sequence[int]) -> TileStore:
        def keep(p: TileStrides) -> TileStrides:
            return TileStrides(p.dtype, tuple(p.box[i] for i in axes), p.lanes)

        operands = tuple(keep(p) for p in self.operands)
        return replace(self, box=box, extents=extents, y=keep(self.y), operands=operands)


class Blend:
    """alpha, beta and the epilogue as they are applied to one vector.

    ``integer_scale`` are alpha and beta in f64, for results of integers; None for results of reals.
    """

    def __init__(
        self, k: Builder, alpha: Value, beta: Value, epilogue: Epilogue | None,
        integer_scale: tuple[Value, Value] | None = None,
    ) -> None:  # fmt: skip
        self.k, self.alpha, self.beta, self.epilogue = k, alpha, beta, epilogue
        self.integer_scale = integer_scale

    @classmethod
    def of(cls, k: Builder, scale: Pointer, dtype: str, y: Pointer, epilogue: Epilogue | None) -> Blend:
        """For sums of type ``dtype`` and the result ``y``; ``scale`` points to alpha and beta, two doubles."""
        alpha, beta = scale.load(0), scale.load(1)
        integer_scale = None if y.dtype in REAL_DTYPES else (alpha, beta)
        return cls(k, k.convert(alpha, dtype), k.convert(beta, dtype), epilogue, integer_scale)

    @property
    def overwrites(self) -> Value:
        """Whether ``scaled`` may be stored as it is: y is not read, and integers are not scaled."""
        if self.integer_scale is None:
            return self.beta == 0.0
        return (self.integer_scale[0] == 1.0) & (self.integer_scale[1] == 0.0)

    def finished(self, value: Value, operands: Sequence[Value]) -> Value:
        """``value`` after the epilogue."""
        if self.epilogue is None:
            return value
        return lower(self.k, self.epilogue.expression, [value, *operands])

    def scaled(self, value: Value, operands: Sequence[Value]) -> Value:
        """``value`` after the epilogue, times alpha."""
        return self.finished(value, operands) * self.k.splat(self.alpha, value.lanes)

    def new(self, values: Sequence[Value], operands: Sequence[Sequence[Value]]) -> list[Value]:
        """What is stored of some vectors, each with its operands, where `overwrites`: step by step for all of them."""
        finished = list(values)
        if self.epilogue is not None and len(values).bit_count() == 1:
            inputs = [[value, *others] for value, others in zip(values, operands, strict=True)]
            finished = lower_together(self.k, self.epilogue.expression, inputs)
        elif self.epilogue is not None:
            finished = [self.finished(v, others) for v, others in zip(values, operands, strict=True)]
        if self.integer_scale is not None:
            return finished
        return [value * self.k.splat(self.alpha, value.lanes) for value in finished]

    def store(
        self, y: Pointer, stride: int, value: Value, operands: Sequence[Value], mask: Value | None
    ) -> None:
        """Finish ``value`` and store its lanes at ``stride``."""
        k, lanes = self.k, value.lanes
        if self.integer_scale is not None:
            blend_integers(
                k, self.integer_scale, y, stride, self.finished(value, operands), element_of(value), mask
            )
            return
        result = k.register(self.scaled(value, operands))
        with k.when(self.beta != 0.0):
            old = y.load_strided(0, stride, lanes, mask)
            result.set(k.fma(k.splat(self.beta, lanes), old, result.get()))
        y.store_strided(result.get(), 0, stride, mask)


def trace_store(module: Module, name: str, store: TileStore) -> Function:
    """Trace ``name(sums, scale, y, operands..., valid lanes, valid extent of each axis of the box...)``.

    ``scale`` points to alpha and beta, two doubles; the other pointers to the tile's first element.
    """
    operands = {f"operand{i}": strides.dtype for i, strides in enumerate(store.operands)}
    valid = {f"valid{i}": None for i in range(len(store.box))}
    with module.function(
        name,
        sums=store.sums or store.dtype,
        scale="f64",
        y=store.y.dtype,
        **operands,
        valid_lanes=None,
        **valid,
    ) as (k, (sums, scale, y, *rest), function):
        count = len(store.operands)
        pointers, lanes_valid, extents = rest[:count], rest[count], rest[count + 1 :]
        axes = [i for i, side in enumerate(store.box) if side > 1] or [len(store.box) - 1]
        tile, extents = store.squeezed(axes), [extents[i] for i in axes]
        while tile.joins():
            extents = [*extents[:-2], extents[-2] * tile.extents[-1]]
            tile = tile.joined()
        blend = Blend.of(k, scale, store.dtype, y, store.epilogue)
        writer = _Writer(k, tile, blend, sums, [y, *pointers])
        if tile.is_transposed:
            writer.transposed(lanes_valid, extents)
        else:
            writer.rows(lanes_valid, extents)
    return function


class _Writer:
    """Loops over a tile. They are not unrolled, so that the code stays small whatever the tile."""

    def __init__(
        self, k: Builder, store: TileStore, blend: Blend, sums: Pointer, pointers: Sequence[Pointer]
    ) -> None:
        self.k, self.tile, self.blend, self.sums, self.pointers = k, store, blend, sums, pointers
        self.lanes = k.lanes(store.dtype)
        self.tile_strides = (store.y, *store.operands)

    def _points(self, valid: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
        """Every valid point of the first axes of the box, one axis for each extent given."""
        if not valid:
            yield ()
            return
        *outer, last = valid
        for point in self._points(outer):
            for i in self.k.range(last.min(self.tile.box[len(outer)])):
                yield (*point, i)

    def _row(self, point: Sequence[Value]) -> Value:
        index = self.k.integer(0)
        for side, i in zip(self.tile.box, point, strict=False):
            index = index * side + i
        return index

    def _store(
        self, point: Sequence[int | Value], lane: Value, strides: Sequence[int], value: Value,
        mask: Value | None,
    ) -> None:  # fmt: skip
        """Finish lanes from ``lane`` of the row at ``point`` on, which have ``strides`` in the tensors."""
        starts = [
            p + _offset(strides_of, point, lane)
            for p, strides_of in zip(self.pointers, self.tile_strides, strict=True)
        ]
        operands = [
            start.load_strided(0, stride, self.lanes, mask)
            for start, stride in zip(starts[1:], strides[1:], strict=True)
        ]
        self.blend.store(starts[0], strides[0], value, operands, mask)

    def rows(self, valid_lanes: Value, valid: Sequence[Value]) -> None:
        """Rows as they are, with a mask at the end of a partial tile."""
        k, width = self.k, self.tile.vectors * self.lanes
        if self.tile.y.lanes == 1 and not self.tile.streams:
            is_whole = (valid_lanes >= width) & self.blend.overwrites
            with k.when(is_whole):
                self._whole_rows(valid)
            with k.when(~is_whole):
                self._rows(valid_lanes, valid)
            return
        self._rows(valid_lanes, valid)

    def _whole_rows(self, valid: Sequence[Value]) -> None:
        """Rows of a complete tile into a y that is not read: what all rows share is loaded once, and there is no
        branch for each vector."""
        k, lanes = self.k, self.lanes
        parts = [j * lanes for j in range(self.tile.vectors)]
        shared = {
            (i, part): (p + part * strides.lanes).load_strided(0, strides.lanes, lanes)
            for i, (p, strides) in enumerate(zip(self.pointers[1:], self.tile.operands, strict=True))
            if not any(strides.box)
            for part in parts
        }
        for point in self._points(valid):
            row = self.sums + self._row(point) * (self.tile.vectors * lanes)
            starts = [
                p + _offset(strides, point, k.integer(0))
                for p, strides in zip(self.pointers, self.tile_strides, strict=True)
            ]
            values = [row.load(part, lanes) for part in parts]
            operands = [
                [
                    shared[i, part] if (i, part) in shared
                    else (start + part * strides.lanes).load_strided(0, strides.lanes, lanes)
                    for i, (start, strides) in enumerate(zip(starts[1:], self.tile.operands, strict=True))
                ]
                for part in parts
            ]  # fmt: skip
            for part, value in zip(parts, self.blend.new(values, operands), strict=True):
                starts[0].store(value, part)

    def _rows(self, valid_lanes: Value, valid: Sequence[Value]) -> None:
        k, width = self.k, self.tile.vectors * self.lanes
        strides = [p.lanes for p in self.tile_strides]
        for point in self._points(valid):
            row = self.sums + self._row(point) * width
            with k.when(valid_lanes >= width):
                self._complete_row(point, row, strides)
            with k.when(valid_lanes < width):
                for part in k.range(0, valid_lanes, self.lanes):
                    mask = k.mask(valid_lanes - part, self.lanes)
                    self._store(point, part, strides, row.load(part, self.lanes), mask)

    def _complete_row(self, point: Sequence[Value], row: Pointer, strides: Sequence[int]) -> None:
        k = self.k
        vectors = [
            (k.integer(j * self.lanes), row.load(j * self.lanes, self.lanes))
            for j in range(self.tile.vectors)
        ]
        if not self.tile.streams:
            for lane, value in vectors:
                self._store(point, lane, strides, value, None)
            return
        y = self.pointers[0] + _offset(self.tile_strides[0], point, k.integer(0))
        is_free = is_aligned(y, self.lanes) & self.blend.overwrites
        with k.when(is_free):
            for lane, value in vectors:
                operands = [
                    (p + _offset(strides_of, point, lane)).load_strided(0, stride, self.lanes)
                    for p, strides_of, stride in zip(
                        self.pointers[1:], self.tile_strides[1:], strides[1:], strict=True
                    )
                ]
                y.stream(self.blend.scaled(value, operands), lane)
        with k.when(~is_free):
            for lane, value in vectors:
                self._store(point, lane, strides, value, None)

    def transposed(self, valid_lanes: Value, valid: Sequence[Value]) -> None:
        """Squares of (points of the last axis) x (lanes), transposed, so that the vectors of stores lie along the
        axis."""
        k, lanes, run = self.k, self.lanes, self.tile.box[-1]
        width = self.tile.vectors * lanes
        for outer in self._points(valid[:-1]):
            row = self.sums + self._row(outer) * (run * width)
            full = run // lanes * lanes  # the loop of full squares; the last square may have fewer points
            for first, last, rows in ((0, full, lanes), (full, run, run - full)):
                for start in k.range(first, last, lanes):
                    mask = k.mask((valid[-1] - start).min(rows), lanes)
                    for lane in k.range(0, valid_lanes.min(width), lanes):
                        self._square((*outer, start), row + lane, lane, valid_lanes - lane, mask, rows)

    def _square(
        self, point: tuple[Value, ...], row: Pointer, lane: Value, left: Value, mask: Value, rows: int
    ) -> None:
        """One square, of which ``rows`` rows exist."""
        k, lanes, width = self.k, self.lanes, self.tile.vectors * self.lanes
        start = point[-1]
        blank = k.constant(0, self.tile.dtype, lanes)
        square = [row.load((start + i) * width, lanes) if i < rows else blank for i in range(lanes)]
        for i, value in enumerate(transpose(k, square)):
            with k.when(left > i):
                self._store(point, lane + i, [p.box[-1] for p in self.tile_strides], value, mask)


@dataclass(frozen=True)
class Box:
    """Elements of a tensor: (extent, stride) of each axis, and the offset of the first one."""

    axes: tuple[tuple[int, int], ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(extent for extent, _ in self.axes)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """The axes in the order of loops, at least two; vectors lie along the last one."""
        axes = sorted((axis for axis in self.axes if axis[0] != 1), key=lambda axis: -abs(axis[1]))
        return [(1, 0)] * (2 - len(axes)) + axes

    @property
    def tasks(self) -> int:
        return math.prod(extent for extent, _ in self.rows[:-2])


def trace_scaling(
    module: Module, name: str, stored: str, dtype: str, boxes: Sequence[Box], pointers: int, number: int
) -> None:
    """Trace the task ``name``: y = alpha * 0 + beta * y for one box after the other, computed as by `trace_store`.

    y is the operand ``number`` of ``pointers``, of type ``stored`` in memory; ``dtype`` is the type of its sums.
    """
    with module.task(name) as (k, args, task, _):
        first = 0
        for box in boxes:
            with k.when(task >= first), k.when(task < first + box.tasks):
                _scale_box(k, args, task - first, box, (stored, dtype), pointers, number)
            first += box.tasks


def _scale_box(
    k: Builder, args: Any, task: Value, box: Box, types: tuple[str, str], pointers: int, number: int
) -> None:
    (stored, dtype), arguments = types, Arguments(k, args, pointers)
    *outer, (rows, row_stride), (extent, stride) = box.rows
    y, index = arguments.pointer(number, stored) + box.offset, task
    for count, step in reversed(outer):
        y, index = y + (index % count) * step, index // count
    lanes, blend = k.lanes(dtype), Blend.of(k, scale(k, args, pointers), dtype, y, None)
    for row in k.range(rows):
        for i in k.range(0, extent, lanes):
            mask = k.mask(k.integer(extent) - i, lanes)
            blend.store(y + (row * row_stride + i * stride), stride, k.constant(0, dtype, lanes), (), mask)


def _offset(strides: TileStrides, point: Sequence[int | Value], lane: Value) -> Value:
    offset = lane * strides.lanes
    for i, stride in zip(point, strides.box, strict=True):
        offset = offset + i * stride
    return offset
