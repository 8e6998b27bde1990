"""Register tiles: how many rows and vectors of sums a micro-kernel keeps in registers, and what that costs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa

MAX_VECTORS = 4
_STEP_OVERHEAD = 0.5  # cycles a step spends on addresses and loop control
LEAST_STEP_CYCLES = 0.5  # of a step for each register of sums, whatever the tile
_LOAD = 0.65  # cycles of a load where tiles compete: not quite two a cycle, for lines arrive meanwhile
_LATENCY = 4.0  # cycles from one multiply-add into the same sum to the next
_OUTER_AXIS = 0.01  # a box with several rows, slices or images has more addresses and reads more cache lines


@dataclass(frozen=True)
class RegisterTile:
    """``rows`` x ``vectors`` registers of sums. The rows are a box, with an extent for each axis of the results."""

    box: tuple[int, ...]
    vectors: int

    @property
    def rows(self) -> int:
        return math.prod(self.box)


def step_cycles(rows: int, vectors: int) -> float:
    """Cycles of one step of a micro-kernel: two multiply-adds and two loads a cycle."""
    return max(rows * vectors * LEAST_STEP_CYCLES, (rows + vectors) / 2, _LATENCY) + _STEP_OVERHEAD


Cost = Callable[[tuple[int, ...]], float]
LoadCost = Callable[[int], float]


def _one(box: tuple[int, ...]) -> float:
    return 1.0


def nothing(box: tuple[int, ...]) -> float:
    """No cost, whatever the box."""
    return 0.0


def choose_tile(
    extents: Sequence[int], width: int, isa: Isa, dtype: str, store: float | Cost = 0.0,
    steps_of: Cost = _one, other: Cost = nothing, load: float | LoadCost = 0.0, beside: float = 0.0,
) -> RegisterTile:  # fmt: skip
    """The tile that covers ``extents`` rows by ``width`` lanes in the fewest cycles.

    All costs are cycles per step of the reduction: ``store`` that of finishing one vector of a tile, ``other`` that of
    everything else for the whole index space, ``load`` that of loading a vector from the cache it is in, which may
    depend on how many vectors a tile has, and ``beside`` the part of it that products do not hide.
    ``steps_of`` is the part of the steps that is left for tiles of a box.
    """
    if isinstance(store, float) and isinstance(load, float) and steps_of is _one and other is nothing:
        return _plain_tile(tuple(extents), width, isa, dtype, store, load)
    return _cheapest_tile(extents, width, isa, dtype, store, steps_of, other, load, beside)


@functools.lru_cache(maxsize=4096)
def _plain_tile(
    extents: tuple[int, ...], width: int, isa: Isa, dtype: str, store: float, load: float
) -> RegisterTile:
    """`choose_tile` where no cost depends on the box, cached: planners choose the same tiles repeatedly."""
    return _cheapest_tile(extents, width, isa, dtype, store, _one, nothing, load)


def _cheapest_tile(
    extents: Sequence[int], width: int, isa: Isa, dtype: str, store: float | Cost,
    steps_of: Cost, other: Cost, load: float | LoadCost, beside: float = 0.0,
) -> RegisterTile:  # fmt: skip
    lanes = isa.lanes(dtype)
    best, best_cost = RegisterTile((1,) * len(extents), 1), math.inf
    for vectors in range(1, min(MAX_VECTORS, ceil_div(max(width, 1), lanes)) + 1):
        # a register for each sum, one for each vector loaded, one for the broadcast
        most = (isa.registers - 1 - vectors) // vectors
        columns = ceil_div(max(width, 1), vectors * lanes)
        waiting = vectors * (load if isinstance(load, float) else load(vectors))
        for box in _boxes(tuple(max(1, e) for e in extents), most):
            rows = math.prod(box)
            tiles = columns * math.prod(ceil_div(max(1, e), t) for e, t in zip(extents, box, strict=True))
            finish = store if isinstance(store, float) else store(box)
            step = max(step_cycles(rows, vectors), waiting, _LOAD * (rows + vectors) + _STEP_OVERHEAD)
            step += beside * waiting
            cost = tiles * (steps_of(box) * step + finish * rows * vectors)
            cost *= 1 + _OUTER_AXIS * sum(axis for axis, side in enumerate(reversed(box)) if side > 1)
            if cost < best_cost * (1 - 1e-9):
                cost += other(box)
            if cost < best_cost * (1 - 1e-9):
                best, best_cost = RegisterTile(box, vectors), cost
    return best


@functools.lru_cache(maxsize=1024)
def _boxes(extents: tuple[int, ...], most: int) -> tuple[tuple[int, ...], ...]:
    """Boxes of at most ``most`` points whose sides divide the extents as evenly as possible."""
    sides = [
        sorted({ceil_div(extent, parts) for parts in range(1, extent + 1) if ceil_div(extent, parts) <= most})
        if extent <= 4 * most
        else list(range(1, most + 1))
        for extent in extents
    ]
    return tuple(box for box in itertools.product(*sides) if math.prod(box) <= most)


def cost_per_step(extents: Sequence[int], width: int, tile: RegisterTile, lanes: int) -> float:
    """Cycles that one step of the reduction takes over the whole index space."""
    tiles = math.prod(ceil_div(e, t) for e, t in zip(extents, tile.box, strict=True))
    return tiles * ceil_div(width, tile.vectors * lanes) * step_cycles(tile.rows, tile.vectors)
