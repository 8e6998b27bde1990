"""The phase of implicit GEMM that packs the filter: each task packs some channels of a panel."""

from __future__ import annotations

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import PACK_CHANNELS, ImplicitGemmPlan
from jitdnn.kernels.cpu.microkernel.packing import trace_panel, trace_panels_at_once
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, split_index
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value


def panels_of_part(plan: ImplicitGemmPlan, arguments: Arguments) -> Pointer:
    """Where the plan's panels begin, behind those of the parts before it."""
    start: Pointer = arguments.kept(plan.c.dtype) + plan.panels_before
    return start


def trace_pack(plan: ImplicitGemmPlan, module: Module, prefix: str, pointers: int, number: int) -> None:
    """Trace the tasks ``<prefix>pack<i>``; ``number`` is that of the pointer to w."""
    if plan.packs_phases_together:
        _trace_pack_together(plan, module, prefix, pointers, number)
        return
    for i, (stride_phase, panels) in enumerate(zip(plan.stride_phases, plan.panels_by_phase, strict=True)):
        c = stride_phase.c
        pack = trace_panel(module, f"{prefix}panel{i}", c, panels)
        with module.task(f"{prefix}pack{i}") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            group, first, left, panel = _part_of_panel(plan, k, task)
            w = arguments.pointer(number, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
            to = panels_of_part(plan, arguments) + plan.panel_offsets[i]
            to = to + (group * panels.count + panel) * panels.panel_size
            k.call(pack, w, to, panel * panels.lanes, first, left)


def _trace_pack_together(
    plan: ImplicitGemmPlan, module: Module, prefix: str, pointers: int, number: int
) -> None:
    """One pass over the filter fills the panels of all stride phases."""
    c, every = plan.c, plan.panels_by_phase
    pack = trace_panels_at_once(module, f"{prefix}panel", [phase.c for phase in plan.stride_phases], every)
    with module.task(f"{prefix}pack0") as (k, args, task, _):
        arguments = Arguments(k, args, pointers)
        group, first, left, panel = _part_of_panel(plan, k, task)
        w = arguments.pointer(number, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
        start = panels_of_part(plan, arguments)
        index = group * plan.panels.count + panel
        targets = [
            start + (index * panels.panel_size + offset)
            for panels, offset in zip(every, plan.panel_offsets[:-1], strict=True)
        ]
        k.call(pack, w, *targets, panel * plan.panels.lanes, first, left)


def _part_of_panel(plan: ImplicitGemmPlan, k: Builder, task: Value) -> tuple[Value, Value, Value, Value]:
    """What a task packs: the group, the first channel, how many channels, and the panel."""
    parts = ceil_div(plan.c.depth, PACK_CHANNELS)
    # neighbouring tasks read the same rows of the filter, so that they share pages
    if abs(plan.c.w.channels) < abs(plan.c.w.results):
        group, panel, part = split_index(task, (plan.c.group_count, plan.panels.count, parts))
    else:
        group, part, panel = split_index(task, (plan.c.group_count, parts, plan.panels.count))
    first = part * PACK_CHANNELS
    return group, first, (k.integer(plan.c.depth) - first).min(PACK_CHANNELS), panel
