"""Convolution descriptors, the extents of results, and problems made from descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.enums import (
    CUDNN_DIM_MAX,
    cudnnConvolutionMode_t,
    cudnnDataType_t,
    cudnnMathType_t,
    cudnnReorderType_t,
)
from jitdnn.frameworks.cudnn_api.objects import Descriptor, alive, choice, destroy, number, several, value_of
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import dtype_of, filter_of, tensor_of
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import BYTE_INTEGERS
from jitdnn.tensor import TensorDescriptor

_SPACE = CUDNN_DIM_MAX - 2
_T = cudnnDataType_t
# the arithmetic that the data of each type is computed in
_COMPUTED = {
    "f64": (_T.CUDNN_DATA_DOUBLE,),
    "i8": (_T.CUDNN_DATA_INT32, _T.CUDNN_DATA_FLOAT),
    "u8": (_T.CUDNN_DATA_INT32, _T.CUDNN_DATA_FLOAT),
    "f16": (_T.CUDNN_DATA_FLOAT, _T.CUDNN_DATA_HALF),
    "bf16": (_T.CUDNN_DATA_FLOAT, _T.CUDNN_DATA_BFLOAT16),
}


class Form(NamedTuple):
    """What a convolution descriptor is set to."""

    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    mode: cudnnConvolutionMode_t
    computed: cudnnDataType_t


class cudnnConvolutionDescriptor(Descriptor[Form]):
    """Padding, strides, dilations; groups and the kind of arithmetic are set apart."""

    __slots__ = ("groups", "math", "reorder")

    def __init__(self) -> None:
        super().__init__()
        self.groups = 1
        self.math = cudnnMathType_t.CUDNN_DEFAULT_MATH
        self.reorder = cudnnReorderType_t.CUDNN_DEFAULT_REORDER


def _alive(convDesc: Any) -> cudnnConvolutionDescriptor:
    return alive(convDesc, cudnnConvolutionDescriptor, "convDesc")


def _form(convDesc: Any) -> Form:
    return value_of(convDesc, cudnnConvolutionDescriptor, "convDesc")


def form_of(convDesc: Any) -> tuple[Form, int, cudnnMathType_t]:
    """All that a convolution descriptor says. Raises BadParam."""
    own = _alive(convDesc)
    return _form(convDesc), own.groups, own.math


def math_of(convDesc: Any) -> cudnnMathType_t:
    """The arithmetic that a convolution allows."""
    return _alive(convDesc).math


def problem_of(
    direction: str, x: TensorDescriptor, w: TensorDescriptor, convDesc: Any, y: TensorDescriptor
) -> Convolution:
    """The convolution, or the gradient, of these tensors. Raises BadParam, InvalidArgument, NotSupported."""
    form, own = _form(convDesc), _alive(convDesc)
    expected = output_of(form, own.groups, x, w)
    if y.shape != expected:
        raise BadParam(
            f"y has extents {y.shape}: the convolution of x {x.shape} by w {w.shape} has {expected}"
        )
    known = _COMPUTED.get(x.dtype, (_T.CUDNN_DATA_FLOAT,))
    if form.computed not in known:
        raise NotSupported(
            f"computeType is {form.computed.name}: tensors of {x.dtype} are computed in "
            f"{' or '.join(kind.name for kind in known)}"
        )
    if direction != "fwd" and x.dtype in BYTE_INTEGERS:
        raise NotSupported(f"x is {x.dtype}: gradients are of real numbers")
    mode = "convolution" if form.mode is cudnnConvolutionMode_t.CUDNN_CONVOLUTION else "cross_correlation"
    return Convolution.make(direction, x, w, form.strides, form.pads, form.dilations, own.groups, mode, y=y)


def output_of(form: Form, groups: int, x: TensorDescriptor, w: TensorDescriptor) -> tuple[int, ...]:
    """The extents of the result. Raises BadParam."""
    rank = len(x.shape) - 2
    if len(w.shape) - 2 != rank or len(form.pads) != rank:
        raise BadParam(
            f"x has {rank} axes of space, w {len(w.shape) - 2} and convDesc {len(form.pads)}: they must have as many"
        )
    if x.shape[1] != w.shape[1] * groups:
        raise BadParam(
            f"x has {x.shape[1]} channels, w takes {w.shape[1]} for each of {groups} groups: they must be equal"
        )
    if w.shape[0] % groups:
        raise BadParam(f"w has {w.shape[0]} filters, which {groups} groups do not share")
    space = []
    for axis in range(rank):
        spanned = (w.shape[axis + 2] - 1) * form.dilations[axis] + 1
        extent = x.shape[axis + 2] + 2 * form.pads[axis]
        if extent < spanned:
            raise BadParam(
                f"the filter spans {spanned} elements of an axis that has {extent} with its padding"
            )
        space.append((extent - spanned) // form.strides[axis] + 1)
    return (x.shape[0], w.shape[0], *space)


@api
def cudnnCreateConvolutionDescriptor() -> cudnnConvolutionDescriptor:
    """Return a convolution descriptor, to be set."""
    return cudnnConvolutionDescriptor()


@api
def cudnnDestroyConvolutionDescriptor(convDesc: Any) -> None:
    """Destroy a convolution descriptor."""
    destroy(convDesc, cudnnConvolutionDescriptor, "convDesc")


@api
def cudnnSetConvolutionMathType(convDesc: Any, mathType: int) -> None:
    """Say which arithmetic is allowed: TENSOR_OP allows tf32, ALLOW_CONVERSION fp16, FMA demands fp32, DEFAULT is what
    the settings say."""
    _alive(convDesc).math = choice(cudnnMathType_t, mathType, "mathType")


@api
def cudnnGetConvolutionMathType(convDesc: Any) -> cudnnMathType_t:
    """Return which arithmetic is allowed."""
    return _alive(convDesc).math


@api
def cudnnSetConvolutionGroupCount(convDesc: Any, groupCount: int) -> None:
    """Set the number of groups that the channels are divided into."""
    _alive(convDesc).groups = number(groupCount, "groupCount", 1)


@api
def cudnnGetConvolutionGroupCount(convDesc: Any) -> int:
    """Return the number of groups."""
    return _alive(convDesc).groups


@api
def cudnnSetConvolutionReorderType(convDesc: Any, reorderType: int) -> None:
    """Note whether int8x32 filters are reordered; it changes nothing, for there are none."""
    _alive(convDesc).reorder = choice(cudnnReorderType_t, reorderType, "reorderType")


@api
def cudnnGetConvolutionReorderType(convDesc: Any) -> cudnnReorderType_t:
    """Return what was noted."""
    return _alive(convDesc).reorder


@api
def cudnnSetConvolution2dDescriptor(
    convDesc: Any,
    pad_h: int,
    pad_w: int,
    u: int,
    v: int,
    dilation_h: int,
    dilation_w: int,
    mode: int,
    computeType: int,
) -> None:
    """Set padding, strides u (vertical) and v, dilations, and the type of the arithmetic."""
    cudnnSetConvolutionNdDescriptor(
        convDesc, 2, (pad_h, pad_w), (u, v), (dilation_h, dilation_w), mode, computeType
    )


@api
def cudnnGetConvolution2dDescriptor(convDesc: Any) -> tuple[Any, ...]:
    """Return (pad_h, pad_w, u, v, dilation_h, dilation_w, mode, computeType)."""
    form = _form(convDesc)
    if len(form.pads) != 2:
        raise NotSupported(f"convDesc has {len(form.pads)} axes of space: this reads 2")
    return (*form.pads, *form.strides, *form.dilations, form.mode, form.computed)


@api
def cudnnSetConvolutionNdDescriptor(
    convDesc: Any,
    arrayLength: int,
    padA: Sequence[int],
    filterStrideA: Sequence[int],
    dilationA: Sequence[int],
    mode: int,
    computeType: int,
) -> None:
    """Set padding, strides and dilations of each axis of space, and the type of the arithmetic."""
    own = _alive(convDesc)
    rank = number(arrayLength, "arrayLength", 1, _SPACE)
    computed = choice(cudnnDataType_t, computeType, "computeType")
    dtype_of(computed, "computeType")
    own.value = Form(
        several(padA, "padA", rank),
        several(filterStrideA, "filterStrideA", rank, 1),
        several(dilationA, "dilationA", rank, 1),
        choice(cudnnConvolutionMode_t, mode, "mode"),
        computed,
    )


@api
def cudnnGetConvolutionNdDescriptor(convDesc: Any, arrayLengthRequested: int) -> tuple[Any, ...]:
    """Return (arrayLength, padA, strideA, dilationA, mode, computeType), of as many axes as are requested."""
    form = _form(convDesc)
    count = number(arrayLengthRequested, "arrayLengthRequested")
    axes = (form.pads[:count], form.strides[:count], form.dilations[:count])
    return (len(form.pads), *axes, form.mode, form.computed)


@api
def cudnnGetConvolution2dForwardOutputDim(
    convDesc: Any, inputTensorDesc: Any, filterDesc: Any
) -> tuple[int, ...]:
    """Return (n, c, h, w) of the result."""
    found = cudnnGetConvolutionNdForwardOutputDim(convDesc, inputTensorDesc, filterDesc, 4)
    if len(_form(convDesc).pads) != 2:
        raise BadParam(f"convDesc has {len(_form(convDesc).pads)} axes of space: this reads 2")
    return found


@api
def cudnnGetConvolutionNdForwardOutputDim(
    convDesc: Any, inputTensorDesc: Any, filterDesc: Any, nbDims: int
) -> tuple[int, ...]:
    """Return the extents of the result."""
    x, w = tensor_of(inputTensorDesc, "inputTensorDesc"), filter_of(filterDesc, "filterDesc")
    found = output_of(_form(convDesc), _alive(convDesc).groups, x, w)
    if number(nbDims, "nbDims") != len(found):
        raise BadParam(f"nbDims is {nbDims}: the result has {len(found)} dimensions")
    return found
