"""Small nets for the tests of Caffe's front end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe import Net, load_net
from jitdnn.caffe.graph import Node

Array = NDArray[Any]


def shape_text(shape: tuple[int, ...]) -> str:
    return "shape { " + " ".join(f"dim: {extent}" for extent in shape) + " }"


def one_layer(
    layer: str, *shapes: tuple[int, ...], dtype: str = "f64", phase: str = "TEST"
) -> tuple[Net, Node]:
    """A net of inputs x0, x1, ... and one layer (the text of its fields, without name, bottoms and tops)."""
    inputs = "".join(
        f'layer {{ name: "x{i}" type: "Input" top: "x{i}" input_param {{ {shape_text(shape)} }} }}\n'
        for i, shape in enumerate(shapes)
    )
    bottoms = " ".join(f'bottom: "x{i}"' for i in range(len(shapes)))
    tops = "" if "top:" in layer else 'top: "y"'
    net = load_net(f'{inputs} layer {{ name: "l" {bottoms} {tops} {layer} }}', phase, dtype=dtype, seed=5)
    return net, net.nodes[-1]


def forward(net: Net, **inputs: Array) -> Array:
    """The data of the first top of the last layer, its blobs poisoned first."""
    for blob in net.nodes[-1].top:
        if blob.name not in inputs:
            blob.data.fill(np.nan)
    net.forward(**inputs)
    return net.nodes[-1].top[0].data.copy()


def backward(node: Node, dy: Array, propagate: list[bool] | None = None) -> list[Array]:
    """The gradients of the bottoms for `dy`, that of the first top; those of weights go to their diff."""
    for blob in node.bottom:
        blob.diff.fill(np.nan)
    np.copyto(node.top[0].diff, dy)
    for blob in node.layer.weights:
        blob.diff.fill(0)
    node.layer.backward(node.top, propagate or [True] * len(node.bottom), node.bottom)
    return [blob.diff.copy() for blob in node.bottom]


def differences(function: Callable[[], float], array: Array, step: float = 1e-6) -> Array:
    """The gradient of `function` by `array` (float64, changed and put back) by central differences."""
    result = np.empty_like(array)
    for index in np.ndindex(array.shape):
        value = array[index]
        array[index] = value + step
        above = function()
        array[index] = value - step
        below = function()
        array[index] = value
        result[index] = (above - below) / (2 * step)
    return result


def check_gradients(
    net: Net, node: Node, x: Array, random: np.random.Generator, tolerance: float = 1e-6
) -> None:
    """Hold the gradients of a layer with one bottom, and of all its weights, against central differences."""
    dy = random.standard_normal(forward(net, x0=x).shape)
    (dx,) = backward(node, dy)
    gradients = [blob.diff.copy() for blob in node.layer.weights]

    def loss() -> float:
        return float((forward(net, x0=x) * dy).sum())

    np.testing.assert_allclose(dx, differences(loss, x), rtol=tolerance, atol=tolerance)
    for blob, gradient in zip(node.layer.weights, gradients, strict=True):
        np.testing.assert_allclose(gradient, differences(loss, blob.data), rtol=tolerance, atol=tolerance)
