"""Activations: their descriptor, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import jitdnn as jd
from jitdnn.frameworks.cudnn_api.enums import cudnnActivationMode_t, cudnnNanPropagation_t
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import Descriptor, alive, blend, choice, destroy, real, value_of
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import tensor_of

_M = cudnnActivationMode_t
_NAMES = {
    _M.CUDNN_ACTIVATION_SIGMOID: "sigmoid",
    _M.CUDNN_ACTIVATION_RELU: "relu",
    _M.CUDNN_ACTIVATION_TANH: "tanh",
    _M.CUDNN_ACTIVATION_CLIPPED_RELU: "clipped_relu",
    _M.CUDNN_ACTIVATION_ELU: "elu",
    _M.CUDNN_ACTIVATION_IDENTITY: "identity",
    _M.CUDNN_ACTIVATION_SWISH: "swish",
}


class Activated(NamedTuple):
    """What an activation descriptor is set to."""

    mode: cudnnActivationMode_t
    nan: cudnnNanPropagation_t
    coef: float
    swish_beta: float = 1.0

    @property
    def name(self) -> str:
        return _NAMES[self.mode]

    @property
    def coefficient(self) -> tuple[float, ...]:
        """What the function takes beside x."""
        if self.mode is _M.CUDNN_ACTIVATION_SWISH:
            return (self.swish_beta,)
        if self.mode in (_M.CUDNN_ACTIVATION_CLIPPED_RELU, _M.CUDNN_ACTIVATION_ELU):
            return (self.coef,)
        return ()

    def traced(self, x: Any) -> Any:
        """The function of a value that is being traced."""
        return x if self.name == "identity" else getattr(jd, self.name)(x, *self.coefficient)


class cudnnActivationDescriptor(Descriptor[Activated]):
    """Which activation, and its coefficient."""


def activated(activationDesc: Any) -> Activated:
    """What an activation descriptor was set to. Raises BadParam."""
    return value_of(activationDesc, cudnnActivationDescriptor, "activationDesc")


@api
def cudnnCreateActivationDescriptor() -> cudnnActivationDescriptor:
    """Return an activation descriptor, to be set."""
    return cudnnActivationDescriptor()


@api
def cudnnSetActivationDescriptor(activationDesc: Any, mode: int, reluNanOpt: int, coef: float) -> None:
    """Set the function, whether NaN goes through, and the bound of a clipped relu or the alpha of an elu."""
    own = alive(activationDesc, cudnnActivationDescriptor, "activationDesc")
    own.value = Activated(
        choice(cudnnActivationMode_t, mode, "mode"),
        choice(cudnnNanPropagation_t, reluNanOpt, "reluNanOpt"),
        real(coef, "coef"),
    )


@api
def cudnnGetActivationDescriptor(activationDesc: Any) -> tuple[Any, ...]:
    """Return (mode, reluNanOpt, coef)."""
    return activated(activationDesc)[:3]


@api
def cudnnSetActivationDescriptorSwishBeta(activationDesc: Any, swish_beta: float) -> None:
    """Set the beta of swish, x * sigmoid(beta * x)."""
    own = alive(activationDesc, cudnnActivationDescriptor, "activationDesc")
    own.value = activated(activationDesc)._replace(swish_beta=real(swish_beta, "swish_beta"))


@api
def cudnnGetActivationDescriptorSwishBeta(activationDesc: Any) -> float:
    """Return the beta of swish."""
    return activated(activationDesc).swish_beta


@api
def cudnnDestroyActivationDescriptor(activationDesc: Any) -> None:
    """Destroy an activation descriptor."""
    destroy(activationDesc, cudnnActivationDescriptor, "activationDesc")


@api
def cudnnActivationForward(
    handle: Any, activationDesc: Any, alpha: float, xDesc: Any, x: Any, beta: float, yDesc: Any, y: Any
) -> None:
    """y = alpha * act(x) + beta * y; y may be x."""
    own, act = inner(handle), activated(activationDesc)
    source = bound(x, tensor_of(xDesc, "xDesc"), "x")
    getattr(jd, act.name)(
        source,
        *act.coefficient,
        **blend(alpha, beta),
        out=bound(y, tensor_of(yDesc, "yDesc"), "y", True),
        handle=own,
        propagate_nan=act.nan is cudnnNanPropagation_t.CUDNN_PROPAGATE_NAN,
    )


@api
def cudnnActivationBackward(
    handle: Any,
    activationDesc: Any,
    alpha: float,
    yDesc: Any,
    y: Any,
    dyDesc: Any,
    dy: Any,
    xDesc: Any,
    x: Any,
    beta: float,
    dxDesc: Any,
    dx: Any,
) -> None:
    """dx = alpha * dy * act'(x) + beta * dx; the slope follows from y, that of swish and of an elu with a negative
    coefficient from x."""
    own, act = inner(handle), activated(activationDesc)
    wants_x = act.name == "swish" or (act.name == "elu" and act.coef < 0)
    result = bound(y, tensor_of(yDesc, "yDesc"), "y")
    source = bound(x, tensor_of(xDesc, "xDesc"), "x")
    if source.descriptor.shape != result.descriptor.shape:
        raise BadParam(
            f"x has extents {source.descriptor.shape} and y {result.descriptor.shape}: they must be equal"
        )
    given: dict[str, Any] = {"x": source} if wants_x else {"y": result}
    if act.coefficient:
        given["coef"] = act.coefficient[0]
    getattr(jd, f"{act.name}_backward")(
        bound(dy, tensor_of(dyDesc, "dyDesc"), "dy"),
        **given,
        **blend(alpha, beta),
        out=bound(dx, tensor_of(dxDesc, "dxDesc"), "dx", True),
        handle=own,
        propagate_nan=act.nan is cudnnNanPropagation_t.CUDNN_PROPAGATE_NAN,
    )
