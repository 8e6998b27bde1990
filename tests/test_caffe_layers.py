"""Every layer by itself: values by hand or by PyTorch, gradients by differences and by PyTorch, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caffe_nets import backward, check_gradients, forward, one_layer
from jitdnn.caffe import Net, load_net
from jitdnn.errors import InvalidArgument, NotSupported


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


def distinct(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Values that are all different, and not near 0, so that no maximum and no kink is close."""
    size = int(np.prod(shape))
    return (random.permutation(size) + 0.5 - size // 2).reshape(shape) / 7


# ---- Convolution

CONVOLUTIONS = [
    ("num_output: 3 kernel_size: 3", (2, 2, 5, 6)),
    ("num_output: 4 kernel_size: 2 stride: 2 pad: 1", (1, 3, 5, 4)),
    ("num_output: 4 kernel_h: 3 kernel_w: 1 stride_h: 1 stride_w: 2 pad_h: 2 pad_w: 0", (2, 2, 4, 5)),
    ("num_output: 4 kernel_size: 2 dilation: 2 group: 2 bias_term: false", (2, 4, 5, 5)),
    ("num_output: 3 kernel_size: 1 group: 3", (1, 3, 2, 3)),
    ("num_output: 2 kernel_size: 3 kernel_size: 2 stride: 1 stride: 2 pad: 1 pad: 0", (1, 2, 4, 5)),
    ("num_output: 2 kernel_size: 3 stride: 2", (2, 3, 9)),
    ("num_output: 2 kernel_size: 2 pad: 1", (1, 2, 3, 2, 3)),
    ("num_output: 3 kernel_size: 2 axis: 2", (2, 3, 2, 4, 3)),
    ("num_output: 2 kernel_size: 2 axis: -3 engine: CAFFE force_nd_im2col: true", (2, 3, 3, 4)),
]


def convolution(fields: str) -> str:
    fillers = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'
    return f'type: "Convolution" convolution_param {{ {fields} {fillers} }}'


@pytest.mark.parametrize(("fields", "shape"), CONVOLUTIONS)
def test_convolution_gradients(fields: str, shape: tuple[int, ...], random: np.random.Generator) -> None:
    net, node = one_layer(convolution(fields), shape)
    assert len(node.layer.weights) == (1 if "bias_term" in fields else 2)
    check_gradients(net, node, random.standard_normal(shape), random)


def test_convolution_as_pytorch(random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    fields = (
        "num_output: 6 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 2 dilation: 2 group: 2"
    )
    net, node = one_layer(convolution(fields), (3, 4, 9, 8), dtype="f32")
    x = random.standard_normal((3, 4, 9, 8)).astype(np.float32)
    y = forward(net, x0=x)
    w, b = (blob.data.copy() for blob in node.layer.weights)
    leaves = [torch.tensor(array, requires_grad=True) for array in (x, w, b)]
    expected = torch.nn.functional.conv2d(*leaves, stride=(2, 1), padding=(1, 2), dilation=2, groups=2)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-4, atol=1e-4)
    dy = random.standard_normal(y.shape).astype(np.float32)
    expected.backward(torch.tensor(dy))
    gradients = [*backward(node, dy), *(blob.diff for blob in node.layer.weights)]
    for gradient, leaf in zip(gradients, leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-4, atol=1e-4)


def test_gradients_of_weights_are_added_up(random: np.random.Generator) -> None:
    net, node = one_layer(convolution("num_output: 2 kernel_size: 2"), (1, 2, 3, 3))
    forward(net, x0=random.standard_normal((1, 2, 3, 3)))
    backward(node, random.standard_normal(node.top[0].shape))
    once = [blob.diff.copy() for blob in node.layer.weights]
    node.layer.backward(node.top, [False], node.bottom)
    for blob, gradient in zip(node.layer.weights, once, strict=True):
        np.testing.assert_allclose(blob.diff, 2 * gradient, rtol=1e-12)


def test_several_bottoms_share_the_weights(random: np.random.Generator) -> None:
    text = convolution("num_output: 2 kernel_size: 2") + ' top: "y" top: "z"'
    net, node = one_layer(text, (1, 2, 3, 3), (1, 2, 3, 3))
    x, z = random.standard_normal((2, 1, 2, 3, 3))
    net.forward(x0=x, x1=x)
    np.testing.assert_array_equal(node.top[0].data, node.top[1].data)
    net.forward(x0=x, x1=z)
    np.copyto(node.top[1].diff, 1)
    backward(node, np.ones(node.top[0].shape))
    both = node.layer.weights[0].diff.copy()
    single, single_node = one_layer(convolution("num_output: 2 kernel_size: 2"), (2, 2, 3, 3))
    single.forward(x0=np.concatenate([x, z]))
    backward(single_node, np.ones(single_node.top[0].shape))
    np.testing.assert_allclose(both, single_node.layer.weights[0].diff, rtol=1e-12)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("kernel_size: 3", "num_output is missing"),
        ("num_output: 3", "kernel_size has 0 values"),
        ("num_output: 3 kernel_size: 0", "at least 1"),
        ("num_output: 3 kernel_size: 3 kernel_h: 3 kernel_w: 3", "keep one form"),
        ("num_output: 3 kernel_h: 3", "at least 1"),
        ("num_output: 3 kernel_size: 1 kernel_size: 1 kernel_size: 1", "has 3 values"),
        ("num_output: 3 kernel_size: 3 stride: 0", "stride.*at least 1"),
        ("num_output: 3 kernel_size: 3 group: 2", "must divide the 3 channels"),
        ("num_output: 4 kernel_size: 3 group: 3", "num_output 4"),
        ("num_output: 3 kernel_size: 9", r"'l' \(Convolution\) \(line 2\)"),
        ("num_output: 3 kernel_size: 3 axis: 4", "axis 4 does not exist"),
        ("num_output: 3 kernel_size: 3 axis: 3", "0 spatial axes"),
    ],
)
def test_convolutions_that_cannot_be(fields: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        one_layer(convolution(fields), (1, 3, 5, 5))


# ---- Pooling

POOLINGS = [
    ("kernel_size: 2 stride: 2", (2, 2, 4, 4)),
    ("kernel_size: 3 stride: 2", (1, 2, 8, 7)),
    ("kernel_size: 3 stride: 2 pad: 1", (1, 2, 5, 6)),
    ("kernel_size: 3 stride: 2 pad: 2", (1, 1, 4, 5)),
    ("kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3 pad_h: 1 pad_w: 0", (1, 2, 4, 7)),
    ("kernel_size: 2 stride: 2 round_mode: FLOOR", (1, 1, 5, 5)),
    ("global_pooling: true", (2, 2, 3, 4)),
]


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(("fields", "shape"), POOLINGS)
def test_pooling_gradients(
    method: str, fields: str, shape: tuple[int, ...], random: np.random.Generator
) -> None:
    net, node = one_layer(f'type: "Pooling" pooling_param {{ pool: {method} {fields} }}', shape)
    check_gradients(net, node, distinct(shape, random), random)


@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "pad", "expected"),
    [
        (32, 3, 2, 0, 16),
        (5, 1, 3, 0, 3),
        (7, 2, 4, 0, 3),
        (6, 2, 3, 0, 3),
        (5, 2, 2, 1, 3),
        (4, 3, 2, 2, 3),
        (112, 3, 2, 0, 56),
    ],
)
def test_output_extents_are_caffes(extent: int, kernel: int, stride: int, pad: int, expected: int) -> None:
    """⌈(i + 2p − k) / s⌉ + 1, and with padding no window that starts past the image and its padding."""
    fields = f"kernel_size: {kernel} stride: {stride} pad: {pad}"
    _, node = one_layer(f'type: "Pooling" pooling_param {{ {fields} }}', (1, 1, extent, extent))
    assert node.top[0].shape == (1, 1, expected, expected)


