"""Timing kernels on a GPU: by its own events, on a stream of ours, with operands that the cache does not hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from time import perf_counter
from typing import cast

import numpy as np

from jitdnn.devices.gpu import GpuDevice, Memory
from jitdnn.errors import DeviceError
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.planner.operands import make_operand
from jitdnn.planner.sampling import Contender, measure
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES

MOST_SETS = 8
# sets of operands together are so much larger than the cache that each call finds its own gone
_CACHES = 2


def measure_on_gpu(
    problem: Problem,
    epilogue: Epilogue | None,
    device: Device,
    contenders: Sequence[Contender[tuple[Kernel, int]]],
    seconds: float,
) -> dict[int, str]:
    """Fill in the samples of (kernel, bytes of workspace); returns why not, for those that the driver does not launch.

    Raises OutOfMemory, a MemoryError, without room, and DeviceError if nothing can be launched.
    """
    gpu = cast(GpuDevice, device)
    own = gpu.own_stream()
    stream = gpu.stream(own)
    descriptors = [operand.descriptor for operand in problem.operands]
    values = [operand.values for operand in problem.operands]
    if epilogue is not None:
        descriptors += epilogue.operands
        values += [None] * len(epilogue.operands)
    buffers = [make_operand(*pair) for pair in zip(descriptors, values, strict=True)]
    whole = max(1, sum(buffer.nbytes for buffer, _ in buffers))
    count = min(MOST_SETS, 1 + _CACHES * gpu.cache_bytes // whole)
    memory: list[Memory] = []

    def place(size: int) -> int:
        memory.append(gpu.allocate(size, stream))
        return memory[-1].pointer

    scratch = place(max(1, *(workspace for _, workspace in (c.what for c in contenders))))
    sets = []
    for number in range(count):
        pointers = []
        for (buffer, pointer), descriptor in zip(buffers, descriptors, strict=True):
            start = place(buffer.nbytes)
            # the first set is copied from the host; the others need not be random anew, but they must be numbers
            gpu.write(start, np.roll(buffer, number) if buffer.dtype.kind == "f" else buffer, stream)
            pointers.append(start + pointer - buffer.ctypes.data)
            assert (pointer - buffer.ctypes.data) % DTYPES[descriptor.dtype] == 0
        sets.append(pointers)
    turns = itertools.cycle(sets)

    def run(what: tuple[Kernel, int], calls: int) -> float:
        kernel, workspace = what

        def give() -> None:
            for _ in range(calls):
                kernel(stream, next(turns), 1.0, 0.0, scratch if workspace else 0)

        return gpu.measure(stream, give) / calls

    failed: dict[int, str] = {}
    for number, contender in enumerate(contenders):
        try:
            run(contender.what, 1)  # loads the code, which must not be in the first sample
        except DeviceError as error:
            failed[number] = str(error)
            if len(failed) == len(contenders):
                raise
    running = [contender for number, contender in enumerate(contenders) if number not in failed]
    measure(running, run, perf_counter() + seconds, settles=False)
    return failed
