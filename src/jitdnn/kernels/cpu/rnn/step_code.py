"""What the code of the steps has in common, forward and backward: the loops around the products of a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

from jitdnn.kernels.cpu.rnn.gemm import step_sums, trace_tile_chunk
from jitdnn.kernels.cpu.rnn.memory_layout import DIRECTION, STEP, Memory
from jitdnn.kernels.cpu.rnn.plan import BackwardPlan, ForwardPlan
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One step of one direction: what a task loads from the tables once.

    ``old`` and ``new`` belong to the step that ran before and to this one: the states of all sequences, or gradients of
    their gates. They swap from step to step, so that no task reads what another one writes.
    """

    memory: Memory
    layer: Value
    direction: Value
    count: Value  # sequences at this step
    start: Value  # its first row
    old: Pointer
    new: Pointer

    def saved(self, name: str) -> Pointer:
        """A section of `saved`, of the layer."""
        return self.memory.section("saved", self.memory.plan.p.kept, name, self.layer)

    def state(self, n: Value) -> Value:
        """The number of a sequence's state among those of all directions."""
        return self.direction * self.memory.integer("batch") + n


S = TypeVar("S", bound=Step)


def trace_step(
    module: Module, plan: ForwardPlan | BackwardPlan, load_step: Callable[[Builder, Memory, Value], S],
    counts: Callable[[S], tuple[Value, Value]], units: int, is_full: bool,
    cell: Callable[[Builder, S, Value, Value, Pointer], None],
) -> None:  # fmt: skip
    """Trace the task "step": the recurrent product of some blocks of units, and what follows on the sums.

    ``load_step(k, memory, direction)``; ``counts(step)``: how many sequences there are, and how many of them have sums;
    ``cell(k, step, n, unit, sums)`` is for each sequence n and vector of units. There are ``units`` of them; with
    ``is_full`` they are an integer number of blocks.
    """
    lanes, product = plan.lanes, plan.recurrent_product
    contract = trace_tile_chunk(module, "step.tile", product, plan.dtype)
    with module.task("step") as (k, args, task, thread):
        memory = Memory(k, plan, args)
        sums = memory.workspace("tiles") + thread * memory.integer("tile")
        names = ("batch", "step.each", "step.chunk", "step.blocks")
        batch, each, chunk, total = (memory.integer(name) for name in names)
        first, low = memory.counter(DIRECTION) * total, task * each
        high = (low + each).min(total)
        # every second step goes backwards: it finds in the cache what the one before read last
        is_odd = (memory.counter(STEP) & 1) == 1
        for place in k.range(low, high):
            number = first + k.select(is_odd, low + high - 1 - place, place)
            direction, block = number // plan.blocks, number % plan.blocks
            step = load_step(k, memory, direction)
            panel = memory.workspace("state_panels") + number * product.panel(lanes)
            rows = step.old + direction * batch * product.pitch
            for n, own in step_sums(k, memory, product, contract, rows, panel, sums, chunk, *counts(step)):
                for vector in range(plan.step_vectors):
                    unit = (block * plan.step_vectors + vector) * lanes
                    with nullcontext() if is_full else k.when(unit < units):
                        cell(k, step, n, unit, own + vector * lanes)


def trace_projection(
    module: Module, plan: ForwardPlan | BackwardPlan, name: str, source: str,
    load_step: Callable[[Builder, Memory, Value], S], units: int,
    store: Callable[[Builder, S, Value, Value, Value], None],
    end: Callable[[S, Value, Value], None] | None = None, ended: Callable[[S], Value] | None = None,
) -> None:  # fmt: skip
    """Trace a task, one for each block of units and direction: the product with the projection's weights.

    ``store(k, step, n, unit, sums)`` is for each sequence of the step, ``end(step, n, unit)`` for the following ones
    up to number ``ended(step)``.
    """
    lanes, product = plan.lanes, plan.projection_product
    contract = trace_tile_chunk(module, f"{name}.tile", product, plan.dtype)
    with module.task(name) as (k, args, task, thread):
        memory = Memory(k, plan, args)
        sums = memory.workspace("tiles") + thread * memory.integer("tile")
        batch = memory.integer("batch")
        direction, block = task // plan.projection_blocks, task % plan.projection_blocks
        step = load_step(k, memory, direction)
        panel = memory.workspace("projection_panels") + task * product.panel(lanes)
        rows = memory.workspace(source) + direction * batch * product.pitch
        chunk = memory.integer("second.chunk")
        for n, own in step_sums(
            k, memory, product, contract, rows, panel, sums, chunk, step.count, step.count
        ):
            for vector in range(product.vectors):
                unit = (block * product.vectors + vector) * lanes
                with k.when(unit < units):
                    store(k, step, n, unit, own.load(vector * lanes, lanes))
        if end is not None and ended is not None:
            for n in k.range(step.count, ended(step)):
                for vector in range(product.vectors):
                    unit = (block * product.vectors + vector) * lanes
                    with k.when(unit < units):
                        end(step, n, unit)
