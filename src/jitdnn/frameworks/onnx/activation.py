"""Activations: the library's own where it has them, else a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jitdnn.frameworks.onnx.operator import Array, Function, Site, table
from jitdnn.frameworks.onnx.pointwise import applied, pointwise
from jitdnn.graph import primitives as jd

# the constants of Klambauer et al. 2017 as ONNX has them: to the digits of float32
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _plain(function: Callable[..., Any]) -> Function:
    def run(x: Array, /) -> Any:
        return applied(function, x)

    return run


def leaky_relu(x: Array, /, *, alpha: float = 0.01) -> Any:
    return applied(jd.leaky_relu, x, coef=alpha)


def prelu(x: Array, slope: Array, /, *, site: Site) -> Any:
    """The slope is broadcast to x as in NumPy; before version 7 it is one for all, or one for each channel."""
    if site.version < 7 and slope.size > 1:
        return jd.prelu(x, slope)
    return pointwise(lambda v, s: jd.where(v < 0.0, s * v, v), x, slope)


def thresholded_relu(x: Array, /, *, alpha: float = 1.0) -> Any:
    return pointwise(lambda v: jd.where(v > alpha, v, 0.0), x)


def elu(x: Array, /, *, alpha: float = 1.0) -> Any:
    return applied(jd.elu, x, coef=alpha)


def celu(x: Array, /, *, alpha: float = 1.0) -> Any:
    return pointwise(lambda v: jd.where(v < 0.0, alpha * jd.expm1(v / alpha), v), x)


def selu(x: Array, /, *, alpha: float = _SELU_ALPHA, gamma: float = _SELU_GAMMA) -> Any:
    if (alpha, gamma) == (_SELU_ALPHA, _SELU_GAMMA):
        return applied(jd.selu, x)
    return pointwise(lambda v: gamma * jd.where(v > 0.0, v, alpha * jd.expm1(v)), x)


def gelu(x: Array, /, *, approximate: str = "none", site: Site) -> Any:
    if approximate not in {"none", "tanh"}:
        raise site.refuse(f"approximate {approximate!r} is not covered")
    return applied(jd.gelu, x, approximate=approximate)


def swish(x: Array, /, *, alpha: float = 1.0) -> Any:
    return applied(jd.swish, x, coef=alpha)


def hard_sigmoid(x: Array, /, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return applied(jd.hard_sigmoid, x)
    return pointwise(lambda v: jd.minimum(jd.maximum(alpha * v + beta, 0.0), 1.0), x)


OPERATORS = table(
    Celu=celu,
    Elu=elu,
    Gelu=gelu,
    HardSigmoid=hard_sigmoid,
    HardSwish=_plain(jd.hard_swish),
    LeakyRelu=leaky_relu,
    Mish=_plain(jd.mish),
    PRelu=prelu,
    Relu=_plain(jd.relu),
    Selu=selu,
    Sigmoid=_plain(jd.sigmoid),
    Softplus=_plain(jd.softplus),
    Softsign=_plain(jd.elementwise(lambda v: v / (1.0 + abs(v)))),
    Swish=swish,
    Tanh=_plain(jd.tanh),
    ThresholdedRelu=thresholded_relu,
)
