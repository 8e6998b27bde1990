"""The code of sweep kernels: programs over rows, traced for one layout of the loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.loops import Counter, Slots
from jitdnn.kernels.cpu.sweeps_fold import State, fold, fold_all, fold_lanes, identity, only
from jitdnn.kernels.cpu.sweeps_layout import REPEATED, UNIT
from jitdnn.kernels.cpu.sweeps_program import ARGS, Phase, Program, Stage, Sweep, phases_of
from jitdnn.rtcg.builder import Module, Pointer, Register, Value
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.types import INT
from jitdnn.tensor import DTYPES


@dataclass(frozen=True)
class SweepCode:
    """What is compiled in. Lists of tensors have the inputs first, then the outputs."""

    program: Program
    dtypes: tuple[str, ...]
    operands: tuple[int, ...]  # the number of each tensor's pointer
    pointers: int
    plain: tuple[int, ...]  # outputs, by position, that alpha and beta do not touch
    compute: str
    places: str  # the type of positions
    is_across: bool
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
    stage: Stage  # what later sweeps find in a buffer

    @property
    def inputs(self) -> int:
        return len(self.dtypes) - self.program.outputs

    def __repr__(self) -> str:
        values = [getattr(self, name) for name in self.__dataclass_fields__ if name != "program"]
        return f"{self.program.key} {values}"


def slots_of(code: SweepCode) -> Slots:
    """The integers that the code takes."""
    tensors = range(len(code.dtypes) + 1)
    digits = [*(f"kept{a}" for a in range(code.kept)), "lane_blocks"]
    steps = [*(f"reduced{a}" for a in range(code.reduced)), "blocks"]
    names = ["units", "per_task", "row_per_task", "parts", "steps", "per_part", "flush", "inner", "block"]
    names += ["lanes", "row", *digits, *steps]
    for t in tensors:
        names += [f"base.{t}", f"inner.{t}", f"lane.{t}"]
        names += [f"{digit}.{t}" for digit in (*digits, *steps)]
    return Slots(*names, *(f"parameter{i}" for i in range(len(code.program.parameters))))


def functions_of(code: SweepCode) -> list[tuple[str, bool]]:
    """The functions of the kernel in order, and whether each is over the parts of rows."""
    if not code.is_split:
        return [("sweeps", True)]
    return [(f"phase{n}", not phase.writes_rows) for n, phase in enumerate(phases_of(code.program))]


def partial_values(code: SweepCode) -> int:
    """Numbers of 8 bytes that a part of a unit leaves for the phases after it."""
    names = [name for sweep in code.program.sweeps for name, _ in sweep.reductions]
    return sum(2 if name in ARGS else 1 for name in names) * (code.vectors if code.is_across else 1)


def trace_sweeps(module: Module, code: SweepCode) -> None:
    """Trace all functions of the kernel."""
    if not code.is_split:
        _Function(module, code, "sweeps", None)
        return
    for number, phase in enumerate(phases_of(code.program)):
        _Function(module, code, f"phase{number}", phase)


class _Function:
    """One function: the loop over its units."""

    def __init__(self, module: Module, code: SweepCode, name: str, phase: Phase | None) -> None:
        self.code, self.phase = code, phase
        splits = phase is not None and not phase.writes_rows
        with module.task(name) as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(code.compute)
            self.arguments = Arguments(k, args, code.pointers)
            self.at = at = slots_of(code).load(self.arguments)
            self.alpha = self.arguments.alpha(code.compute)
            self.beta = self.arguments.beta(code.compute)
            tensors = range(len(code.dtypes) + 1)
            digits = [*(f"kept{a}" for a in range(code.kept)), *(["lane_blocks"] if code.is_across else [])]
            extents = [at[digit] for digit in digits] or [k.integer(1)]
            strides = [[at[f"{digit}.{t}"] for digit in digits] or [k.integer(0)] for t in tensors]
            if (
                splits
            ):  # parts in the outer loop: the first of every row lie together where rows are interleaved
                extents, strides = [at["parts"], *extents], [[k.integer(0), *s] for s in strides]
            pointers = [
                self.arguments.pointer(operand, dtype)
                for operand, dtype in zip(code.operands, code.dtypes, strict=True)
            ]
            per_task = at["row_per_task"] if phase is not None and phase.writes_rows else at["per_task"]
            units = at["units"] * at["parts"] if splits else at["units"]
            self.stage = k.local(code.compute, code.stage.size) if code.stage.items else None
            self.is_aligned = self._alignment(pointers) if code.streams and code.is_across else None
            first = task * per_task
            counter = Counter(k, first, extents, strides, [at[f"base.{t}"] for t in tensors])
            for number in k.range(first, (first + per_task).min(units)):
                here = [p + o.get() for p, o in zip(pointers, counter.offsets[:-1], strict=True)]
                part = counter.digits[0].get() if splits else k.integer(0)
                unit = number - part * at["units"] if splits else number
                block = counter.digits[-1].get() if code.is_across else None
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


@dataclass(frozen=True)
class Spot:
    """One vector of elements: whose row values it has, where it is in each tensor, and its mask.

    A slot has row values of its own: a vector of a unit across rows, the row itself along it. `shift` counts lanes
    from the pointers on.
    """

    slot: int
    pointers: Sequence[Pointer]
    shift: Value | int
    stage: Value | int  # where in the stage
    mask: Value | None
    place: Value  # the first lane's position in the row


class Row:
    """One unit: its rows, from the first sweep to the last."""

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
        sweeps, phase = self.code.program.sweeps, self.function.phase
        if phase is None:
            for number in range(len(sweeps)):
                self._sweep(number)
            self._write_rows()
            return
        for number in range(phase.first):
            self._restore(number)
        if phase.writes_rows:
            for number in range(phase.first, phase.end):
                self._sweep(number)
            self._write_rows()
            return
        for number in range(phase.first, phase.end):
            self._sweep(number, keeps_partial=True)

    def _sweep(self, number: int, keeps_partial: bool = False) -> None:
        sweep = self.code.program.sweeps[number]
        loop = Loop(self, number)
        firsts = {n: loop.first(e) for n, (name, e) in enumerate(sweep.reductions) if name == "first"}
        folded = loop.run() if sweep.loops else {}
        states = [firsts[n] if n in firsts else folded[n] for n in range(len(sweep.reductions))]
        if keeps_partial:
            self._keep_partial(number, states)
        self._add_values(sweep, states)

    def _add_values(self, sweep: Sweep, states: Sequence[Sequence[State]]) -> None:
        k, code = self.k, self.code
        for per_slot in states:
            for item in range(len(per_slot[0])):
                values = [state[item] for state in per_slot]
                self.values.append([k.convert(v, code.compute) if v.is_float else v for v in values])
        for expression in sweep.scalars:
            self.values.append([self._scalar(expression, slot) for slot in range(self.slots)])

    def _scalar(self, expression: Expression, slot: int) -> Value:
        values = [self._number(value[slot]) for value in self.values[: expression.arity]]
        return lower(self.k, expression, values)

    def _number(self, value: Value) -> Value:
        """A row value as expressions see it: positions become real numbers."""
        return value if value.is_float else self.k.convert(value, self.code.compute)

    def _write_rows(self) -> None:
        k, code = self.k, self.code
        for output, number in code.program.row_outputs:
            t = code.inputs + output
            for slot, mask in enumerate(self.masks):
                value = self.values[number][slot]
                shift, stride = (slot * self.lanes, self.lane_stride(t)) if code.is_across else (0, 1)
                pointer = self._moved(self.here[t], t, shift)
                if value.is_float:
                    lanes = self.lanes if code.is_across else 1
                    self.store(output, pointer, stride, k.splat(value, lanes), mask)
                else:
                    pointer.store_strided(k.convert(value, pointer.dtype), 0, stride, mask)

    # ---- elements in memory

    def lane_stride(self, t: int) -> Value | int:
        """How far a tensor moves from lane to lane; of the position for the number behind the last tensor."""
        move = self.code.moves[t]
        return 1 if move == UNIT else 0 if move == REPEATED else self.at[f"lane.{t}"]

    def _moved(self, pointer: Pointer, t: int, lanes: Value | int) -> Pointer:
        stride = self.lane_stride(t)
        if isinstance(stride, int):
            return pointer if stride == 0 else pointer + lanes
        return pointer + stride * lanes

    def load(self, t: int, spot: Spot) -> Value:
        """Lanes of an input."""
        code = self.code
        stride = self.lane_stride(t)
        pointer = self._moved(spot.pointers[t], t, spot.shift).as_real(code.compute)
        if isinstance(stride, int) and stride == 0:
            return pointer.load(0)
        return pointer.load_strided(0, stride, self.lanes, spot.mask)

    def load_own(self, t: int) -> list[Value]:
        """An input that does not move along the row, for each slot."""
        if t not in self.own:
            code, pointer = self.code, self.here[t].as_real(self.code.compute)
            if not code.is_across:
                self.own[t] = [pointer.load(0)]
            else:
                stride, values = self.lane_stride(t), []
                for slot, mask in enumerate(self.masks):
                    there = self._moved(pointer, t, slot * self.lanes)
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

    def _cell(self, part: Value, sweep: int, reduction: int, item: int, slot: int, dtype: str) -> Pointer:
        """Where a part's result of a reduction is in the workspace."""
        code = self.code
        number = 0
        for s, other in enumerate(code.program.sweeps):
            for r, (name, _) in enumerate(other.reductions):
                if (s, r) < (sweep, reduction):
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
        return self.lanes if self.code.is_across else 1

    def _restore(self, number: int) -> None:
        """The row values of a sweep from the results of all parts, first to last."""
        sweep = self.code.program.sweeps[number]
        states = [
            [self._joined_parts(number, r, name, slot) for slot in range(self.slots)]
            for r, (name, _) in enumerate(sweep.reductions)
        ]
        self._add_values(sweep, states)

    def _joined_parts(self, number: int, reduction: int, name: str, slot: int) -> State:
        """Along rows a vector of parts is taken at a time, across them each lane has its own."""
        k, parts = self.k, self.at["parts"]
        dtypes = ("f64", "i64") if name in ARGS else ("f64",)
        cells = [
            self._cell(k.integer(0), number, reduction, i, slot, dtype) for i, dtype in enumerate(dtypes)
        ]
        if name == "first":
            return tuple(cell.load(0, self._width) for cell in cells)
        lanes = self._width if self.code.is_across else k.lanes("f64")
        nothing = identity(k, name, "f64", "i64", lanes)
        total = [k.register(value) for value in nothing]
        for part in k.range(0, parts, 1 if self.code.is_across else lanes):
            mask = None if self.code.is_across else k.mask(parts - part, lanes)
            loaded = tuple(cell.load(part * self._width, lanes, mask) for cell in cells)
            state = fold(k, name, tuple(t.get() for t in total), only(k, name, loaded, nothing, mask))
            for register, value in zip(total, state, strict=True):
                register.set(value)
        result = tuple(t.get() for t in total)
        return result if self.code.is_across else fold_lanes(k, name, result)


