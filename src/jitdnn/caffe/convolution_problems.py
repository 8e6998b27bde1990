"""The convolutions of a net as problems, those that an iteration of training computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.net import Net
from jitdnn.problems.convolution import DIRECTIONS, Convolution


class LayerProblem(NamedTuple):
    """A convolution of a layer: the layer's name, "fwd", "bwd_data" or "bwd_filter", and the problem."""

    layer: str
    direction: str
    problem: Convolution


def convolution_problems(net: Net, directions: Sequence[str] = DIRECTIONS) -> list[LayerProblem]:
    """The convolutions of a net, which may be one of shapes only, in the order of its layers.

    Of a net without a loss they are those that it would compute if it had one.
    """
    has_loss = any(node.needs_backward for node in net.nodes)
    found: list[LayerProblem] = []
    trained: set[str] = set()  # blobs with trained weights upstream
    for node in net.nodes:
        layer = node.layer
        is_trained = any(blob.name in trained for blob in node.bottom)
        if is_trained or any(layer.weight_needs_gradient):
            trained |= {blob.name for blob in node.top}
        if not isinstance(layer, ConvolutionLayer):
            continue
        for blob, is_wanted in zip(node.bottom, node.propagate, strict=True):
            is_computed = {
                "fwd": True,
                "bwd_data": node.needs_backward and is_wanted if has_loss else is_trained,
                "bwd_filter": (node.needs_backward or not has_loss) and layer.weight_needs_gradient[0],
            }
            found += [
                LayerProblem(layer.name, each, layer.problem(each, blob.shape))
                for each in directions
                if is_computed[each]
            ]
    return found
