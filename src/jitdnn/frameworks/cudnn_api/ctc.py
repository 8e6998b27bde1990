"""CTC loss: its descriptor in the forms of four versions, the workspace, the loss and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import jitdnn as jd
from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.enums import (
    cudnnCTCGradMode_t,
    cudnnCTCLossAlgo_t,
    cudnnDataType_t,
    cudnnLossNormalizationMode_t,
    cudnnNanPropagation_t,
)
from jitdnn.frameworks.cudnn_api.handles import checked, inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import Descriptor, alive, choice, destroy, number, several, value_of
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import dtype_of, tensor_of
from jitdnn.ops.fetch import fetched
from jitdnn.ops.to_device import beside
from jitdnn.tensor import TensorDescriptor, borrow, numpy_dtype

_MOST_LABELS = 1 << 20


class Loss(NamedTuple):
    """What a CTC descriptor is set to."""

    computed: cudnnDataType_t
    norm: cudnnLossNormalizationMode_t = cudnnLossNormalizationMode_t.CUDNN_LOSS_NORMALIZATION_NONE
    nan: cudnnNanPropagation_t = cudnnNanPropagation_t.CUDNN_NOT_PROPAGATE_NAN
    grad: cudnnCTCGradMode_t = cudnnCTCGradMode_t.CUDNN_CTC_ZERO_OOB_GRADIENTS
    longest: int = 0


class cudnnCTCLossDescriptor(Descriptor[Loss]):
    """The type of a CTC loss, and whether its input is normalized."""


def _loss(ctcLossDesc: Any) -> Loss:
    return value_of(ctcLossDesc, cudnnCTCLossDescriptor, "ctcLossDesc")


def _set(ctcLossDesc: Any, compType: int, **given: Any) -> None:
    own = alive(ctcLossDesc, cudnnCTCLossDescriptor, "ctcLossDesc")
    computed = choice(cudnnDataType_t, compType, "compType")
    if dtype_of(computed, "compType") not in ("f32", "f64"):
        raise NotSupported(f"compType is {computed.name}: losses are computed in float or double")
    own.value = Loss(computed, **given)


@api
def cudnnCreateCTCLossDescriptor() -> cudnnCTCLossDescriptor:
    """Return a descriptor of CTC losses, to be set."""
    return cudnnCTCLossDescriptor()


@api
def cudnnSetCTCLossDescriptor(ctcLossDesc: Any, compType: int) -> None:
    """Set the type; the input is probabilities."""
    _set(ctcLossDesc, compType)


@api
def cudnnSetCTCLossDescriptorEx(ctcLossDesc: Any, compType: int, normMode: int, gradMode: int) -> None:
    """Set the type, and whether a softmax makes probabilities of the input."""
    _set(
        ctcLossDesc,
        compType,
        norm=choice(cudnnLossNormalizationMode_t, normMode, "normMode"),
        nan=choice(cudnnNanPropagation_t, gradMode, "gradMode"),
    )


@api
def cudnnSetCTCLossDescriptor_v8(
    ctcLossDesc: Any, compType: int, normMode: int, gradMode: int, maxLabelLength: int
) -> None:
    """The same with the most labels of a sequence, for cudnnCTCLoss_v8."""
    _set(
        ctcLossDesc,
        compType,
        norm=choice(cudnnLossNormalizationMode_t, normMode, "normMode"),
        nan=choice(cudnnNanPropagation_t, gradMode, "gradMode"),
        longest=number(maxLabelLength, "maxLabelLength"),
    )


@api
def cudnnSetCTCLossDescriptor_v9(
    ctcLossDesc: Any, compType: int, normMode: int, ctcGradMode: int, maxLabelLength: int
) -> None:
    """The same with what becomes of gradients behind a sequence's end."""
    _set(
        ctcLossDesc,
        compType,
        norm=choice(cudnnLossNormalizationMode_t, normMode, "normMode"),
        grad=choice(cudnnCTCGradMode_t, ctcGradMode, "ctcGradMode"),
        longest=number(maxLabelLength, "maxLabelLength"),
    )


@api
def cudnnGetCTCLossDescriptor(ctcLossDesc: Any) -> cudnnDataType_t:
    """Return compType."""
    return _loss(ctcLossDesc).computed


@api
def cudnnGetCTCLossDescriptorEx(ctcLossDesc: Any) -> tuple[Any, ...]:
    """Return (compType, normMode, gradMode)."""
    return _loss(ctcLossDesc)[:3]


@api
def cudnnGetCTCLossDescriptor_v8(ctcLossDesc: Any) -> tuple[Any, ...]:
    """Return (compType, normMode, gradMode, maxLabelLength)."""
    own = _loss(ctcLossDesc)
    return own.computed, own.norm, own.nan, own.longest


@api
def cudnnGetCTCLossDescriptor_v9(ctcLossDesc: Any) -> tuple[Any, ...]:
    """Return (compType, normMode, ctcGradMode, maxLabelLength)."""
    own = _loss(ctcLossDesc)
    return own.computed, own.norm, own.grad, own.longest


@api
def cudnnDestroyCTCLossDescriptor(ctcLossDesc: Any) -> None:
    """Destroy a descriptor of CTC losses."""
    destroy(ctcLossDesc, cudnnCTCLossDescriptor, "ctcLossDesc")


