"""Reductions: their descriptor, the sizes of what they need, and the call."""

from __future__ import annotations

from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.enums import (
    cudnnDataType_t,
    cudnnIndicesType_t,
    cudnnNanPropagation_t,
    cudnnReduceTensorIndices_t,
    cudnnReduceTensorOp_t,
)
from jitdnn.frameworks.cudnn_api.handles import checked, inner
from jitdnn.frameworks.cudnn_api.memory import bound, placed
from jitdnn.frameworks.cudnn_api.objects import (
    Descriptor,
    alive,
    blend,
    byte_count,
    choice,
    destroy,
    value_of,
)
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensor_calls import require_broadcast
from jitdnn.frameworks.cudnn_api.tensors import dtype_of, tensor_of
from jitdnn.tensor import TensorDescriptor

_R = cudnnReduceTensorOp_t
_OPERATIONS = {
    _R.CUDNN_REDUCE_TENSOR_ADD: "add",
    _R.CUDNN_REDUCE_TENSOR_MUL: "mul",
    _R.CUDNN_REDUCE_TENSOR_MIN: "min",
    _R.CUDNN_REDUCE_TENSOR_MAX: "max",
    _R.CUDNN_REDUCE_TENSOR_AMAX: "amax",
    _R.CUDNN_REDUCE_TENSOR_AVG: "avg",
    _R.CUDNN_REDUCE_TENSOR_NORM1: "norm1",
    _R.CUDNN_REDUCE_TENSOR_NORM2: "norm2",
    _R.CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS: "mul_no_zeros",
}
_INDEXED = ("min", "max")


class Reduced(NamedTuple):
    """What a reduction descriptor is set to."""

    op: cudnnReduceTensorOp_t
    computed: cudnnDataType_t
    nan: cudnnNanPropagation_t
    indices: cudnnReduceTensorIndices_t
    index_type: cudnnIndicesType_t

    @property
    def name(self) -> str:
        return _OPERATIONS[self.op]

    @property
    def is_indexed(self) -> bool:
        """Whether indices are written: of a minimum or maximum, if they are wanted."""
        wanted = self.indices is cudnnReduceTensorIndices_t.CUDNN_REDUCE_TENSOR_FLATTENED_INDICES
        return wanted and self.name in _INDEXED


class cudnnReduceTensorDescriptor(Descriptor[Reduced]):
    """An operation that reduces, and its indices."""


def _reduced(reduceTensorDesc: Any) -> Reduced:
    return value_of(reduceTensorDesc, cudnnReduceTensorDescriptor, "reduceTensorDesc")


@api
def cudnnCreateReduceTensorDescriptor() -> cudnnReduceTensorDescriptor:
    """Return a reduction descriptor, to be set."""
    return cudnnReduceTensorDescriptor()


@api
def cudnnSetReduceTensorDescriptor(
    reduceTensorDesc: Any,
    reduceTensorOp: int,
    reduceTensorCompType: int,
    reduceTensorNanOpt: int,
    reduceTensorIndices: int,
    reduceTensorIndicesType: int,
) -> None:
    """Set the operation, the type of the arithmetic, NaN, and which indices are wanted: of 32 bits."""
    own = alive(reduceTensorDesc, cudnnReduceTensorDescriptor, "reduceTensorDesc")
    computed = choice(cudnnDataType_t, reduceTensorCompType, "reduceTensorCompType")
    dtype_of(computed, "reduceTensorCompType")
    made = Reduced(
        choice(cudnnReduceTensorOp_t, reduceTensorOp, "reduceTensorOp"),
        computed,
        choice(cudnnNanPropagation_t, reduceTensorNanOpt, "reduceTensorNanOpt"),
        choice(cudnnReduceTensorIndices_t, reduceTensorIndices, "reduceTensorIndices"),
        choice(cudnnIndicesType_t, reduceTensorIndicesType, "reduceTensorIndicesType"),
    )
    own.value = made


@api
def cudnnGetReduceTensorDescriptor(reduceTensorDesc: Any) -> tuple[Any, ...]:
    """Return (reduceTensorOp, reduceTensorCompType, reduceTensorNanOpt, reduceTensorIndices,
    reduceTensorIndicesType)."""
    return tuple(_reduced(reduceTensorDesc))


@api
def cudnnDestroyReduceTensorDescriptor(reduceTensorDesc: Any) -> None:
    """Destroy a reduction descriptor."""
    destroy(reduceTensorDesc, cudnnReduceTensorDescriptor, "reduceTensorDesc")


@api
def cudnnGetReductionIndicesSize(handle: Any, reduceTensorDesc: Any, aDesc: Any, cDesc: Any) -> int:
    """Return the bytes of the indices: 4 for each element of C, or 0."""
    checked(handle)
    how = _reduced(reduceTensorDesc)
    tensor_of(aDesc, "aDesc")
    return 4 * tensor_of(cDesc, "cDesc").size if how.is_indexed else 0


@api
def cudnnGetReductionWorkspaceSize(handle: Any, reduceTensorDesc: Any, aDesc: Any, cDesc: Any) -> int:
    """Return 0: the handle keeps the scratch memory of reductions."""
    checked(handle)
    _reduced(reduceTensorDesc), tensor_of(aDesc, "aDesc"), tensor_of(cDesc, "cDesc")
    return 0


@api
def cudnnReduceTensor(
    handle: Any,
    reduceTensorDesc: Any,
    indices: Any,
    indicesSizeInBytes: int,
    workspace: Any,
    workspaceSizeInBytes: int,
    alpha: float,
    aDesc: Any,
    A: Any,
    beta: float,
    cDesc: Any,
    C: Any,
) -> None:
    """C = alpha * (A reduced along the extents that are 1 in C) + beta * C; the indices count among the reduced."""
    own, how = inner(handle), _reduced(reduceTensorDesc)
    source = bound(A, tensor_of(aDesc, "aDesc"), "A")
    target = bound(C, tensor_of(cDesc, "cDesc"), "C", True)
    require_broadcast(target, source, "C", "A")
    size = byte_count(indicesSizeInBytes, "indicesSizeInBytes")
    byte_count(workspaceSizeInBytes, "workspaceSizeInBytes")
    shape = target.descriptor.shape
    axes = tuple(
        axis
        for axis, (have, want) in enumerate(zip(source.descriptor.shape, shape, strict=True))
        if have != want
    )
    scales = blend(alpha, beta)
    where: Any = None
    if how.is_indexed:
        if how.index_type is not cudnnIndicesType_t.CUDNN_32BIT_INDICES:
            raise NotSupported(f"reduceTensorIndicesType is {how.index_type.name}: indices are of 32 bits")
        if size < 4 * target.descriptor.size:
            raise BadParam(
                f"indicesSizeInBytes is {size}: {4 * target.descriptor.size} are needed, 4 for each element of C"
            )
        where = bound(indices, TensorDescriptor.packed(shape, "u32"), "indices", True)
    if not axes:  # nothing is reduced: along an axis of extent 1 in front
        axes = (0,)
        source, target, where = (
            array and placed(array, array.descriptor.insert_axis(0)) for array in (source, target, where)
        )
    jd.reduce(
        source,
        how.name,
        axes,
        True,
        "u32" if how.is_indexed else False,
        how.nan is cudnnNanPropagation_t.CUDNN_PROPAGATE_NAN,
        **scales,
        out=(target, where) if how.is_indexed else target,
        handle=own,
    )
