"""Where everything of a recurrent kernel is: what is compiled in, what is passed at run time, the workspace.

Steps, batch and layers are run-time numbers, so that sequences of another length need no other code. The workspace
begins with a few counters; a phase of one task moves them on from step to step and from layer to layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.rnn import PAD, Recurrent
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

LAYER, STEP = 0, 1  # counters at the start of the workspace
_LINE = 64
SEQUENCES = ("x", "y", "dy", "dx")
STATES = ("hx", "cx", "hn", "cn", "dhn", "dcn", "dhx", "dcx")


@dataclass(frozen=True)
class Code:
    """All that is compiled in. `p` has one step, one sequence: its sizes of these are not to be used.

    A step's tile has `rows` sequences by `block` vectors of units (of each gate), a tile of the products over all
    steps `many` rows by `wide` vectors. `strided`: operands whose units are not neighbours in memory.
    """

    p: Recurrent
    rows: int
    block: int
    many: int
    wide: int
    strided: tuple[str, ...]
    slots: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """What is computed in, and kept in the workspace."""
        return compute_dtype(self.p.element)

    @property
    def pointers(self) -> int:
        return len(self.p.operands)

    @cached_property
    def first_weight(self) -> int:
        return next(i for i, operand in enumerate(self.p.operands) if operand.name.endswith("weight_ih_l0"))

    @cached_property
    def weight_names(self) -> tuple[str, ...]:
        """The weights of one layer and direction among the operands."""
        biases = () if self.p.direction == "bwd_data" else self.p.biases
        return ("weight_ih", "weight_hh", *biases, *(("weight_hr",) if self.p.projection else ()))


class Room:
    """Sections of the workspace, each on cache lines of its own; sizes in elements of the compute type."""

    def __init__(self, dtype: str, tables: int) -> None:
        self._line = _LINE // ITEM_BYTES[dtype]
        self._bytes = ITEM_BYTES[dtype]
        self.at: dict[str, int] = {}
        self.elements = ceil_div(tables * 8, _LINE) * self._line

    def add(self, name: str, elements: int) -> None:
        self.at[f"at.{name}"] = self.elements
        self.elements += ceil_div(elements, self._line) * self._line

    @property
    def bytes(self) -> int:
        return self.elements * self._bytes


def stride_names(p: Recurrent) -> list[str]:
    """Run-time numbers of the operands: steps from one (t, sequence, unit) or (layer, sequence, unit) to the next."""
    names = [o.name for o in p.operands]
    found = [f"{name}.{axis}" for name in names if name in SEQUENCES for axis in "tnu"]
    found += [f"{name}.{axis}" for name in names if name in STATES for axis in "lnu"]
    return found + ["lengths.u"] * ("lengths" in names)


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


def table_places(p: Recurrent) -> tuple[dict[str, int], int]:
    """Where the tables of 64-bit numbers begin, and where they end, in such numbers."""
    counts, starts = 8, 8 + p.steps + 2
    order = starts + p.steps + 2
    return {"at.counts": counts, "at.starts": starts, "at.order": order}, order + p.batch


class Frame:
    """The argument block of a task as the code of one phase reads it."""

    def __init__(self, k: Builder, code: Code, args: Pointer) -> None:
        self.k, self.code, self.args = k, code, args
        self.arguments = Arguments(k, args, code.pointers)
        self.lanes = k.lanes(code.dtype)
        self._numbers = Slots(*code.slots)

    def number(self, name: str) -> Value:
        """A run-time number; read in the block where it is first asked for, so ask before a loop."""
        return self.arguments.extra(self._numbers.names.index(name))  # type: ignore[no-any-return]

    def counter(self, which: int) -> Value:
        return self.arguments.workspace("i64").load(which)  # type: ignore[no-any-return]

    def table(self, name: str) -> Pointer:
        return self.arguments.workspace("i64") + self.number(f"at.{name}")  # type: ignore[no-any-return]

    def work(self, name: str) -> Pointer:
        return self.arguments.workspace(self.code.dtype) + self.number(f"at.{name}")  # type: ignore[no-any-return]

    def operand(self, name: str) -> Pointer:
        p = self.code.p
        place = p.places[name]
        dtype = p.operands[place].descriptor.dtype
        return self.arguments.pointer(place, dtype)  # type: ignore[no-any-return]

    def has(self, name: str) -> bool:
        return name in self.code.p.places

    def weight(self, name: str, layer: Value, direction: int | Value) -> Pointer:
        """A weight of a layer and direction (or where its gradient goes)."""
        code = self.code
        each = len(code.weight_names)
        slot = (layer * code.p.directions + direction) * each + (
            code.first_weight + code.weight_names.index(name)
        )
        return self.k.pointer(self.args, slot, code.p.element)

    def section(self, operand: str, sections: Mapping[str, int], name: str, layer: Value) -> Pointer:
        """A section of `saved` or `dgates` of one layer."""
        before = 0
        for other, numbers in sections.items():
            if other == name:
                break
            before += numbers
        place = (layer * sum(sections.values()) + before) * self.number("rows") * self.code.p.directions
        return self.operand(operand) + place

    def unit_stride(self, name: str) -> int | Value:
        return self.number(f"{name}.u") if name in self.code.strided else 1

    def state_row(self, name: str, layer: Value, direction: Value, sequence: Value) -> Value:
        """Offset of one sequence's state; `sequence` is its place in the order by length."""
        place = layer * self.code.p.directions + direction
        mine = self.table("order").load(sequence)
        return place * self.number(f"{name}.l") + mine * self.number(f"{name}.n")

    def sequence_row(self, name: str, t: Value, sequence: Value, start: Value) -> Value:
        """Offset of step t of a sequence in x, y or a gradient of them; `start` is the step's first row."""
        if self.code.p.sequences == "packed":
            return (start + sequence) * self.number(f"{name}.n")
        mine = self.table("order").load(sequence)
        return t * self.number(f"{name}.t") + mine * self.number(f"{name}.n")

    def mask(self, unit: Value, size: int) -> Value | None:
        """Which of a vector's units from `unit` on are among `size`; None where all always are."""
        return None if size % PAD == 0 else self.k.mask(self.k.integer(size) - unit, self.lanes)

    def load_units(self, name: str, row: Value, unit: Value, size: int, first: int | Value = 0) -> Value:
        """A vector of units of an operand; those beyond `size` are 0."""
        stride, mask = self.unit_stride(name), self.mask(unit, size)
        at = row + (first + unit) * stride
        if isinstance(stride, int):
            return self.operand(name).load(at, self.lanes, mask)
        everything = self.k.mask(self.lanes, self.lanes) if mask is None else mask
        return self.operand(name).load_strided(at, stride, self.lanes, everything)

    def store_units(self, name: str, value: Value, row: Value, unit: Value, size: int) -> None:
        stride = self.unit_stride(name)
        self.operand(name).store_strided(value, row + unit * stride, stride, self.mask(unit, size))

    def blend_units(
        self, name: str, value: Value, row: Value, unit: Value, size: int, first: int | Value = 0
    ) -> None:
        """Store alpha * value + beta * what is there."""
        k, dtype, lanes = self.k, self.code.dtype, self.lanes
        stride, mask = self.unit_stride(name), self.mask(unit, size)
        pointer, at = self.operand(name), row + (first + unit) * stride
        beta = self.arguments.beta(dtype)
        result = k.register(value * k.splat(self.arguments.alpha(dtype), lanes))
        with k.when(beta != 0.0):
            if isinstance(stride, int):
                old = pointer.load(at, lanes, mask)
            else:
                everything = k.mask(lanes, lanes) if mask is None else mask
                old = pointer.load_strided(at, stride, lanes, everything)
            result.set(k.fma(k.splat(beta, lanes), old, result.get()))
        pointer.store_strided(result.get(), at, stride, mask)
