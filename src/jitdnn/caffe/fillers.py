"""How weights start: Caffe's fillers.

fan_in = count / shape[0] and fan_out = count / shape[1] for a weight of `count` elements; `variance_norm`
says which of them, or their mean, is the n of xavier and msra. Values are drawn in double precision and
rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported

Shape = tuple[int, ...]
Filler = Callable[[FillerParameter, Shape, np.random.Generator], NDArray[np.float64]]


def fill(parameter: FillerParameter, array: NDArray[np.floating], random: np.random.Generator) -> None:
    """Fill `array` (any shape, float32 or float64) in place as the filler says.

    Raises NotSupported for an unknown filler type, InvalidArgument and InvalidShape for values that it cannot
    use.
    """
    filler = _filler(parameter)
    if array.size:
        _require_shape(parameter, array.shape)
        array[...] = filler(parameter, array.shape, random)


def check(parameter: FillerParameter, shape: Shape) -> None:
    """Raise what `fill` raises for a weight of this shape, without one."""
    filler = _filler(parameter)
    if math.prod(shape):
        _require_shape(parameter, shape)
        # a small one with as many axes, of which those are equal that were: fillers look at nothing else
        extents = sorted(set(shape))
        filler(parameter, tuple(1 + extents.index(extent) for extent in shape), np.random.default_rng(0))


def _filler(parameter: FillerParameter) -> Filler:
    filler = FILLERS.get(parameter.type)
    if filler is None:
        raise NotSupported(
            f"unknown filler type {parameter.type!r}{parameter.where('type')}: there are {', '.join(FILLERS)}"
        ).at(parameter.place("type"))
    return filler


def _require_shape(parameter: FillerParameter, shape: Shape) -> None:
    if parameter.type == "bilinear" and (len(shape) != 4 or shape[2] != shape[3]):
        raise InvalidShape(
            f"bilinear filler: a weight of shape {shape} has no square kernel in its last two of 4 axes"
        )
    if parameter.type in ("xavier", "msra") and parameter.variance_norm != "FAN_IN" and len(shape) < 2:
        raise InvalidShape(f"a weight of shape {shape} has no fan-out: use variance_norm FAN_IN")


def _constant(parameter: FillerParameter, shape: Shape, random: np.random.Generator) -> NDArray[np.float64]:
    return np.full(shape, parameter.value)


def _uniform(parameter: FillerParameter, shape: Shape, random: np.random.Generator) -> NDArray[np.float64]:
    if parameter.min > parameter.max:
        raise InvalidArgument(f"uniform filler: min {parameter.min:g} is above max {parameter.max:g}")
    return random.uniform(parameter.min, parameter.max, shape)


def _gaussian(parameter: FillerParameter, shape: Shape, random: np.random.Generator) -> NDArray[np.float64]:
    """N(mean, std); `sparse` = k keeps each value with probability k / shape[0], and sets the others to 0."""
    if parameter.std < 0:
        raise InvalidArgument(f"gaussian filler: std {parameter.std:g} is negative")
    values = random.normal(parameter.mean, parameter.std, shape)
    if parameter.sparse >= 0:
        values *= random.random(shape) < parameter.sparse / shape[0]
    return values


def _xavier(parameter: FillerParameter, shape: Shape, random: np.random.Generator) -> NDArray[np.float64]:
    bound = math.sqrt(3 / _fan(parameter, shape))
    return random.uniform(-bound, bound, shape)


def _msra(parameter: FillerParameter, shape: Shape, random: np.random.Generator) -> NDArray[np.float64]:
    return random.normal(0, math.sqrt(2 / _fan(parameter, shape)), shape)


def _positive_unitball(
    parameter: FillerParameter, shape: Shape, random: np.random.Generator
) -> NDArray[np.float64]:
    """U(0, 1), then each row (all that belongs to one index of the first axis) divided by its sum."""
    rows = random.random(shape).reshape(shape[0], -1)
    rows /= rows.sum(axis=1, keepdims=True)
    return rows.reshape(shape)


def _bilinear(parameter: FillerParameter, shape: Shape, random: np.random.Generator) -> NDArray[np.float64]:
    """The kernel of an upsampling deconvolution, the same for every channel."""
    factor = math.ceil(shape[3] / 2)
    centre = (shape[3] - 1) / (2 * factor)
    tent = 1 - np.abs(np.arange(shape[3]) / factor - centre)
    return np.broadcast_to(np.outer(tent, tent), shape)


def _fan(parameter: FillerParameter, shape: Shape) -> float:
    count = math.prod(shape)
    fan_in = count / shape[0]
    if parameter.variance_norm == "FAN_IN":
        return fan_in
    fan_out = count / shape[1]
    return fan_out if parameter.variance_norm == "FAN_OUT" else (fan_in + fan_out) / 2


FILLERS: dict[str, Filler] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "xavier": _xavier,
    "msra": _msra,
    "positive_unitball": _positive_unitball,
    "bilinear": _bilinear,
}
