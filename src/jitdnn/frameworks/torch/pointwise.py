"""Pointwise operators of ATen in the expression language: what can be fused into the end of another kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitdnn.rtcg.expression import apply, where
from jitdnn.rtcg.functions import clip, maximum, minimum, reciprocal, rsqrt

aten = torch.ops.aten


def _add(x: Any, y: Any, alpha: float = 1.0) -> Any:
    return x + y if alpha == 1 else x + alpha * y


def _sub(x: Any, y: Any, alpha: float = 1.0) -> Any:
    return x - y if alpha == 1 else x - alpha * y


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    return where(x > 0.0, scale * x, (scale * alpha) * apply("expm1", input_scale * x))


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return apply("gelu" if approximate == "none" else "gelu_tanh", x)


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return where(beta * x > threshold, x, apply("log1pexp", beta * x) * (1.0 / beta))


def _named(name: str, *constants: float) -> Callable[[Any], Any]:
    return lambda x: apply(name, x, *constants)


#: what an operator computes of traced values, or numbers, in the places of its arguments
POINTWISE: dict[Any, Callable[..., Any]] = {
    aten.relu.default: lambda x: maximum(x, 0.0),
    aten.hardtanh.default: lambda x, low=-1.0, high=1.0: clip(x, low, high),
    aten.relu6.default: lambda x: clip(x, 0.0, 6.0),
    aten.clamp.default: _clamp,
    aten.clamp_min.default: maximum,
    aten.clamp_max.default: minimum,
    aten.leaky_relu.default: lambda x, slope=0.01: where(x > 0.0, x, slope * x),
    aten.silu.default: _named("swish", 1.0),
    aten.hardswish.default: _named("hard_swish"),
    aten.hardsigmoid.default: _named("hard_sigmoid"),
    aten.sigmoid.default: _named("sigmoid"),
    aten.tanh.default: _named("tanh"),
    aten.gelu.default: _gelu,
    aten.elu.default: _elu,
    aten.mish.default: _named("mish"),
    aten.softplus.default: _softplus,
    aten.exp.default: _named("exp"),
    aten.sqrt.default: _named("sqrt"),
    aten.rsqrt.default: rsqrt,
    aten.abs.default: abs,
    aten.neg.default: lambda x: -x,
    aten.reciprocal.default: reciprocal,
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: _sub,
    aten.sub.Scalar: _sub,
    aten.rsub.Tensor: lambda x, y, alpha=1.0: _sub(y, x, alpha),
    aten.rsub.Scalar: lambda x, y, alpha=1.0: _sub(y, x, alpha),
    aten.mul.Tensor: lambda x, y: x * y,
    aten.mul.Scalar: lambda x, y: x * y,
    aten.div.Tensor: lambda x, y: x / y,
    aten.div.Scalar: lambda x, y: x / y,
    aten.maximum.default: maximum,
    aten.minimum.default: minimum,
    aten.pow.Tensor_Scalar: lambda x, exponent: x**exponent,
    aten.erf.default: _named("erf"),
    aten.expm1.default: _named("expm1"),
    aten.log1p.default: _named("log1p"),
    aten.gt.Scalar: lambda x, y: x > y,
    aten.ge.Scalar: lambda x, y: x >= y,
    aten.lt.Scalar: lambda x, y: x < y,
    aten.le.Scalar: lambda x, y: x <= y,
    aten.where.self: where,
}
#: operators that only say otherwise how the same elements are counted
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
#: batch normalization of given statistics; the first of its results is the normalized tensor
BATCH_NORMS = {
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._native_batch_norm_legit.default,
    aten.cudnn_batch_norm.default,
}
