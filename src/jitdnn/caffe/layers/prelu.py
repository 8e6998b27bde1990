"""PReLU: a rectifier whose slope below 0 is learned."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.ops.prelu import prelu, prelu_backward
from jitdnn.ops.tensor_ops import add


class PReLULayer(Layer):
    """y = x where x > 0, else w · x; bottom and top of the same shape (N, C, ...).

    Weights: w (C), or one number with `channel_shared: true`; 0.25 if no filler is given. In place x is kept, as the
    gradients need it.
    """

    type = "PReLU"
    may_be_in_place = True
    is_for_gpu = True
    writes_gradients = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = self.parameter.prelu_param, bottom[0].shape
        if len(shape) < 2:
            raise self.invalid(f"the bottom has shape {shape}: it needs a batch and channels, 2 axes or more")
        filler = parameter.filler if parameter.has("filler") else FillerParameter(value=0.25)
        self.add_weight(() if parameter.channel_shared else (shape[1],), filler)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, weights = bottom[0].shape, self.weights[0].shape
        if weights not in ((), (shape[1],)):
            raise self.invalid(
                f"the bottom has shape {shape}, {shape[1]} channels; the weights are for {weights[0]}"
            )
        if top[0] is bottom[0]:
            self.x = self.save("x", shape)
        else:
            self.x = bottom[0]
            top[0].reshape(shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is bottom[0]:
            copy(bottom[0].values, self.x.values)
        prelu(self.x.values, self.weights[0].values.reshape(-1), out=top[0].values)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        weight = self.weights[0]
        out = (bottom[0].gradient, None) if propagate[0] else None
        _, dweight = prelu_backward(top[0].gradient, self.x.values, weight.values.reshape(-1), out=out)
        if self.weight_needs_gradient[0]:
            add(dweight.reshape(-1), out=weight.gradient.reshape(-1), beta=self.beta(weight))

    def backward_reads(self) -> Reads:
        return Reads(bottom="x" not in self.saved, top=False)
