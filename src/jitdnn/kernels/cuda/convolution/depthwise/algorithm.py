"""Depthwise convolutions on CUDA: each channel is filtered alone, in all three directions.

`depthwise_sliding` lets rows slide through registers and multiplies on the ordinary units: few taps, any stride,
dilation and layout. `depthwise_banded` multiplies by banded matrices on the matrix units: half precision, channels
last, stride 1, filters of any width.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cuda.convolution.depthwise import banded, sliding
from jitdnn.kernels.cuda.convolution.depthwise import banded_wgrad as banded_filter
from jitdnn.kernels.cuda.convolution.depthwise import geometry as axes
from jitdnn.kernels.cuda.convolution.depthwise import sliding_wgrad as sliding_filter
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem


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
        return float(self.plan(problem, device).seconds(device))

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        source, launches = self.plan(problem, device).launch(epilogue)
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
        if reason := axes.refuse(problem):
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
        if reason := axes.refuse(problem) or banded.refuse(axes.lower(problem)):
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
def _banded(problem: Convolution, device: Any) -> Any:
    window = axes.lower(problem)
    if problem.direction == "bwd_filter":
        return _cheapest(banded_filter.choices(window, device), device)
    return _cheapest(banded.choices(window, device), device)


@functools.lru_cache(4096)
def _sliding(problem: Convolution, device: Any) -> Any:
    window = axes.lower(problem)
    if problem.direction == "bwd_filter":
        return _cheapest(sliding_filter.choices(window, device), device)
    return _cheapest(sliding.choices(window), device)


def _cheapest(found: Sequence[Any], device: GpuDevice) -> Any:
    return min(found, key=lambda plan: float(plan.seconds(device)), default=None)
