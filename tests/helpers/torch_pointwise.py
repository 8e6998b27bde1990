"""PyTorch's pointwise operators, said with this package: activations by name, the others as formulas of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import jitdnn as jd
from torch_adapters import ADAPTERS, Adapter, Refused, Result, adapter, grown, sum_to

# ---- activations


def _activation(name: str, *keywords: str) -> Adapter:
    """The activation of this name here; PyTorch's positional and keyword arguments are its parameters."""
    forward, backward = getattr(jd, name), getattr(jd, name + "_backward")

    def run(x: Any, *values: Any, inplace: bool = False, **given: Any) -> Result:
        chosen = dict(zip(keywords, values, strict=False)) | {RENAMED.get(k, k): v for k, v in given.items()}
        return forward(x, **chosen), lambda dy: [backward(dy, x, **chosen)]

    return grown(run)


RENAMED = {"negative_slope": "coef", "alpha": "coef", "beta": "coef"}
for _theirs, _ours, _keywords in (
    ("nn.functional.relu", "relu", ()),
    ("nn.functional.leaky_relu", "leaky_relu", ("coef",)),
    ("nn.functional.relu6", "clipped_relu", ()),
    ("nn.functional.selu", "selu", ()),
    ("nn.functional.silu", "swish", ()),
    ("nn.functional.gelu", "gelu", ()),
    ("nn.functional.mish", "mish", ()),
    ("nn.functional.hardsigmoid", "hard_sigmoid", ()),
    ("nn.functional.hardswish", "hard_swish", ()),
    ("nn.functional.elu", "elu", ("coef",)),
    ("sigmoid", "sigmoid", ()),
    ("tanh", "tanh", ()),
):
    ADAPTERS[_theirs] = _activation(_ours, *_keywords)


@adapter("nn.functional.softplus")
@grown
def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Result:
    if threshold == 20.0:
        return jd.softplus(x, beta), lambda dy: [jd.softplus_backward(dy, x, coef=beta)]
    return pointwise(
        x,
        formula=lambda v: jd.where(v * beta > threshold, v, jd.log1pexp(v * beta) / beta),
        partials=[lambda v: jd.where(v * beta > threshold, 1.0, jd.sigmoid(v * beta))],
    )


@adapter("nn.functional.prelu")
def _prelu(x: Any, weight: Any) -> Result:
    image = x.reshape(1) if x.ndim == 0 else x
    axis, shared = min(1, image.ndim - 1), weight.reshape(-1)

    def gradients(dy: Any) -> Sequence[Any]:
        found = jd.prelu_backward(dy.reshape(image.shape), image, shared, axis)
        return [g.reshape(t.shape) for g, t in zip(found, (x, weight), strict=True)]

    return jd.prelu(image, shared, axis).reshape(x.shape), gradients


@adapter("nn.functional.glu")
def _glu(x: Any, dim: int = -1) -> Result:
    a, b = x.tensor_split(2, dim)
    y = jd.elementwise(lambda a, b: a * jd.sigmoid(b))(a, b)
    both = jd.elementwise(lambda dy, a, b: (dy * jd.sigmoid(b), dy * a * jd.sigmoid(b) * (1 - jd.sigmoid(b))))
    return y, lambda dy: [jd.concat(both(dy, a, b), dim)]


# ---- formulas of one's own


def pointwise(*tensors: Any, formula: Any, partials: Sequence[Any] | None) -> Result:
    """A traced formula of tensors that are broadcast; its gradients by the partial derivatives, traced too."""
    y = jd.elementwise(formula)(*tensors)
    if partials is None:
        return y, None

    def gradients(dy: Any) -> Sequence[Any]:
        full = [jd.elementwise(_times(partial, len(tensors)))(dy, *tensors) for partial in partials]
        return [sum_to(g, tensor.shape) for g, tensor in zip(full, tensors, strict=True)]

    return y, gradients


