"""Descriptors of sequences for attention and of multi-head attention, and the layout of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.dropout import cudnnDropoutDescriptor, dropped_of
from jitdnn.frameworks.cudnn_api.enums import (
    CUDNN_ATTN_ENABLE_PROJ_BIASES,
    CUDNN_ATTN_QUERYMAP_ONE_TO_ONE,
    CUDNN_SEQDATA_DIM_COUNT,
    cudnnDataType_t,
    cudnnMathType_t,
    cudnnMultiHeadAttnWeightKind_t,
    cudnnSeqDataAxis_t,
)
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
from jitdnn.frameworks.cudnn_api.tensors import data_type_of, dtype_of
from jitdnn.tensor import TensorDescriptor, packed_strides

_A, _W = cudnnSeqDataAxis_t, cudnnMultiHeadAttnWeightKind_t
_BATCH, _BEAM, _TIME, _VECT = (
    int(axis)
    for axis in (
        _A.CUDNN_SEQDATA_BATCH_DIM, _A.CUDNN_SEQDATA_BEAM_DIM, _A.CUDNN_SEQDATA_TIME_DIM, _A.CUDNN_SEQDATA_VECT_DIM,
    )
)  # fmt: skip
_MOST_SEQUENCES = 1 << 24


class SeqData(NamedTuple):
    """What a descriptor of sequences is set to; `extents` by axis: time, batch, beam, vector."""

    dtype: str
    extents: tuple[int, ...]
    axes: tuple[cudnnSeqDataAxis_t, ...]
    lengths: tuple[int, ...]
    fill: Any

    @property
    def tensor(self) -> TensorDescriptor:
        """As (batch, beam, time, vector)."""
        strides = packed_strides(self.extents, [int(axis) for axis in self.axes])
        order = (_BATCH, _BEAM, _TIME, _VECT)
        return TensorDescriptor(
            tuple(self.extents[axis] for axis in order), tuple(strides[axis] for axis in order), self.dtype
        )


class MultiHead(NamedTuple):
    """What an attention descriptor is set to."""

    flags: int
    heads: int
    scale: float
    dtype: str
    precision: cudnnDataType_t
    math: cudnnMathType_t
    dropout: Any
    post_dropout: Any
    q_size: int
    k_size: int
    v_size: int
    q_projection: int
    k_projection: int
    v_projection: int
    o_projection: int
    longest_q: int
    longest_k: int
    most_batch: int
    most_beam: int

    @property
    def has_biases(self) -> bool:
        return bool(self.flags & CUDNN_ATTN_ENABLE_PROJ_BIASES)

    @property
    def has_own_keys(self) -> bool:
        """Whether each beam has keys of its own."""
        return bool(self.flags & CUDNN_ATTN_QUERYMAP_ONE_TO_ONE)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Numbers of all heads of a query, key and value."""
        sizes = zip(
            (self.q_projection, self.k_projection, self.v_projection),
            (self.q_size, self.k_size, self.v_size),
            strict=True,
        )
        q, k, v = (self.heads * (projected or whole) for projected, whole in sizes)
        return q, k, v

    @property
    def result(self) -> int:
        """Numbers of a vector of the result."""
        return self.o_projection or self.widths[2]

    def shapes(self) -> dict[cudnnMultiHeadAttnWeightKind_t, tuple[int, ...]]:
        """The weights as matrices and vectors, in their order: (heads * projected, size), (result, heads * size)."""
        widths, sizes = self.widths, (self.q_size, self.k_size, self.v_size)
        projections = (self.q_projection, self.k_projection, self.v_projection)
        found: dict[cudnnMultiHeadAttnWeightKind_t, tuple[int, ...]] = {}
        for kind, projection, width, size in zip(_KINDS[:3], projections, widths, sizes, strict=True):
            if projection:
                found[kind] = (width, size)
        if self.o_projection:
            found[_W.CUDNN_MH_ATTN_O_WEIGHTS] = (self.o_projection, widths[2])
        if self.has_biases:
            for kind, bias in zip(_KINDS[:4], _KINDS[4:], strict=True):
                if kind in found:
                    found[bias] = found[kind][:1]
        return found

    def places(self) -> tuple[dict[cudnnMultiHeadAttnWeightKind_t, tuple[int, tuple[int, ...]]], int]:
        """Where each weight begins, in elements, and its shape; and how many elements there are."""
        end, found = 0, {}
        for kind, shape in self.shapes().items():
            found[kind] = (end, shape)
            end += prod(shape)
        return found, end


