"""Small nets for the tests of Caffe's front end, and LeNet in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe import Net, load_net
from jitdnn.caffe.graph import Node

Array = NDArray[Any]

LENET = "package:models/lenet.prototxt"
FIXED = 'lr_policy: "fixed" base_lr: 0.1 '  # fields of a solver

# blobs with several readers, layers in place, views, and loss weights in the middle
BRANCHES = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer {
      name: "a" type: "InnerProduct" bottom: "x" top: "a"
      inner_product_param {
        num_output: 4 weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }
      }
    }
    layer { name: "t" type: "TanH" bottom: "a" top: "a" }
    layer { name: "s" type: "Sigmoid" bottom: "a" top: "s" loss_weight: 0.5 }
    layer {
      name: "b" type: "InnerProduct" bottom: "a" top: "b"
      inner_product_param { num_output: 2 weight_filler { type: "gaussian" } }
    }
    layer { name: "f" type: "Flatten" bottom: "b" top: "f" flatten_param { axis: 0 } loss_weight: -2 }
    layer { name: "p" type: "Power" bottom: "a" top: "p" power_param { scale: 3 } loss_weight: 1 }
    layer { name: "q" type: "TanH" bottom: "f" top: "q" loss_weight: 1 }
"""


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


def check_every_gradient(
    net: Net,
    node: Node,
    inputs: list[Array],
    random: np.random.Generator,
    propagate: list[bool] | None = None,
    tolerance: float = 1e-6,
) -> None:
    """The same for several bottoms, of which those of `propagate` have gradients."""
    named = {f"x{index}": x for index, x in enumerate(inputs)}
    wanted = propagate or [True] * len(inputs)
    dy = random.standard_normal(forward(net, **named).shape)
    found = backward(node, dy, wanted)
    gradients = [blob.diff.copy() for blob in node.layer.weights]

    def loss() -> float:
        return float((forward(net, **named) * dy).sum())

    for x, dx, is_wanted in zip(inputs, found, wanted, strict=True):
        if is_wanted:
            np.testing.assert_allclose(dx, differences(loss, x), rtol=tolerance, atol=tolerance)
    for blob, gradient in zip(node.layer.weights, gradients, strict=True):
        np.testing.assert_allclose(gradient, differences(loss, blob.data), rtol=tolerance, atol=tolerance)


def distinct(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Values that are all different, and not near 0, so that no maximum and no kink is close."""
    size = int(np.prod(shape))
    return (random.permutation(size) + 0.5 - size // 2).reshape(shape) / 7


def vars_of(parameter: Any) -> tuple[str, float, float]:
    """What a solver is told of a weight: its name and the multipliers of its rate and decay."""
    return parameter.name, parameter.lr_mult, parameter.decay_mult


def lenet_in_torch(torch: Any, weights: dict[str, Any], x: Any, labels: Any) -> Any:
    """LeNet's loss for the images `x` and these labels."""
    f = torch.nn.functional
    y = f.max_pool2d(f.conv2d(x, weights["conv1/0"], weights["conv1/1"]), 2, ceil_mode=True)
    y = f.max_pool2d(f.conv2d(y, weights["conv2/0"], weights["conv2/1"]), 2, ceil_mode=True)
    y = torch.relu(f.linear(y.flatten(1), weights["ip1/0"], weights["ip1/1"]))
    return f.cross_entropy(f.linear(y, weights["ip2/0"], weights["ip2/1"]), labels)


def as_leaves(torch: Any, net: Net) -> dict[str, Any]:
    """The weights of a net, by name, as leaves of PyTorch's graph."""
    return {p.name: torch.tensor(p.blob.data.copy(), requires_grad=True) for p in net.parameters}


def relative_error(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
