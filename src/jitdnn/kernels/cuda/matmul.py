"""Matrix products on the tensor cores: convolutions with a single tap, run by the kernels of implicit_gemm.

c[m, n] = sum over k of a[m, k] b[k, n] is one of three convolutions; the strides decide which reads contiguous memory:

    rows      fprop: a's rows are pixels with k channels, b is the filter      (a is K-major)
    columns   the same of the transposed matrices                              (b is K-major)
    across    wgrad: k are the pixels                                          (both are MN-major)

The products of a batch take the place of groups where one stride leads from each to the next, or, except for `across`,
where it does within runs that are evenly spaced: heads within images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, Kernel, PlannedKernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import refuse_sums
from jitdnn.kernels.cuda.convolution.implicit_gemm.code import kernel_of, wgrad_kernel_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.cost import plan_of, wgrad_plan_of
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Batch
from jitdnn.kernels.cuda.convolution.implicit_gemm.plan import Plan, WgradPlan
from jitdnn.kernels.cuda.gemm.algorithm import MultiplyAddAlgorithm, TensorCoreAlgorithm
from jitdnn.kernels.cuda.gemm.code import Reordered
from jitdnn.kernels.cuda.gemm.cost import least_seconds
from jitdnn.kernels.cuda.gemm.plan import GemmSize, Tile, linear_step
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import byte_dtypes
from jitdnn.tensor import TensorDescriptor

ORIENTATIONS = ("rows", "columns", "across")


def orientations(problem: MatMul, has_epilogue: bool) -> tuple[str, ...]:
    """Those that a product can have: numbers of 8 bits are read along k alone, and wgrad takes no epilogue."""
    return ORIENTATIONS[:2] if has_epilogue or byte_dtypes(problem.a.dtype) else ORIENTATIONS


@dataclass(frozen=True)
class Orientation:
    """A product as a convolution: of one matrix of the batch, and the batch if there is one."""

    name: str
    problem: Convolution
    batch: Batch | None

    @property
    def is_transposed(self) -> bool:
        return self.name != "rows"


class TensorCoreMatmul(TensorCoreAlgorithm[MatMul]):
    """Matrix products as convolutions with one tap, by `mma.sync`; few tiles are split along k."""

    name = "matrix_units"
    problem = MatMul

    def refusal(self, problem: MatMul, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        reason = refuse_extents(problem) or (refuse_sums(problem.k) if problem.a.dtype == "i8" else None)
        if not reason and batch_runs(problem) is None:
            reason = (
                f"the products of the batch {problem.batch} are neither evenly spaced in memory nor runs of such: make "
                "its tensors dense"
            )
        return reason or self.refuse_units(problem.a.dtype, math.prod(problem.batch), device)

    def least_of(self, problem: MatMul, device: GpuDevice, epilogue: Epilogue | None) -> float:
        """Of rows of a as rows of tiles, or columns of b."""
        if self.refusal(problem, device, epilogue):
            return 0.0
        count, moved = math.prod(problem.batch), sum(one.nbytes for one in (problem.a, problem.b, problem.c))
        sizes = (GemmSize(*mn, problem.k, count) for mn in ((problem.m, problem.n), (problem.n, problem.m)))
        return min(least_seconds((size,), self._tiles, problem.a.dtype, device, moved) for size in sizes)

    def sizes(
        self, problem: MatMul, device: GpuDevice, has_epilogue: bool = True
    ) -> tuple[Orientation, Plan | WgradPlan]:
        """The orientation and the plan that are expected to be fastest."""
        return _plan(problem, device, self._tiles, self.uses_workspace, has_epilogue)

    def plan(self, problem: MatMul, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        orientation, plan = self.sizes(problem, device, epilogue is not None)

        def build() -> Kernel:
            if isinstance(plan, WgradPlan):
                kernel = wgrad_kernel_of(plan, device)
            else:
                kernel = kernel_of(plan, problem.c, device, epilogue, indices_of(problem, orientation))
            return Reordered(kernel, (1, 0)) if orientation.is_transposed else kernel

        return PlannedKernel(plan.workspace, plan.seconds, build)


class TensorCoreMatmulInPlace(TensorCoreMatmul):
    """`matrix_units` without workspace: nothing is packed, and k is not split."""

    name = "matrix_units_in_place"
    uses_workspace = False


class MatmulFma(MultiplyAddAlgorithm[MatMul], TensorCoreMatmul):
    """Matrix products as convolutions with one tap, by multiply-adds in f32; few tiles are split along k."""

    name = "implicit_gemm_fma"

    def refusal(self, problem: MatMul, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return super().refusal(problem, device, epilogue) or self.refuse_few(min(problem.m, problem.n))


def refuse_extents(problem: MatMul) -> str | None:
    """What no product by a convolution's kernel can do; None if they can."""
    if 0 in problem.c.shape or not problem.k:
        return "there is nothing to multiply"
    if problem.k >= 2**30 or problem.n >= 2**30 or problem.m >= 2**30:
        return (
            f"an extent of {max(problem.m, problem.n, problem.k)}: at most {2**30} fit the kernel's indices"
        )
    return None


