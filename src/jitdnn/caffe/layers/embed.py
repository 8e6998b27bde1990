"""Embed: rows of a learned table by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layers.labels import check_labels, whole_numbers
from jitdnn.ops.convolution import conv_backward_bias
from jitdnn.ops.embedding import embedding, embedding_backward
from jitdnn.ops.tensor_ops import add


class EmbedLayer(Layer):
    """Bottom: whole numbers 0 .. input_dim − 1 of any shape, without a gradient; top (that shape, num_output).

    Weights: w (input_dim, num_output) and, unless bias_term is false, b (num_output).
    """

    type = "Embed"
    is_for_gpu = True
    writes_gradients = True
    reads = Reads(bottom=False, top=False)
    forced_bottoms = 0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.embed_param
        for name in ("num_output", "input_dim"):
            if getattr(parameter, name) == 0:
                raise self.invalid(f"{name} is missing or 0: it must be positive", "embed_param")
        self.rows, self.outputs = parameter.input_dim, parameter.num_output
        self.add_weight((self.rows, self.outputs), parameter.weight_filler)
        if parameter.bias_term:
            self.add_weight((self.outputs,), parameter.bias_filler)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape((*bottom[0].shape, self.outputs))

    def prepare(self, bottom: Sequence[Blob]) -> None:
        check_labels(self, bottom[0], self.rows, None)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.is_captured:
            self.prepare(bottom)
        self.indices = whole_numbers(bottom[0].values.reshape(-1))
        y = top[0].values.reshape(-1, self.outputs)
        embedding(self.indices, self.weights[0].values, out=y)
        if len(self.weights) == 2:
            add(self.weights[1].values, out=y, beta=1.0)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            raise self.invalid("the numbers of rows have no gradient: nothing before them can be trained")
        dy = top[0].gradient.reshape(-1, self.outputs)
        if self.weight_needs_gradient[0]:
            embedding_backward(
                dy, self.indices, self.rows, out=self.weights[0].gradient, beta=self.beta(self.weights[0])
            )
        if len(self.weights) == 2 and self.weight_needs_gradient[1]:
            bias = self.weights[1]
            conv_backward_bias(dy.reshape(-1, self.outputs, 1), out=bias.gradient, beta=self.beta(bias))
