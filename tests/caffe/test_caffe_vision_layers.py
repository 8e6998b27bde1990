"""Convolution and Pooling: values by hand or by PyTorch, gradients by differences and by PyTorch, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import backward, check_gradients, distinct, forward, one_layer
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


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


def test_depthwise_convolution(random: np.random.Generator) -> None:
    fields = "num_output: 4 group: 4 kernel_size: 3 pad: 1 stride: 2"
    x = random.standard_normal((2, 4, 5, 6))
    net, node = one_layer(convolution(fields).replace("Convolution", "DepthwiseConvolution", 1), x.shape)
    w, b = (blob.data for blob in node.layer.weights)
    assert w.shape == (4, 1, 3, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    expected = np.einsum("nchwkl,ckl->nchw", windows, w[:, 0]) + b.reshape(4, 1, 1)
    np.testing.assert_allclose(forward(net, x0=x), expected, rtol=1e-9, atol=1e-12)
    check_gradients(net, node, x, random)


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
        ("pool: STOCHASTIC kernel_size: 2 pad: 1", InvalidArgument, "STOCHASTIC takes no padding"),
        ("kernel_size: 2 ceil_mode: true round_mode: FLOOR", InvalidArgument, "contradict each other"),
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


def test_pooling_needs_two_axes_of_space() -> None:
    with pytest.raises(InvalidArgument, match="4 axes"):
        one_layer('type: "Pooling" pooling_param { kernel_size: 2 }', (1, 1, 4))
    with pytest.raises(InvalidArgument, match="a second top is for pool MAX"):
        one_layer(
            'type: "Pooling" top: "y" top: "m" pooling_param { pool: AVE kernel_size: 2 }', (1, 1, 4, 4)
        )