class _Values:
    """The inputs of expressions at one spot; what none asks for is not loaded."""

    def __init__(self, loop: Loop, spot: Spot | None, slot: int) -> None:
        self.loop, self.spot, self.slot = loop, spot, slot
        self.row = loop.row
        self.known: dict[int, Value] = {}

    def evaluate(self, expression: Expression, keeps: int) -> Value:
        """The expression; it sees so many keeps."""
        k, row = self.row.k, self.row
        used = expression.used()
        nothing = k.constant(0.0, row.code.compute)
        inputs = [self._value(i, keeps) if i in used else nothing for i in range(expression.arity)]
        return lower(k, expression, inputs)

    def _value(self, number: int, keeps: int) -> Value:
        program, inputs = self.row.code.program, self.row.code.inputs
        before = inputs + program.position
        if number >= before + keeps:
            return self.loop.vectors[number - before - keeps][self.slot]
        if number not in self.known:
            staged = self._staged(number)
            if staged is not None:
                value = staged
            elif number < inputs:
                value = self._element(number)
            elif number < before:
                value = self.row.k.convert(self.place(), self.row.code.compute)
            else:
                expression, seen = self.loop.keeps[number - before]
                value = self.evaluate(expression, seen)
            self.known[number] = self.row.k.splat(value, self.row.lanes) if self.spot else value
        return self.known[number]

    def _staged(self, number: int) -> Value | None:
        """What an earlier sweep left in the stage."""
        item = self.row.code.stage.find(number)
        if item is None or self.spot is None or item.sweep >= self.loop.number:
            return None
        stage = self.row.function.stage
        assert stage is not None
        return stage.load(self.spot.stage + item.start, self.row.lanes)

    def produce(self) -> None:
        """Leave for later sweeps what they will look for."""
        stage = self.row.function.stage
        for item in self.row.code.stage.items:
            if item.sweep == self.loop.number:
                assert stage is not None
                assert self.spot is not None
                stage.store(self._value(item.number, len(self.loop.keeps)), self.spot.stage + item.start)

    def _element(self, number: int) -> Value:
        if self.row.code.of_rows[number]:
            return self.loop.own[number][self.slot]
        if self.spot is None:
            return self.loop.load_first(number, self.slot)
        return self.row.load(number, self.spot)

    def place(self) -> Value:
        """The position of each lane."""
        if self.spot is None:
            return self.row.k.constant(0, self.row.code.places)
        row, k, code = self.row, self.row.k, self.row.code
        stride = row.lane_stride(len(code.dtypes))
        if isinstance(stride, int) and stride == 0:
            return k.convert(self.spot.place, code.places)
        steps = k.convert(k.iota(row.lanes), code.places) * k.convert(k.integer(stride), code.places)
        return k.convert(self.spot.place, code.places) + steps


