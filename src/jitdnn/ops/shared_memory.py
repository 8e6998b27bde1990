"""Whether arrays have memory in common, by their addresses alone: nothing is read."""

from __future__ import annotations

import numpy as np

from jitdnn.tensor import DTYPES, Array, TensorDescriptor, view

_OVERLAP_WORK = 100_000  # steps that NumPy's search may take
_ANYWHERE = 1 << 50


def near(output: TensorDescriptor, operand: TensorDescriptor) -> tuple[int, int, set[int]]:
    """Distances from an operand's address to an output's between which their memory may meet, and those of them that
    were found to be safe."""
    (low, high), (start, end) = _reach(operand), _reach(output)
    return low - end, high - start, set()


def _reach(descriptor: TensorDescriptor) -> tuple[int, int]:
    """The bytes that are touched, relative to the pointer: first, and one behind the last."""
    itemsize = DTYPES[descriptor.dtype]
    low, high = descriptor.span()
    return low * itemsize, (high + 1) * itemsize


def is_shared(first: Array, second: Array) -> bool:
    """Tell whether two arrays have an element's memory in common."""
    (low, high), (start, end) = _reach(first.descriptor), _reach(second.descriptor)
    distance = second.pointer - first.pointer
    if distance + start >= high or distance + end <= low:  # apart, which is seen without NumPy's search
        return False
    try:
        # the stubs know only two of the values that max_work takes
        # views of addresses where nobody's memory is, as far apart as the arrays: nothing is read
        one, other = view(_ANYWHERE, first.descriptor), view(_ANYWHERE + distance, second.descriptor)
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
