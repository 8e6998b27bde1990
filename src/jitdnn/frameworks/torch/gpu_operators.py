"""Operators of ATen as functions of operands: what they are in graphs of `jitdnn.graph`, which run on GPUs.

A translation takes the arguments of the operator, with operands or arrays of NumPy in the places of tensors, and the
`Kind` of the result. Where it raises, the operator is PyTorch's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Node

from jitdnn.frameworks.torch.graph import value
from jitdnn.frameworks.torch.pointwise import BATCH_NORMS, POINTWISE
from jitdnn.graph import primitives as jd
from jitdnn.graph.operand import Operand, Untraceable
from jitdnn.graph.tracer import operands_in
from jitdnn.rtcg.expression import trace, where
from jitdnn.tensor import dtype_of, numpy_dtype

aten = torch.ops.aten


class Kind(NamedTuple):
    """Shape and type of a result."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Translation = Callable[..., Any]
_REAL = ("f16", "bf16", "f32", "f64")


def kind_of(node: Node) -> Kind | None:
    """What a node gives, if that is one tensor that has elements and whose type has a name here."""
    held = value(node)
    if not isinstance(held, torch.Tensor) or not held.numel() or held.dim() > 8 or held.is_complex():
        return None
    try:
        return Kind(tuple(held.shape), numpy_dtype(dtype_of(held.dtype)))
    except (TypeError, ValueError):
        return None


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floating-point numbers of at least 16 bits."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def pointwise(kind: Kind, function: Callable[..., Any], *arguments: Any) -> Any:
    """A formula over operands, arrays and numbers, broadcast."""
    arrays = [one for one in arguments if isinstance(one, (Operand, np.ndarray))]
    if not all(is_real(one.dtype) or one.dtype.kind == "b" for one in arrays):
        raise Untraceable("arithmetic of integers")
    if not (is_real(kind.dtype) or kind.dtype.kind == "b"):
        raise Untraceable(f"a result of {kind.dtype}")

    def formula(*values: Any) -> Any:
        given = iter(values)
        put = [
            (next(given) if is_real(one.dtype) else next(given) != 0.0)
            if isinstance(one, (Operand, np.ndarray))
            else one
            for one in arguments
        ]
        result = function(*put)
        return where(result, 1.0, 0.0) if kind.dtype.kind == "b" else result

    tracer = next(operands_in(arrays)).tracer
    # a formula's inputs have names
    names = [
        inspect.Parameter(f"v{number}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for number in range(len(arrays))
    ]
    formula.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return tracer.pointwise(trace(formula), arrays, kind.dtype)


def _pointwise(target: Any) -> Translation:
    function = POINTWISE[target]

    def run(kind: Kind, *args: Any, **kwargs: Any) -> Any:
        named = list(kwargs)

        def whole(*values: Any) -> Any:
            return function(*values[: len(args)], **dict(zip(named, values[len(args) :], strict=True)))

        return pointwise(kind, whole, *args, *kwargs.values())

    return run


def _convolution(
    kind: Kind, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, is_transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    space = len(kind.shape) - 2
    if x.ndim != space + 2 or not 1 <= space <= 3:
        raise Untraceable("an image without a batch")
    a, b, c, d = (_each(one, space) for one in (stride, padding, dilation, output_padding))
    if not is_transposed:
        return jd.conv(x, w, bias, stride=a, padding=b, dilation=c, groups=groups)
    y = jd.conv_transpose(x, w, stride=a, padding=b, output_padding=d, dilation=c, groups=groups)
    if bias is None:
        return y
    return pointwise(kind, lambda v, t: v + t, y, bias.reshape(-1, *(1,) * space))


def _each(numbers: Any, space: int) -> tuple[int, ...]:
    if isinstance(numbers, int):
        return (numbers,) * space
    return tuple(numbers) * (space if len(numbers) == 1 else 1)


def _product(kind: Kind, a: Any, b: Any) -> Any:
    return jd.matmul(a, b)


def _added_product(kind: Kind, c: Any, a: Any, b: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    y = jd.matmul(a, b)
    if beta == 0:
        return y if alpha == 1 else pointwise(kind, lambda v: v * alpha, y)
    return pointwise(
        kind,
        lambda v, t: (v if alpha == 1 else v * alpha) + (t if beta == 1 else t * beta),
        y,
        c,
    )


def linear(x: Any, w: Any, bias: Any = None) -> Any:
    """PyTorch's product of a tensor of any number of axes and a matrix, and a row that is added."""
    y = torch.matmul(x, w)
    return y if bias is None else y + bias


def _linear(kind: Kind, x: Any, w: Any, bias: Any = None) -> Any:
    y = jd.matmul(x, w)
    return y if bias is None else pointwise(kind, lambda v, t: v + t, y, bias)


def _batch_norm(kind: Kind, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
    if len(rest) > 2 and rest[0]:
        if x.shape[0] != 1 or x.ndim < 3 or mean is not None:
            raise Untraceable("statistics of the batch")
        return jd.instance_norm(x, weight, bias, epsilon=float(rest[-1]))  # as which PyTorch writes that
    if any(isinstance(one, Operand) for one in (weight, bias, mean, variance)):
        raise Untraceable("statistics that are no constants")
    scale = np.ones_like(mean) if weight is None else weight
    shift = np.zeros_like(mean) if bias is None else bias
    return jd.batch_norm_inference(x, scale, shift, mean, variance, mode="spatial", epsilon=float(rest[-1]))


def _layer_norm(
    kind: Kind, x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    return jd.layer_norm(x, weight, bias, axis=-len(shape), epsilon=float(eps))


def _rms_norm(kind: Kind, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    if eps is None:
        eps = float(torch.finfo(torch.float64 if x.dtype == np.float64 else torch.float32).eps)
    return jd.rms_norm(x, weight, axis=-len(shape), epsilon=float(eps))


def _group_norm(
    kind: Kind, x: Any, weight: Any, bias: Any, n: int, c: int, space: int, groups: int, eps: float
) -> Any:
    return jd.group_norm(x, groups, weight, bias, epsilon=float(eps))


def _softmax(algorithm: str) -> Translation:
    def run(kind: Kind, x: Any, axis: int, half_to_float: bool) -> Any:
        if half_to_float or not kind.shape:
            raise Untraceable("softmax of another type")
        return jd.softmax(x, axis % len(kind.shape), algorithm)

    return run


def _safe_softmax(kind: Kind, x: Any, axis: int, dtype: Any = None) -> Any:
    """Rows of which nothing is seen, all of them -inf, are 0."""
    if x.dtype != kind.dtype or not kind.shape:
        raise Untraceable("softmax of another type")
    axis %= len(kind.shape)
    most = jd.reduce(x, "max", axis, True)
    least = torch.finfo(torch.float64 if kind.dtype == np.float64 else torch.float32).min
    return pointwise(kind, lambda y, m: where(m < least, 0.0, y), jd.softmax(x, axis), most)


def _reduction(op: str) -> Translation:
    def run(kind: Kind, x: Any, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        if x.dtype != kind.dtype or not x.ndim:
            raise Untraceable("a sum of another type")
        wanted = None if axes is None or axes == [] else tuple([axes] if isinstance(axes, int) else axes)
        y = jd.reduce(x, op, wanted, bool(keepdim))
        return y.reshape(kind.shape)

    return run


def _norm(
    kind: Kind, x: Any, order: Any = 2, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if order not in (1, 2):
        raise Untraceable(f"a norm of order {order}")
    return _reduction(f"norm{int(order)}")(kind, x, axes, keepdim)


def _max_pool(
    kind: Kind, x: Any, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    space = len(kind.shape) - 2
    steps = _each(stride or window, space)
    return jd.max_pool(
        x,
        _each(window, space),
        steps,
        _each(padding, space),
        "ceil" if ceil else "floor",
        _each(dilation, space),
    )


def _avg_pool(
    kind: Kind, x: Any, window: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, counts: bool = True,
    divisor: Any = None,
) -> Any:  # fmt: skip
    space = len(kind.shape) - 2
    if divisor is not None or (ceil and any(_each(padding, space)) and counts):
        raise Untraceable("an average by another divisor")
    steps = _each(stride or window, space)
    rounding = "ceil" if ceil else "floor"
    return jd.avg_pool(x, _each(window, space), steps, _each(padding, space), bool(counts), rounding)


def _adaptive(name: str) -> Translation:
    def run(kind: Kind, x: Any, size: Any) -> Any:
        return getattr(jd, name)(x, tuple(kind.shape[2:]))

    return run


def _attention(mask_at: int | None, causal_at: int) -> Translation:
    """Of the operators that PyTorch makes of `scaled_dot_product_attention`; where they have their mask, and whether
    keys behind a query are hidden."""

    def run(
        kind: Kind, q: Any, k: Any, v: Any, *rest: Any, scale: float | None = None, attn_mask: Any = None
    ) -> Any:
        if rest and any(isinstance(one, float) and one for one in rest[:3]):
            raise Untraceable("weights are dropped")
        mask = attn_mask
        if mask_at is not None and len(rest) > mask_at:
            mask = rest[mask_at]
        causal = bool(rest[causal_at]) if len(rest) > causal_at else False
        if q.ndim != 4 or q.shape[1] % k.shape[1]:
            raise Untraceable("attention of other than four axes")
        return jd.attention(q, k, v, mask, causal, scale)

    return run


def _resize(mode: str, coordinates: str) -> Translation:
    def run(kind: Kind, x: Any, size: Any, *rest: Any) -> Any:
        how = "align_corners" if mode != "nearest" and rest and rest[0] is True else coordinates
        factors = rest[1:] if mode != "nearest" else rest
        given = factors[0] if len(factors) == 1 else factors
        scale = None
        if given and all(isinstance(one, (int, float)) for one in given):
            scale = tuple(map(float, given))
        named: dict[str, Any] = {"cubic": -0.75} if mode == "cubic" else {}
        if mode == "nearest":
            named["rounding"] = "floor"
        return jd.resize(x, kind.shape[2:], scale, mode=mode, coordinates=how, **named)

    return run


def _reshape(kind: Kind, x: Any, *_: Any) -> Any:
    return x.reshape(kind.shape)


def _same(kind: Kind, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _cast(kind: Kind, x: Any, *_: Any, **named: Any) -> Any:
    if not (is_real(x.dtype) and is_real(kind.dtype)):
        raise Untraceable("a conversion of integers")
    return x.tracer.cast(x, kind.dtype)


def _transpose(kind: Kind, x: Any, one: int = 0, other: int = 1) -> Any:
    return x if x.ndim < 2 else x.swapaxes(one % x.ndim, other % x.ndim)


def _permute(kind: Kind, x: Any, axes: Sequence[int]) -> Any:
    return x.transpose(tuple(axis % x.ndim for axis in axes))


def _expand(kind: Kind, x: Any, *_: Any, **__: Any) -> Any:
    return x.broadcast_to(kind.shape)


def _slice(
    kind: Kind, x: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _select(kind: Kind, x: Any, axis: int, place: int) -> Any:
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = place
    return x[tuple(index)]


def _cat(kind: Kind, arrays: Sequence[Any], axis: int = 0) -> Any:
    return jd.concat(_joined(kind, arrays), axis % len(kind.shape))


def _stack(kind: Kind, arrays: Sequence[Any], axis: int = 0) -> Any:
    axis %= len(kind.shape)
    shape = (*kind.shape[:axis], 1, *kind.shape[axis + 1 :])
    return jd.concat([one.reshape(shape) for one in _joined(kind, arrays)], axis)


def _joined(kind: Kind, arrays: Sequence[Any]) -> list[Any]:
    if any(one.dtype != kind.dtype for one in arrays):
        raise Untraceable("arrays of several types are joined")
    return [one for one in arrays if len(one.shape) == len(kind.shape) or one.size]


def _pad(kind: Kind, x: Any, pad: Sequence[int], fill: float = 0.0) -> Any:
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)]
    pairs += [(0, 0)] * (x.ndim - len(pairs))
    pairs.reverse()
    kept = x[tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, pairs, strict=True))]
    widths = [(max(0, a), max(0, b)) for a, b in pairs]
    if not any(map(any, widths)):
        return kept
    return jd.transform(kept, pad=widths, value=float(fill))


def _roll(kind: Kind, x: Any, shifts: Any, axes: Any = ()) -> Any:
    shifts, axes = (([one] if isinstance(one, int) else list(one)) for one in (shifts, axes))
    if not axes:
        raise Untraceable("all elements are rolled as one axis")
    for shift, axis in zip(shifts, axes, strict=True):
        at = -shift % x.shape[axis]
        if at:
            first, last = _slice(kind, x, axis, 0, at), _slice(kind, x, axis, at, None)
            x = jd.concat([last, first], axis % x.ndim)
    return x


TRANSLATIONS: dict[Any, Translation] = {
    **{target: _pointwise(target) for target in POINTWISE},
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    aten.convolution.default: _convolution,
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.matmul.default: _product,
    aten.addmm.default: _added_product,
    linear: _linear,
    aten.baddbmm.default: _added_product,
    aten.layer_norm.default: _layer_norm,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._softmax.default: _softmax("accurate"),
    aten._log_softmax.default: _softmax("log"),
    aten._safe_softmax.default: _safe_softmax,
    aten.mean.dim: _reduction("avg"),
    aten.mean.default: _reduction("avg"),
    aten.sum.dim_IntList: _reduction("add"),
    aten.sum.default: _reduction("add"),
    aten.amax.default: _reduction("max"),
    aten.amin.default: _reduction("min"),
    aten.linalg_vector_norm.default: _norm,
    aten.max_pool2d.default: _max_pool,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool3d_with_indices.default: _max_pool,
    aten.avg_pool1d.default: _avg_pool,
    aten.avg_pool2d.default: _avg_pool,
    aten.avg_pool3d.default: _avg_pool,
    aten._adaptive_avg_pool2d.default: _adaptive("adaptive_avg_pool"),
    aten._adaptive_avg_pool3d.default: _adaptive("adaptive_avg_pool"),
    aten.adaptive_max_pool2d.default: _adaptive("adaptive_max_pool"),
    aten._scaled_dot_product_flash_attention.default: _attention(None, 1),
    aten._scaled_dot_product_efficient_attention.default: _attention(0, 3),
    aten._scaled_dot_product_cudnn_attention.default: _attention(0, 3),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention(None, 1),
    aten.upsample_nearest1d.default: _resize("nearest", "asymmetric"),
    aten.upsample_nearest2d.default: _resize("nearest", "asymmetric"),
    aten.upsample_nearest3d.default: _resize("nearest", "asymmetric"),
    aten.upsample_linear1d.default: _resize("linear", "half_pixel"),
    aten.upsample_bilinear2d.default: _resize("linear", "half_pixel"),
    aten.upsample_trilinear3d.default: _resize("linear", "half_pixel"),
    aten.upsample_bicubic2d.default: _resize("cubic", "half_pixel"),
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.reshape.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.clone.default: _same,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.contiguous.default: _same,
    aten._to_copy.default: _cast,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.constant_pad_nd.default: _pad,
    aten.roll.default: _roll,
}
if hasattr(aten, "_fused_rms_norm"):
    TRANSLATIONS[aten._fused_rms_norm.default] = _rms_norm
#: operators that move nothing and compute nothing
MOVING = {
    target for target, run in TRANSLATIONS.items()
    if run in (_reshape, _same, _transpose, _permute, _expand, _slice, _select)
}  # fmt: skip


class First:
    """The first of an operator's results."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)[0]

    def __str__(self) -> str:
        return str(self.target)

    @property
    def __name__(self) -> str:
        return str(self.target)

    __module__ = "jitdnn"


def translation_of(node: Node) -> Translation | None:
    """The translation of a node, None where there is none."""
    target = node.target.target if isinstance(node.target, First) else node.target
    return TRANSLATIONS.get(target)


__all__ = [
    "MOVING",
    "TRANSLATIONS",
    "First",
    "Kind",
    "kind_of",
    "translation_of",
]
