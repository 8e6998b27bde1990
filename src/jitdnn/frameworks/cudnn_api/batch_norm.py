"""Batch normalization: training, inference, gradients, with an addition and an activation fused behind it."""

from __future__ import annotations

from typing import Any

from jitdnn.frameworks.cudnn_api.activation import activated
from jitdnn.frameworks.cudnn_api.enums import cudnnActivationMode_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t
from jitdnn.frameworks.cudnn_api.handles import checked
from jitdnn.frameworks.cudnn_api.normalize import (
    Given,
    backward,
    forward,
    inference,
    parameter_tensor,
)
from jitdnn.frameworks.cudnn_api.objects import choice
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import set_tensor, tensor_of

_O = cudnnBatchNormOps_t


def _is_spatial(mode: int) -> bool:
    known = choice(cudnnBatchNormMode_t, mode, "mode")
    return known is not cudnnBatchNormMode_t.CUDNN_BATCHNORM_PER_ACTIVATION


def fused(has_activation: bool, activationDesc: Any) -> str:
    """The activation that is fused: "identity" or "relu". Raises BadParam."""
    if not has_activation:
        return "identity"
    act = activated(activationDesc)
    if act.mode not in (
        cudnnActivationMode_t.CUDNN_ACTIVATION_RELU,
        cudnnActivationMode_t.CUDNN_ACTIVATION_IDENTITY,
    ):
        raise BadParam(
            f"activationDesc is {act.mode.name}: relu and identity are fused behind a normalization"
        )
    return act.name


def _ops(bnOps: int, activationDesc: Any) -> tuple[str, bool]:
    known = choice(_O, bnOps, "bnOps")
    adds = known is _O.CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION
    return fused(known is not _O.CUDNN_BATCHNORM_OPS_BN, activationDesc), adds


@api
def cudnnDeriveBNTensorDescriptor(derivedBnDesc: Any, xDesc: Any, mode: int) -> None:
    """Set derivedBnDesc to the tensor of scale, bias, mean and variance: (1, C, 1, 1) or (1, C, H, W), float for types
    of half precision."""
    derived = parameter_tensor(tensor_of(xDesc, "xDesc"), _is_spatial(mode))
    set_tensor(derivedBnDesc, derived, "derivedBnDesc")


@api
def cudnnBatchNormalizationForwardInference(
    handle: Any,
    mode: int,
    alpha: float,
    beta: float,
    xDesc: Any,
    x: Any,
    yDesc: Any,
    y: Any,
    bnScaleBiasMeanVarDesc: Any,
    bnScale: Any,
    bnBias: Any,
    estimatedMean: Any,
    estimatedVariance: Any,
    epsilon: float,
) -> None:
    """y = alpha * ((x - mean) / sqrt(variance + epsilon) * scale + bias) + beta * y."""
    given = Given(handle, _is_spatial(mode), tensor_of(xDesc, "xDesc"))
    shape = tensor_of(bnScaleBiasMeanVarDesc, "bnScaleBiasMeanVarDesc")
    inference(
        given, (alpha, beta), x, (yDesc, y), (shape, bnScale, bnBias), (shape, estimatedMean, estimatedVariance),
        epsilon,
    )  # fmt: skip


@api
def cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    handle: Any,
    mode: int,
    bnOps: int,
    xDesc: Any,
    zDesc: Any,
    yDesc: Any,
    bnScaleBiasMeanVarDesc: Any,
    activationDesc: Any,
) -> int:
    """Return 0: the handle keeps the scratch memory of normalizations."""
    checked(handle)
    _is_spatial(mode), _ops(bnOps, activationDesc), tensor_of(xDesc, "xDesc"), tensor_of(yDesc, "yDesc")
    return 0


@api
def cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    handle: Any,
    mode: int,
    bnOps: int,
    xDesc: Any,
    yDesc: Any,
    dyDesc: Any,
    dzDesc: Any,
    dxDesc: Any,
    dBnScaleBiasDesc: Any,
    activationDesc: Any,
) -> int:
    """Return 0: the handle keeps the scratch memory of normalizations."""
    checked(handle)
    _is_spatial(mode), _ops(bnOps, activationDesc), tensor_of(xDesc, "xDesc"), tensor_of(dyDesc, "dyDesc")
    return 0


@api
def cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    handle: Any, mode: int, bnOps: int, activationDesc: Any, xDesc: Any
) -> int:
    """Return 0: the gradient needs y, and nothing is kept apart from it."""
    checked(handle)
    _is_spatial(mode), _ops(bnOps, activationDesc), tensor_of(xDesc, "xDesc")
    return 0


