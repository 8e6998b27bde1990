"""What the algorithms of sampling an image share: the geometry as arguments of the code, and the cells around
positions.

The axes of the output are joined where memory allows it, so that a packed output is one run of pixels. Lanes go along
that run wherever positions are computed: one number in the grid becomes u, and u becomes the two elements beside it,
with their weights and whether they are in the image at all.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, ClassVar, cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue, Kernel, PlannedAlgorithm, terms
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, split_units
from jitdnn.kernels.formulas.loop_nest import Nest
from jitdnn.problems.spatial_transformer import GridSample
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import TensorDescriptor, compute_dtype

INDEX = {"f32": "i32", "f64": "i64"}
"""The integers of offsets in a plane: as wide as the elements."""
OUTSIDE = {"f32": -(2**31), "f64": -(2**62)}
"""Stands for an offset out of the image: no offset of one that is inside is so low."""
_MOST_TURNS = 2.0**22  # mirrored more often than this, a place is anywhere
MOST_CHANNELS = 64  # of a plane in the workspace
BLOCK = 16  # vectors of pixels in a unit


@dataclass(frozen=True)
class SampleCode:
    """What is compiled in."""

    direction: str
    mode: str
    padding: str
    align_corners: bool
    dtype: str
    rank: int
    axes: int  # of the run of pixels and what is around it
    is_unit: tuple[bool, ...]  # in the order of `Plan.tensors`: pixels are neighbours
    vectors: int  # of channels in a unit of bwd_data
    in_pairs: bool  # neighbours along the last axis are gathered together


@dataclass(frozen=True)
class SamplePlan:
    """A problem with the axes of its output joined.

    ``nest`` goes over the pixels, in the tensors grid, y (or dy) and, for the gradient by the grid, dgrid.
    """

    problem: GridSample
    nest: Nest

    @staticmethod
    def of(problem: GridSample) -> SamplePlan:
        space = problem.grid.shape[1:-1]
        tensors = [TensorDescriptor(space, problem.grid.strides[1:-1], problem.dtype)]
        if problem.dgrid is not None:
            tensors.append(TensorDescriptor(space, problem.dgrid.strides[1:-1], problem.dtype))
        tensors.append(TensorDescriptor(space, problem.y.strides[2:], problem.dtype))
        return SamplePlan(problem, Nest.of(tensors))

    @property
    def pixels(self) -> int:
        """Outputs of a plane."""
        return prod(self.nest.extents)

    @property
    def plane(self) -> int:
        """Elements of a plane of the image."""
        return prod(self.problem.x.shape[2:])

    def code(self, vectors: int, in_pairs: bool = False) -> SampleCode:
        p = self.problem
        return SampleCode(
            p.direction, p.mode, p.padding, p.align_corners, p.dtype, p.rank, len(self.nest.extents),
            tuple(steps[-1] == 1 for steps in self.nest.strides), vectors, in_pairs,
        )  # fmt: skip

    def slots(self) -> Slots:
        """The integers of the code."""
        return slots(self.problem.rank, len(self.nest.extents), len(self.nest.strides))

    def values(self, lanes: int, **more: int) -> dict[str, int]:
        """What goes into the slots."""
        p, nest = self.problem, self.nest
        run = nest.extents[-1]
        block = lanes * BLOCK
        others = [p.grid, *([p.dgrid] if p.dgrid is not None else [])]
        return {
            "images": p.x.shape[0], "channels": p.x.shape[1], "run": run, "block": block, "blocks": -(-run // block),
            **{f"extent{a}": e for a, e in enumerate(p.x.shape[2:])},
            **{f"x{a}": s for a, s in enumerate(p.x.strides)}, "y0": p.y.strides[0], "y1": p.y.strides[1],
            **{f"rows{a}": e for a, e in enumerate(nest.extents[:-1])},
            **{f"base{t}": base for t, base in enumerate(nest.bases)},
            **{f"step{t}.{a}": s for t, steps in enumerate(nest.strides) for a, s in enumerate(steps)},
            **{f"image{t}": tensor.strides[0] for t, tensor in enumerate(others)},
            **{f"axis{t}": tensor.strides[-1] for t, tensor in enumerate(others)}, **more,
        }  # fmt: skip


def slots(rank: int, axes: int, tensors: int) -> Slots:
    """The integers of a kernel over images of that rank."""
    return Slots(
        "units", "per_task", "images", "channels", "run", "block", "blocks", "groups", "room",
        *(f"extent{a}" for a in range(rank)), *(f"x{a}" for a in range(2 + rank)), "y0", "y1",
        *(f"rows{a}" for a in range(axes - 1)), *(f"base{t}" for t in range(tensors)),
        *(f"step{t}.{a}" for t in range(tensors) for a in range(axes)),
        *(f"{name}{t}" for name in ("image", "axis") for t in range(tensors - 1)),
    )  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One of the elements beside a place along one axis: its offset (0 if it is outside), and its weight (0 then)."""

    offset: Value
    inside: Value
    weight: Value


