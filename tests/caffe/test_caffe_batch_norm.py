"""BatchNorm: values, the statistics that it keeps, gradients by differences and by PyTorch, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import FIXED, Array, backward, differences, forward, one_layer
from jitdnn.caffe import load_net, load_solver
from jitdnn.errors import InvalidArgument, NotSupported

SHAPES = [(4, 3, 5, 2), (3, 2), (5,), (2, 3, 7), (2, 1, 1, 2, 3)]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(14)


def _moments(x: Array) -> tuple[Array, Array, tuple[int, ...]]:
    """Mean and variance of each channel, divided by the number of values, and the shape that broadcasts them."""
    axes = (0, *range(2, x.ndim))
    shape = (1, -1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else (1,)
    return np.atleast_1d(x.mean(axes)), np.atleast_1d(x.var(axes)), shape


@pytest.mark.parametrize("shape", SHAPES)
def test_training(shape: tuple[int, ...], random: np.random.Generator) -> None:
    x = 2 + 3 * random.standard_normal(shape)
    fields = "eps: 0.01 moving_average_fraction: 0.75"
    net, node = one_layer(f'type: "BatchNorm" batch_norm_param {{ {fields} }}', shape, phase="TRAIN")
    means, variances, weight = (blob.data for blob in node.layer.weights)
    mean, variance, wide = _moments(x)
    expected = (x - mean.reshape(wide)) / np.sqrt(variance.reshape(wide) + 0.01)
    number = x.size // mean.size
    for step in range(1, 4):
        np.testing.assert_allclose(forward(net, x0=x), expected, rtol=1e-10, atol=1e-12)
        total = sum(0.75**power for power in range(step))
        np.testing.assert_allclose(weight, [total], rtol=1e-12)
        np.testing.assert_allclose(means, total * mean, rtol=1e-10)
        np.testing.assert_allclose(variances, total * variance * number / (number - 1), rtol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_gradients(shape: tuple[int, ...], phase: str, random: np.random.Generator) -> None:
    x = random.standard_normal(shape)
    net, node = one_layer('type: "BatchNorm" batch_norm_param { eps: 0.1 }', shape, phase=phase)
    for blob in node.layer.weights:
        blob.data[...] = random.uniform(1, 2, blob.shape)
    dy = random.standard_normal(shape)
    forward(net, x0=x)
    (dx,) = backward(node, dy)

    def loss() -> float:
        return float((forward(net, x0=x) * dy).sum())

    np.testing.assert_allclose(dx, differences(loss, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_in_place(phase: str, random: np.random.Generator) -> None:
    x, dy = random.standard_normal((2, 4, 3, 5))
    results = []
    for top in ("y", "x0"):
        net, node = one_layer(f'type: "BatchNorm" top: "{top}"', x.shape, phase=phase)
        for blob in node.layer.weights:
            blob.data.fill(2)
        net.forward(x0=x)
        y = node.top[0].data.copy()
        node.top[0].diff[...] = dy
        node.layer.backward(node.top, [True], node.bottom)
        results.append((y, node.bottom[0].diff.copy()))
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize(("phase", "given"), [("TEST", ""), ("TRAIN", "use_global_stats: true")])
def test_statistics_from_the_weights(phase: str, given: str, random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 4))
    net, node = one_layer(f'type: "BatchNorm" batch_norm_param {{ {given} }}', x.shape, phase=phase)
    np.testing.assert_allclose(forward(net, x0=x), x / np.sqrt(1e-5), rtol=1e-10)  # no statistics yet
    values = random.uniform(1, 2, 3), random.uniform(1, 2, 3), np.array([2.5])
    for blob, value in zip(node.layer.weights, values, strict=True):
        blob.data[...] = value
    mean, variance = (value.reshape(1, 3, 1) / 2.5 for value in values[:2])
    np.testing.assert_allclose(forward(net, x0=x), (x - mean) / np.sqrt(variance + 1e-5), rtol=1e-10)
    for blob, value in zip(node.layer.weights, values, strict=True):
        np.testing.assert_array_equal(blob.data, value)


def test_statistics_of_the_batch_in_testing(random: np.random.Generator) -> None:
    x = random.standard_normal((8, 2))
    net, _ = one_layer('type: "BatchNorm" batch_norm_param { use_global_stats: false }', x.shape)
    np.testing.assert_allclose(forward(net, x0=x), (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-9)


def test_one_value_a_channel(random: np.random.Generator) -> None:
    """Its variance is 0, not 0 / 0."""
    x = random.standard_normal((1, 3))
    net, node = one_layer('type: "BatchNorm"', x.shape, phase="TRAIN")
    np.testing.assert_array_equal(forward(net, x0=x), 0)
    np.testing.assert_allclose(node.layer.weights[0].data, x[0], rtol=1e-12)
    np.testing.assert_array_equal(node.layer.weights[1].data, 0)
    np.testing.assert_array_equal(backward(node, np.ones((1, 3)))[0], 0)


def test_as_pytorch(random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, dy = random.standard_normal((2, 6, 4, 3, 5)).astype(np.float32)
    net, node = one_layer(
        'type: "BatchNorm" batch_norm_param { moving_average_fraction: 0.5 }',
        x.shape,
        dtype="f32",
        phase="TRAIN",
    )
    norm = torch.nn.BatchNorm2d(4, affine=False, momentum=None)
    leaf = torch.tensor(x, requires_grad=True)
    y = norm(leaf)
    y.backward(torch.tensor(dy))
    np.testing.assert_allclose(forward(net, x0=x), y.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(backward(node, dy)[0], leaf.grad.numpy(), rtol=1e-4, atol=1e-5)
    # the average of one batch
    np.testing.assert_allclose(node.layer.weights[0].data, norm.running_mean.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(node.layer.weights[1].data, norm.running_var.numpy(), rtol=1e-4)


def _trained(layers: str) -> str:
    return f"""
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 8 dim: 3 }} }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
                inner_product_param {{ num_output: 4 weight_filler {{ type: "gaussian" }} }} }}
        {layers}
        layer {{ name: "r" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1
                reduction_param {{ operation: SUMSQ }} }}
    """


NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "ip" top: "ip" %s }'
SCALE = 'layer { name: "s" type: "Scale" bottom: "ip" top: "ip" scale_param { bias_term: true } }'


def test_no_solver_changes_the_statistics(random: np.random.Generator) -> None:
    three = "param { lr_mult: 0 } " * 3
    fields = f"{FIXED} snapshot_after_train: false max_iter: 9 momentum: 0.9 weight_decay: 0.5"
    solver = load_solver(f"{fields} net_param {{ {_trained(NORM % three + SCALE)} }}")
    net = solver.net
    x = random.standard_normal((8, 3))
    net.blobs["x"].data[...] = x
    for _ in range(3):
        solver.step(1)
    np.testing.assert_allclose(net.weights["bn"][2].data, [1 + 0.999 + 0.999**2], rtol=1e-6)
    assert (net.weights["s"][0].data != 1).all()


def test_weights_of_several_layers_by_name() -> None:
    net = load_net(_trained(NORM % "" + SCALE))
    assert [p.name for p in net.parameters] == ["ip/0", "ip/1", "bn/0", "bn/1", "bn/2", "s/0", "s/1"]
    assert [p.lr_mult for p in net.parameters if p.name.startswith("bn")] == [0, 0, 0]


@pytest.mark.parametrize("fields", ["", "batch_norm_param { use_global_stats: true }"])
def test_training_within_a_limit_on_memory(fields: str, random: np.random.Generator) -> None:
    """Bits are those without the limit and without fusion, and planning leaves the statistics alone."""
    text = _trained(NORM % fields + SCALE + NORM.replace("bn", "b2") % fields + SCALE.replace('"s"', '"s2"'))
    found = []
    for limit in (None, "least"):
        net = load_net(text, "TRAIN", seed=3, fuse=False)
        if limit is not None:
            net.limit_memory(limit)
        for _ in range(2):
            net.forward(x=np.random.default_rng(1).standard_normal((8, 3)))
            net.backward()
        found.append([blob.data.copy() for p in net.parameters for blob in [p.blob]])
        found[-1] += [p.blob.diff.copy() for p in net.parameters]
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


def test_what_it_refuses() -> None:
    with pytest.raises(NotSupported, match="lr_mult 1 would train them"):
        one_layer('type: "BatchNorm" param { lr_mult: 1 }', (2, 3))
    with pytest.raises(
        InvalidArgument, match=r"'l' \(BatchNorm\) \(line 2\): eps is -1: it must be 0 or more"
    ):
        one_layer('type: "BatchNorm" batch_norm_param { eps: -1 }', (2, 3))
    with pytest.raises(InvalidArgument, match="the bottom is a scalar"):
        one_layer('type: "BatchNorm"', ())
    net, _ = one_layer('type: "BatchNorm"', (2, 3))
    with pytest.raises(InvalidArgument, match="4 channels; the weights are for 3"):
        net.reshape(x0=(2, 4))
