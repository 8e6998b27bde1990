"""Unpooling: values scattered into planes by their indices, and gradients gathered from them.

A unit is one plane, or as many planes as a vector has lanes where the channels are neighbours in memory. Forward,
the values are put in their places in workspace, one after the other, so that the last one of several stays, and the
planes are written once. An index that names no element is sent to a place behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.microkernel.nontemporal import is_streamed, store_vector
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units
from jitdnn.problems.problem import Problem
from jitdnn.problems.unpooling import Unpooling
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import TensorDescriptor, compute_dtype

_AXES = 3
_TENSORS = 3  # the one that is read, the indices, the result
_NUMBERS = ("units", "per_task", "blocks", "channels", "pitch", "size")
_FIRST = len(_NUMBERS)


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    direction: str
    dtype: str
    indices: str
    along_channels: bool  # lanes are channels, else neighbours in a row of outputs
    is_unit: tuple[bool, ...]  # for each tensor: neighbouring lanes are neighbours in memory
    is_uniform: bool  # the elements of a plane of the image are equally far apart
    streams: bool


class _Unpooling:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.dtype = code, compute_dtype(code.dtype)
        with module.task("unpooling") as (k, args, task, thread):
            self.k, self.lanes = k, k.lanes(self.dtype)
            arguments = Arguments(k, args, _TENSORS)
            self.n = n = {name: cast(Value, arguments.extra(i)) for i, name in enumerate(_NUMBERS)}
            small: list[Value] = [arguments.extra(_FIRST + a) for a in range(_AXES)]
            large: list[Value] = [arguments.extra(_FIRST + _AXES + a) for a in range(_AXES)]
            first = _FIRST + 2 * _AXES
            width = 2 + _AXES
            self.strides: list[list[Value]] = [
                [arguments.extra(first + t * width + a) for a in range(width)] for t in range(_TENSORS)
            ]
            self.is_forward = code.direction == "fwd"
            self.extents = {"small": small, "large": large}
            self.values, self.image = (0, 2) if self.is_forward else (2, 0)
            self.scale = Scale(k, arguments, self.dtype)
            pointers = [arguments.pointer(t, code.dtype).as_real(self.dtype) for t in (0, 2)]
            pointers.insert(1, arguments.pointer(1, code.indices))
            self.plane = arguments.workspace(self.dtype) + thread * n["pitch"]
            lanes = self.lanes if code.along_channels else 1
            counter = Counter(
                k, task * n["per_task"], [n["units"] // n["blocks"], n["blocks"]],
                [[s[0], s[1] * lanes] for s in self.strides],
            )  # fmt: skip
            start = task * n["per_task"]
            for _unit in k.range(start, (start + n["per_task"]).min(n["units"])):
                self.here: list[Pointer] = [
                    p + o.get() for p, o in zip(pointers, counter.offsets, strict=True)
                ]
                self.left = n["channels"] - counter.digits[1].get() * lanes
                if self.is_forward:
                    self._zero()
                    for lane_step, mask in self._outputs():
                        self._scatter(lane_step, mask)
                    self._write()
                else:
                    for lane_step, mask in self._outputs():
                        self._gather(lane_step, mask)
                counter.advance()

    # ---- where lanes are

    def _vectors(self, which: str) -> Iterator[tuple[list[Value], Value | None]]:
        """Loops over the positions of the small or the large tensor: that of lane 0, and the mask."""
        k, (e0, e1, e2) = self.k, self.extents[which]
        for p0 in k.range(e0):
            for p1 in k.range(e1):
                if self.code.along_channels:
                    mask = k.mask(self.left, self.lanes)
                    for p2 in k.range(e2):
                        yield [p0, p1, p2], mask
                    continue
                whole = (e2 // self.lanes) * self.lanes
                for p2 in k.range(0, whole, self.lanes):
                    yield [p0, p1, p2], None
                with k.when(whole < e2):
                    yield [p0, p1, whole], k.mask(e2 - whole, self.lanes)

    def _outputs(self) -> Iterator[tuple[list[Value], Value | None]]:
        return self._vectors("small")

    def _step(self, tensor: int) -> int | Value:
        if self.code.is_unit[tensor]:
            return 1
        return self.strides[tensor][1 if self.code.along_channels else 4]

    def _at(self, tensor: int, position: Sequence[Value]) -> Pointer:
        pointer = self.here[tensor]
        for p, stride in zip(position, self.strides[tensor][2:], strict=True):
            pointer = pointer + p * stride
        return pointer

    def _indices(self, position: Sequence[Value], mask: Value | None) -> Value:
        """The indices of a vector of outputs; those that name no element name the one behind the last."""
        k, size = self.k, self.k.splat(self.n["size"], self.lanes)
        found = k.convert(self._at(1, position).load_strided(0, self._step(1), self.lanes, mask), "i64")
        is_inside = (found >= 0) & (found < size)
        return k.select(is_inside if mask is None else is_inside & mask, found, size)

    # ---- forward

    @property
    def _places(self) -> int:
        """Elements of workspace for one element of a plane."""
        return self.lanes if self.code.along_channels else 1

    def _zero(self) -> None:
        nothing = self.k.constant(0.0, self.dtype, self.lanes)
        for i in self.k.range(0, self.n["pitch"], self.lanes):
            self.plane.store(nothing, i)

    def _scatter(self, position: Sequence[Value], mask: Value | None) -> None:
        k, code = self.k, self.code
        values = self._at(0, position).load_strided(0, self._step(0), self.lanes, mask)
        places = self._indices(position, mask) * self._places
        if code.along_channels:
            places = places + k.iota(self.lanes)
        for lane in range(self.lanes):
            self.plane.store(k.extract(values, lane), k.extract(places, lane))

    def _write(self) -> None:
        k, (_, e1, e2) = self.k, self.extents["large"]
        for position, mask in self._vectors("large"):
            p0, p1, p2 = position
            value = self.plane.load(((p0 * e1 + p1) * e2 + p2) * self._places, self.lanes)
            target, step = self._at(2, position), self._step(2)
            if mask is None and self.code.is_unit[2]:
                store_vector(k, self.scale, target, value, self.code.streams)
            else:
                self.scale.store(target, step, value, mask)

    # ---- backward

    def _gather(self, position: Sequence[Value], mask: Value | None) -> None:
        k, code = self.k, self.code
        indices = self._indices(position, mask)
        result = k.constant(0.0, self.dtype, self.lanes)
        for lane in range(self.lanes):
            index = k.extract(indices, lane)
            is_inside = index < self.n["size"]
            there = self.here[0] + self._offset(k.select(is_inside, index, 0))
            if code.along_channels:
                there = there + k.integer(self._step(0)) * lane
            result = k.insert(result, there.load(0, 1, is_inside), lane)
        self.scale.store(self._at(2, position), self._step(2), result, mask)

    def _offset(self, index: Value) -> Value:
        """Where an element of a plane of the image is."""
        _, e1, e2 = self.extents["large"]
        s0, s1, s2 = self.strides[0][2:]
        if self.code.is_uniform:
            return index * s2
        row, column = index // e2, index % e2
        return (row // e1) * s0 + (row % e1) * s1 + column * s2


def _trace(module: Module, code: _Code) -> None:
    _Unpooling(module, code)


def _three(values: Sequence[int], filler: int) -> list[int]:
    """Numbers of 1 to 3 axes as those of three, the missing ones in front."""
    return [filler] * (_AXES - len(values)) + list(values)


class ScatterUnpooling(Algorithm):
    """Values go one by one to their places in a plane of workspace, which is written once; gradients are gathered."""

    name = "scatter"
    problem = Unpooling
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "unpooling takes no epilogue" if epilogue is not None else None

    def _along_channels(self, problem: Unpooling) -> bool:
        tensors = (problem.small, problem.large)
        return problem.small.shape[1] > 1 and all(t.strides[1] == 1 for t in tensors)

    def _pitch(self, problem: Unpooling, lanes: int) -> int:
        """Elements of workspace of one thread: a plane, and one place more, with room for a whole vector."""
        places = lanes if self._along_channels(problem) else 1
        size = prod(problem.large.shape[2:])
        return (size * places // lanes + 2) * lanes

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        unpooling, dtype = cast(Unpooling, problem), compute_dtype(problem.dtype)
        if unpooling.direction == "bwd":
            return 0
        lanes = cast(CpuDevice, device).isa.lanes(dtype)
        return device.threads * self._pitch(unpooling, lanes) * ITEM_BYTES[dtype]

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        unpooling, processor = cast(Unpooling, problem), cast(CpuDevice, device)
        lanes = processor.isa.lanes(compute_dtype(problem.dtype))
        cycles = 3.0 * unpooling.small.size
        if unpooling.direction == "fwd":
            cycles += 6.0 * unpooling.large.size / lanes
        return seconds_of(problem, processor, cycles, max(1, int(cycles / 5e4)))

    def error_bound(self, problem: Problem) -> float:
        return UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        unpooling, processor = cast(Unpooling, problem), cast(CpuDevice, device)
        lanes = processor.isa.lanes(compute_dtype(problem.dtype))
        along_channels = self._along_channels(unpooling)
        tensors = [operand.descriptor for operand in problem.operands]
        lane_axis = 1 if along_channels else -1
        code = _Code(
            unpooling.direction, problem.dtype, unpooling.indices.dtype, along_channels,
            tuple(t.strides[lane_axis] == 1 for t in tensors), _is_uniform(unpooling.large),
            is_streamed(problem.output),
        )  # fmt: skip
        library = load("unpooling", code, processor.isa, lambda module: _trace(module, code))
        images, channels = unpooling.large.shape[:2]
        blocks = -(-channels // lanes) if along_channels else channels
        units = images * blocks if problem.output.size else 0
        tasks, per_task = split_units(units, device, self.estimate(problem, device) * device.threads)
        extras = [
            units, per_task, blocks, channels, self._pitch(unpooling, lanes), prod(unpooling.large.shape[2:]),
            *_three(unpooling.small.shape[2:], 1), *_three(unpooling.large.shape[2:], 1),
            *(n for t in tensors for n in (*t.strides[:2], *_three(t.strides[2:], 0))),
        ]  # fmt: skip
        threads = device.threads if tasks > 1 else 1
        return CpuKernel(library, [("unpooling", tasks)], _TENSORS, threads, extras)


def _is_uniform(image: TensorDescriptor) -> bool:
    axes = list(zip(image.shape[2:], image.strides[2:], strict=True))
    return all(outer == extent * inner for (_, outer), (extent, inner) in pairwise(axes))
