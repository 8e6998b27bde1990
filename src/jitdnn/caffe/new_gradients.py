"""Gradients of weights at the beginning of a backward pass of a solver: the first layer that has one writes it, in
place of adding to zeros, which saves writing and reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.graph import Node, Parameter
from jitdnn.caffe.layouts import flat
from jitdnn.ops.multi_tensor import MultiTensor


class NewGradients:
    """Of the parameters of a net, all functions within `Net.running`."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """`nodes` are those of the net."""
        self._nodes = nodes
        self._zero = MultiTensor("zero: zero", ("zero",))
        # gradients that all layers which have them can write, and those that none adds to
        self._written: set[int] | None = None
        self._idle: set[int] = set()
        self._new: list[Blob] = []

    def clear(self, parameters: Sequence[Parameter]) -> None:
        """Fill them with zeros."""
        for parameter in parameters:
            parameter.blob.gradient_owner.is_gradient_new = False
        self._fill([parameter.blob for parameter in parameters])

    def begin(self, parameters: Iterable[Parameter]) -> None:
        """Layers are about to add to these gradients, whose contents are nobody's: who adds first writes."""
        cleared = []
        for parameter in parameters:
            owner = parameter.blob.gradient_owner
            if self.is_idle(parameter):
                continue
            if id(owner) in self._may_be_written():
                owner.is_gradient_new = True
                self._new.append(owner)
            else:
                cleared.append(parameter.blob)
        self._fill(cleared)

    def complete(self, parameters: Iterable[Parameter]) -> None:
        """No layer adds to these any more: those that none has added to are zeros."""
        left = [each.blob for each in parameters if each.blob.gradient_owner.is_gradient_new]
        for blob in left:
            blob.gradient_owner.is_gradient_new = False
        self._fill(left)

    def forget(self) -> None:
        """The pass is over, or failed."""
        for blob in self._new:
            blob.is_gradient_new = False
        self._new.clear()

    def settle(self, parameters: Iterable[Parameter]) -> None:
        """Make what `begin` needs before its calls are captured."""
        written = self._may_be_written()
        left = [
            p.blob for p in parameters if not self.is_idle(p) and id(p.blob.gradient_owner) not in written
        ]
        self._zero.settle(_rows(left))

    def is_idle(self, parameter: Parameter) -> bool:
        """Whether the gradient stays zeros: no layer adds to it, as to statistics and to weights that stay."""
        self._may_be_written()
        return not parameter.lr_mult and id(parameter.blob.gradient_owner) in self._idle

    def _fill(self, blobs: Sequence[Blob]) -> None:
        self._zero(_rows(blobs))

    def _may_be_written(self) -> set[int]:
        if self._written is None:
            able: dict[int, bool] = {}
            added: set[int] = set()
            for node in self._nodes:
                layer = node.layer
                for blob, is_added in zip(layer.weights, layer.weight_needs_gradient, strict=True):
                    key = id(blob.gradient_owner)
                    able[key] = able.get(key, True) and layer.writes_gradients
                    if is_added:
                        added.add(key)
            self._written = {key for key, is_able in able.items() if is_able}
            self._idle = set(able) - added
        return self._written


def _rows(blobs: Iterable[Blob]) -> list[tuple[tuple[float], tuple[object]]]:
    return [((0.0,), (flat(blob.gradient),)) for blob in blobs]