def refuse_uneven(problem: MatMul) -> str | None:
    """Why one stride does not lead from each product of the batch to the next; None if it does."""
    runs = batch_runs(problem)
    if runs is None or runs.inner < math.prod(problem.batch):
        return f"the products of the batch {problem.batch} are not evenly spaced in memory: make its tensors dense"
    return None


@dataclass(frozen=True)
class Runs:
    """How products of a batch lie in a, b and c: `steps` elements from each to the next within runs of `inner`, and
    `outer` from each run to the next.
    """

    inner: int
    steps: tuple[int, int, int]
    outer: tuple[int, int, int]


def batch_runs(problem: MatMul) -> Runs | None:
    """The longest runs; None if neither these nor products in them are evenly spaced."""
    for split in range(max(1, len(problem.batch))):
        outer, steps = (_steps(problem, part) for part in (slice(0, split), slice(split, -2)))
        if outer and steps:
            return Runs(math.prod(problem.batch[split:]), steps, outer)
    return None


def _steps(problem: MatMul, axes: slice) -> tuple[int, int, int] | None:
    """Elements from each product to the next along these axes of the batch, in a, b and c."""
    tensors = problem.a, problem.b, problem.c
    a, b, c = (linear_step(tensor.shape[axes], tensor.strides[axes]) for tensor in tensors)
    return None if a is None or b is None or c is None else (a, b, c)


def orientation_of(problem: MatMul, name: str) -> Orientation:
    """A product as the convolution of that name."""
    a, b, c = problem.a, problem.b, problem.c
    m, n, k = problem.m, problem.n, problem.k
    (am, ak), (bk, bn), (cm, cn) = a.strides[-2:], b.strides[-2:], c.strides[-2:]

    def like(one: TensorDescriptor, shape: tuple[int, ...], *strides: int) -> TensorDescriptor:
        return TensorDescriptor(shape, strides, one.dtype)

    if name == "rows":
        x, w, y = like(a, (1, k, m), 0, ak, am), like(b, (n, k, 1), bn, bk, 1), like(c, (1, n, m), 0, cn, cm)
    elif name == "columns":
        x, w, y = like(b, (1, k, n), 0, bk, bn), like(a, (m, k, 1), am, ak, 1), like(c, (1, m, n), 0, cm, cn)
    else:
        x, w, y = like(b, (1, n, k), 0, bn, bk), like(c, (m, n, 1), cm, cn, 1), like(a, (1, m, k), 0, am, ak)
    direction = "bwd_filter" if name == "across" else "fwd"
    one = Convolution(direction, x, w, y, stride=(1,), padding=((0, 0),), dilation=(1,))
    runs, count = batch_runs(problem), math.prod(problem.batch)
    if count == 1 or runs is None:
        return Orientation(name, one, None)
    order = (0, 1, 2) if name == "rows" else (1, 0, 2)
    first, second, result = (runs.steps[i] for i in order)
    inner = runs.inner if runs.inner < count else 0
    data, weights, results = (runs.outer[i] for i in order)
    outer = data, weights, results
    return Orientation(name, one, Batch(count, first, second, result, (a, b, c), inner, outer))


def indices_of(
    problem: MatMul, orientation: Orientation, channel: str = "channel", pixel: str = "c"
) -> list[str]:
    """The index of an element of c in the kernel's terms: `channel`, over all products, and `pixel`."""
    columns = problem.n if orientation.name == "rows" else problem.m
    number, inner = f"({channel}) / {columns}", 1
    batch: list[str] = []
    for extent in reversed(problem.batch):
        batch.insert(0, f"({number}) / {inner} % {extent}")
        inner *= extent
    column = f"({channel}) % {columns}"
    return [*batch, pixel, column] if orientation.name == "rows" else [*batch, column, pixel]


@lru_cache(512)
def _plan(
    problem: MatMul, device: GpuDevice, tiles: tuple[Tile, ...], uses_workspace: bool, has_epilogue: bool
) -> tuple[Orientation, Plan | WgradPlan]:
    found: list[tuple[Orientation, Plan | WgradPlan]] = []
    for name in orientations(problem, has_epilogue):
        orientation = orientation_of(problem, name)
        if name == "across" and orientation.batch and orientation.batch.inner:
            continue
        given = orientation.problem, device, tiles, uses_workspace, orientation.batch
        plan = wgrad_plan_of(*given) if name == "across" else plan_of(*given)
        found.append((orientation, plan))
    return min(found, key=lambda one: one[1].seconds)