def _times(partial: Callable[..., Any], count: int) -> Callable[..., Any]:
    if count == 1:
        return lambda dy, a: dy * partial(a)
    if count == 2:
        return lambda dy, a, b: dy * partial(a, b)
    return lambda dy, a, b, c: dy * partial(a, b, c)


def _sign(x: Any) -> Any:
    return jd.where(x > 0, 1.0, jd.where(x < 0, -1.0, 0.0))


_LN2, _LN10 = math.log(2), math.log(10)
# name: formula, derivative (None: there is none, as PyTorch has none either or the result is no real number)
UNARY: dict[str, tuple[Any, Any]] = {
    "exp": (lambda x: jd.exp(x), lambda x: jd.exp(x)),
    "exp2": (lambda x: jd.exp2(x), lambda x: jd.exp2(x) * _LN2),
    "expm1": (lambda x: jd.expm1(x), lambda x: jd.exp(x)),
    "log": (lambda x: np.log(x), lambda x: 1 / x),
    "log1p": (lambda x: jd.log1p(x), lambda x: 1 / (1 + x)),
    "log2": (lambda x: jd.log2(x), lambda x: 1 / (x * _LN2)),
    "log10": (lambda x: jd.log10(x), lambda x: 1 / (x * _LN10)),
    "sqrt": (lambda x: jd.sqrt(x), lambda x: 0.5 / jd.sqrt(x)),
    "rsqrt": (lambda x: jd.rsqrt(x), lambda x: -0.5 / (x * jd.sqrt(x))),
    "reciprocal": (lambda x: jd.reciprocal(x), lambda x: -1 / (x * x)),
    "square": (lambda x: jd.square(x), lambda x: 2 * x),
    "sin": (lambda x: jd.sin(x), lambda x: jd.cos(x)),
    "cos": (lambda x: jd.cos(x), lambda x: -jd.sin(x)),
    "tan": (lambda x: jd.tan(x), lambda x: 1 + jd.tan(x) * jd.tan(x)),
    "asin": (lambda x: jd.arcsin(x), lambda x: jd.rsqrt(1 - x * x)),
    "acos": (lambda x: jd.arccos(x), lambda x: -jd.rsqrt(1 - x * x)),
    "atan": (lambda x: jd.arctan(x), lambda x: 1 / (1 + x * x)),
    "sinh": (lambda x: jd.sinh(x), lambda x: jd.cosh(x)),
    "cosh": (lambda x: jd.cosh(x), lambda x: jd.sinh(x)),
    "asinh": (lambda x: jd.arcsinh(x), lambda x: jd.rsqrt(1 + x * x)),
    "acosh": (lambda x: jd.arccosh(x), lambda x: jd.rsqrt(x * x - 1)),
    "atanh": (lambda x: jd.arctanh(x), lambda x: 1 / (1 - x * x)),
    "erf": (lambda x: jd.erf(x), lambda x: 2 / math.sqrt(math.pi) * jd.exp(-x * x)),
    "erfc": (
        lambda x: jd.where(
            x < 0, 2 - 2 * jd.normal_tail(-x * math.sqrt(2)), 2 * jd.normal_tail(x * math.sqrt(2))
        ),
        lambda x: -2 / math.sqrt(math.pi) * jd.exp(-x * x),
    ),
    "special.ndtr": (
        lambda x: jd.normal_cdf(x),
        lambda x: jd.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
    ),
    "abs": (lambda x: jd.absolute(x), _sign),
    "neg": (lambda x: -x, lambda x: -1.0),
    "positive": (lambda x: x, lambda x: 1.0),
    "sign": (lambda x: jd.sign(x), lambda x: 0.0),
    "floor": (lambda x: jd.floor(x), lambda x: 0.0),
    "ceil": (lambda x: jd.ceil(x), lambda x: 0.0),
    "trunc": (lambda x: jd.trunc(x), lambda x: 0.0),
    "frac": (lambda x: x - jd.trunc(x), lambda x: 1.0),
    "deg2rad": (lambda x: x * (math.pi / 180), lambda x: math.pi / 180),
    "rad2deg": (lambda x: x * (180 / math.pi), lambda x: 180 / math.pi),
    "isnan": (lambda x: jd.isnan(x), None),
    "isinf": (lambda x: jd.isinf(x), None),
    "isfinite": (lambda x: jd.isfinite(x), None),
    "nn.functional.softsign": (
        lambda x: x / (1 + jd.absolute(x)),
        lambda x: 1 / ((1 + jd.absolute(x)) * (1 + jd.absolute(x))),
    ),
    "nn.functional.logsigmoid": (lambda x: -jd.log1pexp(-x), lambda x: jd.sigmoid(-x)),
    "nn.functional.tanhshrink": (lambda x: x - jd.tanh(x), lambda x: jd.tanh(x) * jd.tanh(x)),
}


