"""Constant matrices times vectors of registers, in few multiply-adds."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial

from jitdnn.kernels.formulas.minimal_filtering import Matrix, Row, opposite_columns, opposite_row, times
from jitdnn.retention import Recent
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.types import constant_of

Values = Sequence[Value]


def apply(k: Builder, matrix: Matrix, values: Values) -> list[Value]:
    """matrix @ values; rows or columns of opposite points share their products."""
    return times(matrix, values, partial(_dot, k), operator.add, operator.sub)


def apply_to_grid(k: Builder, matrices: Sequence[Matrix], grid: Sequence[Values]) -> list[list[Value]]:
    """rows @ grid @ columns^T for ``matrices`` (rows, columns); ``grid`` is a sequence of rows."""
    rows, columns = matrices
    down = [apply(k, rows, [line[j] for line in grid]) for j in range(len(grid[0]))]
    return [apply(k, columns, [down[j][i] for j in range(len(down))]) for i in range(len(rows))]


def operations(matrix: Matrix) -> int:
    """About how many arithmetic instructions ``apply`` takes."""
    # called thousands of times for few matrices: a key of their fractions would take as long to hash as the counting
    known = _operations.recall(id(matrix))
    if known is None or known[0] is not matrix:
        known = _operations.put(id(matrix), (matrix, _count_operations(matrix)))
    return known[1]


def grid_operations(rows: Matrix, columns: Matrix) -> int:
    """Vector operations of rows @ grid @ columns^T, which is how a tile is transformed."""
    return operations(rows) * len(columns[0]) + operations(columns) * len(rows)


_operations: Recent[int, tuple[Matrix, int]] = Recent(1024)


def _count_operations(matrix: Matrix) -> int:
    pairs = opposite_columns(matrix)
    if pairs:
        return 2 * len(pairs) + sum(
            sum(1 for j, c in enumerate(row) if c and j not in {b for _, b in pairs}) for row in matrix
        )
    count, done = 0, set[int]()
    for a, row in enumerate(matrix):
        if a not in done:
            b = opposite_row(matrix, a)
            done |= {a} if b is None else {a, b[0]}
            count += sum(1 for c in row if c) + (2 if b is not None else 0)
    return count


def _dot(k: Builder, row: Row, values: Values) -> Value:
    """The sum of coefficient times value; a coefficient of 1 comes first, and values of 1 and -1 take no product."""
    terms = sorted(
        ((c, v) for c, v in zip(row, values, strict=True) if c),
        key=lambda term: (abs(term[0]) != 1, term[0] < 0),
    )
    if not terms:
        return values[0] * 0.0
    (first, value), *rest = terms
    total = value if first == 1 else value * float(first)
    for coefficient, value in rest:
        if abs(coefficient) == 1:
            total = total + value if coefficient == 1 else total - value
        else:
            factor = Value(k, constant_of(value.v.type, float(coefficient)))
            total = k.fma(value, factor, total)
    return total
