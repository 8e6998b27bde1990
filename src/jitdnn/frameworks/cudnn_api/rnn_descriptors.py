"""Descriptors of recurrent layers and of their sequences, and the layout of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.dropout import cudnnDropoutDescriptor
from jitdnn.frameworks.cudnn_api.enums import (
    CUDNN_RNN_PADDED_IO_ENABLED,
    cudnnDataType_t,
    cudnnDirectionMode_t,
    cudnnMathType_t,
    cudnnNanPropagation_t,
    cudnnRNNAlgo_t,
    cudnnRNNBiasMode_t,
    cudnnRNNClipMode_t,
    cudnnRNNDataLayout_t,
    cudnnRNNInputMode_t,
    cudnnRNNMode_t,
)
from jitdnn.frameworks.cudnn_api.handles import checked
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

_M, _B, _T = cudnnRNNMode_t, cudnnRNNBiasMode_t, cudnnDataType_t
_CELLS = {_M.CUDNN_RNN_RELU: "relu", _M.CUDNN_RNN_TANH: "tanh", _M.CUDNN_LSTM: "lstm", _M.CUDNN_GRU: "gru"}
_BIASES = {
    _B.CUDNN_RNN_NO_BIAS: "no_bias",
    _B.CUDNN_RNN_SINGLE_INP_BIAS: "input_bias",
    _B.CUDNN_RNN_DOUBLE_BIAS: "both_biases",
    _B.CUDNN_RNN_SINGLE_REC_BIAS: "recurrent_bias",
}
_REALS = {
    "f32": (_T.CUDNN_DATA_FLOAT,),
    "f64": (_T.CUDNN_DATA_DOUBLE,),
    "f16": (_T.CUDNN_DATA_FLOAT, _T.CUDNN_DATA_HALF),
    "bf16": (_T.CUDNN_DATA_FLOAT, _T.CUDNN_DATA_BFLOAT16),
}
_NO_CLIP = (cudnnRNNClipMode_t.CUDNN_RNN_CLIP_NONE, cudnnNanPropagation_t.CUDNN_NOT_PROPAGATE_NAN, 0.0, 0.0)


@dataclass(frozen=True)
class Layers:
    """What an RNN descriptor is set to."""

    algo: cudnnRNNAlgo_t
    mode: cudnnRNNMode_t
    bias_mode: cudnnRNNBiasMode_t
    direction: cudnnDirectionMode_t
    input_mode: cudnnRNNInputMode_t
    dtype: str
    precision: cudnnDataType_t
    math: cudnnMathType_t
    input_size: int
    hidden: int
    projection: int
    layers: int
    dropout: Any
    flags: int
    clip: tuple[cudnnRNNClipMode_t, cudnnNanPropagation_t, float, float] = _NO_CLIP

    @property
    def cell(self) -> str:
        return _CELLS[self.mode]

    @property
    def bias(self) -> str:
        return _BIASES[self.bias_mode]

    @property
    def is_bidirectional(self) -> bool:
        return self.direction is cudnnDirectionMode_t.CUDNN_BIDIRECTIONAL

    @property
    def is_padded(self) -> bool:
        """Whether sequences that are not packed may be of different lengths."""
        return bool(self.flags & CUDNN_RNN_PADDED_IO_ENABLED)

    @property
    def states(self) -> int:
        """Layers and directions: pseudo-layers."""
        return self.layers * (2 if self.is_bidirectional else 1)


class Sequences(NamedTuple):
    """What an RNN data descriptor is set to."""

    dtype: str
    layout: cudnnRNNDataLayout_t
    steps: int
    batch: int
    size: int
    lengths: tuple[int, ...]
    fill: float | None

    @property
    def is_packed(self) -> bool:
        return self.layout is cudnnRNNDataLayout_t.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED

    @property
    def is_batch_major(self) -> bool:
        return self.layout is cudnnRNNDataLayout_t.CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED

    @property
    def shape(self) -> tuple[int, ...]:
        if self.is_packed:
            return (sum(self.lengths), self.size)
        lead = (self.batch, self.steps) if self.is_batch_major else (self.steps, self.batch)
        return (*lead, self.size)


class cudnnRNNDescriptor(Descriptor[Layers]):
    """Recurrent layers."""


class cudnnRNNDataDescriptor(Descriptor[Sequences]):
    """Sequences that go through recurrent layers, or come out of them."""


def layers_of(rnnDesc: Any) -> Layers:
    """What an RNN descriptor was set to. Raises BadParam."""
    return value_of(rnnDesc, cudnnRNNDescriptor, "rnnDesc")


def sequences_of(rnnDataDesc: Any, name: str) -> Sequences:
    """What an RNN data descriptor was set to. Raises BadParam."""
    return value_of(rnnDataDesc, cudnnRNNDataDescriptor, name)


@api
def cudnnCreateRNNDescriptor() -> cudnnRNNDescriptor:
    """Return a descriptor of recurrent layers, to be set."""
    return cudnnRNNDescriptor()


@api
def cudnnDestroyRNNDescriptor(rnnDesc: Any) -> None:
    """Destroy a descriptor of recurrent layers."""
    destroy(rnnDesc, cudnnRNNDescriptor, "rnnDesc")


@api
def cudnnSetRNNDescriptor_v8(
    rnnDesc: Any,
    algo: int,
    cellMode: int,
    biasMode: int,
    dirMode: int,
    inputMode: int,
    dataType: int,
    mathPrec: int,
    mathType: int,
    inputSize: int,
    hiddenSize: int,
    projSize: int,
    numLayers: int,
    dropoutDesc: Any,
    auxFlags: int,
) -> None:
    """Set cell, biases, directions, types, sizes, dropout between the layers (None for none), and whether sequences are
    padded. Every algorithm is the same one; an input that skips its matrix is refused."""
    own = alive(rnnDesc, cudnnRNNDescriptor, "rnnDesc")
    dtype, precision = dtype_of(dataType), choice(cudnnDataType_t, mathPrec, "mathPrec")
    if dtype not in _REALS or precision not in _REALS[dtype]:
        raise NotSupported(
            f"dataType is {dtype} and mathPrec {precision.name}: f32, f16 and bf16 are computed in float, f64 in double"
        )
    cell, hidden = choice(cudnnRNNMode_t, cellMode, "cellMode"), number(hiddenSize, "hiddenSize", 1)
    input_mode = choice(cudnnRNNInputMode_t, inputMode, "inputMode")
    if input_mode is cudnnRNNInputMode_t.CUDNN_SKIP_INPUT:
        raise NotSupported(
            "inputMode is CUDNN_SKIP_INPUT: the first layer has its matrix, use CUDNN_LINEAR_INPUT"
        )
    projection = number(projSize, "projSize", 0, hidden)
    if projection not in (0, hidden) and cell is not _M.CUDNN_LSTM:
        raise BadParam(f"projSize is {projSize} and hiddenSize {hidden}: only an LSTM has a projection")
    if dropoutDesc is not None:
        alive(dropoutDesc, cudnnDropoutDescriptor, "dropoutDesc")
    own.value = Layers(
        choice(cudnnRNNAlgo_t, algo, "algo"),
        cell,
        choice(cudnnRNNBiasMode_t, biasMode, "biasMode"),
        choice(cudnnDirectionMode_t, dirMode, "dirMode"),
        input_mode,
        dtype,
        precision,
        choice(cudnnMathType_t, mathType, "mathType"),
        number(inputSize, "inputSize", 1),
        hidden,
        projection,
        number(numLayers, "numLayers", 1, 1 << 10),
        dropoutDesc,
        number(auxFlags, "auxFlags"),
    )


@api
def cudnnGetRNNDescriptor_v8(rnnDesc: Any) -> tuple[Any, ...]:
    """Return (algo, cellMode, biasMode, dirMode, inputMode, dataType, mathPrec, mathType, inputSize, hiddenSize,
    projSize,
    numLayers, dropoutDesc, auxFlags)."""
    own = layers_of(rnnDesc)
    kinds = (own.algo, own.mode, own.bias_mode, own.direction, own.input_mode)
    types = (data_type_of(own.dtype), own.precision, own.math)
    return (
        *kinds, *types, own.input_size, own.hidden, own.projection, own.layers, own.dropout, own.flags
    )  # fmt: skip


def _set_clip(rnnDesc: Any, clipMode: int, nan: int, lclip: float, rclip: float) -> None:
    own = alive(rnnDesc, cudnnRNNDescriptor, "rnnDesc")
    mode = choice(cudnnRNNClipMode_t, clipMode, "clipMode")
    ends = real(lclip, "lclip"), real(rclip, "rclip")
    if mode is cudnnRNNClipMode_t.CUDNN_RNN_CLIP_MINMAX:
        if not ends[0] <= ends[1]:
            raise BadParam(f"lclip is {lclip} and rclip {rclip}: the first must not be greater")
        if not ends[0] <= 0.0 <= ends[1]:
            raise NotSupported(f"lclip is {lclip} and rclip {rclip}: 0 must lie between them")
    clip = (mode, choice(cudnnNanPropagation_t, nan, "clipNanOpt"), *ends)
    own.value = replace(layers_of(rnnDesc), clip=clip)


@api
def cudnnRNNSetClip_v8(rnnDesc: Any, clipMode: int, clipNanOpt: int, lclip: float, rclip: float) -> None:
    """Set the lowest and highest value of an LSTM's cell."""
    _set_clip(rnnDesc, clipMode, clipNanOpt, lclip, rclip)


