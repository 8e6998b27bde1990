"""Winograd's minimal filtering F(m, r): the three matrices of an algorithm, from its points, in exact rationals.

m neighbouring results of a correlation with r taps are read off a polynomial product that is evaluated at
alpha = m + r - 1 places, the given points and infinity, so alpha multiplications do where m * r are written:

    y = A^T ((G w) * (B^T x))      y: m results, w: r taps, x: alpha elements of the data

It is the transposed form of Toom and Cook's multiplication: WinogradPlan, Arithmetic Complexity of Computations (1980);
for convolutions Lavin and Gray (2016), https://arxiv.org/abs/1509.09308.

Which points are taken decides how large the rounding errors are. Fractions that lie about as far from each other as
from zero, in pairs of opposite sign, do several times better than small whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from jitdnn.kernels.cpu.microkernel.constant_matrix import Matrix

# the finite points for each number of places; opposite ones follow each other
_POINTS: dict[int, tuple[str, ...]] = {
    2: ("0",),
    3: ("0", "1"),
    4: ("0", "1", "-1"),
    5: ("0", "3/4", "-3/4", "3/2"),
    6: ("0", "3/4", "-3/4", "3/2", "-3/2"),
    7: ("0", "1/2", "-1/2", "1", "-1", "2"),
    8: ("0", "1/2", "-1/2", "1", "-1", "2", "-2"),
}
MOST_PLACES = max(_POINTS)


@dataclass(frozen=True)
class MinimalFiltering:
    """F(m, r): ``outputs`` results of ``taps`` taps by ``places`` multiplications.

    ``result`` is A^T [outputs, places], ``filter`` is G [places, taps], ``data`` is B^T [places, places].
    """

    outputs: int
    taps: int
    result: Matrix
    filter: Matrix
    data: Matrix

    @property
    def places(self) -> int:
        return self.outputs + self.taps - 1


@cache
def minimal_filtering(outputs: int, taps: int) -> MinimalFiltering:
    """F(outputs, taps) over the points that suit its number of places, at most ``MOST_PLACES``."""
    return from_points(outputs, taps, [Fraction(point) for point in _POINTS[outputs + taps - 1]])


def from_points(outputs: int, taps: int, points: Sequence[Fraction]) -> MinimalFiltering:
    """F(outputs, taps) over distinct finite points, one fewer than there are places, and infinity."""
    places = outputs + taps - 1
    if len(points) != places - 1 or len(set(points)) != len(points):
        raise ValueError(f"F({outputs}, {taps}) takes {places - 1} different points, not {list(points)}")
    result = [[*(p**i for p in points), _one_if(i == outputs - 1)] for i in range(outputs)]
    filters, data = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        filters.append([p**i / scale for i in range(taps)])
        data.append([*_polynomial(others), Fraction(0)])
    filters.append([_one_if(i == taps - 1) for i in range(taps)])
    data.append(_polynomial(points))
    return MinimalFiltering(outputs, taps, _frozen(result), _frozen(filters), _frozen(data))


def reaches_beyond(result: Matrix, data: Matrix, taps: int) -> bool:
    """Whether a datum enters results that have no tap for it: its terms cancel there, unless it is NaN or infinite.

    ``result`` is A^T, ``data`` B^T; result i reads the data i to i + ``taps`` - 1.
    """
    return any(
        row[place] and coefficient and not i <= j < i + taps
        for i, row in enumerate(result)
        for place, of_place in enumerate(data)
        for j, coefficient in enumerate(of_place)
    )


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
