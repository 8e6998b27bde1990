"""Convolutions and their gradients, in the workspace that the caller gives."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import jitdnn as jd
from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.activation import Activated, activated
from jitdnn.frameworks.cudnn_api.convolution import cudnnConvolutionDescriptor, output_of
from jitdnn.frameworks.cudnn_api.convolution_algorithms import Asked
from jitdnn.frameworks.cudnn_api.convolution_queries import asked
from jitdnn.frameworks.cudnn_api.enums import (
    cudnnConvolutionBwdDataAlgo_t,
    cudnnConvolutionBwdFilterAlgo_t,
    cudnnConvolutionFwdAlgo_t,
    cudnnConvolutionMode_t,
)
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.launch import device_of, launch
from jitdnn.frameworks.cudnn_api.memory import Described, bound, bound_all, placed
from jitdnn.frameworks.cudnn_api.objects import blend, byte_count, choice, real, value_of
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import filter_of, tensor_of
from jitdnn.ops.epilogue import fuse
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.tensor import DTYPES, TensorDescriptor, borrow


def _run(
    found: Asked, algo: IntEnum, arrays: Sequence[Described], alpha: Any, beta: Any, workSpace: Any, size: Any
) -> None:
    """Run an algorithm over both inputs and the output, the last of the arrays."""
    size = byte_count(size, "workSpaceSizeInBytes")
    scales = blend(alpha, beta)
    *inputs, output = bound_all(arrays)
    plan = found.plan(algo, device_of([*inputs, output]))
    launch(found.handle, plan, inputs, [output], **scales, workSpace=workSpace, workSpaceSizeInBytes=size)


@api
def cudnnConvolutionForward(
    handle: Any,
    alpha: float,
    xDesc: Any,
    x: Any,
    wDesc: Any,
    w: Any,
    convDesc: Any,
    algo: int,
    workSpace: Any,
    workSpaceSizeInBytes: int,
    beta: float,
    yDesc: Any,
    y: Any,
) -> None:
    """y = alpha * conv(x, w) + beta * y."""
    known = choice(cudnnConvolutionFwdAlgo_t, algo, "algo")
    found = asked(handle, "fwd", xDesc, wDesc, convDesc, yDesc)
    arrays = [("x", x, found.problem.x), ("w", w, found.problem.w), ("y", y, found.problem.y)]
    _run(found, known, arrays, alpha, beta, workSpace, workSpaceSizeInBytes)


@api
def cudnnConvolutionBiasActivationForward(
    handle: Any,
    alpha1: float,
    xDesc: Any,
    x: Any,
    wDesc: Any,
    w: Any,
    convDesc: Any,
    algo: int,
    workSpace: Any,
    workSpaceSizeInBytes: int,
    alpha2: float,
    zDesc: Any,
    z: Any,
    biasDesc: Any,
    bias: Any,
    activationDesc: Any,
    yDesc: Any,
    y: Any,
) -> None:
    """y = act(alpha1 * conv(x, w) + alpha2 * z + bias); z may be y, or None where alpha2 is 0."""
    known = choice(cudnnConvolutionFwdAlgo_t, algo, "algo")
    found = asked(handle, "fwd", xDesc, wDesc, convDesc, yDesc)
    size = byte_count(workSpaceSizeInBytes, "workSpaceSizeInBytes")
    problem = found.problem
    scales = real(alpha1, "alpha1"), real(alpha2, "alpha2")
    inputs = [("x", bound(x, problem.x, "x")), ("w", bound(w, problem.w, "w"))]
    output = ("y", bound(y, problem.y, "y", True))
    operands = [("bias", bound(bias, _bias_of(biasDesc, "biasDesc", problem.y), "bias"))]
    if scales[1] != 0.0:
        own = tensor_of(zDesc, "zDesc")
        if own.shape != problem.y.shape:
            raise BadParam(f"z has extents {own.shape} and y {problem.y.shape}: they must be equal")
        operands.append(("z", bound(z, own, "z")))
    expression = _epilogue(scales, len(operands) > 1, activated(activationDesc))
    epilogue = fuse(expression, [array.descriptor for _, array in operands], problem.y, None)
    plan = found.plan_within(known, device_of([*inputs, output, *operands]), epilogue, size)
    launch(found.handle, plan, inputs, [output], 1.0, 0.0, workSpace, size, operands)


def _epilogue(scales: tuple[float, float], has_z: bool, activation: Activated) -> Expression:
    alpha, beta = scales

    def with_bias(total: Any, bias: Any) -> Any:
        return activation.traced(total * alpha + bias)

    def with_both(total: Any, bias: Any, z: Any) -> Any:
        return activation.traced(total * alpha + z * beta + bias)

    return trace(with_both if has_z else with_bias)


def _bias_of(biasDesc: Any, name: str, y: TensorDescriptor) -> TensorDescriptor:
    """A bias, (1, K, 1, ...), as the vector that it is."""
    own = tensor_of(biasDesc, name)
    expected = (1, y.shape[1], *[1] * (len(y.shape) - 2))
    if own.shape != expected:
        raise BadParam(f"{name} has extents {own.shape}: they must be {expected}")
    return TensorDescriptor(own.shape[1:2], own.strides[1:2], own.dtype)


@api
def cudnnConvolutionBackwardData(
    handle: Any,
    alpha: float,
    wDesc: Any,
    w: Any,
    dyDesc: Any,
    dy: Any,
    convDesc: Any,
    algo: int,
    workSpace: Any,
    workSpaceSizeInBytes: int,
    beta: float,
    dxDesc: Any,
    dx: Any,
) -> None:
    """dx = alpha * (the gradient of the data) + beta * dx."""
    known = choice(cudnnConvolutionBwdDataAlgo_t, algo, "algo")
    found = asked(handle, "bwd_data", dxDesc, wDesc, convDesc, dyDesc)
    arrays = [("dy", dy, found.problem.y), ("w", w, found.problem.w), ("dx", dx, found.problem.x)]
    _run(found, known, arrays, alpha, beta, workSpace, workSpaceSizeInBytes)


@api
def cudnnConvolutionBackwardFilter(
    handle: Any,
    alpha: float,
    xDesc: Any,
    x: Any,
    dyDesc: Any,
    dy: Any,
    convDesc: Any,
    algo: int,
    workSpace: Any,
    workSpaceSizeInBytes: int,
    beta: float,
    dwDesc: Any,
    dw: Any,
) -> None:
    """dw = alpha * (the gradient of the filter) + beta * dw."""
    known = choice(cudnnConvolutionBwdFilterAlgo_t, algo, "algo")
    found = asked(handle, "bwd_filter", xDesc, dwDesc, convDesc, dyDesc)
    arrays = [("x", x, found.problem.x), ("dy", dy, found.problem.y), ("dw", dw, found.problem.w)]
    _run(found, known, arrays, alpha, beta, workSpace, workSpaceSizeInBytes)


@api
def cudnnConvolutionBackwardBias(
    handle: Any, alpha: float, dyDesc: Any, dy: Any, beta: float, dbDesc: Any, db: Any
) -> None:
    """db = alpha * (dy summed over all but the channels) + beta * db."""
    own = inner(handle)
    tensor = tensor_of(dyDesc, "dyDesc")
    out = bound(db, _bias_of(dbDesc, "dbDesc", tensor), "db", True)
    jd.conv_backward_bias(bound(dy, tensor, "dy"), **blend(alpha, beta), out=out, handle=own)


@api
def cudnnIm2Col(handle: Any, xDesc: Any, x: Any, wDesc: Any, convDesc: Any, colBuffer: Any) -> None:
    """Write the windows of x that a convolution multiplies: (C, taps, N, output space)."""
    own = inner(handle)
    tensor, taps = tensor_of(xDesc, "xDesc"), filter_of(wDesc, "wDesc")
    form = value_of(convDesc, cudnnConvolutionDescriptor, "convDesc")
    if convDesc.groups != 1:
        raise NotSupported(f"groupCount is {convDesc.groups}: windows are written for one group")
    if len(tensor.shape) > 5:
        raise NotSupported(f"x has {len(tensor.shape)} dimensions: windows are written of 3 to 5")
    (n, c), window = tensor.shape[:2], taps.shape[2:]
    space = output_of(form, 1, tensor, taps)[2:]
    columns = TensorDescriptor.packed((c, *window, n, *space), tensor.dtype)
    image, target = bound(x, tensor, "x"), bound(colBuffer, columns, "colBuffer", True)
    if any(form.pads):
        pads = ((0, 0), (0, 0), *((pad, pad) for pad in form.pads))
        image = borrow(jd.transform(image, pad=pads, handle=own))
    laid = image.descriptor
    taps_apart = [stride * apart for stride, apart in zip(laid.strides[2:], form.dilations, strict=True)]
    apart = [stride * step for stride, step in zip(laid.strides[2:], form.strides, strict=True)]
    start = 0
    if form.mode is cudnnConvolutionMode_t.CUDNN_CONVOLUTION:  # the last tap comes first
        start = sum(step * (extent - 1) for step, extent in zip(taps_apart, window, strict=True))
        taps_apart = [-step for step in taps_apart]
    windows = TensorDescriptor(
        columns.shape, (laid.strides[1], *taps_apart, laid.strides[0], *apart), tensor.dtype
    )
    jd.transform(placed(image, windows, start * DTYPES[tensor.dtype]), out=target, handle=own)