@api
def cudnnRNNSetClip_v9(rnnDesc: Any, clipMode: int, lclip: float, rclip: float) -> None:
    """Set the lowest and highest value of an LSTM's cell."""
    _set_clip(rnnDesc, clipMode, 0, lclip, rclip)


@api
def cudnnRNNGetClip_v8(rnnDesc: Any) -> tuple[Any, ...]:
    """Return (clipMode, clipNanOpt, lclip, rclip)."""
    return layers_of(rnnDesc).clip


@api
def cudnnRNNGetClip_v9(rnnDesc: Any) -> tuple[Any, ...]:
    """Return (clipMode, lclip, rclip)."""
    mode, _, low, high = layers_of(rnnDesc).clip
    return mode, low, high


@api
def cudnnBuildRNNDynamic(handle: Any, rnnDesc: Any, miniBatch: int) -> None:
    """Do nothing: kernels are compiled for the sizes of a call when it is first made."""
    checked(handle)
    layers_of(rnnDesc), number(miniBatch, "miniBatch", 1)


@api
def cudnnCreateRNNDataDescriptor() -> cudnnRNNDataDescriptor:
    """Return a descriptor of sequences, to be set."""
    return cudnnRNNDataDescriptor()


@api
def cudnnDestroyRNNDataDescriptor(rnnDataDesc: Any) -> None:
    """Destroy a descriptor of sequences."""
    destroy(rnnDataDesc, cudnnRNNDataDescriptor, "rnnDataDesc")


