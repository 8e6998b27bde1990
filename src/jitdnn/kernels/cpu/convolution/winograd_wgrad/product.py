"""The sums over tiles of a filter's gradient: their contraction, and their way back to taps.

sums[place][row][lane] = sum over tiles of  a[place][tile][row] * b[place][tile][lane]
taps[row][tap][lane]   = rows of A^T @ sums @ columns of A
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import FilterAxis
from jitdnn.kernels.cpu.microkernel.constant_matrix import apply_to_grid
from jitdnn.rtcg.builder import Function, Module


def trace_tile_sums(
    module: Module, name: str, dtype: str, rows: int, vectors: int, lanes: int, pitch: int
) -> Function:
    """Trace ``name(a, b, sums, tiles, carried)``: a tile of ``rows`` by ``vectors`` sums, in registers.

    a is [tile][lanes] of which the first ``rows`` count, b is [vector][tile][lanes] with ``pitch`` elements from vector
    to vector. ``sums``, [row][vector][lane], are added to if ``carried`` is not 0: when the tiles have been summed, as
    rounding errors grow with the partial sums.
    """
    with module.function(name, a=dtype, b=dtype, sums=dtype, tiles=None, carried=None) as (
        k, (a, b, sums, tiles, carried), function,
    ):  # fmt: skip
        zero = k.constant(0, dtype, lanes)
        totals = [[k.register(zero) for _ in range(vectors)] for _ in range(rows)]
        for t in k.range(0, tiles * lanes, lanes):
            columns = [b.load(t + j * pitch, lanes) for j in range(vectors)]
            for i, row in enumerate(totals):
                factor = a.splat(t + i, lanes)
                for column, total in zip(columns, row, strict=True):
                    total.set(k.fma(factor, column, total.get()))
        with k.when(carried != 0):
            for i, row in enumerate(totals):
                for j, total in enumerate(row):
                    total += sums.load((i * vectors + j) * lanes, lanes)
        for i, row in enumerate(totals):
            for j, total in enumerate(row):
                sums.store(total.get(), (i * vectors + j) * lanes)
    return function


def trace_taps(
    module: Module, name: str, dtype: str, axes: Sequence[FilterAxis], vectors: int, lanes: int, plane: int,
    pitch: int, splits: int, split_size: int,
) -> Function:  # fmt: skip
    """Trace ``name(sums, taps, rows, h, w)``: sums [place][row][vector][lane] to the taps of a part.

    ``taps`` points to the part's first one in [row][tap of the filter][vector][lane], with ``pitch`` taps to a row; the
    part has ``h`` by ``w`` of them along ``axes``. ``plane`` is the distance of places; as many sets of sums as there
    are ``splits`` are added first, in order.
    """
    columns = axes[1].axis.taps.count
    steps = axes[0].tap_step * columns * vectors * lanes, axes[1].tap_step * vectors * lanes
    matrices = axes[0].filtering.result, axes[1].filtering.result
    with module.function(name, sums=dtype, taps=dtype, rows=None, h=None, w=None) as (
        k, (sums, taps, rows, h, w), function,
    ):  # fmt: skip
        for row in k.range(rows):
            for j in k.range(vectors):
                source = sums + (row * vectors + j) * lanes
                totals = []
                for place in range(axes[0].places * axes[1].places):
                    total = source.load(place * plane, lanes)
                    for split in range(1, splits):
                        total = total + source.load(place * plane + split * split_size, lanes)
                    totals.append(total)
                grid = [totals[at : at + axes[1].places] for at in range(0, len(totals), axes[1].places)]
                target = taps + (row * (pitch * vectors) + j) * lanes
                for a, line in enumerate(apply_to_grid(k, matrices, grid)):
                    for b, value in enumerate(line):
                        with k.when((h > a) & (w > b)):
                            target.store(value, a * steps[0] + b * steps[1])
    return function
