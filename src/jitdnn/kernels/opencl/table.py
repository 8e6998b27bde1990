"""The algorithms of OpenCL devices, best first: the plain kernels."""

from __future__ import annotations

from jitdnn.kernels.gpu.table import ELEMENTWISE, PLAIN, REDUCTION, SCAN

__all__ = ["ALGORITHMS", "ELEMENTWISE", "REDUCTION", "SCAN"]

ALGORITHMS = PLAIN