def test_average_divides_by_padding_but_not_by_overhang() -> None:
    """Image 4, kernel 3, stride 2, pad 1: windows start at −1, 1, 3 and end before 2, 4 and (clipped) 5."""
    x = np.arange(1.0, 17).reshape(1, 1, 4, 4)
    net, _ = one_layer(
        'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }', (1, 1, 4, 4)
    )
    y = forward(net, x0=x)[0, 0]
    assert y.shape == (3, 3)
    assert y[0, 0] == (1 + 2 + 5 + 6) / 9
    assert y[0, 2] == (4 + 8) / 6
    assert y[2, 2] == 16 / 4
    assert y[1, 1] == x[0, 0, 1:4, 1:4].sum() / 9


def test_an_empty_window_is_minus_flt_max() -> None:
    net, _ = one_layer(
        'type: "Pooling" pooling_param { kernel_size: 1 stride: 3 }', (1, 1, 5, 5), dtype="f32"
    )
    y = forward(net, x0=np.ones((1, 1, 5, 5)))[0, 0]
    np.testing.assert_array_equal(y[:2, :2], 1)
    np.testing.assert_array_equal(y[2], np.finfo(np.float32).min)


def test_max_pooling_before_a_layer_in_place(random: np.random.Generator) -> None:
    """The gradient goes to the maximum although a later layer has written over it."""
    text = """
        layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
        layer { name: "p" type: "Pooling" bottom: "x0" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
        layer {
          name: "s" type: "Power" bottom: "p" top: "p" power_param { scale: -3 shift: 1 } loss_weight: 1
        }
        force_backward: true
    """
    net = load_net(text, dtype="f64")
    x = distinct((1, 1, 4, 4), random)
    net.forward(x0=x)
    net.backward()
    expected = np.where(np.kron(x.reshape(2, 2, 2, 2).max((1, 3)), np.ones((2, 2))) == x, -3, 0)
    np.testing.assert_array_equal(net.blobs["x0"].diff, expected)


