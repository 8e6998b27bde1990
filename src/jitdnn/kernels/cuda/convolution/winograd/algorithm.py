"""Winograd's minimal filtering for f32 on sm_90a: transforms write halves, and warpgroups multiply these.

The kernels of warpgroup_gemm run a batch of products whose packed operands are those that the transforms wrote; their
scales are in the header of halves.cuh. Infinities and NaN pass through the products.
"""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Batch
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import refuse_halves, refuse_warpgroups
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of, unplannable
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import launches_of, source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Pack
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import pack_seconds
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan as Gemm
from jitdnn.kernels.cuda.warpgroup.tile import TILES
from jitdnn.kernels.gpu.convolution.winograd.algorithm import Product, WinogradAlgorithm
from jitdnn.kernels.gpu.convolution.winograd.code import Places
from jitdnn.kernels.gpu.convolution.winograd.error import growth
from jitdnn.kernels.gpu.convolution.winograd.plan import Place, Plan, aligned
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor

_PACKING = ("find_maxima", "pack_operands")
_MAX_BATCH = 2**20
_SHORT = 1.2
"""How much longer batches of products take than one with as many terms, as seen on an H200; not of filter gradients."""
_ROUNDINGS = 6.0
"""Of products of halves without transforms, in unit roundoffs of f32."""


class _InHalves(WinogradAlgorithm):
    """Products of two numbers of half precision for each of f32, three of which are added."""

    has_exact_products = False

    def refusal(self, problem: Convolution, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        return (
            refuse_halves(problem.inputs[0].descriptor.dtype)
            or refuse_warpgroups(problem, device)
            or super().refusal(problem, device, epilogue)
        )

    def roundings(self, plan: Plan) -> float:
        return 2.0 + _ROUNDINGS * growth(plan)

    def product(self, plan: Plan, device: GpuDevice) -> Product | str:
        return product_of(plan, device)


@lru_cache(512)
def product_of(plan: Plan, device: GpuDevice) -> Product | str:
    """The products of all points by warpgroups, or why there are none."""
    rows, columns, terms = plan.product
    count = plan.points * plan.groups
    if count > _MAX_BATCH or count * max(rows, columns, terms) >= 2**30:
        return f"{count} products of {rows} x {columns} x {terms} do not fit the kernel's indices"
    step = -(-columns // 4) * 4

    def dense(m: int, n: int, row: int) -> TensorDescriptor:
        return TensorDescriptor((count, m, n), (m * row, row, 1), "f32")

    def like(shape: tuple[int, ...], *strides: int) -> TensorDescriptor:
        return TensorDescriptor(shape, strides, "f32")

    result = dense(rows, columns, step)
    if plan.is_wgrad:
        x, w = like((1, columns, terms), 0, 1, columns), like((rows, columns, 1), step, 1, 1)
        one = Convolution("bwd_filter", x, w, like((1, rows, terms), 0, 1, rows), (1,), ((0, 0),), (1,))
        tensors = dense(terms, rows, rows), dense(terms, columns, columns), result
        batch = Batch(count, terms * columns, terms * rows, rows * step, tensors)
    else:
        x, w = like((1, terms, rows), 0, 1, terms), like((columns, terms, 1), terms, 1, 1)
        one = Convolution("fwd", x, w, like((1, columns, rows), 0, 1, step), (1,), ((0, 0),), (1,))
        tensors = dense(rows, terms, terms), dense(columns, terms, terms), result
        batch = Batch(count, rows * terms, columns * terms, rows * step, tensors)
    gemm = unplannable(one, True) or plan_of(one, device, TILES, True, 2, batch)
    if isinstance(gemm, str):
        return gemm
    first, second = gemm.packs
    assert first is not None
    assert second is not None
    products = Place(aligned(gemm.workspace), plan.groups * rows * step, rows * step, step)
    places = Places(
        _place(first, plan.groups, True), _place(second, plan.groups, plan.is_wgrad), products, is_scaled=True
    )
    size = products.at + 4 * count * rows * step
    seconds = (1.0 if plan.is_wgrad else _SHORT) * (gemm.seconds - pack_seconds(gemm.packs, device))
    return Product(places, (0, 0, products.at), 0, size, seconds, lambda: _kernel(gemm, result, device))


def _place(pack: Pack, groups: int, is_data: bool) -> Place:
    """Where the copy of an operand lies: products are the images of data, and in place of a filter's taps."""
    copy = pack.operand()
    batch, row = (copy.image, copy.space[2]) if is_data else (copy.space[0], copy.image)
    return Place(pack.at, groups * batch, batch, row, pack.bytes_of_part // DTYPES[pack.dtype])


def _kernel(gemm: Gemm, result: TensorDescriptor, device: GpuDevice) -> Kernel:
    """What is launched behind the copies of operands."""
    launches = [one for one in launches_of(gemm, device.multiprocessors) if one.function not in _PACKING]
    kernel: Kernel = device.kernel(source_of(gemm, result, None), launches, 3, tables=gemm.tables)
    return kernel


class Winograd4Halves(_InHalves):
    """Forward and data of f32 by products of halves, in tiles of four results an axis."""

    name = "winograd_4_3xf16"
    rounded = ("implicit_gemm_scaled_f16",)
    max_m = 4


class Winograd2Halves(_InHalves):
    """Forward and data of f32 by products of halves, in tiles of two results an axis."""

    name = "winograd_2_3xf16"
    rounded = ("implicit_gemm_scaled_f16",)
    max_m = 2


class WinogradWgrad4Halves(_InHalves):
    """The filter's gradient of f32 by products of halves, over tiles of four results an axis."""

    name = "winograd_filter_4_3xf16"
    max_m = 4
    directions = ("bwd_filter",)
    takes_no_epilogue = "a filter's gradient takes no epilogue: apply it to the result"


class WinogradWgrad2Halves(WinogradWgrad4Halves):
    """The filter's gradient of f32 by products of halves, over tiles of two results an axis."""

    name = "winograd_filter_2_3xf16"
    max_m = 2
