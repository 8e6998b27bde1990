"""Padding transforms: their descriptor, and tensors and filters through them. Folding is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.enums import CUDNN_DIM_MAX, cudnnFoldingDirection_t, cudnnTensorFormat_t
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import (
    Descriptor,
    alive,
    choice,
    destroy,
    number,
    real,
    several,
    value_of,
)
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import filter_of, format_of, layout_of, set_tensor, tensor_of
from jitdnn.tensor import TensorDescriptor


class Padded(NamedTuple):
    """What a transform descriptor is set to: elements before and after each axis, and folds of the axes of space."""

    format: cudnnTensorFormat_t
    before: tuple[int, ...]
    after: tuple[int, ...]
    folds: tuple[int, ...]
    direction: cudnnFoldingDirection_t


class cudnnTensorTransformDescriptor(Descriptor[Padded]):
    """The order in memory of a result, and what surrounds it."""


def _padded(transformDesc: Any) -> Padded:
    found = value_of(transformDesc, cudnnTensorTransformDescriptor, "transformDesc")
    if any(fold != 1 for fold in found.folds):
        raise NotSupported(f"foldA is {found.folds}: folding is not there, jitdnn has it as jd.fold")
    if found.direction is not cudnnFoldingDirection_t.CUDNN_TRANSFORM_FOLD:
        raise NotSupported(f"direction is {found.direction.name}: padding is not taken away")
    return found


@api
def cudnnCreateTensorTransformDescriptor() -> cudnnTensorTransformDescriptor:
    """Return a transform descriptor, to be set."""
    return cudnnTensorTransformDescriptor()


@api
def cudnnSetTensorTransformDescriptor(
    transformDesc: Any,
    nbDims: int,
    destFormat: int,
    padBeforeA: Sequence[int] | None,
    padAfterA: Sequence[int] | None,
    foldA: Sequence[int] | None,
    direction: int,
) -> None:
    """Set the format of the result, and padding and folds, None for none."""
    own = alive(transformDesc, cudnnTensorTransformDescriptor, "transformDesc")
    rank = number(nbDims, "nbDims", 3, CUDNN_DIM_MAX)
    own.value = Padded(
        format_of(destFormat, "destFormat"),
        (0,) * rank if padBeforeA is None else several(padBeforeA, "padBeforeA", rank),
        (0,) * rank if padAfterA is None else several(padAfterA, "padAfterA", rank),
        (1,) * (rank - 2) if foldA is None else several(foldA, "foldA", rank - 2, 1),
        choice(cudnnFoldingDirection_t, direction, "direction"),
    )


@api
def cudnnGetTensorTransformDescriptor(transformDesc: Any, nbDimsRequested: int) -> tuple[Any, ...]:
    """Return (destFormat, padBeforeA, padAfterA, foldA, direction), of as many dimensions as are requested."""
    own = value_of(transformDesc, cudnnTensorTransformDescriptor, "transformDesc")
    count = number(nbDimsRequested, "nbDimsRequested")
    folds = own.folds[: max(count - 2, 0)]
    return own.format, own.before[:count], own.after[:count], folds, own.direction


@api
def cudnnDestroyTensorTransformDescriptor(transformDesc: Any) -> None:
    """Destroy a transform descriptor."""
    destroy(transformDesc, cudnnTensorTransformDescriptor, "transformDesc")


def _result_of(padded: Padded, source: TensorDescriptor) -> TensorDescriptor:
    if len(padded.before) != len(source.shape):
        raise BadParam(
            f"transformDesc has {len(padded.before)} dimensions and the source {len(source.shape)}: they must be equal"
        )
    around = zip(source.shape, padded.before, padded.after, strict=True)
    extents = [extent + before + after for extent, before, after in around]
    return TensorDescriptor.packed(extents, source.dtype, layout_of(padded.format))


@api
def cudnnInitTransformDest(transformDesc: Any, srcDesc: Any, destDesc: Any) -> int:
    """Set destDesc to what a transform makes of srcDesc, and return its bytes."""
    result = _result_of(_padded(transformDesc), tensor_of(srcDesc, "srcDesc"))
    set_tensor(destDesc, result, "destDesc")
    return result.nbytes


@api
def cudnnTransformTensorEx(
    handle: Any,
    transDesc: Any,
    alpha: float,
    srcDesc: Any,
    srcData: Any,
    beta: float,
    destDesc: Any,
    destData: Any,
) -> None:
    """destData = alpha * (srcData with zeros around it) + beta * destData."""
    source, target = tensor_of(srcDesc, "srcDesc"), tensor_of(destDesc, "destDesc")
    _transform(handle, transDesc, alpha, source, srcData, beta, target, destData)


@api
def cudnnTransformFilter(
    handle: Any,
    transDesc: Any,
    alpha: float,
    srcDesc: Any,
    srcData: Any,
    beta: float,
    destDesc: Any,
    destData: Any,
) -> None:
    """The same for filters."""
    source, target = filter_of(srcDesc, "srcDesc"), filter_of(destDesc, "destDesc")
    _transform(handle, transDesc, alpha, source, srcData, beta, target, destData)


def _transform(
    handle: Any,
    transDesc: Any,
    alpha: float,
    source: TensorDescriptor,
    srcData: Any,
    beta: float,
    target: TensorDescriptor,
    destData: Any,
) -> None:
    own, padded = inner(handle), _padded(transDesc)
    expected = _result_of(padded, source)
    if target.shape != expected.shape:
        raise BadParam(f"destDesc has extents {target.shape}: the transform gives {expected.shape}")
    jd.transform(
        bound(srcData, source, "srcData"),
        pad=tuple(zip(padded.before, padded.after, strict=True)),
        alpha=real(alpha, "alpha"),
        beta=real(beta, "beta"),
        out=bound(destData, target, "destData", True),
        handle=own,
    )
