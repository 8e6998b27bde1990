"""Winograd's minimal filtering: fewer multiplications for convolutions of stride 1, at the cost of memory traffic.

A tile of m x m results of r x r taps takes (m + r - 1)^2 products, one at each of its points, in place of m^2 r^2: 36
of 144 for F(4 x 4, 3 x 3), 16 of 36 for F(2 x 2, 3 x 3). Three passes: the operands are transformed to the points, the
transformed operands are multiplied, a matrix product for each point, and the products are transformed to results, with
alpha, beta and the epilogue.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Epilogue,
    Kernel,
    KernelAlgorithm,
    PlannedKernel,
    storing_roundoff,
)
from jitdnn.kernels.formulas.minimal_filtering import minimal_filtering, reaches_beyond
from jitdnn.kernels.gpu.convolution.winograd.code import Composite, Places, kernels, launches_of
from jitdnn.kernels.gpu.convolution.winograd.error import roundings
from jitdnn.kernels.gpu.convolution.winograd.plan import Place, Plan, plan_of, refuse_shape
from jitdnn.kernels.gpu.gemm.code import build
from jitdnn.kernels.gpu.gemm.cost import choose
from jitdnn.kernels.gpu.gemm.lowering import lower_matmul
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS, ROUNDED
from jitdnn.kernels.gpu.prelude.types import refuse_doubles
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.tensor import TensorDescriptor

_TRANSFORM_SHARE, _FINISH_SHARE = 0.8, 0.95
"""Of the bandwidth of copies, that transforms of operands reach, and what makes results of products."""
_STAGED_SHARE = 0.75
"""Of that, where tiles go through shared memory."""


@dataclass(frozen=True)
class Product:
    """The product of every point: where its operands are, where its own workspace begins, bytes of all workspace."""

    places: Places
    operands: tuple[int, int, int]
    inner: int
    workspace: int
    seconds: float
    build: Callable[[], Kernel]


class WinogradAlgorithm(KernelAlgorithm[Convolution, GpuDevice]):
    """Tiles of at most `max_m` results an axis, of a problem in one of `directions`."""

    problem = Convolution
    version: ClassVar[int] = 2
    takes_float8 = False
    max_m: ClassVar[int]
    directions: ClassVar[tuple[str, ...]] = ("fwd", "bwd_data")

    @abstractmethod
    def product(self, plan: Plan, device: GpuDevice) -> Product | str:
        """How the products are computed, or why they cannot be."""

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction not in self.directions:
            return f"it computes {' and '.join(self.directions)}, not {problem.direction}"
        reason = refuse_shape(problem) or refuse_doubles([problem.dtype], device)
        if reason:
            return reason
        return self.refuse_product(plan_of(problem, self.max_m), device)

    def refuse_product(self, plan: Plan, device: GpuDevice) -> str | None:
        """Why the products cannot be computed; None if they can."""
        found = self.product(plan, device)
        return found if isinstance(found, str) else None

    def least_of(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> float:
        """That of the transforms, which are three launches at least, and of products at the full rate."""
        if problem.direction not in self.directions or refuse_shape(problem):
            return 0.0
        plan = plan_of(problem, self.max_m)
        return ROUNDED * (
            sum(_moving_seconds(plan, device)) + 3 * LAUNCH_SECONDS + self.least_product(plan, device)
        )

    def least_product(self, plan: Plan, device: GpuDevice) -> float:
        """What the seconds of the products do not come below."""
        return 0.0

    def plan(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = plan_of(problem, self.max_m)
        product = self.product(plan, device)
        assert isinstance(product, Product), product
        launches = sum(map(len, launches_of(plan, product.places.is_scaled)))
        seconds = product.seconds + launches * LAUNCH_SECONDS
        for moving in _moving_seconds(plan, device):
            seconds += moving

        def make() -> Kernel:
            before, behind = kernels(plan, product.places, device, epilogue, product.workspace)
            return Composite(before, product.build(), behind, product.operands, product.inner)

        return PlannedKernel(product.workspace, seconds, make)

    def error_of(self, problem: Convolution) -> float:
        plan = plan_of(problem, self.max_m)
        own, computing = storing_roundoff(problem), UNIT_ROUNDOFF[plan.real]
        return computing * self.roundings(plan) + (2.0 * own if own > computing else 0.0)

    def roundings(self, plan: Plan) -> float:
        """The error, in unit roundoffs of the arithmetic."""
        return roundings(plan, plan.product[2])

    def spreads_to(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "the other taps of the filter, of the same channels"
        for axis in plan_of(problem, self.max_m).axes:
            found = minimal_filtering(axis.m, axis.r)
            if reaches_beyond(found.result, found.data, axis.r):
                return f"the other results of a tile of {axis.m}"
        return None


def _moving_seconds(plan: Plan, device: GpuDevice) -> tuple[float, float]:
    """Expected times of moving what transforms of operands read and write, and what makes results of products."""
    staged = [_STAGED_SHARE if plan.is_staged(plan.tensors[n]) else 1.0 for n in (0, 2)]
    return (
        plan.transformed / (_TRANSFORM_SHARE * staged[0] * device.bandwidth),
        plan.finished / (_FINISH_SHARE * staged[1] * device.bandwidth),
    )


class OnCudaCores(WinogradAlgorithm):
    """Products in the arithmetic of the type, by the tiled contraction of gpu/gemm.

    `is_across`: rows of the transformed filter are terms, not columns of the products.
    """

    is_across: ClassVar[bool] = False

    def least_product(self, plan: Plan, device: GpuDevice) -> float:
        peak = device.peak_flops(plan.real)
        return 2 * plan.points * plan.groups * math.prod(plan.product) / peak if peak else 0.0

    def multiply(self, problem: MatMul, device: GpuDevice) -> PlannedKernel:
        """How the products of all points are computed."""
        gemm = choose(lower_matmul(problem), device)
        return PlannedKernel(gemm.workspace, gemm.seconds, lambda: build(gemm, device))

    def refuse_product(self, plan: Plan, device: GpuDevice) -> str | None:
        return None  # it takes all

    def product(self, plan: Plan, device: GpuDevice) -> Product | str:
        rows, columns, terms = plan.product
        if plan.is_wgrad:
            sizes = (terms, columns), (terms, rows), (rows, columns)
        else:
            sizes = (rows, terms), (terms, columns) if self.is_across else (columns, terms), (rows, columns)
        at, places = 0, list[Place]()
        for size in sizes:
            places.append(plan.place(at, *size))
            at += plan.bytes_of(*size)
        data, other, products = places
        batch = (plan.points, plan.groups)

        def tensor(place: Place, shape: tuple[int, int], is_transposed: bool = False) -> TensorDescriptor:
            steps = (1, place.row) if is_transposed else (place.row, 1)
            return TensorDescriptor((*batch, *shape), (place.point, place.group, *steps), plan.real)

        if plan.is_wgrad:
            a, b = tensor(other, (rows, terms), True), tensor(data, (terms, columns))
        else:
            a, b = tensor(data, (rows, terms)), tensor(other, (terms, columns), not self.is_across)
        gemm = self.multiply(MatMul(a, b, tensor(products, (rows, columns))), device)
        operands = (other.at, data.at) if plan.is_wgrad else (data.at, other.at)
        made = Places(data, other, products, is_across=self.is_across and not plan.is_wgrad)
        room = at + gemm.workspace
        return Product(made, (*operands, products.at), at, room, gemm.seconds, gemm.build)


class Winograd4(OnCudaCores):
    """Forward and data, in tiles of four results an axis."""

    name = "winograd_4"
    max_m = 4


class Winograd2(OnCudaCores):
    """Forward and data, in tiles of two results an axis: nearly as exact as a plain sum."""

    name = "winograd_2"
    max_m = 2


class WinogradWgrad4(OnCudaCores):
    """The filter's gradient over tiles of four results an axis."""

    name = "winograd_filter_4"
    max_m = 4
    directions = ("bwd_filter",)
    takes_no_epilogue = "a filter's gradient takes no epilogue: apply it to the result"


class WinogradWgrad2(WinogradWgrad4):
    """The filter's gradient over tiles of two results an axis."""

    name = "winograd_filter_2"
    max_m = 2
