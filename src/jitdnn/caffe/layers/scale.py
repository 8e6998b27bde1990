"""Scale, Bias and Axpy: factors and summands for some axes of the bottom, learned or another bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Array, Blob, Shape, count
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.caffe.layouts import by_channel
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.ops.convolution import conv_backward_bias
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction
from jitdnn.ops.tensor_ops import add, multiply


class _PerAxis(Layer):
    """A layer with an operand of the shape x.shape[axis : axis + num_axes], which is the first weight or the second
    bottom; then its own axes count, and num_axes does not.
    """

    bottoms = (1, 2)
    may_be_in_place = True
    message = ""
    default = 0.0
    is_for_gpu = True
    writes_gradients = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, shape = getattr(self.parameter, self.message), bottom[0].shape
        if len(bottom) == 1:
            axis = self.front_axis(parameter.axis, len(shape))
            if parameter.num_axes < -1 or axis + parameter.num_axes > len(shape):
                raise self.invalid(
                    f"num_axes {parameter.num_axes} from axis {axis} on: a bottom of shape {shape} has "
                    f"{len(shape) - axis}; -1 takes all",
                    self.message,
                )
            end = len(shape) if parameter.num_axes == -1 else axis + parameter.num_axes
            filler = parameter.filler if parameter.has("filler") else FillerParameter(value=self.default)
            self.add_weight(shape[axis:end], filler)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, operand = bottom[0].shape, self.operand(bottom)
        given = getattr(self.parameter, self.message).axis
        axis = 0 if not operand.shape and len(bottom) == 2 else self.front_axis(given, len(shape))
        end = axis + len(operand.shape)
        if shape[axis:end] != operand.shape:
            which = f"bottom {operand.name!r} has" if len(bottom) == 2 else "the weights have"
            raise self.invalid(
                f"{which} shape {operand.shape}, and a bottom of shape {shape} has {shape[axis:end]} from axis {axis}"
            )
        self.view: Shape = (count(shape, 0, axis), operand.size, count(shape, end))
        self.axes_behind = len(shape) - end
        if top[0] is not bottom[0]:
            top[0].reshape(shape)

    def operand(self, bottom: Sequence[Blob]) -> Blob:
        """What x is multiplied by, or what is added."""
        return bottom[1] if len(bottom) == 2 else self.weights[0]

    def viewed(self, array: Array) -> Array:
        """The array as (outer, the operand's axes, inner)."""
        viewed: Array = by_channel(array, self.view)
        return viewed

    def layout_rule(self) -> str | None:
        is_for_channels = not self.parameter.bottom[1:] and getattr(self.parameter, self.message).axis == 1
        return "same" if is_for_channels and len(self.weights[0].shape) == 1 else None


class ScaleLayer(_PerAxis):
    """y = x · γ, and + β with bias_term (false). γ has the shape of num_axes (1; -1: all) axes of x from `axis` (1) on,
    starts at 1, and is a weight, or the second bottom; β, a weight of the same shape, starts at 0.

    In place x is kept, as the gradient of γ needs it.
    """

    type = "Scale"
    message = "scale_param"
    default = 1.0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        parameter = self.parameter.scale_param
        self.bias: Blob | None = None
        if parameter.bias_term:
            self.add_weight(self.operand(bottom).shape, parameter.bias_filler)
            self.bias = self.weights[-1]
        self.affine = elementwise("x, w, b: x * w + b")
        self.dot = reduction("dy, x: dy * x")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if self.bias is not None and self.bias.shape != self.operand(bottom).shape:
            raise self.invalid(
                f"β has shape {self.bias.shape}, and γ {self.operand(bottom).shape}: they must agree"
            )
        self.x = self.save("x", bottom[0].shape) if top[0] is bottom[0] else bottom[0]

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = self.viewed(bottom[0].values), self.viewed(top[0].values)
        if top[0] is bottom[0]:
            copy(bottom[0].values, self.x.values)
        w = self.operand(bottom).values.reshape(1, -1, 1)
        if self.bias is None:
            multiply(x, w, out=y)
        else:
            self.affine(x, w, self.bias.values.reshape(1, -1, 1), out=y)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy, w = self.viewed(top[0].gradient), self.operand(bottom)
        if self.bias is not None and self.weight_needs_gradient[-1]:
            conv_backward_bias(dy, out=self.bias.gradient.reshape(-1), beta=self.beta(self.bias))
        if len(bottom) == 2 and propagate[1]:
            self.dot(dy, self.viewed(self.x.values), axes=(0, 2), out=w.gradient.reshape(-1))
        elif len(bottom) == 1 and self.weight_needs_gradient[0]:
            dot = self.dot(dy, self.viewed(self.x.values), axes=(0, 2))
            add(dot, out=w.gradient.reshape(-1), beta=self.beta(w))
        if propagate[0]:
            multiply(dy, w.values.reshape(1, -1, 1), out=self.viewed(bottom[0].gradient))

    def new_gradients(self) -> tuple[Any, Any] | None:
        """Where the layer that this one is fused into may write what it would hand to `add_gradients`: the gradients,
        if all are to be computed and nobody has added to them yet.
        """
        owners = [weight.gradient_owner for weight in self.weights]
        if not all(self.weight_needs_gradient) or len({id(owner) for owner in owners}) < len(owners):
            return None
        if not all(owner.is_gradient_new for owner in owners):
            return None
        for weight in self.weights:
            self.beta(weight)
        return self.weights[0].gradient, None if self.bias is None else self.bias.gradient

    def add_gradients(self, dgamma: Any, dbeta: Any) -> None:
        """Add gradients that the layer computed that this one is fused into."""
        if self.weight_needs_gradient[0]:
            add(dgamma, out=self.weights[0].gradient, beta=self.beta(self.weights[0]))
        if self.bias is not None and self.weight_needs_gradient[-1]:
            add(dbeta, out=self.bias.gradient, beta=self.beta(self.bias))

    def backward_reads(self) -> Reads:
        return Reads(bottom=len(self.parameter.bottom) == 2 or "x" not in self.saved, top=False)


class BiasLayer(_PerAxis):
    """y = x + β. β has the shape of num_axes (1; -1: all) axes of x from `axis` (1) on, starts at 0, and is a weight,
    or the second bottom.
    """

    type = "Bias"
    message = "bias_param"
    reads = Reads(bottom=False, top=False)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        operand = self.operand(bottom).values.reshape(1, -1, 1)
        add(self.viewed(bottom[0].values), operand, out=self.viewed(top[0].values))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy, is_weight = self.viewed(top[0].gradient), len(bottom) == 1
        if self.weight_needs_gradient[0] if is_weight else propagate[1]:
            operand = self.operand(bottom)
            beta = self.beta(operand) if is_weight else 0.0
            conv_backward_bias(dy, out=operand.gradient.reshape(-1), beta=beta)
        if propagate[0] and top[0] is not bottom[0]:
            copy(top[0].gradient, bottom[0].gradient)


class AxpyLayer(Layer):
    """a · x + y for a factor a (N, C), or with ones behind, of each channel of x (N, C, ...), and y of x's shape:
    SENet's, of Caffe's forks.
    """

    type = "Axpy"
    bottoms = (3, 3)
    is_for_gpu = True
    reads = Reads(bottom=True, top=False)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.sum = elementwise("a, x, y: a * x + y")
        self.dot = reduction("dy, x: dy * x")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, x, y = (blob.shape for blob in bottom)
        if len(x) < 2 or x != y or a[:2] != x[:2] or count(a, 2) != 1:
            raise self.invalid(
                f"bottoms have shapes {a}, {x} and {y}: (N, C), with ones behind, and twice (N, C, ...) are needed"
            )
        self.view: Shape = (x[0] * x[1], count(x, 2))
        top[0].reshape(x)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, x, y = (blob.values.reshape(self.view[0], -1) for blob in bottom)
        self.sum(a, x, y, out=top[0].values.reshape(self.view))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        a, x, _ = bottom
        dy = top[0].gradient.reshape(self.view)
        if propagate[0]:
            self.dot(dy, x.values.reshape(self.view), axes=1, out=a.gradient.reshape(-1))
        if propagate[1]:
            multiply(dy, a.values.reshape(-1, 1), out=x.gradient.reshape(self.view))
        if propagate[2]:
            copy(top[0].gradient, bottom[2].gradient)
