"""ReLU, ReLU6, ELU, Sigmoid and TanH: elementwise, in place or not; the gradient is taken from the output, or,
where that does not tell on which side of 0 the input was, from the input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
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
    """Bottom and top of the same shape; the gradient dy · f'(x) is computed from y = f(x), or from x."""

    may_be_in_place = True
    is_for_gpu = True
    function: Callable[..., Any]
    gradient: Callable[..., Any]
    is_from_x = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].reshape(bottom[0].shape)
        if self.is_from_x:
            self.kept = self.save("x", bottom[0].shape) if top[0] is bottom[0] else bottom[0]
        else:
            self.kept = self.save("output", bottom[0].shape) if self.is_overwritten else top[0]

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_from_x and self.saved:
            copy(bottom[0].values, self.kept.values)
        self.function(bottom[0].values, out=top[0].values)
        self.absorbed(top)

    def layout_rule(self) -> str:
        return "same"

    def absorbed(self, top: Sequence[Blob]) -> None:
        if not self.is_from_x and self.saved:
            copy(top[0].values, self.kept.values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            kept = {"x" if self.is_from_x else "y": self.kept.values}
            self.gradient(top[0].gradient, **kept, out=bottom[0].gradient)

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.is_from_x and not self.saved, top=not self.is_from_x and not self.saved)


class ReLULayer(ActivationLayer):
    """y = max(x, 0), or x where x > 0, else negative_slope · x."""

    type = "ReLU"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        slope = self.slope = self.parameter.relu_param.negative_slope
        self.is_from_x = slope < 0
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
        self.is_from_x = alpha < 0
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