def _formula(formula: Any, *partials: Any) -> Adapter:
    chosen = None if partials == (None,) else partials
    return grown(lambda *tensors: pointwise(*tensors, formula=formula, partials=chosen))


for _name, (_forward, _derivative) in UNARY.items():
    ADAPTERS[_name] = _formula(_forward, _derivative)


@adapter("nn.functional.hardtanh")
@grown
def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Result:
    within: Any = lambda v: jd.where(v > min_val, jd.where(v < max_val, 1.0, 0.0), 0.0)  # noqa: E731
    return pointwise(x, formula=lambda v: jd.clip(v, min_val, max_val), partials=[within])


@adapter("nn.functional.celu")
@grown
def _celu(x: Any, alpha: float = 1.0) -> Result:
    return pointwise(
        x,
        formula=lambda v: jd.where(v > 0, v, alpha * jd.expm1(v / alpha)),
        partials=[lambda v: jd.where(v > 0, 1.0, jd.exp(v / alpha))],
    )


@adapter("nn.functional.threshold")
@grown
def _threshold(x: Any, threshold: float, value: float, inplace: bool = False) -> Result:
    return pointwise(
        x,
        formula=lambda v: jd.where(v > threshold, v, value),
        partials=[lambda v: jd.where(v > threshold, 1.0, 0.0)],
    )


@adapter("nn.functional.hardshrink")
@grown
def _hardshrink(x: Any, lambd: float = 0.5) -> Result:
    # PyTorch's condition for zero is one for both ends, so that a negative bound keeps everything
    def kept(v: Any) -> Any:
        return jd.where(v >= -lambd, jd.where(v <= lambd, 0.0, 1.0), 1.0)

    return pointwise(x, formula=lambda v: v * kept(v), partials=[kept])


@adapter("nn.functional.softshrink")
@grown
def _softshrink(x: Any, lambd: float = 0.5) -> Result:
    return pointwise(
        x,
        formula=lambda v: jd.where(v > lambd, v - lambd, jd.where(v < -lambd, v + lambd, 0.0)),
        partials=[lambda v: jd.where(v > lambd, 1.0, jd.where(v < -lambd, 1.0, 0.0))],
    )


@adapter("logit")
@grown
def _logit(x: Any, eps: float | None = None) -> Result:
    low, high = (-math.inf, math.inf) if eps is None else (eps, 1 - eps)
    outside = math.nan if eps is None else 0.0
    low_edge, high_edge = (0.0, 1.0) if eps is None else (low, high)

    def formula(v: Any) -> Any:
        c = v if eps is None else jd.clip(v, low, high)
        return np.log(c / (1 - c))

    def slope(v: Any) -> Any:
        inside = 1 / (v * (1 - v))
        return jd.where(v >= low_edge, jd.where(v <= high_edge, inside, outside), outside)

    return pointwise(x, formula=formula, partials=[slope])


# ---- pairs and triples


