"""Convolution with long filters by fast Fourier transforms: products of spectra in place of sums over the taps.

All directions. A thread block has whole transforms of pieces of images, the spectra of its filters and the products in
registers and shared memory: about 50 operations a point and transform in place of two a tap. A depthwise convolution
reads its tensors once, except for what pieces share, and the floor is their bytes from some hundred taps on. With
several channels in a group each result transforms all of them anew, which pays from some hundred to a thousand taps on.
"""

from __future__ import annotations

from math import log2, prod, sqrt
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Epilogue,
    KernelAlgorithm,
    PlannedKernel,
    storing_roundoff,
    terms,
)
from jitdnn.kernels.gpu.convolution.fft.code import build
from jitdnn.kernels.gpu.convolution.fft.plan import (
    POINTS,
    Plan,
    plan_of,
    product_plan_of,
    product_seconds,
    refuse_shape,
    seconds,
)
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import compute_dtype

FEWEST_TAPS = 32  # with fewer a sum is always faster


class Fft(KernelAlgorithm[Convolution, GpuDevice]):
    """Long filters by fast Fourier transforms of pieces of images, within a thread block: all directions."""

    name = "fft"
    problem = Convolution
    takes_float8 = False
    is_prepared: ClassVar[bool] = False
    fewest_of_sums: ClassVar[int] = 128
    """Taps where channels meet, with fewer of which a sum is always faster."""

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        taps, fewest = prod(problem.filter_spatial), FEWEST_TAPS
        if problem.groups < max(problem.c, problem.k):
            fewest = self.fewest_of_sums
        if taps < fewest:
            return f"a filter has {taps} taps: with fewer than {fewest} a transform is never faster"
        reason = refuse_shape(problem)
        if reason:
            return reason
        if epilogue is not None and problem.direction == "bwd_filter":
            return "a filter's gradient takes no epilogue: apply it to the result"
        if self.found(problem, device) is not None:
            return None
        if self.is_prepared and Fft().found(problem, device) is not None:
            return "no result is a sum over channels or parts of its filter, whose spectrum stays in the thread block"
        taps_and_gaps = zip(problem.filter_spatial, problem.dilation, strict=True)
        spans = tuple((taps - 1) * dilation + 1 for taps, dilation in taps_and_gaps)
        return (
            f"the taps reach over {spans} points: with the lines between them they do not fit a transform of "
            f"{POINTS[-1]} points, or of as many as shared memory holds"
        )

    def found(self, problem: Convolution, device: GpuDevice) -> Plan | None:
        """The sizes, if there are any."""
        return plan_of(problem, device.facts, self.is_prepared, device.max_threads)

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = self.found(problem, device)
        assert plan is not None
        return PlannedKernel(plan.workspace, self.time(plan, device), lambda: build(plan, device, epilogue))

    def time(self, plan: Plan, device: GpuDevice) -> float:
        """Seconds that a call should take."""
        return seconds(plan, device.facts)

    def error_of(self, problem: Convolution) -> float:
        """Transforms round like sums of log2(points) terms, whatever the number of taps; then spectra are added up."""
        stored, computing = storing_roundoff(problem), UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        added = max(1, terms(problem) // POINTS[0] + max(problem.c, problem.k) // problem.groups)
        rounding = 2.0 * stored if stored > computing else 0.0
        return rounding + computing * (5.0 + 0.75 * log2(POINTS[-1]) + sqrt(added))

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return "all results of the transforms that it enters, of two pieces of the images"


class FftOfSpectra(Fft):
    """Sums over channels, or over parts of long filters, whose filters are transformed once, into the workspace."""

    name = "fft_spectra"
    is_prepared = True

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "the filter's gradient reads no filter"
        return super().refusal(problem, device, epilogue)


class FftOfProducts(Fft):
    """Spectra of both operands in the workspace, channels by products of matrices: each number is transformed once."""

    name = "fft_products"
    fewest_of_sums = 49

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.groups == problem.c == problem.k:
            return "each filter meets one channel: fft transforms nothing twice"
        return super().refusal(problem, device, epilogue)

    def found(self, problem: Convolution, device: GpuDevice) -> Plan | None:
        return product_plan_of(problem, device.facts, device.max_threads)

    def time(self, plan: Plan, device: GpuDevice) -> float:
        return product_seconds(plan, device.facts)

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return "all results of two pieces of the images, in all channels that meet it"
