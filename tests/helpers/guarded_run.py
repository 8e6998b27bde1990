"""Runs problems with every tensor flush against a page that must not be touched; for test_memory_bounds.

Reads problem strings from standard input; the instruction sets to use are its arguments, by default the widest.
Behind a problem there may be kinds of operands for `convolution_cases.sum_of_sizes`, as in
`conv_fwd n2 c3 h5 w5 k4 r3 s3 + bias + nhwc`: those run with one, two and four threads.
Before each kernel it prints its name: a crash tells whose it was.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

import conformance
from convolution_cases import sum_of_sizes
from guarded_memory import Room
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu import extents
from jitdnn.problems import Problem, parse
from jitdnn.tensor import TensorDescriptor, numpy_dtype, view
from paths import TESTS

LARGE = 1 << 24  # elements from which on a tensor is not also made in dense memory
# the tests that know what inputs of an operation belong together, and what they call that
INPUTS = {
    "Attention": ("attention/test_attention", "inputs_for"),
    "CrossEntropy": ("reduction/test_cross_entropy", "inputs_for"),
    "CtcLoss": ("ctc/test_ctc_loss", "inputs_for"),
    "Recurrent": ("rnn/test_rnn", "arrays_for"),
}


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
    path, function = INPUTS[name]
    folder, _, module = path.rpartition("/")
    sys.path.insert(0, str(TESTS / "kernels" / "cpu" / folder))
    found = getattr(import_module(module), function)(problem)
    return [found[operand.name] for operand in problem.sources] if isinstance(found, dict) else found


def run(problem: Problem, at_end: bool, cpu: str, kinds: Sequence[str] = ()) -> None:
    """Every algorithm that takes the problem, compared with the reference; `kinds`: of operands of an epilogue."""
    epilogue = sum_of_sizes(problem, *kinds) if kinds else None
    spans = [operand.descriptor.span() for operand in problem.operands]
    is_large = max(high - low for low, high in spans) > LARGE
    small = conformance.packed(problem) if is_large else problem
    case = conformance.make_case(small, epilogue, given=inputs_of(small))
    extra = epilogue.operands if epilogue else ()
    every = [*(operand.descriptor for operand in problem.operands), *extra]
    rooms, pointers = zip(*(place(descriptor, at_end) for descriptor in every), strict=True)
    for operand, pointer, buffer in zip(problem.inputs, pointers, case.inputs, strict=False):
        view(pointer, operand.descriptor)[...] = buffer.values
    first = len(problem.inputs)
    for descriptor, pointer, buffer in zip(
        extra, pointers[len(problem.operands) :], case.operands, strict=True
    ):
        view(pointer, descriptor)[...] = buffer.values
    devices = [host(threads, cpu) for threads in ((1, 2, 4) if kinds else (2,))]
    pairs = [(d, a) for d in devices for a in conformance.accepting(problem, d, epilogue)]
    for device, algorithm in pairs:
        edge = "end" if at_end else "start"
        named = " + ".join([str(problem), *kinds])
        sys.stdout.write(f"{algorithm.name}, tensors at the {edge} of a page: {named}\n")
        sys.stdout.flush()
        size = algorithm.workspace(problem, device, epilogue)
        workspace = Room(-(-size // 64) * 64, at_end)
        kernel = algorithm.build(problem, device, epilogue)
        outputs = [view(p, o.descriptor) for p, o in zip(pointers[first:], problem.outputs, strict=False)]
        for output, operand, previous in zip(outputs, problem.outputs, case.previous, strict=True):
            output[...] = previous if operand.role == "state" else conformance.poison(output.dtype)
        kernel(None, pointers, 1.0, 0.0, workspace.pointer if size else 0)
        conformance.compare(outputs, case, 1.0, 0.0, algorithm.error_bound(problem))
        variant = algorithm.with_kept_filter()
        if variant is not None:
            for output in outputs:
                output[...] = conformance.poison(output.dtype)
            kernel, size = (
                variant.build(problem, device, epilogue),
                variant.workspace(problem, device, epilogue),
            )
            if kernel.kept is None:  # nothing is prepared ahead of this problem
                continue
            run_prepared(kernel, pointers, problem.filters, size, at_end)
            conformance.compare(outputs, case, 1.0, 0.0, variant.error_bound(problem))
    del rooms


def run_prepared(
    kernel: Any, pointers: Sequence[int], filters: Collection[int], size: int, at_end: bool
) -> None:
    """A kernel in two halves: its filter is prepared while nothing else is there, and is not there afterwards."""
    kept = Room(-(-kernel.kept.bytes // 64) * 64, at_end)
    workspace = Room(-(-(size - kernel.kept.bytes) // 64) * 64, at_end)
    prepared = [pointer if place in filters else 0 for place, pointer in enumerate(pointers)]
    others = [0 if place in filters else pointer for place, pointer in enumerate(pointers)]
    kernel.keep(None, prepared, kept.pointer)
    kernel.run_kept(None, others, 1.0, 0.0, workspace.pointer, kept.pointer)


def main() -> None:
    extents.is_strict = True
    for line in sys.stdin:
        for cpu in sys.argv[1:] or ["host"]:
            for at_end in (True, False):
                words, *kinds = line.strip().split(" + ")
                run(parse(words), at_end, cpu, kinds)


if __name__ == "__main__":
    main()
