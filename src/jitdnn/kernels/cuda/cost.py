"""What the cost models of CUDA's kernels take for granted about the hardware: facts of an H100 (SXM).

What a `GpuDevice` states (multiprocessors, bandwidth of the memory, rates of the tensor cores, shared memory) is taken
from there. These are the other facts, in one place so that a description of the device can replace them. The clocks
differ because each model was fitted to measurements of its own kernels; a model's other constants belong to its clock.
"""

from __future__ import annotations

# ---- Clocks, in Hz ----
GEMM_CLOCK = 1.6e9
"""While long matrix products run."""
CLOCK = 1.755e9
"""While kernels run that wait for memory at times: few channels, grouped."""
DEPTHWISE_CLOCK = 1.75e9

# ---- Rates of a multiprocessor ----
MMA_CYCLES = 1.6
"""Cycles of a product of 16 x 8 x 16 numbers of half precision, all four tensor cores busy."""
SHARED_BYTES_PER_CYCLE = 145.0
"""From and to shared memory, measured against `GEMM_CLOCK`: the true clock is higher where this is what limits."""
L2_BYTES_PER_CYCLE = 40.0
"""From the L2 cache to one multiprocessor."""

# ---- Rates of the whole device ----
L2_BANDWIDTH = 4.5e12
"""Bytes a second that all multiprocessors together read from the L2 cache."""

# ---- Sizes of a multiprocessor ----
REGISTERS = 65536
"""32-bit registers, shared by the resident thread blocks."""
MAX_REGISTERS = 255
"""Of a thread."""
MAX_THREADS = 2048
"""Resident at a time."""
RESERVED_SHARED = 1024
"""Bytes of shared memory that the system takes of every thread block."""

# ---- Sizes of memory ----
SECTOR_BYTES, LINE_BYTES = 32, 128
"""What memory and the L2 cache move at a time, and what they give a number."""

# ---- Times ----
LAUNCH_SECONDS = 2.5e-6
"""From the end of a launch to the end of an empty one behind it."""
