"""Descriptors of tensors and filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.enums import CUDNN_DIM_MAX, cudnnDataType_t, cudnnTensorFormat_t
from jitdnn.frameworks.cudnn_api.objects import Descriptor, alive, choice, destroy, number, several, value_of
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.tensor import DTYPES, TensorDescriptor

_T = cudnnDataType_t
_DTYPES = {
    _T.CUDNN_DATA_FLOAT: "f32",
    _T.CUDNN_DATA_DOUBLE: "f64",
    _T.CUDNN_DATA_HALF: "f16",
    _T.CUDNN_DATA_INT8: "i8",
    _T.CUDNN_DATA_INT32: "i32",
    _T.CUDNN_DATA_UINT8: "u8",
    _T.CUDNN_DATA_BFLOAT16: "bf16",
    _T.CUDNN_DATA_INT64: "i64",
    _T.CUDNN_DATA_FP8_E4M3: "f8e4m3",
    _T.CUDNN_DATA_FP8_E5M2: "f8e5m2",
    _T.CUDNN_DATA_UINT32: "u32",
    _T.CUDNN_DATA_BYTE_BOOLEAN: "bool",
}
_DATA_TYPES = {name: kind for kind, name in _DTYPES.items()}
# RNN's states have three dimensions, and so have filters of one axis of space
_LEAST_DIMENSIONS = 3


class Filter(NamedTuple):
    """What a filter descriptor is set to: the tensor, (K, C/groups, taps), and the format that orders it."""

    tensor: TensorDescriptor
    format: cudnnTensorFormat_t


class cudnnTensorDescriptor(Descriptor[TensorDescriptor]):
    """A tensor: type, extents, strides in elements."""


class cudnnFilterDescriptor(Descriptor[Filter]):
    """A filter: type, format, extents."""


def dtype_of(dataType: Any, name: str = "dataType") -> str:
    """The name of a type of cuDNN's. Raises BadParam, NotSupported."""
    kind = choice(cudnnDataType_t, dataType, name)
    known = _DTYPES.get(kind)
    if known is None:
        raise NotSupported(
            f"{name} is {kind.name}: tensors are of {', '.join(member.name for member in _DTYPES)}"
        )
    return known


def data_type_of(dtype: str) -> cudnnDataType_t:
    """The other way round."""
    return _DATA_TYPES[dtype]


def format_of(format: Any, name: str = "format") -> cudnnTensorFormat_t:
    """A format of tensors. Raises BadParam, NotSupported."""
    found = choice(cudnnTensorFormat_t, format, name)
    if found is cudnnTensorFormat_t.CUDNN_TENSOR_NCHW_VECT_C:
        raise NotSupported(f"{name} is {found.name}: vectors of channels are not there, use NHWC for int8")
    return found


def layout_of(format: cudnnTensorFormat_t) -> str:
    return "nchw" if format is cudnnTensorFormat_t.CUDNN_TENSOR_NCHW else "nhwc"


def tensor_of(tensorDesc: Any, name: str) -> TensorDescriptor:
    """What a tensor descriptor was set to. Raises BadParam."""
    return value_of(tensorDesc, cudnnTensorDescriptor, name)


def filter_of(filterDesc: Any, name: str) -> TensorDescriptor:
    """The tensor of a filter descriptor, (K, C/groups, taps). Raises BadParam."""
    return value_of(filterDesc, cudnnFilterDescriptor, name).tensor


def set_tensor(tensorDesc: Any, tensor: TensorDescriptor, name: str) -> None:
    """Set a tensor descriptor that was created."""
    alive(tensorDesc, cudnnTensorDescriptor, name).value = tensor


def _rank(nbDims: Any) -> int:
    return number(nbDims, "nbDims", _LEAST_DIMENSIONS, CUDNN_DIM_MAX)


@api
def cudnnCreateTensorDescriptor() -> cudnnTensorDescriptor:
    """Return a tensor descriptor, to be set."""
    return cudnnTensorDescriptor()


@api
def cudnnSetTensor4dDescriptor(
    tensorDesc: Any, format: int, dataType: int, n: int, c: int, h: int, w: int
) -> None:
    """Set a packed tensor of four dimensions in a format."""
    own = alive(tensorDesc, cudnnTensorDescriptor, "tensorDesc")
    order = layout_of(format_of(format))
    extents = [number(value, name, 1) for value, name in zip((n, c, h, w), "nchw", strict=True)]
    own.value = TensorDescriptor.packed(extents, dtype_of(dataType), order)


@api
def cudnnSetTensor4dDescriptorEx(
    tensorDesc: Any,
    dataType: int,
    n: int,
    c: int,
    h: int,
    w: int,
    nStride: int,
    cStride: int,
    hStride: int,
    wStride: int,
) -> None:
    """Set a tensor of four dimensions by its strides, in elements."""
    cudnnSetTensorNdDescriptor(tensorDesc, dataType, 4, (n, c, h, w), (nStride, cStride, hStride, wStride))


