"""Grouped convolution of channels-last images, forward and backward to the data.

Any rank, stride, dilation, padding and size of the groups, but that every result must meet a tap. The channels of x
and of y must follow each other in memory. See plan.py.

A NaN or an infinity stays in its group: the groups that share a vector are in lanes of their own, and no lane
multiplies an element of another group, not even by zero.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Kept
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import FilterAlgorithm, Launch, code_key, pointer_count
from jitdnn.kernels.cpu.convolution.grouped.code import trace
from jitdnn.kernels.cpu.convolution.grouped.cost import choose_plan, cycles, pack_cycles
from jitdnn.kernels.cpu.convolution.grouped.packing import has_contiguous_channels
from jitdnn.kernels.cpu.correlation import InterleavedPhases
from jitdnn.kernels.cpu.lowering import lower_convolution, lower_stride_phases
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.isa import ITEM_BYTES


class Grouped(FilterAlgorithm[Convolution]):
    """fprop and dgrad; the loop nest is drawn in plan.py."""

    name = "grouped"
    problem = Convolution
    may_overwrite_operands = True

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: grouped_filter computes the filter's gradient"
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        if not _is_supported(_lowered(problem, epilogue)):
            return (
                "the channels of all images must follow each other in memory, as they do in nhwc, and a strided "
                "backward data must have taps for every position"
            )
        return None

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan = choose_plan(_lowered(problem, epilogue), device.isa)
        pointers = pointer_count(problem, epilogue)
        kept, further = None, 0.0
        if self._is_kept:
            kept, further = Kept(plan.weight_elements * ITEM_BYTES[plan.c.dtype], 1), -pack_cycles(plan)
        return Launch(
            problem, self.name, code_key(epilogue), lambda module, code: trace(module, code, pointers, epilogue),
            plan.phases(), pointers, cycles(plan), plan.tasks, plan.workspace(device.threads), code=plan, kept=kept,
            further_cycles=further,
        )  # fmt: skip


def _is_supported(interleaved: InterleavedPhases) -> bool:
    """True if the channels of all tensors are neighbours in memory, and every result meets a tap."""
    c = interleaved.whole
    if c.groups[0] == 1 or not has_contiguous_channels(c) or interleaved.has_phases_without_taps:
        return False
    return all(v.groups == (c.width,) and (c.width == 1 or v.channels == 1) for v in c.operands)


@lru_cache(256)
def _lowered(problem: Convolution, epilogue: Epilogue | None) -> InterleavedPhases:
    operands = epilogue.operands if epilogue else ()
    if problem.direction == "bwd_data" and math.prod(problem.stride) > 1:
        return lower_stride_phases(problem, operands)
    (c,) = lower_convolution(problem, operands)
    return InterleavedPhases.single(c)
