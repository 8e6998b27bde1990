"""The cheapest plan of a grouped convolution in any direction.

Through shared memory (shared_memory.cu): channels-last sources of multiples of 16 bytes. Straight into registers
(registers.cu): all others in 16 bits.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.grouped import shared_memory_cost
from jitdnn.kernels.cuda.convolution.grouped.plan import Plan
from jitdnn.kernels.cuda.convolution.grouped.register_cost import offer_registers
from jitdnn.kernels.cuda.convolution.grouped.shared_memory_cost import offer_shared_memory
from jitdnn.kernels.cuda.convolution.grouped.wgrad_cost import (
    offer_wgrad_registers,
    offer_wgrad_shared_memory,
)
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import All, Cheapest
from jitdnn.problems.convolution import Convolution

MAX_CHANNELS = 64
"""Of a group; half as many for wgrad, and where pixels are not whole 16 bytes."""


def plan_of(problem: Convolution, device: GpuDevice, products: int = 1) -> Plan | None:
    """The cheapest plan, with so many `products` of the tensor cores for one; None if the filter does not fit."""
    return _best(problem, device.facts, products)


@lru_cache(512)
def _best(problem: Convolution, facts: GpuFacts, products: int) -> Plan | None:
    if problem.dtype == "f32":
        of_f32 = Cheapest[Plan]()
        offer_shared_memory(problem, facts, of_f32, products)
        return of_f32.plan()
    unaligned, cheapest = _registers(problem, facts), Cheapest[Plan]()
    if unaligned.seconds == math.inf:
        return None
    if problem.direction == "bwd_filter":
        offer_wgrad_shared_memory(problem, facts, cheapest)
    else:
        offer_shared_memory(problem, facts, cheapest)
    is_large = max(problem.w.shape[1], problem.k // problem.groups) > MAX_CHANNELS // 2
    return cheapest.plan() if is_large or cheapest.seconds <= unaligned.seconds else unaligned.plan()


def least_seconds(problem: Convolution, device: GpuDevice, products: int = 1) -> float:
    """What forward plans, and those to the data, do not come below; infinite where there is none."""
    least = shared_memory_cost.least_seconds(problem, device.facts, products)
    return least if problem.dtype == "f32" else min(least, _registers(problem, device.facts).seconds)


@lru_cache(8)
def _registers(problem: Convolution, facts: GpuFacts) -> Cheapest[Plan]:
    cheapest = Cheapest[Plan]()
    offer = offer_wgrad_registers if problem.direction == "bwd_filter" else offer_registers
    offer(problem, facts, cheapest)
    return cheapest


@lru_cache(512)
def register_plan(problem: Convolution, facts: GpuFacts) -> Plan:
    """The plan for operands at any address."""
    plan = _registers(problem, facts).plan()
    assert plan is not None
    return plan


def shared_memory_plans(problem: Convolution, facts: GpuFacts, products: int = 1) -> list[Plan]:
    """Every plan of fprop and dgrad through shared memory."""
    every = All[Plan]()
    offer_shared_memory(problem, facts, every, products)
    return every.plans
