"""Depthwise convolutions on CUDA, each channel filtered alone, in all three directions.

`depthwise_sliding` slides a window of rows through registers and multiplies on the CUDA cores: few taps, any stride,
dilation and layout. `depthwise_banded` multiplies by banded matrices on the tensor cores: half precision, channels
last, stride 1, filters of any width.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Epilogue, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.convolution.depthwise import (
    banded_code,
    banded_cost,
    geometry,
    sliding_code,
    sliding_cost,
)
from jitdnn.kernels.cuda.convolution.depthwise.banded_plan import Banded, BandedWgrad
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import Sliding, SlidingWgrad
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.problems.convolution import Convolution

Plan = Sliding | SlidingWgrad | Banded
_AnyPlan = TypeVar("_AnyPlan", Sliding, SlidingWgrad, Banded, BandedWgrad)


class _Depthwise(KernelAlgorithm[Convolution, GpuDevice]):
    """What the methods share: the plan that their model finds cheapest."""

    problem = Convolution
    takes_float8 = False
    too_large: ClassVar[str]
    """The refusal of filters for which no tile fits; {taps} are their extents."""
    spreads_results: ClassVar[str | None] = None
    """Which results a NaN reaches in fprop and dgrad."""

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if epilogue is not None and problem.direction == "bwd_filter":
            return "a filter's gradient takes no epilogue: apply it to the result"
        if reason := geometry.refuse(problem) or self._refuse(problem):
            return reason
        if self.sizes(problem, device) is None:
            return self.too_large.format(taps="x".join(map(str, problem.filter_spatial)))
        return None

    @abstractmethod
    def _refuse(self, problem: Convolution) -> str | None:
        """Which constraint of this method alone fails."""

    @abstractmethod
    def sizes(self, problem: Convolution, device: GpuDevice) -> Any:
        """The plan for a problem that has a window; None if no tile fits."""

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = self.sizes(problem, device)
        workspace = int(getattr(plan, "workspace", 0))
        return PlannedKernel(workspace, _seconds(plan, device), lambda: _kernel(plan, device, epilogue))

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "other taps, where the tiles of dy end beyond it and are filled with zeros"
        return self.spreads_results


class DepthwiseSliding(_Depthwise):
    """See the module's text."""

    name = "depthwise_sliding"
    version: ClassVar[int] = 2
    too_large = "the sums of {taps} taps do not fit into registers: up to about 7x7 or 3x3x3 do"

    def _refuse(self, problem: Convolution) -> str | None:
        if problem.direction == "bwd_data" and problem.k != problem.c:
            return f"backward to the data it takes one result of each channel, not {problem.k // problem.c}"
        return None

    def sizes(self, problem: Convolution, device: GpuDevice) -> Any:
        return _sliding(problem, device)


class DepthwiseBanded(_Depthwise):
    """See the module's text."""

    name = "depthwise_banded"
    too_large = "the rows that {taps} taps reach do not fit into the shared memory of a multiprocessor"
    spreads_results = "results up to 15 columns away, at the zeros of its banded matrices"

    def _refuse(self, problem: Convolution) -> str | None:
        return banded_cost.refuse(geometry.lower(problem))

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        if geometry.refuse(problem) or self._refuse(problem):
            return 0.0
        return banded_cost.least_seconds(geometry.lower(problem), device)

    def sizes(self, problem: Convolution, device: GpuDevice) -> Any:
        return _banded(problem, device)


@functools.lru_cache(4096)
def _banded(problem: Convolution, device: GpuDevice) -> Banded | None:
    window = geometry.lower(problem)
    if problem.direction == "bwd_filter":
        return _cheapest(banded_cost.wgrad_candidates(window, device), device)
    return banded_cost.cheapest(window, device)


@functools.lru_cache(4096)
def _sliding(problem: Convolution, device: GpuDevice) -> Sliding | SlidingWgrad | None:
    window = geometry.lower(problem)
    if problem.direction == "bwd_filter":
        return sliding_cost.cheapest_wgrad(window, device)
    return sliding_cost.cheapest(window, device)


def _cheapest(found: Sequence[_AnyPlan], device: GpuDevice) -> _AnyPlan | None:
    return min(found, key=lambda plan: _seconds(plan, device), default=None)


def _seconds(plan: Plan, device: GpuDevice) -> float:
    if isinstance(plan, Banded):
        return banded_cost.seconds(plan, device)
    return sliding_cost.seconds(plan, device)


def _kernel(plan: Plan, device: GpuDevice, epilogue: Epilogue | None) -> GpuKernel | ByAddress:
    pointers = 3 + (len(epilogue.operands) if epilogue else 0)

    def kernel(is_aligned: bool) -> GpuKernel:
        if isinstance(plan, SlidingWgrad):
            source, launches, numbers = sliding_code.wgrad_launch(plan, is_aligned)
        elif isinstance(plan, Sliding):
            source, launches, numbers = sliding_code.launch(plan, epilogue, is_aligned)
        elif isinstance(plan, BandedWgrad):
            source, launches, numbers = banded_code.wgrad_launch(plan)
        else:
            source, launches, numbers = banded_code.launch(plan, epilogue)
        return device.kernel(source, launches, pointers, numbers)

    if isinstance(plan, Banded):
        return kernel(True)
    # both in one kernel would take the compiler twice as long
    alignments = sliding_code.alignments(plan)
    if max(alignments) == plan.element:
        return kernel(True)
    return ByAddress(kernel(True), lambda: kernel(False), alignments)
