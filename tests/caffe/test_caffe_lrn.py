"""Caffe's LRN layer: values by PyTorch and by its own formula, gradients by differences, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import backward, check_gradients, forward, one_layer
from jitdnn.errors import InvalidArgument


def layer(fields: str) -> str:
    return f'type: "LRN" lrn_param {{ {fields} }}'


FIELDS = [
    "",
    "local_size: 3 alpha: 0.5 beta: 0.5 k: 2",
    "local_size: 3 alpha: 2 norm_region: WITHIN_CHANNEL",
    "local_size: 5 alpha: 2 beta: 1.5 norm_region: WITHIN_CHANNEL engine: CAFFE",
]


@pytest.mark.parametrize("fields", FIELDS)
def test_gradients(fields: str) -> None:
    random = np.random.default_rng(4)
    net, node = one_layer(layer(fields), (2, 6, 4, 5))
    check_gradients(net, node, random.standard_normal((2, 6, 4, 5)), random)


def test_across_channels_as_pytorch() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    x = random.standard_normal((2, 9, 3, 4)).astype(np.float32)
    net, node = one_layer(layer("local_size: 5 alpha: 0.7 beta: 0.75 k: 1.5"), x.shape, dtype="f32")
    leaf = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.local_response_norm(leaf, 5, 0.7, 0.75, 1.5)
    np.testing.assert_allclose(forward(net, x0=x), expected.detach(), rtol=1e-5, atol=1e-6)
    dy = random.standard_normal(x.shape).astype(np.float32)
    expected.backward(torch.tensor(dy))
    np.testing.assert_allclose(backward(node, dy)[0], leaf.grad, rtol=1e-5, atol=1e-6)


def test_within_channel_divides_by_the_whole_window_and_ignores_k() -> None:
    net, _ = one_layer(
        layer("local_size: 3 alpha: 9 beta: 1 k: 100 norm_region: WITHIN_CHANNEL"), (1, 1, 2, 2)
    )
    x = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    np.testing.assert_allclose(forward(net, x0=x), x / (1 + 30))


@pytest.mark.parametrize(
    ("fields", "shape", "reason"),
    [
        ("local_size: 4", (1, 3, 2, 2), "local_size is 4: it must be odd"),
        ("", (3, 4), "4 axes"),
    ],
)
def test_layers_that_cannot_be(fields: str, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        one_layer(layer(fields), shape)
