"""Estimated cycles of pooling and unpooling on one thread, and how many vectors of channels to take at once."""

from __future__ import annotations

from jitdnn.kernels.cpu.pooling.geometry import Geometry
from jitdnn.kernels.cpu.pooling.plan import row_vectors
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.pooling import Pooling
from jitdnn.problems.unpooling import Unpooling

_MOST_VECTORS = {False: 8, True: 6}  # of channels at once; one register each, three where positions are kept


def choose_channel_vectors(problem: Pooling, geometry: Geometry, lanes: int) -> tuple[int, bool]:
    """How many vectors of channels go through a window together, and whether the last one of them is not full."""
    keeps_positions = problem.direction == "bwd" or problem.indices is not None
    return divide_channels(geometry.channels, lanes, _MOST_VECTORS[keeps_positions])


def divide_channels(channels: int, lanes: int, most: int) -> tuple[int, bool]:
    """All vectors at once where they are at most ``most``, else the number that leaves the fewest vectors over."""
    vectors = ceil_div(channels, lanes)
    if vectors <= most:
        return vectors, channels % lanes != 0
    return min(range(most, most // 2, -1), key=lambda v: vectors % v), False


def cycles_over_channels(problem: Pooling, geometry: Geometry, lanes: int) -> float:
    vectors = ceil_div(geometry.channels, lanes)
    tap = {("fwd", "max"): 3, ("fwd", "avg"): 1, ("bwd", "max"): 9, ("bwd", "avg"): 3}
    work = vectors * (8 + geometry.taps * tap[problem.direction, problem.mode])
    pixel = 20 + 4 * geometry.taps + work
    start = geometry.inputs * vectors if problem.direction == "bwd" else 0
    return geometry.images * (geometry.outputs * pixel + start)


def cycles_strided(problem: Pooling, geometry: Geometry, lanes: int) -> float:
    gathers = any(strides[1] != 1 for strides in geometry.strides)
    return (1.5 * lanes if gathers else 1.2) * cycles_over_channels(problem, geometry, lanes)


def cycles_over_rows(problem: Pooling, geometry: Geometry, lanes: int) -> float:
    a0, a1, a2 = geometry.axes
    blocks = a0.out * a1.out * ceil_div(a2.out, lanes)
    rows, columns = a0.window * a1.window, row_vectors(a2)
    if problem.direction == "fwd":
        block = 20 + rows * columns * (3 if problem.mode == "max" else 1.5) + 3 * a2.window
    elif problem.mode == "avg":
        block = 25 + 4 * a2.window * a2.stride + 3 * rows * (a2.stride + 1)
    else:
        block = 30 + rows * (columns + 10 * a2.window + 3 * (a2.stride + 1))
    start = geometry.inputs / lanes if problem.direction == "bwd" else 0
    return geometry.images * geometry.channels * (blocks * block + start)


def cycles_over_window(problem: Pooling, geometry: Geometry, lanes: int) -> float:
    a0, a1, a2 = geometry.axes
    vector = {("fwd", "avg"): 2, ("fwd", "max"): 4, ("bwd", "avg"): 3, ("bwd", "max"): 8}
    row = 4 + ceil_div(a2.window, lanes) * vector[problem.direction, problem.mode]
    output = 75 + a0.window * a1.window * row
    start = geometry.inputs / lanes if problem.direction == "bwd" and not geometry.is_partition else 0
    return geometry.images * geometry.channels * (geometry.outputs * output + start)


def cycles_of_unpooling(problem: Unpooling, lanes: int) -> float:
    cycles = 3.0 * problem.small.size
    return cycles + 6.0 * problem.large.size / lanes if problem.direction == "fwd" else cycles