@dataclass(frozen=True)
class Corner:
    """One element of a cell: `sides` says which one along every axis."""

    sides: tuple[int, ...]
    offset: Value
    inside: Value
    weight: Value


@dataclass(frozen=True)
class Cell:
    """What is around positions: for each axis of the image its sides, and how u changes with the number in the grid."""

    sides: tuple[tuple[Side, ...], ...]
    slopes: tuple[Value, ...]

    def corners(self) -> Iterator[Corner]:
        """All combinations of the sides, the last axis fastest."""
        yield from corners_of(self.sides)


def corners_of(axes: Sequence[Sequence[Side]]) -> Iterator[Corner]:
    """All combinations of the sides of some axes, the last axis fastest."""
    for numbers in itertools.product(*(range(len(sides)) for sides in axes)):
        first, *rest = (sides[n] for sides, n in zip(axes, numbers, strict=True))
        offset, inside, weight = first.offset, first.inside, first.weight
        for side in rest:
            offset, inside, weight = offset + side.offset, inside & side.inside, weight * side.weight
        yield Corner(numbers, offset, inside, weight)


class Sampler:
    """The code that all algorithms of sampling share: arguments, loops over pixels, cells."""

    def __init__(self, module: Module, code: SampleCode, run: Callable[[Any, Value, Value], None]) -> None:
        self.code, self.computing = code, compute_dtype(code.dtype)
        tensors = len(code.is_unit)
        with module.task("sample") as (k, args, task, thread):
            self.k, self.lanes = k, k.lanes(self.computing)
            operands = 4 if code.direction == "bwd_grid" else 3
            self.arguments = Arguments(k, args, operands)
            self.n = slots(code.rank, code.axes, tensors).load(self.arguments)
            self.pointers = [self.arguments.pointer(i, code.dtype) for i in range(operands)]
            self.scale = Scale(k, self.arguments, self.computing)
            self.steps: list[Any] = [
                1 if unit else self.n[f"step{t}.{code.axes - 1}"] for t, unit in enumerate(code.is_unit)
            ]
            run(self, task, thread)

    def span(self, task: Value) -> tuple[Value, Value]:
        first = task * self.n["per_task"]
        return first, (first + self.n["per_task"]).min(self.n["units"])

    def rows(self) -> list[Value]:
        return [self.n[f"rows{a}"] for a in range(self.code.axes - 1)]

    def counter(self, first: Value, images: Sequence[Value]) -> Counter:
        """Over images and rows of pixels and blocks of a row; ``images`` are the strides of the tensors."""
        k, n, tensors = self.k, self.n, len(self.code.is_unit)
        steps = []
        for t in range(tensors):
            row = [n[f"step{t}.{a}"] for a in range(self.code.axes)]
            steps.append([images[t], *row[:-1], row[-1] * n["block"]])
        bases = [n[f"base{t}"] for t in range(tensors)]
        return Counter(k, first, [n["images"], *self.rows(), n["blocks"]], steps, bases)

    def strides(self) -> list[Value]:
        """Of the image's axes of space."""
        return [self.n[f"x{2 + a}"] for a in range(self.code.rank)]

    def cell(self, grid: Pointer, i: Value, mask: Value | None, strides: Sequence[Value]) -> Cell:
        """Around the positions of the pixels from `i` on; offsets count `strides`."""
        k, rank = self.k, self.code.rank
        sides, slopes = [], []
        for axis in range(rank):
            there = grid + (self.n["axis0"] * (rank - 1 - axis) + i * self.steps[0])
            g = there.load_strided(0, self.steps[0], self.lanes, mask)
            extent = self.n[f"extent{axis}"]
            u, slope = place(k, self.code, self.computing, g, extent)
            sides.append(_sides(k, self.code.mode, self.computing, u, extent, strides[axis]))
            slopes.append(slope)
        return Cell(tuple(sides), tuple(slopes))


