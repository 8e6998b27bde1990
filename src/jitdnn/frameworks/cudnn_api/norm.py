"""The later names of batch normalization (cudnnNormalization...): scale and bias described apart from mean and
variance."""

from __future__ import annotations

from typing import Any

from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.batch_norm import fused
from jitdnn.frameworks.cudnn_api.enums import cudnnNormAlgo_t, cudnnNormMode_t, cudnnNormOps_t
from jitdnn.frameworks.cudnn_api.handles import checked
from jitdnn.frameworks.cudnn_api.normalize import Given, backward, forward, inference, parameter_tensor
from jitdnn.frameworks.cudnn_api.objects import choice, number
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.tensors import set_tensor, tensor_of

_O = cudnnNormOps_t


def _is_spatial(mode: int, groupCnt: int) -> bool:
    if number(groupCnt, "groupCnt", 1) != 1:
        raise NotSupported(
            f"groupCnt is {groupCnt}: it must be 1, as cuDNN says too (jd.group_norm has groups)"
        )
    return choice(cudnnNormMode_t, mode, "mode") is cudnnNormMode_t.CUDNN_NORM_PER_CHANNEL


def _ops(normOps: int, algo: int, activationDesc: Any) -> tuple[str, bool]:
    known = choice(_O, normOps, "normOps")
    choice(cudnnNormAlgo_t, algo, "algo")
    adds = known is _O.CUDNN_NORM_OPS_NORM_ADD_ACTIVATION
    return fused(known is not _O.CUDNN_NORM_OPS_NORM, activationDesc), adds


@api
def cudnnDeriveNormTensorDescriptor(
    derivedNormScaleBiasDesc: Any, derivedNormMeanVarDesc: Any, xDesc: Any, mode: int, groupCnt: int
) -> None:
    """Set the tensors of scale and bias, and of mean and variance, for an x."""
    derived = parameter_tensor(tensor_of(xDesc, "xDesc"), _is_spatial(mode, groupCnt))
    set_tensor(derivedNormScaleBiasDesc, derived, "derivedNormScaleBiasDesc")
    set_tensor(derivedNormMeanVarDesc, derived, "derivedNormMeanVarDesc")


@api
def cudnnNormalizationForwardInference(
    handle: Any,
    mode: int,
    normOps: int,
    algo: int,
    alpha: float,
    beta: float,
    xDesc: Any,
    x: Any,
    normScaleBiasDesc: Any,
    normScale: Any,
    normBias: Any,
    normMeanVarDesc: Any,
    estimatedMean: Any,
    estimatedVariance: Any,
    zDesc: Any,
    z: Any,
    activationDesc: Any,
    yDesc: Any,
    y: Any,
    epsilon: float,
    groupCnt: int,
) -> None:
    """y = alpha * act((x - mean) / sqrt(variance + epsilon) * scale + bias + z) + beta * y."""
    given = Given(handle, _is_spatial(mode, groupCnt), tensor_of(xDesc, "xDesc"))
    activation, adds = _ops(normOps, algo, activationDesc)
    shape = tensor_of(normScaleBiasDesc, "normScaleBiasDesc")
    moments = tensor_of(normMeanVarDesc, "normMeanVarDesc")
    inference(
        given, (alpha, beta), x, (yDesc, y), (shape, normScale, normBias), (moments, estimatedMean, estimatedVariance),
        epsilon, (zDesc, z) if adds else None, activation,
    )  # fmt: skip


@api
def cudnnGetNormalizationForwardTrainingWorkspaceSize(
    handle: Any,
    mode: int,
    normOps: int,
    algo: int,
    xDesc: Any,
    zDesc: Any,
    yDesc: Any,
    normScaleBiasDesc: Any,
    activationDesc: Any,
    normMeanVarDesc: Any,
    groupCnt: int,
) -> int:
    """Return 0: the handle keeps the scratch memory of normalizations."""
    checked(handle)
    _is_spatial(mode, groupCnt), _ops(normOps, algo, activationDesc), tensor_of(xDesc, "xDesc")
    return 0


