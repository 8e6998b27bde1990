"""Local response normalization across channels, and divisive normalization."""

from __future__ import annotations

from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.frameworks.cudnn_api.enums import (
    CUDNN_LRN_MAX_N,
    CUDNN_LRN_MIN_BETA,
    CUDNN_LRN_MIN_K,
    CUDNN_LRN_MIN_N,
    cudnnDivNormMode_t,
    cudnnLRNMode_t,
)
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound, optional
from jitdnn.frameworks.cudnn_api.objects import (
    Descriptor,
    alive,
    blend,
    choice,
    destroy,
    number,
    real,
    value_of,
)
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.tensors import tensor_of


class Normalized(NamedTuple):
    """What an LRN descriptor is set to."""

    size: int
    alpha: float
    beta: float
    k: float


class cudnnLRNDescriptor(Descriptor[Normalized]):
    """The window of a normalization, and its alpha, beta and k."""


def _normalized(normDesc: Any) -> Normalized:
    return value_of(normDesc, cudnnLRNDescriptor, "normDesc")


@api
def cudnnCreateLRNDescriptor() -> cudnnLRNDescriptor:
    """Return a descriptor of LRN, set to n 5, alpha 1e-4, beta 0.75, k 2."""
    made = cudnnLRNDescriptor()
    made.value = Normalized(5, 1e-4, 0.75, 2.0)
    return made


@api
def cudnnSetLRNDescriptor(normDesc: Any, lrnN: int, lrnAlpha: float, lrnBeta: float, lrnK: float) -> None:
    """Set the window (1 to 16), alpha, beta (at least 0.01) and k (at least 1e-5)."""
    own = alive(normDesc, cudnnLRNDescriptor, "normDesc")
    own.value = Normalized(
        number(lrnN, "lrnN", CUDNN_LRN_MIN_N, CUDNN_LRN_MAX_N),
        real(lrnAlpha, "lrnAlpha"),
        real(lrnBeta, "lrnBeta", CUDNN_LRN_MIN_BETA),
        real(lrnK, "lrnK", CUDNN_LRN_MIN_K),
    )


@api
def cudnnGetLRNDescriptor(normDesc: Any) -> tuple[Any, ...]:
    """Return (lrnN, lrnAlpha, lrnBeta, lrnK)."""
    return tuple(_normalized(normDesc))


@api
def cudnnDestroyLRNDescriptor(lrnDesc: Any) -> None:
    """Destroy a descriptor of LRN."""
    destroy(lrnDesc, cudnnLRNDescriptor, "lrnDesc")


@api
def cudnnLRNCrossChannelForward(
    handle: Any,
    normDesc: Any,
    lrnMode: int,
    alpha: float,
    xDesc: Any,
    x: Any,
    beta: float,
    yDesc: Any,
    y: Any,
) -> None:
    """y = alpha * x * (k + alpha' / n * sum of squares of n channels)^-beta' + beta * y."""
    own, how = inner(handle), _normalized(normDesc)
    choice(cudnnLRNMode_t, lrnMode, "lrnMode")
    jd.lrn(
        bound(x, tensor_of(xDesc, "xDesc"), "x"),
        *how,
        **blend(alpha, beta),
        out=bound(y, tensor_of(yDesc, "yDesc"), "y", True),
        handle=own,
    )


@api
def cudnnLRNCrossChannelBackward(
    handle: Any,
    normDesc: Any,
    lrnMode: int,
    alpha: float,
    yDesc: Any,
    y: Any,
    dyDesc: Any,
    dy: Any,
    xDesc: Any,
    x: Any,
    beta: float,
    dxDesc: Any,
    dx: Any,
) -> None:
    """dx = alpha * (the gradient, from x and dy) + beta * dx; y is not read."""
    own, how = inner(handle), _normalized(normDesc)
    choice(cudnnLRNMode_t, lrnMode, "lrnMode")
    bound(y, tensor_of(yDesc, "yDesc"), "y")
    jd.lrn_backward(
        bound(dy, tensor_of(dyDesc, "dyDesc"), "dy"),
        bound(x, tensor_of(xDesc, "xDesc"), "x"),
        *how,
        **blend(alpha, beta),
        out=bound(dx, tensor_of(dxDesc, "dxDesc"), "dx", True),
        handle=own,
    )


@api
def cudnnDivisiveNormalizationForward(
    handle: Any,
    normDesc: Any,
    mode: int,
    alpha: float,
    xDesc: Any,
    x: Any,
    means: Any,
    temp: Any,
    temp2: Any,
    beta: float,
    yDesc: Any,
    y: Any,
) -> None:
    """y = alpha * x * (k + alpha' / n^d * sum of (x - means)^2 over the window)^-beta' + beta * y; temp, temp2 are
    unused."""
    own, how = inner(handle), _normalized(normDesc)
    choice(cudnnDivNormMode_t, mode, "mode")
    tensor = tensor_of(xDesc, "xDesc")
    jd.divisive_norm(
        bound(x, tensor, "x"),
        optional(means, tensor, "means"),
        *how,
        **blend(alpha, beta),
        out=bound(y, tensor_of(yDesc, "yDesc"), "y", True),
        handle=own,
    )


@api
def cudnnDivisiveNormalizationBackward(
    handle: Any,
    normDesc: Any,
    mode: int,
    alpha: float,
    xDesc: Any,
    x: Any,
    means: Any,
    dy: Any,
    temp: Any,
    temp2: Any,
    beta: float,
    dXdMeansDesc: Any,
    dx: Any,
    dMeans: Any,
) -> None:
    """dx, dMeans = alpha * (the gradients) + beta * what they hold; means and dMeans may be None, temp, temp2 are
    unused."""
    own, how = inner(handle), _normalized(normDesc)
    choice(cudnnDivNormMode_t, mode, "mode")
    tensor, slope = tensor_of(xDesc, "xDesc"), tensor_of(dXdMeansDesc, "dXdMeansDesc")
    scales = blend(alpha, beta)
    source, target = bound(x, tensor, "x"), bound(dx, slope, "dx", True)
    given: Any = optional(means, tensor, "means")
    out_means: Any = optional(dMeans, slope, "dMeans", True)
    if given is None and out_means is not None:  # means of zeros have a gradient, too
        given = jd.scale(jd.transform(source, handle=own), 0.0, handle=own)
    if given is not None and out_means is None and scales["beta"] != 0.0:
        out_means = jd.transform(target, handle=own)
    out: Any = target if given is None else (target, out_means)
    jd.divisive_norm_backward(bound(dy, tensor, "dy"), source, given, *how, **scales, out=out, handle=own)
