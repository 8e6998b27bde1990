"""The code of pass kernels: programs over rows, traced for one layout of the loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.reduction.combine import State, combine, combine_lanes, identity, only
from jitdnn.kernels.cpu.reduction.layout import CONSTANT_STRIDES
from jitdnn.kernels.cpu.reduction.loop import Loop, Spot
from jitdnn.kernels.cpu.reduction.row_buffer import RowBuffer
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots
from jitdnn.kernels.formulas.row_programs import ARGS, Pass, Phase, Program, phases_of
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.types import INT
from jitdnn.tensor import DTYPES


@dataclass(frozen=True)
class RowCode:
    """What is compiled in. Lists of tensors have the inputs first, then the outputs."""

    program: Program
    dtypes: tuple[str, ...]
    operands: tuple[int, ...]  # the number of each tensor's pointer
    pointers: int
    plain: tuple[int, ...]  # outputs, by position, that alpha and beta do not touch
    compute: str
    places: str  # the type of positions
    over_rows: bool
    kept: int
    reduced: int
    moves: tuple[str, ...]  # from lane to lane; the last one is the position's
    of_rows: tuple[bool, ...]  # tensors that do not move along the row
    vectors: int
    unroll: int
    has_whole: bool  # units of whole vectors
    has_masked: bool  # units with lanes that stand still
    is_single: bool  # rows of one step
    is_split: bool
    is_long: bool  # sums go to wider accumulators
    streams: tuple[int, ...]  # outputs, by position, that are written past the caches
    has_head: bool  # elements before the first aligned vector are stored otherwise
    fixed: int  # elements of the inner axis, where they are few; else 0
    buffer: RowBuffer  # what later passes find in a buffer

    @property
    def inputs(self) -> int:
        return len(self.dtypes) - self.program.outputs

    def __repr__(self) -> str:
        values = [getattr(self, name) for name in self.__dataclass_fields__ if name != "program"]
        return f"{self.program.key} {values}"


def slots_of(code: RowCode) -> Slots:
    """The integers that the code takes."""
    tensors = range(len(code.dtypes) + 1)
    digits = [*(f"kept{a}" for a in range(code.kept)), "lane_blocks"]
    steps = [*(f"reduced{a}" for a in range(code.reduced)), "blocks"]
    names = ["units", "per_task", "row_per_task", "parts", "steps", "per_part", "flush", "inner", "block"]
    names += ["lanes", "row", *digits, *steps]
    for t in tensors:
        names += [f"base.{t}", f"inner.{t}", f"lane.{t}", f"first.{t}"]
        names += [f"{digit}.{t}" for digit in (*digits, *steps)]
    return Slots(*names, *(f"parameter{i}" for i in range(len(code.program.parameters))))


def functions_of(code: RowCode) -> list[tuple[str, bool]]:
    """The functions of the kernel in order, and whether each is over the parts of rows."""
    if not code.is_split:
        return [("rows", True)]
    return [(f"phase{n}", not phase.writes_rows) for n, phase in enumerate(phases_of(code.program))]


def partial_values(code: RowCode) -> int:
    """Numbers of 8 bytes that a part of a unit leaves for the phases after it."""
    names = [name for row_pass in code.program.passes for name, _ in row_pass.reductions]
    return sum(2 if name in ARGS else 1 for name in names) * (code.vectors if code.over_rows else 1)


def trace_rows(module: Module, code: RowCode) -> None:
    """Trace all functions of the kernel."""
    if not code.is_split:
        _Function(module, code, "rows", None)
        return
    for number, phase in enumerate(phases_of(code.program)):
        _Function(module, code, f"phase{number}", phase, goes_back=number % 2 == 1)


class _Function:
    """One function: the loop over its units."""

    def __init__(
        self, module: Module, code: RowCode, name: str, phase: Phase | None, goes_back: bool = False
    ) -> None:
        self.code, self.phase = code, phase
        splits = phase is not None and not phase.writes_rows
        with module.task(name) as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(code.compute)
            self.arguments = Arguments(k, args, code.pointers)
            self.at = at = slots_of(code).load(self.arguments)
            self.alpha = self.arguments.alpha(code.compute)
            self.beta = self.arguments.beta(code.compute)
            tensors = range(len(code.dtypes) + 1)
            digits = [*(f"kept{a}" for a in range(code.kept)), *(["lane_blocks"] if code.over_rows else [])]
            extents = [at[digit] for digit in digits] or [k.integer(1)]
            strides = [[at[f"{digit}.{t}"] for digit in digits] or [k.integer(0)] for t in tensors]
            if splits:
                # parts in the outer loop: those of all rows lie together where rows are interleaved
                extents, strides = [at["parts"], *extents], [[k.integer(0), *s] for s in strides]
            pointers = [
                self.arguments.pointer(operand, dtype)
                for operand, dtype in zip(code.operands, code.dtypes, strict=True)
            ]
            per_task = at["row_per_task"] if phase is not None and phase.writes_rows else at["per_task"]
            units = at["units"] * at["parts"] if splits else at["units"]
            self.buffer = k.local(code.compute, code.buffer.size) if code.buffer.items else None
            self.is_aligned = self._alignment(pointers) if code.streams and not code.has_head else None
            first = task * per_task
            counter = Counter(k, first, extents, strides, [at[f"base.{t}"] for t in tensors])
            for number in k.range(first, (first + per_task).min(units)):
                here = [p + o.get() for p, o in zip(pointers, counter.offsets[:-1], strict=True)]
                part, unit = k.integer(0), number
                if splits:
                    unit = number - counter.digits[0].get() * at["units"]
                    part = counter.digits[0].get()
                    if goes_back:  # what the phase before read last is still in the cache
                        part = at["parts"] - 1 - part
                block = counter.digits[-1].get() if code.over_rows else None
                self._unit(here, counter.offsets[-1].get(), unit, part, block)
                counter.advance()

    def _unit(self, here: list[Pointer], place: Value, unit: Value, part: Value, block: Value | None) -> None:
        k, code, lanes = self.k, self.code, self.lanes
        if block is None:
            Row(self, here, place, unit, part, [None]).run()
            return
        width = lanes * code.vectors
        left = self.at["lanes"] - block * width
        if code.has_whole and code.has_masked:
            with k.when(left >= width):
                Row(self, here, place, unit, part, [None] * code.vectors).run()
            with k.when(left < width):
                Row(self, here, place, unit, part, self._masks(left)).run()
        else:
            masks = self._masks(left) if code.has_masked else [None] * code.vectors
            Row(self, here, place, unit, part, masks).run()

    def _alignment(self, pointers: Sequence[Pointer]) -> Value:
        """Whether the outputs that are streamed begin at whole vectors; all their strides are such already."""
        k, code = self.k, self.code
        apart = k.integer(0)
        for output in code.streams:
            t = code.inputs + output
            start = Value(k, k.b.ptrtoint((pointers[t] + self.at[f"base.{t}"]).v, INT))
            apart = apart | (start & (self.lanes * DTYPES[code.dtypes[t]] - 1))
        return apart == 0

    def _masks(self, left: Value) -> list[Value | None]:
        return [self.k.mask(left - v * self.lanes, self.lanes) for v in range(self.code.vectors)]


class Row:
    """One unit: its rows, from the first pass to the last."""

    def __init__(
        self, function: _Function, here: list[Pointer], place: Value, unit: Value, part: Value,
        masks: Sequence[Value | None],
    ) -> None:  # fmt: skip
        self.function, self.k, self.code = function, function.k, function.code
        self.at, self.lanes = function.at, function.lanes
        self.here, self.place, self.unit, self.part, self.masks = here, place, unit, part, masks
        self.slots = len(masks)
        # one for each slot; a single number each where vectors go along the row
        self.values: list[list[Value]] = [
            [self._parameter(n)] * self.slots for n in range(len(self.code.program.parameters))
        ]
        self.own: dict[int, list[Value]] = {}  # inputs that do not move along the row

    def _parameter(self, number: int) -> Value:
        bits = self.k.bitcast(self.at[f"parameter{number}"], "f64")
        return self.k.convert(bits, self.code.compute)

    # ---- order of work

    def run(self) -> None:
        passes, phase = self.code.program.passes, self.function.phase
        if phase is None:
            for number in range(len(passes)):
                self._pass(number)
            self._write_rows()
            return
        for number in range(phase.first):
            self._restore(number)
        if phase.writes_rows:
            for number in range(phase.first, phase.end):
                self._pass(number)
            self._write_rows()
            return
        for number in range(phase.first, phase.end):
            self._pass(number, keeps_partial=True)

    def _pass(self, number: int, keeps_partial: bool = False) -> None:
        row_pass = self.code.program.passes[number]
        loop = Loop(self, number)
        firsts = {n: loop.first(e) for n, (name, e) in enumerate(row_pass.reductions) if name == "first"}
        results = loop.run() if row_pass.loops else {}
        states = [firsts[n] if n in firsts else results[n] for n in range(len(row_pass.reductions))]
        if keeps_partial:
            self._keep_partial(number, states)
        self._add_values(row_pass, states)

    def _add_values(self, row_pass: Pass, states: Sequence[Sequence[State]]) -> None:
        k, code = self.k, self.code
        for per_slot in states:
            for item in range(len(per_slot[0])):
                values = [state[item] for state in per_slot]
                self.values.append([k.convert(v, code.compute) if v.is_float else v for v in values])
        for expression in row_pass.scalars:
            self.values.append([self._scalar(expression, slot) for slot in range(self.slots)])

    def _scalar(self, expression: Expression, slot: int) -> Value:
        values = [self.number(value[slot]) for value in self.values[: expression.arity]]
        return lower(self.k, expression, values)

    def number(self, value: Value) -> Value:
        """A row value as expressions see it: positions become real numbers."""
        return value if value.is_float else self.k.convert(value, self.code.compute)

    def _write_rows(self) -> None:
        k, code = self.k, self.code
        for output, number in code.program.row_outputs:
            t = code.inputs + output
            for slot, mask in enumerate(self.masks):
                value = self.values[number][slot]
                shift, stride = (slot * self.lanes, self.lane_stride(t)) if code.over_rows else (0, 1)
                pointer = self.moved(self.here[t], t, shift)
                if value.is_float:
                    lanes = self.lanes if code.over_rows else 1
                    self.store(output, pointer, stride, k.splat(value, lanes), mask)
                else:
                    pointer.store_strided(k.convert(value, pointer.dtype), 0, stride, mask)

    # ---- elements in memory

    def lane_stride(self, t: int) -> Value | int:
        """How far a tensor moves from lane to lane; of the position for the number behind the last tensor."""
        move = self.code.moves[t]
        if move in CONSTANT_STRIDES:
            return CONSTANT_STRIDES[move]
        return self.at[f"lane.{t}"]

    def moved(self, pointer: Pointer, t: int, lanes: Value | int) -> Pointer:
        stride = self.lane_stride(t)
        if isinstance(stride, int):
            return pointer if stride == 0 else pointer + lanes * stride
        return pointer + stride * lanes

    def load(self, t: int, spot: Spot) -> Value:
        """Lanes of an input."""
        code = self.code
        stride = self.lane_stride(t)
        pointer = self.moved(spot.pointers[t], t, spot.shift).as_real(code.compute)
        if isinstance(stride, int) and stride == 0:
            return pointer.load(0)
        return pointer.load_strided(0, stride, self.lanes, spot.mask)

    def load_own(self, t: int) -> list[Value]:
        """An input that does not move along the row, for each slot."""
        if t not in self.own:
            code, pointer = self.code, self.here[t].as_real(self.code.compute)
            if not code.over_rows:
                self.own[t] = [pointer.load(0)]
            else:
                stride, values = self.lane_stride(t), []
                for slot, mask in enumerate(self.masks):
                    there = self.moved(pointer, t, slot * self.lanes)
                    is_same = isinstance(stride, int) and stride == 0
                    values.append(
                        there.load(0) if is_same else there.load_strided(0, stride, self.lanes, mask)
                    )
                self.own[t] = values
        return self.own[t]

    def store(
        self, output: int, pointer: Pointer, stride: Value | int, value: Value, mask: Value | None,
        blends: bool | None = None, streams: bool = False,
    ) -> None:  # fmt: skip
        """Store a result; `blends` tells whether beta is other than 0 if that is known."""
        k, function = self.k, self.function
        target = pointer.as_real(self.code.compute)
        if output in self.code.plain:
            target.stream(value) if streams else target.store_strided(value, 0, stride, mask)
            return
        scaled = value * k.splat(function.alpha, value.lanes)
        if blends is None:
            result = k.register(scaled)
            with k.when(function.beta != 0.0):
                result.set(self._blended(target, stride, scaled, mask))
            scaled = result.get()
        elif blends:
            scaled = self._blended(target, stride, scaled, mask)
        target.stream(scaled) if streams else target.store_strided(scaled, 0, stride, mask)

    def _blended(self, target: Pointer, stride: Value | int, scaled: Value, mask: Value | None) -> Value:
        old = target.load_strided(0, stride, scaled.lanes, mask)
        return self.k.fma(self.k.splat(self.function.beta, scaled.lanes), old, scaled)

    # ---- parts of rows

    def _cell(self, part: Value, row_pass: int, reduction: int, item: int, slot: int, dtype: str) -> Pointer:
        """Where a part's result of a reduction is in the workspace."""
        code = self.code
        number = 0
        for s, other in enumerate(code.program.passes):
            for r, (name, _) in enumerate(other.reductions):
                if (s, r) < (row_pass, reduction):
                    number += 2 if name in ARGS else 1
        number = (number + item) * self.slots + slot
        at = (self.unit * partial_values(code) + number) * self.at["parts"] + part
        workspace: Pointer = self.function.arguments.workspace(dtype)
        return workspace + at * self._width

    def _keep_partial(self, number: int, states: Sequence[Sequence[State]]) -> None:
        for r, per_slot in enumerate(states):
            for slot, state in enumerate(per_slot):
                for item, value in enumerate(state):
                    dtype = "f64" if value.is_float else "i64"
                    cell = self._cell(self.part, number, r, item, slot, dtype)
                    cell.store(self.k.convert(self.k.splat(value, self._width), dtype))

    @property
    def _width(self) -> int:
        return self.lanes if self.code.over_rows else 1

    def _restore(self, number: int) -> None:
        """The row values of a pass from the results of all parts, first to last."""
        row_pass = self.code.program.passes[number]
        states = [
            [self._joined_parts(number, r, name, slot) for slot in range(self.slots)]
            for r, (name, _) in enumerate(row_pass.reductions)
        ]
        self._add_values(row_pass, states)

    def _joined_parts(self, number: int, reduction: int, name: Reduction, slot: int) -> State:
        """Along rows a vector of parts is taken at a time, across them each lane has its own."""
        k, parts = self.k, self.at["parts"]
        dtypes = ("f64", "i64") if name in ARGS else ("f64",)
        cells = [
            self._cell(k.integer(0), number, reduction, i, slot, dtype) for i, dtype in enumerate(dtypes)
        ]
        if name == "first":
            return tuple(cell.load(0, self._width) for cell in cells)
        lanes = self._width if self.code.over_rows else k.lanes("f64")
        nothing = identity(k, name, "f64", "i64", lanes)
        total = [k.register(value) for value in nothing]
        for part in k.range(0, parts, 1 if self.code.over_rows else lanes):
            mask = None if self.code.over_rows else k.mask(parts - part, lanes)
            loaded = tuple(cell.load(part * self._width, lanes, mask) for cell in cells)
            state = combine(k, name, tuple(t.get() for t in total), only(k, name, loaded, nothing, mask))
            for register, value in zip(total, state, strict=True):
                register.set(value)
        result = tuple(t.get() for t in total)
        return result if self.code.over_rows else combine_lanes(k, name, result)
