"""cuDNN's own names: its legacy interface as Python functions of the same names and order of arguments.

    from jitdnn.cudnn import *

    handle = cudnnCreate()
    xDesc = cudnnCreateTensorDescriptor()
    cudnnSetTensor4dDescriptor(xDesc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 8, 64, 56, 56)
    ...
    n, c, h, w = cudnnGetConvolution2dForwardOutputDim(convDesc, xDesc, wDesc)
    cudnnConvolutionForward(handle, 1.0, xDesc, x, wDesc, w, convDesc, algo, workSpace, bytes, 0.0, yDesc, y)

What C writes through pointers on the host is returned, in the order of those arguments. Arrays take the place of
pointers
on the device: they are memory, in which the descriptors say how the elements lie. A status other than success is a
`CudnnError`. Every function is in docs/cudnn_api.md; those that are not there say why when they are called.
"""

from __future__ import annotations

from typing import Any

from jitdnn.frameworks.cudnn_api import (
    activation,
    attention,
    attention_descriptors,
    batch_norm,
    convolution,
    convolution_calls,
    convolution_queries,
    ctc,
    dropout,
    handles,
    lrn,
    norm,
    pooling,
    reduce,
    refused,
    rnn,
    rnn_descriptors,
    softmax,
    spatial,
    tensor_calls,
    tensor_transforms,
    tensors,
)
from jitdnn.frameworks.cudnn_api.enums import CONSTANTS, ENUMERATIONS
from jitdnn.frameworks.cudnn_api.registry import FUNCTIONS
from jitdnn.frameworks.cudnn_api.status import (
    CudnnBadParam,
    CudnnError,
    CudnnExecutionFailed,
    CudnnNotSupported,
)

_PARTS = (
    activation, attention, attention_descriptors, batch_norm, convolution, convolution_calls, convolution_queries, ctc,
    dropout, handles, lrn, norm, pooling, reduce, refused, rnn, rnn_descriptors, softmax, spatial, tensor_calls,
    tensor_transforms, tensors,
)  # fmt: skip

_PUBLIC: dict[str, Any] = {
    **{name: entry.function for name, entry in FUNCTIONS.items()},
    **ENUMERATIONS,
    **CONSTANTS,
}
globals().update(_PUBLIC)

__all__ = ["CudnnBadParam", "CudnnError", "CudnnExecutionFailed", "CudnnNotSupported", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"cuDNN's legacy interface has no {name}: docs/cudnn_api.md lists what there is")
