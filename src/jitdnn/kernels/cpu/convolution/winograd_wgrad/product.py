"""The products of a filter's gradient by minimal filtering, and their way back to taps.

    sums[point][row][lane] = sum over tiles of  a[point][tile][row] * b[point][tile][lane]
    taps[row][tap][lane]   = A^T sums A

The micro-kernel is not microkernel/gemm.py: here a sum begins with zero and is added to the one that is carried when it
is complete, for rounding errors grow with the partial sums; gemm.py adds to what it has loaded first. Nor is it
winograd/product.py, whose rows are as far apart as tiles and whose loops are over subfilters and channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.cpu.convolution.winograd_wgrad.axes import WgradAxis
from jitdnn.kernels.cpu.microkernel.constant_matrix import apply_to_grid
from jitdnn.rtcg.builder import Function, Module


def trace_product(
    module: Module, name: str, dtype: str, rows: int, vectors: int, lanes: int, pitch: int
) -> Function:
    """Trace ``name(a, b, sums, tiles, carried)``: a register tile of ``rows`` by ``vectors``.

    a is [tile][lanes] of which the first ``rows`` count, b is [vector][tile][lanes] with ``pitch`` elements from vector
    to vector. ``sums``, [row][vector][lane], are added to if ``carried`` is not 0.
    """
    with module.function(name, a=dtype, b=dtype, sums=dtype, tiles=None, carried=None) as (
        k, (a, b, sums, tiles, carried), function,
    ):  # fmt: skip
        zero = k.constant(0, dtype, lanes)
        totals = [[k.register(zero) for _ in range(vectors)] for _ in range(rows)]
        for t in k.range(0, tiles * lanes, lanes):
            columns = [b.load(t + j * pitch, lanes) for j in range(vectors)]
            for i, row in enumerate(totals):
                broadcast = a.splat(t + i, lanes)
                for column, total in zip(columns, row, strict=True):
                    total.set(k.fma(broadcast, column, total.get()))
        with k.when(carried != 0):
            for i, row in enumerate(totals):
                for j, total in enumerate(row):
                    total += sums.load((i * vectors + j) * lanes, lanes)
        for i, row in enumerate(totals):
            for j, total in enumerate(row):
                sums.store(total.get(), (i * vectors + j) * lanes)
    return function


def trace_inverse_transform(
    module: Module, name: str, dtype: str, axes: Sequence[WgradAxis], vectors: int, lanes: int, point_pitch: int,
    filter_taps: int, split_k: int, sums_size: int,
) -> Function:  # fmt: skip
    """Trace ``name(sums, taps, rows, h, w)``: sums [point][row][vector][lane] to the taps of a subfilter.

    ``taps`` points to its first one in [row][tap of the filter][vector][lane], with ``filter_taps`` taps to a row; it
    has ``h`` by ``w`` taps on ``axes``. Points are ``point_pitch`` elements apart; ``split_k`` sets of sums,
    ``sums_size`` elements apart, are added first, in order.
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
                for point in range(axes[0].alpha * axes[1].alpha):
                    total = source.load(point * point_pitch, lanes)
                    for split in range(1, split_k):
                        total = total + source.load(point * point_pitch + split * sums_size, lanes)
                    totals.append(total)
                grid = [totals[at : at + axes[1].alpha] for at in range(0, len(totals), axes[1].alpha)]
                target = taps + (row * (filter_taps * vectors) + j) * lanes
                for a, line in enumerate(apply_to_grid(k, matrices, grid)):
                    for b, value in enumerate(line):
                        with k.when((h > a) & (w > b)):
                            target.store(value, a * steps[0] + b * steps[1])
    return function
