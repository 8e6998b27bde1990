"""ReLU, Sigmoid and TanH: elementwise, in place if the net says so; the gradient is taken from the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer
from jitdnn.errors import NotSupported
from jitdnn.ops.activation import relu, relu_backward, sigmoid, sigmoid_backward, tanh, tanh_backward


class ActivationLayer(Layer):
    """Bottom and top of the same shape; the gradient dy · f'(x) is computed from y = f(x)."""

    may_be_in_place = True
    function: ClassVar[Callable[..., Any]]
    gradient: ClassVar[Callable[..., Any]]

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        pass

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].reshape(bottom[0].shape)
        self.output = np.empty_like(top[0].data) if self.is_overwritten else None

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        type(self).function(bottom[0].data, out=top[0].data)
        if self.output is not None:
            np.copyto(self.output, top[0].data)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            y = top[0].data if self.output is None else self.output
            type(self).gradient(top[0].diff, y=y, out=bottom[0].diff)


class ReLULayer(ActivationLayer):
    """y = max(x, 0). A negative_slope other than 0 is refused."""

    type = "ReLU"
    function = staticmethod(relu)
    gradient = staticmethod(relu_backward)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        slope = self.parameter.relu_param.negative_slope
        if slope != 0:
            raise NotSupported(
                f"layer {self.name!r}{self.parameter.where('relu_param')}: negative_slope {slope:g}: "
                "the library has no leaky ReLU; only 0 can be"
            )


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
