"""Prefix results along one axis of strided tensors: sums so far, maxima so far, or a fold of one's own.

    out[i] = fold(expression(inputs[0]), ..., expression(inputs[i]))        or without the last one ("exclusive")

Where the axis lies in one piece, vectors go along it ("along"): each is scanned in registers by log2(lanes) shifted
folds, then the result so far is folded in front. Long rows are cut into parts of a fixed size, so that results do not
depend on the number of threads:

    totals : task > unit = part of a row > vectors        the fold of the part, into the workspace
    scan   : task > unit = part of a row > vectors        begins with the fold of the totals before it

Else the lanes are neighbours on another axis, and each scans for itself ("across").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.kernels.cpu.reduction.combine import State, combine, combine_lanes, identity
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units
from jitdnn.kernels.formulas.parts_kernel import PartsKernel
from jitdnn.rtcg.builder import Builder, Module, Pointer, Register, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.rtcg.lowering import lower
from jitdnn.tensor import DTYPES, TensorDescriptor

_PART = 1 << 16  # elements of a part of a long row
_VECTORS = 4  # of a unit of "across"
_ELEMENT_SECONDS = 0.4e-9


@dataclass(frozen=True)
class ScanCode:
    """What is compiled in."""

    computing: str
    dtypes: tuple[str, ...]  # inputs, then the output
    expression: Expression
    reduction: Reduction
    is_exclusive: bool
    over_rows: bool
    is_split: bool
    axes: int  # that are kept, the lanes' among them
    steps: tuple[int | None, ...]  # of each tensor along the lanes, None where it is given at run time

    def __repr__(self) -> str:
        return (
            f"{self.computing} {self.dtypes} {self.expression.key} {self.reduction} {self.is_exclusive} "
            f"{self.over_rows} {self.is_split} {self.axes} {self.steps}"
        )


def build_scan(
    expression: Expression,
    reduction: Reduction,
    is_exclusive: bool,
    tensors: Sequence[TensorDescriptor],
    axis: int,
    is_reverse: bool,
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel over tensors of one shape, inputs then the output, and the bytes of workspace that it needs.

    `reduction` is "add", "multiply", "max", "min" or a fold.
    """
    if is_reverse:
        ranges = [*(None,) * axis, slice(None, None, -1)]
        turned = [tensor.slice(*ranges) for tensor in tensors]
        places = [(t, tensor.offset * DTYPES[tensor.dtype]) for t, tensor in enumerate(turned)]
        plain = [TensorDescriptor(tensor.shape, tensor.strides, tensor.dtype) for tensor in turned]
        kernel, workspace = build_scan(
            expression, reduction, is_exclusive, plain, axis, False, device, computing
        )
        return PartsKernel([(kernel, places)]), workspace
    processor, output = cast(CpuDevice, device), tensors[-1]
    lanes, extent = processor.isa.lanes(computing), output.shape[axis]
    kept = [a for a in range(len(output.shape)) if a != axis and output.shape[a] != 1]
    kept.sort(key=lambda a: -abs(output.strides[a]))
    over_rows = bool(kept) and output.strides[axis] != 1 and output.shape[kept[-1]] > 1
    lane_axis = kept[-1] if over_rows else axis
    steps = tuple({0: 0, 1: 1}.get(tensor.strides[lane_axis]) for tensor in tensors)
    width = lanes * _VECTORS
    blocks = -(-output.shape[lane_axis] // width) if over_rows else -(-extent // _PART)
    outer = kept[:-1] if over_rows else kept
    units = prod(output.shape[a] for a in outer) * blocks
    is_split = not over_rows and blocks > 1
    code = ScanCode(
        computing, tuple(t.dtype for t in tensors), expression, reduction, is_exclusive, over_rows, is_split,
        len(outer), steps,
    )  # fmt: skip
    tasks, per_task = split_units(units, device, output.size * _ELEMENT_SECONDS * (2 if is_split else 1))
    jump = width if over_rows else _PART
    extras = [units, per_task, extent, output.shape[lane_axis], blocks, *(output.shape[a] for a in outer)]
    for tensor in tensors:
        extras += [tensor.strides[axis], tensor.strides[lane_axis], tensor.strides[lane_axis] * jump]
        extras += [tensor.strides[a] for a in outer]
    library = load("scan", code, processor.isa, lambda module: _trace(module, code))
    phases = [("totals", tasks), ("scan", tasks)] if is_split else [("scan", tasks)]
    return CpuKernel(library, phases, len(tensors), processor.threads, extras), units * 8 if is_split else 0


def _trace(module: Module, code: ScanCode) -> None:
    for name in ("totals", "scan") if code.is_split else ("scan",):
        with module.task(name) as (k, args, task, _):
            _Scan(k, code, Arguments(k, args, len(code.dtypes)), task).run(name == "totals")


class _Scan:
    def __init__(self, k: Builder, code: ScanCode, arguments: Arguments, task: Value) -> None:
        self.k, self.code, self.task = k, code, task
        self.lanes = k.lanes(code.computing)
        self.units, self.per_task, self.extent, self.wide, self.blocks = (
            arguments.extra(i) for i in range(5)
        )
        self.extents = [arguments.extra(5 + i) for i in range(code.axes)]
        first, each = 5 + code.axes, 3 + code.axes
        rows = [[arguments.extra(first + t * each + i) for i in range(each)] for t in range(len(code.dtypes))]
        self.along = [row[0] for row in rows]
        self.step: list[Any] = [
            row[1] if step is None else step for row, step in zip(rows, code.steps, strict=True)
        ]
        self.jumps = [[*row[3:], row[2]] for row in rows]
        self.pointers = [
            arguments.pointer(t, dtype).as_real(code.computing) for t, dtype in enumerate(code.dtypes)
        ]
        self.totals = arguments.workspace(code.computing) if code.is_split else None

    def run(self, only_totals: bool) -> None:
        k = self.k
        first = self.task * self.per_task
        counter = Counter(k, first, [*self.extents, self.blocks], self.jumps)
        for unit in k.range(first, (first + self.per_task).min(self.units)):
            here = [p + offset.get() for p, offset in zip(self.pointers, counter.offsets, strict=True)]
            block = counter.digits[-1].get()
            if self.code.over_rows:
                self._across(here, self.wide - block * (self.lanes * _VECTORS))
            else:
                left = (self.extent - block * _PART).min(_PART)
                self._along(here, left, unit, block, only_totals)
            counter.advance()

    def _neutral(self, lanes: int) -> Value:
        return identity(self.k, self.code.reduction, self.code.computing, "i64", lanes)[0]

    def _reduce(self, a: Value, b: Value) -> Value:
        return combine(self.k, self.code.reduction, (a,), (b,))[0]

    def _value(self, places: Sequence[Pointer], at: Sequence[Value], mask: Value | None) -> Value:
        """What is folded: the expression, neutral in lanes that are off."""
        k = self.k
        inputs = [
            p.load_strided(i, s, self.lanes, mask)
            for p, i, s in zip(places[:-1], at, self.step, strict=False)
        ]
        value = k.splat(lower(k, self.code.expression, inputs, self.code.computing), self.lanes)
        return value if mask is None else k.select(mask, value, self._neutral(self.lanes))

    # ---- lanes along the axis

    def _along(
        self, here: Sequence[Pointer], count: Value, unit: Value, block: Value, only_totals: bool
    ) -> None:
        k, lanes = self.k, self.lanes
        if only_totals:
            assert self.totals is not None
            total = k.register(self._neutral(lanes))
            whole = count - count % lanes

            keeps_order = not isinstance(self.code.reduction, str)

            def add(i: Value, mask: Value | None) -> None:
                value = self._value(here, [i * s for s in self.step], mask)
                if keeps_order:  # lane by lane it would be lost: each vector is scanned, then folded behind
                    value = k.splat(k.extract(self._prefix(value), lanes - 1), lanes)
                total.set(self._reduce(total.get(), value))

            for i in k.range(0, whole, lanes):
                add(i, None)
            for i in k.range(whole, count, lanes):
                add(i, k.mask(count - i, lanes))
            whole_total: State = (total.get(),)
            if not keeps_order:
                whole_total = combine_lanes(k, self.code.reduction, whole_total)
            self.totals.store(k.extract(whole_total[0], 0), unit)
            return
        carry = k.register(self._neutral(lanes))
        if self.totals is not None:
            for part in k.range(unit - block, unit):
                carry.set(self._reduce(carry.get(), self.totals.splat(part, lanes)))
        whole = count - count % lanes
        for i in k.range(0, whole, lanes):
            self._step(here, i, None, carry)
        for i in k.range(whole, count, lanes):
            self._step(here, i, k.mask(count - i, lanes), carry)

    def _step(self, here: Sequence[Pointer], i: Value, mask: Value | None, carry: Register) -> None:
        k, lanes = self.k, self.lanes
        prefix = self._prefix(self._value(here, [i * s for s in self.step], mask))
        before = carry.get()
        result = self._reduce(before, prefix)
        carry.set(k.splat(k.extract(result, lanes - 1), lanes))
        if self.code.is_exclusive:
            result = self._shift(result, before, 1)
        here[-1].store_strided(result, i * self.step[-1], self.step[-1], mask)

    def _prefix(self, value: Value) -> Value:
        """Every lane folded with all before it."""
        distance, neutral = 1, self._neutral(self.lanes)
        while distance < self.lanes:
            value = self._reduce(self._shift(value, neutral, distance), value)
            distance *= 2
        return value

    def _shift(self, value: Value, filler: Value, distance: int) -> Value:
        """Lanes moved up by `distance`; the first ones are those of `filler`."""
        pattern = [self.lanes + i if i < distance else i - distance for i in range(self.lanes)]
        return self.k.shuffle(value, filler, pattern) if self.lanes > 1 else filler

    # ---- lanes across

    def _across(self, here: Sequence[Pointer], left: Value) -> None:
        k, lanes = self.k, self.lanes
        masks = [k.mask(left - v * lanes, lanes) for v in range(_VECTORS)]
        with k.when(left >= lanes * _VECTORS):
            self._columns(here, [None] * _VECTORS)
        with k.when(left < lanes * _VECTORS):
            self._columns(here, masks)

    def _columns(self, here: Sequence[Pointer], masks: Sequence[Value | None]) -> None:
        k, lanes = self.k, self.lanes
        sofar = [k.register(self._neutral(lanes)) for _ in masks]
        for i in k.range(self.extent):
            places = [p + i * along for p, along in zip(here, self.along, strict=True)]
            for v, (mask, register) in enumerate(zip(masks, sofar, strict=True)):
                at = [k.integer(v * lanes) * s for s in self.step]
                before = register.get()
                after = self._reduce(before, self._value(places, at, mask))
                register.set(after)
                result = before if self.code.is_exclusive else after
                places[-1].store_strided(result, at[-1], self.step[-1], mask)
