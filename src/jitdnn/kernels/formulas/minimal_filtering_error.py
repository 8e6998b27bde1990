"""How exact minimal filtering is: what processors and GPUs declare of it.

The error of a result, relative to the norm of all, is that of its sums over channels and subfilters, times a growth for
each tiled axis by the transforms to points and back. Measured with the points of minimal_filtering.py, 16 to 1024
channels, and data that are normal, positive or half zeros; normal data, whose products cancel the most, have the
largest errors.
"""

from __future__ import annotations

from math import sqrt

# growth of the error by alpha; and by (m, r) where that differs
_GROWTH = {1: 1.0, 2: 1.2, 3: 1.45, 4: 1.4, 5: 2.4, 6: 2.65, 7: 4.7, 8: 5.6}
_GROWTH_OF = {(4, 3): 2.4, (3, 4): 2.4, (3, 5): 4.3, (4, 4): 4.3, (4, 5): 4.9, (3, 6): 4.9}
SUM_ERROR = 0.27
"""Unit roundoffs for the square root of the number of terms."""
LEAST = 0.45
"""Growth times that, at the least."""
_MARGIN = 1.35


def growth_of(m: int, r: int) -> float:
    """By how much F(m, r) along an axis multiplies the error of a sum."""
    return _GROWTH_OF.get((m, r), _GROWTH[m + r - 1])


def roundings(growth: float, terms: int) -> float:
    """The error of sums of so many terms, in unit roundoffs of the arithmetic; `growth` that of all axes together."""
    root = sqrt(terms)
    # few products do not average out what the transforms round, the more so without fused multiply-adds
    return 2.0 + _MARGIN * growth * (root + 1.2 + 0.8 / root)
