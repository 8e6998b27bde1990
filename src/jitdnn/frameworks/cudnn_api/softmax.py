"""Softmax forward and backward."""

from __future__ import annotations

from typing import Any

import jitdnn as jd
from jitdnn.frameworks.cudnn_api.enums import cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import blend, choice
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.tensors import tensor_of

_ALGORITHMS = {
    cudnnSoftmaxAlgorithm_t.CUDNN_SOFTMAX_FAST: "fast",
    cudnnSoftmaxAlgorithm_t.CUDNN_SOFTMAX_ACCURATE: "accurate",
    cudnnSoftmaxAlgorithm_t.CUDNN_SOFTMAX_LOG: "log",
}
_MODES = {
    cudnnSoftmaxMode_t.CUDNN_SOFTMAX_MODE_INSTANCE: "instance",
    cudnnSoftmaxMode_t.CUDNN_SOFTMAX_MODE_CHANNEL: "channel",
}


def _how(algo: int, mode: int) -> tuple[str, str]:
    return (
        _MODES[choice(cudnnSoftmaxMode_t, mode, "mode")],
        _ALGORITHMS[choice(cudnnSoftmaxAlgorithm_t, algo, "algo")],
    )


@api
def cudnnSoftmaxForward(
    handle: Any, algo: int, mode: int, alpha: float, xDesc: Any, x: Any, beta: float, yDesc: Any, y: Any
) -> None:
    """y = alpha * softmax(x) + beta * y, over the channels or over all of an image; y may be x."""
    own, how = inner(handle), _how(algo, mode)
    source = bound(x, tensor_of(xDesc, "xDesc"), "x")
    target = bound(y, tensor_of(yDesc, "yDesc"), "y", True)
    jd.softmax(source, *how, **blend(alpha, beta), out=target, handle=own)


@api
def cudnnSoftmaxBackward(
    handle: Any,
    algo: int,
    mode: int,
    alpha: float,
    yDesc: Any,
    y: Any,
    dyDesc: Any,
    dy: Any,
    beta: float,
    dxDesc: Any,
    dx: Any,
) -> None:
    """dx = alpha * (the gradient of softmax, from y) + beta * dx; dx may be dy."""
    own, how = inner(handle), _how(algo, mode)
    slope = bound(dy, tensor_of(dyDesc, "dyDesc"), "dy")
    result = bound(y, tensor_of(yDesc, "yDesc"), "y")
    target = bound(dx, tensor_of(dxDesc, "dxDesc"), "dx", True)
    jd.softmax_backward(slope, result, *how, **blend(alpha, beta), out=target, handle=own)
