"""Winograd's minimal filtering F(m, r): the three matrices of an algorithm, from its points, in exact rationals.

m neighbouring results of a correlation with r taps are read off a polynomial product that is evaluated at
alpha = m + r - 1 points, those given and infinity, so alpha multiplications do where m * r are written:

    y = A^T ((G w) * (B^T x))      y: m results, w: r taps, x: alpha elements of the data

It is the transposed form of Toom and Cook's multiplication: Winograd, Arithmetic Complexity of Computations (1980);
for convolutions Lavin and Gray (2016), https://arxiv.org/abs/1509.09308.

Which points are taken decides how large the rounding errors are. Fractions that lie about as far from each other as
from zero, in pairs of opposite sign, do several times better than small integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TypeVar

Row = Sequence[Fraction]
V = TypeVar("V")
Matrix = tuple[tuple[Fraction, ...], ...]

# the finite points for each alpha; opposite ones follow each other
_POINTS: dict[int, tuple[str, ...]] = {
    1: (),
    2: ("0",),
    3: ("0", "1"),
    4: ("0", "1", "-1"),
    5: ("0", "3/4", "-3/4", "3/2"),
    6: ("0", "3/4", "-3/4", "3/2", "-3/2"),
    7: ("0", "1/2", "-1/2", "1", "-1", "2"),
    8: ("0", "1/2", "-1/2", "1", "-1", "2", "-2"),
}
MAX_ALPHA = max(_POINTS)


@dataclass(frozen=True)
class MinimalFiltering:
    """F(m, r): ``m`` results of ``r`` taps by ``alpha`` multiplications.

    ``result`` is A^T [m, alpha], ``filter`` is G [alpha, r], ``data`` is B^T [alpha, alpha].
    """

    m: int
    r: int
    result: Matrix
    filter: Matrix
    data: Matrix


@cache
def minimal_filtering(m: int, r: int) -> MinimalFiltering:
    """F(m, r) over the points that suit its alpha, which is at most ``MAX_ALPHA``."""
    return from_points(m, r, [Fraction(point) for point in _POINTS[m + r - 1]])


def from_points(m: int, r: int, points: Sequence[Fraction]) -> MinimalFiltering:
    """F(m, r) over alpha - 1 distinct finite points and infinity."""
    alpha = m + r - 1
    if len(points) != alpha - 1 or len(set(points)) != len(points):
        raise ValueError(f"F({m}, {r}) takes {alpha - 1} different points, not {list(points)}")
    result = [[*(p**i for p in points), _one_if(i == m - 1)] for i in range(m)]
    filters, data = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        filters.append([p**i / scale for i in range(r)])
        data.append([*_polynomial(others), Fraction(0)])
    filters.append([_one_if(i == r - 1) for i in range(r)])
    data.append(_polynomial(points))
    return MinimalFiltering(m, r, _frozen(result), _frozen(filters), _frozen(data))


def reaches_beyond(result: Matrix, data: Matrix, r: int) -> bool:
    """Whether a datum enters results that have no tap for it: its terms cancel there, unless it is NaN or infinite.

    ``result`` is A^T, ``data`` B^T; result i reads the data i to i + ``r`` - 1.
    """
    return any(
        row[point] and coefficient and not i <= j < i + r
        for i, row in enumerate(result)
        for point, of_point in enumerate(data)
        for j, coefficient in enumerate(of_point)
    )


def opposite_row(matrix: Matrix, a: int) -> tuple[int, bool] | None:
    """A later row that equals row ``a`` except for the signs of its odd (True) or even coefficients."""
    row = matrix[a]
    if not any(row[0::2]) or not any(row[1::2]):
        return None
    for b in range(a + 1, len(matrix)):
        for is_even in (True, False):
            sign = 1 if is_even else -1
            if all(
                other == sign * (-1) ** j * own
                for j, (own, other) in enumerate(zip(row, matrix[b], strict=True))
            ):
                return b, is_even
    return None


def opposite_columns(matrix: Matrix) -> list[tuple[int, int]]:
    """Pairs of columns that differ only in the signs of every second row."""
    if len(matrix) < 2:
        return []
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    columns = list(zip(*matrix, strict=True))
    for a, column in enumerate(columns):
        if a in taken or not any(column[1::2]) or not any(column[0::2]):
            continue
        for b in range(a + 1, len(columns)):
            if b not in taken and all(
                o == (-1) ** i * c for i, (c, o) in enumerate(zip(column, columns[b], strict=True))
            ):
                pairs.append((a, b))
                taken |= {a, b}
                break
    return pairs


def times(
    matrix: Matrix,
    values: Sequence[V],
    dot: Callable[[Row, Sequence[V]], V],
    add: Callable[[V, V], V],
    subtract: Callable[[V, V], V],
) -> list[V]:
    """matrix @ values in few operations, which `dot` (of a row), `add` and `subtract` write down.

    Rows that belong to opposite points (p and -p) differ only in the sign of every second coefficient: their even and
    odd parts are computed once, then added and subtracted. Columns of opposite points are added and subtracted first.
    """
    pairs = opposite_columns(matrix)
    if pairs:
        sums = {a: (add(values[a], values[b]), subtract(values[a], values[b])) for a, b in pairs}
        seconds = {b for _, b in pairs}
        kept = [j for j in range(len(values)) if j not in seconds]
        return [
            dot([row[j] for j in kept], [sums[j][i % 2] if j in sums else values[j] for j in kept])
            for i, row in enumerate(matrix)
        ]
    results: dict[int, V] = {}
    for a, row in enumerate(matrix):
        if a in results:
            continue
        opposite = opposite_row(matrix, a)
        if opposite is None:
            results[a] = dot(row, values)
            continue
        b, is_even = opposite
        even, odd = dot(row[0::2], values[0::2]), dot(row[1::2], values[1::2])
        results[a] = add(even, odd)
        results[b] = subtract(even, odd) if is_even else subtract(odd, even)
    return [results[a] for a in range(len(matrix))]


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the product of (x - root)."""
    coefficients = [Fraction(1)]
    for root in roots:
        lower = [-root * c for c in coefficients] + [Fraction(0)]
        higher = [Fraction(0), *coefficients]
        coefficients = [a + b for a, b in zip(lower, higher, strict=True)]
    return coefficients


def _one_if(condition: bool) -> Fraction:
    return Fraction(int(condition))


def _frozen(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)
