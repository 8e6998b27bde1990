"""Lower bounds of the times of products by warpgroups, from few of their sizes.

A blocking that cannot be the best need be neither made nor estimated: both cost eight times as much as a bound. Bounds
count the products of the tensor cores, the path to shared memory and TMA, each at its full rate, and the bytes of
memory.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.cost import gemm_clock, l2_bytes_per_cycle
from jitdnn.kernels.cuda.warpgroup.cost import OPERATIONS_OF_BYTE
from jitdnn.kernels.cuda.warpgroup.families import family
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.kernels.gpu.prelude.cost import ROUNDED

_LEAST = 0.8
"""Of the cycles of a stage, that factors for tiles and layers leave; as all in `cost.py`."""
_SHARED_SHARE = 1.5  # the largest of the path to shared memory
_FEWER_BETWEEN = 400.0  # cycles of `tile` that no tile saves more of


class Least(Protocol):
    """What a model does not come below, of a launch of these products."""

    products: Products
    of_splits: float
    """Seconds of any tile and any splits of K whose sums go through memory."""

    def seconds(self, tile: Tile, splits: int, length: int) -> float:
        """Of so many splits of K, each of `length` stages: with any number of stages in flight, and operands kept or
        not."""


class Model(Protocol):
    """A model of what blockings take."""

    def seconds(self, products: Products, blocking: Blocking) -> float:
        """Expected time of the launch and, where K is split, of the sum of the splits."""

    def bound(self, products: Products, row: int) -> Least:
        """What it does not come below, for products in stages of `row` bytes."""


class Bound:
    """That of `cost.seconds`, in stages of `row` bytes.

    `swaps`: the operands of f32 change places. `is_b_counted`: a stage has rows of B of its own, for each of its
    columns. `shared`: tiles of which thread blocks may have equal parts of K.
    """

    def __init__(
        self,
        products: Products,
        device: GpuDevice,
        traits: KernelTraits,
        row: int,
        swaps: bool,
        is_b_counted: bool,
        shared: Container[Tile],
    ) -> None:
        parts, lines, row_bytes, is_wgrad = traits.parts, traits.lines, traits.row_bytes, traits.is_wgrad
        constants = family(swaps, lines, parts, row_bytes, is_wgrad)
        path = device.facts.shared_bytes_per_cycle
        self.products, self._multiprocessors, self._shared = products, device.multiprocessors, shared
        multiplied = parts * (parts + 1) // 2 if parts > 1 and not traits.is_rough else lines.mean_taps
        self._of_products = _LEAST * multiplied * row / (OPERATIONS_OF_BYTE * path)
        # rows that are brought, and columns that the tensor cores read of B for each 64 rows of A
        self._rows_of_a, self._rows_of_b = parts * lines.pixels, parts * lines.mean_taps * is_b_counted
        self._columns_read = 0.0 if swaps else multiplied
        self._of_path = _LEAST * row / ((_SHARED_SHARE if is_wgrad else constants.shared) * path)
        self._of_copies = 0.0 if is_wgrad else _LEAST * parts * (row // row_bytes) * constants.row
        self._b_copied = lines.mean_taps * is_b_counted
        self._clock = constants.clock * gemm_clock(device.facts)
        self._between, self._start = max(0.0, constants.tile - _FEWER_BETWEEN), constants.start
        self._exchange, self._exchanged = constants.exchange, constants.exchanged
        self._leaving = traits.result_bytes / (constants.results or l2_bytes_per_cycle(device.facts))
        bytes_moved = products.bytes_moved + traits.finish.nbytes
        self._waits = bytes_moved / (constants.memory * device.bandwidth)
        self._unhidden = constants.unhidden
        self._launch = min(constants.launch, constants.early_launch)
        self._reduction, self._of_partial = constants.reduction, 4 / device.bandwidth
        busy = products.products_of_rows * self._of_products / device.multiprocessors + self._between
        elements = products.groups * products.n * sum(products.rows)
        self.of_splits = self._time(busy) + self._of_split(2 * elements)

    def _time(self, busy: float) -> float:
        works, waits = (busy + self._start) / self._clock, self._waits
        return (max(works, waits) + self._unhidden * min(works, waits) + self._launch) * ROUNDED

    def _of_split(self, sums: int) -> float:
        return (self._reduction + sums * self._of_partial) * ROUNDED

    def seconds(self, tile: Tile, splits: int, length: int) -> float:
        m, n = tile.m, tile.n
        stage = max(
            self._of_products * m * n,
            self._of_path * (self._rows_of_a * m + self._rows_of_b * n + (m >> 6) * self._columns_read * n),
            self._of_copies * (m + self._b_copied * n),
        )
        products, multiprocessors = self.products, self._multiprocessors
        if len(products.rows) > 1:
            stages = products.stages_down(tile) * products.tiles_n(tile) * products.groups / multiprocessors
            return self._time(stages * stage * _LEAST + self._leaving * m * n)  # where they take turns
        leaving = self._leaving * m * n  # of the last tile
        if tile.cluster > 1:
            sums = self._exchange + 4 * m * n / self._exchanged
            return self._time(length * stage + self._between + sums + leaving / tile.cluster)
        tiles = -(-products.rows[0] // m) * -(-products.n // n) * products.groups
        if splits == 1 and tile in self._shared:
            return self._time(tiles * length / multiprocessors * stage * _LEAST + leaving)
        turns = -(-tiles * splits // multiprocessors)
        busy = turns * (length * stage + self._between)
        return (
            self._time(busy + leaving)
            if splits == 1
            else self._time(busy) + self._of_split(tiles * splits * m * n)
        )
