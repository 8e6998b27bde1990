"""The algorithms of OpenCL devices, best first: the plain kernels."""

from __future__ import annotations

from jitdnn.kernels.gpu.table import ELEMENTWISE, MULTI_TENSOR, PLAIN, REDUCTION, SCAN

__all__ = ["ALGORITHMS", "ELEMENTWISE", "MULTI_TENSOR", "REDUCTION", "SCAN"]

ALGORITHMS = PLAIN