def _pair(operation: str, scaled: bool = False) -> Adapter:
    def run(a: Any, b: Any, *, alpha: float = 1.0) -> Result:
        if a.dtype != b.dtype:
            raise Refused("operands of two types")
        slopes = SLOPES[operation](alpha)

        def gradients(dy: Any) -> Sequence[Any]:
            return pointwise(a, b, formula=lambda a, b: a, partials=slopes)[1](dy)  # type: ignore[misc]

        return jd.op_tensor(a, b, operation, b_scale=alpha), gradients

    return grown(run)


def _share(larger: Any) -> Any:
    """1 where the first is chosen; equal operands share."""
    return lambda a, b: jd.where(larger(a, b), 1.0, jd.where(larger(b, a), 0.0, 0.5))


def _swapped(f: Any) -> Any:
    return lambda a, b: f(b, a)


_MORE, _LESS = _share(lambda a, b: a > b), _share(lambda a, b: a < b)
SLOPES: dict[str, Any] = {
    "add": lambda alpha: (lambda a, b: 1.0, lambda a, b: alpha),
    "mul": lambda alpha: (lambda a, b: b, lambda a, b: a),
    "max": lambda alpha: (_MORE, _swapped(_MORE)),
    "min": lambda alpha: (_LESS, _swapped(_LESS)),
}
for _theirs, _op in (("add", "add"), ("mul", "mul"), ("minimum", "min"), ("maximum", "max")):
    ADAPTERS[_theirs] = _pair(_op)


@adapter("sub")
@grown
def _sub(a: Any, b: Any, *, alpha: float = 1.0) -> Result:
    if a.dtype != b.dtype:
        raise Refused("operands of two types")
    return pointwise(
        a, b, formula=lambda a, b: a - alpha * b, partials=[lambda a, b: 1.0, lambda a, b: -alpha]
    )


@adapter("div")
@grown
def _div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Result:
    if rounding_mode is None:
        return pointwise(
            a, b, formula=lambda a, b: a / b, partials=[lambda a, b: 1 / b, lambda a, b: -a / (b * b)]
        )
    rounded: Any = jd.floor_divide if rounding_mode == "floor" else lambda a, b: jd.trunc(a / b)
    return pointwise(a, b, formula=lambda a, b: rounded(a, b), partials=[lambda a, b: 0.0] * 2)


BINARY: dict[str, tuple[Any, ...]] = {
    "pow": (
        lambda a, b: a**b,
        lambda a, b: jd.where(b == 0, 0.0, b * a ** (b - 1)),
        lambda a, b: jd.where(a == 0, 0.0, a**b * np.log(a)),
    ),
    "atan2": (
        lambda a, b: jd.arctan2(a, b),
        lambda a, b: b / (a * a + b * b),
        lambda a, b: -a / (a * a + b * b),
    ),
    "hypot": (
        lambda a, b: jd.sqrt(a * a + b * b),
        lambda a, b: a / jd.sqrt(a * a + b * b),
        lambda a, b: b / jd.sqrt(a * a + b * b),
    ),
    "fmod": (lambda a, b: jd.fmod(a, b), lambda a, b: 1.0, lambda a, b: -jd.trunc(a / b)),
    "remainder": (lambda a, b: jd.remainder(a, b), lambda a, b: 1.0, lambda a, b: -jd.floor(a / b)),
    "logaddexp": (
        lambda a, b: jd.maximum(a, b) + jd.log1p(jd.exp(-jd.absolute(a - b))),
        lambda a, b: jd.sigmoid(a - b),
        lambda a, b: jd.sigmoid(b - a),
    ),
    "eq": (lambda a, b: a == b, None),
    "ne": (lambda a, b: a != b, None),
    "lt": (lambda a, b: a < b, None),
    "le": (lambda a, b: a <= b, None),
    "gt": (lambda a, b: a > b, None),
    "ge": (lambda a, b: a >= b, None),
    "floor_divide": (lambda a, b: jd.floor_divide(a, b), None),
}
for _name, (_forward, *_partials) in BINARY.items():
    ADAPTERS[_name] = _formula(_forward, *_partials)


