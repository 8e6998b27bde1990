"""Convolution with long filters by fast Fourier transforms: products of spectra in place of sums over the taps.

    fwd         Y = sum over channels  conj(W) X
    bwd_data    X = sum over results   W Y
    bwd_filter  W = sum over images    conj(Y) X        modulo the length of the transform (overlap_save.py)

With T taps and transforms of L points an output costs about log2 L operations in place of T: it pays from some
hundred taps on, soonest for depthwise filters. Long signals are cut into overlapping blocks, so that memory stays
bounded. A stride leaves out results that were computed; a dilation puts zeros between the taps.

The transforms are SciPy's, large ones on as many threads as the device has; the arrays that they return, of some
MiB, are NumPy's own and not part of the workspace. The products of spectra are compiled (product.py). Every element of
a block takes part in every frequency: its rounding error, and an infinity or a NaN, spread over the whole block.
"""

from __future__ import annotations

import importlib.util
import math

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, KernelAlgorithm, PlannedKernel, storing_roundoff
from jitdnn.kernels.cpu.convolution.fft.cost import choose_plan, most_points, seconds
from jitdnn.kernels.cpu.convolution.fft.kernel import FftKernel
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import compute_dtype

FEWEST_TAPS = 32  # with fewer a sum is always faster


class Fft(KernelAlgorithm[Convolution, CpuDevice]):
    """All directions; see the module's text."""

    name = "fft"
    problem = Convolution
    takes_float8 = False

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.is_integer:
            return "sums of integers are exact: transforms round"
        taps = math.prod(problem.w.shape[2:])
        if taps < FEWEST_TAPS:
            return f"a filter has {taps} taps: with fewer than {FEWEST_TAPS} a transform is never faster"
        if importlib.util.find_spec("scipy") is None:
            return "its transforms are SciPy's, which is not installed: pip install scipy"
        return None

    def plan(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = choose_plan(problem, device.isa.processor)
        return PlannedKernel(plan.workspace, seconds(plan, device), lambda: FftKernel(plan, device, epilogue))

    def error_of(self, problem: Convolution) -> float:
        """Transforms of length L round like sums of log2 L terms, whatever the number of taps.

        L is the longest that is chosen for any processor.
        """
        stored, computing = storing_roundoff(problem), UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        depth = math.log2(max(2, most_points(problem)))
        return (2.0 * stored if stored > computing else 0.0) + computing * (8.0 + 2.0 * depth)

    def spreads_to(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        return "all results of the transforms that it enters, whole blocks of the image"
