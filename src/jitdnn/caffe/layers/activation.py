"""ReLU, ReLU6, ELU, Sigmoid and TanH: elementwise, in place or not; the gradient is taken from the output."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.errors import NotSupported
from jitdnn.ops.activation import (
    clipped_relu,
    clipped_relu_backward,
    elu,
    elu_backward,
    leaky_relu,
    leaky_relu_backward,
    relu,
    relu_backward,
    sigmoid,
    sigmoid_backward,
    tanh,
    tanh_backward,
)


class ActivationLayer(Layer):
    """Bottom and top of the same shape; the gradient dy · f'(x) is computed from y = f(x)."""

    may_be_in_place = True
    is_for_gpu = True
    function: Callable[..., Any]
    gradient: Callable[..., Any]

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].reshape(bottom[0].shape)
        self.output = self.save("output", bottom[0].shape) if self.is_overwritten else None

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.function(bottom[0].values, out=top[0].values)
        self.absorbed(top)

    def absorbed(self, top: Sequence[Blob]) -> None:
        if self.output is not None:
            copy(top[0].values, self.output.values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            y = top[0] if self.output is None else self.output
            self.gradient(top[0].gradient, y=y.values, out=bottom[0].gradient)

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=not self.is_overwritten)


class ReLULayer(ActivationLayer):
    """y = max(x, 0), or x where x > 0, else negative_slope · x."""

    type = "ReLU"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        slope = self.slope = self.parameter.relu_param.negative_slope
        if slope < 0:
            raise NotSupported(
                f"layer {self.name!r}{self.parameter.where('relu_param')}: negative_slope {slope:g}: the gradient "
                "is taken from y, which does not tell the side of such a slope; it can be 0 or more"
            )
        if slope == 0:
            self.function, self.gradient = relu, relu_backward
        else:
            self.function = functools.partial(leaky_relu, coef=slope)
            self.gradient = functools.partial(leaky_relu_backward, coef=slope)


class ReLU6Layer(ActivationLayer):
    """y = min(max(x, 0), 6): MobileNet's, of Caffe's forks."""

    type = "ReLU6"
    function = staticmethod(functools.partial(clipped_relu, coef=6.0))
    gradient = staticmethod(functools.partial(clipped_relu_backward, coef=6.0))


class ELULayer(ActivationLayer):
    """y = x where x > 0, else alpha · (e^x − 1)."""

    type = "ELU"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        alpha = self.parameter.elu_param.alpha
        if alpha < 0:
            raise NotSupported(
                f"layer {self.name!r}{self.parameter.where('elu_param')}: alpha {alpha:g}: the gradient is taken "
                "from y, which does not tell the side of such a curve; it can be 0 or more"
            )
        self.function = functools.partial(elu, coef=alpha)
        self.gradient = functools.partial(elu_backward, coef=alpha)


class SigmoidLayer(ActivationLayer):
    """y = 1 / (1 + e^−x)."""

    type = "Sigmoid"
    function = staticmethod(sigmoid)
    gradient = staticmethod(sigmoid_backward)


class TanHLayer(ActivationLayer):
    """y = tanh x."""

    type = "TanH"
    function = staticmethod(tanh)
    gradient = staticmethod(tanh_backward)


def rectify(slope: float) -> Callable[[Any], Any]:
    """Return the ReLU of this negative slope, for formulas and epilogues."""
    if slope == 0:
        return relu
    return functools.partial(leaky_relu, coef=slope)
