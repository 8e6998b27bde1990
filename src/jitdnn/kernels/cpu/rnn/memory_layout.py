"""The memory of a recurrent kernel: sections of the workspace, and operands and run-time integers in traced code.

Steps, batch and layers are run-time integers, so that sequences of another length need no other code. The workspace
begins with what is made of the weights alone, which a caller may keep; then follow a few counters, which phases of one
task advance from step to step, from direction to direction and from layer to layer, tables of 64-bit integers
(sequence_tables.py), and sections of the type of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.rnn.plan import SEQUENCES, STATES, RecurrentPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.rnn import PAD, Recurrent
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES

LAYER, STEP, DIRECTION = 0, 1, 2  # counters
# sections that follow from the weights alone
OF_WEIGHTS = ("input_panels", "state_panels", "projection_panels", "bias", "new_bias")
_LINE = 64


class Workspace:
    """Sections of the workspace, each on cache lines of its own; sizes in elements of the compute type.

    Those of the weights come first, then the tables, of so many 64-bit integers, then the others.
    """

    def __init__(self, dtype: str, sections: Mapping[str, int], tables: int) -> None:
        self._line = _LINE // ITEM_BYTES[dtype]
        self._bytes = ITEM_BYTES[dtype]
        self.bases: dict[str, int] = {}
        self.elements = 0
        for name in OF_WEIGHTS:
            self.add(name, sections.get(name, 0))
        self.bytes_of_weights = self.bytes
        self.bases["base.counters"] = self.bytes // 8
        self.elements += ceil_div(tables * 8, _LINE) * self._line
        for name, elements in sections.items():
            if name not in OF_WEIGHTS:
                self.add(name, elements)

    def add(self, name: str, elements: int) -> None:
        self.bases[f"base.{name}"] = self.elements
        self.elements += ceil_div(elements, self._line) * self._line

    @property
    def bytes(self) -> int:
        return self.elements * self._bytes


def strides_of(p: Recurrent) -> dict[str, int]:
    """The values of `stride_names`."""
    values: dict[str, int] = {}
    for operand in p.operands:
        name, strides = operand.name, operand.descriptor.strides
        if name in SEQUENCES:
            if p.sequences == "packed":
                strides = (0, *strides)
            elif p.is_batch_major:
                strides = (strides[1], strides[0], strides[2])
            values |= zip((f"{name}.{axis}" for axis in "tnu"), strides, strict=True)
        elif name in STATES:
            values |= zip((f"{name}.{axis}" for axis in "lnu"), strides, strict=True)
        elif name == "lengths":
            values["lengths.u"] = strides[0]
    return values


def table_bases(p: Recurrent) -> tuple[dict[str, int], int]:
    """Where the tables of 64-bit integers begin, and where they end, in such integers."""
    counts, starts = 8, 8 + p.steps + 2
    order = starts + p.steps + 2
    return {"base.counts": counts, "base.starts": starts, "base.order": order}, order + p.batch


class Memory:
    """Operands, workspace and run-time integers as the code of one task reads them."""

    def __init__(self, k: Builder, plan: RecurrentPlan, args: Pointer) -> None:
        self.k, self.plan, self.args = k, plan, args
        self.arguments = Arguments(k, args, plan.pointers)
        self.lanes = plan.lanes
        self._slots = plan.slots

    def integer(self, name: str) -> Value:
        """A run-time integer. It is loaded where this is called: call it before a loop."""
        return self.arguments.extra(self._slots.index(name))  # type: ignore[no-any-return]

    @property
    def counters(self) -> Pointer:
        return self.arguments.workspace("i64") + self.integer("base.counters")  # type: ignore[no-any-return]

    def counter(self, which: int) -> Value:
        return self.counters.load(which)

    @property
    def packed_layer(self) -> Value:
        """The layer whose weights are packed: of a single one they are before there are counters."""
        return self.k.integer(0) if self.plan.p.layers == 1 else self.counter(LAYER)

    def table(self, name: str) -> Pointer:
        return self.counters + self.integer(f"base.{name}")

    def workspace(self, name: str) -> Pointer:
        memory = self.arguments.kept if name in OF_WEIGHTS else self.arguments.workspace
        return memory(self.plan.dtype) + self.integer(f"base.{name}")  # type: ignore[no-any-return]

    def operand(self, name: str) -> Pointer:
        p = self.plan.p
        number = p.places[name]
        dtype = p.operands[number].descriptor.dtype
        return self.arguments.pointer(number, dtype)  # type: ignore[no-any-return]

    def weight(self, name: str, layer: Value, direction: int | Value) -> Pointer:
        """A weight of a layer and direction, or its gradient."""
        plan = self.plan
        each = len(plan.weight_names)
        slot = (layer * plan.p.directions + direction) * each + (
            plan.first_weight + plan.weight_names.index(name)
        )
        return self.k.pointer(self.args, slot, plan.p.element)

    def section(self, operand: str, sections: Mapping[str, int], name: str, layer: Value) -> Pointer:
        """A section of `saved` or `dgates` of one layer."""
        before = 0
        for other, elements in sections.items():
            if other == name:
                break
            before += elements
        offset = (layer * sum(sections.values()) + before) * self.integer("rows") * self.plan.p.directions
        return self.operand(operand) + offset

    def unit_stride(self, name: str) -> int | Value:
        return self.integer(f"{name}.u") if name in self.plan.strided else 1

    def state_row(self, name: str, layer: Value, direction: Value, sequence: Value) -> Value:
        """Offset of one sequence's state; `sequence` is its number in the order by length."""
        state = layer * self.plan.p.directions + direction
        original = self.table("order").load(sequence)
        return state * self.integer(f"{name}.l") + original * self.integer(f"{name}.n")

    def sequence_row(self, name: str, t: Value, sequence: Value, start: Value) -> Value:
        """Offset of step t of a sequence in x, y or a gradient of them; `start` is the step's first row."""
        if self.plan.p.sequences == "packed":
            return (start + sequence) * self.integer(f"{name}.n")
        original = self.table("order").load(sequence)
        return t * self.integer(f"{name}.t") + original * self.integer(f"{name}.n")

    def mask(self, unit: Value, size: int) -> Value | None:
        """The mask of a vector of units from `unit` on, of `size`; None where no mask is ever needed."""
        return None if size % PAD == 0 else self.k.mask(self.k.integer(size) - unit, self.lanes)

    def load_units(self, name: str, row: Value, unit: Value, size: int, first: int | Value = 0) -> Value:
        """A vector of units of an operand; those beyond `size` are 0."""
        stride, mask = self.unit_stride(name), self.mask(unit, size)
        at = row + (first + unit) * stride
        if isinstance(stride, int):
            return self.operand(name).load(at, self.lanes, mask)
        all_lanes = self.k.mask(self.lanes, self.lanes) if mask is None else mask
        return self.operand(name).load_strided(at, stride, self.lanes, all_lanes)

    def store_units(self, name: str, value: Value, row: Value, unit: Value, size: int) -> None:
        stride = self.unit_stride(name)
        self.operand(name).store_strided(value, row + unit * stride, stride, self.mask(unit, size))

    def blend_units(
        self, name: str, value: Value, row: Value, unit: Value, size: int, first: int | Value = 0
    ) -> None:
        """Store alpha * value + beta * old."""
        k, dtype, lanes = self.k, self.plan.dtype, self.lanes
        stride, mask = self.unit_stride(name), self.mask(unit, size)
        pointer, at = self.operand(name), row + (first + unit) * stride
        beta = self.arguments.beta(dtype)
        result = k.register(value * k.splat(self.arguments.alpha(dtype), lanes))
        with k.when(beta != 0.0):
            if isinstance(stride, int):
                old = pointer.load(at, lanes, mask)
            else:
                all_lanes = k.mask(lanes, lanes) if mask is None else mask
                old = pointer.load_strided(at, stride, lanes, all_lanes)
            result.set(k.fma(k.splat(beta, lanes), old, result.get()))
        pointer.store_strided(result.get(), at, stride, mask)
