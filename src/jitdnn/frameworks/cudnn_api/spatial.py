"""Spatial transformers: grids from affine maps, and images sampled at their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.enums import cudnnDataType_t, cudnnSamplerType_t
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import (
    Descriptor,
    alive,
    blend,
    choice,
    destroy,
    number,
    real,
    several,
    value_of,
)
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import dtype_of, tensor_of
from jitdnn.tensor import TensorDescriptor


class Sampled(NamedTuple):
    """What a spatial transformer is set to: the extents of its result, and the type of theta and grid."""

    sampler: cudnnSamplerType_t
    dtype: str
    extents: tuple[int, ...]

    @property
    def axes(self) -> int:
        return len(self.extents) - 2

    @property
    def theta(self) -> TensorDescriptor:
        return TensorDescriptor.packed((self.extents[0], self.axes, self.axes + 1), self.dtype)

    @property
    def grid(self) -> TensorDescriptor:
        return TensorDescriptor.packed((self.extents[0], *self.extents[2:], self.axes), self.dtype)


class cudnnSpatialTransformerDescriptor(Descriptor[Sampled]):
    """The sampler of a spatial transformer and the extents of its result."""


def _sampled(stDesc: Any) -> Sampled:
    return value_of(stDesc, cudnnSpatialTransformerDescriptor, "stDesc")


@api
def cudnnCreateSpatialTransformerDescriptor() -> cudnnSpatialTransformerDescriptor:
    """Return a spatial transformer's descriptor, to be set."""
    return cudnnSpatialTransformerDescriptor()


@api
def cudnnSetSpatialTransformerNdDescriptor(
    stDesc: Any, samplerType: int, dataType: int, nbDims: int, dimA: Sequence[int]
) -> None:
    """Set the sampler, the type, and the extents of the result, of 4 or 5 dimensions."""
    own = alive(stDesc, cudnnSpatialTransformerDescriptor, "stDesc")
    rank = number(nbDims, "nbDims", 4)
    extents = several(dimA, "dimA", rank, 1)
    if rank > 5:
        raise NotSupported(f"nbDims is {nbDims}: images have 4 or 5 dimensions")
    kind = choice(cudnnSamplerType_t, samplerType, "samplerType")
    own.value = Sampled(kind, dtype_of(choice(cudnnDataType_t, dataType, "dataType")), extents)


@api
def cudnnDestroySpatialTransformerDescriptor(stDesc: Any) -> None:
    """Destroy a spatial transformer's descriptor."""
    destroy(stDesc, cudnnSpatialTransformerDescriptor, "stDesc")


@api
def cudnnSpatialTfGridGeneratorForward(handle: Any, stDesc: Any, theta: Any, grid: Any) -> None:
    """grid (N, H, W, 2) = theta (N, 2, 3) by (x, y, 1), -1 and 1 being the centres of the outermost elements."""
    own, how = inner(handle), _sampled(stDesc)
    source, target = bound(theta, how.theta, "theta"), bound(grid, how.grid, "grid", True)
    jd.affine_grid(source, how.extents[2:], True, out=target, handle=own)


@api
def cudnnSpatialTfGridGeneratorBackward(handle: Any, stDesc: Any, dgrid: Any, dtheta: Any) -> None:
    """dtheta = the gradient of the grid's generator."""
    own, how = inner(handle), _sampled(stDesc)
    source, target = bound(dgrid, how.grid, "dgrid"), bound(dtheta, how.theta, "dtheta", True)
    jd.affine_grid_backward(source, True, out=target, handle=own)


def _require_shapes(how: Sampled, x: TensorDescriptor, y: TensorDescriptor, names: tuple[str, str]) -> None:
    if y.shape != how.extents:
        raise BadParam(f"{names[1]} has extents {y.shape} and stDesc {how.extents}: they must be equal")
    if len(x.shape) != len(y.shape) or x.shape[:2] != y.shape[:2]:
        raise BadParam(f"{names[0]} has extents {x.shape} and {names[1]} {y.shape}: N and C must be equal")


@api
def cudnnSpatialTfSamplerForward(
    handle: Any,
    stDesc: Any,
    alpha: float,
    xDesc: Any,
    x: Any,
    grid: Any,
    beta: float,
    yDesc: Any,
    y: Any,
) -> None:
    """y = alpha * (x at the places of the grid, linearly, 0 outside) + beta * y."""
    own, how = inner(handle), _sampled(stDesc)
    image, result = tensor_of(xDesc, "xDesc"), tensor_of(yDesc, "yDesc")
    _require_shapes(how, image, result, ("xDesc", "yDesc"))
    jd.grid_sample(
        bound(x, image, "x"),
        bound(grid, how.grid, "grid"),
        align_corners=True,
        **blend(alpha, beta),
        out=bound(y, result, "y", True),
        handle=own,
    )


@api
def cudnnSpatialTfSamplerBackward(
    handle: Any,
    stDesc: Any,
    alpha: float,
    xDesc: Any,
    x: Any,
    beta: float,
    dxDesc: Any,
    dx: Any,
    alphaDgrid: float,
    dyDesc: Any,
    dy: Any,
    grid: Any,
    betaDgrid: float,
    dgrid: Any,
) -> None:
    """dx = alpha * (the gradient of the image) + beta * dx, dgrid = alphaDgrid * (that of the places) + betaDgrid *
    dgrid."""
    own, how = inner(handle), _sampled(stDesc)
    image, slope = tensor_of(xDesc, "xDesc"), tensor_of(dyDesc, "dyDesc")
    _require_shapes(how, image, slope, ("xDesc", "dyDesc"))
    if tensor_of(dxDesc, "dxDesc").shape != image.shape:
        raise BadParam(f"dxDesc has extents {tensor_of(dxDesc, 'dxDesc').shape} and xDesc {image.shape}")
    first, second = (
        (real(alpha, "alpha"), real(beta, "beta")),
        (real(alphaDgrid, "alphaDgrid"), real(betaDgrid, "betaDgrid")),
    )
    outs = bound(dx, tensor_of(dxDesc, "dxDesc"), "dx", True), bound(dgrid, how.grid, "dgrid", True)
    arrays = bound(dy, slope, "dy"), bound(x, image, "x"), bound(grid, how.grid, "grid")
    if first == second:
        jd.grid_sample_backward(
            *arrays, align_corners=True, alpha=first[0], beta=first[1], out=outs, handle=own
        )
        return
    found = jd.grid_sample_backward(*arrays, align_corners=True, handle=own)
    for gradient, out, (by, keep) in zip(found, outs, (first, second), strict=True):
        jd.add(gradient, alpha=by, beta=keep, out=out, handle=own)
