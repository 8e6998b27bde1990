"""Get, Find and FindEx of algorithms, and the workspace of each, for the three directions of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from jitdnn.frameworks.cudnn_api.convolution_algorithms import FAMILIES, AlgoPerf, Asked
from jitdnn.frameworks.cudnn_api.enums import (
    cudnnConvolutionBwdDataAlgo_t,
    cudnnConvolutionBwdFilterAlgo_t,
    cudnnConvolutionFwdAlgo_t,
)
from jitdnn.frameworks.cudnn_api.handles import checked
from jitdnn.frameworks.cudnn_api.launch import device_of
from jitdnn.frameworks.cudnn_api.memory import Described, bound_all, space, with_room
from jitdnn.frameworks.cudnn_api.objects import byte_count, choice, number
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.tensors import filter_of, tensor_of


def asked(handle: Any, direction: str, xDesc: Any, wDesc: Any, convDesc: Any, yDesc: Any) -> Asked:
    """The convolution that descriptors say, those of a gradient included."""
    names = {
        "fwd": ("xDesc", "wDesc", "yDesc"),
        "bwd_data": ("dxDesc", "wDesc", "dyDesc"),
        "bwd_filter": ("xDesc", "dwDesc", "dyDesc"),
    }[direction]
    owner = checked(handle)
    x, w, y = tensor_of(xDesc, names[0]), filter_of(wDesc, names[1]), tensor_of(yDesc, names[2])
    return Asked.of(owner, direction, x, w, convDesc, y)


def _get(found: Asked, requestedAlgoCount: int) -> list[AlgoPerf]:
    count = number(requestedAlgoCount, "requestedAlgoCount", 1)
    return found.results(found.candidates(found.device_id), count)


def _find(found: Asked, requestedAlgoCount: int) -> list[AlgoPerf]:
    count = number(requestedAlgoCount, "requestedAlgoCount", 1)
    return found.results(found.measured(found.device_id), count)


def _find_ex(
    found: Asked, requestedAlgoCount: int, arrays: Sequence[Described], workSpace: Any, size: int
) -> list[AlgoPerf]:
    """Those that the workspace does for, measured. The arrays say where; others are measured with, so that the caller's
    stay as they are."""
    given = bound_all(arrays)
    count = number(requestedAlgoCount, "requestedAlgoCount", 1)
    size = byte_count(size, "workSpaceSizeInBytes")
    lent = space(workSpace, size, min(size, 1), "workSpace")
    device_id = device_of(given if lent is None else [*given, ("workSpace", lent)])
    candidates = [
        one for one in found.measured(device_id) if one.workspace is None or with_room(one.workspace) <= size
    ]
    return found.results(candidates, count)


def _workspace(found: Asked, algo: IntEnum) -> int:
    return with_room(found.plan(algo, found.device_id).workspace)


@api
def cudnnGetConvolutionForwardAlgorithmMaxCount(handle: Any) -> int:
    """Return the number of algorithms forward."""
    checked(handle)
    return len(FAMILIES["fwd"])


@api
def cudnnGetConvolutionForwardAlgorithm_v7(
    handle: Any, srcDesc: Any, filterDesc: Any, convDesc: Any, destDesc: Any, requestedAlgoCount: int
) -> list[AlgoPerf]:
    """Return [(algo, status, time, memory, determinism, mathType)], the fastest by estimate or stored time first."""
    return _get(asked(handle, "fwd", srcDesc, filterDesc, convDesc, destDesc), requestedAlgoCount)


@api
def cudnnFindConvolutionForwardAlgorithm(
    handle: Any, xDesc: Any, wDesc: Any, convDesc: Any, yDesc: Any, requestedAlgoCount: int
) -> list[AlgoPerf]:
    """Return the same with times that are measured now, in buffers of its own."""
    return _find(asked(handle, "fwd", xDesc, wDesc, convDesc, yDesc), requestedAlgoCount)


@api
def cudnnFindConvolutionForwardAlgorithmEx(
    handle: Any,
    xDesc: Any,
    x: Any,
    wDesc: Any,
    w: Any,
    convDesc: Any,
    yDesc: Any,
    y: Any,
    requestedAlgoCount: int,
    workSpace: Any,
    workSpaceSizeInBytes: int,
) -> list[AlgoPerf]:
    """Return the same for the device of the arrays and within the workspace; the arrays are not written."""
    found = asked(handle, "fwd", xDesc, wDesc, convDesc, yDesc)
    arrays = [("x", x, found.problem.x), ("w", w, found.problem.w), ("y", y, found.problem.y)]
    return _find_ex(found, requestedAlgoCount, arrays, workSpace, workSpaceSizeInBytes)


@api
def cudnnGetConvolutionForwardWorkspaceSize(
    handle: Any, xDesc: Any, wDesc: Any, convDesc: Any, yDesc: Any, algo: int
) -> int:
    """Return the bytes of workspace that an algorithm needs forward."""
    known = choice(cudnnConvolutionFwdAlgo_t, algo, "algo")
    return _workspace(asked(handle, "fwd", xDesc, wDesc, convDesc, yDesc), known)


@api
def cudnnGetConvolutionBackwardDataAlgorithmMaxCount(handle: Any) -> int:
    """Return the number of algorithms for the gradient of the data."""
    checked(handle)
    return len(FAMILIES["bwd_data"])


@api
def cudnnGetConvolutionBackwardDataAlgorithm_v7(
    handle: Any, filterDesc: Any, diffDesc: Any, convDesc: Any, gradDesc: Any, requestedAlgoCount: int
) -> list[AlgoPerf]:
    """Return the algorithms of the gradient of the data, the fastest by estimate or stored time first."""
    return _get(asked(handle, "bwd_data", gradDesc, filterDesc, convDesc, diffDesc), requestedAlgoCount)


@api
def cudnnFindConvolutionBackwardDataAlgorithm(
    handle: Any, wDesc: Any, dyDesc: Any, convDesc: Any, dxDesc: Any, requestedAlgoCount: int
) -> list[AlgoPerf]:
    """Return the same with times that are measured now, in buffers of its own."""
    return _find(asked(handle, "bwd_data", dxDesc, wDesc, convDesc, dyDesc), requestedAlgoCount)


@api
def cudnnFindConvolutionBackwardDataAlgorithmEx(
    handle: Any,
    wDesc: Any,
    w: Any,
    dyDesc: Any,
    dy: Any,
    convDesc: Any,
    dxDesc: Any,
    dx: Any,
    requestedAlgoCount: int,
    workSpace: Any,
    workSpaceSizeInBytes: int,
) -> list[AlgoPerf]:
    """Return the same for the device of the arrays and within the workspace; the arrays are not written."""
    found = asked(handle, "bwd_data", dxDesc, wDesc, convDesc, dyDesc)
    arrays = [("w", w, found.problem.w), ("dy", dy, found.problem.y), ("dx", dx, found.problem.x)]
    return _find_ex(found, requestedAlgoCount, arrays, workSpace, workSpaceSizeInBytes)


@api
def cudnnGetConvolutionBackwardDataWorkspaceSize(
    handle: Any, wDesc: Any, dyDesc: Any, convDesc: Any, dxDesc: Any, algo: int
) -> int:
    """Return the bytes of workspace that an algorithm needs for the gradient of the data."""
    known = choice(cudnnConvolutionBwdDataAlgo_t, algo, "algo")
    return _workspace(asked(handle, "bwd_data", dxDesc, wDesc, convDesc, dyDesc), known)


@api
def cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(handle: Any) -> int:
    """Return the number of algorithms for the gradient of the filter."""
    checked(handle)
    return len(FAMILIES["bwd_filter"])


@api
def cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    handle: Any, srcDesc: Any, diffDesc: Any, convDesc: Any, gradDesc: Any, requestedAlgoCount: int
) -> list[AlgoPerf]:
    """Return the algorithms of the gradient of the filter, the fastest by estimate or stored time first."""
    return _get(asked(handle, "bwd_filter", srcDesc, gradDesc, convDesc, diffDesc), requestedAlgoCount)


@api
def cudnnFindConvolutionBackwardFilterAlgorithm(
    handle: Any, xDesc: Any, dyDesc: Any, convDesc: Any, dwDesc: Any, requestedAlgoCount: int
) -> list[AlgoPerf]:
    """Return the same with times that are measured now, in buffers of its own."""
    return _find(asked(handle, "bwd_filter", xDesc, dwDesc, convDesc, dyDesc), requestedAlgoCount)


@api
def cudnnFindConvolutionBackwardFilterAlgorithmEx(
    handle: Any,
    xDesc: Any,
    x: Any,
    dyDesc: Any,
    y: Any,
    convDesc: Any,
    dwDesc: Any,
    dw: Any,
    requestedAlgoCount: int,
    workSpace: Any,
    workSpaceSizeInBytes: int,
) -> list[AlgoPerf]:
    """Return the same for the device of the arrays and within the workspace; the arrays are not written."""
    found = asked(handle, "bwd_filter", xDesc, dwDesc, convDesc, dyDesc)
    arrays = [("x", x, found.problem.x), ("y", y, found.problem.y), ("dw", dw, found.problem.w)]
    return _find_ex(found, requestedAlgoCount, arrays, workSpace, workSpaceSizeInBytes)


@api
def cudnnGetConvolutionBackwardFilterWorkspaceSize(
    handle: Any, xDesc: Any, dyDesc: Any, convDesc: Any, gradDesc: Any, algo: int
) -> int:
    """Return the bytes of workspace that an algorithm needs for the gradient of the filter."""
    known = choice(cudnnConvolutionBwdFilterAlgo_t, algo, "algo")
    return _workspace(asked(handle, "bwd_filter", xDesc, gradDesc, convDesc, dyDesc), known)
