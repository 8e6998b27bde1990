"""One pass over the elements of a unit: the loops, what expressions see in them, reductions and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from jitdnn.kernels.cpu.reduction.combine import State, combine, combine_all, combine_lanes, identity, only
from jitdnn.kernels.cpu.reduction.unit import Spot, Unit
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.kernels.formulas.row_programs import ARGS
from jitdnn.rtcg.builder import Pointer, Register, Value
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.types import INT
from jitdnn.tensor import DTYPES

Spots = tuple[list[tuple["Spot", int]], bool]
"""Vectors that are done together, each with the number of its accumulator; and whether none is cut short by a mask
because of where the output's vectors begin."""


class _Values:
    """The inputs of expressions at one spot; what none uses is not loaded."""

    def __init__(self, loop: Loop, spot: Spot | None, slot: int) -> None:
        self.loop, self.spot, self.slot = loop, spot, slot
        self.unit = loop.unit
        self.known: dict[int, Value] = {}

    def evaluate(self, expression: Expression, keeps: int) -> Value:
        """The expression; it sees so many keeps."""
        k, unit = self.unit.k, self.unit
        used = expression.used()
        nothing = k.constant(0.0, unit.code.compute)
        inputs = [self._value(i, keeps) if i in used else nothing for i in range(expression.arity)]
        return lower(k, expression, inputs)

    def _value(self, number: int, keeps: int) -> Value:
        program, inputs = self.unit.code.program, self.unit.code.inputs
        before = inputs + program.position
        if number >= before + keeps:
            return self.loop.vectors[number - before - keeps][self.slot]
        if number not in self.known:
            buffered = self._buffered(number)
            if buffered is not None:
                value = buffered
            elif number < inputs:
                value = self._element(number)
            elif number < before:
                value = self.unit.k.convert(self.position(), self.unit.code.compute)
            else:
                expression, seen = self.loop.keeps[number - before]
                value = self.evaluate(expression, seen)
            self.known[number] = self.unit.k.splat(value, self.unit.lanes) if self.spot else value
        return self.known[number]

    def _buffered(self, number: int) -> Value | None:
        """What an earlier pass left in the buffer."""
        item = self.unit.code.buffer.find(number)
        if item is None or self.spot is None or item.row_pass >= self.loop.number:
            return None
        buffer = self.unit.function.buffer
        assert buffer is not None
        return buffer.load(self.spot.buffer + item.start, self.unit.lanes)

    def produce(self) -> None:
        """Leave for later passes what they will look for."""
        buffer = self.unit.function.buffer
        for item in self.unit.code.buffer.items:
            if item.row_pass == self.loop.number:
                assert buffer is not None
                assert self.spot is not None
                # behind the last element of a step are those of the next, which may still be looked for
                mask = None if self.unit.code.is_single or self.unit.code.over_rows else self.spot.mask
                value = self._value(item.number, len(self.loop.keeps))
                buffer.store(value, self.spot.buffer + item.start, mask)

    def _element(self, number: int) -> Value:
        if self.unit.code.of_rows[number]:
            return self.loop.own[number][self.slot]
        if self.spot is None:
            return self.loop.load_first(number, self.slot)
        return self.unit.load(number, self.spot)

    def position(self) -> Value:
        """The position of each lane."""
        if self.spot is None:
            return self.unit.k.constant(0, self.unit.code.position_dtype)
        unit, k, code = self.unit, self.unit.k, self.unit.code
        stride = unit.lane_stride(len(code.dtypes))
        if isinstance(stride, int) and stride == 0:
            return k.convert(self.spot.position, code.position_dtype)
        steps = k.convert(k.iota(unit.lanes), code.position_dtype) * k.convert(
            k.integer(stride), code.position_dtype
        )
        return k.convert(self.spot.position, code.position_dtype) + steps


