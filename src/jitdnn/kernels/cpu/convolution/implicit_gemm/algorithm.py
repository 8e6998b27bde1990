"""Convolution forward and backward to the data as an implicit GEMM: packed tiles, no im2col buffer.

Any stride, dilation, padding, groups, layout and channel count. A 1x1 convolution is a plain GEMM of its
pixels; a strided backward data is one dense correlation for each stride phase of the position (correlation.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from jitdnn.devices.cpu import CpuDevice, CpuKernel, Kept
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.correlation import (
    Correlation,
    lower_convolution,
    lower_interleaved,
    lower_single_position,
)
from jitdnn.kernels.cpu.microkernel.epilogue_store import Box, trace_scaling
from jitdnn.kernels.cpu.schedule.cost import cycles_apart, seconds_of, useful_threads
from jitdnn.kernels.cpu.schedule.parallel import wanted_tasks
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES

_MOSTLY = 0.7  # of the results read something, at most, where the others are written apart
_MOST_RESIDUES = 16  # of a strided backward data that are computed together: each is code of its own


class ImplicitGemm(Algorithm):
    """Forward and backward data; see the module's text."""

    name = "implicit_gemm"
    problem = Convolution
    deterministic = True

    def __init__(self, is_kept: bool = False) -> None:
        self._is_kept = is_kept

    def with_kept_filter(self) -> ImplicitGemm:
        return ImplicitGemm(is_kept=True)

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: take implicit_gemm_filter for the filter"
        if epilogue is None or lower_single_position(problem) is None:
            return None
        if lower_single_position(problem, epilogue.operands) is None:
            return "an operand of the epilogue is not one run of channels and positions, as the image is"
        return None

    def _parts(
        self, problem: Problem, device: Device, epilogue: Epilogue | None = None
    ) -> tuple[ImplicitGemmPlan, ...]:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        return blocked_of(problem, device, epilogue, self._is_kept)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return max(part.workspace(device.threads) for part in self._parts(problem, device, epilogue))

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        cycles = sum(part.cycles() for part in parts)
        if self._is_kept:
            cycles -= sum(part.pack_cycles() for part in parts)
        return seconds_of(problem, device, cycles + cycles_apart(problem), sum(p.tasks for p in parts))

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        assert isinstance(problem, Convolution)
        boxes, c = apart_of(problem, epilogue), parts[0].c

        def generate(module: Module) -> None:
            if boxes:
                trace_scaling(module, "scale", c.y.dtype, c.dtype, boxes, pointers, number=2)
            for number, part in enumerate(parts):
                part.trace(module, f"part{number}_", pointers, (0, 1, 2), epilogue)

        key = (str(problem), str(epilogue), parts[0].wanted, self._is_kept)
        library = load(self.name, key, device.isa, generate)
        each = [part.phases(f"part{number}_") for number, part in enumerate(parts)]
        phases = [
            pack for one in each for pack in one[:-1]
        ]  # the whole filter first, which a caller may keep
        packing = len(phases)
        if boxes:
            phases.append(("scale", sum(box.tasks for box in boxes)))
        phases += [one[-1] for one in each]
        threads = useful_threads(device, sum(part.cycles() for part in parts))
        kept = None
        if self._is_kept:
            kept = Kept(parts[0].all_panels * ITEM_BYTES[parts[0].c.dtype], packing)
        needed = max(part.workspace(device.threads) for part in parts)
        return CpuKernel(library, phases, pointers, threads, kept=kept, workspace=needed)


