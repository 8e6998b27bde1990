"""LSTM steps whose states are quantized at each step and multiplied by weights of 8 bits.

    for each direction: for each step: range of all states > for ROWS sequences: quantize > for block of UNITS units:
        dot products of words of four states with the weights of all gates, the cell on the sums

The range of a step's states, 0 included, is divided into 255 parts: DynamicQuantizeLinear of ONNX, of all sequences
together. Sums of products are exact. A direction is one task, for the range couples all of a step.

The weights lie as (direction, block, word, gate, UNITS, 4): a lane of vpdpbusd has four states of one unit and gate.
Gates are in ONNX's order: input, output, forget, cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.lowering import lower
from jitdnn.rtcg.vector_rounding import rint

UNITS = 16  # of a block
MOST_UNITS = 1 << 14  # a row of quantized states lies on the stack
GATES = 4
_ROWS = 4  # sequences that a block's weights are read for at once
_OPERANDS = (
    ("gates", "f32"), ("weights", "i32"), ("sums", "i32"), ("scales", "f32"), ("bias", "f32"), ("peepholes", "f32"),
    ("hx", "f32"), ("cx", "f32"), ("lengths", "i32"), ("y", "f32"), ("hn", "f32"), ("cn", "f32"),
)  # fmt: skip
POINTERS = len(_OPERANDS)
INTEGERS = ("steps", "batch", "gates.t", "gates.n", "hx.d", "hx.n", "hx.u", "cx.d", "cx.n", "cx.u")
_DTYPES = dict(_OPERANDS)
_PLACES = {name: place for place, (name, _) in enumerate(_OPERANDS)}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class QuantizedSteps:
    """What the code is generated from.

    `backward`: whether each direction goes from the last step to the first. `shifts`: what is added to the bytes of
    each direction's weights to make them multiples of their scale. `cells`: for each direction the formulas of c, of
    (i, f, new, c before, peepholes of i and f), and of h, of (o, c, peephole of o), over the gates' sums.
    """

    hidden: int
    backward: tuple[bool, ...]
    shifts: tuple[int, ...]
    cells: tuple[tuple[Expression, Expression], ...]

    @property
    def key(self) -> str:
        """What the code depends on."""
        cells = [(state.key, output.key) for state, output in self.cells]
        return f"{self.hidden} {self.backward} {self.shifts} {cells}"

    @property
    def padded(self) -> int:
        return ceil_div(self.hidden, UNITS) * UNITS


def pack(weights: Array, zeros: Sequence[int]) -> tuple[Array, Array, tuple[int, ...]]:
    """(D, H, 4 H) bytes as the kernel reads them, the sums of their columns (D, 4, padded), and `shifts`.

    `zeros`: the byte that stands for 0 in each direction. Unsigned bytes are stored less 128.
    """
    is_signed = weights.dtype == np.int8
    signed = weights if is_signed else (weights ^ np.uint8(128)).view(np.int8)
    directions, hidden, _ = signed.shape
    blocks = ceil_div(hidden, UNITS)
    padded = blocks * UNITS
    wide = np.zeros((directions, padded, GATES, padded), np.int8)
    wide[:, :hidden, :, :hidden] = signed.reshape(directions, hidden, GATES, hidden)
    words = wide.reshape(directions, padded // 4, 4, GATES, blocks, UNITS)
    packed = np.ascontiguousarray(words.transpose(0, 4, 1, 3, 5, 2))
    base = 0 if is_signed else 128
    return packed, wide.sum(1, np.int32), tuple(base - int(zero) for zero in zeros)


def rows_of(batch: int) -> int:
    """How many sequences go together."""
    return _ROWS if batch >= _ROWS else 1


def trace(module: Module, plan: QuantizedSteps, rows: int) -> None:
    """Trace the task "steps", one for each direction."""
    with module.task("steps") as (k, args, task, _thread):
        quantized = k.local("u8", rows * plan.padded)
        for direction in range(len(plan.backward)):
            with k.when(task == direction):
                _Direction(k, args, plan, rows, direction, quantized).trace()


class _Direction:
    def __init__(
        self, k: Builder, args: Pointer, plan: QuantizedSteps, rows: int, direction: int, quantized: Pointer
    ) -> None:
        self.k, self.plan, self.rows, self.direction = k, plan, rows, direction
        self.lanes = k.lanes("f32")
        self.quantized = quantized
        arguments = Arguments(k, args, POINTERS)
        self.at: dict[str, Pointer] = {
            name: arguments.pointer(place, _DTYPES[name]) for name, place in _PLACES.items()
        }
        self.integers: dict[str, Value] = {
            name: arguments.extra(number) for number, name in enumerate(INTEGERS)
        }
        self.batch = self.integers["batch"]

    def trace(self) -> None:
        k, steps = self.k, self.integers["steps"]
        self._begin(steps)
        for step in k.range(steps):
            scale, zero = self._range(step)
            for first in k.range(0, self.batch, self.rows):
                self._rows(step, first, scale, zero)
        nothing = k.constant(0, "f32", self.lanes)
        for n in k.range(self.batch):
            with k.when(self._length(n) == 0):
                for unit, mask in self._units():
                    for name in ("hn", "cn"):
                        self.at[name].store(nothing, self._state(n) + unit, mask)

    def _length(self, n: Value) -> Value:
        return self.k.convert(self.at["lengths"].load(n), "i64").max(0).min(self.integers["steps"])

    def _state(self, n: Value) -> Value:
        return (self.batch * self.direction + n) * self.plan.hidden

    def _result(self, t: Value, n: Value) -> Value:
        return ((t * len(self.plan.backward) + self.direction) * self.batch + n) * self.plan.hidden

    def _units(self) -> Iterator[tuple[Value, Value | None]]:
        """All vectors of units, and the masks of those that exist."""
        for unit in self.k.range(0, self.plan.hidden, self.lanes):
            yield unit, self._mask(unit)

    def _mask(self, unit: Value) -> Value | None:
        hidden = self.plan.hidden
        return None if hidden % UNITS == 0 else self.k.mask(self.k.integer(hidden) - unit, self.lanes)

    def _begin(self, steps: Value) -> None:
        """The first states to where the last ones will be, and zeros beyond the ends of sequences."""
        k, lanes = self.k, self.lanes
        nothing = k.constant(0, "f32", lanes)
        for n in k.range(self.batch):
            for unit, mask in self._units():
                for source, target in (("hx", "hn"), ("cx", "cn")):
                    of_direction, of_sequence, of_unit = (self.integers[f"{source}.{a}"] for a in "dnu")
                    at = of_direction * self.direction + n * of_sequence + unit * of_unit
                    all_lanes = k.mask(lanes, lanes) if mask is None else mask
                    value = self.at[source].load_strided(at, of_unit, lanes, all_lanes)
                    self.at[target].store(value, self._state(n) + unit, mask)
            for t in k.range(self._length(n), steps):
                for unit, mask in self._units():
                    self.at["y"].store(nothing, self._result(t, n) + unit, mask)

    def _range(self, step: Value) -> tuple[Value, Value]:
        """The scale and the zero of the step's states, in every lane. Outputs after the end of a sequence are 0."""
        k, lanes = self.k, self.lanes
        low, high = (k.register(k.constant(0, "f32", lanes)) for _ in range(2))
        for n in k.range(self.batch):
            with k.when((step == 0) | (self._length(n) >= step)):
                for unit, mask in self._units():
                    state = self.at["hn"].load(self._state(n) + unit, lanes, mask)
                    low.set(low.get().min(state))
                    high.set(high.get().max(state))
        least, most = k.splat(k.reduce(low.get(), "min"), lanes), k.splat(k.reduce(high.get(), "max"), lanes)
        scale = k.select(most == least, k.constant(1, "f32", lanes), (most - least) / 255.0)
        return scale, rint(k, (-(least / scale)).max(0.0).min(255.0))

    def _rows(self, step: Value, first: Value, scale: Value, zero: Value) -> None:
        k, lanes, plan = self.k, self.lanes, self.plan
        numbers = [(first + row).min(self.batch - 1) for row in range(self.rows)]
        runs = [(first + row < self.batch) & (self._length(n) > step) for row, n in enumerate(numbers)]
        totals = [k.register(k.constant(0, "i32", lanes)) for _ in numbers]
        for row, n in enumerate(numbers):
            with k.when(runs[row]):
                self._quantize(row, n, scale, zero, totals[row])
        zeros = k.convert(zero, "i32")
        sums_of_rows = [k.splat(k.reduce(total.get()), lanes) - zeros * plan.hidden for total in totals]
        for block in k.range(plan.padded // UNITS):
            for part in range(0, UNITS, lanes):
                sums = self._products(block, part)
                unit = block * UNITS + part
                for row, n in enumerate(numbers):
                    with k.when(runs[row]):
                        self._cell(step, n, unit, sums[row], scale, zeros, sums_of_rows[row])

    def _quantize(self, row: int, n: Value, scale: Value, zero: Value, total: Any) -> None:
        k, lanes = self.k, self.lanes
        for unit in k.range(0, self.plan.padded, lanes):
            mask = self._mask(unit)
            state = self.at["hn"].load(self._state(n) + unit, lanes, mask)
            number = (rint(k, state / scale) + zero).max(0.0).min(255.0)
            if mask is not None:
                number = k.select(mask, number, 0.0)
            self.quantized.as_real("f32").store(number, unit + row * self.plan.padded)
            total += k.convert(number, "i32")

    def _products(self, block: Value, part: int) -> list[list[Value]]:
        """The sums of products of each row and gate, of the units of one vector."""
        k, lanes, plan = self.k, self.lanes, self.plan
        words = plan.padded // 4
        unroll = 4 if self.rows == 1 else 1  # sums enough to hide the latency of a product
        nothing = k.constant(0, "i32", lanes)
        sums = [
            [[k.register(nothing) for _ in range(GATES)] for _ in range(self.rows)] for _ in range(unroll)
        ]
        panel = self.at["weights"] + (block + self.direction * (plan.padded // UNITS)) * (
            words * GATES * UNITS
        )
        states = Pointer(k, self.quantized.v, "i32")
        for word in k.range(0, words, unroll):
            for turn in range(unroll):
                given = [states.splat(word + (turn + row * words), lanes) for row in range(self.rows)]
                for gate in range(GATES):
                    weights = panel.load(((word + turn) * GATES + gate) * UNITS + part, lanes)
                    for row, state in enumerate(given):
                        to = sums[turn][row][gate]
                        to.set(_dot(k, state, weights, to.get()))
        found = []
        for row in range(self.rows):
            parts = [[sums[turn][row][gate].get() for turn in range(unroll)] for gate in range(GATES)]
            found.append([sum(each[1:], each[0]) for each in parts])
        return found

    def _cell(
        self,
        step: Value,
        n: Value,
        unit: Value,
        products: Sequence[Value],
        scale: Value,
        zeros: Value,
        row_sum: Value,
    ) -> None:
        k, lanes, plan, direction = self.k, self.lanes, self.plan, self.direction
        mask = self._mask(unit)
        t = self._length(n) - 1 - step if plan.backward[direction] else step
        x = self.at["gates"] + (t * self.integers["gates.t"] + n * self.integers["gates.n"])
        values = []
        for gate, product in enumerate(products):
            column = unit + (direction * GATES + gate) * plan.padded
            total = product - zeros * self.at["sums"].load(column, lanes)
            if plan.shifts[direction]:
                total = total + row_sum * plan.shifts[direction]
            factor = scale * self.at["scales"].load(column, lanes)
            of_input = x.load(unit + (direction * GATES + gate) * plan.hidden, lanes, mask)
            value = of_input + k.rounded_product(k.convert(total, "f32"), factor)
            values.append(value + self.at["bias"].load(column, lanes))
        of_input, output, forget, new = values
        holes = [
            self.at["peepholes"].load(unit + (direction * 3 + which) * plan.padded, lanes)
            for which in range(3)
        ]
        state, result = plan.cells[direction]
        at = self._state(n) + unit
        before = self.at["cn"].load(at, lanes, mask)
        c = lower(k, state, [of_input, forget, new, before, holes[0], holes[2]])
        h = lower(k, result, [output, c, holes[1]])
        self.at["cn"].store(c, at, mask)
        self.at["hn"].store(h, at, mask)
        self.at["y"].store(h, self._result(t, n) + unit, mask)


def _dot(k: Builder, unsigned: Value, signed: Value, sums: Value) -> Value:
    """sums + the four products of each lane's bytes, byte by byte where no instruction does it."""
    if k.isa.has_dot:
        return k.dot(unsigned, signed, sums)
    for place in range(4):
        a = (unsigned >> (8 * place)) & 255
        b = (signed << (24 - 8 * place)) >> 24
        sums = sums + a * b
    return sums