def _probabilities(probsDesc: Any, gradientsDesc: Any) -> TensorDescriptor:
    tensor = tensor_of(probsDesc, "probsDesc")
    if len(tensor.shape) != 3:
        raise BadParam(f"probsDesc has extents {tensor.shape}: they must be (times, batch, symbols)")
    if gradientsDesc is not None and tensor_of(gradientsDesc, "gradientsDesc").shape != tensor.shape:
        raise BadParam(f"gradientsDesc has other extents than probsDesc, {tensor.shape}: they must be equal")
    return tensor


@api
def cudnnGetCTCLossWorkspaceSize(
    handle: Any,
    probsDesc: Any,
    gradientsDesc: Any,
    labels: Sequence[int],
    labelLengths: Sequence[int],
    inputLengths: Sequence[int],
    algo: int,
    ctcLossDesc: Any,
) -> int:
    """Return 0: the handle keeps the scratch memory of losses."""
    checked(handle)
    choice(cudnnCTCLossAlgo_t, algo, "algo")
    tensor = _probabilities(probsDesc, gradientsDesc)
    _loss(ctcLossDesc)
    batch = tensor.shape[1]
    counts = several(labelLengths, "labelLengths", batch, 0, _MOST_LABELS)
    several(labels, "labels", sum(counts))
    several(inputLengths, "inputLengths", batch, 0, tensor.shape[0])
    return 0


@api
def cudnnGetCTCLossWorkspaceSize_v8(
    handle: Any, algo: int, ctcLossDesc: Any, probsDesc: Any, gradientsDesc: Any
) -> int:
    """Return 0: the handle keeps the scratch memory of losses."""
    checked(handle)
    choice(cudnnCTCLossAlgo_t, algo, "algo")
    _probabilities(probsDesc, gradientsDesc), _loss(ctcLossDesc)
    return 0


@api
def cudnnCTCLoss(
    handle: Any,
    probsDesc: Any,
    probs: Any,
    hostLabels: Any,
    hostLabelLengths: Any,
    hostInputLengths: Any,
    costs: Any,
    gradientsDesc: Any,
    gradients: Any,
    algo: int,
    ctcLossDesc: Any,
    workspace: Any,
    workSpaceSizeInBytes: int,
) -> None:
    """The loss of each sequence, and its gradient unless gradients is None: that of the activations. Labels come one
    sequence after the other; 0 is the blank."""
    own, loss = inner(handle), _loss(ctcLossDesc)
    choice(cudnnCTCLossAlgo_t, algo, "algo")
    tensor = _probabilities(probsDesc, None if gradients is None else gradientsDesc)
    times, batch, _ = tensor.shape
    counts = several(hostLabelLengths, "hostLabelLengths", batch, 0, _MOST_LABELS)
    lengths = several(hostInputLengths, "hostInputLengths", batch, 0, times)
    labels = several(hostLabels, "hostLabels", sum(counts)) if sum(counts) else ()
    is_raw = loss.norm is cudnnLossNormalizationMode_t.CUDNN_LOSS_NORMALIZATION_SOFTMAX
    source = bound(probs, tensor, "probs")
    symbols, times_of, counts_of = (np.array(values, np.int32) for values in (labels, lengths, counts))
    how: dict[str, Any] = {"reduction": "none", "inputs": "logits" if is_raw else "probs", "handle": own}
    target = bound(costs, TensorDescriptor((batch,), (1,), tensor.dtype), "costs", True)
    jd.ctc_loss(source, symbols, times_of, counts_of, **how, out=target)
    if gradients is None:
        return
    slope = bound(gradients, tensor_of(gradientsDesc, "gradientsDesc"), "gradients", True)
    ones = beside(np.ones(batch, numpy_dtype(tensor.dtype)), source)
    skips = loss.grad is cudnnCTCGradMode_t.CUDNN_CTC_SKIP_OOB_GRADIENTS
    if not skips:
        jd.ctc_loss_backward(ones, source, symbols, times_of, counts_of, **how, out=slope)
        return
    found = borrow(jd.ctc_loss_backward(ones, source, symbols, times_of, counts_of, **how))
    for number_, length in enumerate(lengths):  # what lies behind an end stays as it is
        part = (slice(0, length), slice(number_, number_ + 1))
        if length:
            jd.transform(found.part(*part), out=slope.part(*part), handle=own)


@api
def cudnnCTCLoss_v8(
    handle: Any,
    algo: int,
    ctcLossDesc: Any,
    probsDesc: Any,
    probs: Any,
    labels: Any,
    labelLengths: Any,
    inputLengths: Any,
    costs: Any,
    gradientsDesc: Any,
    gradients: Any,
    workSpaceSizeInBytes: int,
    workspace: Any,
) -> None:
    """The same with labels and lengths in int32 arrays where the probabilities are."""
    longest = _loss(ctcLossDesc).longest
    index = [
        fetched(borrow(array, False, name)).ravel()
        for array, name in (
            (labels, "labels"),
            (labelLengths, "labelLengths"),
            (inputLengths, "inputLengths"),
        )
    ]
    if index[1].size and index[1].max() > longest:
        raise BadParam(f"labelLengths has {index[1].max()}: maxLabelLength in ctcLossDesc is {longest}")
    cudnnCTCLoss(
        handle, probsDesc, probs, index[0], index[1], index[2], costs, gradientsDesc, gradients, algo, ctcLossDesc,
        workspace, workSpaceSizeInBytes,
    )  # fmt: skip
