"""Softmax, SoftmaxWithLoss and Accuracy: values by hand or by PyTorch, gradients, labels, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caffe_nets import backward, check_gradients, forward, one_layer
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


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
