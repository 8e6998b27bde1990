"""Power with the exponent 1: y = shift + scale · x."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.errors import NotSupported
from jitdnn.ops.tensor_ops import add


class PowerLayer(Layer):
    """y = shift + scale · x. An exponent other than 1 is refused."""

    type = "Power"
    may_be_in_place = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.power_param
        if parameter.power != 1:
            raise NotSupported(
                f"layer {self.name!r}{self.parameter.where('power_param')}: power {parameter.power:g}; "
                "only 1 can be"
            )
        self.scale = parameter.scale
        self.shift = np.full((), parameter.shift, self.context.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].reshape(bottom[0].shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        add(x, out=y, alpha=self.scale)
        if self.shift:
            y += self.shift

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            add(top[0].diff, out=bottom[0].diff, alpha=self.scale)

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)
