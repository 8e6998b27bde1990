"""What LSTM and RNN share: sequences that go on from call to call, and weights that all steps use."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jitdnn.caffe.blob import Array, Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.ops.convolution import conv_backward_bias
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.matmul import matmul
from jitdnn.ops.reduce import reduce
from jitdnn.ops.tensor_ops import add


class Sizes(NamedTuple):
    """Of a sequence: steps T, independent streams N, numbers of one input I, and of one state D."""

    steps: int
    streams: int
    inputs: int
    outputs: int


class RecurrentLayer(Layer):
    """Bottoms: x (T, N, ...), `cont` (T, N): 0 where a sequence begins and 1 where it goes on, and if there is one
    x_static (N, ...), which every step sees. Top (T, N, num_output).

    What the last step leaves is where the next forward pass starts, unless `expose_hidden` makes bottoms and tops of
    it: one each behind the others for every state, (1, N, num_output). `cont` has no gradient.

    Weights, in this order: of x and their bias, of x_static if there is one, and those of the state.
    """

    undivided = "its first axis is time"
    bottoms = (2, 5)
    tops = (1, 3)
    is_for_gpu = True
    may_rerun = False  # each forward pass goes on from the last one
    reads = Reads(bottom=True, top=False)
    states: ClassVar[tuple[str, ...]] = ("h",)
    gates: ClassVar[int] = 1  # numbers that x gives to each number of the state

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.recurrent_param
        if parameter.num_output == 0:
            raise self.invalid("num_output is missing or 0: it must be positive", "recurrent_param")
        self.is_exposed = parameter.expose_hidden
        hidden = len(self.states) if self.is_exposed else 0
        if len(bottom) not in (2 + hidden, 3 + hidden) or len(top) != 1 + hidden:
            raise self.invalid(
                f"{len(bottom)} bottoms and {len(top)} tops: there must be x, cont"
                f"{''.join(f', {name}_0' for name in self.states[:hidden])}, with x_static behind cont if there is "
                f"one, and {1 + hidden} tops"
            )
        self.has_static = len(bottom) == 3 + hidden
        # where the next forward pass starts: zeros before the first one
        self.carry = (
            {}
            if self.is_exposed
            else {name: self.context.blob(f"{self.name}/{name}") for name in self.states}
        )
        self.none = self.context.blob(f"{self.name}/none")  # zeros: the gradient of states that nobody has
        shape, outputs = bottom[0].shape, parameter.num_output
        rows = self.gates * outputs
        self.add_weight((rows, count(shape, 2)), parameter.weight_filler)
        self.add_weight((rows,), parameter.bias_filler)
        if self.has_static:
            self.add_weight((rows, count(bottom[2].shape, 1)), parameter.weight_filler)
        self.add_weight((rows, outputs), parameter.weight_filler)
        self.recurrent = self.weights[-1]
        self.recurrent_index = len(self.weights) - 1
        self.conted = elementwise("h, k: h * k")
        self.summed, self.joined = elementwise("d, e: d + e"), elementwise("d, e, k: d + e * k")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, cont = bottom[0].shape, bottom[1].shape
        if len(x) < 2 or 0 in x[:2] or cont != x[:2]:
            raise self.invalid(f"x has shape {x} and cont {cont}: (T, N, ...) and (T, N) are needed")
        sizes = Sizes(x[0], x[1], count(x, 2), self.parameter.recurrent_param.num_output)
        if sizes.inputs != self.weights[0].shape[1]:
            raise self.invalid(
                f"x has shape {x}, {sizes.inputs} numbers each; the weights are for {self.weights[0].shape[1]}"
            )
        if self.has_static:
            static = bottom[2].shape
            if static[:1] != (sizes.streams,) or count(static, 1) != self.weights[2].shape[1]:
                raise self.invalid(
                    f"x_static has shape {static}: ({sizes.streams}, ...) with {self.weights[2].shape[1]} numbers "
                    "each are needed"
                )
        self.sizes = sizes
        state: Shape = (1, sizes.streams, sizes.outputs)
        for blob in bottom[2 + self.has_static :]:
            if blob.shape != state:
                raise self.invalid(f"bottom {blob.name!r} has shape {blob.shape}: a state has {state}")
        top[0].reshape((sizes.steps, sizes.streams, sizes.outputs))
        for blob in top[1:]:
            blob.reshape(state)
        # contents stay where the shape does, and are zeros where it is another one
        for blob in (*self.carry.values(), self.none):
            blob.reshape(state)
        self.allocate()

    @abstractmethod
    def allocate(self) -> None:
        """Take memory for what forward leaves for backward, by `sizes`."""

    def projected(self, bottom: Sequence[Blob], out: Any) -> None:
        """What x, the bias and x_static give to all steps: (T, N, gates * D)."""
        steps, streams, inputs, _ = self.sizes
        rows = out.shape[-1]
        flat = out.reshape(steps * streams, rows)
        add(self.weights[1].values, out=flat)
        x = bottom[0].values.reshape(steps * streams, inputs)
        matmul(x, self.weights[0].values.T, out=flat, beta=1.0)
        if self.has_static:
            static = matmul(bottom[2].values.reshape(streams, -1), self.weights[2].values.T)
            add(static.reshape(1, streams, rows), out=out, beta=1.0)

    def initial(self, bottom: Sequence[Blob]) -> list[Any]:
        """The states (N, D) before the first step."""
        blobs = bottom[2 + self.has_static :] if self.is_exposed else self.carry.values()
        return [blob.values.reshape(self.sizes.streams, self.sizes.outputs) for blob in blobs]

    def finish(self, top: Sequence[Blob], states: Sequence[Any]) -> None:
        """Hand the states behind the last step on."""
        blobs = top[1:] if self.is_exposed else self.carry.values()
        for blob, state in zip(blobs, states, strict=True):
            copy(state.reshape(blob.shape), blob.values)

    def final_gradient(self, top: Sequence[Blob], index: int) -> Any:
        """The gradient (N, D) of a state behind the last step, to be read."""
        found = top[1 + index].gradient if self.is_exposed else self.none.values
        return found.reshape(self.sizes.streams, self.sizes.outputs)

    def add_later(self, gradient: Any, later: Any, cont: Any, out: Any) -> None:
        """The gradient of a step, and what comes back from the one behind it; `cont` None where there is none."""
        if cont is None:
            self.summed(gradient, later, out=out)
        else:
            self.joined(gradient, later, cont, out=out)

    def check_propagate(self, propagate: Sequence[bool]) -> None:
        """Raise InvalidArgument if the gradient of `cont` is asked for."""
        if propagate[1]:
            raise self.invalid("cont has no gradient: it must not depend on trained weights")

    def weight_gradients(
        self, bottom: Sequence[Blob], propagate: Sequence[bool], gradient: Any, before: Any
    ) -> None:
        """From the gradient of what `projected` gave, and the states (T, N, D) that the recurrent weights saw, those
        of the weights, of x and of x_static."""
        steps, streams, inputs, outputs = self.sizes
        rows = gradient.shape[-1]
        flat = gradient.reshape(steps * streams, rows)
        needs = self.weight_needs_gradient
        if needs[0]:
            x = bottom[0].values.reshape(steps * streams, inputs)
            matmul(flat.T, x, out=self.weights[0].gradient, beta=1.0)
        if needs[1]:
            conv_backward_bias(flat.reshape(-1, rows, 1), out=self.weights[1].gradient, beta=1.0)
        if needs[self.recurrent_index]:
            matmul(flat.T, before.reshape(-1, outputs), out=self.recurrent.gradient, beta=1.0)
        if propagate[0]:
            dx = bottom[0].gradient.reshape(steps * streams, inputs)
            matmul(flat, self.weights[0].values, out=dx)
        if self.has_static and (needs[2] or propagate[2]):
            total = reduce(gradient, axes=0)
            if needs[2]:
                static = bottom[2].values.reshape(streams, -1)
                matmul(total.T, static, out=self.weights[2].gradient, beta=1.0)
            if propagate[2]:
                dstatic = bottom[2].gradient.reshape(streams, -1)
                matmul(total, self.weights[2].values, out=dstatic)

    def initial_gradients(
        self, bottom: Sequence[Blob], propagate: Sequence[bool], gradients: Sequence[Any]
    ) -> None:
        """Put the gradients (N, D) of the states before the first step where they are asked for."""
        if self.is_exposed:
            start = 2 + self.has_static
            for blob, is_wanted, gradient in zip(bottom[start:], propagate[start:], gradients, strict=True):
                if is_wanted:
                    copy(gradient.reshape(blob.shape), blob.gradient)

    def may_force_backward(self, index: int) -> bool:
        return index != 1

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "carry": {
                name: [list(blob.shape), base64.b64encode(blob.read().tobytes()).decode()]
                for name, blob in self.carry.items()
            }
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        found: dict[str, Array] = {}
        for name, (shape, values) in state["carry"].items():
            array = np.frombuffer(base64.b64decode(values, validate=True), self.context.dtype)
            found[name] = array.reshape(shape)
            if name not in self.carry or array.size != self.sizes.streams * self.sizes.outputs:
                raise ValueError(f"layer {self.name!r} has no state {name!r} of shape {shape}")
        super().restore(state)
        for name, blob in self.carry.items():
            blob.overwrite_host()
            blob.data[...] = found[name].reshape(blob.shape) if name in found else 0
