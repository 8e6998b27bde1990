"""Pooling: its descriptor, the extents of results, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.enums import CUDNN_DIM_MAX, cudnnNanPropagation_t, cudnnPoolingMode_t
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import (
    Descriptor,
    alive,
    blend,
    choice,
    destroy,
    number,
    several,
    value_of,
)
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import tensor_of
from jitdnn.tensor import Array, TensorDescriptor

_M = cudnnPoolingMode_t
_MAXIMA = (_M.CUDNN_POOLING_MAX, _M.CUDNN_POOLING_MAX_DETERMINISTIC)


class Windows(NamedTuple):
    """What a pooling descriptor is set to."""

    mode: cudnnPoolingMode_t
    nan: cudnnNanPropagation_t
    window: tuple[int, ...]
    pads: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_maximum(self) -> bool:
        return self.mode in _MAXIMA

    @property
    def counts_padding(self) -> bool:
        return self.mode is _M.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING

    def output_of(self, x: TensorDescriptor) -> tuple[int, ...]:
        """The extents of the result. Raises BadParam."""
        if len(x.shape) - 2 != len(self.window):
            raise BadParam(
                f"x has {len(x.shape) - 2} axes of space and poolingDesc {len(self.window)}: they must have as many"
            )
        space = []
        for extent, window, pad, stride in zip(
            x.shape[2:], self.window, self.pads, self.strides, strict=True
        ):
            if extent + 2 * pad < window:
                raise BadParam(f"the window spans {window} elements of an axis of {extent + 2 * pad}")
            space.append((extent + 2 * pad - window) // stride + 1)
        return (*x.shape[:2], *space)


class cudnnPoolingDescriptor(Descriptor[Windows]):
    """Mode, window, padding and strides."""


def _windows(poolingDesc: Any) -> Windows:
    return value_of(poolingDesc, cudnnPoolingDescriptor, "poolingDesc")


@api
def cudnnCreatePoolingDescriptor() -> cudnnPoolingDescriptor:
    """Return a pooling descriptor, to be set."""
    return cudnnPoolingDescriptor()


@api
def cudnnSetPooling2dDescriptor(
    poolingDesc: Any,
    mode: int,
    maxpoolingNanOpt: int,
    windowHeight: int,
    windowWidth: int,
    verticalPadding: int,
    horizontalPadding: int,
    verticalStride: int,
    horizontalStride: int,
) -> None:
    """Set the mode, window, padding and strides of two axes of space."""
    cudnnSetPoolingNdDescriptor(
        poolingDesc,
        mode,
        maxpoolingNanOpt,
        2,
        (windowHeight, windowWidth),
        (verticalPadding, horizontalPadding),
        (verticalStride, horizontalStride),
    )


@api
def cudnnGetPooling2dDescriptor(poolingDesc: Any) -> tuple[Any, ...]:
    """Return (mode, maxpoolingNanOpt, windowHeight, windowWidth, verticalPadding, horizontalPadding, verticalStride,
    horizontalStride)."""
    own = _windows(poolingDesc)
    if len(own.window) != 2:
        raise NotSupported(f"poolingDesc has {len(own.window)} axes of space: this reads 2")
    return (own.mode, own.nan, *own.window, *own.pads, *own.strides)


@api
def cudnnSetPoolingNdDescriptor(
    poolingDesc: Any,
    mode: int,
    maxpoolingNanOpt: int,
    nbDims: int,
    windowDimA: Sequence[int],
    paddingA: Sequence[int],
    strideA: Sequence[int],
) -> None:
    """Set the mode, and window, padding and stride of each axis of space."""
    own = alive(poolingDesc, cudnnPoolingDescriptor, "poolingDesc")
    rank = number(nbDims, "nbDims", 1, CUDNN_DIM_MAX - 2)
    own.value = Windows(
        choice(cudnnPoolingMode_t, mode, "mode"),
        choice(cudnnNanPropagation_t, maxpoolingNanOpt, "maxpoolingNanOpt"),
        several(windowDimA, "windowDimA", rank, 1),
        several(paddingA, "paddingA", rank),
        several(strideA, "strideA", rank, 1),
    )


@api
def cudnnGetPoolingNdDescriptor(poolingDesc: Any, nbDimsRequested: int) -> tuple[Any, ...]:
    """Return (mode, maxpoolingNanOpt, nbDims, windowDimA, paddingA, strideA), of as many axes as are requested."""
    own, count = _windows(poolingDesc), number(nbDimsRequested, "nbDimsRequested")
    axes = (own.window[:count], own.pads[:count], own.strides[:count])
    return (own.mode, own.nan, len(own.window), *axes)


@api
def cudnnGetPoolingNdForwardOutputDim(poolingDesc: Any, inputTensorDesc: Any, nbDims: int) -> tuple[int, ...]:
    """Return the extents of the result."""
    found = _windows(poolingDesc).output_of(tensor_of(inputTensorDesc, "inputTensorDesc"))
    if number(nbDims, "nbDims") != len(found):
        raise BadParam(f"nbDims is {nbDims}: the result has {len(found)} dimensions")
    return found


@api
def cudnnGetPooling2dForwardOutputDim(poolingDesc: Any, inputTensorDesc: Any) -> tuple[int, ...]:
    """Return (n, c, h, w) of the result."""
    return cudnnGetPoolingNdForwardOutputDim(poolingDesc, inputTensorDesc, 4)


@api
def cudnnDestroyPoolingDescriptor(poolingDesc: Any) -> None:
    """Destroy a pooling descriptor."""
    destroy(poolingDesc, cudnnPoolingDescriptor, "poolingDesc")


def _require_output(own: Windows, x: Array, y: Array, name: str) -> None:
    expected = own.output_of(x.descriptor)
    if y.descriptor.shape != expected:
        raise BadParam(
            f"{name} has extents {y.descriptor.shape}: pooling x {x.descriptor.shape} gives {expected}"
        )


@api
def cudnnPoolingForward(
    handle: Any, poolingDesc: Any, alpha: float, xDesc: Any, x: Any, beta: float, yDesc: Any, y: Any
) -> None:
    """y = alpha * (maximum or average of each window) + beta * y; a NaN is the maximum."""
    own, how = inner(handle), _windows(poolingDesc)
    source = bound(x, tensor_of(xDesc, "xDesc"), "x")
    target = bound(y, tensor_of(yDesc, "yDesc"), "y", True)
    _require_output(how, source, target, "y")
    named = blend(alpha, beta) | {"out": target, "handle": own}
    if how.is_maximum:
        jd.max_pool(source, how.window, how.strides, how.pads, **named)
    else:
        jd.avg_pool(source, how.window, how.strides, how.pads, how.counts_padding, **named)


@api
def cudnnPoolingBackward(
    handle: Any,
    poolingDesc: Any,
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
    """dx = alpha * (the gradient) + beta * dx; that of a maximum goes to the first one of its window."""
    own, how = inner(handle), _windows(poolingDesc)
    slope = bound(dy, tensor_of(dyDesc, "dyDesc"), "dy")
    target = bound(dx, tensor_of(dxDesc, "dxDesc"), "dx", True)
    _require_output(how, target, slope, "dy")
    named = blend(alpha, beta) | {"out": target, "handle": own}
    if not how.is_maximum:
        shape = target.descriptor.shape
        jd.avg_pool_backward(slope, shape, how.window, how.strides, how.pads, how.counts_padding, **named)
        return
    source, result = bound(x, tensor_of(xDesc, "xDesc"), "x"), bound(y, tensor_of(yDesc, "yDesc"), "y")
    jd.max_pool_backward(slope, source, result, how.window, how.strides, how.pads, **named)
