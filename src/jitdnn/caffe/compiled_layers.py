"""Layers in phase TEST as functions of operands, for graphs (graph/): what each makes of its bottoms, without blobs.

A function takes the layer, whose `reshape` has seen these shapes, and the bottoms in order. It gives the tops in order,
operands or arrays that are known. Layers that are not in the table, and those that raise `Untraceable`, are run by the
host.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitdnn.graph import primitives as jd
from jitdnn.graph.operand import Operand, Untraceable
from jitdnn.rtcg.expression import Expression, finish, trace
from jitdnn.rtcg.expression import Graph as Formula
from jitdnn.rtcg.functions import where

Function = Callable[..., tuple[Any, ...]]


def _pointwise(expression: Expression, *arrays: Any, is_affine: bool = False) -> Any:
    x = next(array for array in arrays if isinstance(array, Operand))
    more = {"is_affine": True} if is_affine else {}
    return x.tracer.pointwise(expression, arrays, x.dtype, **more)


def _wide(array: Any, rank: int) -> Any:
    """A vector of channels, to be broadcast to images of `rank` axes."""
    return array.reshape(-1, *(1,) * (rank - 2))


_sum = trace(lambda v, b: v + b)
_product = trace(lambda v, a: v * a)
_affine = trace(lambda v, a, b: v * a + b)


def _windowed(layer: Any, xs: Sequence[Any], function: Callable[..., Any]) -> tuple[Any, ...]:
    """Each bottom by the same weights, with its axes before that of the channels as one."""
    how = {name: layer.arguments[name] for name in ("stride", "padding", "dilation", "groups")}
    results = []
    for x in xs:
        images = x if layer.axis == 1 else x.reshape(-1, *x.shape[layer.axis :])
        y = function(images, layer.weights[0].data, **how)
        if len(layer.weights) == 2:
            y = _pointwise(_sum, y, _wide(layer.weights[1].data, len(y.shape)))
        results.append(y if layer.axis == 1 else y.reshape(*x.shape[: layer.axis], *y.shape[1:]))
    return tuple(results)


def _convolution(layer: Any, *xs: Any) -> tuple[Any, ...]:
    return _windowed(layer, xs, jd.conv)


def _deconvolution(layer: Any, *xs: Any) -> tuple[Any, ...]:
    return _windowed(layer, xs, jd.conv_transpose)


def _inner_product(layer: Any, x: Any) -> tuple[Any, ...]:
    w = layer.weights[0].data
    y = jd.matmul(x.reshape(layer.rows, layer.columns), w if layer.is_transposed else w.T)
    if len(layer.weights) == 2:
        y = _pointwise(_sum, y, layer.weights[1].data)
    return (y.reshape(*x.shape[: layer.axis], layer.outputs),)


def _pooling(layer: Any, x: Any) -> tuple[Any, ...]:
    if layer.method == "AVE":
        return (jd.avg_pool(x, layer.window, count_include_pad=True, **layer.arguments),)
    if layer.method != "MAX":
        raise Untraceable(f"pooling by {layer.method}")
    if len(layer.parameter.top) == 1:
        return (jd.max_pool(x, layer.window, **layer.arguments),)
    y, numbers = jd.max_pool(x, layer.window, return_indices="i32", **layer.arguments)
    return y, numbers.astype(x.dtype)


def _activation(layer: Any, x: Any) -> tuple[Any, ...]:
    return (_pointwise(trace(lambda v: layer.function(v)), x),)


def _formula(layer: Any, x: Any) -> tuple[Any, ...]:
    numbers = [np.full((), number, x.dtype) for number in layer.constants]
    return (_pointwise(layer.function.formula.results[0], x, *numbers),)


def _power(layer: Any, x: Any) -> tuple[Any, ...]:
    if layer.is_constant:
        return (np.full(x.shape, layer.constant, x.dtype),)
    if layer.is_linear:
        _, scale, shift = layer.constants
        return (_pointwise(trace(lambda v: scale * v + shift), x),)
    return _formula(layer, x)


def _prelu(layer: Any, x: Any) -> tuple[Any, ...]:
    slope = _wide(layer.weights[0].data.reshape(-1), len(x.shape))
    return (_pointwise(trace(lambda v, s: where(v > 0.0, v, s * v)), x, slope),)


def _batch_norm(layer: Any, x: Any) -> tuple[Any, ...]:
    if not layer.is_global or len(x.shape) < 2:
        raise Untraceable("statistics of the batch")
    blobs = [blob.data for blob in layer.weights]

    def affine() -> tuple[Any, Any]:
        means, variances, weight = (np.asarray(blob, np.float64) for blob in blobs)
        share = 0.0 if weight[0] == 0 else 1.0 / weight[0]
        with np.errstate(all="ignore"):
            factor = 1.0 / np.sqrt(variances * share + layer.epsilon)
            summand = -means * share * factor
        return factor.astype(x.dtype), summand.astype(x.dtype)

    # made once for all shapes, so that what is folded into filters is
    factor, summand = x.tracer.memo.get("caffe batch norm", blobs, affine, layer.epsilon)
    rank = len(x.shape)
    return (_pointwise(_affine, x, _wide(factor, rank), _wide(summand, rank), is_affine=True),)


def _beside(layer: Any, operand: Any) -> Any:
    """An operand of some axes of a bottom, to be broadcast to it."""
    return operand.reshape(*operand.shape, *(1,) * layer.axes_behind)


def _scale(layer: Any, x: Any, *given: Any) -> tuple[Any, ...]:
    factor = given[0] if given else layer.weights[0].data
    bias = None if layer.bias is None else layer.bias.data
    is_constant = isinstance(factor, np.ndarray)
    if is_constant and factor.ndim == 1 and layer.axes_behind == len(x.shape) - 2:
        # of each channel: may become part of a filter, and so it has a summand
        summand = bias
        if summand is None:
            summand = x.tracer.memo.get("no summand", (factor,), lambda: np.zeros_like(factor))
        factor, summand = _beside(layer, factor), _beside(layer, summand)
        return (_pointwise(_affine, x, factor, summand, is_affine=True),)
    factor = _beside(layer, factor)
    if bias is None:
        return (_pointwise(_product, x, factor),)
    return (_pointwise(_affine, x, factor, _beside(layer, bias)),)


def _bias(layer: Any, x: Any, *given: Any) -> tuple[Any, ...]:
    return (_pointwise(_sum, x, _beside(layer, given[0] if given else layer.weights[0].data)),)


def _axpy(layer: Any, a: Any, x: Any, y: Any) -> tuple[Any, ...]:
    factor = a.reshape(*x.shape[:2], *(1,) * (len(x.shape) - 2))
    return (_pointwise(trace(lambda v, f, w: f * v + w), x, factor, y),)


def _eltwise(layer: Any, *xs: Any) -> tuple[Any, ...]:
    def added(*values: Any) -> Any:
        terms = [v if f == 1.0 else f * v for v, f in zip(values, layer.factors, strict=True)]
        return functools.reduce(lambda a, b: a + b, terms)

    def multiplied(*values: Any) -> Any:
        return functools.reduce(lambda a, b: a * b, values)

    def greatest(*values: Any) -> Any:
        first = where(values[0] > values[1], values[0], values[1])
        return functools.reduce(lambda y, v: where(v > y, v, y), values[2:], first)

    how = {"SUM": added, "PROD": multiplied, "MAX": greatest}[layer.operation]
    graph = Formula([f"x{number}" for number in range(len(xs))])
    made = how(*(graph.input(number) for number in range(len(xs))))
    return (_pointwise(finish(graph, made), *xs),)


def _concat(layer: Any, *xs: Any) -> tuple[Any, ...]:
    return (jd.concat(list(xs), axis=layer.axis),)


def _slice(layer: Any, x: Any) -> tuple[Any, ...]:
    axis = layer.axis_of("slice_param", "slice_dim", len(x.shape))
    inner = int(np.prod(x.shape[axis + 1 :]))
    ends = [0, *itertools.accumulate(width // inner for width in layer.widths)] if inner else None
    if ends is None:
        raise Untraceable("parts without elements")
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(start, end))] for start, end in itertools.pairwise(ends))


def _crop(layer: Any, x: Any, _: Any) -> tuple[Any, ...]:
    return (x[layer.part],)


def _tile(layer: Any, x: Any) -> tuple[Any, ...]:
    outer, times, inner = layer.view
    axis = layer.front_axis(layer.parameter.tile_param.axis, len(x.shape))
    shape = (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :])
    return (x.reshape(outer, 1, inner).broadcast_to((outer, times, inner)).reshape(shape),)


def _permute(layer: Any, x: Any) -> tuple[Any, ...]:
    return (x.transpose(layer.order),)


def _shuffle(layer: Any, x: Any) -> tuple[Any, ...]:
    return (x.reshape(layer.view).transpose(0, 2, 1, 3).reshape(x.shape),)


def _reshape(layer: Any, x: Any) -> tuple[Any, ...]:
    return (x.reshape(layer.top_shape(x.shape)),)


def _split(layer: Any, x: Any) -> tuple[Any, ...]:
    return (x,) * len(layer.parameter.top)


def _softmax(layer: Any, x: Any) -> tuple[Any, ...]:
    return (jd.softmax(x, axis=layer.axis, algorithm="accurate"),)


def _lrn(layer: Any, x: Any) -> tuple[Any, ...]:
    return (jd.lrn(x, layer.size, layer.factor, layer.exponent, layer.offset, layer.mode),)


def _interp(layer: Any, x: Any) -> tuple[Any, ...]:
    inside = x[layer.part] if layer.cuts else x
    return (jd.resize(inside, layer.size, mode="linear", coordinates="align_corners"),)


def _normalize(layer: Any, x: Any) -> tuple[Any, ...]:
    images = x.reshape(layer.view)
    squares = _pointwise(trace(lambda v: v * v), images)
    total = jd.reduce(squares, "add", axes=layer.axes, keepdims=True)
    eps, w = layer.parameter.norm_param.eps, layer.weights[0].data.reshape(1, -1, 1)
    norm = _pointwise(trace(lambda v: jd.sqrt(v + eps)), total)
    return (_pointwise(trace(lambda v, f, n: v / n * f), images, w, norm).reshape(x.shape),)


def _mvn(layer: Any, x: Any) -> tuple[Any, ...]:
    rows = x.reshape(layer.view)
    mean = jd.reduce(rows, "avg", axes=1, keepdims=True)
    y = _pointwise(trace(lambda v, m: v - m), rows, mean)
    if layer.is_divided:
        eps = layer.epsilon
        variance = jd.reduce(_pointwise(trace(lambda v: v * v), y), "avg", axes=1, keepdims=True)
        y = _pointwise(trace(lambda v, s: v / (jd.sqrt(s) + eps)), y, variance)
    return (y.reshape(x.shape),)


def _reduction(layer: Any, x: Any) -> tuple[Any, ...]:
    rows, factor = x.reshape(layer.view), layer.factor
    if layer.operation == "SUMSQ":
        rows = _pointwise(trace(lambda v: v * v), rows)
    total = jd.reduce(rows, "norm1" if layer.operation == "ASUM" else "add", axes=1)
    y = _pointwise(trace(lambda v: v * factor), total)
    axis = layer.front_axis(layer.parameter.reduction_param.axis, len(x.shape))
    return (y.reshape(x.shape[:axis]),)


def _dropout(layer: Any, x: Any) -> tuple[Any, ...]:
    if layer.is_training:
        raise Untraceable("values are drawn")
    return (x,)


FUNCTIONS: dict[str, Function] = {
    "AbsVal": _formula, "Axpy": _axpy, "BNLL": _formula, "BatchNorm": _batch_norm, "Bias": _bias, "Clip": _formula,
    "Concat": _concat, "Convolution": _convolution, "ConvolutionDepthwise": _convolution, "Crop": _crop,
    "Deconvolution": _deconvolution, "DepthwiseConvolution": _convolution, "Dropout": _dropout, "ELU": _activation,
    "Eltwise": _eltwise, "Exp": _formula, "Flatten": _reshape, "InnerProduct": _inner_product, "Interp": _interp,
    "LRN": _lrn, "Log": _formula, "MVN": _mvn, "Normalize": _normalize, "PReLU": _prelu, "Permute": _permute,
    "Pooling": _pooling, "Power": _power, "ReLU": _activation, "ReLU6": _activation, "Reduction": _reduction,
    "Reshape": _reshape, "Scale": _scale, "ShuffleChannel": _shuffle, "Sigmoid": _activation, "Slice": _slice,
    "Softmax": _softmax, "Split": _split, "Swish": _formula, "TanH": _activation, "Threshold": _formula, "Tile": _tile,
}  # fmt: skip
