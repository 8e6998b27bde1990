"""RNN: the plain recurrent layer, as Caffe unrolls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import copy
from jitdnn.caffe.layers.recurrent import RecurrentLayer
from jitdnn.ops.activation import tanh, tanh_backward
from jitdnn.ops.convolution import conv_backward_bias
from jitdnn.ops.matmul import matmul
from jitdnn.ops.tensor_ops import add


class RNNLayer(RecurrentLayer):
    """o = tanh(v h + b) with h = tanh of what x, x_static, their bias and cont · h' give; h' is that of the step
    before.

    Weights: of x (num_output, numbers of x) and the bias (num_output), of x_static if there is one, of h' and v, both
    (num_output, num_output), and b (num_output). With `expose_hidden` the state is h.
    """

    type = "RNN"
    tops = (1, 2)
    bottoms = (2, 4)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        parameter = self.parameter.recurrent_param
        self.add_weight((parameter.num_output,) * 2, parameter.weight_filler)
        self.add_weight((parameter.num_output,), parameter.bias_filler)

    def allocate(self) -> None:
        shape = (self.sizes.steps, self.sizes.streams, self.sizes.outputs)
        self.hidden, self.before = self.save("hidden", shape), self.save("before", shape)
        self.results = self.save("results", shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        hidden, before, results = self.hidden.values, self.before.values, self.results.values
        cont, w = bottom[1].values, self.recurrent.values.T
        self.projected(bottom, hidden)
        (h,) = self.initial(bottom)
        for t in range(self.sizes.steps):
            self.conted(h, cont[t].reshape(-1, 1), out=before[t])
            matmul(before[t], w, out=hidden[t], beta=1.0)
            h = tanh(hidden[t], out=hidden[t])
        outputs = self.sizes.outputs
        rows = results.reshape(-1, outputs)
        add(self.weights[-1].values, out=rows)
        matmul(hidden.reshape(-1, outputs), self.weights[-2].values.T, out=rows, beta=1.0)
        tanh(rows, out=rows)
        copy(results, top[0].values)
        self.finish(top, (h,))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.check_propagate(propagate)
        outputs = self.sizes.outputs
        hidden, cont = self.hidden.values, bottom[1].values
        dz = tanh_backward(top[0].gradient, y=self.results.values).reshape(-1, outputs)
        if self.weight_needs_gradient[-2]:
            matmul(dz.T, hidden.reshape(-1, outputs), out=self.weights[-2].gradient, beta=1.0)
        if self.weight_needs_gradient[-1]:
            conv_backward_bias(dz.reshape(-1, outputs, 1), out=self.weights[-1].gradient, beta=1.0)
        dhidden = matmul(dz, self.weights[-2].values).reshape(hidden.shape)
        dh = self.final_gradient(top, 0)
        through = self.context.empty(hidden.shape[1:])
        k: Any = None
        for t in reversed(range(self.sizes.steps)):
            self.add_later(dhidden[t], dh, k, dhidden[t])
            tanh_backward(dhidden[t], y=hidden[t], out=dhidden[t])
            k = cont[t].reshape(-1, 1)
            dh = matmul(dhidden[t], self.recurrent.values, out=through)
        self.weight_gradients(bottom, propagate, dhidden, self.before.values)
        self.initial_gradients(bottom, propagate, (self.conted(dh, k),))
