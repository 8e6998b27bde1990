"""Eltwise: the sum, product or maximum of bottoms of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.activation import rectify
from jitdnn.caffe.layers.base import Layer, Reads
from jitdnn.caffe.layouts import flat
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.tensor_ops import add, multiply


class EltwiseLayer(Layer):
    """Two or more bottoms and a top, all of one shape. operation SUM (default) with one coeff for each bottom (1),
    PROD or MAX.

    Of equal maxima the second of the first two bottoms has the gradient, and else the first one, as in Caffe. The
    gradient of PROD is the product of the others: `stable_prod_grad` changes nothing. `coeff` is refused for PROD and
    changes nothing for MAX.
    """

    type = "Eltwise"
    bottoms = (2, None)
    is_for_gpu = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.eltwise_param
        self.operation, given = parameter.operation, parameter.coeff
        if given and self.operation == "PROD":
            raise self.invalid("coeff is for SUM: a product takes none", "eltwise_param")
        if given and len(given) != len(bottom):
            raise self.invalid(
                f"{len(given)} coeff for {len(bottom)} bottoms: give one each, or none", "eltwise_param"
            )
        self.factors = list(given) or [1.0] * len(bottom)
        # set by fusion.py: the last sum, rectified
        self.rectified: Any = None
        self.first = elementwise("a, b: where(a > b, a, b), where(a > b, 0, 1)")
        self.greater = elementwise("y, x: where(x > y, x, y)")
        self.place = elementwise("winner, y, x, i: where(x > y, i, winner)")
        self.chosen = elementwise("dy, winner, i: where(winner == i, dy, 0)")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        for blob in bottom[1:]:
            if blob.shape != shape:
                raise self.invalid(
                    f"bottom {blob.name!r} has shape {blob.shape}, the first has {shape}: they must agree"
                )
        top[0].reshape(shape)
        if self.operation == "MAX":
            self.winner = self.save("winner", shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        inputs, y = [flat(blob.values) for blob in bottom], flat(top[0].values)
        if self.operation == "SUM":
            *first, last = zip(inputs, self.factors, strict=True)
            if self.rectified is None or len(first) > 1:
                for index, (x, factor) in enumerate(first):
                    add(x, out=y, alpha=factor, beta=1.0 if index else 0.0)
                first = [(y, 1.0)]
            if self.rectified is None:
                add(last[0], out=y, alpha=last[1], beta=1.0)
            else:
                self.rectified(*first[0], *last, out=y)
        elif self.operation == "PROD":
            multiply(inputs[0], inputs[1], out=y)
            for x in inputs[2:]:
                multiply(y, x, out=y)
        else:
            winner = flat(self.winner.values)
            self.first(inputs[0], inputs[1], out=(y, winner))
            for index, x in enumerate(inputs[2:], 2):
                self.place(winner, y, x, float(index), out=winner)
                self.greater(y, x, out=y)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = flat(top[0].gradient)
        for index, blob in enumerate(bottom):
            if not propagate[index]:
                continue
            dx = flat(blob.gradient)
            if self.operation == "SUM":
                add(dy, out=dx, alpha=self.factors[index])
            elif self.operation == "PROD":
                others = [flat(other.values) for number, other in enumerate(bottom) if number != index]
                multiply(dy, others[0], out=dx)
                for other in others[1:]:
                    multiply(dx, other, out=dx)
            else:
                self.chosen(dy, flat(self.winner.values), float(index), out=dx)

    def layout_rule(self) -> str:
        return "same"

    def fuse_relu(self, slope: float | None) -> None:
        """Rectify the sum as it is stored, with this slope below 0; None: do not."""
        if slope is None:
            self.rectified = None
            return
        rectified = rectify(slope)
        self.rectified = elementwise(lambda x, factor, other, share: rectified(x * factor + other * share))

    def backward_reads(self) -> Reads:
        return Reads(bottom=self.operation == "PROD", top=False)
