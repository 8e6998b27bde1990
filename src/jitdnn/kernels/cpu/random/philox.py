"""Philox4x32-10 in traced code, and tensors worked through with the random words of their elements.

A word lives in the low half of a 64-bit lane, whatever is in the high half: a multiplication of two low halves
gives both halves of the product at once, one shifted down, the other where it is needed.

The elements are those of a box, of which every position stands for one block of four words and so for one element
in each part of the tensor (`problems/philox.py`). The parts are worked through side by side:

    region > task > unit = one block of one row > vectors of the block > parts

Where the extent is no multiple of the parts, the last ones are short. The box is then cut in two regions, in each
of which every part that takes part is whole: there is nothing to mask but the tail of a row.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units, task_count
from jitdnn.kernels.formulas.loop_nest import Nest
from jitdnn.kernels.formulas.philox import Numbered, Region, regions
from jitdnn.problems.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, part_extent, split_axis
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import INT, INT32, constant_of, vector_type
from jitdnn.tensor import TensorDescriptor, compute_dtype

_Store = Callable[[Pointer, Value, Value, Any, "Value | None"], None]

_LOW = 0xFFFFFFFF
_PREFETCH_BYTES = 1024  # ahead: more streams than the processor's own prefetchers follow
_STREAM_RUN = 4096  # bytes in one piece, or looking for aligned addresses costs more than it brings
_WORD_SECONDS = 0.25e-9  # of one thread with vectors of 64 bytes


class Generator:
    """The generator of one state: its keys and the half of the counter that is the same for all."""

    def __init__(self, k: Builder, state: Pointer) -> None:
        self.k = k
        seed_low, seed_high, self.offset_low, self.offset_high = (
            Value(k, k.b.zext(state.load(i).v, INT)) for i in range(4)
        )
        self.keys = [
            tuple(
                (seed + turn * step) & _LOW
                for seed, step in zip((seed_low, seed_high), KEY_STEPS, strict=True)
            )
            for turn in range(ROUNDS)
        ]

    def words(self, block: Value) -> list[Value]:
        """Four random words for each lane's block number, in the low halves of 64-bit lanes."""
        k, lanes = self.k, block.lanes
        x = [block, self._high(block), k.splat(self.offset_low, lanes), k.splat(self.offset_high, lanes)]
        for first_key, second_key in self.keys:
            first, second = (x[0] & _LOW) * MULTIPLIERS[0], (x[2] & _LOW) * MULTIPLIERS[1]
            x = [
                self._high(second) ^ x[1] ^ k.splat(first_key, lanes),
                second,
                self._high(first) ^ x[3] ^ k.splat(second_key, lanes),
                first,
            ]
        return x

    def _high(self, value: Value) -> Value:
        return Value(self.k, self.k.b.lshr(value.v, constant_of(value.v.type, 32)))


def low_words(k: Builder, word: Value) -> Value:
    """The low halves of 64-bit lanes, as many 32-bit lanes: one shuffle, where to truncate takes several."""
    lanes = word.lanes
    if lanes == 1:
        return Value(k, k.b.trunc(word.v, INT32))
    halves = Value(k, k.b.bitcast(word.v, vector_type(INT32, 2 * lanes)))
    return k.shuffle(halves, halves, range(0, 2 * lanes, 2))


class Body:
    """What is done with the words. A subclass is a frozen dataclass: its repr is part of the key of the code."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """How many numbers it takes at run time, each 64 bits wide."""

    @abstractmethod
    def prepare(self, k: Builder, dtype: str, numbers: Sequence[Value]) -> Sequence[Value]:
        """Scalars made of the numbers once a task."""

    @abstractmethod
    def draw(
        self, k: Builder, dtype: str, scalars: Sequence[Value], words: Sequence[Value]
    ) -> Sequence[Value]:
        """What the four words of the blocks decide for each part. It is computed in `dtype`."""

    def finish(
        self, k: Builder, dtype: str, scalars: Sequence[Value], drawn: Value, x: Value | None
    ) -> Sequence[Value]:
        """The values of the outputs: the principal one, before alpha, then what is saved."""
        return (drawn,)


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    body: Body
    dtype: str  # of the arithmetic
    dtypes: tuple[str, ...]  # of the tensors
    inputs: int  # 0 or 1
    state: int  # number of the operand
    operands: tuple[int, ...]  # the tensors' numbers
    pointers: int
    regions: tuple[tuple[int, int, tuple[int, ...]], ...]  # axes, active parts, which tensors move by 1
    streams: str | None  # past the caches: "long" rows after a first piece, or rows of "whole" vectors


def double_bits(value: float) -> int:
    """A double as the integer of the same bits, to be passed as a number to the code."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def estimate_parts(sizes: Sequence[TensorDescriptor], parts: int, device: Device) -> float:
    """Expected seconds of the kernel that `build_parts` makes."""
    alone = _seconds(sizes, parts, device)
    return 3e-6 + alone / min(device.threads, task_count(device, alone))


