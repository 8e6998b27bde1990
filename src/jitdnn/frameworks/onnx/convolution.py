"""Conv and ConvTranspose."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.integer_products import integer_convolution, takes_bytes
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.spatial import Ints, halves, ones, pad_pairs, padding
from jitdnn.frameworks.onnx.views import whole
from jitdnn.graph import primitives as jd
from jitdnn.graph.operand import Operand


def conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Any:
    rank = x.ndim - 2
    check_taps(w, kernel_shape, site)
    dilation, stride = ones(dilations, rank), ones(strides, rank)
    pairs = padding(auto_pad, pads, x.shape[2:], w.shape[2:], stride, dilation)
    return jd.conv(x, w, bias, stride=stride, padding=pairs, dilation=dilation, groups=group)


def conv_transpose(
    x: Array,
    w: Array,
    bias: Array | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Any:
    """With `output_shape`, or SAME for an output of stride times the input, the padding follows from it."""
    rank = x.ndim - 2
    check_taps(w, kernel_shape, site)
    dilation, stride = ones(dilations, rank), ones(strides, rank)
    extra = tuple(output_padding) if output_padding else (0,) * rank
    full = [
        s * (n - 1) + d * (k - 1) + 1 + more
        for n, k, s, d, more in zip(x.shape[2:], w.shape[2:], stride, dilation, extra, strict=True)
    ]
    wanted = list(output_shape)[-rank:] if output_shape else None
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    if wanted is None:
        pairs = ((0, 0),) * rank if auto_pad == "VALID" else pad_pairs(pads, rank)
    else:
        totals = [n - target for n, target in zip(full, wanted, strict=True)]
        # an output beyond what the taps reach is a longer end, not negative padding
        extra = tuple(more + max(-total, 0) for more, total in zip(extra, totals, strict=True))
        upper = "SAME_UPPER" if auto_pad == "SAME_UPPER" else "SAME_LOWER"
        pairs = halves(upper, [max(total, 0) for total in totals])
    if any(more >= s for more, s in zip(extra, stride, strict=True)):
        raise site.refuse(
            f"an output padding of {list(extra)} is not covered: it must be less than the stride {list(stride)}"
        )
    y = jd.conv_transpose(
        x, w, stride=stride, padding=pairs, output_padding=extra, dilation=dilation, groups=group
    )
    if bias is not None and isinstance(y, Operand):
        return pointwise(lambda v, b: v + b, y, bias.reshape(-1, *(1,) * rank))
    if bias is not None:
        jd.add(bias.reshape(-1, *(1,) * rank), beta=1.0, out=y)
    return y


def conv_integer(
    x: Any,
    w: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Any:
    """Of bytes less their zero points: exact, by products of bytes, or by sums in float64 rounded to integers, for
    Winograd's points are fractions."""
    rank = x.ndim - 2
    check_taps(w, kernel_shape, site)
    dilation, stride = ones(dilations, rank), ones(strides, rank)
    pairs = padding(auto_pad, pads, x.shape[2:], w.shape[2:], stride, dilation)
    if takes_bytes(x, w, w_zero) and (x_zero is None or x_zero.size == 1):
        of_image = None if x_zero is None else x_zero.reshape(())
        found = integer_convolution(x, w, of_image, w_zero, pairs, stride, dilation, group)
        if found is not None:
            return found
    y = jd.conv(
        centred(x, x_zero, 0),
        centred(w, w_zero, 0),
        stride=stride,
        padding=pairs,
        dilation=dilation,
        groups=group,
    )
    return pointwise(lambda v: jd.rint(v), y, dtype=np.dtype(np.int32))


def centred(x: Array, zero: Array | None, axis: int) -> Array:
    """Integers less their zero point, or that of each place on the axis, as float64."""
    if zero is None:
        return x.astype(np.float64)
    if zero.ndim:
        zero = zero.reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return pointwise(lambda v, z: v - z, x, zero, dtype=np.dtype(np.float64))


def col_to_image(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    /,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Any:
    """Blocks added up at their places: the gradient of a convolution whose filters pick one element each."""
    image, block = whole(image_shape), whole(block_shape)
    rank, taps = len(image), int(np.prod(block))
    dilation, stride, pairs = ones(dilations, rank), ones(strides, rank), pad_pairs(pads, rank)
    steps = [
        (n + sum(pair) - d * (k - 1) - 1) // s + 1
        for n, k, s, d, pair in zip(image, block, stride, dilation, pairs, strict=True)
    ]
    channels = x.shape[1] // taps
    filters = np.tile(np.eye(taps, dtype=x.dtype), (channels, 1)).reshape(channels * taps, 1, *block)
    return jd.conv_backward_data(
        x.reshape(len(x), channels * taps, *steps), filters, (len(x), channels, *image),
        stride, pairs, dilation, groups=channels,
    )  # fmt: skip


def check_taps(w: Array, kernel_shape: Ints | None, site: Site) -> None:
    """Raises NotSupported for a kernel_shape that is not the filter's."""
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise site.refuse(f"kernel_shape {list(kernel_shape)} is not the shape of the filters {w.shape}")


OPERATORS = table(Col2Im=col_to_image, Conv=conv, ConvInteger=conv_integer, ConvTranspose=conv_transpose)