_KINDS = tuple(_W)


class cudnnSeqDataDescriptor(Descriptor[SeqData]):
    """Sequences of vectors: time, batch, beam."""


class cudnnAttnDescriptor(Descriptor[MultiHead]):
    """Multi-head attention: heads, projections, longest sequences."""


def seq_of(seqDataDesc: Any, name: str) -> SeqData:
    """What a descriptor of sequences was set to. Raises BadParam."""
    return value_of(seqDataDesc, cudnnSeqDataDescriptor, name)


def attention_of(attnDesc: Any) -> MultiHead:
    """What an attention descriptor was set to. Raises BadParam."""
    return value_of(attnDesc, cudnnAttnDescriptor, "attnDesc")


@api
def cudnnCreateSeqDataDescriptor() -> cudnnSeqDataDescriptor:
    """Return a descriptor of sequences, to be set."""
    return cudnnSeqDataDescriptor()


@api
def cudnnDestroySeqDataDescriptor(seqDataDesc: Any) -> None:
    """Destroy a descriptor of sequences."""
    destroy(seqDataDesc, cudnnSeqDataDescriptor, "seqDataDesc")


@api
def cudnnSetSeqDataDescriptor(
    seqDataDesc: Any,
    dataType: int,
    nbDims: int,
    dimA: Sequence[int],
    axes: Sequence[int],
    seqLengthArraySize: int,
    seqLengthArray: Sequence[int],
    paddingFill: Any,
) -> None:
    """Set type, extents by axis, the order of the axes in memory, and the length of each sequence of the batch and its
    beams."""
    own = alive(seqDataDesc, cudnnSeqDataDescriptor, "seqDataDesc")
    rank = number(nbDims, "nbDims", CUDNN_SEQDATA_DIM_COUNT, CUDNN_SEQDATA_DIM_COUNT)
    extents = several(dimA, "dimA", rank, 1)
    order = tuple(choice(_A, axis, "axes") for axis in several(axes, "axes", rank))
    if sorted(order) != list(_A):
        raise BadParam(f"axes is {order}: each axis must be there once")
    if order[-1] is not _A.CUDNN_SEQDATA_VECT_DIM:
        raise NotSupported(f"axes ends with {order[-1].name}: the numbers of a vector must be neighbours")
    count = number(seqLengthArraySize, "seqLengthArraySize", 1, _MOST_SEQUENCES)
    if count != extents[_BATCH] * extents[_BEAM]:
        raise BadParam(
            f"seqLengthArraySize is {count}: there are {extents[_BATCH] * extents[_BEAM]} sequences"
        )
    lengths = several(seqLengthArray, "seqLengthArray", count, 0, extents[_TIME])
    if paddingFill is not None:
        raise NotSupported("paddingFill is given: results behind the end of a sequence are 0")
    own.value = SeqData(dtype_of(dataType), extents, order, lengths, paddingFill)


@api
def cudnnGetSeqDataDescriptor(
    seqDataDesc: Any, nbDimsRequested: int, seqLengthSizeRequested: int
) -> tuple[Any, ...]:
    """Return (dataType, nbDims, dimA, axes, seqLengthArraySize, seqLengthArray, paddingFill), as many as are
    requested."""
    own = seq_of(seqDataDesc, "seqDataDesc")
    count = number(nbDimsRequested, "nbDimsRequested")
    lengths = own.lengths[: number(seqLengthSizeRequested, "seqLengthSizeRequested")]
    dims = (len(own.extents), own.extents[:count], own.axes[:count])
    return (data_type_of(own.dtype), *dims, len(own.lengths), lengths, own.fill)