@api
def cudnnSetRNNDataDescriptor(
    rnnDataDesc: Any,
    dataType: int,
    layout: int,
    maxSeqLength: int,
    batchSize: int,
    vectorSize: int,
    seqLengthArray: Sequence[int],
    paddingFill: float | None,
) -> None:
    """Set type, layout and lengths of sequences, and what their padding is filled with (None: 0)."""
    own = alive(rnnDataDesc, cudnnRNNDataDescriptor, "rnnDataDesc")
    steps, batch = number(maxSeqLength, "maxSeqLength", 1), number(batchSize, "batchSize", 1)
    made = Sequences(
        dtype_of(dataType),
        choice(cudnnRNNDataLayout_t, layout, "layout"),
        steps,
        batch,
        number(vectorSize, "vectorSize", 1),
        several(seqLengthArray, "seqLengthArray", batch, 0, steps),
        None if paddingFill is None else real(paddingFill, "paddingFill"),
    )
    lengths = made.lengths
    if made.is_packed and (lengths[-1] < 1 or any(a < b for a, b in pairwise(lengths))):
        raise BadParam(
            f"seqLengthArray is {lengths}: packed sequences have a step each and come longest first"
        )
    own.value = made


@api
def cudnnGetRNNDataDescriptor(rnnDataDesc: Any, arrayLengthRequested: int) -> tuple[Any, ...]:
    """Return (dataType, layout, maxSeqLength, batchSize, vectorSize, seqLengthArray, paddingFill), of as many
    lengths as
    are requested."""
    own = sequences_of(rnnDataDesc, "rnnDataDesc")
    lengths = own.lengths[: number(arrayLengthRequested, "arrayLengthRequested")]
    return data_type_of(own.dtype), own.layout, own.steps, own.batch, own.size, lengths, own.fill