@lru_cache(256)
def blocked_of(
    problem: Convolution, device: CpuDevice, epilogue: Epilogue | None, packs_ahead: bool
) -> tuple[ImplicitGemmPlan, ...]:
    """The correlations that the problem comes to, each cut into blocks; their panels lie one behind the other."""
    operands, wanted = epilogue.operands if epilogue else (), wanted_tasks(device.threads)
    cut = partial(
        ImplicitGemmPlan, isa=device.isa, wanted=wanted, packs_ahead=packs_ahead, threads=device.threads
    )
    product = lower_single_position(problem, operands)
    if product is not None:
        return (cut(product.merged()),)
    parts, apart = _split(problem, epilogue)
    together: tuple[ImplicitGemmPlan, ...] = ()
    if _is_interleaved(problem):
        several = lower_interleaved(problem, operands)
        together = (cut(several.whole, interleaved=several),)
        if apart or any(part.taps != 1 for part in parts):
            return together
    blocked = [
        min((cut(one.merged()) for one in part.regrouped()), key=lambda plan: plan.cycles()) for part in parts
    ]
    if together and together[0].cycles() <= sum(plan.cycles() for plan in blocked):
        return together
    if len(blocked) == 1:
        return tuple(blocked)  # what it has worked out already stays
    sizes = [part.panel_elements for part in blocked]
    return tuple(
        replace(part, panels_before=sum(sizes[:i]), panels_after=sum(sizes[i + 1 :]))
        for i, part in enumerate(blocked)
    )


def apart_of(problem: Convolution, epilogue: Epilogue | None) -> tuple[Box, ...]:
    """The results that get no product and are only scaled, where the blocks leave them out."""
    operands = epilogue.operands if epilogue else ()
    if lower_single_position(problem, operands) is not None or _is_interleaved(problem):
        return ()
    return _split(problem, epilogue)[1]


def _is_interleaved(problem: Convolution) -> bool:
    return problem.direction == "bwd_data" and 1 < math.prod(problem.stride) <= _MOST_RESIDUES


@lru_cache(256)
def _split(
    problem: Convolution, epilogue: Epilogue | None
) -> tuple[tuple[Correlation, ...], tuple[Box, ...]]:
    """The correlations to compute, and the results that are none of theirs.

    Those have no product, so a function of the sum must be computed for them all the same.
    """
    parts = lower_convolution(problem, epilogue.operands if epilogue else ())
    if epilogue is None and _is_mostly_padding(parts):
        boxes = [box for part in parts for box in _beside(part)]
        return tuple(part.cropped() for part in parts), tuple(boxes)
    if epilogue is None and any(p.taps == 0 for p in parts) and any(p.taps for p in parts):
        every = [_box(p, [(0, axis.results) for axis in p.axes]) for p in parts if not p.taps]
        return tuple(p for p in parts if p.taps), tuple(box for box in every if box.size)
    return parts, ()


def _box(c: Correlation, runs: Sequence[tuple[int, int]]) -> Box:
    """The results of a run of positions, (first, count), on each axis of space."""
    y = c.y
    axes = [(c.batch, y.batch), *zip(c.groups, y.groups, strict=True), (c.width, y.channels)]
    axes += [(count, stride) for (_, count), stride in zip(runs, y.space, strict=True)]
    offset = y.offset + sum(first * stride for (first, _), stride in zip(runs, y.space, strict=True))
    return Box(tuple(axes), offset)


def _beside(c: Correlation) -> list[Box]:
    """The results that `cropped` leaves out: before and behind those on each axis in its turn."""
    inside = []
    for whole, axis in zip(c.axes, c.cropped().axes, strict=True):
        inside.append(((axis.taps.offset - whole.taps.offset) // whole.step, axis.results))
    boxes = []
    for i, (first, count) in enumerate(inside):
        end = first + count
        for run in ((0, first), (end, c.axes[i].results - end)):
            behind = [(0, axis.results) for axis in c.axes[i + 1 :]]
            boxes.append(_box(c, [*inside[:i], run, *behind]))
    return [box for box in boxes if box.size]


def _is_mostly_padding(parts: Sequence[Correlation]) -> bool:
    """True if so many results read nothing but padding that it is better to write their zeros apart."""
    if not all(part.taps for part in parts):
        return False
    read = sum(math.prod(axis.results for axis in part.cropped().axes) for part in parts)
    every = sum(math.prod(axis.results for axis in part.axes) for part in parts)
    return 0 < read < _MOSTLY * every
