"""What the code of all families shares: pointers to results, stores of vectors, sums that stay from pass to pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS
from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.nontemporal import store_new
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def pointer_count(c: Correlation) -> int:
    """Of a kernel: those to x, w and y, and to the epilogue's operands."""
    return POINTERS + len(c.operands)


@contextlib.contextmanager
def tile_function(
    module: Module, name: str, c: Correlation, tensors: Mapping[str, str], coordinates: Sequence[str]
) -> Iterator[tuple[Builder, Sequence[Any], Sequence[Value], Function]]:
    """Trace ``name(tensors..., y, scale, operands..., coordinates...)``: a tile of results.

    Yields the builder, the pointers to the tensors, y, alpha and beta and the operands, the coordinates, and the
    function.
    """
    operands = {f"operand{i}": v.dtype for i, v in enumerate(c.operands)}
    with module.function(
        name, **tensors, y=c.y.dtype, scale="f64", **operands, **dict.fromkeys(coordinates)
    ) as (k, values, function):
        pointers = len(values) - len(coordinates)
        yield k, values[:pointers], values[pointers:], function


def results_of(arguments: Arguments, c: Correlation) -> list[tuple[Pointer, View]]:
    """y and the operands of the epilogue."""
    results = [(arguments.pointer(2, c.y.dtype), c.y)]
    return results + [(arguments.pointer(POINTERS + i, v.dtype), v) for i, v in enumerate(c.operands)]


def store_from(
    blend: Blend, buffer: Pointer, at: int | Value, targets: Sequence[Pointer], steps: Sequence[int], lanes: int,
    mask: Value | None, nontemporal: bool = False,
) -> None:  # fmt: skip
    """Finish the vector of sums at ``buffer[at]`` and store its lanes in y.

    ``targets`` point to y and to the operands, whose neighbouring lanes are ``steps`` apart.
    """
    others = [
        operand.load_strided(0, step, lanes, mask)
        for operand, step in zip(targets[1:], steps[1:], strict=True)
    ]
    vector = buffer.load(at, lanes)
    if nontemporal:
        store_new(targets[0], steps[0], blend.scaled(vector, others), mask, nontemporal)
    else:
        blend.store(targets[0], steps[0], vector, others, mask)


def gradient_blend(k: Builder, scale: Pointer, dtype: str) -> Blend:
    """alpha and beta of a gradient, which has no epilogue; ``scale`` points to them."""
    alpha, beta = (k.convert(scale.load(i), dtype) for i in range(2))
    return Blend(k, alpha, beta, None)


@contextlib.contextmanager
def pass_over_slice(
    k: Builder,
    plan: DirectPlan,
    x: Pointer,
    dy: Pointer,
    sums: Pointer,
    d: Value,
    tap: Value,
    registers: Iterable[Any],
) -> Iterator[tuple[Pointer, Pointer]]:
    """A gradient's pass over slice ``d`` of dy and the slice of x that it meets by a tap, if there is one.

    Yields pointers to the slices of x and dy. The sums of former passes are in the registers meanwhile.
    """
    c, lanes, axis, registers = plan.c, plan.lanes, plan.c.axes[0], list(registers)
    at = d * axis.step + axis.taps.offset + tap * axis.taps.shift
    with when(k, inside(axis, at, 1)):
        for number, register in enumerate(registers):
            register.set(sums.load(number * lanes, lanes))
        yield x + at * c.x.space[0], dy + d * c.y.space[0]
        for number, register in enumerate(registers):
            sums.store(register.get(), number * lanes)


def interleave(k: Builder, parts: Sequence[Value]) -> list[Value]:
    """As many vectors as there are parts: lane 0 of each part, then lane 1 of each, and so on."""
    lanes, count = parts[0].lanes, len(parts)
    if count == 1:
        return list(parts)
    interleaved = []
    for number in range(count):
        positions = [number * lanes + lane for lane in range(lanes)]
        vector = parts[0]
        for other in range(1, count):
            pattern = []
            for lane, position in enumerate(positions):
                if position % count == other:
                    pattern.append(lanes + position // count)
                else:
                    pattern.append(position // count if other == 1 and position % count == 0 else lane)
            vector = k.shuffle(vector, parts[other], pattern)
        interleaved.append(vector)
    return interleaved
