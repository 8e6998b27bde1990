"""Depthwise convolutions on CUDA: each channel is filtered alone, in all three directions.

`depthwise_sliding` lets rows slide through registers and multiplies on the CUDA cores: few taps, any stride,
dilation and layout. `depthwise_banded` multiplies by banded matrices on the tensor cores: half precision, channels
last, stride 1, filters of any width.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

from jitdnn.devices.gpu import GpuDevice, Launch, Source
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cuda.convolution.depthwise import (
    banded_code,
    banded_cost,
    geometry,
    sliding_code,
    sliding_cost,
)
from jitdnn.kernels.cuda.convolution.depthwise.banded_plan import Banded, BandedWgrad
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import Sliding, SlidingWgrad
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

Plan = Sliding | SlidingWgrad | Banded
_AnyPlan = TypeVar("_AnyPlan", Sliding, SlidingWgrad, Banded, BandedWgrad)


class _Depthwise(Algorithm):
    """What the methods share: the plan that their model finds cheapest."""

    problem = Convolution
    deterministic = True

    def plan(self, problem: Problem, device: Any) -> Any:
        """The plan for a problem that has a window; None if no tile fits."""
        raise NotImplementedError

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return int(getattr(self.plan(problem, device), "workspace", 0))

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return _seconds(self.plan(problem, device), device)  # type: ignore[arg-type]

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        source, launches = _launch(self.plan(problem, device), epilogue)
        operands = len(epilogue.operands) if epilogue else 0
        kernel: Kernel = device.kernel(source, launches, pointers=3 + operands)  # type: ignore[attr-defined]
        return kernel


class DepthwiseSliding(_Depthwise):
    """See the module's text."""

    name = "depthwise_sliding"

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if epilogue is not None and problem.direction == "bwd_filter":
            return "a filter's gradient takes no epilogue: apply it to the result"
        if reason := geometry.refuse(problem):
            return reason
        if problem.direction == "bwd_data" and problem.k != problem.c:
            return f"backward to the data it takes one result of each channel, not {problem.k // problem.c}"
        if self.plan(problem, device) is None:
            taps = "x".join(map(str, problem.filter_spatial))
            return f"the sums of {taps} taps do not fit into registers: up to about 7x7 or 3x3x3 do"
        return None

    def plan(self, problem: Problem, device: Any) -> Any:
        return _sliding(problem, device)

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter":
            return "other taps, where the tiles of dy end beyond it and are filled with zeros"
        return None


class DepthwiseBanded(_Depthwise):
    """See the module's text."""

    name = "depthwise_banded"

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if epilogue is not None and problem.direction == "bwd_filter":
            return "a filter's gradient takes no epilogue: apply it to the result"
        if reason := geometry.refuse(problem) or banded_cost.refuse(geometry.lower(problem)):
            return reason
        if self.plan(problem, device) is None:
            taps = "x".join(map(str, problem.filter_spatial))
            return f"the rows that {taps} taps reach do not fit into the shared memory of a multiprocessor"
        return None

    def plan(self, problem: Problem, device: Any) -> Any:
        return _banded(problem, device)

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter":
            return "other taps, where the tiles of dy end beyond it and are filled with zeros"
        return "results up to 15 columns away, at the zeros of its banded matrices"


@functools.lru_cache(4096)
def _banded(problem: Convolution, device: GpuDevice) -> Banded | None:
    window = geometry.lower(problem)
    if problem.direction == "bwd_filter":
        return _cheapest(banded_cost.wgrad_candidates(window, device), device)
    return _cheapest(banded_cost.candidates(window, device), device)


@functools.lru_cache(4096)
def _sliding(problem: Convolution, device: GpuDevice) -> Sliding | SlidingWgrad | None:
    window = geometry.lower(problem)
    if problem.direction == "bwd_filter":
        return _cheapest(sliding_cost.wgrad_candidates(window, device), device)
    return _cheapest(sliding_cost.candidates(window, device), device)


def _cheapest(found: Sequence[_AnyPlan], device: GpuDevice) -> _AnyPlan | None:
    return min(found, key=lambda plan: _seconds(plan, device), default=None)


def _seconds(plan: Plan, device: GpuDevice) -> float:
    if isinstance(plan, Banded):
        return banded_cost.seconds(plan, device)
    return sliding_cost.seconds(plan, device)


def _launch(plan: Plan, epilogue: Epilogue | None) -> tuple[Source, list[Launch]]:
    if isinstance(plan, BandedWgrad):
        return banded_code.wgrad_launch(plan)
    if isinstance(plan, Banded):
        return banded_code.launch(plan, epilogue)
    if isinstance(plan, SlidingWgrad):
        return sliding_code.wgrad_launch(plan)
    return sliding_code.launch(plan, epilogue)
