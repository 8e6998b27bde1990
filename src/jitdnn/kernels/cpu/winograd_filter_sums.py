"""The sums over tiles of a filter's gradient: their contraction, and their way back to taps.

sums[place][row][lane] = sum over tiles of  a[place][tile][row] * b[place][tile][lane]
taps[row][tap][lane]   = rows of A^T @ sums @ columns of A
"""

from __future__ import annotations

from jitdnn.kernels.cpu.linear_map import apply_to_grid
from jitdnn.kernels.cpu.winograd_matrices import Matrix
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
    module: Module, name: str, dtype: str, matrices: tuple[Matrix, Matrix], vectors: int, lanes: int,
    plane: int, splits: int, split_size: int,
) -> Function:  # fmt: skip
    """Trace ``name(sums, taps, rows)``: sums [place][row][vector][lane] to taps [row][tap][vector][lane].

    ``plane`` is the distance of places; as many sets of sums as there are ``splits`` are added first, in order.
    """
    counts = [len(matrix) for matrix in matrices]
    places = [len(matrix[0]) for matrix in matrices]
    with module.function(name, sums=dtype, taps=dtype, rows=None) as (k, (sums, taps, rows), function):
        for row in k.range(rows):
            for j in k.range(vectors):
                source = sums + (row * vectors + j) * lanes

                totals = []
                for place in range(places[0] * places[1]):
                    total = source.load(place * plane, lanes)
                    for split in range(1, splits):
                        total = total + source.load(place * plane + split * split_size, lanes)
                    totals.append(total)
                grid = [totals[a * places[1] : (a + 1) * places[1]] for a in range(places[0])]
                target = taps + (row * (counts[0] * counts[1] * vectors) + j) * lanes
                for a, line in enumerate(apply_to_grid(k, matrices, grid)):
                    for b, value in enumerate(line):
                        target.store(value, (a * counts[1] + b) * (vectors * lanes))
    return function
