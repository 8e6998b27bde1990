"""What batch normalization and its later names have in common: the arrays, and the calls that compute."""

from __future__ import annotations

from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.frameworks.cudnn_api.enums import CUDNN_BN_MIN_EPSILON
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import blend, real
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import tensor_of
from jitdnn.tensor import Array, TensorDescriptor

Scales = tuple[Any, Any]
Described = tuple[Any, Any]
_HALF = ("f16", "bf16")


class Given(NamedTuple):
    """A call's handle, whether there is one mean for each channel, and x."""

    handle: Any
    is_spatial: bool
    x: TensorDescriptor

    @property
    def mode(self) -> str:
        return "spatial" if self.is_spatial else "per_activation"


def parameter_tensor(x: TensorDescriptor, is_spatial: bool) -> TensorDescriptor:
    """The tensor of scale, bias, mean and variance for an x."""
    shape = parameter_shape(x, is_spatial)
    return TensorDescriptor.packed(shape, "f32" if x.dtype in _HALF else x.dtype)


def parameter_shape(x: TensorDescriptor, is_spatial: bool) -> tuple[int, ...]:
    return (1, x.shape[1], *([1] * (len(x.shape) - 2) if is_spatial else x.shape[2:]))


def _parameter(given: Given, tensor: TensorDescriptor, array: Any, name: str, writes: bool = False) -> Array:
    """A parameter without its axis of images, and without those of space if there is one for each channel."""
    expected = parameter_shape(given.x, given.is_spatial)
    if tensor.shape != expected:
        raise BadParam(
            f"the descriptor of {name} has extents {tensor.shape}: with x {given.x.shape} they must be {expected}"
        )
    end = 2 if given.is_spatial else len(tensor.shape)
    return bound(
        array, TensorDescriptor(tensor.shape[1:end], tensor.strides[1:end], tensor.dtype), name, writes
    )


def _pair(
    given: Given, tensor: TensorDescriptor, arrays: tuple[Any, Any], names: tuple[str, str], writes: bool
) -> tuple[Array, Array] | None:
    """Two parameters that are given together or not at all."""
    if all(array is None for array in arrays):
        return None
    if any(array is None for array in arrays):
        raise BadParam(f"{names[0]} and {names[1]}: give both, or None for both")
    one, other = (
        _parameter(given, tensor, array, name, writes) for array, name in zip(arrays, names, strict=True)
    )
    return one, other


def _epsilon(epsilon: Any) -> float:
    return real(epsilon, "epsilon", CUDNN_BN_MIN_EPSILON)


def inference(
    given: Given,
    scales: Scales,
    x: Any,
    y: Described,
    parameters: tuple[TensorDescriptor, Any, Any],
    statistics: tuple[TensorDescriptor, Any, Any],
    epsilon: Any,
    z: Described | None = None,
    activation: str = "identity",
) -> None:
    """Normalize by statistics that are given."""
    handle = inner(given.handle)
    shape, scale, bias = parameters
    moments, mean, variance = statistics
    jd.batch_norm_inference(
        bound(x, given.x, "x"),
        _parameter(given, shape, scale, "scale"),
        _parameter(given, shape, bias, "bias"),
        _parameter(given, moments, mean, "estimatedMean"),
        _parameter(given, moments, variance, "estimatedVariance"),
        mode=given.mode,
        epsilon=_epsilon(epsilon),
        z=None if z is None else bound(z[1], tensor_of(z[0], "zDesc"), "z"),
        activation=activation,
        **blend(*scales),
        out=bound(y[1], tensor_of(y[0], "yDesc"), "y", True),
        handle=handle,
    )


def forward(
    given: Given,
    scales: Scales,
    x: Any,
    z: Described | None,
    y: Described,
    parameters: tuple[TensorDescriptor, Any, Any],
    factor: Any,
    running: tuple[TensorDescriptor, Any, Any],
    epsilon: Any,
    saved: tuple[Any, Any],
    activation: str,
) -> None:
    """Normalize by x's own statistics."""
    handle = inner(given.handle)
    shape, scale, bias = parameters
    moments = running[0]
    states = _pair(given, moments, running[1:], ("resultRunningMean", "resultRunningVariance"), True)
    kept = _pair(given, moments, saved, ("resultSaveMean", "resultSaveInvVariance"), True)
    target = bound(y[1], tensor_of(y[0], "yDesc"), "y", True)
    jd.batch_norm(
        bound(x, given.x, "x"),
        _parameter(given, shape, scale, "scale"),
        _parameter(given, shape, bias, "bias"),
        *(states or (None, None)),
        mode=given.mode,
        factor=real(factor, "exponentialAverageFactor", 0.0, 1.0),
        epsilon=_epsilon(epsilon),
        z=None if z is None else bound(z[1], tensor_of(z[0], "zDesc"), "z"),
        activation=activation,
        save=kept is not None,
        **blend(*scales),
        out=target if kept is None else (target, *kept),
        handle=handle,
    )


def backward(
    given: Given,
    data: Scales,
    parameter: Scales,
    x: Any,
    dy: Described,
    dx: Described,
    parameters: tuple[TensorDescriptor, Any, Any, Any],
    epsilon: Any,
    saved: tuple[TensorDescriptor, Any, Any],
    activation: str = "identity",
    y: Described = (None, None),
    dz: Described | None = None,
) -> None:
    """The gradients, each blended by its own pair of factors; dz is written as it is."""
    handle = inner(given.handle)
    shape, scale, dscale, dbias = parameters
    source, slope = bound(x, given.x, "x"), bound(dy[1], tensor_of(dy[0], "dyDesc"), "dy")
    small = _epsilon(epsilon)
    pair = _pair(given, saved[0], saved[1:], ("savedMean", "savedInvVariance"), False)
    moments: tuple[Any, Any]
    if pair is not None:
        moments = pair
    else:
        moments = jd.batch_norm(source, mode=given.mode, epsilon=small, save=True, handle=handle)[1:]
    outs: list[Array] = [
        bound(dx[1], tensor_of(dx[0], "dxDesc"), "dx", True),
        _parameter(given, shape, dscale, "dBnScaleResult", True),
        _parameter(given, shape, dbias, "dBnBiasResult", True),
    ]
    blends = [blend(*data), blend(*parameter), blend(*parameter)]
    if dz is not None:
        outs.append(bound(dz[1], tensor_of(dz[0], "dzDesc"), "dz", True))
        blends.append({"alpha": 1.0, "beta": 0.0})
    # written at once where they are scaled alike; what is not is made first and blended in behind
    common: dict[str, Any] = (
        blends[0] if all(blend == blends[0] for blend in blends) else {"alpha": 1.0, "beta": 0.0}
    )
    found = jd.batch_norm_backward(
        slope,
        source,
        _parameter(given, shape, scale, "bnScale"),
        *moments,
        y=bound(y[1], tensor_of(y[0], "yDesc"), "y") if activation != "identity" else None,
        mode=given.mode,
        activation=activation,
        wants_z=dz is not None,
        **common,
        out=tuple(out if factors == common else None for out, factors in zip(outs, blends, strict=True)),
        handle=handle,
    )
    for gradient, out, factors in zip(found, outs, blends, strict=True):
        if factors != common:
            jd.add(gradient, **factors, out=out, handle=handle)