@api
def cudnnGetNormalizationBackwardWorkspaceSize(
    handle: Any,
    mode: int,
    normOps: int,
    algo: int,
    xDesc: Any,
    yDesc: Any,
    dyDesc: Any,
    dzDesc: Any,
    dxDesc: Any,
    dNormScaleBiasDesc: Any,
    activationDesc: Any,
    normMeanVarDesc: Any,
    groupCnt: int,
) -> int:
    """Return 0: the handle keeps the scratch memory of normalizations."""
    checked(handle)
    _is_spatial(mode, groupCnt), _ops(normOps, algo, activationDesc), tensor_of(xDesc, "xDesc")
    return 0


@api
def cudnnGetNormalizationTrainingReserveSpaceSize(
    handle: Any, mode: int, normOps: int, algo: int, activationDesc: Any, xDesc: Any, groupCnt: int
) -> int:
    """Return 0: the gradient needs y, and nothing is kept apart from it."""
    checked(handle)
    _is_spatial(mode, groupCnt), _ops(normOps, algo, activationDesc), tensor_of(xDesc, "xDesc")
    return 0


@api
def cudnnNormalizationForwardTraining(
    handle: Any,
    mode: int,
    normOps: int,
    algo: int,
    alpha: float,
    beta: float,
    xDesc: Any,
    xData: Any,
    normScaleBiasDesc: Any,
    normScale: Any,
    normBias: Any,
    exponentialAverageFactor: float,
    normMeanVarDesc: Any,
    resultRunningMean: Any,
    resultRunningVariance: Any,
    epsilon: float,
    resultSaveMean: Any,
    resultSaveInvVariance: Any,
    activationDesc: Any,
    zDesc: Any,
    zData: Any,
    yDesc: Any,
    yData: Any,
    workspace: Any,
    workSpaceSizeInBytes: int,
    reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
    groupCnt: int,
) -> None:
    """The same with x's own mean and variance, which go into the running ones and, if given, into the saved ones."""
    given = Given(handle, _is_spatial(mode, groupCnt), tensor_of(xDesc, "xDesc"))
    activation, adds = _ops(normOps, algo, activationDesc)
    shape = tensor_of(normScaleBiasDesc, "normScaleBiasDesc")
    moments = tensor_of(normMeanVarDesc, "normMeanVarDesc")
    forward(
        given, (alpha, beta), xData, (zDesc, zData) if adds else None, (yDesc, yData), (shape, normScale, normBias),
        exponentialAverageFactor, (moments, resultRunningMean, resultRunningVariance), epsilon,
        (resultSaveMean, resultSaveInvVariance), activation,
    )  # fmt: skip


@api
def cudnnNormalizationBackward(
    handle: Any,
    mode: int,
    normOps: int,
    algo: int,
    alphaDataDiff: float,
    betaDataDiff: float,
    alphaParamDiff: float,
    betaParamDiff: float,
    xDesc: Any,
    xData: Any,
    yDesc: Any,
    yData: Any,
    dyDesc: Any,
    dyData: Any,
    dzDesc: Any,
    dzData: Any,
    dxDesc: Any,
    dxData: Any,
    dNormScaleBiasDesc: Any,
    normScaleData: Any,
    normBiasData: Any,
    dNormScaleData: Any,
    dNormBiasData: Any,
    epsilon: float,
    normMeanVarDesc: Any,
    savedMean: Any,
    savedInvVariance: Any,
    activationDesc: Any,
    workSpace: Any,
    workSpaceSizeInBytes: int,
    reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
    groupCnt: int,
) -> None:
    """dx, the gradients of scale and bias, and dz where normOps adds."""
    given = Given(handle, _is_spatial(mode, groupCnt), tensor_of(xDesc, "xDesc"))
    activation, adds = _ops(normOps, algo, activationDesc)
    shape = tensor_of(dNormScaleBiasDesc, "dNormScaleBiasDesc")
    moments = tensor_of(normMeanVarDesc, "normMeanVarDesc")
    backward(
        given, (alphaDataDiff, betaDataDiff), (alphaParamDiff, betaParamDiff), xData, (dyDesc, dyData),
        (dxDesc, dxData), (shape, normScaleData, dNormScaleData, dNormBiasData), epsilon,
        (moments, savedMean, savedInvVariance), activation, (yDesc, yData), (dzDesc, dzData) if adds else None,
    )  # fmt: skip
