"""Affine grids, row by row: along a row only one coordinate changes.

forward     unit = one row of positions:  grid[..., i] = theta[i, 0] * x + (what is the same for the whole row)
backward    unit = one row of theta of one image: sums over all positions in f64, row after row
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Kernel, TypedAlgorithm
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.random.philox import double_bits
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, split_units
from jitdnn.problems.spatial_transformer import AffineGrid
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.tensor import compute_dtype

_SECONDS = 0.4e-9  # for a number of the grid


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    direction: str
    dtype: str
    rank: int
    step: int  # between neighbouring positions of a row, if it is one of a few known ones; else 0


def _slots(rank: int) -> Slots:
    return Slots(
        "units", "per_task", "images", "theta0", "theta1", "theta2", "grid_n", "grid_i",
        *(f"{name}{a}" for a in range(rank) for name in ("extent", "grid", "first", "factor")),
    )  # fmt: skip


class _Affine:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.computing = code, compute_dtype(code.dtype)
        with module.task("affine") as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(self.computing)
            arguments = Arguments(k, args, 2)
            self.n = n = _slots(code.rank).load(arguments)
            self.scale = Scale(k, arguments, self.computing)
            operands = [arguments.pointer(t, code.dtype) for t in range(2)]
            self.step: Any = code.step or n[f"grid{code.rank - 1}"]
            first = task * n["per_task"]
            last = (first + n["per_task"]).min(n["units"])
            if code.direction == "fwd":
                self._forward(first, last, *operands)
            else:
                self._backward(first, last, *operands)

    def _base(self, axis: int, index: Value, dtype: str) -> Value:
        """Where the elements of an axis are between -1 and 1: a integer times the reciprocal of one."""
        k = self.k
        factor = k.convert(k.bitcast(self.n[f"factor{axis}"], "f64"), dtype)
        number = k.convert(index * 2 + k.splat(self.n[f"first{axis}"], index.lanes), dtype)
        return number * k.splat(factor, index.lanes)

    def _along(self, w: Value) -> Value:
        k = self.k
        return self._base(self.code.rank - 1, k.splat(w, self.lanes) + k.iota(self.lanes), self.computing)

    def _forward(self, first: Value, last: Value, theta: Pointer, grid: Pointer) -> None:
        k, n, rank, lanes = self.k, self.n, self.code.rank, self.lanes
        zeros = [k.integer(0)] * (rank - 1)
        outer = range(rank - 1)
        counter = Counter(
            k, first, [n["images"], *(n[f"extent{a}"] for a in outer)],
            [[n["theta0"], *zeros], [n["grid_n"], *(n[f"grid{a}"] for a in outer)]],
        )  # fmt: skip
        for _unit in k.range(first, last):
            matrix, row = (p + o.get() for p, o in zip((theta, grid), counter.offsets, strict=True))
            bases = [self._base(a, counter.digits[1 + a].get(), self.computing) for a in outer]
            lines = []
            for i in range(rank):
                numbers = [matrix.load(n["theta1"] * i + n["theta2"] * j) for j in range(rank + 1)]
                constant = numbers[rank]
                for j, base in enumerate(reversed(bases), 1):
                    constant = k.fma(numbers[j], base, constant)
                lines.append((k.splat(numbers[0], lanes), k.splat(constant, lanes)))
            extent = n[f"extent{rank - 1}"]
            full = (extent // lanes) * lanes
            for w in k.range(0, full, lanes):
                self._places(row, w, lines, None)
            with k.when(full < extent):
                self._places(row, full, lines, k.mask(extent - full, lanes))
            counter.advance()

    def _places(self, row: Pointer, w: Value, lines: list[tuple[Value, Value]], mask: Value | None) -> None:
        k, x = self.k, self._along(w)
        for i, (slope, constant) in enumerate(lines):
            there = row + (w * self.step + self.n["grid_i"] * i)
            self.scale.store(there, self.step, k.fma(slope, x, constant), mask)

    def _backward(self, first: Value, last: Value, dgrid: Pointer, dtheta: Pointer) -> None:
        k, n, rank, lanes = self.k, self.n, self.code.rank, self.lanes
        counter = Counter(
            k, first, [n["images"], k.integer(rank)], [[n["grid_n"], n["grid_i"]], [n["theta0"], n["theta1"]]]
        )
        zero = k.constant(0.0, self.computing, lanes)
        for _unit in k.range(first, last):
            source, target = (p + o.get() for p, o in zip((dgrid, dtheta), counter.offsets, strict=True))
            totals = [k.register(k.constant(0.0, "f64")) for _ in range(rank + 1)]
            for row, bases in self._rows(source):
                plain, weighted = k.register(zero), k.register(zero)
                for w in k.range(0, n[f"extent{rank - 1}"], lanes):
                    mask = k.mask(n[f"extent{rank - 1}"] - w, lanes)
                    value = (row + w * self.step).load_strided(0, self.step, lanes, mask)
                    plain += value
                    weighted.set(k.fma(value, self._along(w), weighted.get()))
                row_sum = k.convert(k.reduce(plain.get()), "f64")
                totals[0] += k.convert(k.reduce(weighted.get()), "f64")
                for j, base in enumerate(reversed(bases), 1):
                    totals[j] += row_sum * base
                totals[rank] += row_sum
            for j, total in enumerate(totals):
                self.scale.store(target + n["theta2"] * j, 1, k.convert(total.get(), self.computing))
            counter.advance()

    def _rows(self, source: Pointer) -> Iterator[tuple[Pointer, list[Value]]]:
        """Loops over the rows of an image: the row, and its place along the outer axes in f64."""
        yield from self._nested(source, [])

    def _nested(self, source: Pointer, bases: list[Value]) -> Iterator[tuple[Pointer, list[Value]]]:
        axis = len(bases)
        if axis == self.code.rank - 1:
            yield source, bases
            return
        for i in self.k.range(self.n[f"extent{axis}"]):
            yield from self._nested(source + i * self.n[f"grid{axis}"], [*bases, self._base(axis, i, "f64")])


class AffineRows(TypedAlgorithm[AffineGrid, CpuDevice]):
    """Row by row, with lanes along the last axis of space."""

    name = "rows"
    problem = AffineGrid
    deterministic = True
    takes_no_epilogue = "an affine grid takes no epilogue"

    def seconds_of(self, plan: AffineGrid, device: CpuDevice) -> float:
        return LAUNCH_SECONDS + self._seconds(plan) / device.threads

    def _seconds(self, problem: AffineGrid) -> float:
        return problem.grid.size * _SECONDS

    def error_of(self, problem: AffineGrid) -> float:
        grid = problem.grid
        # a row is summed in the problem's arithmetic, 8 elements at least to a lane together
        computing = UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + computing * (16.0 + sqrt(grid.shape[-2]))

    def kernel_of(self, plan: AffineGrid, device: CpuDevice) -> Kernel:
        grid, theta = plan.grid, plan.theta
        space, rank = grid.shape[1:-1], grid.shape[-1]
        step = grid.strides[-2]
        code = _Code(plan.direction, plan.dtype, rank, step if 1 <= step <= 4 else 0)
        units = grid.shape[0] * (prod(space[:-1]) if plan.direction == "fwd" else rank)
        tasks, per_task = split_units(units, device, self._seconds(plan))
        values = {
            "units": units, "per_task": per_task, "images": grid.shape[0], "grid_n": grid.strides[0],
            "grid_i": grid.strides[-1], **{f"theta{a}": s for a, s in enumerate(theta.strides)},
        }  # fmt: skip
        for axis, extent in enumerate(space):
            last = extent - 1
            first, parts = (-last, last) if plan.align_corners else (1 - extent, extent)
            values |= {
                f"extent{axis}": extent, f"grid{axis}": grid.strides[1 + axis], f"first{axis}": first,
                f"factor{axis}": double_bits(1 / parts if extent > 1 else 0.0),
            }  # fmt: skip
        library = load("affine_grid", code, device.isa, lambda module: _Affine(module, code))
        return CpuKernel(library, [("affine", tasks)], 2, device.threads, _slots(rank).pack(values))
