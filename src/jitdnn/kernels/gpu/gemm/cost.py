"""Which tiling and how many splits a contraction gets, by seconds."""

from __future__ import annotations

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.gemm.plan import Contraction, GemmPlan, Tiling
from jitdnn.tensor import DTYPES

_LAUNCH_SECONDS = 4e-6  # of each kernel, its tail included
_BLOCKS_WANTED = 4  # a multiprocessor, before the terms are split among thread blocks
_MOST_SPLITS = 64
_FEWEST_TERMS = 256  # of a split
_EFFICIENCY = 0.6  # of the peak, of the large tiles
# by the size of an element of the sums, larger tiles first
_TILINGS = {
    4: (Tiling(128, 128, 8, 8, 8), Tiling(128, 64, 8, 8, 4), Tiling(64, 64, 8, 4, 4), Tiling(128, 16, 8, 4, 2),
        Tiling(256, 4, 8, 4, 1), Tiling(256, 1, 8, 1, 1)),
    8: (Tiling(64, 64, 8, 4, 4), Tiling(128, 16, 8, 4, 2), Tiling(256, 4, 8, 4, 1), Tiling(256, 1, 8, 1, 1)),
}  # fmt: skip


def choose(c: Contraction, device: GpuDevice, epilogue: Epilogue | None = None) -> GemmPlan:
    """The tiling, and number of parts that the terms are cut into, that should be fastest."""
    item = DTYPES[c.sum_dtype]
    return min(
        (_cut(c, tiling, device, epilogue) for tiling in _TILINGS[item]), key=lambda plan: plan.seconds
    )


def _cut(c: Contraction, tiling: Tiling, device: GpuDevice, epilogue: Epilogue | None) -> GemmPlan:
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
    # registers full of sums feed the units; small tiles wait for shared memory
    work = tiling.thread_rows * tiling.thread_columns
    efficiency = _EFFICIENCY * work / (work + 2 * (tiling.thread_rows + tiling.thread_columns))
    rate = efficiency * device.peak_flops(c.dtype) / device.multiprocessors
    waves = -(-tiles * splits // device.multiprocessors)
    flops = 2 * tiling.rows * tiling.columns * split_steps * tiling.depth
    moved = sum(tensor.nbytes for tensor in c.operands)
    if splits > 1:
        moved += 2 * splits * c.batch_count * c.row_count * c.columns[0] * 4
    seconds = _LAUNCH_SECONDS * (1 + (splits > 1)) + max(waves * flops / rate, moved / device.bandwidth)
    return GemmPlan(c, tiling, splits, split_steps, seconds, epilogue)
