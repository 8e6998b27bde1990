"""Convolutions of one tap as products of the filter and the pixels: rows are channels of the result.

Tiles have multiples of 64 rows, but any multiple of 16 columns. With pixels as columns, tiles can be chosen that fill
the multiprocessors evenly.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.gemm.plan import linear_step
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor

_DTYPES = ("bf16", "f16")


@lru_cache(512)
def transposed(problem: Convolution) -> Convolution | None:
    """The convolution whose data are the filter, and whose filter are the pixels; None if there is none.

    Of x (N, C, space) and w (K, C, 1, ...) it has an image of K pixels and a filter of as many channels as x has
    pixels; its result is the same memory. Of a data gradient x and y change places, as do K and C.
    """
    x, w, y = problem.x, problem.w, problem.y
    is_pointwise = (
        problem.direction in ("fwd", "bwd_data")
        and problem.groups == 1
        and {1} == {*w.shape[2:], *problem.stride}
        and {0} == {side for sides in problem.padding for side in sides}
    )
    of_summed, of_rows = w.strides[1], w.strides[0]
    if problem.direction == "bwd_data":
        x, y, of_summed, of_rows = y, x, of_rows, of_summed
    if not is_pointwise or any(one.dtype not in _DTYPES for one in (x, w, y)) or y.strides[1] != 1:
        return None
    summed, rows = x.shape[1], y.shape[1]
    pixels = x.size // max(1, summed)
    steps = [
        linear_step((one.shape[0], *one.shape[2:]), (one.strides[0], *one.strides[2:])) for one in (x, y)
    ]
    if None in steps or pixels == 1:
        return None
    of_x, of_y = steps
    assert of_x is not None
    assert of_y is not None
    data = TensorDescriptor((1, summed, rows), (0, of_summed, of_rows), w.dtype)
    filters = TensorDescriptor((pixels, summed, 1), (of_x, x.strides[1], 1), x.dtype)
    result = TensorDescriptor((1, pixels, rows), (0, of_y, 1), y.dtype)
    return Convolution("fwd", data, filters, result, stride=(1,), padding=((0, 0),), dilation=(1,))


def of_pixels(plan: Plan) -> Plan:
    """The plan of a transposed convolution, which packs none, as one of the convolution itself: its first operand is
    the second."""
    assert not any(plan.packs), plan.packs
    maps = tuple(
        replace(one, operand=1 - one.operand) if one.operand in (0, 1) else one for one in plan.tables.maps
    )
    return replace(plan, tables=replace(plan.tables, maps=maps))
