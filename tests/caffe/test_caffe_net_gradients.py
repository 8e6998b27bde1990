"""Gradients through nets: what flows where, what layers share, and LeNet's against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import BRANCHES, LENET, as_leaves, differences, lenet_in_torch, relative_error, vars_of
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument


def test_gradients_of_all_readers_add_up() -> None:
    """Blobs with several readers, layers in place, views and loss weights in the middle: by differences."""
    net = load_net("force_backward: true" + BRANCHES, dtype="f64", seed=3)
    assert [layer.type for layer in net.layers].count("Split") == 2
    x = np.random.default_rng(4).standard_normal((2, 3))

    def loss() -> float:
        net.forward(x=x)
        return net.loss

    loss()
    net.clear_gradients()
    net.backward()
    gradients = {parameter.name: parameter.blob.diff.copy() for parameter in net.parameters}
    dx = net.blobs["x"].diff.copy()
    for parameter in net.parameters:
        expected = differences(loss, parameter.blob.data)
        np.testing.assert_allclose(gradients[parameter.name], expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dx, differences(loss, x), rtol=1e-6, atol=1e-8)


def test_the_loss_is_weighted() -> None:
    net = load_net(BRANCHES, dtype="f64", seed=3)
    net.forward(x=np.ones((2, 3)))
    total = {name: net.blobs[name].data.sum() for name in ("s", "f", "p", "q")}
    assert net.loss == pytest.approx(
        0.5 * total["s"] - 2 * total["f"] + 3 * net.blobs["a"].data.sum() + total["q"]
    )
    assert total["p"] == pytest.approx(3 * net.blobs["a"].data.sum())


def test_what_has_no_loss_has_no_backward_pass() -> None:
    net = load_net(LENET, "TEST")
    visited: list[str] = []
    net.observer = lambda layer, direction, seconds: (
        visited.append(layer.name) if direction == "backward" else None
    )
    net.forward()
    net.backward()
    assert "accuracy" not in visited
    assert visited == ["loss", "ip2_ip2_0_split", "ip2", "relu1", "ip1", "pool2", "conv2", "pool1", "conv1"]


def test_frozen_weights_are_not_visited() -> None:
    text = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4 }
                param { lr_mult: 0 } param { lr_mult: 0 } }
        layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 2 }
                loss_weight: 1 param { lr_mult: 0 } }
    """
    net = load_net(text, dtype="f64")
    net.forward(x=np.ones((2, 3)))
    net.backward()
    node = {node.layer.name: node for node in net.nodes}
    assert not node["a"].needs_backward
    assert node["b"].propagate == [False]
    np.testing.assert_array_equal(net.weights["b"][0].diff, 0)
    np.testing.assert_array_equal(net.weights["b"][1].diff, 2)


def test_propagate_down_stops_a_gradient() -> None:
    text = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4 } }
        layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 2 }
                loss_weight: 1 propagate_down: false }
    """
    net = load_net(text)
    assert [(node.needs_backward, node.propagate) for node in net.nodes] == [
        (False, []),
        (False, [False]),
        (True, [False]),
    ]


# ---- weights that layers share

SIAMESE = """
    layer {{ name: "x" type: "Input" top: "x" top: "z" input_param {{ shape {{ dim: 2 dim: 3 }} }} }}
    layer {{ name: "a" type: "InnerProduct" bottom: "x" top: "a" loss_weight: 1
             inner_product_param {{ num_output: 4 weight_filler {{ type: "gaussian" }} }}
             param {{ name: "w" {first} }} param {{ name: "b" }} }}
    layer {{ name: "b" type: "InnerProduct" bottom: "z" top: "b" loss_weight: 1
             inner_product_param {{ num_output: 4 {shape} }}
             param {{ name: "w" {second} }} param {{ name: "b" }} }}
"""


def test_weights_of_one_name_are_one() -> None:
    net = load_net(SIAMESE.format(first="lr_mult: 3", second="decay_mult: 0", shape=""), dtype="f64", seed=1)
    assert net.weight_count == 16
    assert [vars_of(parameter) for parameter in net.parameters] == [("a/0", 3, 0), ("a/1", 1, 1)]
    first, second = (net.weights[name][0] for name in "ab")
    assert np.shares_memory(first.data, second.data)
    assert first.data.any()
    x, z = np.random.default_rng(2).standard_normal((2, 2, 3))
    net.forward(x=x, z=z)
    np.testing.assert_allclose(net.blobs["b"].data, z @ first.data.T, rtol=1e-12)
    net.backward()
    expected = np.broadcast_to((x + z).sum(0), (4, 3))
    np.testing.assert_allclose(first.diff, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "shape", "reason"),
    [
        ("lr_mult: 1", "lr_mult: 2", "", "lr_mult 2 here and 1 before"),
        ("decay_mult: 1", "decay_mult: 0", "", "decay_mult 0 here and 1 before"),
        ("", "", "transpose: true", r"\(3, 4\) here and \(4, 3\) in a/0"),
        ("", "share_mode: PERMISSIVE", "axis: 0", "agree in size"),
    ],
)
def test_contradictions_between_shared_weights(first: str, second: str, shape: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        load_net(SIAMESE.format(first=first, second=second, shape=shape))


def test_permissive_sharing_reshapes() -> None:
    text = SIAMESE.format(first="", second="share_mode: PERMISSIVE", shape="transpose: true")
    net = load_net(text.replace('param { name: "b" } }\n\n', "}"), seed=1)
    first, second = (net.weights[name][0] for name in "ab")
    np.testing.assert_array_equal(first.data.reshape(3, 4), second.data)
    assert np.shares_memory(first.diff, second.diff)


# ---- LeNet against PyTorch


def test_the_whole_gradient_of_lenet_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    net = load_net(LENET, "TRAIN", seed=1)
    weights = as_leaves(torch, net)
    net.forward()
    net.clear_gradients()
    net.backward()
    labels = torch.tensor(net.blobs["label"].data.astype(np.int64))
    loss = lenet_in_torch(torch, weights, torch.tensor(net.blobs["data"].data), labels)
    loss.backward()
    assert net.loss == pytest.approx(loss.item(), rel=1e-5)
    for parameter in net.parameters:
        assert relative_error(parameter.blob.diff, weights[parameter.name].grad.numpy()) < 1e-5, (
            parameter.name
        )
