"""The phase of implicit GEMM that packs the filter: every task some channels of a panel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.microkernel.packing import trace_panel, trace_panels_at_once
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, split_index
from jitdnn.rtcg.builder import Builder, Module, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan

PANEL_CHUNK = 64  # channels that one packing task copies


def trace_pack(plan: ImplicitGemmPlan, module: Module, prefix: str, pointers: int, number: int) -> None:
    """Trace the tasks ``<prefix>pack<i>``; ``number`` is that of the pointer to w."""
    if plan.is_packed_at_once:
        _trace_pack_at_once(plan, module, prefix, pointers, number)
        return
    for i, (stride_phase, panels) in enumerate(
        zip(plan.several.stride_phases, plan.every_panels, strict=True)
    ):
        c = stride_phase.c
        pack = trace_panel(module, f"{prefix}panel{i}", c, panels)
        with module.task(f"{prefix}pack{i}") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            group, first, left, panel = _chunk(plan, k, task)
            w = arguments.pointer(number, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
            to = plan.filter_panels(arguments) + plan.panel_starts[i]
            to = to + (group * panels.count + panel) * panels.panel_size
            k.call(pack, w, to, panel * panels.lanes, first, left)


def _trace_pack_at_once(
    plan: ImplicitGemmPlan, module: Module, prefix: str, pointers: int, number: int
) -> None:
    c, every = plan.c, plan.every_panels
    pack = trace_panels_at_once(module, f"{prefix}panel", [r.c for r in plan.several.stride_phases], every)
    with module.task(f"{prefix}pack0") as (k, args, task, _):
        arguments = Arguments(k, args, pointers)
        group, first, left, panel = _chunk(plan, k, task)
        w = arguments.pointer(number, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
        start = plan.filter_panels(arguments)
        place = group * plan.panels.count + panel
        targets = [
            start + (place * panels.panel_size + begin)
            for panels, begin in zip(every, plan.panel_starts[:-1], strict=True)
        ]
        k.call(pack, w, *targets, panel * plan.panels.lanes, first, left)


def _chunk(plan: ImplicitGemmPlan, k: Builder, task: Value) -> tuple[Value, Value, Value, Value]:
    """What a task packs: the group, the first channel, how many, and the panel."""
    chunks = ceil_div(plan.c.depth, PANEL_CHUNK)
    # neighbouring tasks read the same rows of the filter: their pages are at hand
    if abs(plan.c.w.channels) < abs(plan.c.w.results):
        group, panel, chunk = split_index(task, (plan.c.group_count, plan.panels.count, chunks))
    else:
        group, chunk, panel = split_index(task, (plan.c.group_count, chunks, plan.panels.count))
    first = chunk * PANEL_CHUNK
    return group, first, (k.integer(plan.c.depth) - first).min(PANEL_CHUNK), panel
