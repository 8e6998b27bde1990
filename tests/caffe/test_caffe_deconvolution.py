"""Deconvolution: values by loops and by PyTorch, gradients by differences, bilinear upsampling, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from caffe_nets import Array, backward, check_gradients, forward, one_layer
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(15)


def deconvolution(fields: str) -> str:
    fillers = (
        "" if "filler" in fields else 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'
    )
    return f'type: "Deconvolution" convolution_param {{ {fields} {fillers} }}'


CASES = [
    ("num_output: 3 kernel_size: 3", (2, 2, 3, 4)),
    ("num_output: 4 kernel_size: 2 stride: 2 pad: 1", (1, 3, 3, 2)),
    ("num_output: 4 kernel_h: 3 kernel_w: 1 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0", (2, 2, 4, 3)),
    ("num_output: 6 kernel_size: 2 dilation: 2 group: 2 bias_term: false", (2, 4, 2, 3)),
    ("num_output: 3 kernel_size: 1 group: 3", (1, 3, 2, 3)),
    ("num_output: 2 kernel_size: 3 stride: 2", (2, 3, 5)),
    ("num_output: 2 kernel_size: 2 stride: 3", (1, 2, 2, 1, 2)),
    ("num_output: 3 kernel_size: 2 axis: 2", (2, 3, 2, 3, 2)),
]


def _by_loops(x: Array, w: Array, stride: int, pad: int) -> Array:
    """Every element of x adds its multiple of the filters to the top."""
    size = stride * (x.shape[2] - 1) + w.shape[2]
    y = np.zeros((x.shape[0], w.shape[1], size, size))
    for i, j in itertools.product(range(x.shape[2]), range(x.shape[3])):
        window = np.s_[:, :, i * stride : i * stride + w.shape[2], j * stride : j * stride + w.shape[3]]
        y[window] += np.einsum("nc,ckhw->nkhw", x[:, :, i, j], w)
    return y[:, :, pad : size - pad, pad : size - pad]


def test_values(random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 4, 4))
    net, node = one_layer(deconvolution("num_output: 5 kernel_size: 3 stride: 2 pad: 1"), x.shape)
    w, b = (blob.data for blob in node.layer.weights)
    assert w.shape == (3, 5, 3, 3)
    expected = _by_loops(x, w, 2, 1) + b.reshape(5, 1, 1)
    np.testing.assert_allclose(forward(net, x0=x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("fields", "shape"), CASES)
def test_gradients(fields: str, shape: tuple[int, ...], random: np.random.Generator) -> None:
    net, node = one_layer(deconvolution(fields), shape)
    assert len(node.layer.weights) == (1 if "bias_term" in fields else 2)
    check_gradients(net, node, random.standard_normal(shape), random)


def test_as_pytorch(random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    fields = (
        "num_output: 6 kernel_h: 3 kernel_w: 4 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 2 dilation: 2 group: 2"
    )
    net, node = one_layer(deconvolution(fields), (3, 4, 5, 6), dtype="f32")
    x = random.standard_normal((3, 4, 5, 6)).astype(np.float32)
    y = forward(net, x0=x)
    w, b = (blob.data.copy() for blob in node.layer.weights)
    leaves = [torch.tensor(array, requires_grad=True) for array in (x, w, b)]
    expected = torch.nn.functional.conv_transpose2d(
        *leaves, stride=(2, 1), padding=(1, 2), groups=2, dilation=2
    )
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-4, atol=1e-4)
    dy = random.standard_normal(y.shape).astype(np.float32)
    expected.backward(torch.tensor(dy))
    gradients = [*backward(node, dy), *(blob.diff for blob in node.layer.weights)]
    for found, leaf in zip(gradients, leaves, strict=True):
        np.testing.assert_allclose(found, leaf.grad, rtol=1e-4, atol=1e-4)


def test_bilinear_upsampling() -> None:
    """A ramp stays a ramp away from the borders."""
    fields = "kernel_size: 4 stride: 2 pad: 1 group: 2 num_output: 2 bias_term: false "
    fields += 'weight_filler { type: "bilinear" }'
    net, _ = one_layer(deconvolution(fields), (1, 2, 5, 5))
    x = np.broadcast_to(np.arange(5.0), (1, 2, 5, 5))
    y = forward(net, x0=x)
    assert y.shape == (1, 2, 10, 10)
    np.testing.assert_allclose(
        y[:, :, 2:-2, 1:-1], np.broadcast_to(np.arange(8) / 2 + 0.25, (1, 2, 6, 8)), rtol=1e-12
    )


def test_several_bottoms_share_the_weights(random: np.random.Generator) -> None:
    layer = deconvolution("num_output: 2 kernel_size: 2") + ' top: "a" top: "b"'
    x = random.standard_normal((2, 1, 3, 4, 4))
    net, node = one_layer(layer, x[0].shape, x[1].shape)
    net.forward(x0=x[0], x1=x[1])
    for image, blob in zip(x, node.top, strict=True):
        w, b = (weight.data for weight in node.layer.weights)
        np.testing.assert_allclose(
            blob.data, _by_loops(image, w, 1, 0) + b.reshape(2, 1, 1), rtol=1e-9, atol=1e-12
        )


def test_within_a_limit_on_memory(random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 6, 6))
    found = []
    for limit in (None, "least"):
        net, _ = one_layer(
            deconvolution("num_output: 3 kernel_size: 3") + " loss_weight: 1", x.shape, phase="TRAIN"
        )
        net.limit_memory(limit)
        net.forward(x0=x)
        net.backward()
        found.append([blob.diff.copy() for blob in net.weights["l"]])
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-9)


def test_what_it_refuses() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'l' \(Deconvolution\) \(line 2\): .* leave a top of \(0, 0\)"
    ):
        one_layer(deconvolution("num_output: 1 kernel_size: 2 pad: 1"), (1, 1, 1, 1))
    with pytest.raises(InvalidArgument, match="num_output is missing"):
        one_layer(deconvolution("kernel_size: 2"), (1, 1, 2, 2))
    with pytest.raises(InvalidArgument, match="group 2 must divide the 3 channels"):
        one_layer(deconvolution("kernel_size: 2 num_output: 2 group: 2"), (1, 3, 2, 2))
    net, _ = one_layer(deconvolution("num_output: 2 kernel_size: 2"), (1, 3, 2, 2))
    with pytest.raises(InvalidArgument, match=r"shape \(1, 4, 2, 2\), 4 channels; the weights are for 3"):
        net.reshape(x0=(1, 4, 2, 2))