class Loop:
    """One pass over the elements of a unit."""

    def __init__(self, unit: Unit, number: int) -> None:
        self.unit, self.k, self.code, self.at, self.lanes = unit, unit.k, unit.code, unit.at, unit.lanes
        program = self.code.program
        self.number, self.row_pass = number, program.passes[number]
        # each keep with the number of keeps that it sees
        self.keeps: list[tuple[Expression, int]] = []
        for row_pass in program.passes[: number + 1]:
            for expression in row_pass.keeps:
                self.keeps.append((expression, len(self.keeps)))
        self.own = {t: unit.load_own(t) for t in sorted(self._used()) if self.code.of_rows[t]}
        self.vectors = [[unit.number(v) for v in values] for values in unit.values]
        if not self.code.over_rows:
            self.vectors = [[self.k.splat(v, self.lanes) for v in values] for values in self.vectors]
            self.own = {t: [self.k.splat(v, self.lanes) for v in values] for t, values in self.own.items()}

    def _used(self) -> set[int]:
        """Inputs that the pass's expressions, or the keeps that they take up, depend on."""
        expressions = [e for _, e in (*self.row_pass.reductions, *self.row_pass.writes)]
        expressions += [e for e, _ in self.keeps]
        return {i for e in expressions for i in e.used() if i < self.code.inputs}

    # ---- the first element

    def first(self, expression: Expression) -> list[State]:
        """The expression at index 0 of the row, for each slot."""
        result: list[State] = []
        for slot in range(self.unit.slots):
            value = _Values(self, None, slot).evaluate(expression, len(self.keeps))
            result.append((value if self.code.over_rows else self.k.extract(value, 0),))
        return result

    def load_first(self, t: int, slot: int) -> Value:
        unit, k = self.unit, self.k
        pointer = (unit.here[t] + self.at[f"first.{t}"]).as_real(self.code.compute)
        exists = self.at["row"] > 0
        if not self.code.over_rows:
            return k.splat(pointer.load(0, 1, exists), self.lanes)
        stride = unit.lane_stride(t)
        there = unit.moved(pointer, t, slot * self.lanes)
        if isinstance(stride, int) and stride == 0:
            return k.splat(there.load(0, 1, exists), self.lanes)
        mask = k.mask(k.select(exists, self.lanes, k.integer(0)), self.lanes)
        own = unit.masks[slot]
        return there.load_strided(0, stride, self.lanes, mask if own is None else mask & own)

    # ---- all elements

    def run(self) -> dict[int, list[State]]:
        """Write what the pass writes; returns the result of each reduction, for each slot."""
        k, row_pass = self.k, self.row_pass
        if row_pass.loop_reductions:
            return self._reduce()
        scaled = any(output not in self.code.plain for output, _ in row_pass.writes)
        if not scaled:
            self._write(False)
            return {}
        beta = self.unit.function.beta
        with k.when(beta == 0.0):
            self._write(False)
        with k.when(beta != 0.0):
            self._write(True)
        return {}

    def _write(self, blends: bool) -> None:
        streaming = tuple(output for output, _ in self.row_pass.writes if output in self.code.streams)
        is_aligned = self.unit.function.is_aligned
        if self.code.has_head:
            self._write_all(blends, streaming[:1], streaming[0] if streaming else None)
        elif streaming and is_aligned is not None and all(mask is None for mask in self.unit.masks):
            with self.k.when(is_aligned):
                self._write_all(blends, streaming, None)
            with self.k.when(~is_aligned):
                self._write_all(blends, (), None)
        else:
            self._write_all(blends, (), None)

    def _write_all(self, blends: bool, streaming: tuple[int, ...], head: int | None) -> None:
        """Write all elements; over elements those before the first aligned vector of the output `head` come first."""
        for spots, is_whole in self._spots(self._all_steps(), head):
            for spot, _ in spots:
                self._write_spot(_Values(self, spot, spot.slot), spot, blends, streaming if is_whole else ())

    def _write_spot(
        self, values: _Values, spot: Spot, blends: bool | None, streaming: tuple[int, ...]
    ) -> None:
        results = [(o, values.evaluate(e, len(self.keeps))) for o, e in self.row_pass.writes]
        for output, result in results:
            t = self.code.inputs + output
            pointer = self.unit.moved(spot.pointers[t], t, spot.shift)
            result = self.k.splat(result, self.lanes)
            stride, streams = self.unit.lane_stride(t), output in streaming and spot.mask is None
            self.unit.store(output, pointer, stride, result, spot.mask, blends, streams)

    def _reduce(self) -> dict[int, list[State]]:
        k, code, unit = self.k, self.code, self.unit
        numbers = [n for n, (name, _) in enumerate(self.row_pass.reductions) if name != "first"]
        names = {n: self.row_pass.reductions[n][0] for n in numbers}
        widens = {n: code.is_long and names[n] == "add" for n in numbers}
        nothing = {n: identity(k, names[n], code.compute, code.position_dtype, self.lanes) for n in numbers}
        wide = {
            n: [k.register(k.constant(0.0, "f64", self.lanes)) for _ in range(unit.slots)]
            for n in numbers
            if widens[n]
        }
        # running[n][slot][turn]: registers of one state
        running = {
            n: [
                [[k.register(v) for v in nothing[n]] for _ in range(code.unroll)]
                for _ in range(unit.slots)
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
                        self._reduce_vector(n, values, spot, nothing[n], running[n][spot.slot][turn])
                    if self.row_pass.writes:
                        self._write_spot(values, spot, None, ())
            for n, totals in wide.items():
                for slot, total in enumerate(totals):
                    (sum_,) = self._total(names[n], running[n][slot])
                    total += k.convert(sum_, "f64")
        results = {}
        for n in numbers:
            states = [self._total(names[n], running[n][slot]) for slot in range(unit.slots)]
            if widens[n]:
                states = [(total.get(),) for total in wide[n]]
            if not code.over_rows:
                states = [combine_lanes(k, names[n], states[0])]
            results[n] = states
        return results

    def _total(self, name: Reduction, turns: Sequence[Sequence[Register]]) -> State:
        return combine_all(self.k, name, [tuple(r.get() for r in registers) for registers in turns])

    def _reduce_vector(
        self, n: int, values: _Values, spot: Spot, nothing: State, registers: Sequence[Register]
    ) -> None:
        name, expression = self.row_pass.reductions[n]
        k = self.k
        value = k.splat(values.evaluate(expression, len(self.keeps)), self.lanes)
        state: State = (value,)
        if name in ARGS:
            state = (value, k.splat(values.position(), self.lanes))
        if not self.code.over_rows:  # lanes beyond the end of the row
            state = only(k, name, state, nothing, spot.mask)
        for register, result in zip(
            registers, combine(k, name, tuple(r.get() for r in registers), state), strict=True
        ):
            register.set(result)

    # ---- the loops

    def _limits(self) -> tuple[Value, Value]:
        k, at = self.k, self.at
        if self.unit.function.phase is None or self.unit.function.phase.writes_rows:
            return k.integer(0), at["steps"]
        first = self.unit.part * at["per_part"]
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

    def _spots(self, steps: tuple[Value, Value] | None, stream: int | None) -> Iterator[Spots]:
        """Elements that are done together, each with its accumulator's number, over a run of steps."""
        k, code, at, unit = self.k, self.code, self.at, self.unit
        if steps is None:
            yield from self._block(unit.here, unit.position, at["inner"], stream, k.integer(0))
            return
        names = [*(f"reduced{a}" for a in range(code.reduced)), "blocks"]
        tensors = range(len(code.dtypes) + 1)
        first, last = steps
        strides = [[at[f"{name}.{t}"] for name in names] for t in tensors]
        counter = Counter(k, first, [at[name] for name in names], strides)
        for step in k.range(first, last):
            here = [p + o.get() for p, o in zip(unit.here, counter.offsets[:-1], strict=True)]
            position = unit.position + counter.offsets[-1].get()
            count = (at["inner"] - counter.digits[-1].get() * at["block"]).min(at["block"])
            yield from self._block(here, position, count, stream, step * at["block"])
            counter.advance()

    def _block(
        self, here: Sequence[Pointer], position: Value, count: Value, stream: int | None, before: Value
    ) -> Iterator[Spots]:
        """The elements of one step; there are so many in the buffer `before`."""
        if self.code.over_rows:
            yield from self._block_over_rows(here, position, count, before)
        else:
            yield from self._block_over_elements(here, position, count, stream, before)

    def _block_over_rows(
        self, here: Sequence[Pointer], position: Value, count: Value, before: Value
    ) -> Iterator[Spots]:
        k, code, at, unit = self.k, self.code, self.at, self.unit
        tensors = range(len(code.dtypes))
        behind = len(code.dtypes)  # the number of the position among the strides

        def spots(i: Value, turns: int) -> list[tuple[Spot, int]]:
            result = []
            for turn in range(turns):
                there = [p + (i + turn) * at[f"inner.{t}"] for p, t in zip(here, tensors, strict=True)]
                at_position = position + (i + turn) * at[f"inner.{behind}"]
                for slot in range(unit.slots):
                    at_buffer = (before + i + turn) * (unit.slots * self.lanes) + slot * self.lanes
                    spot = Spot(slot, there, slot * self.lanes, at_buffer, unit.masks[slot], at_position)
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

    def _block_over_elements(
        self, here: Sequence[Pointer], position: Value, count: Value, stream: int | None, before: Value
    ) -> Iterator[Spots]:
        k, code, unit, lanes = self.k, self.code, self.unit, self.lanes
        stride = unit.lane_stride(len(code.dtypes))

        def spot(i: Value, mask: Value | None, turn: int) -> tuple[Spot, int]:
            there = position + (i * stride if not isinstance(stride, int) or stride else k.integer(0))
            return Spot(0, here, i, before + i, mask, there), turn

        if code.fixed:
            yield from self._few_over_elements(spot)
            return
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

    def _few_over_elements(
        self, spot: Callable[[Value, Value | None, int], tuple[Spot, int]]
    ) -> Iterator[Spots]:
        """The elements of a row of a few vectors, without a loop."""
        k, lanes, count = self.k, self.lanes, self.code.fixed
        for start in range(0, count, lanes * self.code.unroll):
            spots = []
            for turn in range(self.code.unroll):
                first = start + turn * lanes
                if first < count:
                    # not a constant: of one lane of bf16, LLVM would store 32 bits
                    mask = None if first + lanes <= count else k.mask(self.at["inner"] - first, lanes)
                    spots.append(spot(k.integer(first), mask, turn))
            yield spots, True

    def _head(self, pointer: Pointer, size: int, count: Value) -> Value:
        """Elements before the first aligned vector."""
        k = self.k
        address = Value(k, k.b.ptrtoint(pointer.v, INT))
        ahead = (0 - address) & (self.lanes * size - 1)
        return (ahead // size).min(count)
