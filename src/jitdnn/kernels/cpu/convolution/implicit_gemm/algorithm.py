"""Convolution forward and backward to the data as an implicit GEMM: packed tiles, no im2col buffer.

Any stride, dilation, padding, groups, layout and channel count. A 1x1 convolution is a plain GEMM of its
pixels; a strided dgrad is one dense correlation for each stride phase of the position (lowering.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Kept
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import FilterAlgorithm, Launch, code_key, pointer_count
from jitdnn.kernels.cpu.convolution.implicit_gemm.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles, make_plan, pack_cycles
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Geometry, ImplicitGemmPlan
from jitdnn.kernels.cpu.correlation import Correlation, InterleavedPhases
from jitdnn.kernels.cpu.lowering import lower_convolution, lower_single_position, lower_stride_phases
from jitdnn.kernels.cpu.microkernel.epilogue_store import Box, trace_scaling
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles
from jitdnn.kernels.cpu.schedule.parallel import wanted_tasks
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import ITEM_BYTES

_MOST_READING = 0.7  # of the results may read more than padding, for the others to be written separately
_MOST_STRIDE_PHASES = 16  # of a strided dgrad that are computed together: each has code of its own


class ImplicitGemm(FilterAlgorithm[Convolution]):
    """Forward and dgrad; see the module's text."""

    name = "implicit_gemm"
    problem = Convolution
    may_overwrite_operands = True

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: take implicit_gemm_filter for the filter"
        if epilogue is None or lower_single_position(problem) is None:
            return None
        if lower_single_position(problem, epilogue.operands) is None:
            return "an operand of the epilogue is not one run of channels and positions, as the image is"
        return None

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        parts = make_plans(problem, device, epilogue, self._is_kept)
        pointers = pointer_count(problem, epilogue)
        boxes, c = _scaled_only(problem, epilogue), parts[0].c

        def generate(module: Module, code: tuple[tuple[ImplicitGemmPlan, ...], tuple[Box, ...]]) -> None:
            plans, scaled = code
            if scaled:
                trace_scaling(module, "scale", c.y.dtype, c.dtype, scaled, pointers, number=2)
            for number, part in enumerate(plans):
                trace(part, module, f"part{number}_", pointers, (0, 1, 2), epilogue)

        each = [part.phases(f"part{number}_") for number, part in enumerate(parts)]
        # the whole filter first, which a caller may keep
        phases = [pack for one in each for pack in one[:-1]]
        kept, further = None, channels_last_group_cycles(problem, device)
        if self._is_kept:
            kept = Kept(parts[0].all_panel_elements * ITEM_BYTES[c.dtype], len(phases))
            further -= sum(pack_cycles(part) for part in parts)
        if boxes:
            phases.append(("scale", sum(box.tasks for box in boxes)))
        phases += [one[-1] for one in each]
        return Launch(
            problem, self.name, code_key(epilogue), generate, phases, pointers, sum(map(cycles, parts)),
            sum(p.tasks for p in parts), max(part.workspace(device.threads) for part in parts), kept=kept,
            further_cycles=further, code=(parts, boxes), imbalance=_imbalance(parts),
        )  # fmt: skip


def _imbalance(parts: Sequence[ImplicitGemmPlan]) -> float:
    """Until the last thread ends, by the mean of all, of parts one after the other."""
    each = [cycles(part) for part in parts]
    uneven = sum(own * part.blocking.imbalance for own, part in zip(each, parts, strict=True))
    return uneven / sum(each) if sum(each) else 1.0


@lru_cache(256)
def make_plans(
    problem: Convolution, device: CpuDevice, epilogue: Epilogue | None, prepacks: bool
) -> tuple[ImplicitGemmPlan, ...]:
    """A plan for each correlation that the problem is lowered to; their panels lie one behind the other."""
    operands, min_tasks = epilogue.operands if epilogue else (), wanted_tasks(device.threads)

    def plan_of(interleaved: InterleavedPhases) -> ImplicitGemmPlan:
        geometry = Geometry(interleaved.whole, device.isa, interleaved, min_tasks)
        return make_plan(geometry, device.threads, prepacks)

    product = lower_single_position(problem, operands)
    if product is not None:
        return (plan_of(InterleavedPhases.single(product.merged())),)
    parts, scaled_only = _split(problem, epilogue)
    together: ImplicitGemmPlan | None = None
    if _is_interleaved(problem):
        together = plan_of(lower_stride_phases(problem, operands))
        if scaled_only or any(part.taps != 1 for part in parts):
            return (together,)
    plans = [
        min((plan_of(InterleavedPhases.single(c.merged())) for c in part.regrouped()), key=cycles)
        for part in parts
    ]
    if together is not None and cycles(together) <= sum(cycles(plan) for plan in plans):
        return (together,)
    if len(plans) == 1:
        return tuple(plans)
    sizes = [plan.panel_elements for plan in plans]
    return tuple(
        replace(plan, panels_before=sum(sizes[:i]), panels_after=sum(sizes[i + 1 :]))
        for i, plan in enumerate(plans)
    )


def _scaled_only(problem: Convolution, epilogue: Epilogue | None) -> tuple[Box, ...]:
    """The results without products, which the plans leave out and which are only scaled."""
    operands = epilogue.operands if epilogue else ()
    if lower_single_position(problem, operands) is not None or _is_interleaved(problem):
        return ()
    return _split(problem, epilogue)[1]


def _is_interleaved(problem: Convolution) -> bool:
    return problem.direction == "bwd_data" and 1 < math.prod(problem.stride) <= _MOST_STRIDE_PHASES


@lru_cache(256)
def _split(
    problem: Convolution, epilogue: Epilogue | None
) -> tuple[tuple[Correlation, ...], tuple[Box, ...]]:
    """The correlations to compute, and the results that none of them computes.

    Those have no products and are only scaled. With an epilogue none are left out: it is applied to their sums of 0.
    """
    parts = lower_convolution(problem, epilogue.operands if epilogue else ())
    if epilogue is None and _is_mostly_padding(parts):
        boxes = [box for part in parts for box in _results_outside(part)]
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


def _results_outside(c: Correlation) -> list[Box]:
    """The results that `cropped` leaves out: on each axis those before and those behind the others."""
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
    """True if so many results read nothing but padding that writing them separately is faster."""
    if not all(part.taps for part in parts):
        return False
    read = sum(math.prod(axis.results for axis in part.cropped().axes) for part in parts)
    every = sum(math.prod(axis.results for axis in part.axes) for part in parts)
    return 0 < read < _MOST_READING * every
