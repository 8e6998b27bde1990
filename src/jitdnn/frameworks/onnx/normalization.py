"""Normalization: batch, layer, RMS, group, instance, mean and variance, local response."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.spatial import Ints
from jitdnn.frameworks.onnx.views import chosen_axes, element_type
from jitdnn.graph import primitives as jd

# added to the variance: ONNX adds 1e-9 to the deviation
_MVN_EPSILON = 1e-18


def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    /,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    is_test: int = 0,
    site: Site,
) -> Any:
    """In training ONNX averages the variance that divides by m, and this library that which divides by m - 1;
    so its own are asked for alone (factor 1), corrected and averaged here."""
    if site.version < 14 and (any(site.wanted[1:]) or (site.version < 7 and not is_test)):
        raise site.refuse("training in the form of versions before 14 is not covered")
    mode = "spatial" if spatial else "per_activation"
    if not training_mode:
        return jd.batch_norm_inference(x, scale, bias, mean, variance, mode=mode, epsilon=epsilon)
    own = np.zeros((2, *mean.shape), mean.dtype)
    y = jd.batch_norm(x, scale, bias, own[0], own[1], mode=mode, factor=1.0, epsilon=epsilon)
    count = x.size // mean.size
    kept = 1.0 - momentum
    new_mean = jd.add(mean, alpha=momentum)
    jd.add(own[0], alpha=kept, beta=1.0, out=new_mean)
    new_variance = jd.add(variance, alpha=momentum)
    # of a single element there is no variance
    if count > 1:
        jd.add(own[1], alpha=kept * (count - 1) / count, beta=1.0, out=new_variance)
    return y, new_mean, new_variance


def layer_normalization(
    x: Array,
    scale: Array,
    bias: Array | None = None,
    /,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    site: Site,
) -> Any:
    weight, offset = (_filled(parameter, x.shape[axis:]) for parameter in (scale, bias))
    if not (site.wants(1) or site.wants(2)):
        return jd.layer_norm(x, weight, offset, axis=axis, epsilon=epsilon)
    y, mean, deviation = jd.layer_norm(x, weight, offset, axis=axis, epsilon=epsilon, save=True)
    kept = element_type(stash_type)
    return y, mean.astype(kept, copy=False), deviation.astype(kept, copy=False)


def rms_normalization(
    x: Array, scale: Array, /, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    return jd.rms_norm(x, _filled(scale, x.shape[axis:]), axis=axis, epsilon=epsilon)


def _filled(parameter: Array | None, shape: tuple[int, ...]) -> Array | None:
    """A parameter that ONNX lets be broadcast, in its full shape."""
    if parameter is None or parameter.shape == shape:
        return parameter
    return np.ascontiguousarray(np.broadcast_to(parameter, shape))


def group_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    /,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
    site: Site,
) -> Any:
    """Before version 21 there is a parameter for every group, since then for every channel."""
    if site.version < 21:
        scale, bias = (np.repeat(parameter, x.shape[1] // num_groups) for parameter in (scale, bias))
    return jd.group_norm(x, num_groups, scale, bias, epsilon=epsilon)


def instance_normalization(x: Array, scale: Array, bias: Array, /, *, epsilon: float = 1e-5) -> Any:
    return jd.instance_norm(x, scale, bias, epsilon=epsilon)


def mean_variance_normalization(x: Array, /, *, axes: Ints = (0, 2, 3)) -> Any:
    """Layer normalization of the view whose last axes are the ones normalized over."""
    over = chosen_axes(axes, x.ndim)
    order = (*(axis for axis in range(x.ndim) if axis not in over), *over)
    y = jd.layer_norm(x.transpose(order), axis=x.ndim - len(over), epsilon=_MVN_EPSILON)
    return y.transpose(np.argsort(order))


def local_response_normalization(
    x: Array, /, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Any:
    return jd.lrn(x, size, alpha, beta, bias)


def lp_normalization(x: Array, /, *, axis: int = -1, p: int = 2, site: Site) -> Any:
    """Lines whose norm is 0 stay 0."""
    if p not in {1, 2}:
        raise site.refuse(f"p {p} is not covered")
    norm = jd.reduce(x, f"norm{p}", axis, keepdims=True)
    return pointwise(lambda v, n: jd.where(n == 0.0, 0.0, v / n), x, norm)


OPERATORS = table(
    BatchNormalization=batch_normalization,
    GroupNormalization=group_normalization,
    InstanceNormalization=instance_normalization,
    LRN=local_response_normalization,
    LayerNormalization=layer_normalization,
    LpNormalization=lp_normalization,
    MeanVarianceNormalization=mean_variance_normalization,
    RMSNormalization=rms_normalization,
)
