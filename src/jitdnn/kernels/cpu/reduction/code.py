"""Programs over rows, traced for one layout of the loops: functions, passes in their order, parts of rows."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.reduction.combine import State, combine, combine_lanes, identity, only
from jitdnn.kernels.cpu.reduction.loop import Loop
from jitdnn.kernels.cpu.reduction.plan import RowCode, partial_values, slots_of
from jitdnn.kernels.cpu.reduction.unit import Function, Unit
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.kernels.formulas.row_programs import ARGS, Pass, Phase, phases_of
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.types import INT
from jitdnn.tensor import DTYPES


def trace_rows(module: Module, code: RowCode) -> None:
    """Trace all functions of the kernel."""
    if not code.is_split:
        _trace_function(module, code, "rows", None)
        return
    for number, phase in enumerate(phases_of(code.program)):
        _trace_function(module, code, f"phase{number}", phase, goes_back=number % 2 == 1)


def _trace_function(
    module: Module, code: RowCode, name: str, phase: Phase | None, goes_back: bool = False
) -> None:
    """One function: the loop over its units."""
    splits = phase is not None and not phase.writes_rows
    with module.task(name) as (k, args, task, _):
        lanes, arguments = k.lanes(code.compute), Arguments(k, args, code.pointers)
        at = slots_of(code).load(arguments)
        alpha, beta = arguments.alpha(code.compute), arguments.beta(code.compute)
        tensors = range(len(code.dtypes) + 1)
        digits = [*(f"kept{a}" for a in range(code.kept)), *(["lane_blocks"] if code.over_rows else [])]
        extents = [at[digit] for digit in digits] or [k.integer(1)]
        strides = [[at[f"{digit}.{t}"] for digit in digits] or [k.integer(0)] for t in tensors]
        if splits:
            # parts in the outer loop: those of all rows lie together where rows are interleaved
            extents, strides = [at["parts"], *extents], [[k.integer(0), *s] for s in strides]
        pointers = [
            arguments.pointer(operand, dtype)
            for operand, dtype in zip(code.operands, code.dtypes, strict=True)
        ]
        per_task = at["row_per_task"] if phase is not None and phase.writes_rows else at["per_task"]
        units = at["units"] * at["parts"] if splits else at["units"]
        buffer = k.local(code.compute, code.buffer.size) if code.buffer.items else None
        is_aligned = _alignment(k, code, at, pointers) if code.streams and not code.has_head else None
        function = Function(k, code, phase, arguments, at, lanes, alpha, beta, buffer, is_aligned)
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
            _trace_unit(function, here, counter.offsets[-1].get(), unit, part, block)
            counter.advance()


def _trace_unit(
    function: Function, here: list[Pointer], position: Value, unit: Value, part: Value, block: Value | None
) -> None:
    k, code, lanes = function.k, function.code, function.lanes
    if block is None:
        _UnitCode(function, here, position, unit, part, [None]).run()
        return
    width = lanes * code.vectors
    left = function.at["lanes"] - block * width
    if code.has_whole and code.has_masked:
        with k.when(left >= width):
            _UnitCode(function, here, position, unit, part, [None] * code.vectors).run()
        with k.when(left < width):
            _UnitCode(function, here, position, unit, part, _masks(function, left)).run()
    else:
        masks = _masks(function, left) if code.has_masked else [None] * code.vectors
        _UnitCode(function, here, position, unit, part, masks).run()


def _masks(function: Function, left: Value) -> list[Value | None]:
    lanes = function.lanes
    return [function.k.mask(left - v * lanes, lanes) for v in range(function.code.vectors)]


def _alignment(k: Builder, code: RowCode, at: dict[str, Value], pointers: Sequence[Pointer]) -> Value:
    """Whether the outputs that are streamed begin at whole vectors; all their strides are such already."""
    apart = k.integer(0)
    for output in code.streams:
        t = code.inputs + output
        start = Value(k, k.b.ptrtoint((pointers[t] + at[f"base.{t}"]).v, INT))
        apart = apart | (start & (k.lanes(code.compute) * DTYPES[code.dtypes[t]] - 1))
    return apart == 0


class _UnitCode(Unit):
    """The passes of a unit in their order, and what the parts of rows leave for each other."""

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
        """Over elements a vector of parts is loaded at a time; over rows each lane has its own."""
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
