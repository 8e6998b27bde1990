"""Tables of the sequences that each step has, and the copies between tensors and rows.

Row by row follow the sequences of step 0, of step 1, and so on, sequences ordered by length. In the workspace are

    counts[t]   sequences of step t; 0 for two steps after the last one, which stand for all that do not exist
    starts[t]   first row of step t; starts[steps] is the number of all rows
    order[n]    which sequence of the batch is number n in the order by length
"""

from __future__ import annotations

from jitdnn.kernels.cpu.rnn.memory_layout import DIRECTION, LAYER, STEP, Memory
from jitdnn.kernels.cpu.rnn.plan import STEPS_PER_TASK, RecurrentPlan
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value


def trace_tables(module: Module, plan: RecurrentPlan) -> None:
    """Trace the task "tables": counters, sequences of each step, its first row, and the order by length.

    Whatever the lengths are, no step gets more sequences than there are, nor more than the step before, and all of
    them no more rows than there are.
    """
    p = plan.p
    with module.task("tables") as (k, args, _task, _thread):
        memory = Memory(k, plan, args)
        steps, batch, rows = (memory.integer(name) for name in ("steps", "batch", "rows"))
        counts, starts, order = (memory.table(name) for name in ("counts", "starts", "order"))
        for which in (LAYER, STEP, DIRECTION):
            memory.counters.store(k.integer(0), which)
        if p.sequences == "lengths":
            _order_by_length(k, memory, steps, batch, counts, order, starts)
        else:
            for n in k.range(batch):
                order.store(n, n)
        run, most = k.register(k.integer(0)), k.register(batch)
        for t in k.range(steps):
            if p.sequences == "packed":
                wanted = memory.operand("lengths").load(t * memory.integer("lengths.u"))
                most.set(k.convert(wanted, "i64").max(0).min(most.get()).min(rows - run.get()))
                counts.store(most.get(), t)
            elif p.sequences == "whole":
                counts.store(batch, t)
            starts.store(run.get(), t)
            run += counts.load(t)
        for end in (0, 1):  # the steps before the first one and after the last one have no sequence
            counts.store(k.integer(0), steps + end)
            starts.store(run.get(), steps + end)


def _order_by_length(
    k: Builder, memory: Memory, steps: Value, batch: Value, counts: Pointer, order: Pointer, scratch: Pointer
) -> None:
    """Sort by counting, longest first. counts[t] becomes the number of sequences longer than t."""
    lengths, stride = memory.operand("lengths"), memory.integer("lengths.u")

    def length(n: Value) -> Value:
        return k.convert(lengths.load(n * stride), "i64").max(0).min(steps)

    for t in k.range(steps + 1):
        scratch.store(k.integer(0), t)
    for n in k.range(batch):
        at = length(n)
        scratch.store(scratch.load(at) + 1, at)
    run = k.register(k.integer(0))
    for i in k.range(steps + 1):
        at = steps - i
        of_this_length = scratch.load(at)
        counts.store(run.get(), at)
        scratch.store(run.get(), at)
        run += of_this_length
    for n in k.range(batch):
        at = length(n)
        number = scratch.load(at)
        order.store(n, number)
        scratch.store(number + 1, at)


def trace_counters(module: Module, plan: RecurrentPlan) -> None:
    """Trace the tasks "advance", to the next step, "turn", to the first one of the next direction, and "above" and
    "below", to the first step of another layer."""
    for name, change in (("advance", 0), ("above", 1), ("below", -1)):
        with module.task(name) as (k, args, _task, _thread):
            memory = Memory(k, plan, args)
            counters = memory.counters
            counters.store(memory.counter(STEP) + 1 if change == 0 else k.integer(0), STEP)
            if change:
                counters.store(k.integer(0), DIRECTION)
                counters.store(memory.counter(LAYER) + change, LAYER)
    with module.task("turn") as (k, args, _task, _thread):
        memory = Memory(k, plan, args)
        memory.counters.store(k.integer(0), STEP)
        memory.counters.store(memory.counter(DIRECTION) + 1, DIRECTION)
    with module.task("top") as (k, args, _task, _thread):
        memory = Memory(k, plan, args)
        memory.counters.store(memory.integer("layers") - 1, LAYER)


