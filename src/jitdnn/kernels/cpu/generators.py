"""The generators of kernels of one's own formulas for the CPU: element by element, reduced, results so far."""

from __future__ import annotations

from functools import partial

from jitdnn.kernels.cpu.elementwise.generator import build_elementwise
from jitdnn.kernels.cpu.reduction.generator import RowLoops
from jitdnn.kernels.cpu.reduction.scan import build_scan
from jitdnn.kernels.formulas.reduce import build_reduction

ELEMENTWISE = build_elementwise
REDUCTION = partial(build_reduction, RowLoops())
SCAN = build_scan