def place(k: Builder, code: SampleCode, dtype: str, g: Value, extent: Value) -> tuple[Value, Value]:
    """u, and its derivative by the number g of the grid."""
    lanes = g.lanes
    one = k.constant(1.0, dtype, lanes)
    size = k.splat(k.convert(extent, dtype), lanes)
    last = size - 1.0
    if code.align_corners:
        u, slope = (g + 1.0) * 0.5 * last, last * 0.5
    else:
        u, slope = ((g + 1.0) * size - 1.0) * 0.5, size * 0.5
    if code.padding == "reflection":
        low, span = (0.0, last) if code.align_corners else (-0.5, size)
        from_low = u - low
        slope = k.select(from_low < 0.0, -slope, slope)
        distance = k.intrinsic("llvm.fabs", from_low)
        ratio = distance / k.select(span > 0.0, span, one)
        # a NaN takes no turns, and comes out as the element 0 below
        turns = k.convert(k.select(ratio < _MOST_TURNS, ratio, 0.0), INDEX[dtype])
        rest = distance - k.convert(turns, dtype) * span
        is_odd = (turns & 1) == 1
        u = k.select(is_odd, span - rest, rest) + low
        slope = k.select(is_odd, -slope, slope)
    if code.padding != "zeros":
        slope = k.select((u > 0.0) & (u < last), slope, 0.0)
        u = k.select(u > 0.0, u, 0.0)
        u = k.select(u < last, u, last)
    return u, slope


def _sides(k: Builder, mode: str, dtype: str, u: Value, extent: Value, stride: Value) -> tuple[Side, ...]:
    """The elements beside u, or the nearest one."""
    lanes, integer = u.lanes, INDEX[dtype]
    size = k.splat(k.convert(extent, dtype), lanes)
    # farther out nothing changes, and the numbers fit; what is not ordered is outside
    u = k.select(u > -2.0, u, -2.0)
    u = k.select(u < size + 1.0, u, size + 1.0)
    near = k.convert(u, integer)  # towards zero
    if mode == "nearest":
        magic = 1.5 * 2.0 ** (23 if dtype == "f32" else 52)  # makes integers, ties to even
        near = k.convert((u + magic) - magic, integer)
    else:
        near = near - k.select(k.convert(near, dtype) > u, k.constant(1, integer, lanes), 0)
    far_weight = u - k.convert(near, dtype)
    count = k.splat(k.convert(extent, integer), lanes)
    step = k.splat(k.convert(stride, integer), lanes)

    def side(index: Value, weight: Value) -> Side:
        inside = (index >= 0) & (index < count)
        return Side(k.select(inside, index, 0) * step, inside, k.select(inside, weight, 0.0))

    if mode == "nearest":
        return (side(near, k.constant(1.0, dtype, lanes)),)
    return side(near, 1.0 + -far_weight), side(near + 1, far_weight)