@pytest.mark.parametrize(
    ("fields", "kind", "reason"),
    [
        ("pool: STOCHASTIC kernel_size: 2", NotSupported, "STOCHASTIC"),
        ("stride: 2", InvalidArgument, "kernel_size"),
        ("kernel_h: 2", InvalidArgument, "both kernel_h and kernel_w"),
        ("kernel_size: 2 kernel_h: 2 kernel_w: 2", InvalidArgument, "give kernel_size"),
        ("kernel_size: 2 stride: 0", InvalidArgument, "positive"),
        ("kernel_size: 2 pad: 2", InvalidArgument, "less than the kernel"),
        ("kernel_size: 2 global_pooling: true", InvalidArgument, "whole image"),
        ("global_pooling: true stride: 2", InvalidArgument, "stride 1"),
    ],
)
def test_poolings_that_cannot_be(fields: str, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        one_layer(f'type: "Pooling" pooling_param {{ {fields} }}', (1, 1, 4, 4))


def test_pooling_needs_two_axes_of_space_and_one_top() -> None:
    with pytest.raises(InvalidArgument, match="4 axes"):
        one_layer('type: "Pooling" pooling_param { kernel_size: 2 }', (1, 1, 4))
    with pytest.raises(NotSupported, match="mask"):
        one_layer('type: "Pooling" top: "y" top: "m" pooling_param { kernel_size: 2 }', (1, 1, 4, 4))


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


def power(scale: float, shift: float) -> str:
    return f'type: "Power" power_param {{ scale: {scale} shift: {shift} }}'


ELEMENTWISE = {
    'type: "ReLU"': lambda x: np.maximum(x, 0),
    'type: "ReLU" relu_param { negative_slope: 0.25 }': lambda x: np.where(x > 0, x, x / 4),
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


def test_what_activations_refuse() -> None:
    with pytest.raises(NotSupported, match=r"'l' \(line 2\): negative_slope -0.1"):
        one_layer('type: "ReLU" relu_param { negative_slope: -0.1 }', (2,))
    with pytest.raises(NotSupported, match="alpha -1"):
        one_layer('type: "ELU" elu_param { alpha: -1 }', (2,))
    with pytest.raises(InvalidArgument, match="needs a batch and channels"):
        one_layer('type: "PReLU"', (2,))
    with pytest.raises(NotSupported, match="power 2"):
        one_layer('type: "Power" power_param { power: 2 }', (2,))


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


# ---- Softmax, SoftmaxWithLoss


@pytest.mark.parametrize(("axis", "shape"), [(1, (3, 4)), (1, (2, 3, 2, 2)), (-1, (2, 3, 4)), (0, (3, 2))])
def test_softmax(axis: int, shape: tuple[int, ...], random: np.random.Generator) -> None:
    x = 30 * random.standard_normal(shape)
    net, node = one_layer(f'type: "Softmax" softmax_param {{ axis: {axis} }}', shape)
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    np.testing.assert_allclose(
        forward(net, x0=x), exponentials / exponentials.sum(axis, keepdims=True), rtol=1e-12
    )
    check_gradients(net, node, random.standard_normal(shape), random)


def loss_layer(fields: str = "") -> str:
    return f'type: "SoftmaxWithLoss" {fields}'


def reference_loss(
    x: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], norm: float, ignored: int | None
) -> float:
    total = 0.0
    classes = x.shape[1]
    columns = np.moveaxis(x, 1, -1).reshape(-1, classes)
    for column, label in zip(columns, labels.reshape(-1), strict=True):
        if label != ignored:
            total += np.log(np.exp(column).sum()) - column[int(label)]
    return total / norm


@pytest.mark.parametrize(
    ("fields", "ignored", "norm"),
    [
        ("", None, 12),
        ("loss_param { normalization: FULL }", None, 12),
        ("loss_param { normalization: BATCH_SIZE }", None, 2),
        ("loss_param { normalization: NONE }", None, 1),
        ("loss_param { normalize: true }", None, 12),
        ("loss_param { normalize: false }", None, 2),
        ("loss_param { normalize: false normalization: NONE }", None, 1),
        ("loss_param { ignore_label: 2 }", 2, None),
        ("loss_param { ignore_label: 2 normalization: FULL }", 2, 12),
    ],
)
def test_softmax_loss(
    fields: str, ignored: int | None, norm: float | None, random: np.random.Generator
) -> None:
    x = random.standard_normal((2, 4, 3, 2))
    labels = random.integers(0, 4, (2, 1, 3, 2)).astype(float)
    labels[0, 0, 0] = 2
    norm = norm or float((labels != ignored).sum())
    net, node = one_layer(loss_layer(fields), x.shape, labels.shape)
    np.testing.assert_allclose(
        forward(net, x0=x, x1=labels), reference_loss(x, labels, norm, ignored), rtol=1e-12
    )
    probability = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    expected = probability - (np.arange(4).reshape(1, 4, 1, 1) == labels)
    expected = np.where(labels == ignored, 0, expected) * 3 / norm
    dx, _ = backward(node, np.array(3.0), [True, False])
    np.testing.assert_allclose(dx, expected, rtol=1e-12, atol=1e-15)


def test_all_labels_ignored_is_a_loss_of_0(random: np.random.Generator) -> None:
    x, labels = random.standard_normal((3, 2)), np.ones(3)
    net, node = one_layer(loss_layer("loss_param { ignore_label: 1 }"), (3, 2), (3,))
    assert forward(net, x0=x, x1=labels) == 0
    np.testing.assert_array_equal(backward(node, np.array(1.0), [True, False])[0], 0)


def test_a_probability_of_0_is_taken_as_flt_min() -> None:
    net, _ = one_layer(loss_layer(), (1, 2), (1,), dtype="f32")
    loss = forward(net, x0=np.array([[1000.0, 0]]), x1=np.array([1.0]))
    np.testing.assert_allclose(loss, -np.log(1.17549435e-38), rtol=1e-6)


def test_probabilities_as_a_second_top(random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3))
    net, node = one_layer(loss_layer('top: "loss" top: "prob"'), (2, 3), (2,))
    net.forward(x0=x, x1=np.zeros(2))
    np.testing.assert_allclose(node.top[1].data, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("label", [-1.0, 3.0, np.nan, np.inf])
@pytest.mark.parametrize("layer", [loss_layer(), 'type: "Accuracy"'])
def test_labels_that_are_none(layer: str, label: float) -> None:
    net, _ = one_layer(layer, (2, 3), (2,))
    with pytest.raises(InvalidArgument, match=r"label .* is outside of 0 .. 2"):
        net.forward(x0=np.zeros((2, 3)), x1=np.array([0, label]))


@pytest.mark.parametrize("layer", [loss_layer(), 'type: "Accuracy"'])
def test_too_few_labels(layer: str) -> None:
    with pytest.raises(InvalidArgument, match="need 6 labels; bottom 'x1' has 2"):
        one_layer(layer, (2, 3, 3), (2,))


def test_loss_as_pytorch(random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = (4 * random.standard_normal((8, 10, 3))).astype(np.float32)
    labels = random.integers(0, 10, (8, 3))
    leaf = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(leaf, torch.tensor(labels), ignore_index=4)
    expected.backward()
    net, node = one_layer(loss_layer("loss_param { ignore_label: 4 }"), x.shape, labels.shape, dtype="f32")
    np.testing.assert_allclose(forward(net, x0=x, x1=labels), expected.item(), rtol=1e-5)
    np.testing.assert_allclose(
        backward(node, np.array(1.0), [True, False])[0], leaf.grad, rtol=1e-4, atol=1e-7
    )


# ---- Accuracy


def accuracy(scores: list[list[float]], labels: list[int], fields: str = "") -> float:
    x = np.array(scores)
    net, _ = one_layer(f'type: "Accuracy" accuracy_param {{ {fields} }}', x.shape, (len(labels),))
    return float(forward(net, x0=x, x1=np.array(labels, float)))


def test_accuracy() -> None:
    scores = [[1, 2, 3], [3, 1, 2], [1, 3, 2], [2, 3, 1]]
    assert accuracy(scores, [2, 0, 1, 1]) == 1
    assert accuracy(scores, [2, 0, 0, 0]) == 0.5
    assert accuracy(scores, [1, 2, 2, 0], "top_k: 2") == 1
    assert accuracy(scores, [1, 2, 0, 2], "top_k: 2") == 0.5


def test_ties_are_wrong() -> None:
    assert accuracy([[1, 1, 1]] * 3, [0, 1, 2]) == 0
    assert accuracy([[2, 2, 1]], [0]) == 0
    assert accuracy([[2, 2, 1]], [0], "top_k: 2") == 1
    assert accuracy([[1, 1, 1]], [0], "top_k: 2") == 0
    assert accuracy([[1, 1, 1]], [0], "top_k: 3") == 1


def test_not_a_number_is_wrong() -> None:
    assert accuracy([[np.nan, 1, 2], [5, np.nan, 2]], [0, 0]) == 0


def test_ignored_labels_do_not_count() -> None:
    scores = [[1, 2], [1, 2], [1, 2], [1, 2]]
    assert accuracy(scores, [1, 1, 0, 7], "ignore_label: 7") == pytest.approx(2 / 3)
    assert accuracy(scores, [7, 7, 7, 7], "ignore_label: 7") == 0


def test_accuracy_of_each_class() -> None:
    net, node = one_layer('type: "Accuracy" top: "a" top: "c"', (5, 4), (5,))
    scores = np.eye(4)[[0, 0, 1, 2, 2]]
    net.forward(x0=scores, x1=np.array([0, 1, 1, 2, 0]))
    np.testing.assert_allclose(node.top[0].data, 3 / 5)
    np.testing.assert_allclose(node.top[1].data, [1 / 2, 1 / 2, 1, 0])


def test_accuracy_along_another_axis(random: np.random.Generator) -> None:
    scores = random.standard_normal((2, 3, 4))
    labels = scores.argmax(2)
    net, _ = one_layer('type: "Accuracy" accuracy_param { axis: -1 }', scores.shape, labels.shape)
    assert forward(net, x0=scores, x1=labels) == 1


def test_top_k_is_at_most_the_number_of_classes() -> None:
    with pytest.raises(InvalidArgument, match=r"top_k is 4: it must be in 1 .. 3"):
        one_layer('type: "Accuracy" accuracy_param { top_k: 4 }', (2, 3), (2,))


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
