"""debug_info: the mean magnitude of what every layer computes, in the lines that Caffe logs.

    [Forward] Layer ip, top blob ip data: 0.73
    [Forward] Layer ip, param blob 0 data: 0.05
    [Backward] Layer ip, bottom blob data diff: 0.002
    [Backward] Layer ip, param blob 0 diff: 0.01
    [Backward] All net params (data, diff): L1 norm = (21.5, 4.3); L2 norm = (2.1, 0.5)
    [Update] Layer ip, param 0 data: 0.05; diff: 0.0001

The `diff` of an update is what is taken from the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.graph import LayerGraph, Node, Observer
from jitdnn.caffe.layers.base import Layer

Tell = Callable[[str], None]


def mean_magnitude(array: Array) -> float:
    """The mean of |x|, summed in double precision; 0 of nothing."""
    return _sum(np.abs(array)) / array.size if array.size else 0.0


class DebugInfo:
    """An observer of a net that tells a line of each blob and weight. `inner` observes too."""

    def __init__(self, net: LayerGraph, tell: Tell, inner: Observer | None = None) -> None:
        self.net, self.tell, self.inner = net, tell, inner
        self._places = {id(node.layer): place for place, node in enumerate(net.nodes)}
        self._first_backward = next((i for i, node in enumerate(net.nodes) if node.needs_backward), None)
        self._forward_until = -1

    def __call__(self, layer: Layer, direction: str, seconds: float) -> None:
        """Tell of a layer that has just run."""
        place = self._places[id(layer)]
        node = self.net.nodes[place]
        if direction == "forward":
            # under a limit on memory layers run again in the backward pass, to the same results
            if place == 0 or place > self._forward_until:
                self._forward(node)
                self._forward_until = place
        else:
            self._backward(node)
            if place == self._first_backward:
                self._totals()
        if self.inner is not None:
            self.inner(layer, direction, seconds)

    def _forward(self, node: Node) -> None:
        for blob in node.top:
            self._line("Forward", node, f"top blob {blob.name} data", blob.data)
        for index, blob in enumerate(node.layer.weights):
            self._line("Forward", node, f"param blob {_shown(node.layer, index)} data", blob.data)

    def _backward(self, node: Node) -> None:
        for blob, is_computed in zip(node.bottom, node.propagate, strict=True):
            if is_computed:
                self._line("Backward", node, f"bottom blob {blob.name} diff", blob.diff)
        for index, blob in enumerate(node.layer.weights):
            if node.layer.weight_needs_gradient[index]:
                self._line("Backward", node, f"param blob {index} diff", blob.diff)

    def _totals(self) -> None:
        blobs = [parameter.blob for parameter in self.net.parameters]
        sides = [blob.data for blob in blobs], [blob.diff for blob in blobs]
        l1 = [sum(_sum(np.abs(array)) for array in arrays) for arrays in sides]
        l2 = [
            math.sqrt(sum(_sum(np.square(array, dtype=np.float64)) for array in arrays)) for arrays in sides
        ]
        self.tell(
            f"    [Backward] All net params (data, diff): L1 norm = ({l1[0]:g}, {l1[1]:g}); "
            f"L2 norm = ({l2[0]:g}, {l2[1]:g})"
        )

    def _line(self, direction: str, node: Node, what: str, array: Array) -> None:
        self.tell(f"    [{direction}] Layer {node.layer.name}, {what}: {mean_magnitude(array):g}")


@contextmanager
def debugging(net: LayerGraph, tell: Tell) -> Iterator[None]:
    """Tell of all passes of the net inside of the context."""
    before = net.observer
    inner = before.inner if isinstance(before, DebugInfo) else before
    net.observer = DebugInfo(net, tell, inner)
    try:
        yield
    finally:
        net.observer = before


def update_lines(net: LayerGraph, before: dict[str, float]) -> list[str]:
    """The lines of an update that is done; `before` are the mean magnitudes of the weights ahead of it."""
    lines = []
    for parameter in net.parameters:
        layer, _, index = parameter.name.rpartition("/")
        diff = mean_magnitude(parameter.blob.diff)
        lines.append(
            f"    [Update] Layer {layer}, param {index} data: {before[parameter.name]:g}; diff: {diff:g}"
        )
    return lines


def _shown(layer: Layer, index: int) -> str:
    """What Caffe calls a weight: the name that it is shared by, or its number."""
    specs = layer.parameter.param
    return specs[index].name if index < len(specs) and specs[index].name else str(index)


def _sum(array: Array) -> float:
    return float(array.sum(dtype=np.float64))
