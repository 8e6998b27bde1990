"""Runs problems with every tensor flush against a page that must not be touched; for test_memory_bounds.

Reads problem strings from standard input; the instruction sets to use are its arguments, by default the widest.
Before each kernel it prints its name: a crash tells whose it was.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import conformance
from jitdnn.devices.cpu import host
from jitdnn.problems import Problem, parse
from jitdnn.tensor import TensorDescriptor, numpy_dtype, view

PAGE = mmap.PAGESIZE
# memory that exists once it is touched, so that strides may span many gigabytes
SPARSE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which the module mmap does not name
LARGE = 1 << 24  # elements from which on a tensor is not also made in dense memory
# the tests that know what inputs of an operation belong together, and what they call that
INPUTS = {
    "Attention": ("test_attention", "inputs_for"),
    "CrossEntropy": ("test_cross_entropy", "inputs_for"),
    "CtcLoss": ("test_ctc_loss", "inputs_for"),
    "Recurrent": ("test_rnn", "arrays_for"),
}
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Room:
    """`size` bytes that end where a forbidden page begins, or begin where one ends."""

    def __init__(self, size: int, at_end: bool) -> None:
        pages = -(-size // PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * PAGE, flags=SPARSE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (0, pages + 1):
            if _mprotect(start + page * PAGE, PAGE, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.pointer = start + PAGE + (pages * PAGE - size if at_end else 0)


def place(descriptor: TensorDescriptor, at_end: bool) -> tuple[Room, int]:
    """Room for a tensor, and the address of its element at index 0."""
    low, high = descriptor.span()
    item = numpy_dtype(descriptor.dtype).itemsize
    room = Room((high - low + 1) * item, at_end)
    return room, room.pointer - low * item


def inputs_of(problem: Problem) -> list[Any] | None:
    """Arrays for the problem's sources, None where random ones do."""
    name = type(problem).__name__
    if name not in INPUTS:
        return None
    module, function = INPUTS[name]
    found = getattr(import_module(module), function)(problem)
    return [found[operand.name] for operand in problem.sources] if isinstance(found, dict) else found


def run(problem: Problem, at_end: bool, cpu: str) -> None:
    """Every algorithm that takes the problem, compared with the reference."""
    spans = [operand.descriptor.span() for operand in problem.operands]
    is_large = max(high - low for low, high in spans) > LARGE
    small = conformance.packed(problem) if is_large else problem
    case = conformance.make_case(small, given=inputs_of(small))
    rooms, pointers = zip(*(place(o.descriptor, at_end) for o in problem.operands), strict=True)
    for operand, pointer, buffer in zip(problem.inputs, pointers, case.inputs, strict=False):
        view(pointer, operand.descriptor)[...] = buffer.values
    device, first = host(2, cpu), len(problem.inputs)
    for algorithm in conformance.accepting(problem, device):
        edge = "end" if at_end else "start"
        sys.stdout.write(f"{algorithm.name}, tensors at the {edge} of a page: {problem}\n")
        sys.stdout.flush()
        size = algorithm.workspace(problem, device)
        workspace = Room(-(-size // 64) * 64, at_end)
        kernel = algorithm.build(problem, device)
        outputs = [view(p, o.descriptor) for p, o in zip(pointers[first:], problem.outputs, strict=True)]
        for output, operand, previous in zip(outputs, problem.outputs, case.previous, strict=True):
            output[...] = previous if operand.role == "state" else conformance.poison(output.dtype)
        kernel(None, pointers, 1.0, 0.0, workspace.pointer if size else 0)
        conformance.compare(outputs, case, 1.0, 0.0, algorithm.error_bound(problem))
        variant = algorithm.with_kept_filter()
        if variant is not None:
            for output in outputs:
                output[...] = conformance.poison(output.dtype)
            run_prepared(variant.build(problem, device), pointers, variant.workspace(problem, device), at_end)
            conformance.compare(outputs, case, 1.0, 0.0, variant.error_bound(problem))
    del rooms


def run_prepared(kernel: Any, pointers: Sequence[int], size: int, at_end: bool) -> None:
    """A kernel in two halves: its filter is prepared while nothing else is there, and is not there afterwards."""
    kept = Room(-(-kernel.kept.bytes // 64) * 64, at_end)
    workspace = Room(-(-(size - kernel.kept.bytes) // 64) * 64, at_end)
    kernel.keep(None, [0, pointers[1], *[0] * (len(pointers) - 2)], kept.pointer)
    kernel.run_kept(None, [pointers[0], 0, *pointers[2:]], 1.0, 0.0, workspace.pointer, kept.pointer)


def main() -> None:
    for line in sys.stdin:
        for cpu in sys.argv[1:] or ["host"]:
            for at_end in (True, False):
                run(parse(line), at_end, cpu)


if __name__ == "__main__":
    main()
