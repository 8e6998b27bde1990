"""Dropout between recurrent layers: rows of a layer's outputs, or of their gradients, times the mask of the state."""

from __future__ import annotations

from collections.abc import Callable

from jitdnn.kernels.cpu.random.philox import Generator, low_words
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, Memory
from jitdnn.kernels.cpu.rnn.plan import DROPOUT_GROUPS_PER_TASK, RecurrentPlan
from jitdnn.problems.rnn_reference import DROPOUT_ROWS
from jitdnn.rtcg.builder import Module, Pointer, Value


def trace_dropout(
    module: Module, plan: RecurrentPlan, name: str, source: Callable[[Memory, Value], Pointer],
    target: Callable[[Memory, Value], Pointer],
) -> None:  # fmt: skip
    """Trace a task that applies dropout to some groups of rows of the layer below; in place where both are the same.

    Tasks: ceil(rows / DROPOUT_ROWS / DROPOUT_GROUPS_PER_TASK).
    """
    p = plan.p
    width = p.directions * p.padded_size
    with module.task(name) as (k, args, task, _thread):
        memory = Memory(k, plan, args)
        lanes, below = memory.lanes, memory.counter(LAYER) - 1
        generator = Generator(k, memory.operand("state"))
        threshold = k.splat(k.convert(memory.integer("drop.threshold"), "i32"), lanes)
        factor = k.splat(k.convert(k.bitcast(memory.integer("drop.factor"), "f64"), plan.dtype), lanes)
        groups, used = memory.integer("drop.groups"), memory.table("starts").load(memory.integer("steps"))
        data, to = source(memory, below), target(memory, below)
        each = DROPOUT_GROUPS_PER_TASK
        for group in k.range(task * each, (task * each + each).min(groups)):
            first = group * DROPOUT_ROWS
            with k.when(first < used):
                for column in k.range(0, width, lanes):
                    block = (below * groups + group) * width + column
                    words = generator.words(k.splat(block, lanes) + k.iota(lanes))
                    for number in range(DROPOUT_ROWS):
                        row = first + number
                        half = (low_words(k, words[number // 2]) >> (16 * (number % 2))) & 0xFFFF
                        with k.when(row < used):
                            at = row * width + column
                            to.store(k.select(half >= threshold, data.load(at, lanes) * factor, 0.0), at)