@adapter("lerp")
@grown
def _lerp(a: Any, b: Any, weight: Any) -> Result:
    if isinstance(weight, torch.Tensor):
        return pointwise(
            a, b, weight, formula=lambda a, b, w: a + w * (b - a),
            partials=[lambda a, b, w: 1 - w, lambda a, b, w: w, lambda a, b, w: b - a],
        )  # fmt: skip
    if isinstance(weight, complex):
        raise Refused("complex numbers")
    return pointwise(
        a, b, formula=lambda a, b: a + weight * (b - a),
        partials=[lambda a, b: 1 - weight, lambda a, b: weight],
    )  # fmt: skip


@adapter("addcmul")
@grown
def _addcmul(x: Any, a: Any, b: Any, *, value: float = 1.0) -> Result:
    return pointwise(
        x, a, b, formula=lambda x, a, b: x + value * a * b,
        partials=[lambda x, a, b: 1.0, lambda x, a, b: value * b, lambda x, a, b: value * a],
    )  # fmt: skip


@adapter("addcdiv")
@grown
def _addcdiv(x: Any, a: Any, b: Any, *, value: float = 1.0) -> Result:
    return pointwise(
        x, a, b, formula=lambda x, a, b: x + value * a / b,
        partials=[lambda x, a, b: 1.0, lambda x, a, b: value / b, lambda x, a, b: -value * a / (b * b)],
    )  # fmt: skip


# ---- losses over pairs


def _pair_loss(formula: Callable[[float], Any], slope: Callable[[float], Any], key: str) -> Adapter:
    """A formula of two tensors, reduced; the difference is what it depends on."""

    def run(a: Any, b: Any, *, reduction: str = "mean", **options: Any) -> Result:
        value = options.pop(key, 1.0)
        if options:
            raise Refused(" and ".join(sorted(options)))
        term, partial = formula(value), slope(value)
        shape = torch.broadcast_shapes(a.shape, b.shape)
        factor = 1 / max(1, math.prod(shape)) if reduction == "mean" else 1.0

        def gradients(dy: Any) -> Sequence[Any]:
            signs = zip((a, b), (factor, -factor), strict=True)
            scaled = {
                sign: jd.elementwise(lambda dy, a, b, s=sign: s * dy * partial(a - b))
                for sign in (factor, -factor)
            }
            return [sum_to(scaled[sign](dy.reshape(dy.shape or (1,)), a, b), t.shape) for t, sign in signs]

        if reduction == "none":
            return jd.elementwise(lambda a, b: term(a - b))(a, b), gradients
        y = jd.reduction(lambda a, b: factor * term(a - b))(a, b)
        return y.reshape(()), gradients

    return grown(run)


def _huber(delta: float) -> Any:
    return lambda d: jd.where(jd.absolute(d) < delta, 0.5 * d * d, delta * (jd.absolute(d) - 0.5 * delta))


def _smooth(beta: float) -> Any:
    return lambda d: jd.where(jd.absolute(d) < beta, 0.5 * d * d / beta, jd.absolute(d) - 0.5 * beta)


for _name, _loss in {
    "nn.functional.mse_loss": (lambda _: lambda d: d * d, lambda _: lambda d: 2 * d, ""),
    "nn.functional.l1_loss": (lambda _: lambda d: jd.absolute(d), lambda _: _sign, ""),
    "nn.functional.huber_loss": (_huber, lambda v: lambda d: jd.clip(d, -v, v), "delta"),
    "nn.functional.smooth_l1_loss": (_smooth, lambda v: lambda d: jd.clip(d / v, -1.0, 1.0), "beta"),
}.items():
    ADAPTERS[_name] = _pair_loss(*_loss)
