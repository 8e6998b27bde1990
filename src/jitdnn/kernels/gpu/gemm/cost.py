"""The tiling and the number of splits of a contraction, chosen by estimated seconds."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.gemm.plan import Contraction, GemmPlan, Tiling
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.tensor import DTYPES

_LAUNCH_SECONDS = 4e-6  # of each kernel, its tail included
_BLOCKS_WANTED = 4  # a multiprocessor, before the terms are split among thread blocks
_MOST_SPLITS = 64
_FEWEST_TERMS = 256  # of a split
_EFFICIENCY = 0.6  # of the peak, of the large tiles
# Latencies, as seen on an H100, of a thread block for each that its multiprocessor has: where its rows are and where
# they go, and the least of a step, which waits for memory and at barriers. They bound tiles of few terms.
_BLOCK_SECONDS = 2e-6
_STEP_SECONDS = 0.5e-6
_SECTOR = 32  # bytes that memory is read by
_CACHE_SPEED = 2.0  # of the L2 cache, times that of memory
# by the size of an element of the sums, larger tiles first
_TILINGS = {
    4: (Tiling(128, 128, 8, 8, 8), Tiling(128, 64, 16, 8, 4), Tiling(64, 64, 16, 4, 4), Tiling(128, 16, 8, 4, 2),
        Tiling(256, 4, 8, 4, 1), Tiling(256, 1, 8, 1, 1)),
    8: (Tiling(64, 64, 8, 4, 4), Tiling(128, 16, 8, 4, 2), Tiling(256, 4, 8, 4, 1), Tiling(256, 1, 8, 1, 1)),
}  # fmt: skip


def choose(c: Contraction, device: GpuDevice, epilogue: Epilogue | None = None) -> GemmPlan:
    """The tiling, and number of parts that the terms are cut into, that should be fastest."""
    item = DTYPES[c.sum_dtype]
    moved, of_term = sum(tensor.nbytes for tensor in c.operands), _bytes_of_elements(c)
    found = [_cut(c, tiling, device, moved, of_term) for tiling in _TILINGS[item]]
    tiling, splits, split_steps, seconds = min(found, key=lambda one: one[-1])
    return GemmPlan(c, tiling, splits, split_steps, seconds, epilogue)


def least_seconds(flops: int, moved: int, dtype: str, device: GpuDevice) -> float:
    """What no tiling of a contraction of so many operations, whose operands have `moved` bytes, comes below."""
    rate = _MOST_OF_TILES * device.peak_flops(dtype)
    return ROUNDED * (_LAUNCH_SECONDS + max(flops / rate if rate else 0.0, moved / device.bandwidth))


def _cut(
    c: Contraction, tiling: Tiling, device: GpuDevice, moved: int, of_elements: tuple[int, int]
) -> tuple[Tiling, int, int, float]:
    """The tiling, splits, steps of one, and seconds; `moved`: bytes of the operands."""
    tiles = (
        -(-c.row_count // tiling.rows)
        * -(-c.columns[0] // tiling.columns)
        * c.batch_count
        * c.stride_phase_count
    )
    steps = max(1, -(-c.term_count // tiling.depth))
    splits = 1
    if not c.has_stride_phases:
        wanted = -(-_BLOCKS_WANTED * device.multiprocessors // max(1, tiles))
        splits = max(1, min(wanted, _MOST_SPLITS, c.term_count // _FEWEST_TERMS))
    split_steps = -(-steps // splits)
    splits = -(-steps // split_steps)
    rate = _efficiency(tiling) * device.peak_flops(c.dtype) / device.multiprocessors
    waves = -(-tiles * splits // device.multiprocessors)
    step = max(2 * tiling.rows * tiling.columns * tiling.depth / rate, _STEP_SECONDS)
    if splits > 1:
        moved += 2 * splits * c.batch_count * c.row_count * c.columns[0] * 4
    read = tiles * splits * split_steps * tiling.depth * _bytes_a_term(c, tiling, of_elements)
    seconds = _LAUNCH_SECONDS * (1 + (splits > 1)) + max(
        waves * (_BLOCK_SECONDS + split_steps * step),
        moved / device.bandwidth,
        read / (_CACHE_SPEED * device.bandwidth),
    )
    return tiling, splits, split_steps, seconds


def _efficiency(tiling: Tiling) -> float:
    """Of the peak: registers full of sums feed the units; small tiles wait for shared memory."""
    work = tiling.thread_rows * tiling.thread_columns
    return _EFFICIENCY * work / (work + 2 * (tiling.thread_rows + tiling.thread_columns))


_MOST_OF_TILES = max(_efficiency(tiling) for tilings in _TILINGS.values() for tiling in tilings)


def _bytes_a_term(c: Contraction, tiling: Tiling, of_elements: tuple[int, int]) -> float:
    """What a thread block reads for one term of its sums."""
    g_bytes, p_bytes = of_elements
    return tiling.rows * g_bytes + min(tiling.columns, c.columns[0]) * p_bytes


def _bytes_of_elements(c: Contraction) -> tuple[int, int]:
    """What an element of each operand takes: whole sectors where elements are not neighbours."""
    g, p, _ = c.operands
    in_g = [(c.rows[0], c.rows[1]), (c.terms[0], c.terms[1])]
    in_p = [(c.columns[0], c.columns[1]), (c.terms[0], c.terms[2])]
    for axis in c.axes:
        # along an axis rows are neighbours, or by stride phases, and so are taps
        along = axis.g_stride * (1 if axis.stride_phases else axis.g_mul)
        in_g += [(axis.grid, along), (axis.taps, axis.g_stride * axis.g_step)]
        in_p.append((axis.taps, axis.p_stride))
    return _bytes_an_element(g.dtype, in_g), _bytes_an_element(p.dtype, in_p)


def _bytes_an_element(dtype: str, digits: Sequence[tuple[int, int]]) -> int:
    """`digits`: extents and steps."""
    item = DTYPES[dtype]
    nearest = min((abs(step) for extent, step in digits if extent > 1 and step), default=1)
    return min(_SECTOR, item * nearest)