@api
def cudnnGetTensor4dDescriptor(tensorDesc: Any) -> tuple[Any, ...]:
    """Return (dataType, n, c, h, w, nStride, cStride, hStride, wStride)."""
    tensor = tensor_of(tensorDesc, "tensorDesc")
    if len(tensor.shape) != 4:
        raise NotSupported(f"tensorDesc has {len(tensor.shape)} dimensions: this reads 4")
    return (data_type_of(tensor.dtype), *tensor.shape, *tensor.strides)


@api
def cudnnSetTensorNdDescriptor(
    tensorDesc: Any, dataType: int, nbDims: int, dimA: Sequence[int], strideA: Sequence[int]
) -> None:
    """Set a tensor by its extents and strides, in elements: 3 to 8 dimensions, strides of 0 or more."""
    own = alive(tensorDesc, cudnnTensorDescriptor, "tensorDesc")
    rank = _rank(nbDims)
    own.value = TensorDescriptor(
        several(dimA, "dimA", rank, 1), several(strideA, "strideA", rank), dtype_of(dataType)
    )


@api
def cudnnSetTensorNdDescriptorEx(
    tensorDesc: Any, format: int, dataType: int, nbDims: int, dimA: Sequence[int]
) -> None:
    """Set a packed tensor of 3 to 8 dimensions in a format."""
    own = alive(tensorDesc, cudnnTensorDescriptor, "tensorDesc")
    order = layout_of(format_of(format))
    own.value = TensorDescriptor.packed(several(dimA, "dimA", _rank(nbDims), 1), dtype_of(dataType), order)


@api
def cudnnGetTensorNdDescriptor(tensorDesc: Any, nbDimsRequested: int) -> tuple[Any, ...]:
    """Return (dataType, nbDims, dimA, strideA), of as many dimensions as are requested."""
    tensor = tensor_of(tensorDesc, "tensorDesc")
    count = number(nbDimsRequested, "nbDimsRequested")
    return data_type_of(tensor.dtype), len(tensor.shape), tensor.shape[:count], tensor.strides[:count]


@api
def cudnnGetTensorSizeInBytes(tensorDesc: Any) -> int:
    """Return the bytes from the first element of a tensor to behind its last."""
    tensor = tensor_of(tensorDesc, "tensorDesc")
    return (tensor.span()[1] + 1) * DTYPES[tensor.dtype]


@api
def cudnnDestroyTensorDescriptor(tensorDesc: Any) -> None:
    """Destroy a tensor descriptor."""
    destroy(tensorDesc, cudnnTensorDescriptor, "tensorDesc")


@api
def cudnnCreateFilterDescriptor() -> cudnnFilterDescriptor:
    """Return a filter descriptor, to be set."""
    return cudnnFilterDescriptor()


@api
def cudnnSetFilter4dDescriptor(
    filterDesc: Any, dataType: int, format: int, k: int, c: int, h: int, w: int
) -> None:
    """Set a filter of two axes of space, in memory as KCHW or KHWC."""
    cudnnSetFilterNdDescriptor(filterDesc, dataType, format, 4, (k, c, h, w))


@api
def cudnnGetFilter4dDescriptor(filterDesc: Any) -> tuple[Any, ...]:
    """Return (dataType, format, k, c, h, w)."""
    own = value_of(filterDesc, cudnnFilterDescriptor, "filterDesc")
    if len(own.tensor.shape) != 4:
        raise NotSupported(f"filterDesc has {len(own.tensor.shape)} dimensions: this reads 4")
    return (data_type_of(own.tensor.dtype), own.format, *own.tensor.shape)


@api
def cudnnSetFilterNdDescriptor(
    filterDesc: Any, dataType: int, format: int, nbDims: int, filterDimA: Sequence[int]
) -> None:
    """Set a filter of 3 to 8 dimensions (K, C/groups, taps)."""
    own = alive(filterDesc, cudnnFilterDescriptor, "filterDesc")
    order = format_of(format)
    extents = several(filterDimA, "filterDimA", _rank(nbDims), 1)
    own.value = Filter(TensorDescriptor.packed(extents, dtype_of(dataType), layout_of(order)), order)


@api
def cudnnGetFilterNdDescriptor(filterDesc: Any, nbDimsRequested: int) -> tuple[Any, ...]:
    """Return (dataType, format, nbDims, filterDimA), of as many dimensions as are requested."""
    own = value_of(filterDesc, cudnnFilterDescriptor, "filterDesc")
    count, shape = number(nbDimsRequested, "nbDimsRequested"), own.tensor.shape
    return data_type_of(own.tensor.dtype), own.format, len(shape), shape[:count]


@api
def cudnnGetFilterSizeInBytes(filterDesc: Any) -> int:
    """Return the bytes of a filter."""
    return filter_of(filterDesc, "filterDesc").nbytes


@api
def cudnnDestroyFilterDescriptor(filterDesc: Any) -> None:
    """Destroy a filter descriptor."""
    destroy(filterDesc, cudnnFilterDescriptor, "filterDesc")
