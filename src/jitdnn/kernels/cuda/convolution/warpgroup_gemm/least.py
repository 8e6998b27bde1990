"""Lower bounds of the time of implicit products by warpgroups, without a search for their plans."""

from __future__ import annotations

import math

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import geometry_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.correlation_loops import Sources
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import pack_seconds
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.request import ProductRequest, Refused
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.wgrad_loops import Loops
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.wgrad_loops import Sources as WgradSources
from jitdnn.kernels.cuda.warpgroup.bound import Bound, Least
from jitdnn.kernels.cuda.warpgroup.candidates import whole_cut
from jitdnn.kernels.cuda.warpgroup.families import ALONG, OTHERS, WGRAD
from jitdnn.kernels.cuda.warpgroup.plan import KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile
from jitdnn.kernels.cuda.warpgroup.wgrad_cost import WgradBound
from jitdnn.kernels.gpu.prelude.cost import ROUNDED
from jitdnn.problems.convolution import Convolution

FEW_CHANNELS = 32
"""Of a tensor, with which tiles of filter gradients are mostly empty, and products count beside bytes."""
_STAGE_PIXELS = 64


def least_seconds(
    problem: Convolution,
    device: GpuDevice,
    tiles: tuple[Tile, ...],
    uses_workspace: bool = True,
    parts: int = 1,
    is_scaled: bool = False,
    is_divided: bool = False,
    divides_rows: bool = False,
    is_blockwise: bool = False,
    may_change_places: bool = False,
) -> float:
    """What the time of `choose.plan_of` does not come below: that of packing, and of bytes; infinite where there is no
    plan. `may_change_places`: operands may be in each other's places, where none is packed.
    """
    is_scaled = (is_scaled or parts > 1) and not is_divided
    request = ProductRequest(
        problem, device, tiles, uses_workspace, parts, None, NOTHING, is_scaled, is_divided, divides_rows, False,
        is_blockwise, False, 0, False, math.inf,
    )  # fmt: skip
    try:
        if problem.direction == "bwd_filter":
            return _of_filter(request)
        packs = Sources.of(request, geometry_of(problem), False).packs
    except Refused:
        return math.inf
    packing = 0.0 if may_change_places else pack_seconds(packs, device)
    launch = min(ALONG.launch, ALONG.early_launch, OTHERS.launch, OTHERS.early_launch)
    waits = request.bytes_moved / (max(ALONG.memory, OTHERS.memory) * device.bandwidth)
    return (launch + waits + packing) * ROUNDED


def _of_filter(request: ProductRequest) -> float:
    """Raises Refused."""
    if request.size != 2:
        raise Refused
    device, loops = request.device, Loops.of(request, 0)
    packs = WgradSources.of(request, loops).packs
    packing = ROUNDED * pack_seconds(packs, device)
    waits = request.bytes_moved / (WGRAD.memory * device.bandwidth)
    least = (min(WGRAD.launch, WGRAD.early_launch) + waits) * ROUNDED
    is_plain = request.parts == 1 and not (request.is_scaled or any(packs))  # by the mean of two models
    if min(loops.in_channels, loops.out_channels) > FEW_CHANNELS:
        return 0.0 if is_plain else least + packing
    stages, columns = -(-loops.pixels // _STAGE_PIXELS), min(loops.columns(tile.n) for tile in request.tiles)
    products = Products(
        (loops.out_channels,), (stages,), columns, request.groups, is_across=True, bytes_moved=request.bytes_moved
    )  # fmt: skip
    traits = KernelTraits(request.parts, request.result_bytes, is_wgrad=True, is_rough=True)
    first = Bound(products, device, traits, STAGE_ROW, False, False, request.tiles)
    least = _of_tiles(first, request)
    if is_plain:
        second = WgradBound(products, device, STAGE_ROW, request.tiles)
        least = min(least, math.sqrt(least * _of_tiles(second, request)))
    return least + packing


def _of_tiles(least: Least, request: ProductRequest) -> float:
    """Of any tile and any splits."""
    whole = min(least.seconds(tile, *whole_cut(least.products, tile)) for tile in request.tiles)
    return min(whole, least.of_splits) if request.uses_workspace else whole
