"""Matrix products on the matrix units: as convolutions with a single tap, whose kernels they are.

There are three ways to see c[m, n] = sum over k of a[m, k] b[k, n], and the strides say which of them reads neighbours:

    rows      a's rows are pixels with k channels, b the filter      (k is innermost in a)
    columns   the same of the transposed matrices                    (k is innermost in b)
    across    the gradient of a filter, k being the pixels           (k is innermost in neither)

A batch is so many groups, as far as one step leads from each product to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.code import kernel_of, wgrad_kernel_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.cost import plan_of, wgrad_plan_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Batch
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import Plan, WgradPlan
from jitdnn.kernels.cuda.gemm.algorithm import arithmetic_of, refuse_units, units_bound
from jitdnn.kernels.cuda.gemm.code import Reordered
from jitdnn.kernels.cuda.gemm.plan import TILES, Tile, linear_step
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor

WAYS = ("rows", "columns", "across")


@dataclass(frozen=True)
class View:
    """A product in one of the ways: the convolution of one matrix, the batch, and whether b comes first in it."""

    way: str
    problem: Convolution
    batch: Batch | None

    @property
    def is_exchanged(self) -> bool:
        return self.way != "rows"


class MatrixUnits(Algorithm):
    """Tiles by asynchronous copies, sums in f32; few tiles are divided along k."""

    name: ClassVar[str] = "matrix_units"
    problem: ClassVar[type[Problem]] = MatMul
    deterministic: ClassVar[bool] = True
    uses_workspace: ClassVar[bool] = True

    def __init__(self, tiles: tuple[Tile, ...] = TILES) -> None:
        self._tiles = tiles

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, MatMul)
        if 0 in problem.c.shape or not problem.k:
            return "there is nothing to multiply"
        if problem.k >= 2**30 or problem.n >= 2**30 or problem.m >= 2**30:
            return f"an extent of {max(problem.m, problem.n, problem.k)}: at most {2**30} are numbered here"
        if batch_steps(problem) is None:
            return f"the batch {problem.batch} is not walked in steps of equal length: make its tensors dense"
        return refuse_units(problem.a.dtype, math.prod(problem.batch), device)

    def arithmetic(self, problem: Problem) -> str:
        return arithmetic_of(problem)

    def error_bound(self, problem: Problem) -> float:
        return units_bound(problem)

    def plan(
        self, problem: Problem, device: Device, has_epilogue: bool = True
    ) -> tuple[View, Plan | WgradPlan]:
        """The way and the plan that are expected to be fastest."""
        assert isinstance(problem, MatMul)
        return _plan(problem, device, self._tiles, self.uses_workspace, has_epilogue)  # type: ignore[arg-type]

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self.plan(problem, device, epilogue is not None)[1].workspace

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.plan(problem, device, epilogue is not None)[1].seconds

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(problem, MatMul)
        view, plan = self.plan(problem, device, epilogue is not None)
        if isinstance(plan, WgradPlan):
            kernel = wgrad_kernel_of(plan, device)
        else:
            kernel = kernel_of(plan, problem.c, device, epilogue, _indices(problem, view))
        return Reordered(kernel, (1, 0)) if view.is_exchanged else kernel


class MatrixUnitsInPlace(MatrixUnits):
    """The same without workspace: nothing is packed and k is not divided."""

    name: ClassVar[str] = "matrix_units_in_place"
    uses_workspace: ClassVar[bool] = False


def batch_steps(problem: MatMul) -> tuple[int, int, int] | None:
    """The distance from product to product in a, b and c; None if it is not always the same."""
    tensors = problem.a, problem.b, problem.c
    a, b, c = (linear_step(tensor.shape[:-2], tensor.strides[:-2]) for tensor in tensors)
    return None if a is None or b is None or c is None else (a, b, c)


def view_of(problem: MatMul, way: str) -> View:
    """A product in one of the ways."""
    a, b, c = problem.a, problem.b, problem.c
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.a.dtype
    (am, ak), (bk, bn), (cm, cn) = a.strides[-2:], b.strides[-2:], c.strides[-2:]

    def tensor(shape: tuple[int, ...], *strides: int) -> TensorDescriptor:
        return TensorDescriptor(shape, strides, dtype)

    if way == "rows":
        x, w, y = tensor((1, k, m), 0, ak, am), tensor((n, k, 1), bn, bk, 1), tensor((1, n, m), 0, cn, cm)
    elif way == "columns":
        x, w, y = tensor((1, k, n), 0, bk, bn), tensor((m, k, 1), am, ak, 1), tensor((1, m, n), 0, cm, cn)
    else:
        x, w, y = tensor((1, n, k), 0, bn, bk), tensor((m, n, 1), cm, cn, 1), tensor((1, m, k), 0, am, ak)
    direction = "bwd_filter" if way == "across" else "fwd"
    one = Convolution(direction, x, w, y, stride=(1,), padding=((0, 0),), dilation=(1,))
    steps, count = batch_steps(problem), math.prod(problem.batch)
    if count == 1 or steps is None:
        return View(way, one, None)
    first, second = (steps[0], steps[1]) if way == "rows" else (steps[1], steps[0])
    return View(way, one, Batch(count, first, second, steps[2], (a, b, c)))


def _indices(problem: MatMul, view: View) -> list[str]:
    """The index of an element of c by what the kernel knows: `channel`, over all products, and `c`, the pixel."""
    columns = problem.n if view.way == "rows" else problem.m
    number, inner = f"(channel) / {columns}", 1
    batch: list[str] = []
    for extent in reversed(problem.batch):
        batch.insert(0, f"({number}) / {inner} % {extent}")
        inner *= extent
    pixel, channel = "c", f"(channel) % {columns}"
    return [*batch, pixel, channel] if view.way == "rows" else [*batch, channel, pixel]


@lru_cache(512)
def _plan(
    problem: MatMul, device: GpuDevice, tiles: tuple[Tile, ...], uses_workspace: bool, has_epilogue: bool
) -> tuple[View, Plan | WgradPlan]:
    found: list[tuple[View, Plan | WgradPlan]] = []
    for way in WAYS if not has_epilogue else WAYS[:2]:
        view = view_of(problem, way)
        given = view.problem, device, tiles, uses_workspace, view.batch
        plan = wgrad_plan_of(*given) if way == "across" else plan_of(*given)  # type: ignore[arg-type]
        found.append((view, plan))
    return min(found, key=lambda one: one[1].seconds)
