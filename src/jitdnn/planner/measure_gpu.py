"""Timing kernels on a GPU: by its own events, on a stream of ours, with operands that the cache does not hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, cast

import numpy as np

from jitdnn.devices.gpu import GpuDevice, Memory
from jitdnn.errors import DeviceError
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.planner.operands import extent, make_pattern
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
    patterns = [make_pattern(*pair) for pair in zip(descriptors, values, strict=True)]
    extents = [extent(descriptor) for descriptor in descriptors]
    items = [DTYPES[descriptor.dtype] for descriptor in descriptors]
    whole = max(1, sum(item * each.elements for item, each in zip(items, extents, strict=True)))
    count = min(MOST_SETS, 1 + _CACHES * gpu.cache_bytes // whole)
    memory: list[Memory] = []

    def place(size: int) -> int:
        memory.append(gpu.allocate(size, stream))
        return memory[-1].pointer

    sets = []
    for number in range(count):
        pointers = []
        for pattern, each, item in zip(patterns, extents, items, strict=True):
            start = place(item * each.elements)
            _fill(gpu, start, item * each.elements, np.roll(pattern, number), stream)
            pointers.append(start + item * each.origin)
        sets.append(pointers)
    failed: dict[int, str] = {}
    scratch = _scratch(place, [workspace for _, workspace in (c.what for c in contenders)], failed)
    turns = itertools.cycle(sets)

    def run(what: tuple[Kernel, int], calls: int) -> float:
        kernel, workspace = what

        def give() -> None:
            for _ in range(calls):
                kernel(stream, next(turns), 1.0, 0.0, scratch if workspace else 0)

        return gpu.measure(stream, give) / calls

    for number, contender in enumerate(contenders):
        if number in failed:
            continue
        try:
            run(contender.what, 1)  # loads the code, which must not be in the first sample
        except DeviceError as error:
            failed[number] = str(error)
            if len(failed) == len(contenders):
                raise
    running = [contender for number, contender in enumerate(contenders) if number not in failed]
    measure(running, run, perf_counter() + seconds, settles=False)
    return failed


def _fill(gpu: GpuDevice, start: int, size: int, pattern: np.ndarray, stream: Any) -> None:
    """Fill memory with a pattern: copied from the host once, then from what is filled already."""
    filled = min(pattern.nbytes, size)
    gpu.write(start, np.ascontiguousarray(pattern), stream)
    while filled < size:
        more = min(filled, size - filled)
        gpu.copy(start + filled, start, more, stream)
        filled += more


def _scratch(place: Callable[[int], int], needs: Sequence[int], failed: dict[int, str]) -> int:
    """The address of scratch memory for all contenders that there is room for; the others fail.

    Raises OutOfMemory if there is room for none.
    """
    for number in sorted(range(len(needs)), key=lambda i: -needs[i]):
        try:
            return place(max(1, needs[number]))
        except MemoryError as error:
            failed[number] = str(error)
            if len(failed) == len(needs):
                raise
    return 0