def _seconds(tensors: Sequence[TensorDescriptor], parts: int, device: Device) -> float:
    output, isa = tensors[-1], cast(CpuDevice, device).isa
    words = output.size * 4 / parts * _WORD_SECONDS * 64 / isa.vector_bytes
    gathered = sum(t.size for t in tensors if t.layout is None) * 1e-9
    speed = cost.memory_speed(isa.processor, cost.ELEMENTWISE_MEMORY_RATE)
    return max(words, sum(t.nbytes for t in tensors) / speed) + gathered


def build_parts(
    body: Body,
    numbers: Sequence[int],
    tensors: Numbered,
    inputs: int,
    state: int,
    parts: int,
    device: Device,
) -> CpuKernel:
    """The kernel of a body over tensors of one shape, given with their operand numbers: `inputs` inputs (0 or 1),
    then what is saved, the principal output last. `state` is the operand number of the generator's state."""
    processor = cast(CpuDevice, device)
    descriptors = [descriptor for _, descriptor in tensors]
    output = descriptors[-1]
    dtype = compute_dtype(output.dtype)
    lanes = processor.isa.lanes(dtype)
    axis, part = split_axis(output.shape, parts), part_extent(output.shape, parts)
    steps = [part * descriptor.strides[axis] for descriptor in descriptors]
    found = regions(descriptors, axis, part)
    code = _Code(
        body, dtype, tuple(d.dtype for d in descriptors), inputs, state, tuple(n for n, _ in tensors),
        len(tensors) + 1,
        tuple(
            (len(r.nest.extents), r.active, tuple(int(s[-1] == 1) for s in r.nest.strides)) for r in found
        ),
        _streams(output, found, steps[-1], lanes, processor.isa.processor.last_cache(cost.ELEMENTWISE_STREAM)),
    )  # fmt: skip
    extras, phases, threads = [*numbers, *steps], [], 1
    seconds = _seconds(descriptors, parts, device)
    for number, region in enumerate(found):
        nest = region.nest
        share_of_all = seconds * nest.size * region.active / max(1, output.size)
        blocks, block = _blocks(nest, lanes, task_count(device, share_of_all))
        units = prod(nest.extents[:-1]) * blocks
        tasks, per_task = split_units(units, device, share_of_all)
        extras += [
            units, per_task, nest.extents[-1], block, blocks, *nest.extents[:-1], *nest.bases,
            *(step for strides in nest.strides for step in strides),
        ]  # fmt: skip
        phases.append((f"region{number}", tasks))
        threads = processor.threads if tasks > 1 else threads
    library = load("philox", code, processor.isa, lambda module: _trace(module, code))
    return CpuKernel(library, phases, code.pointers, threads, extras)


def _streams(
    output: TensorDescriptor, regions: Sequence[Region], step: int, lanes: int, stream_bytes: int
) -> str | None:
    """How the output is written past the caches; None if it is not. All parts must be aligned alike."""
    if len(regions) != 1 or output.nbytes < stream_bytes or step % lanes:
        return None
    nest = regions[0].nest
    if nest.strides[-1][-1] != 1:
        return None
    if nest.extents[-1] * ITEM_BYTES[output.dtype] >= _STREAM_RUN:
        return "long"
    return None if nest.extents[-1] % lanes else "whole"