def trace_gather(
    module: Module,
    plan: RecurrentPlan,
    task_name: str,
    source: str,
    target: str,
    parts: int,
    size: int,
    padded: int,
) -> None:
    """Trace a task that copies some steps of x or dy to rows: `parts` runs of `size` units, padded by zeros.

    There are ceil(steps / STEPS_PER_TASK) of it.
    """
    with module.task(task_name) as (k, args, task, _thread):
        memory = Memory(k, plan, args)
        to, lanes = memory.workspace(target), memory.lanes
        counts, starts = memory.table("counts"), memory.table("starts")
        first = task * STEPS_PER_TASK
        for t in k.range(first, (first + STEPS_PER_TASK).min(memory.integer("steps"))):
            start = starts.load(t)
            for n in k.range(counts.load(t)):
                row = memory.sequence_row(source, t, n, start)
                offset = (start + n) * (parts * padded)
                for part in range(parts):
                    for unit in k.range(0, padded, lanes):
                        vector = _load_padded(k, memory, source, row, unit, size, part * size)
                        to.store(vector, offset + unit + part * padded)


def _load_padded(
    k: Builder, memory: Memory, source: str, row: Value, unit: Value, size: int, first: int
) -> Value:
    """A vector of units; those beyond `size` are not read, and 0."""
    lanes = memory.lanes
    mask = k.mask(k.integer(size) - unit, lanes)
    stride = memory.unit_stride(source)
    at = row + (unit + first) * stride
    return memory.operand(source).load_strided(at, stride, lanes, mask)


def trace_zero_rows(module: Module, plan: RecurrentPlan, task_name: str, operand: str) -> None:
    """Trace a task, one for each layer, that clears the rows after the last one that is used in all its sections."""
    p = plan.p
    sections = p.kept if operand == "saved" else p.slopes
    with module.task(task_name) as (k, args, layer, _thread):
        memory = Memory(k, plan, args)
        rows = memory.integer("rows")
        used = memory.table("starts").load(memory.integer("steps"))
        for name, width in sections.items():
            section = memory.section(operand, sections, name, layer)
            zero = k.constant(0, plan.dtype, memory.lanes)
            for at in k.range(used * (p.directions * width), rows * (p.directions * width), memory.lanes):
                section.store(zero, at)


def trace_scatter(
    module: Module, plan: RecurrentPlan, task_name: str, source: str, target: str, size: int, padded: int
) -> None:
    """Trace a task that blends some steps of rows into dx, and zeros where no sequence is."""
    p = plan.p
    with module.task(task_name) as (k, args, task, _thread):
        memory = Memory(k, plan, args)
        rows, lanes = memory.workspace(source), memory.lanes
        counts, starts = memory.table("counts"), memory.table("starts")
        first = task * STEPS_PER_TASK
        for t in k.range(first, (first + STEPS_PER_TASK).min(memory.integer("steps"))):
            start, count = starts.load(t), counts.load(t)
            for n in k.range(count):
                row = memory.sequence_row(target, t, n, start)
                offset = (start + n) * padded
                for unit in k.range(0, size, lanes):
                    memory.blend_units(target, rows.load(offset + unit, lanes), row, unit, size)
            if p.sequences == "lengths":
                zero_ended(k, memory, target, t, count, 0, size)
        if p.sequences == "packed":
            with k.when(task == 0):
                zero_tail(k, memory, target, 0, size)


def zero_ended(
    k: Builder, memory: Memory, target: str, t: Value, count: Value, first: int | Value, size: int
) -> None:
    """Zeros, blended, for the sequences that have ended before step t."""
    zero = k.constant(0, memory.plan.dtype, memory.lanes)
    for n in k.range(count, memory.integer("batch")):
        row = memory.sequence_row(target, t, n, k.integer(0))
        for unit in k.range(0, size, memory.lanes):
            memory.blend_units(target, zero, row, unit, size, first)


def zero_tail(k: Builder, memory: Memory, target: str, first: int | Value, size: int) -> None:
    """Zeros, blended, in the rows of a packed tensor that no step has: none if the counts are right."""
    zero = k.constant(0, memory.plan.dtype, memory.lanes)
    used = memory.table("starts").load(memory.integer("steps"))
    for row in k.range(used, memory.integer("rows")):
        for unit in k.range(0, size, memory.lanes):
            memory.blend_units(target, zero, row * memory.integer(f"{target}.n"), unit, size, first)
