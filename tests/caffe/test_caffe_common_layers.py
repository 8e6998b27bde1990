"""InnerProduct, activations, Power, Dropout, Flatten and Input: values, gradients by differences, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from caffe_nets import Array, backward, check_gradients, distinct, forward, one_layer
from jitdnn.caffe import Net, load_net
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


# ---- InnerProduct

PRODUCTS = [
    ("num_output: 3", (4, 5)),
    ("num_output: 2 bias_term: false", (2, 3, 2, 2)),
    ("num_output: 3 transpose: true", (2, 3, 2)),
    ("num_output: 2 axis: 2", (2, 3, 2, 2)),
    ("num_output: 2 axis: -1 transpose: true bias_term: false", (2, 3, 4)),
    ("num_output: 2 axis: 0", (3, 2)),
]


@pytest.mark.parametrize(("fields", "shape"), PRODUCTS)
def test_inner_product_gradients(fields: str, shape: tuple[int, ...], random: np.random.Generator) -> None:
    fillers = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'
    net, node = one_layer(f'type: "InnerProduct" inner_product_param {{ {fields} {fillers} }}', shape)
    check_gradients(net, node, random.standard_normal(shape), random)


def test_inner_product_values(random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 2, 2))
    for transpose in ("false", "true"):
        fillers = 'weight_filler { type: "gaussian" } bias_filler { value: 2 }'
        fields = f"num_output: 5 transpose: {transpose} {fillers}"
        net, node = one_layer(f'type: "InnerProduct" inner_product_param {{ {fields} }}', x.shape)
        w = node.layer.weights[0].data
        assert w.shape == ((12, 5) if transpose == "true" else (5, 12))
        columns = w if transpose == "true" else w.T
        np.testing.assert_allclose(forward(net, x0=x), x.reshape(2, 12) @ columns + 2, rtol=1e-12)


def test_inner_products_that_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="num_output is missing"):
        one_layer('type: "InnerProduct"', (2, 3))
    net, _ = one_layer('type: "InnerProduct" inner_product_param { num_output: 2 }', (2, 3))
    with pytest.raises(InvalidArgument, match="the weights are for 3"):
        net.reshape(x0=(2, 4))


# ---- activations, Power


def power(scale: float, shift: float, exponent: float = 1) -> str:
    return f'type: "Power" power_param {{ scale: {scale} shift: {shift} power: {exponent} }}'


ELEMENTWISE = {
    'type: "ReLU"': lambda x: np.maximum(x, 0),
    'type: "ReLU" relu_param { negative_slope: 0.25 }': lambda x: np.where(x > 0, x, x / 4),
    'type: "ReLU6"': lambda x: np.clip(x, 0, 6),
    'type: "ELU"': lambda x: np.where(x > 0, x, np.expm1(x)),
    'type: "ELU" elu_param { alpha: 0.5 }': lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)),
    'type: "PReLU"': lambda x: np.where(x > 0, x, x / 4),
    'type: "PReLU" prelu_param { channel_shared: true filler { value: 0.5 } }': lambda x: np.where(
        x > 0, x, x / 2
    ),
    'type: "Sigmoid"': lambda x: 1 / (1 + np.exp(-x)),
    'type: "TanH"': np.tanh,
    power(-0.5, 0.25): lambda x: 0.25 - 0.5 * x,
    power(2, 0): lambda x: 2 * x,
    power(2, 0.1, 3): lambda x: (2 * x + 0.1) ** 3,
    power(0.1, 3, -1.5): lambda x: (0.1 * x + 3) ** -1.5,
    power(0, 3, 2): lambda x: 9 + 0 * x,
    power(3, 2, 0): lambda x: 1 + 0 * x,
    'type: "BNLL"': lambda x: np.logaddexp(0, x),
    'type: "Clip" clip_param { min: -1 max: 0.6 }': lambda x: np.clip(x, -1, 0.6),
    'type: "Exp"': np.exp,
    'type: "Exp" exp_param { base: 2 scale: 0.5 shift: -1 }': lambda x: 2 ** (0.5 * x - 1),
    'type: "Swish"': lambda x: x / (1 + np.exp(-x)),
    'type: "Swish" swish_param { beta: -2 }': lambda x: x / (1 + np.exp(2 * x)),
}


@pytest.mark.parametrize("layer", ELEMENTWISE)
@pytest.mark.parametrize("top", ["y", "x0"])
def test_elementwise_layers(layer: str, top: str, random: np.random.Generator) -> None:
    x = distinct((3, 5, 2), random)
    net, node = one_layer(f'{layer} top: "{top}"', x.shape)
    assert (node.top[0] is node.bottom[0]) == (top == "x0")
    np.testing.assert_allclose(forward(net, x0=x), ELEMENTWISE[layer](x), rtol=1e-12)
    if top == "y":
        check_gradients(net, node, x, random)
    else:
        _check_in_place(net, x, layer)


def _check_in_place(net: Net, x: np.ndarray[Any, Any], layer: str) -> None:
    """In place the gradient is what it is elsewhere, and stands where dy stood."""
    other, other_node = one_layer(layer, x.shape)
    dy = np.cos(x)
    forward(other, x0=x)
    (expected,) = backward(other_node, dy)
    net.forward(x0=x)
    node = net.nodes[-1]
    np.copyto(node.top[0].diff, dy)
    node.layer.backward(node.top, [True], node.bottom)
    np.testing.assert_array_equal(node.bottom[0].diff, expected)


def test_sigmoid_before_a_layer_in_place(random: np.random.Generator) -> None:
    text = """
        layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 7 } } }
        layer { name: "s" type: "Sigmoid" bottom: "x0" top: "s" }
        layer { name: "p" type: "Power" bottom: "s" top: "s" power_param { scale: 5 } loss_weight: 1 }
        force_backward: true
    """
    net = load_net(text, dtype="f64")
    x = random.standard_normal(7)
    net.forward(x0=x)
    net.backward()
    y = 1 / (1 + np.exp(-x))
    np.testing.assert_allclose(net.blobs["x0"].diff, 5 * y * (1 - y), rtol=1e-12)


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        ('type: "ReLU" relu_param { negative_slope: -0.5 }', lambda x: np.where(x > 0, x, -0.5 * x)),
        ('type: "ELU" elu_param { alpha: -2 }', lambda x: np.where(x > 0, x, -2 * np.expm1(x))),
    ],
)
@pytest.mark.parametrize("top", ["y", "x0"])
def test_slopes_that_y_does_not_tell(
    layer: str, function: Callable[[Array], Array], top: str, random: np.random.Generator
) -> None:
    x = distinct((3, 4), random)
    net, node = one_layer(f'{layer} top: "{top}"', x.shape)
    np.testing.assert_allclose(forward(net, x0=x), function(x), rtol=1e-12)
    (dx,) = backward(node, np.ones(x.shape))
    step = 1e-6
    np.testing.assert_allclose(dx, (function(x + step) - function(x - step)) / (2 * step), rtol=1e-6)


def test_what_activations_refuse() -> None:
    with pytest.raises(InvalidArgument, match="needs a batch and channels"):
        one_layer('type: "PReLU"', (2,))
    with pytest.raises(InvalidArgument, match=r"scale 0: shift -1 to the power 0\.5"):
        one_layer('type: "Power" power_param { power: 0.5 scale: 0 shift: -1 }', (2,))
    with pytest.raises(InvalidArgument, match="scale 0: shift 0 to the power -1"):
        one_layer('type: "Power" power_param { power: -1 scale: 0 }', (2,))
    for kind in ("exp", "log"):
        with pytest.raises(InvalidArgument, match="base is 0: it must be positive"):
            one_layer(f'type: "{kind.title()}" {kind}_param {{ base: 0 }}', (2,))
    with pytest.raises(InvalidArgument, match=r"'l' \(Log\) \(line 2\): base is 1"):
        one_layer('type: "Log" log_param { base: 1 }', (2,))
    with pytest.raises(InvalidArgument, match="needs both min and max"):
        one_layer('type: "Clip" clip_param { min: 1 }', (2,))
    with pytest.raises(InvalidArgument, match="min 2 is above max 1"):
        one_layer('type: "Clip" clip_param { min: 2 max: 1 }', (2,))
    with pytest.raises(InvalidArgument, match="cannot work in place"):
        one_layer('type: "AbsVal" top: "x0"', (2,))


def test_absolute_values(random: np.random.Generator) -> None:
    x = distinct((3, 5, 2), random)
    net, node = one_layer('type: "AbsVal"', x.shape)
    np.testing.assert_array_equal(forward(net, x0=x), np.abs(x))
    check_gradients(net, node, x, random)
    forward(net, x0=np.zeros_like(x))
    np.testing.assert_array_equal(backward(node, np.ones_like(x))[0], 0)


@pytest.mark.parametrize("top", ["y", "x0"])
def test_logarithms(top: str, random: np.random.Generator) -> None:
    for fields, base in (("", np.e), ("base: 10", 10)):
        layer = f'type: "Log" log_param {{ scale: 0.5 shift: 3 {fields} }} top: "{top}"'
        x = random.uniform(-5, 5, (3, 7))
        net, node = one_layer(layer, x.shape)
        np.testing.assert_allclose(forward(net, x0=x), np.log(0.5 * x + 3) / np.log(base), rtol=1e-12)
        if top == "y":
            check_gradients(net, node, x, random)


def test_threshold() -> None:
    x = np.array([-1, 0.5, 0.5001, np.inf])
    for top in ("y", "x0"):
        net, node = one_layer(f'type: "Threshold" threshold_param {{ threshold: 0.5 }} top: "{top}"', (4,))
        np.testing.assert_array_equal(forward(net, x0=x), [0, 0, 1, 1])
    with pytest.raises(InvalidArgument, match="a threshold has no gradient"):
        backward(node, x)


def test_powers_of_zero() -> None:
    """With an exponent of 2 or more the slope where the base is 0 is a number."""
    for fields, value, slope in (
        ("power: 2", 0, 0),
        ("power: 0", 1, 0),
        ("power: 3 shift: -1 scale: 2", -1, 6),
    ):
        net, node = one_layer(f'type: "Power" power_param {{ {fields} }}', (2,))
        np.testing.assert_array_equal(forward(net, x0=np.zeros(2)), value)
        np.testing.assert_array_equal(backward(node, np.ones(2))[0], slope)


# ---- Dropout


def test_dropout_in_training(random: np.random.Generator) -> None:
    shape = (100, 100)
    net, node = one_layer('type: "Dropout" dropout_param { dropout_ratio: 0.25 }', shape, phase="TRAIN")
    x = random.uniform(1, 2, shape)
    y = forward(net, x0=x)
    is_kept = y != 0
    np.testing.assert_allclose(y[is_kept], x[is_kept] / 0.75, rtol=1e-12)
    # 10,000 draws with p = 0.75: four standard deviations are 0.017
    assert abs(is_kept.mean() - 0.75) < 0.018
    dy = random.standard_normal(shape)
    (dx,) = backward(node, dy)
    np.testing.assert_allclose(dx, np.where(is_kept, dy / 0.75, 0), rtol=1e-12)
    assert (forward(net, x0=x) != y).any()


def test_dropout_in_testing(random: np.random.Generator) -> None:
    x, dy = random.standard_normal((2, 3, 4))
    net, node = one_layer('type: "Dropout"', (3, 4))
    np.testing.assert_array_equal(forward(net, x0=x), x)
    np.testing.assert_array_equal(backward(node, dy)[0], dy)


def test_dropout_ratio_is_less_than_1() -> None:
    with pytest.raises(InvalidArgument, match="dropout_ratio is 1"):
        one_layer('type: "Dropout" dropout_param { dropout_ratio: 1 }', (2,))


# ---- Flatten, Input


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", (2, 60)),
        ("axis: 2", (2, 3, 20)),
        ("axis: 0 end_axis: 1", (6, 4, 5)),
        ("axis: -2", (2, 3, 20)),
        ("axis: 2 end_axis: 2", (2, 3, 4, 5)),
    ],
)
def test_flatten(fields: str, expected: tuple[int, ...], random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 4, 5))
    net, node = one_layer(f'type: "Flatten" flatten_param {{ {fields} }}', x.shape)
    np.testing.assert_array_equal(forward(net, x0=x), x.reshape(expected))
    dy = random.standard_normal(expected)
    node.bottom[0].diff.fill(np.nan)
    np.copyto(node.top[0].diff, dy)
    node.layer.backward(node.top, [True], node.bottom)
    np.testing.assert_array_equal(node.bottom[0].diff, dy.reshape(x.shape))


def test_flatten_before_a_layer_in_place(random: np.random.Generator) -> None:
    """The view must not let the layer in place write into what another layer reads."""
    text = """
        layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "f" type: "Flatten" bottom: "x0" top: "f" flatten_param { axis: 0 } }
        layer { name: "p" type: "Power" bottom: "f" top: "f" power_param { scale: 5 } loss_weight: 1 }
        layer { name: "s" type: "Power" bottom: "x0" top: "s" power_param { scale: 2 } loss_weight: 1 }
        force_backward: true
    """
    net = load_net(text, dtype="f64")
    x = random.standard_normal((2, 3))
    net.forward(x0=x)
    np.testing.assert_allclose(net.loss, 7 * x.sum(), rtol=1e-12)
    net.backward()
    np.testing.assert_allclose(net.blobs["x0"].diff, 7)


def test_flatten_backwards() -> None:
    with pytest.raises(InvalidArgument, match="end_axis 0 is before axis 1"):
        one_layer('type: "Flatten" flatten_param { end_axis: 0 }', (2, 3))


def test_input_shapes() -> None:
    net = load_net(
        'layer { name: "i" type: "Input" top: "a" top: "b" '
        "input_param { shape { dim: 2 dim: 3 } shape { } } }"
    )
    assert (net.blobs["a"].shape, net.blobs["b"].shape) == ((2, 3), ())
    with pytest.raises(InvalidArgument, match="1 or 2 shapes"):
        load_net('layer { name: "i" type: "Input" top: "a" top: "b" }')
    with pytest.raises(InvalidArgument, match="negative extent"):
        load_net('layer { name: "i" type: "Input" top: "a" input_param { shape { dim: -1 } } }')
