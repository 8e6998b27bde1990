"""Losses other than SoftmaxWithLoss: values by NumPy and PyTorch, gradients by differences, labels, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caffe_nets import Array, backward, check_every_gradient, distinct, forward, one_layer
from jitdnn.caffe import load_net
from jitdnn.caffe.blob_proto import write_binaryproto
from jitdnn.errors import InvalidArgument


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(16)


# ---- EuclideanLoss


@pytest.mark.parametrize("shapes", [((4, 3), (4, 3)), ((3, 2, 1, 5), (3, 10)), ((7,), (7, 1))])
def test_euclidean(shapes: tuple[tuple[int, ...], ...], random: np.random.Generator) -> None:
    a, b = (random.standard_normal(shape) for shape in shapes)
    net, node = one_layer('type: "EuclideanLoss"', *shapes)
    expected = ((a.reshape(-1) - b.reshape(-1)) ** 2).sum() / 2 / len(a)
    found = forward(net, x0=a, x1=b)
    assert found.shape == ()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    check_every_gradient(net, node, [a, b], random)


# ---- SigmoidCrossEntropyLoss

NORMS = [
    ("", 4),
    ("normalization: FULL", 24),
    ("normalization: VALID", 24),
    ("normalization: NONE", 1),
    ("normalize: true", 24),
    ("normalize: false", 4),
    ("normalize: true normalization: BATCH_SIZE", 4),
    ("ignore_label: -1", 4),
    ("ignore_label: -1 normalization: VALID", 22),
    ("ignore_label: -1 normalization: FULL", 24),
]


@pytest.mark.parametrize(("fields", "norm"), NORMS)
def test_sigmoid_cross_entropy(fields: str, norm: int, random: np.random.Generator) -> None:
    x, t = 3 * random.standard_normal((4, 3, 2)), random.uniform(0, 1, (4, 3, 2))
    if "ignore" in fields:
        t[0, 1, 0], t[3, 2, 1] = -1, -1.5  # Caffe compares the whole part
    p = 1 / (1 + np.exp(-x))
    is_counted = t >= 0
    terms = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    net, node = one_layer(f'type: "SigmoidCrossEntropyLoss" loss_param {{ {fields} }}', x.shape, x.shape)
    np.testing.assert_allclose(forward(net, x0=x, x1=t), terms.sum(where=is_counted) / norm, rtol=1e-9)
    dx, _ = backward(node, np.array(3.0), [True, False])
    np.testing.assert_allclose(dx, np.where(is_counted, 3 * (p - t) / norm, 0), rtol=1e-9)
    check_every_gradient(net, node, [x, t], random, [True, False])


def test_sigmoid_cross_entropy_of_large_scores() -> None:
    x, t = np.array([[1000.0, -1000, 800]]), np.array([[1.0, 0, 0]])
    net, node = one_layer('type: "SigmoidCrossEntropyLoss"', x.shape, t.shape)
    np.testing.assert_allclose(forward(net, x0=x, x1=t), 800)
    np.testing.assert_allclose(backward(node, np.array(1.0), [True, False])[0], [[0, 0, 1]], atol=1e-12)


def test_sigmoid_cross_entropy_without_a_target() -> None:
    layer = 'type: "SigmoidCrossEntropyLoss" loss_param { ignore_label: 0 normalization: VALID }'
    net, node = one_layer(layer, (2, 3), (2, 3))
    assert forward(net, x0=np.ones((2, 3)), x1=np.zeros((2, 3))) == 0
    np.testing.assert_array_equal(backward(node, np.array(1.0), [True, False])[0], 0)


# ---- HingeLoss


def _hinge(x: Array, labels: Array, power: int) -> float:
    signs = np.where(np.arange(x.shape[1]) == labels.reshape(-1, 1), 1, -1)
    return float((np.maximum(0, 1 - signs * x) ** power).sum() / len(x))


@pytest.mark.parametrize(("fields", "power"), [("", 1), ("norm: L1", 1), ("norm: L2", 2)])
def test_hinge(fields: str, power: int, random: np.random.Generator) -> None:
    x = distinct((5, 7), random)
    x[np.abs(np.abs(x) - 1) < 1e-3] += 0.01  # away from the kinks
    labels = random.integers(0, 7, 5).astype(float)
    net, node = one_layer(f'type: "HingeLoss" hinge_loss_param {{ {fields} }}', x.shape, (5, 1))
    found = forward(net, x0=x, x1=labels.reshape(5, 1))
    np.testing.assert_allclose(found, _hinge(x, labels, power), rtol=1e-12)
    check_every_gradient(net, node, [x, labels.reshape(5, 1)], random, [True, False])


# ---- ContrastiveLoss


@pytest.mark.parametrize("legacy", [False, True])
def test_contrastive(legacy: bool, random: np.random.Generator) -> None:
    a, b = random.standard_normal((2, 6, 3))
    b[4:] = a[4:] + 0.2  # near, and not similar
    y = np.array([1.0, 0, 1, 0, 0, 0])
    fields = f"margin: 2 legacy_version: {str(legacy).lower()}"
    net, node = one_layer(
        f'type: "ContrastiveLoss" contrastive_loss_param {{ {fields} }}', a.shape, b.shape, y.shape
    )
    squares = ((a - b) ** 2).sum(1)
    far = np.maximum(2 - squares, 0) if legacy else np.maximum(2 - np.sqrt(squares), 0) ** 2
    np.testing.assert_allclose(
        forward(net, x0=a, x1=b, x2=y), np.where(y != 0, squares, far).sum() / 12, rtol=1e-12
    )
    da, db, _ = backward(node, np.array(3.0), [True, True, False])
    distance = np.sqrt(squares)
    slope = np.where(squares < 2, -1, 0) if legacy else -np.maximum(2 - distance, 0) / (distance + 1e-4)
    expected = 3 / 6 * np.where(y != 0, 1, slope).reshape(-1, 1) * (a - b)
    np.testing.assert_allclose(da, expected, rtol=1e-9)
    np.testing.assert_allclose(db, -expected, rtol=1e-9)


def test_contrastive_of_equal_rows() -> None:
    net, node = one_layer('type: "ContrastiveLoss"', (1, 2), (1, 2), (1,))
    np.testing.assert_allclose(forward(net, x0=np.ones((1, 2)), x1=np.ones((1, 2)), x2=np.zeros(1)), 0.5)
    np.testing.assert_array_equal(backward(node, np.array(1.0), [True, True, False])[0], 0)


# ---- MultinomialLogisticLoss, InfogainLoss


def test_multinomial_logistic(random: np.random.Generator) -> None:
    p, labels = random.uniform(0.1, 1, (5, 3, 1, 1)), np.array([0.0, 2, 1, 1, 0])
    net, node = one_layer('type: "MultinomialLogisticLoss"', p.shape, (5,))
    picked = p.reshape(5, 3)[np.arange(5), labels.astype(int)]
    np.testing.assert_allclose(forward(net, x0=p, x1=labels), -np.log(picked).mean(), rtol=1e-12)
    check_every_gradient(net, node, [p, labels], random, [True, False])
    p[0] = 0
    assert forward(net, x0=p, x1=labels) < 20
    np.testing.assert_allclose(backward(node, np.array(1.0), [True, False])[0][0].reshape(-1), [-2e19, 0, 0])


@pytest.mark.parametrize(
    ("fields", "axis", "norm", "ignored"),
    [
        ("", 1, 12, None),
        ("loss_param { normalization: BATCH_SIZE ignore_label: 2 }", 1, 4, 2),
        ("infogain_loss_param { axis: -1 } loss_param { normalization: NONE }", 2, 1, None),
    ],
)
def test_infogain(
    fields: str, axis: int, norm: int, ignored: int | None, random: np.random.Generator, tmp_path: Path
) -> None:
    x = random.standard_normal((4, 3, 3))
    labels, h = random.integers(0, 3, (4, 3)).astype(float), random.uniform(-1, 2, (3, 3))
    columns = np.moveaxis(x, axis, -1).reshape(-1, 3)
    logs = columns - np.log(np.exp(columns).sum(1, keepdims=True))
    rows = h[labels.reshape(-1).astype(int)] * (labels.reshape(-1, 1) != ignored)
    expected = -(rows * logs).sum() / norm
    net, node = one_layer(f'type: "InfogainLoss" {fields}', x.shape, labels.shape, h.shape)
    np.testing.assert_allclose(forward(net, x0=x, x1=labels, x2=h), expected, rtol=1e-9)
    check_every_gradient(net, node, [x, labels, h], random, [True, False, False])
    file = tmp_path / "h.npy"
    np.save(file, h)
    param = fields.replace("infogain_loss_param { ", f'infogain_loss_param {{ source: "{file}" ')
    param += "" if "infogain" in fields else f' infogain_loss_param {{ source: "{file}" }}'
    net, node = one_layer(f'type: "InfogainLoss" {param} top: "loss" top: "p"', x.shape, labels.shape)
    np.testing.assert_allclose(forward(net, x0=x, x1=labels), expected, rtol=1e-9)
    np.testing.assert_allclose(
        np.moveaxis(node.top[1].data, axis, -1).reshape(-1, 3), np.exp(logs), rtol=1e-9
    )


def test_infogain_of_unity_is_softmax_loss(random: np.random.Generator) -> None:
    x, labels = random.standard_normal((4, 3)), np.array([0.0, 1, 2, 1])
    net, _ = one_layer('type: "InfogainLoss"', x.shape, (4,), (1, 1, 3, 3))
    other, _ = one_layer('type: "SoftmaxWithLoss"', x.shape, (4,))
    found = forward(net, x0=x, x1=labels, x2=np.eye(3).reshape(1, 1, 3, 3))
    np.testing.assert_allclose(found, forward(other, x0=x, x1=labels), rtol=1e-12)


# ---- all


def test_as_pytorch(random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    x, t = random.standard_normal((2, 8, 5)).astype(np.float32)
    t = random.uniform(0, 1, (8, 5)).astype(np.float32)
    labels = random.integers(0, 5, 8)
    cases = [
        ("EuclideanLoss", t, lambda leaf: f.mse_loss(leaf, torch.tensor(t), reduction="sum") / 16),
        (
            "SigmoidCrossEntropyLoss",
            t,
            lambda leaf: f.binary_cross_entropy_with_logits(leaf, torch.tensor(t), reduction="sum") / 8,
        ),
        ("MultinomialLogisticLoss", labels, lambda leaf: f.nll_loss(leaf.log(), torch.tensor(labels))),
    ]
    for kind, target, function in cases:
        scores = np.abs(x) + 0.1 if kind == "MultinomialLogisticLoss" else x
        leaf = torch.tensor(scores, requires_grad=True)
        expected = function(leaf)
        expected.backward()
        net, node = one_layer(f'type: "{kind}"', x.shape, target.shape, dtype="f32")
        np.testing.assert_allclose(forward(net, x0=scores, x1=target), expected.item(), rtol=1e-5)
        dx, _ = backward(node, np.array(1.0), [True, False])
        np.testing.assert_allclose(dx, leaf.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["SigmoidCrossEntropyLoss", "HingeLoss", "MultinomialLogisticLoss"])
def test_labels_have_no_gradient(kind: str) -> None:
    net, node = one_layer(f'type: "{kind}"', (2, 1), (2, 1))
    net.forward(x0=np.ones((2, 1)), x1=np.zeros((2, 1)))
    with pytest.raises(InvalidArgument, match="the labels have no gradient"):
        backward(node, np.array(1.0))


@pytest.mark.parametrize("kind", ["HingeLoss", "MultinomialLogisticLoss"])
@pytest.mark.parametrize("label", [-1.0, 3.0, np.nan])
def test_labels_that_are_none(kind: str, label: float) -> None:
    net, _ = one_layer(f'type: "{kind}"', (2, 3), (2,))
    with pytest.raises(InvalidArgument, match=r"label .* is outside of 0 .. 2"):
        net.forward(x0=np.ones((2, 3)), x1=np.array([0, label]))


@pytest.mark.parametrize(
    ("kind", "shapes", "message"),
    [
        ("EuclideanLoss", [(2, 3), (3, 2)], r"shapes \(2, 3\), \(3, 2\) must have as many images"),
        ("EuclideanLoss", [(2, 3), (2, 2)], "they have 6 and 4"),
        ("EuclideanLoss", [(), ()], "must have as many images"),
        ("SigmoidCrossEntropyLoss", [(2, 3), (2,)], "they have 6 and 2"),
        ("HingeLoss", [(2, 3), (2, 3)], "2 images need 2 labels; bottom 'x1' has 6"),
        ("ContrastiveLoss", [(2, 3), (2, 2), (2,)], "they have 6 and 4"),
        ("ContrastiveLoss", [(2, 3), (2, 3), (2, 2)], "2 images need 2 labels; bottom 'x2' has 4"),
        ("MultinomialLogisticLoss", [(2, 3), (2, 2)], "2 images need 2 labels"),
        ("InfogainLoss", [(2, 3), (2,), (2, 2)], r"the matrix has shape \(2, 2\); 3 classes need \(3, 3\)"),
        ("InfogainLoss", [(2, 3), (2,)], "give the matrix as a third bottom"),
    ],
)
def test_shapes_that_do_not_fit(kind: str, shapes: list[tuple[int, ...]], message: str) -> None:
    line = len(shapes) + 1
    with pytest.raises(InvalidArgument, match=rf"'l' \({kind}\) \(line {line}\): .*{message}"):
        one_layer(f'type: "{kind}"', *shapes)


@pytest.mark.parametrize("shape", [(3, 3), (1, 1, 3, 3)])
def test_a_matrix_in_binaryproto(tmp_path: Path, random: np.random.Generator, shape: tuple[int, ...]) -> None:
    matrix = random.random((3, 3), np.float32)
    write_binaryproto(tmp_path / "h.binaryproto", matrix.reshape(shape))
    np.save(tmp_path / "h.npy", matrix)
    losses = []
    for name in ("h.binaryproto", "h.npy"):
        net, _ = one_layer(
            f'type: "InfogainLoss" infogain_loss_param {{ source: "{tmp_path}/{name}" }}', (2, 3), (2,)
        )
        losses.append(forward(net, x0=np.arange(6.0).reshape(2, 3), x1=np.array([2.0, 0.0])).item())
    assert losses[0] == losses[1]
    assert np.isfinite(losses[0])


def test_losses_without_tops(random: np.random.Generator) -> None:
    """They count, have gradients, and are no outputs; also under a limit on memory."""
    text = """
        layer { name: "x" type: "Input" top: "x" top: "t" input_param { shape { dim: 4 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
                inner_product_param { num_output: 3 weight_filler { type: "gaussian" } } }
        layer { name: "e" type: "EuclideanLoss" bottom: "y" bottom: "t" loss_weight: 2 }
        layer { name: "s" type: "SigmoidCrossEntropyLoss" bottom: "y" bottom: "t" top: "s" }
        layer { name: "h" type: "EuclideanLoss" bottom: "y" bottom: "t" }
    """
    x, t = random.standard_normal((4, 3)), random.uniform(0, 1, (4, 3))
    found = []
    for limit in (None, "least"):
        net = load_net(text, "TRAIN", dtype="f64", seed=1)
        assert net.outputs == ["s"]
        net.limit_memory(limit)
        net.forward(x=x, t=t)
        y = x @ net.weights["ip"][0].data.T
        squares = ((y - t) ** 2).sum() / 8
        p = 1 / (1 + np.exp(-y))
        cross = -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum() / 4
        np.testing.assert_allclose(net.loss, 3 * squares + cross, rtol=1e-9)
        net.backward()
        dy = (3 * (y - t) + p - t) / 4
        np.testing.assert_allclose(net.weights["ip"][0].diff, dy.T @ x, rtol=1e-9)
        found.append(net.loss)
    assert found[0] == found[1]


def test_a_weighted_layer_that_is_no_loss_needs_a_top() -> None:
    with pytest.raises(InvalidArgument, match="it has 0 tops and needs 1"):
        load_net("""
            layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 } } }
            layer { name: "p" type: "Power" bottom: "x" }
        """)


def test_infogain_within_a_limit_on_memory(random: np.random.Generator) -> None:
    """The matrix, which a layer makes, is there for the gradient."""
    text = """
        layer { name: "x" type: "Input" top: "x" top: "h" input_param { shape { dim: 3 dim: 3 } } }
        layer { name: "t" type: "DummyData" top: "t" dummy_data_param { shape { dim: 3 } data_filler { value: 1 } } }
        layer { name: "p" type: "Power" bottom: "h" top: "g" power_param { scale: 2 } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
                inner_product_param { num_output: 3 weight_filler { type: "gaussian" } } }
        layer { name: "l" type: "InfogainLoss" bottom: "y" bottom: "t" bottom: "g" }
    """
    x, h = random.standard_normal((2, 3, 3))
    found = []
    for limit in (None, "least"):
        net = load_net(text, "TRAIN", dtype="f64", seed=1)
        net.limit_memory(limit)
        net.forward(x=x, h=h)
        net.backward()
        found.append(net.weights["ip"][0].diff.copy())
    assert found[0].any()
    np.testing.assert_array_equal(found[0], found[1])
