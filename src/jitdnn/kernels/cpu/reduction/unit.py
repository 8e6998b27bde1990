"""One unit of a program over rows, in traced code: its row values, and its elements in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.reduction.plan import CONSTANT_STRIDES, RowCode
from jitdnn.kernels.formulas.row_programs import Phase
from jitdnn.rtcg.builder import Builder, Pointer, Value


@dataclass(frozen=True)
class Function:
    """One function of the kernel: what all its units see."""

    k: Builder
    code: RowCode
    phase: Phase | None  # of rows in parts
    arguments: Arguments
    at: dict[str, Value]  # the integers that the code takes, by name
    lanes: int
    alpha: Value
    beta: Value
    buffer: Pointer | None
    is_aligned: Value | None  # whether the outputs that are streamed begin at whole vectors


@dataclass(frozen=True)
class Spot:
    """One vector of elements: whose row values it has, where it is in each tensor, and its mask.

    A slot has row values of its own: a vector of a unit over rows, the only row of a unit over elements. `shift`
    counts lanes from the pointers on.
    """

    slot: int
    pointers: Sequence[Pointer]
    shift: Value | int
    buffer: Value | int  # where in the buffer
    mask: Value | None
    position: Value  # the first lane's position in the row


class Unit:
    """A row, or the rows of some vectors."""

    def __init__(
        self, function: Function, here: list[Pointer], position: Value, unit: Value, part: Value,
        masks: Sequence[Value | None],
    ) -> None:  # fmt: skip
        self.function, self.k, self.code = function, function.k, function.code
        self.at, self.lanes = function.at, function.lanes
        self.here, self.position, self.unit, self.part, self.masks = here, position, unit, part, masks
        self.slots = len(masks)
        # one for each slot; a single number each over elements
        self.values: list[list[Value]] = [
            [self._parameter(n)] * self.slots for n in range(len(self.code.program.parameters))
        ]
        self.own: dict[int, list[Value]] = {}  # inputs that do not move along the row

    def _parameter(self, number: int) -> Value:
        bits = self.k.bitcast(self.at[f"parameter{number}"], "f64")
        return self.k.convert(bits, self.code.compute)

    # ---- row values

    def number(self, value: Value) -> Value:
        """A row value as expressions see it: positions become real numbers."""
        return value if value.is_float else self.k.convert(value, self.code.compute)

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
