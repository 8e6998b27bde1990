"""Constants of the cost model of products by warpgroups, fitted by families of products."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Lines


@dataclass(frozen=True)
class Constants:
    """What the model was fitted to, of a family of products; bytes are those of a cycle.

    `clock`: of `gemm_clock`. `efficiency`: of the mainloop, where nothing else is the limit. `shared`: share of the
    path to shared memory, as `shared_bytes_per_cycle` of facts counts it. `row`, `outside`: cycles of the copy
    engine for a row of a stage, however long it is, and more for one that lies outside of the tensor.
    `stage`, `piece`: cycles that a stage takes at least,
    and each of its rows of shared memory. `tile`: from one tile of a thread block to the next. `start`: until its
    first products. `results`: bytes of results on their way out. `stored_row`: cycles of the copy engine for a row
    of them, of 128 bytes or 64. `partial`: cycles of partial sums on their way to the workspace, without their
    bytes. `cluster`: factor on a stage of clusters. `exchange`: their cycles beside those of their sums, of which a
    thread block writes and reads `exchanged` bytes. `memory`: share of the bandwidth of copies. `unhidden`: of the
    shorter of work and memory; where memory is the limit, of two tiles the one that wastes less is faster.
    `launch`, `early_launch`: seconds, the latter where it begins before the one in front of it is done. `reduction`:
    seconds of the sum of the splits, its launch included, without their bytes.
    """

    clock: float = 1.0
    efficiency: float = 0.96
    shared: float = 1.08
    row: float = 1.73
    outside: float = 6.0
    stage: float = 0.0
    piece: float = 0.0
    tile: float = 900.0
    start: float = 2100.0
    results: float | None = None
    stored_row: float = 4.0
    partial: float = 890.0
    cluster: float = 1.25
    exchange: float = 800.0
    exchanged: float = 22.0
    memory: float = 0.86
    unhidden: float = 0.05
    launch: float = 1.95e-6
    early_launch: float = 1.45e-6
    reduction: float = 1.9e-6


OTHERS = Constants()
IN_LINES = Constants(
    clock=1.1, efficiency=0.95, shared=1.17, row=1.61, outside=2.3, tile=1930.0, start=2500.0
)  # fmt: skip
WGRAD = Constants(cluster=1.3, tile=500.0, start=1800.0, reduction=1.3e-6)
ALONG = Constants(
    clock=1.11, efficiency=1.0, shared=1.17, row=1.2, outside=5.5, stage=136.0, piece=115.0,
    tile=2090.0, start=415.0, results=14.6, stored_row=2.56, partial=0.0, cluster=1.17, exchange=1960.0, exchanged=8.5,
    memory=0.965, unhidden=0.17, launch=0.66e-6, early_launch=0.78e-6, reduction=3.0e-6,
)  # fmt: skip
"""Forward and of the data, undivided, of whole rows of channels: fitted to 1900 tiles on an H200."""


def family(swaps: bool, lines: Lines, parts: int, row_bytes: int, is_wgrad: bool) -> Constants:
    """What the model was fitted to, of products of such operands."""
    if is_wgrad:
        return WGRAD
    if swaps:
        return ALONG
    if lines.taps > 1:
        return IN_LINES
    return ALONG if parts == 1 and row_bytes == STAGE_ROW else OTHERS
