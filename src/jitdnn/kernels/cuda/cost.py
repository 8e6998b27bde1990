"""Constants of the cost models of CUDA's kernels, fitted on an H100: shares of the facts of a device, without units.

Sizes, clocks and rates are facts of the device (`devices/gpu_facts.py`); the functions here derive from them the rates
that a model needs. The clocks differ because each model was fitted to measurements of its own kernels; a model's other
constants belong to its clock.
"""

from __future__ import annotations

from jitdnn.devices.gpu_facts import GpuFacts

# ---- Shares of the stated clock that an H100 (1.98 GHz) sustains ----
_GEMM_CLOCK = 1.6 / 1.98
_CLOCK = 1.755 / 1.98
_DEPTHWISE_CLOCK = 1.75 / 1.98

# ---- Shares of the widths of paths ----
_L2_PATH = 0.625
"""Of what fits through the path from L2 to one multiprocessor."""
_L2_PATHS = 0.269
"""Of the paths of all multiprocessors together, at the stated clock: 4.5e12 bytes a second on an H100."""
_SHARED_PATH = 145 / 128
"""Of the path to shared memory, measured against `gemm_clock`: the true clock is higher where this is what limits."""

# ---- Sizes that all NVIDIA GPUs have ----
MAX_REGISTERS = 255
"""Of a thread."""
REGISTER_UNIT = 8
"""Registers of a thread are given in multiples of it."""
SCHEDULERS = 4
"""Quarters of a multiprocessor, each with its own warps and registers."""
SECTOR_BYTES, LINE_BYTES = 32, 128
"""What memory and the L2 cache move at a time, and what they give a number."""

# ---- Times ----
LAUNCH_SECONDS = 2.5e-6
"""From the end of a launch to the end of an empty one behind it."""
MEMORY_LATENCY = 0.7e-6
"""Seconds until a read arrives from a busy memory."""


def gemm_clock(facts: GpuFacts) -> float:
    """Cycles a second while long matrix products run."""
    return facts.clock * _GEMM_CLOCK


def clock(facts: GpuFacts) -> float:
    """Cycles a second while kernels run that wait for memory at times: few channels, grouped."""
    return facts.clock * _CLOCK


def depthwise_clock(facts: GpuFacts) -> float:
    """Cycles a second while depthwise convolutions run."""
    return facts.clock * _DEPTHWISE_CLOCK


def l2_bytes_per_cycle(facts: GpuFacts) -> float:
    """Bytes a cycle from the L2 cache to one multiprocessor."""
    return _L2_PATH * facts.l2_bytes_per_cycle


def l2_bandwidth(facts: GpuFacts) -> float:
    """Bytes a second that all multiprocessors together read from the L2 cache."""
    return _L2_PATHS * facts.l2_bytes_per_cycle * facts.multiprocessors * facts.clock


def shared_bytes_per_cycle(facts: GpuFacts) -> float:
    """Bytes a cycle from and to the shared memory of a multiprocessor."""
    return _SHARED_PATH * facts.shared_bytes_per_cycle


def narrow_store_seconds(facts: GpuFacts, stores: int) -> float:
    """Seconds of stores of less than 16 bytes at the end of a product's tiles: one a cycle and multiprocessor, as seen
    of 2 bytes each.
    """
    return stores / (facts.multiprocessors * clock(facts))


def most_registers(facts: GpuFacts, threads: int) -> int:
    """Registers that each thread of a thread block of `threads` may have, if it is to run at all."""
    return min(MAX_REGISTERS, facts.registers // threads)