@api
def cudnnCreateAttnDescriptor() -> cudnnAttnDescriptor:
    """Return a descriptor of multi-head attention, to be set."""
    return cudnnAttnDescriptor()


@api
def cudnnDestroyAttnDescriptor(attnDesc: Any) -> None:
    """Destroy a descriptor of multi-head attention."""
    destroy(attnDesc, cudnnAttnDescriptor, "attnDesc")


@api
def cudnnSetAttnDescriptor(
    attnDesc: Any,
    attnMode: int,
    nHeads: int,
    smScaler: float,
    dataType: int,
    computePrec: int,
    mathType: int,
    attnDropoutDesc: Any,
    postDropoutDesc: Any,
    qSize: int,
    kSize: int,
    vSize: int,
    qProjSize: int,
    kProjSize: int,
    vProjSize: int,
    oProjSize: int,
    qoMaxSeqLength: int,
    kvMaxSeqLength: int,
    maxBatchSize: int,
    maxBeamSize: int,
) -> None:
    """Set heads, scale, types, sizes and projections (0: none), and the largest of what calls bring. Dropout is
    refused."""
    own = alive(attnDesc, cudnnAttnDescriptor, "attnDesc")
    heads, dtype = number(nHeads, "nHeads", 1), dtype_of(dataType)
    if dtype not in ("f16", "bf16", "f32", "f64"):
        raise NotSupported(f"dataType is {dtype}: attention is of real numbers")
    for desc, name in ((attnDropoutDesc, "attnDropoutDesc"), (postDropoutDesc, "postDropoutDesc")):
        if desc is not None:
            alive(desc, cudnnDropoutDescriptor, name)
            if desc.value is not None and dropped_of(desc, name).probability:
                raise NotSupported(f"{name} drops: attention has no dropout")
    sizes = [number(size, name, 1) for size, name in ((qSize, "qSize"), (kSize, "kSize"), (vSize, "vSize"))]
    projections = [
        number(size, name)
        for size, name in (
            (qProjSize, "qProjSize"), (kProjSize, "kProjSize"), (vProjSize, "vProjSize"), (oProjSize, "oProjSize"),
        )
    ]  # fmt: skip
    if (projections[0] or sizes[0]) != (projections[1] or sizes[1]):
        raise BadParam(
            f"queries have {projections[0] or sizes[0]} numbers, keys {projections[1] or sizes[1]}: they must be equal"
        )
    if heads > 1 and not all(projections[:3]):
        raise NotSupported(f"nHeads is {heads} and a projection is 0: several heads have projections")
    own.value = MultiHead(
        number(attnMode, "attnMode", 0, CUDNN_ATTN_QUERYMAP_ONE_TO_ONE | CUDNN_ATTN_ENABLE_PROJ_BIASES),
        heads,
        real(smScaler, "smScaler", 0.0),
        dtype,
        choice(cudnnDataType_t, computePrec, "computePrec"),
        choice(cudnnMathType_t, mathType, "mathType"),
        attnDropoutDesc,
        postDropoutDesc,
        sizes[0],
        sizes[1],
        sizes[2],
        projections[0],
        projections[1],
        projections[2],
        projections[3],
        number(qoMaxSeqLength, "qoMaxSeqLength", 1),
        number(kvMaxSeqLength, "kvMaxSeqLength", 1),
        number(maxBatchSize, "maxBatchSize", 1),
        number(maxBeamSize, "maxBeamSize", 1),
    )


@api
def cudnnGetAttnDescriptor(attnDesc: Any) -> tuple[Any, ...]:
    """Return (attnMode, nHeads, smScaler, dataType, computePrec, mathType, attnDropoutDesc, postDropoutDesc, qSize,
    kSize,
    vSize, qProjSize, kProjSize, vProjSize, oProjSize, qoMaxSeqLength, kvMaxSeqLength, maxBatchSize, maxBeamSize)."""
    own = attention_of(attnDesc)
    return (*own[:3], data_type_of(own.dtype), *own[4:])
