"""Dropout between recurrent layers: rows of a layer's outputs, or of their gradients, times the mask of the state."""

from __future__ import annotations

from collections.abc import Callable

from jitdnn.kernels.cpu.random.philox import Generator, low_words
from jitdnn.kernels.cpu.rnn.memory_layout import LAYER, Code, Frame
from jitdnn.problems.rnn_reference import DROPOUT_ROWS
from jitdnn.rtcg.builder import Module, Pointer, Value

GROUPS_A_TASK = 4


def trace_dropout(
    module: Module, code: Code, name: str, source: Callable[[Frame, Value], Pointer],
    target: Callable[[Frame, Value], Pointer],
) -> None:  # fmt: skip
    """Trace a task that copies some groups of rows of the layer below, dropped; both may be the same memory.

    Tasks: ceil(rows / DROPOUT_ROWS / GROUPS_A_TASK).
    """
    p = code.p
    width = p.directions * p.padded_size
    with module.task(name) as (k, args, task, _thread):
        frame = Frame(k, code, args)
        lanes, below = frame.lanes, frame.counter(LAYER) - 1
        generator = Generator(k, frame.operand("state"))
        threshold = k.splat(k.convert(frame.number("drop.threshold"), "i32"), lanes)
        factor = k.splat(k.convert(k.bitcast(frame.number("drop.factor"), "f64"), code.dtype), lanes)
        groups, used = frame.number("drop.groups"), frame.table("starts").load(frame.number("steps"))
        data, to = source(frame, below), target(frame, below)
        for group in k.range(task * GROUPS_A_TASK, (task * GROUPS_A_TASK + GROUPS_A_TASK).min(groups)):
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
