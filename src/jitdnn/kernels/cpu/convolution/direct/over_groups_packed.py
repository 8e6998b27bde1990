"""Small planes with the channels in the lanes: brought together, filtered there, and put to their places.

    task : vectors of groups of some images; the filters of a vector are turned once
    unit : one vector of groups of one image, as a whole: x to memory as [channel][pixel][lanes], the tiles of
           `group_lanes` from there to [result][pixel][lanes], and that to y

Channels-first planes are turned. A row of a small one fills its vector badly, and most taps of a large filter lie
outside of it: with pixels in the lanes both are computed all the same. Turning costs as much as some taps.
Channels-last planes are only copied: their pixels are so far apart that the caches cannot keep those that the many
taps of a large filter read again and again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.over_groups import OverGroups
from jitdnn.kernels.cpu.convolution.direct.over_groups_code import trace_tile
from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides, trace_store
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer
from jitdnn.rtcg.isa import ITEM_BYTES, Isa, item_bytes

_MOST_BYTES = 512 << 10  # of the planes of one vector of groups: they stay in the second cache
_SQUARE = 140.0  # cycles to turn sixteen vectors
_VECTOR = 3.0  # cycles to copy one
_APART = 15.0  # and more where they lie apart, in images that the second cache does not keep
_CACHE_BYTES = 1 << 20
_THIRD_CACHE = 6 << 20  # bytes of the images that may still be there
_MEMORY_RATE = 8.0  # bytes a cycle of planes that come from memory: turning waits for them
_LINE = 64
_UNIT = 200.0  # cycles to begin and end a unit


@dataclass(frozen=True)
class OverGroupsPacked:
    """How one correlation of small groups over small planes is computed."""

    c: Correlation
    isa: Isa

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @property
    def fits(self) -> bool:
        """True if pixels of a row or channels are neighbours, and the planes of a vector are small."""
        c = self.c
        is_row = 1 in (c.x.space[2], c.x.groups[0]) and 1 in (c.y.space[2], c.y.groups[0])
        is_whole = len(c.groups) == 1 and self.lanes > 1
        return is_row and is_whole and self._elements * ITEM_BYTES[c.dtype] <= _MOST_BYTES

    @property
    def _is_copied(self) -> bool:
        """True if x's channels are neighbours, and its pixels are not."""
        return self.c.x.groups[0] == 1 and self.c.x.space[2] != 1

    @property
    def _x_pixels(self) -> int:
        return math.prod(axis.positions for axis in self.c.axes)

    @property
    def _y_pixels(self) -> int:
        return math.prod(axis.results for axis in self.c.axes)

    @property
    def _elements(self) -> int:
        """Of the planes of one vector of groups."""
        return (self.c.depth * self._x_pixels + self.c.width * self._y_pixels) * self.lanes

    @cached_property
    def inner(self) -> OverGroups:
        """The correlation of one vector of groups of one image, from memory to memory."""
        c, lanes = self.c, self.lanes
        _, h, w = (axis.positions for axis in c.axes)
        _, p, q = (axis.results for axis in c.axes)
        x = View(c.dtype, 0, (1,), self._x_pixels * lanes, (h * w * lanes, w * lanes, lanes))
        y = View(c.dtype, 0, (1,), self._y_pixels * lanes, (p * q * lanes, q * lanes, lanes))
        return OverGroups(replace(c, batch=1, groups=(lanes,), x=x, y=y, operands=()), self.isa)

    @property
    def vectors(self) -> int:
        return ceil_div(self.c.groups[0], self.lanes)

    def _rows(self, is_input: bool) -> tuple[int, int]:
        """Rows of a plane that are turned one by one, and pixels of each: one row if they follow each other."""
        views = [self.c.x] if is_input else [self.c.y, *self.c.operands]
        extents = [axis.positions if is_input else axis.results for axis in self.c.axes]
        d, h, w = extents
        packed = list(zip(extents, (h * w, w, 1), strict=True))
        if all(
            extent == 1 or own == stride
            for view in views
            for own, (extent, stride) in zip(view.space, packed, strict=True)
        ):
            return 1, d * h * w
        return d * h, w

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        c, lanes, tile = self.c, self.lanes, self.inner
        squares = copied = 0.0
        for is_input, channels in ((True, c.depth), (False, c.width)):
            rows, pixels = self._rows(is_input)
            view = c.x if is_input else c.y
            if view.groups[0] == 1 and view.space[2] != 1:
                copied += channels * rows * pixels
            else:
                squares += channels * rows * ceil_div(pixels, lanes)
        turned = tile.filter_size / lanes**2
        unit = tile.cycles() + squares * _SQUARE * lanes / 16 + copied * _VECTOR + _UNIT
        moved = c.batch * self.vectors * self._elements * ITEM_BYTES[c.dtype]
        apart = _APART * c.batch * self.vectors * copied if moved > _CACHE_BYTES else 0.0
        planes = c.batch * c.group_count
        read = planes * c.depth * self._x_pixels * item_bytes(c.x.dtype)
        if read > _THIRD_CACHE and not self._is_copied:
            written = planes * c.width * self._y_pixels * item_bytes(c.y.dtype)
            apart += (read + written) / _MEMORY_RATE
        return self.vectors * (c.batch * unit + turned * _SQUARE) + apart

    # ---- division

    def workspace(self, threads: int) -> int:
        """Bytes: the planes and filters of one vector of groups for each thread."""
        return threads * self._thread_elements * ITEM_BYTES[self.c.dtype]

    @property
    def _thread_elements(self) -> int:
        size = self._elements + self.inner.filter_size
        return ceil_div(size, 16 * self.lanes) * (16 * self.lanes)

    @cached_property
    def units(self) -> WorkUnits:
        return WorkUnits((("vector", self.vectors), ("image", self.c.batch)))

    def shares(self, device: CpuDevice) -> tuple[int, tuple[int]]:
        """(tasks, (units of a task,)); the kernel's extras must hold the latter."""
        tasks, per_task = self.units.split(device, self.cycles())
        return tasks, (per_task,)

    # ---- code

    def trace(
        self, module: Module, prefix: str, pointers: int, extra: int, order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> None:  # fmt: skip
        """Trace the task ``<prefix>tiles``. ``order`` numbers the pointers to x, w and y; the kernel's
        ``extra`` holds the units of a task."""
        c, lanes, tile = self.c, self.lanes, self.inner
        versions = [
            (runs, trace_tile(module, f"{prefix}tile{i}", tile, pattern, None))
            for i, (pattern, runs) in enumerate(tile.versions().items())
        ]
        turn = tile.trace_filter(module, f"{prefix}filter")
        load = self._trace_load(module, f"{prefix}load")
        store = self._trace_store(module, f"{prefix}store", epilogue)
        with module.task(f"{prefix}tiles") as (k, args, task, thread):
            arguments = Arguments(k, args, pointers)
            own = arguments.workspace(c.dtype) + thread * self._thread_elements
            planes = own + c.depth * self._x_pixels * lanes
            filters = own + self._elements
            plain = k.local("f64", 2)  # the tiles' alpha and beta: the store has the caller's
            plain.store(k.constant(1.0, "f64"), 0)
            plain.store(k.constant(0.0, "f64"), 1)
            turned = k.register(k.integer(-1))
            tensors = [(arguments.pointer(order[2], c.y.dtype), c.y)]
            tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
            for unit in self.units.each(k, task, arguments.extra(extra)):
                vector, n = unit["vector"], unit["image"]
                group = vector * lanes
                left = k.integer(c.groups[0]) - group
                with k.when(turned.get() != vector):
                    w = arguments.pointer(order[1], c.w.dtype) + group * c.w.groups[0]
                    k.call(turn, w, filters, left)
                    turned.set(vector)
                x = arguments.pointer(order[0], c.x.dtype) + (
                    c.x.offset + n * c.x.batch + group * c.x.groups[0]
                )
                k.call(load, x, own, left)
                self._tiles(k, versions, own, filters, planes, plain, x + c.x.batch)
                places = [t + (v.offset + n * v.batch + group * v.groups[0]) for t, v in tensors]
                k.call(store, planes, scale(k, args, pointers), *places, left)

    def _tiles(
        self, k: Builder, versions: list[tuple[list[tuple[int, int]], Function]], x: Pointer, filters: Pointer,
        y: Pointer, plain: Pointer, ahead: Pointer,
    ) -> None:  # fmt: skip
        """All tiles of a vector of groups; meanwhile its planes of the next image, ``ahead``, are asked for."""
        c, tile = self.c, self.inner.tile
        _, p, q = (axis.results for axis in c.axes)
        rows = ceil_div(p, tile.rows)
        item = ITEM_BYTES[c.dtype]
        is_run = c.depth == 1 and c.x.space[2] == 1 and self._rows(True)[0] == 1
        asked = ceil_div(ceil_div(self._x_pixels * item, _LINE), c.axes[0].results * rows) if is_run else 0
        for line in k.range(c.axes[0].results * rows):
            for lane in k.range(self.lanes if asked else 0):
                corner = ahead + (lane * c.x.groups[0] + line * (asked * _LINE // item))
                for part in range(asked):
                    corner.prefetch(part * (_LINE // item))
            d, h = line // rows, line % rows * tile.rows
            row = y + (d * p + h) * (q * self.lanes)
            for runs, function in versions:
                for first, last in runs:
                    for number in k.range(first, last):
                        at = number * tile.columns
                        k.call(function, x, filters, row + at * self.lanes, plain, d, h, at, 0)

    def _trace_load(self, module: Module, name: str) -> Function:
        """Trace ``name(x, planes, groups)``: the planes of the groups from the one that x points to, of which there
        are at least ``groups``, as [channel][pixel][lanes]."""
        c, lanes = self.c, self.lanes
        rows, pixels = self._rows(True)
        with module.function(name, x=c.x.dtype, planes=c.dtype, groups=None) as (
            k,
            (x, planes, groups),
            function,
        ):
            for channel in k.range(c.depth):
                for row in k.range(rows):
                    h = c.axes[1].positions
                    place = (row // h * c.x.space[0] + row % h * c.x.space[1]) if rows > 1 else 0
                    source = x + (channel * c.x.channels + place)
                    target = planes + (channel * self._x_pixels + row * pixels) * lanes
                    if not self._is_copied:
                        copy_transposed(k, source, c.x.groups[0], groups, pixels, target, lanes, lanes)
                        continue
                    mask = k.mask(groups, lanes)
                    for pixel in k.range(pixels):
                        target.store(source.load(pixel * c.x.space[2], lanes, mask), pixel * lanes)
        return function

    def _trace_store(self, module: Module, name: str, epilogue: Epilogue | None) -> Function:
        """Trace ``name(planes, scale, y, operands..., groups)``: the planes to y, of which ``groups`` are left."""
        c, lanes = self.c, self.lanes
        views = (c.y, *c.operands)
        places = [TileStrides(v.dtype, (v.space[2],), v.groups[0]) for v in views]
        square = trace_store(
            module,
            f"{name}_square",
            TileStore(c.dtype, (lanes,), (lanes,), 1, places[0], tuple(places[1:]), epilogue),
        )
        rows, pixels = self._rows(False)
        operands = {f"operand{i}": v.dtype for i, v in enumerate(c.operands)}
        with module.function(
            name, planes=c.dtype, scale="f64", y=c.y.dtype, **operands, groups=None
        ) as (k, (planes, alpha_beta, *tensors, groups), function):  # fmt: skip
            for result in k.range(c.width):
                for row in k.range(rows):
                    h = c.axes[1].results
                    starts = []
                    for tensor, view in zip(tensors, views, strict=True):
                        place = tensor + result * view.channels
                        if rows > 1:
                            place = place + (row // h * view.space[0] + row % h * view.space[1])
                        starts.append(place)
                    own = planes + (result * self._y_pixels + row * pixels) * lanes
                    for at in k.range(0, pixels, lanes):
                        targets = [s + at * v.space[2] for s, v in zip(starts, views, strict=True)]
                        left = k.integer(pixels) - at
                        k.call(square, own + at * lanes, alpha_beta, *targets, groups, left)
        return function
