"""The algorithms of OpenCL devices, best first."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.gpu.elementwise import build_elementwise
from jitdnn.kernels.gpu.reduce import build_reduction
from jitdnn.kernels.gpu.scan import build_scan
from jitdnn.kernels.gpu.table import PLAIN
from jitdnn.problems.problem import Problem

# (problem class, direction or None for problems that have only one)
ALGORITHMS: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    **PLAIN,
}

# kernels of one's own formulas
ELEMENTWISE = build_elementwise
REDUCTION = build_reduction
SCAN = build_scan
