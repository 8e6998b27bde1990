"""The operations of the fuzzer, a module for each family."""

from __future__ import annotations

from fuzz.kernels import products
from fuzz.kernels import rows as kernels_over_rows
from fuzz.operations import (
    calls,
    convolution,
    copies,
    losses,
    norms,
    pointwise,
    rows,
    sequences,
    spatial,
    windows,
)
from fuzz.problem import OPERATIONS

__all__ = [
    "OPERATIONS",
    "calls",
    "convolution",
    "copies",
    "kernels_over_rows",
    "losses",
    "norms",
    "pointwise",
    "products",
    "rows",
    "sequences",
    "spatial",
    "windows",
]
