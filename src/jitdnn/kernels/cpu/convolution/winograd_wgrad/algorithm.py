"""The filter's gradient by Winograd's minimal filtering.

Filters of several taps on any axis; any stride, dilation, padding, groups and layout.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, terms
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch
from jitdnn.kernels.cpu.convolution.winograd.error import storage_error
from jitdnn.kernels.cpu.convolution.winograd_wgrad.code import POINTERS, phases, trace
from jitdnn.kernels.cpu.convolution.winograd_wgrad.cost import choose_plan, cycles
from jitdnn.kernels.cpu.convolution.winograd_wgrad.error import roundings
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import Order, WinogradWgradPlan
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.isa import Isa, isa
from jitdnn.tensor import compute_dtype

_MAX_ROUNDINGS = 80.0  # unit roundoffs, 4.8e-6 in f32


class WinogradWgrad(CpuAlgorithm[Convolution]):
    """The direction wgrad; see plan.py. Given an ``order``, it takes the best plan with it."""

    name = "winograd_filter"
    problem = Convolution
    takes_float8 = False
    takes_no_epilogue = "a filter's gradient takes no epilogue: apply it to the result"

    def __init__(self, order: Order | None = None) -> None:
        self.order = order

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction != "bwd_filter":
            return "it computes the filter's gradient: winograd_4 and winograd_2 compute forward and backward data"
        if all(taps == 1 for taps in problem.w.shape[2:]):
            return "minimal filtering needs several taps along an axis"
        if problem.flops == 0:
            return "there is nothing to sum"
        return None

    def sizes(self, problem: Convolution, processor: Isa) -> WinogradWgradPlan:
        """The tiles and blocks."""
        return _plan(problem, processor, self.order)

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan = self.sizes(problem, device.isa)
        counted = cycles(plan)
        return Launch(
            problem, self.name, plan, lambda module: trace(module, plan), phases(plan), POINTERS, counted, plan.tasks,
            plan.workspace(min(device.threads, plan.tasks)),  # each has its own tiles
            threads=min(useful_threads(device, counted), plan.tasks),
            further_cycles=channels_last_group_cycles(problem, device),
        )  # fmt: skip

    def error_of(self, problem: Convolution) -> float:
        computing = compute_dtype(problem.dtype)
        plan = _plan(problem, isa("avx512"), None)  # the tiles are the same on every processor
        sums = UNIT_ROUNDOFF[computing] * roundings(plan.axes, plan.c.batch)
        return storage_error(problem, computing) + sums

    def spreads_to(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        return "the other taps of the filter, of the same channels"


@lru_cache(256)
def _plan(problem: Convolution, processor: Isa, order: Order | None) -> WinogradWgradPlan:
    (whole,) = lower_convolution(problem)
    plain = 4.0 + math.sqrt(terms(problem))  # what is declared for a plain sum, and so allowed for any
    return choose_plan(whole, processor, max(_MAX_ROUNDINGS, plain), order)