class Loop:
    """One sweep over the elements of a unit."""

    def __init__(self, row: Row, number: int) -> None:
        self.row, self.k, self.code, self.at, self.lanes = row, row.k, row.code, row.at, row.lanes
        program = self.code.program
        self.number, self.sweep = number, program.sweeps[number]
        # each keep with the number of keeps that it sees
        self.keeps: list[tuple[Expression, int]] = []
        for sweep in program.sweeps[: number + 1]:
            for expression in sweep.keeps:
                self.keeps.append((expression, len(self.keeps)))
        self.own = {t: row.load_own(t) for t in sorted(self._used()) if self.code.of_rows[t]}
        self.vectors = [[row._number(v) for v in values] for values in row.values]
        if not self.code.is_across:
            self.vectors = [[self.k.splat(v, self.lanes) for v in values] for values in self.vectors]
            self.own = {t: [self.k.splat(v, self.lanes) for v in values] for t, values in self.own.items()}

    def _used(self) -> set[int]:
        """Inputs that the sweep's expressions, or the keeps that they take up, depend on."""
        expressions = [e for _, e in (*self.sweep.reductions, *self.sweep.writes)]
        expressions += [e for e, _ in self.keeps]
        return {i for e in expressions for i in e.used() if i < self.code.inputs}

    # ---- the first element

    def first(self, expression: Expression) -> list[State]:
        """The expression at index 0 of the row, for each slot."""
        result = []
        for slot in range(self.row.slots):
            value = _Values(self, None, slot).evaluate(expression, len(self.keeps))
            result.append((value if self.code.is_across else self.k.extract(value, 0),))
        return result

    def load_first(self, t: int, slot: int) -> Value:
        row, k = self.row, self.k
        pointer = row.here[t].as_real(self.code.compute)
        exists = self.at["row"] > 0
        if not self.code.is_across:
            return k.splat(pointer.load(0, 1, exists), self.lanes)
        stride = row.lane_stride(t)
        there = row._moved(pointer, t, slot * self.lanes)
        if isinstance(stride, int) and stride == 0:
            return k.splat(there.load(0, 1, exists), self.lanes)
        mask = k.mask(k.select(exists, self.lanes, k.integer(0)), self.lanes)
        own = row.masks[slot]
        return there.load_strided(0, stride, self.lanes, mask if own is None else mask & own)

    # ---- all elements

    def run(self) -> dict[int, list[State]]:
        """Write what the sweep writes; returns the result of each reduction, for each slot."""
        k, sweep = self.k, self.sweep
        if sweep.folds:
            return self._fold()
        scaled = any(output not in self.code.plain for output, _ in sweep.writes)
        if not scaled:
            self._write(False)
            return {}
        beta = self.row.function.beta
        with k.when(beta == 0.0):
            self._write(False)
        with k.when(beta != 0.0):
            self._write(True)
        return {}

    def _write(self, blends: bool) -> None:
        streaming = tuple(output for output, _ in self.sweep.writes if output in self.code.streams)
        is_aligned = self.row.function.is_aligned
        if not self.code.is_across:
            self._write_all(blends, streaming[:1], streaming[0] if streaming else None)
        elif streaming and is_aligned is not None and None in self.row.masks:
            with self.k.when(is_aligned):
                self._write_all(blends, streaming, None)
            with self.k.when(~is_aligned):
                self._write_all(blends, (), None)
        else:
            self._write_all(blends, (), None)

    def _write_all(self, blends: bool, streaming: tuple[int, ...], head: int | None) -> None:
        """Write all elements; along rows those before an aligned place of the output `head` are done first."""
        for spots, is_whole in self._spots(self._all_steps(), head):
            for spot, _ in spots:
                self._write_spot(_Values(self, spot, spot.slot), spot, blends, streaming if is_whole else ())

    def _write_spot(
        self, values: _Values, spot: Spot, blends: bool | None, streaming: tuple[int, ...]
    ) -> None:
        results = [(o, values.evaluate(e, len(self.keeps))) for o, e in self.sweep.writes]
        for output, result in results:
            t = self.code.inputs + output
            pointer = self.row._moved(spot.pointers[t], t, spot.shift)
            result = self.k.splat(result, self.lanes)
            stride, streams = self.row.lane_stride(t), output in streaming and spot.mask is None
            self.row.store(output, pointer, stride, result, spot.mask, blends, streams)

    def _fold(self) -> dict[int, list[State]]:
        k, code, row = self.k, self.code, self.row
        numbers = [n for n, (name, _) in enumerate(self.sweep.reductions) if name != "first"]
        names = {n: self.sweep.reductions[n][0] for n in numbers}
        widens = {n: code.is_long and names[n] == "add" for n in numbers}
        nothing = {n: identity(k, names[n], code.compute, code.places, self.lanes) for n in numbers}
        wide = {
            n: [k.register(k.constant(0.0, "f64", self.lanes)) for _ in range(row.slots)]
            for n in numbers
            if widens[n]
        }
        # running[n][slot][turn]: registers of one state
        running = {
            n: [
                [[k.register(v) for v in nothing[n]] for _ in range(code.unroll)]
                for _ in range(row.slots)
            ]
            for n in numbers
        }  # fmt: skip
        for steps in self._runs(any(widens.values())):
            for n in wide:
                for registers in [r for turns in running[n] for r in turns]:
                    registers[0].set(nothing[n][0])
            for spots, _ in self._spots(steps, None):
                for spot, turn in spots:
                    values = _Values(self, spot, spot.slot)
                    values.produce()
                    for n in numbers:
                        self._fold_spot(n, values, spot, nothing[n], running[n][spot.slot][turn])
                    if self.sweep.writes:
                        self._write_spot(values, spot, None, ())
            for n, totals in wide.items():
                for slot, total in enumerate(totals):
                    (sum_,) = self._total(names[n], running[n][slot])
                    total += k.convert(sum_, "f64")
        results = {}
        for n in numbers:
            states = [self._total(names[n], running[n][slot]) for slot in range(row.slots)]
            if widens[n]:
                states = [(total.get(),) for total in wide[n]]
            if not code.is_across:
                states = [fold_lanes(k, names[n], states[0])]
            results[n] = states
        return results

    def _total(self, name: str, turns: Sequence[Sequence[Register]]) -> State:
        return fold_all(self.k, name, [tuple(r.get() for r in registers) for registers in turns])

    def _fold_spot(
        self, n: int, values: _Values, spot: Spot, nothing: State, registers: Sequence[Register]
    ) -> None:
        name, expression = self.sweep.reductions[n]
        k = self.k
        value = k.splat(values.evaluate(expression, len(self.keeps)), self.lanes)
        state: State = (value,)
        if name in ARGS:
            state = (value, k.splat(values.place(), self.lanes))
        if not self.code.is_across:  # lanes beyond the end of the row
            state = only(k, name, state, nothing, spot.mask)
        for register, result in zip(
            registers, fold(k, name, tuple(r.get() for r in registers), state), strict=True
        ):
            register.set(result)

    # ---- the loops

    def _limits(self) -> tuple[Value, Value]:
        k, at = self.k, self.at
        if self.row.function.phase is None or self.row.function.phase.writes_rows:
            return k.integer(0), at["steps"]
        first = self.row.part * at["per_part"]
        return first, (first + at["per_part"]).min(at["steps"])

    def _runs(self, is_long: bool) -> Iterator[tuple[Value, Value] | None]:
        """Runs of steps after each of which sums go to wider accumulators."""
        k = self.k
        if self.code.is_single:
            yield None
            return
        first, last = self._limits()
        if not is_long:
            yield first, last
            return
        for start in k.range(first, last, self.at["flush"]):
            yield start, (start + self.at["flush"]).min(last)

    def _all_steps(self) -> tuple[Value, Value] | None:
        return None if self.code.is_single else self._limits()

    def _spots(
        self, steps: tuple[Value, Value] | None, stream: int | None
    ) -> Iterator[tuple[list[tuple[Spot, int]], bool]]:
        """Elements that are done together, each with its accumulator's number, over a run of steps."""
        k, code, at, row = self.k, self.code, self.at, self.row
        if steps is None:
            yield from self._block(row.here, row.place, at["inner"], stream)
            return
        names = [*(f"reduced{a}" for a in range(code.reduced)), "blocks"]
        tensors = range(len(code.dtypes) + 1)
        first, last = steps
        strides = [[at[f"{name}.{t}"] for name in names] for t in tensors]
        counter = Counter(k, first, [at[name] for name in names], strides)
        for _ in k.range(first, last):
            here = [p + o.get() for p, o in zip(row.here, counter.offsets[:-1], strict=True)]
            place = row.place + counter.offsets[-1].get()
            count = (at["inner"] - counter.digits[-1].get() * at["block"]).min(at["block"])
            yield from self._block(here, place, count, stream)
            counter.advance()

    def _block(
        self, here: Sequence[Pointer], place: Value, count: Value, stream: int | None
    ) -> Iterator[tuple[list[tuple[Spot, int]], bool]]:
        if self.code.is_across:
            yield from self._block_across(here, place, count)
        else:
            yield from self._block_along(here, place, count, stream)

    def _block_across(
        self, here: Sequence[Pointer], place: Value, count: Value
    ) -> Iterator[tuple[list[tuple[Spot, int]], bool]]:
        k, code, at, row = self.k, self.code, self.at, self.row
        tensors = range(len(code.dtypes))
        position = len(code.dtypes)

        def spots(i: Value, turns: int) -> list[tuple[Spot, int]]:
            result = []
            for turn in range(turns):
                there = [p + (i + turn) * at[f"inner.{t}"] for p, t in zip(here, tensors, strict=True)]
                at_place = place + (i + turn) * at[f"inner.{position}"]
                for slot in range(row.slots):
                    at_stage = (i + turn) * (row.slots * self.lanes) + slot * self.lanes
                    spot = Spot(slot, there, slot * self.lanes, at_stage, row.masks[slot], at_place)
                    result.append((spot, turn))
            return result

        unroll = code.unroll
        whole: Value = k.integer(0)
        if unroll > 1:
            whole = (count // unroll) * unroll
            for i in k.range(0, whole, unroll):
                yield spots(i, unroll), True
        for i in k.range(whole, count):
            yield spots(i, 1), True

    def _block_along(
        self, here: Sequence[Pointer], place: Value, count: Value, stream: int | None
    ) -> Iterator[tuple[list[tuple[Spot, int]], bool]]:
        k, code, row, lanes = self.k, self.code, self.row, self.lanes
        stride = row.lane_stride(len(code.dtypes))

        def spot(i: Value, mask: Value | None, turn: int) -> tuple[Spot, int]:
            there = place + (i * stride if not isinstance(stride, int) or stride else k.integer(0))
            return Spot(0, here, i, i, mask, there), turn

        start: Value = k.integer(0)
        if stream is not None:
            t = code.inputs + stream
            start = self._head(here[t], DTYPES[code.dtypes[t]], count)
            yield [spot(k.integer(0), k.mask(start, lanes), 0)], False
        unroll = code.unroll
        wide = lanes * unroll
        whole = start + ((count - start) // wide) * wide
        for i in k.range(start, whole, wide):
            yield [spot(i + turn * lanes, None, turn) for turn in range(unroll)], True
        for i in k.range(whole, count, lanes):
            yield [spot(i, k.mask(count - i, lanes), 0)], False

    def _head(self, pointer: Pointer, size: int, count: Value) -> Value:
        """Elements before the first aligned vector."""
        k = self.k
        address = Value(k, k.b.ptrtoint(pointer.v, INT))
        ahead = (0 - address) & (self.lanes * size - 1)
        return (ahead // size).min(count)