def _blocks(nest: Nest, lanes: int, tasks: int) -> tuple[int, int]:
    """Into how many blocks of what length a row is cut."""
    rows, run = prod(nest.extents[:-1]), nest.extents[-1]
    block = max(1, run)
    if rows < tasks:
        block = max(1, -(-run // (-(-tasks // max(1, rows)) * lanes))) * lanes
    return -(-run // block), block


def _trace(module: Module, code: _Code) -> None:
    first = code.body.parameters + len(code.dtypes)
    for number, (axes, active, is_unit) in enumerate(code.regions):
        with module.task(f"region{number}") as (k, args, task, _):
            _Loop(k, args, code, first, axes, active, is_unit).run(task)
        first += 5 + (axes - 1) + len(is_unit) * (1 + axes)


class _Loop:
    """The code of one region."""

    def __init__(
        self,
        k: Builder,
        args: Pointer,
        code: _Code,
        first: int,
        axes: int,
        active: int,
        is_unit: Sequence[int],
    ) -> None:
        self.k, self.code, self.active = k, code, active
        self.lanes = k.lanes(code.dtype)
        arguments = Arguments(k, args, code.pointers)
        numbers = [arguments.extra(i) for i in range(code.body.parameters)]
        self.scalars = code.body.prepare(k, code.dtype, numbers)
        self.part_steps = [arguments.extra(code.body.parameters + t) for t in range(len(code.dtypes))]
        self.units, self.per_task, self.extent, self.block, self.blocks = (
            arguments.extra(first + i) for i in range(5)
        )
        self.rows = [arguments.extra(first + 5 + i) for i in range(axes - 1)]
        moving = len(is_unit)  # the tensors, with the numbers of the blocks before the last
        self.bases = [arguments.extra(first + 4 + axes + i) for i in range(moving)]
        at = first + 4 + axes + moving
        self.strides = [[arguments.extra(at + t * axes + a) for a in range(axes)] for t in range(moving)]
        self.inner: list[Any] = [
            1 if unit else strides[-1] for unit, strides in zip(is_unit, self.strides, strict=True)
        ]
        self.pointers = [
            arguments.pointer(number, dtype).as_real(code.dtype)
            for number, dtype in zip(code.operands, code.dtypes, strict=True)
        ]
        self.generator = Generator(k, arguments.pointer(code.state, "u32"))
        self.alpha, self.beta = arguments.alpha(code.dtype), arguments.beta(code.dtype)

    def run(self, task: Value) -> None:
        k = self.k
        with k.when(self.beta == 0.0):
            self._units(task, blends=False)
        with k.when(self.beta != 0.0):
            self._units(task, blends=True)

    def _units(self, task: Value, blends: bool) -> None:
        k = self.k
        first = task * self.per_task
        steps = [[*s[:-1], self.block * s[-1]] for s in self.strides]
        counter = Counter(k, first, [*self.rows, self.blocks], steps, self.bases)
        for _unit in k.range(first, (first + self.per_task).min(self.units)):
            offsets = [offset.get() for offset in counter.offsets]
            self._row(offsets, (self.extent - counter.digits[-1].get() * self.block).min(self.block), blends)
            counter.advance()

    def _row(self, offsets: Sequence[Value], count: Value, blends: bool) -> None:
        k, lanes = self.k, self.lanes
        *tensor_offsets, block, last_offset = offsets
        here = [p + o for p, o in zip(self.pointers, (*tensor_offsets, last_offset), strict=True)]
        numbers = k.splat(block, lanes) + k.iota(lanes) * k.integer(self.inner[-2])
        start: Value = k.integer(0)
        streams = None if blends else self.code.streams
        if streams == "long":
            start = self._head(here[-1]).min(count)
            self._step(here, numbers, k.integer(0), k.mask(start, lanes), blends, self._store)
        full = start + ((count - start) // lanes) * lanes
        if streams == "whole":
            ahead = self._head(here[-1])
            with k.when(ahead == 0):
                self._vectors(here, numbers, start, full, blends, self._stream)
            with k.when(ahead != 0):
                self._vectors(here, numbers, start, full, blends, self._store)
        else:
            self._vectors(here, numbers, start, full, blends, self._stream if streams else self._store)
        with k.when(full < count):
            self._step(here, numbers, full, k.mask(count - full, lanes), blends, self._store)

    def _vectors(
        self, here: Sequence[Pointer], numbers: Value, start: Value, stop: Value, blends: bool, store: _Store
    ) -> None:
        for i in self.k.range(start, stop, self.lanes):
            self._step(here, numbers, i, None, blends, store)

    def _head(self, output: Pointer) -> Value:
        """Elements before the first aligned vector of the output."""
        k, size = self.k, ITEM_BYTES[output.dtype]
        address = Value(k, k.b.ptrtoint(output.v, INT))
        return ((0 - address) & (self.lanes * size - 1)) // size

    def _step(
        self,
        here: Sequence[Pointer],
        numbers: Value,
        i: Value,
        mask: Value | None,
        blends: bool,
        store: _Store,
    ) -> None:
        k = self.k
        body = self.code.body
        drawn = body.draw(
            k, self.code.dtype, self.scalars, self.generator.words(numbers + i * self.inner[-2])
        )
        for part in range(self.active):
            self._finish(self._part(here, part), drawn[part], i, mask, blends, store)

    def _part(self, here: Sequence[Pointer], part: int) -> list[Pointer]:
        return [p + step * part for p, step in zip(here, self.part_steps, strict=True)]

    def _finish(
        self,
        place: Sequence[Pointer],
        drawn: Value,
        i: Value,
        mask: Value | None,
        blends: bool,
        store: _Store,
    ) -> None:
        """One vector of one part, from what was drawn for it."""
        k, lanes, inner = self.k, self.lanes, [*self.inner[:-2], self.inner[-1]]
        offsets = [i * step for step in inner]
        if self.code.inputs and mask is None:
            place[0].prefetch(offsets[0] + _PREFETCH_BYTES // ITEM_BYTES[place[0].dtype])
        x = place[0].load_strided(offsets[0], inner[0], lanes, mask) if self.code.inputs else None
        principal, *saved = self.code.body.finish(k, self.code.dtype, self.scalars, drawn, x)
        result = principal * k.splat(self.alpha, lanes)
        if blends:
            old = place[-1].load_strided(offsets[-1], inner[-1], lanes, mask)
            result = k.fma(k.splat(self.beta, lanes), old, result)
        for t, value in enumerate(saved, self.code.inputs):
            self._store(place[t], value, offsets[t], inner[t], mask)
        store(place[-1], result, offsets[-1], inner[-1], mask)

    def _store(self, place: Pointer, value: Value, offset: Value, step: Any, mask: Value | None) -> None:
        place.store_strided(value, offset, step, mask)

    def _stream(self, place: Pointer, value: Value, offset: Value, step: Any, mask: Value | None) -> None:
        place.stream(value, offset)
