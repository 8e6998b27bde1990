"""The parts of plans of implicit products by warpgroups: axes, packed operands, bytes, and their times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    Batch,
    Geometry,
    GeometryAxis,
    PhaseAxis,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import (
    HEADER_BYTES,
    NO_PACK,
    Operand,
    Pack,
)
from jitdnn.kernels.cuda.warpgroup.cost import LAUNCH_SECONDS
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES

Three = tuple[int, int, int]
Packs = tuple[Pack | None, Pack | None]
_PACK_BLOCK_SECONDS = 0.5e-6  # of a multiprocessor, for each thread block that packs, as seen of few channels
NEEDS_WORKSPACE = "an operand must be packed, which takes workspace"


@dataclass(frozen=True)
class Axis:
    """An axis of a stride phase, its taps in the order of rising positions; see `Axis` of tables.cuh."""

    results: int
    base: int
    input_stride: int
    taps: int
    dilation: int
    first_tap: int
    tap_step: int
    first_result: int
    result_stride: int

    @staticmethod
    def of(axis: GeometryAxis, phase: PhaseAxis) -> Axis:
        dilation, step, first, base = axis.dilation, axis.filter_step, phase.first_tap, phase.data_offset
        if dilation < 0 or phase.taps <= 1:  # from the last tap to the first: positions rise
            base += dilation * max(0, phase.taps - 1)
            first += step * max(0, phase.taps - 1)
            dilation, step = -dilation, -step
        return Axis(
            phase.results, base, axis.input_stride, phase.taps, abs(dilation), first, step,
            phase.first_result, axis.output_stride,
        )  # fmt: skip

    @property
    def numbers(self) -> tuple[int, ...]:
        return (
            self.results, self.base, self.input_stride, self.taps, self.dilation, self.first_tap, self.tap_step,
            self.first_result, self.result_stride,
        )  # fmt: skip

    def inside(self, extent: int) -> int:
        """How many of its taps read a position that there is, of all results together."""
        count = 0
        for tap in range(self.taps):
            at = self.base + tap * self.dilation
            first = max(0, -(at // self.input_stride))
            count += max(0, min(self.results, -((at - extent) // self.input_stride)) - first)
        return count

    @property
    def reach(self) -> int:
        """The largest offset of a tap."""
        return max(0, self.taps - 1) * self.dilation


def rank_of(extent: int, axes: Sequence[Axis]) -> int:
    """Of the maps of pixels: 4 where the outermost axis of space has one position, one tap and no padding; else 5."""
    return 4 if extent == 1 and all(_is_trivial(axis) for axis in axes) else 5


def is_line(extents: Three, phases: Sequence[tuple[Axis, ...]]) -> bool:
    """Whether there is one axis of space: maps of three axes have room for taps that are farther apart."""
    return extents[:2] == (1, 1) and all(_is_trivial(axis) for axes in phases for axis in axes[:2])


def _is_trivial(axis: Axis) -> bool:
    return (axis.results, axis.taps, axis.base) == (1, 1, 0)


def packed(
    first: Operand,
    second: Operand,
    parts: int,
    is_scaled: bool,
    is_widened: bool = False,
    as_it_is: Operand | None = None,
    is_blockwise: bool = False,
) -> tuple[Packs, int]:
    """The packs of operands that are not read directly, and the bytes of the workspace up to their end.

    `is_widened`: both are copied as f16. `as_it_is`: one of them, which is read so if it can be. `is_blockwise`: each
    block of 64 pixels by 64 channels is scaled by itself.
    """
    packs: list[Pack | None] = []
    at = HEADER_BYTES if is_scaled and not is_blockwise else 0
    for operand in (first, second):
        is_read = operand.is_direct and not is_widened and (not is_scaled or operand is as_it_is)
        pack = None if is_read else Pack(operand, at, parts, is_widened, is_scaled)
        if pack and is_blockwise:
            pack = replace(pack, at=at + -(-4 * pack.blocks // 256) * 256, shifts=at)
            at = pack.at
        packs.append(pack)
        at += pack.bytes if pack else 0
    return (packs[0], packs[1]), at


def parts_of(operand: Operand, pack: Pack | None) -> tuple[Operand, ...]:
    """What is multiplied of an operand: itself, or its copies."""
    return tuple(pack.operand(part) for part in range(pack.parts)) if pack else (operand,)


def pack_numbers(packs: Packs) -> tuple[int, ...]:
    return tuple(number for pack in packs for number in (pack.numbers if pack else NO_PACK))


def pack_seconds(packs: Packs, device: GpuDevice) -> float:
    """Expected time of packing."""
    time = 0.0
    for pack in packs:
        if pack:
            one = pack.source
            read = one.pixels * one.channels * one.size
            moved = read + pack.bytes
            if (
                pack.is_scaled and pack.shifts < 0
            ):  # the largest number is looked for first, and what fits stays in L2
                moved += read
            time += 1.3 * moved / device.bandwidth
            if not pack.is_flat and (pack.shifts < 0 or one.channel != 1):
                time += pack.blocks * _PACK_BLOCK_SECONDS / device.multiprocessors
    if any(packs):
        looks_first = any(pack and pack.is_scaled and pack.shifts < 0 for pack in packs)
        time += (2 if looks_first else 1) * LAUNCH_SECONDS
    return time


def batched(operand: Operand, batch: Batch | None, step: int) -> Operand:
    """The operand of one product as that of all: the products are its images."""
    return replace(operand, images=batch.count, image=step) if batch else operand


def three_of(numbers: Iterable[int]) -> Three:
    a, b, c = numbers
    return a, b, c


def element_bytes(problem: Convolution, is_scaled: bool) -> int:
    """Of what is multiplied."""
    is_widened = problem.direction == "bwd_filter" and problem.has_float8
    return 2 if is_scaled or is_widened else DTYPES[dtypes(problem)[0]]


def dtypes(problem: Convolution) -> tuple[str, str]:
    """The types of the operands."""
    first, second = (operand.descriptor.dtype for operand in problem.inputs)
    return first, second


def moved_bytes(problem: Convolution) -> int:
    """From and to memory: of an x that is read, what taps meet where they are fewer than the stride."""
    x = problem.x.nbytes
    if problem.direction != "bwd_data":
        for taps, stride in zip(problem.filter_spatial, problem.stride, strict=True):
            x = x * min(taps, stride) // stride
    return x + problem.w.nbytes + problem.y.nbytes


def filter_of(problem: Convolution, batch: Batch | None) -> tuple[Operand, Operand]:
    """The filter with the channels that are summed as its channels, and with those of the columns."""
    weights = Operand.of(problem.w, 1)
    if batch:  # one tap, in whose place the products are
        weights = replace(weights, extents=(batch.count, 1, 1), space=(batch.filter, 0, 0))
    swapped = replace(
        weights,
        images=weights.channels,
        channels=weights.images,
        image=weights.channel,
        channel=weights.image,
    )
    return (weights, swapped) if problem.direction == "fwd" else (swapped, weights)


def filter_steps(geometry: Geometry, is_forward: bool, batch: Batch | None) -> tuple[int, int, int]:
    """From group to group in the coordinates of the filter: columns, channels that are summed, outermost axis."""
    if batch:
        return 0, 0, 1
    return (geometry.out_channels, 0, 0) if is_forward else (0, geometry.in_channels, 0)