@api
def cudnnBatchNormalizationForwardTraining(
    handle: Any,
    mode: int,
    alpha: float,
    beta: float,
    xDesc: Any,
    x: Any,
    yDesc: Any,
    y: Any,
    bnScaleBiasMeanVarDesc: Any,
    bnScale: Any,
    bnBias: Any,
    exponentialAverageFactor: float,
    resultRunningMean: Any,
    resultRunningVariance: Any,
    epsilon: float,
    resultSaveMean: Any,
    resultSaveInvVariance: Any,
) -> None:
    """The same with x's own mean and variance, which go into the running ones and, if given, into the saved ones."""
    given = Given(handle, _is_spatial(mode), tensor_of(xDesc, "xDesc"))
    shape = tensor_of(bnScaleBiasMeanVarDesc, "bnScaleBiasMeanVarDesc")
    forward(
        given, (alpha, beta), x, None, (yDesc, y), (shape, bnScale, bnBias), exponentialAverageFactor,
        (shape, resultRunningMean, resultRunningVariance), epsilon, (resultSaveMean, resultSaveInvVariance), "identity",
    )  # fmt: skip


@api
def cudnnBatchNormalizationForwardTrainingEx(
    handle: Any,
    mode: int,
    bnOps: int,
    alpha: float,
    beta: float,
    xDesc: Any,
    xData: Any,
    zDesc: Any,
    zData: Any,
    yDesc: Any,
    yData: Any,
    bnScaleBiasMeanVarDesc: Any,
    bnScale: Any,
    bnBias: Any,
    exponentialAverageFactor: float,
    resultRunningMean: Any,
    resultRunningVariance: Any,
    epsilon: float,
    resultSaveMean: Any,
    resultSaveInvVariance: Any,
    activationDesc: Any,
    workspace: Any,
    workSpaceSizeInBytes: int,
    reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
) -> None:
    """y = alpha * act(normalized x + z) + beta * y: z where bnOps adds, act where it activates."""
    given = Given(handle, _is_spatial(mode), tensor_of(xDesc, "xDesc"))
    shape = tensor_of(bnScaleBiasMeanVarDesc, "bnScaleBiasMeanVarDesc")
    activation, adds = _ops(bnOps, activationDesc)
    forward(
        given, (alpha, beta), xData, (zDesc, zData) if adds else None, (yDesc, yData), (shape, bnScale, bnBias),
        exponentialAverageFactor, (shape, resultRunningMean, resultRunningVariance), epsilon,
        (resultSaveMean, resultSaveInvVariance), activation,
    )  # fmt: skip


@api
def cudnnBatchNormalizationBackward(
    handle: Any,
    mode: int,
    alphaDataDiff: float,
    betaDataDiff: float,
    alphaParamDiff: float,
    betaParamDiff: float,
    xDesc: Any,
    x: Any,
    dyDesc: Any,
    dy: Any,
    dxDesc: Any,
    dx: Any,
    dBnScaleBiasDesc: Any,
    bnScale: Any,
    dBnScaleResult: Any,
    dBnBiasResult: Any,
    epsilon: float,
    savedMean: Any,
    savedInvVariance: Any,
) -> None:
    """dx, and the gradients of scale and bias; without the saved mean and inverse deviation they are computed again."""
    given = Given(handle, _is_spatial(mode), tensor_of(xDesc, "xDesc"))
    shape = tensor_of(dBnScaleBiasDesc, "dBnScaleBiasDesc")
    backward(
        given, (alphaDataDiff, betaDataDiff), (alphaParamDiff, betaParamDiff), x, (dyDesc, dy), (dxDesc, dx),
        (shape, bnScale, dBnScaleResult, dBnBiasResult), epsilon, (shape, savedMean, savedInvVariance),
    )  # fmt: skip


@api
def cudnnBatchNormalizationBackwardEx(
    handle: Any,
    mode: int,
    bnOps: int,
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
    dBnScaleBiasDesc: Any,
    bnScaleData: Any,
    bnBiasData: Any,
    dBnScaleData: Any,
    dBnBiasData: Any,
    epsilon: float,
    savedMean: Any,
    savedInvVariance: Any,
    activationDesc: Any,
    workSpace: Any,
    workSpaceSizeInBytes: int,
    reserveSpace: Any,
    reserveSpaceSizeInBytes: int,
) -> None:
    """The same through the activation, from y, and dz where bnOps adds."""
    given = Given(handle, _is_spatial(mode), tensor_of(xDesc, "xDesc"))
    shape = tensor_of(dBnScaleBiasDesc, "dBnScaleBiasDesc")
    activation, adds = _ops(bnOps, activationDesc)
    backward(
        given, (alphaDataDiff, betaDataDiff), (alphaParamDiff, betaParamDiff), xData, (dyDesc, dyData),
        (dxDesc, dxData), (shape, bnScaleData, dBnScaleData, dBnBiasData), epsilon, (shape, savedMean,
        savedInvVariance),
        activation,
        (yDesc, yData), (dzDesc, dzData) if adds else None,
    )  # fmt: skip
