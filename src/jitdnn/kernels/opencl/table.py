"""The algorithms of OpenCL devices, best first: the plain kernels."""

from __future__ import annotations

from jitdnn.kernels.gpu.table import ELEMENTWISE, IMAGE_TRANSFORM, MULTI_TENSOR, PLAIN, REDUCTION, ROWS, SCAN

__all__ = ["ALGORITHMS", "ELEMENTWISE", "IMAGE_TRANSFORM", "MULTI_TENSOR", "REDUCTION", "ROWS", "SCAN"]

ALGORITHMS = PLAIN
