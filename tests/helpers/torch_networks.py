"""PyTorch's operators of networks, said with this package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import jitdnn as jd
from torch_adapters import ADAPTERS, Adapter, Refused, Result, adapter, batched, grown, sum_to

# ---- softmax and losses


def _softmax(algorithm: str = "accurate", sign: float = 1.0) -> Adapter:
    def run(x: Any, dim: int, dtype: Any = None) -> Result:
        given = jd.transform(x, dtype=x.dtype if dtype is None else dtype, alpha=sign)
        y = jd.softmax(given, dim, algorithm)

        def gradients(dy: Any) -> Sequence[Any]:
            return [jd.transform(jd.softmax_backward(dy, y, dim, algorithm), dtype=x.dtype, alpha=sign)]

        return y, gradients

    return grown(run)


ADAPTERS["softmax"], ADAPTERS["log_softmax"] = _softmax(), _softmax("log")
ADAPTERS["nn.functional.softmin"] = _softmax(sign=-1.0)


@adapter("nn.functional.cross_entropy")
def _cross_entropy(
    x: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Result:  # fmt: skip
    if x.ndim == 1:  # one example
        y, one = _cross_entropy(
            x[None], target[None], weight, None, ignore_index, None, reduction, label_smoothing
        )
        shape = x.shape[1:] if reduction == "none" else ()

        def without(dy: Any) -> Sequence[Any]:
            first, *others = one(dy.reshape(y.shape))  # type: ignore[misc]
            return [first[0], *others]

        return y.reshape(shape), without
    options = {
        "weight": weight, "ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction,
    }  # fmt: skip
    loss, *saved = jd.cross_entropy(x, target, return_saved=True, **options)
    shape = () if reduction != "none" else loss.shape

    def gradients(dy: Any) -> Sequence[Any]:
        dloss = dy.reshape(loss.shape)
        dx = jd.cross_entropy_backward(dloss, x, target, *saved, **options)
        return [dx] + [None] * (target.is_floating_point() + (weight is not None))

    return loss.reshape(shape), gradients


@adapter("nn.functional.ctc_loss")
def _ctc_loss(
    x: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Result:  # fmt: skip
    lengths = [torch.as_tensor(value, dtype=torch.int64) for value in (input_lengths, target_lengths)]
    rest = (targets, *lengths, blank, reduction, zero_infinity)
    loss = jd.ctc_loss(x, *rest)
    return loss.reshape(loss.shape if reduction == "none" else ()), lambda dy: [
        jd.ctc_loss_backward(dy.reshape(loss.shape), x, *rest)
    ]


# ---- convolution and products


def _pads(padding: Any, x: Any, w: Any, dilation: Any) -> Any:
    if padding == "valid":
        return 0
    if padding == "same":
        space = w.shape[2:]
        steps = (dilation,) * len(space) if isinstance(dilation, int) else dilation
        reach = [d * (k - 1) for d, k in zip(steps, space, strict=True)]
        return [(r // 2, r - r // 2) for r in reach]
    return tuple(padding) if isinstance(padding, Sequence) else padding


@adapter("nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d")
@batched(None)
def _conv(
    x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Result:
    rest = {
        "stride": stride,
        "padding": _pads(padding, x, w, dilation),
        "dilation": dilation,
        "groups": groups,
    }

    def gradients(dy: Any) -> Sequence[Any]:
        found = [
            jd.conv_backward_data(dy, w, x.shape, **rest),
            jd.conv_backward_filter(x, dy, w.shape, **rest),
        ]
        return found if bias is None else [*found, jd.conv_backward_bias(dy)]

    return jd.conv(x, w, bias, **rest), gradients


@adapter("nn.functional.conv_transpose1d", "nn.functional.conv_transpose2d", "nn.functional.conv_transpose3d")
@batched(None)
def _conv_transpose(
    x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1,
    dilation: Any = 1,
) -> Result:  # fmt: skip
    rest = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y = jd.conv_transpose(x, w, output_padding=output_padding, **rest)
    if bias is not None:
        y = jd.add(y, bias.reshape(-1, *(1,) * (x.ndim - 2)))

    def gradients(dy: Any) -> Sequence[Any]:
        found = [jd.conv(dy, w, **rest), jd.conv_backward_filter(dy, x, w.shape, **rest)]
        return found if bias is None else [*found, jd.conv_backward_bias(dy)]

    return y, gradients


# ---- pooling


def _each(rank: int, *values: Any) -> list[tuple[Any, ...]]:
    """One number for every axis of space, where one may stand for all."""
    listed = [tuple(v) if isinstance(v, Sequence) else (v,) for v in values]
    return [v * rank if len(v) == 1 else v for v in listed]


def _max_pool(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Result:  # fmt: skip
    window, steps, pads, apart = _each(x.ndim - 2, kernel_size, stride or kernel_size, padding, dilation)
    rest = (window, steps, pads, "ceil" if ceil_mode else "floor", apart)
    if return_indices:
        return jd.max_pool(x, *rest, return_indices=True), None
    y = jd.max_pool(x, *rest)
    return y, lambda dy: [jd.max_pool_backward(dy, x, y, *rest)]


def _avg_pool(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Result:  # fmt: skip
    window, steps, pads = _each(x.ndim - 2, kernel_size, stride or kernel_size, padding)
    alpha = 1.0
    if divisor_override is not None:
        if ceil_mode:
            raise Refused("another divisor of windows that the border cuts")
        alpha, count_include_pad = math.prod(window) / divisor_override, True
    rest = (window, steps, pads, count_include_pad, "ceil" if ceil_mode else "floor")
    return jd.avg_pool(x, *rest, alpha=alpha), lambda dy: [
        jd.avg_pool_backward(dy, x.shape, *rest, alpha=alpha)
    ]


def _windows(x: Any, size: Any) -> Any:
    """How many windows along each axis: None leaves an axis as it is."""
    (each,) = _each(x.ndim - 2, size)
    return tuple(extent if given is None else given for given, extent in zip(each, x.shape[2:], strict=True))


def _adaptive_avg_pool(x: Any, output_size: Any) -> Result:
    y = jd.adaptive_avg_pool(x, _windows(x, output_size))
    return y, lambda dy: [jd.adaptive_avg_pool_backward(dy, x.shape)]


def _adaptive_max_pool(x: Any, output_size: Any, return_indices: bool = False) -> Result:
    windows = _windows(x, output_size)
    if return_indices:
        return jd.adaptive_max_pool(x, windows, return_indices=True), None
    y = jd.adaptive_max_pool(x, windows)
    return y, lambda dy: [jd.adaptive_max_pool_backward(dy, x, y)]


def _max_unpool(
    x: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Result:
    rank = x.ndim - 2
    each = _each(rank, kernel_size, stride or kernel_size, padding)
    space = [(n - 1) * s - 2 * p + k for n, k, s, p in zip(x.shape[2:], *each, strict=True)]
    if output_size is not None:
        space = list(output_size)[-rank:]
    return jd.max_unpool(x, indices, space), lambda dy: [jd.max_unpool_backward(dy, indices)]


for _rank in (1, 2, 3):
    for _name, _images, _pool in (
        ("max_pool", 1, _max_pool),
        ("avg_pool", 1, _avg_pool),
        ("adaptive_avg_pool", 1, _adaptive_avg_pool),
        ("adaptive_max_pool", 1, _adaptive_max_pool),
        ("max_unpool", 2, _max_unpool),
    ):
        ADAPTERS[f"nn.functional.{_name}{_rank}d"] = batched(_rank, _images)(_pool)


# ---- normalization


def _of(found: Any, *parameters: Any) -> list[Any]:
    """The gradient of x, and those of the parameters that are there."""
    dx, *others = found if isinstance(found, tuple) else (found,)
    filled = [*others, *(None for _ in parameters)]
    return [dx, *(g for g, p in zip(filled, parameters, strict=False) if p is not None)]


@adapter("nn.functional.batch_norm")
def _batch_norm(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Result:  # fmt: skip
    states = [state for state in (running_mean, running_var) if state is not None]
    if not training:
        return jd.batch_norm_inference(x, weight, bias, running_mean, running_var, epsilon=eps), None
    y, mean, rstd, *_ = jd.batch_norm(
        x, weight, bias, running_mean, running_var, factor=momentum, epsilon=eps, save=True
    )

    def gradients(dy: Any) -> Sequence[Any]:
        found = jd.batch_norm_backward(dy, x, weight, mean, rstd, wants_bias=bias is not None)
        dx, *others = _of(found, weight, bias)
        return [dx, *(None for _ in states), *others]

    return y, gradients


@adapter("nn.functional.layer_norm")
def _layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Result:
    axis = -len(normalized_shape)
    y, mean, rstd = jd.layer_norm(x, weight, bias, axis=axis, epsilon=eps, save=True)

    def gradients(dy: Any) -> Sequence[Any]:
        found = jd.layer_norm_backward(dy, x, weight, mean, rstd, axis=axis, wants_bias=bias is not None)
        return _of(found, weight, bias)

    return y, gradients


@adapter("nn.functional.rms_norm")
def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Result:
    axis = -len(normalized_shape)
    epsilon = torch.finfo(x.dtype).eps if eps is None else eps
    y, rstd = jd.rms_norm(x, weight, axis=axis, epsilon=epsilon, save=True)
    return y, lambda dy: _of(jd.rms_norm_backward(dy, x, weight, rstd, axis=axis), weight)


@adapter("nn.functional.group_norm")
def _group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Result:
    y, mean, rstd = jd.group_norm(x, num_groups, weight, bias, epsilon=eps, save=True)

    def gradients(dy: Any) -> Sequence[Any]:
        found = jd.group_norm_backward(
            dy, x, weight, mean, rstd, groups=num_groups, wants_bias=bias is not None
        )
        return _of(found, weight, bias)

    return y, gradients


@adapter("nn.functional.instance_norm")
def _instance_norm(
    x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Result:  # fmt: skip
    if not use_input_stats:
        return jd.batch_norm_inference(x, weight, bias, running_mean, running_var, epsilon=eps), None
    states = [state for state in (running_mean, running_var) if state is not None]
    if states:
        # every channel of every image is a channel of its own; PyTorch keeps the mean of what they update
        count, channels = x.shape[:2]
        each = [state.repeat(count) for state in states]
        jd.batch_norm(x.reshape(1, count * channels, *x.shape[2:]), None, None, *each, factor=momentum)
        for state, updated in zip(states, each, strict=True):
            jd.reduce(updated.reshape(count, channels), "avg", 0, out=state)
    y, mean, rstd = jd.instance_norm(x, weight, bias, epsilon=eps, save=True)

    def gradients(dy: Any) -> Sequence[Any]:
        found = jd.instance_norm_backward(dy, x, weight, mean, rstd, wants_bias=bias is not None)
        dx, *others = _of(found, weight, bias)
        return [dx, *(None for _ in states), *others]

    return y, gradients


@adapter("nn.functional.local_response_norm")
def _lrn(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Result:
    # PyTorch's windows of an even size lean to the other side: the channels are taken backwards
    turned, rest = (lambda t: t if size % 2 else t.flip(1)), (size, alpha, beta, k)
    y = turned(jd.lrn(turned(x.detach()), *rest))
    return y, lambda dy: [turned(jd.lrn_backward(turned(dy), turned(x.detach()), *rest))]


# ---- space


@adapter("nn.functional.interpolate", "nn.functional.upsample_nearest")
def _interpolate(
    x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Result:  # fmt: skip
    if antialias:
        raise Refused("antialiasing")
    coordinates, rounding = "align_corners" if align_corners else "half_pixel", "round_prefer_floor"
    if mode == "nearest":
        coordinates, rounding = "asymmetric", "floor"
    elif mode == "nearest-exact":
        rounding = "round_prefer_ceil"
    ours = {"nearest-exact": "nearest", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
    rest = {"mode": ours.get(mode, mode), "coordinates": coordinates, "rounding": rounding}
    if scale_factor is not None and recompute_scale_factor:
        each = (scale_factor,) * (x.ndim - 2) if isinstance(scale_factor, (int, float)) else scale_factor
        size = [math.floor(extent * factor) for extent, factor in zip(x.shape[2:], each, strict=True)]
        scale_factor = None
    if mode == "area":
        if size is None:
            each = (scale_factor,) * (x.ndim - 2) if isinstance(scale_factor, (int, float)) else scale_factor
            size = [math.floor(extent * factor) for extent, factor in zip(x.shape[2:], each, strict=True)]
        return _adaptive_avg_pool(x, size)
    scale = tuple(scale_factor) if isinstance(scale_factor, Sequence) else scale_factor
    y = jd.resize(x, size, scale, **rest)
    return y, lambda dy: [jd.resize_backward(dy, x.shape, scale, **rest)]


@adapter("nn.functional.upsample_bilinear")
def _upsample_bilinear(x: Any, size: Any = None, scale_factor: Any = None) -> Result:
    return _interpolate(x, size, scale_factor, "bilinear", align_corners=True)


@adapter("nn.functional.grid_sample")
def _grid_sample(
    x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Result:
    rest = ({"bilinear": "linear"}.get(mode, mode), padding_mode, bool(align_corners))
    return jd.grid_sample(x, grid, *rest), lambda dy: jd.grid_sample_backward(dy, x, grid, *rest)


# ---- embedding and attention


@adapter("nn.functional.embedding")
def _embedding(
    weight: Any, indices: Any, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Result:  # fmt: skip
    # the samples have the table first
    if max_norm is not None:
        raise Refused("rows that are renormalized in place")
    if scale_grad_by_freq or sparse:
        raise Refused("gradients that are scaled by frequency, or sparse")
    flat, skipped = indices.reshape(-1), None if padding_idx is None else padding_idx % weight.shape[0]
    shape = (*indices.shape, weight.shape[1])

    def gradients(dy: Any) -> Sequence[Any]:
        rows = dy.reshape(flat.shape[0], weight.shape[1])
        return [jd.embedding_backward(rows, flat, weight.shape[0], skipped)]

    return jd.embedding(flat, weight).reshape(shape), gradients


@adapter("nn.functional.scaled_dot_product_attention")
def _attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Result:  # fmt: skip
    if min(q.ndim, k.ndim) == 3:
        # one sequence of many heads, or one that is the same in all of a batch
        full = [torch.broadcast_shapes(t.shape, (*k.shape[:-3], 1, 1, 1), (1, 1, 1, 1)) for t in (q, k, v)]
        grown = [t.expand(shape) for t, shape in zip((q, k, v), full, strict=True)]
        y, whole = _attention(*grown, attn_mask, dropout_p, is_causal, scale, enable_gqa)

        def without(dy: Any) -> Sequence[Any]:
            first = whole(dy.reshape(y.shape))  # type: ignore[misc]
            return [*(sum_to(g, t.shape) for g, t in zip(first, (q, k, v), strict=False)), *first[3:]]

        return y.reshape(y.shape[4 - max(q.ndim, k.ndim) :]), without
    rest = {"mask": attn_mask, "causal": is_causal, "scale": scale}
    y, lse = jd.attention(q, k, v, dropout=dropout_p, return_lse=True, **rest)
    others = [None] * (attn_mask is not None and attn_mask.is_floating_point())
    return y, lambda dy: [*jd.attention_backward(dy, q, k, v, y, lse, **rest), *others]
