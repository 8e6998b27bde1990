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
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Algorithm,
    Device,
    Epilogue,
    Kernel,
    storing_roundoff,
)
from jitdnn.kernels.cpu.convolution.fft.cost import choose_plan, most_points, seconds
from jitdnn.kernels.cpu.convolution.fft.kernel import FftKernel
from jitdnn.kernels.cpu.convolution.fft.plan import FftPlan
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import compute_dtype

FEWEST_TAPS = 32  # with fewer a sum is always faster


class Fft(Algorithm):
    """All directions; see the module's text."""

    name = "fft"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.is_integer:
            return "sums of integers are exact: transforms round"
        taps = math.prod(problem.w.shape[2:])
        if taps < FEWEST_TAPS:
            return f"a filter has {taps} taps: with fewer than {FEWEST_TAPS} a transform is never faster"
        if importlib.util.find_spec("scipy") is None:
            return "its transforms are SciPy's, which is not installed: pip install scipy"
        return None

    def _plan(self, problem: Problem, device: Device) -> FftPlan:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return choose_plan(problem, device.isa.processor)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self._plan(problem, device).workspace

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        return seconds(self._plan(problem, device), device)

    def error_bound(self, problem: Problem) -> float:
        """Transforms of length L round like sums of log2 L terms, whatever the number of taps.

        L is the longest that is chosen for any processor.
        """
        assert isinstance(problem, Convolution)
        stored, computing = storing_roundoff(problem), UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        depth = math.log2(max(2, most_points(problem)))
        return (2.0 * stored if stored > computing else 0.0) + computing * (8.0 + 2.0 * depth)

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "all results of the transforms that it enters, whole blocks of the image"

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        return FftKernel(self._plan(problem, device), device, epilogue)