def slope_sums(k: Builder, cell: Cell, dots: Sequence[Value]) -> list[Value]:
    """The gradient by the grid's number of each image axis, from the corners' products with dy."""
    sums: list[Value | None] = [None] * len(cell.sides)
    for corner, dot in zip(cell.corners(), dots, strict=True):
        for axis, side in enumerate(corner.sides):
            term = dot if side else -dot
            for other, number in enumerate(corner.sides):
                if other != axis:
                    term = term * _weight_of(cell, other, number)
            total = sums[axis]
            sums[axis] = term if total is None else total + term
    return [cast(Value, total) * slope for total, slope in zip(sums, cell.slopes, strict=True)]


def _weight_of(cell: Cell, axis: int, number: int) -> Value:
    return cell.sides[axis][number].weight


class SampleAlgorithm(PlannedAlgorithm[GridSample, SamplePlan, CpuDevice]):
    """What the algorithms of sampling share."""

    problem = GridSample
    deterministic = True
    takes_no_epilogue = "sampling takes no epilogue"
    runs: ClassVar[Mapping[str, Callable[[Any, Value, Value], None]]]
    """What is traced in each direction."""

    @abstractmethod
    def room(self, plan: SamplePlan, device: CpuDevice) -> int:
        """Numbers that each thread has in the workspace for a plane of the image's gradient."""

    @abstractmethod
    def thread_seconds(self, problem: GridSample, device: CpuDevice) -> float:
        """Of one thread."""

    def workspace_of(self, plan: SamplePlan, device: CpuDevice) -> int:
        if plan.problem.direction != "bwd_data":
            return 0
        return device.threads * self.room(plan, device) * ITEM_BYTES[compute_dtype(plan.problem.dtype)]

    def seconds_of(self, plan: SamplePlan, device: CpuDevice) -> float:
        return _spread(self.thread_seconds(plan.problem, device), device)

    def sampling(self, plan: SamplePlan, device: CpuDevice, code: SampleCode, groups: int) -> Kernel:
        """The kernel of this code; each unit is a group of channels of an image's gradient, else a block of pixels."""
        sample = plan.problem
        values = plan.values(self.lanes(sample, device), groups=groups, room=self.room(plan, device))
        rows = plan.pixels // max(1, plan.nest.extents[-1])
        units = sample.x.shape[0] * (groups if sample.direction == "bwd_data" else rows * values["blocks"])
        tasks, per_task = split_units(units, device, self.thread_seconds(sample, device))
        values |= {"units": units, "per_task": per_task}
        run, pointers = self.runs[code.direction], len(sample.operands)
        library = load(
            f"grid_sample_{self.name}", code, device.isa, lambda module: Sampler(module, code, run)
        )
        return CpuKernel(library, [("sample", tasks)], pointers, device.threads, plan.slots().pack(values))

    def refusal(self, problem: GridSample, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        low, high = TensorDescriptor(problem.x.shape[2:], problem.x.strides[2:], problem.dtype).span()
        reach = max(high, -low)
        if problem.direction == "bwd_data":
            reach = SamplePlan.of(problem).plane * MOST_CHANNELS
        if reach >= 2**31 and compute_dtype(problem.dtype) == "f32":
            return f"a plane of the image spans {reach} elements: offsets of 32 bits reach {2**31 - 1}"
        return None

    def plan(self, problem: GridSample, device: CpuDevice, epilogue: Epilogue | None) -> SamplePlan:
        return SamplePlan.of(problem)

    def error_of(self, problem: GridSample) -> float:
        computing = UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        # coordinates are rounded in units of the extent, and the weights take that over
        extent = max(problem.x.shape[2:])
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + computing * (
            16.0 + 8.0 * extent + 4.0 * sqrt(terms(problem))
        )

    def seconds(self, problem: GridSample, per_pixel: float, per_element: float) -> float:
        """Of one thread."""
        pixels = problem.grid.size // problem.rank
        return pixels * (per_pixel + problem.x.shape[1] * (1 << problem.rank) * per_element)

    def lanes(self, problem: GridSample, device: CpuDevice) -> int:
        return device.isa.lanes(problem.dtype)


def _spread(seconds: float, device: Device) -> float:
    """Expected seconds of work that all threads share."""
    return LAUNCH_SECONDS + seconds / device.threads
