"""Which sequences are there at which step, as tables in the workspace, and the copies between tensors and rows."""

from __future__ import annotations

from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, STEP, Code, Frame
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value

STEPS_A_TASK = 4  # of the copies


def trace_tables(module: Module, code: Code) -> None:
    """Trace the task "tables": counters, sequences of each step, its first row, and the order by length.

    Whatever the lengths are, no step gets more sequences than there are, nor more than the step before, and all of
    them no more rows than there are.
    """
    p = code.p
    with module.task("tables") as (k, args, _task, _thread):
        frame = Frame(k, code, args)
        steps, batch, rows = (frame.number(name) for name in ("steps", "batch", "rows"))
        counts, starts, order = (frame.table(name) for name in ("counts", "starts", "order"))
        for which in (LAYER, STEP):
            frame.arguments.workspace("i64").store(k.integer(0), which)
        if p.sequences == "lengths":
            _order_by_length(k, frame, steps, batch, counts, order, starts)
        else:
            for n in k.range(batch):
                order.store(n, n)
        run, most = k.register(k.integer(0)), k.register(batch)
        for t in k.range(steps):
            if p.sequences == "packed":
                wanted = frame.operand("lengths").load(t * frame.number("lengths.u"))
                most.set(k.convert(wanted, "i64").max(0).min(most.get()).min(rows - run.get()))
                counts.store(most.get(), t)
            elif p.sequences == "whole":
                counts.store(batch, t)
            starts.store(run.get(), t)
            run += counts.load(t)
        for end in (0, 1):  # a step before the first one and behind the last one has no sequence
            counts.store(k.integer(0), steps + end)
            starts.store(run.get(), steps + end)


def _order_by_length(
    k: Builder, frame: Frame, steps: Value, batch: Value, counts: Pointer, order: Pointer, room: Pointer
) -> None:
    """Sort by counting, longest first. counts[t] becomes the number of sequences longer than t."""
    lengths, stride = frame.operand("lengths"), frame.number("lengths.u")

    def length(n: Value) -> Value:
        return k.convert(lengths.load(n * stride), "i64").max(0).min(steps)

    for t in k.range(steps + 1):
        room.store(k.integer(0), t)
    for n in k.range(batch):
        at = length(n)
        room.store(room.load(at) + 1, at)
    run = k.register(k.integer(0))
    for i in k.range(steps + 1):
        at = steps - i
        of_this_length = room.load(at)
        counts.store(run.get(), at)
        room.store(run.get(), at)
        run += of_this_length
    for n in k.range(batch):
        at = length(n)
        place = room.load(at)
        order.store(n, place)
        room.store(place + 1, at)


def trace_counters(module: Module, code: Code) -> None:
    """Trace the tasks "advance", to the next step, and "above" and "below", to the first step of another layer."""
    for name, change in (("advance", 0), ("above", 1), ("below", -1)):
        with module.task(name) as (k, args, _task, _thread):
            frame = Frame(k, code, args)
            counters = frame.arguments.workspace("i64")
            counters.store(frame.counter(STEP) + 1 if change == 0 else k.integer(0), STEP)
            if change:
                counters.store(frame.counter(LAYER) + change, LAYER)
    with module.task("top") as (k, args, _task, _thread):
        frame = Frame(k, code, args)
        frame.arguments.workspace("i64").store(frame.number("layers") - 1, LAYER)


def trace_gather(
    module: Module, code: Code, task_name: str, source: str, target: str, parts: int, size: int, padded: int
) -> None:
    """Trace a task that copies some steps of x or dy to rows: `parts` runs of `size` units, padded by zeros.

    There are ceil(steps / STEPS_A_TASK) of it.
    """
    with module.task(task_name) as (k, args, task, _thread):
        frame = Frame(k, code, args)
        to, lanes = frame.work(target), frame.lanes
        counts, starts = frame.table("counts"), frame.table("starts")
        first = task * STEPS_A_TASK
        for t in k.range(first, (first + STEPS_A_TASK).min(frame.number("steps"))):
            start = starts.load(t)
            for n in k.range(counts.load(t)):
                row = frame.sequence_row(source, t, n, start)
                place = (start + n) * (parts * padded)
                for part in range(parts):
                    for unit in k.range(0, padded, lanes):
                        vector = _load_padded(k, frame, source, row, unit, size, part * size)
                        to.store(vector, place + unit + part * padded)


def _load_padded(
    k: Builder, frame: Frame, source: str, row: Value, unit: Value, size: int, first: int
) -> Value:
    """A vector of units; a whole vector beyond `size` is not touched."""
    lanes = frame.lanes
    mask = k.mask(k.integer(size) - unit, lanes)
    stride = frame.unit_stride(source)
    at = row + (unit + first) * stride
    return frame.operand(source).load_strided(at, stride, lanes, mask)


def trace_zero_rows(module: Module, code: Code, task_name: str, operand: str) -> None:
    """Trace a task, one for each layer, that clears the rows behind the last one in all its sections."""
    p = code.p
    sections = p.kept if operand == "saved" else p.slopes
    with module.task(task_name) as (k, args, layer, _thread):
        frame = Frame(k, code, args)
        rows = frame.number("rows")
        used = frame.table("starts").load(frame.number("steps"))
        for name, width in sections.items():
            place = frame.section(operand, sections, name, layer)
            zero = k.constant(0, code.dtype, frame.lanes)
            for at in k.range(used * (p.directions * width), rows * (p.directions * width), frame.lanes):
                place.store(zero, at)


def trace_scatter(
    module: Module, code: Code, task_name: str, source: str, target: str, size: int, padded: int
) -> None:
    """Trace a task that blends some steps of rows into dx, and zeros where no sequence is."""
    p = code.p
    with module.task(task_name) as (k, args, task, _thread):
        frame = Frame(k, code, args)
        rows, lanes = frame.work(source), frame.lanes
        counts, starts = frame.table("counts"), frame.table("starts")
        first = task * STEPS_A_TASK
        for t in k.range(first, (first + STEPS_A_TASK).min(frame.number("steps"))):
            start, count = starts.load(t), counts.load(t)
            for n in k.range(count):
                row = frame.sequence_row(target, t, n, start)
                place = (start + n) * padded
                for unit in k.range(0, size, lanes):
                    frame.blend_units(target, rows.load(place + unit, lanes), row, unit, size)
            if p.sequences == "lengths":
                blank(k, frame, target, t, count, 0, size)
        if p.sequences == "packed":
            with k.when(task == 0):
                blank_tail(k, frame, target, 0, size)


def blank(
    k: Builder, frame: Frame, target: str, t: Value, count: Value, first: int | Value, size: int
) -> None:
    """Zeros, blended, for the sequences that have ended before step t."""
    zero = k.constant(0, frame.code.dtype, frame.lanes)
    for n in k.range(count, frame.number("batch")):
        row = frame.sequence_row(target, t, n, k.integer(0))
        for unit in k.range(0, size, frame.lanes):
            frame.blend_units(target, zero, row, unit, size, first)


def blank_tail(k: Builder, frame: Frame, target: str, first: int | Value, size: int) -> None:
    """Zeros, blended, in the rows of a packed tensor that no step has: none if the counts are right."""
    zero = k.constant(0, frame.code.dtype, frame.lanes)
    used = frame.table("starts").load(frame.number("steps"))
    for row in k.range(used, frame.number("rows")):
        for unit in k.range(0, size, frame.lanes):
            frame.blend_units(target, zero, row * frame.number(f"{target}.n"), unit, size, first)
