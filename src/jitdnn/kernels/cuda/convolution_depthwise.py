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
from jitdnn.kernels.cuda import convolution_depthwise_axes as axes
from jitdnn.kernels.cuda import convolution_depthwise_banded as banded
from jitdnn.kernels.cuda import convolution_depthwise_banded_filter as banded_filter
from jitdnn.kernels.cuda import convolution_depthwise_sliding as sliding
from jitdnn.kernels.cuda import convolution_depthwise_sliding_filter as sliding_filter
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

VARIANTS = 3  # of each method that are kept for a tuner, best first by the model


class _Depthwise(Algorithm):
    """What the methods share: a list of plans, cheapest first, of which `number` is taken (`variants` has them all)."""

    problem = Convolution
    deterministic = True

    def __init__(self, number: int = 0) -> None:
        self.number = number
        if number:
            self.name = f"{type(self).name}_{number + 1}"  # type: ignore[misc]

    @classmethod
    def variants(cls) -> list[Algorithm]:
        """The algorithm with its first, second, ... plan, for a tuner to choose from."""
        return [cls(number) for number in range(VARIANTS)]

    def plans(self, problem: Convolution, device: Any) -> Sequence[Any]:
        """The plans for a problem that has a window."""
        raise NotImplementedError

    def plan(self, problem: Problem, device: Device) -> Any:
        assert isinstance(problem, Convolution)
        plans = self.plans(problem, device)
        return plans[min(self.number, len(plans) - 1)]

    def workspace(self, problem: Problem, device: Device) -> int:
        return int(getattr(self.plan(problem, device), "workspace", 0))

    def estimate(self, problem: Problem, device: Device) -> float:
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
        if not self.plans(problem, device):
            taps = "x".join(map(str, problem.filter_spatial))
            return f"the sums of {taps} taps do not fit into registers: up to about 7x7 or 3x3x3 do"
        return None

    def plans(self, problem: Convolution, device: Any) -> Sequence[Any]:
        return _sliding(problem, device)


class DepthwiseBanded(_Depthwise):
    """See the module's text. A number that is not finite spreads to results up to 15 columns away."""

    name = "depthwise_banded"

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if epilogue is not None and problem.direction == "bwd_filter":
            return "a filter's gradient takes no epilogue: apply it to the result"
        if reason := axes.refuse(problem) or banded.refuse(axes.lower(problem)):
            return reason
        if not self.plans(problem, device):
            taps = "x".join(map(str, problem.filter_spatial))
            return f"the rows that {taps} taps reach do not fit into the shared memory of a multiprocessor"
        return None

    def plans(self, problem: Convolution, device: Any) -> Sequence[Any]:
        return _banded(problem, device)


@functools.lru_cache(4096)
def _banded(problem: Convolution, device: Any) -> Sequence[Any]:
    window = axes.lower(problem)
    if problem.direction == "bwd_filter":
        return _best(list(banded_filter.choices(window, device)), device)
    return _best(list(banded.choices(window, device)), device)


@functools.lru_cache(4096)
def _sliding(problem: Convolution, device: Any) -> Sequence[Any]:
    window = axes.lower(problem)
    found: list[Any]
    if problem.direction == "bwd_filter":
        found = list(sliding_filter.choices(window, device))
    else:
        found = list(sliding.choices(window))
    return _best(found, device)


def _best(found: list[Any], device: GpuDevice) -> Sequence[Any]:
    """The cheapest plans, no two of the same shape of tile."""
    chosen: dict[Any, Any] = {}
    for plan in sorted(found, key=lambda plan: float(plan.seconds(device))):
        chosen.setdefault(plan.shape, plan)
        if len(chosen) == VARIANTS:
            break
    return tuple(chosen.values())
