"""Operators of the domain com.microsoft that onnxruntime's optimizer makes of several: products and activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.errors import InvalidShape
from jitdnn.frameworks.onnx import activation, convolution, movement, normalization, products, sampling
from jitdnn.frameworks.onnx.operator import Array, Function, Site, table
from jitdnn.frameworks.onnx.pointwise import applied, pointwise
from jitdnn.frameworks.onnx.spatial import Ints
from jitdnn.graph import primitives as jd

Parameters = Sequence[float]

#: activations by their names, as functions of (values, parameters)
_ACTIVATIONS: dict[str, Callable[[Array, Parameters], Any]] = {
    "Relu": lambda x, p: applied(jd.relu, x),
    "Tanh": lambda x, p: applied(jd.tanh, x),
    "Sigmoid": lambda x, p: applied(jd.sigmoid, x),
    "LeakyRelu": lambda x, p: activation.leaky_relu(x, alpha=p[0] if p else 0.01),
    "Clip": lambda x, p: pointwise(lambda v: jd.minimum(jd.maximum(v, p[0]), p[1]), x),
    "HardSigmoid": lambda x, p: activation.hard_sigmoid(
        x, alpha=p[0] if p else 0.2, beta=p[1] if len(p) > 1 else 0.5
    ),
    "HardSwish": lambda x, p: applied(jd.hard_swish, x),
    "Elu": lambda x, p: activation.elu(x, alpha=p[0] if p else 1.0),
    "Softplus": lambda x, p: applied(jd.softplus, x),
    "Gelu": lambda x, p: applied(jd.gelu, x),
}


def activated(x: Any, name: str, parameters: Parameters, site: Site) -> Any:
    """The activation of this name; "" is none."""
    if not name:
        return x
    if name not in _ACTIVATIONS or (name == "Clip" and len(parameters) != 2):
        raise site.refuse(f"activation {name!r} with parameters {list(parameters)} is not covered")
    return _ACTIVATIONS[name](x, parameters)


def fused_conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    /,
    *,
    activation: str = "",
    activation_params: Parameters = (),
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Any:
    """activation(conv(x, w) + bias + residual)"""
    y = convolution.conv(
        x, w, bias, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=pads, strides=strides, site=site,
    )  # fmt: skip
    if residual is not None:
        y = pointwise(lambda a, b: a + b, y, residual)
    return activated(y, activation, activation_params, site)


def nhwc_conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    /,
    *,
    activation: str = "",
    activation_params: Parameters = (),
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Any:
    """FusedConv of channels-last images: x (N, H, W, C), filters as in ONNX."""
    first, last = (0, x.ndim - 1, *range(1, x.ndim - 1)), (0, *range(2, x.ndim), 1)
    y = fused_conv(
        x.transpose(first), w, bias, None if residual is None else residual.transpose(first),
        activation=activation, activation_params=activation_params, auto_pad=auto_pad, dilations=dilations,
        group=group, kernel_shape=kernel_shape, pads=pads, strides=strides, site=site,
    )  # fmt: skip
    return y.transpose(last)


def fused_matmul(
    a: Array,
    b: Array,
    /,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:
    """alpha * a b; `transBatch` moves the first axis behind those of the batch, before the matrix is transposed."""
    y = products.matmul(_turned(a, transA, transBatchA), _turned(b, transB, transBatchB))
    return y if alpha == 1.0 else pointwise(lambda v: v * alpha, y)


def _turned(x: Array, is_transposed: int, moves_batch: int) -> Array:
    if moves_batch and x.ndim > 2:
        x = x.transpose(*range(1, x.ndim - 1), 0, x.ndim - 1)
    return x.swapaxes(-1, -2) if is_transposed and x.ndim > 1 else x


def fused_gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    /,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    site: Site,
) -> Any:
    y = products.gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
    return activated(y, activation, given, site)


def _gelu(approximate: str) -> Function:
    def run(x: Array, bias: Array | None = None, /) -> Any:
        if bias is not None:
            x = pointwise(lambda a, b: a + b, x, bias)
        return applied(jd.gelu, x, approximate=approximate)

    return run


def quick_gelu(x: Array, /, *, alpha: float = 1.702) -> Any:
    return applied(jd.swish, x, coef=alpha)


def bias_split_gelu(x: Array, bias: Array, /) -> Any:
    """The first half of the channels times GELU of the second."""
    y = pointwise(lambda a, b: a + b, x, bias)
    half = y.shape[-1] // 2
    return pointwise(lambda a, b: a * b, y[..., :half], applied(jd.gelu, y[..., half:]))


def bias_add(x: Array, bias: Array, residual: Array, /) -> Any:
    return pointwise(lambda a, b, c: a + b + c, x, bias, residual)


def bias_softmax(x: Array, bias: Array, /, *, axis: int = 1, is_inner_broadcast: int, site: Site) -> Any:
    """Over all axes from `axis` on together, of x plus the bias."""
    axis %= x.ndim
    if is_inner_broadcast and bias.ndim < x.ndim:
        bias = bias.reshape(
            *bias.shape[: bias.ndim - (x.ndim - axis)], *(1,) * (x.ndim - bias.ndim), *x.shape[axis:]
        )
    y = pointwise(lambda a, b: a + b, x, bias)
    return jd.softmax(y, tuple(range(axis, x.ndim)))


def pad(x: Array, amounts: Array, fill: Array | None = None, /, *, mode: str = "constant", site: Site) -> Any:
    return movement.pad(x, amounts.reshape(-1), fill, mode=mode, site=site)


def nhwc_max_pool(
    x: Array,
    /,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Any:
    from jitdnn.frameworks.onnx.pooling import OPERATORS as POOLS

    first, last = (0, x.ndim - 1, *range(1, x.ndim - 1)), (0, *range(2, x.ndim), 1)
    y = POOLS["MaxPool"].function(
        x.transpose(first), auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations, kernel_shape=kernel_shape,
        pads=pads, strides=strides, site=site,
    )  # fmt: skip
    return (y[0] if isinstance(y, tuple) else y).transpose(last)


def skip_layer_normalization(
    x: Array,
    skip: Array,
    scale: Array,
    offset: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    epsilon: float = 1e-12,
    site: Site,
) -> Any:
    """Layer normalization of x + skip + bias, and that sum; the skip may be one for all of the batch."""
    total = _total(x, skip, bias, site)
    return jd.layer_norm(total, scale, offset, axis=-1, epsilon=epsilon), None, None, total


def skip_rms_normalization(
    x: Array, skip: Array, scale: Array, bias: Array | None = None, /, *, epsilon: float = 1e-6, site: Site
) -> Any:
    total = _total(x, skip, bias, site)
    return jd.rms_norm(total, scale, axis=-1, epsilon=epsilon), None, None, total


def _total(x: Array, skip: Array, bias: Array | None, site: Site) -> Array:
    if x.ndim not in {2, 3} or skip.shape[-2:] != x.shape[-2:]:
        raise InvalidShape(
            f"{site.operator}: x {x.shape} and skip {skip.shape} must be (N, T, D), or (T, D) for one"
        )
    if site.wants(1) or site.wants(2):
        raise site.refuse("mean and inv_std_var as results are not covered")
    if bias is None:
        return pointwise(lambda a, b: a + b, x, skip)
    return pointwise(lambda a, b, c: a + b + c, x, skip, bias)


OPERATORS = table(
    BiasAdd=bias_add,
    BiasGelu=_gelu("none"),
    BiasSoftmax=bias_softmax,
    BiasSplitGelu=bias_split_gelu,
    FastGelu=_gelu("tanh"),
    FusedConv=fused_conv,
    FusedGemm=fused_gemm,
    FusedMatMul=fused_matmul,
    Gelu=_gelu("none"),
    GridSample=sampling.grid_sample,
    LayerNormalization=normalization.layer_normalization,
    NhwcConv=nhwc_conv,
    NhwcFusedConv=nhwc_conv,
    NhwcMaxPool=nhwc_max_pool,
    Pad=pad,
    QuickGelu=quick_gelu,
    SimplifiedLayerNormalization=normalization.rms_normalization,
    SkipLayerNormalization=skip_layer_normalization,
    SkipSimplifiedLayerNormalization=skip_rms_normalization,
    TransposeMatMul=fused_matmul,
    Trilu=movement.trilu,
)
