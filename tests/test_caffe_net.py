"""Nets: what they are built of, what they count, how gradients flow, and LeNet against PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffe_nets import Array, differences
from jitdnn.caffe import Net, NetState, load_net, parse, time_net
from jitdnn.caffe.schema import NetParameter
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported, ParseError, SnapshotError

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "prototxt"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="no folder ../shared/prototxt beside this checkout"
)
LENET = "package:models/lenet.prototxt"


def data_layers_as_inputs(definition: NetParameter, data: tuple[int, ...]) -> NetParameter:
    """The same net with inputs in place of its data layers, for files whose databases are not here."""
    kept = [layer for layer in definition.layer if layer.type != "Data"]
    kept += [layer for layer in definition.layers if layer.type != "DATA"]
    batch = data[0]
    inputs = f"""
        input: "data" input_shape {{ {" ".join(f"dim: {extent}" for extent in data)} }}
        input: "label" input_shape {{ dim: {batch} }}
    """
    result = parse(inputs, NetParameter)
    if definition.layer:
        result.layer = kept
    else:
        result.layers = kept
    return result


def shared_net(name: str, data: tuple[int, ...], phase: str = "TEST", **options: Any) -> Net:
    definition = parse((SHARED / name).read_text(), NetParameter)
    return Net(data_layers_as_inputs(definition, data), NetState(phase=phase), **options)


# ---- counts


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_lenet_has_431080_weights(phase: str) -> None:
    assert load_net(LENET, phase).weight_count == 431_080


def test_deploy_nets_have_their_counts() -> None:
    lenet, quick = (
        load_net("package:models/lenet_deploy.prototxt"),
        load_net("package:models/cifar10_quick.prototxt"),
    )
    assert (lenet.weight_count, quick.weight_count) == (431_080, 145_578)
    assert lenet.inputs == quick.inputs == ["data"]
    assert lenet.outputs == quick.outputs == ["prob"]


@needs_shared
@pytest.mark.parametrize(
    ("name", "data", "count"),
    [
        ("mnist/lenet_train_test.prototxt", (2, 1, 28, 28), 431_080),
        ("v1_legacy/mnist__lenet_train_test.prototxt", (2, 1, 28, 28), 431_080),
        ("cifar10/cifar10_quick_train_test.prototxt", (2, 3, 32, 32), 145_578),
        ("v1_legacy/cifar10__cifar10_quick_train_test.prototxt", (2, 3, 32, 32), 145_578),
    ],
)
def test_counts_of_caffes_own_files(name: str, data: tuple[int, ...], count: int) -> None:
    assert shared_net(name, data, "TRAIN").weight_count == count


@needs_shared
def test_shapes_of_cifar10_quick_follow_the_ceil_rule() -> None:
    net = load_net(SHARED / "cifar10/cifar10_quick.prototxt")
    shapes = {name: net.blobs[name].shape for name in ("conv1", "pool1", "pool2", "pool3", "ip1", "prob")}
    assert shapes == {
        "conv1": (1, 32, 32, 32),
        "pool1": (1, 32, 16, 16),
        "pool2": (1, 32, 8, 8),
        "pool3": (1, 64, 4, 4),
        "ip1": (1, 64),
        "prob": (1, 10),
    }


@needs_shared
@pytest.mark.parametrize(
    ("old", "new", "data"),
    [
        ("v1_legacy/mnist__lenet_train_test.prototxt", "mnist/lenet_train_test.prototxt", (3, 1, 28, 28)),
        (
            "v1_legacy/cifar10__cifar10_quick_train_test.prototxt",
            "cifar10/cifar10_quick_train_test.prototxt",
            (2, 3, 32, 32),
        ),
    ],
)
def test_v1_and_v2_train_alike(old: str, new: str, data: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, labels = random.standard_normal(data), random.integers(0, 10, data[0])
    nets = [shared_net(name, data, "TRAIN", seed=7) for name in (old, new)]
    for net in nets:
        net.forward(data=x, label=labels)
        net.backward()
    first, second = nets
    assert first.loss == second.loss > 0
    assert [vars_of(parameter) for parameter in first.parameters] == [vars_of(p) for p in second.parameters]
    for mine, other in zip(first.parameters, second.parameters, strict=True):
        assert mine.blob.diff.any(), mine.name
        np.testing.assert_array_equal(mine.blob.diff, other.blob.diff)


def vars_of(parameter: Any) -> tuple[str, float, float]:
    return parameter.name, parameter.lr_mult, parameter.decay_mult


# ---- phases


def test_phases_choose_layers() -> None:
    train, test = load_net(LENET, "TRAIN"), load_net(LENET, "TEST")
    assert train.outputs == ["loss"]
    assert test.outputs == ["accuracy", "loss"]
    assert train.blobs["data"].shape == (64, 1, 26, 26)
    assert test.blobs["data"].shape == (100, 1, 26, 26)


def test_the_shipped_data_are_there_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = load_net(LENET, "TEST")
    seen: list[int] = []
    for _ in range(10):
        net.nodes[0].layer.forward([], net.nodes[0].top)
        assert net.blobs["data"].data.max() == pytest.approx(255 * 0.0125)
        seen += net.blobs["label"].data.astype(int).tolist()
    assert np.bincount(seen).tolist() == [100] * 10


# ---- gradients through a net


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


# ---- sharing

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


# ---- what is refused

ONE = 'input: "x" input_shape { dim: 1 } '


def relu(name: str, bottom: str, top: str, fields: str = "") -> str:
    return f'layer {{ name: "{name}" type: "ReLU" bottom: "{bottom}" top: "{top}" {fields} }} '


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (
            'layer { name: "a" type: "MVN" }',
            NotSupported,
            r"'a' \(line 1\) has type 'MVN'; the library has Accuracy",
        ),
        ('layer { name: "a" }', NotSupported, "has no type"),
        ('debug_info: true name: "x"', NotSupported, "take the line out"),
        ('layer { name: "a" type: "Input" }', InvalidArgument, "0 tops and needs at least 1"),
        ('layer { name: "a" type: "ReLU" top: "a" }', InvalidArgument, "0 bottoms and needs 1"),
        ('layer { name: "a" type: "ReLU" bottom: "x" top: "a" }', InvalidArgument, "no layer before it"),
        (
            ONE + 'layer { name: "a" type: "Softmax" bottom: "x" top: "x" }',
            InvalidArgument,
            "cannot work in place",
        ),
        (
            ONE + relu("a", "x", "x") + relu("b", "x", "y") + relu("c", "x", "x"),
            InvalidArgument,
            "'c'.*top 'x' exists already",
        ),
        (
            ONE + relu("a", "x", "y", "loss_weight: 1 loss_weight: 2"),
            InvalidArgument,
            "2 loss_weight for 1 tops",
        ),
        (
            ONE + relu("a", "x", "y", "propagate_down: true propagate_down: true"),
            InvalidArgument,
            "2 propagate_down for 1 bottoms",
        ),
        (
            ONE + relu("a", "x", "y", "param { }"),
            InvalidArgument,
            "1 param for 0 weights",
        ),
        ("layer { nam: 1 }", ParseError, "did you mean 'name'"),
    ],
)
def test_nets_that_cannot_be(text: str, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        load_net(text)


def test_two_layers_with_weights_need_two_names() -> None:
    layer = (
        'layer {{ name: "a" type: "InnerProduct" bottom: "x" top: "{}" '
        "inner_product_param {{ num_output: 1 }} }}"
    )
    with pytest.raises(InvalidArgument, match="another layer with weights has this name"):
        load_net('input: "x" input_shape { dim: 1 dim: 1 }' + layer.format("y") + layer.format("z"))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"shipped are .*package:models/lenet.prototxt"):
        load_net("package:models/lenett.prototxt")
    with pytest.raises(InvalidArgument, match="does not exist"):
        load_net(tmp_path / "none.prototxt")
    (tmp_path / "bytes.prototxt").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="cannot be read as text"):
        load_net(tmp_path / "bytes.prototxt")
    (tmp_path / "bad.prototxt").write_text("name: \n 3")
    with pytest.raises(ParseError, match=r"line 2, column 2: .*bad.prototxt") as caught:
        load_net(tmp_path / "bad.prototxt")
    assert caught.value.line == 2


def test_inputs_are_checked() -> None:
    net = load_net("package:models/cifar10_quick.prototxt")
    with pytest.raises(InvalidArgument, match="'dat' is no input of this net: there are data"):
        net.forward(dat=np.zeros(1))
    with pytest.raises(InvalidShape, match=r"reshape\(data=\(2, 3, 32, 32\)\)"):
        net.forward(data=np.zeros((2, 3, 32, 32)))
    with pytest.raises(InvalidArgument, match="'prob' is no input"):
        net.reshape(prob=(1,))


# ---- running


def test_reshape_keeps_the_answers() -> None:
    net = load_net("package:models/cifar10_quick.prototxt", seed=2)
    random = np.random.default_rng(3)
    for parameter in net.parameters:
        parameter.blob.data[...] = 0.1 * random.standard_normal(parameter.blob.shape)
    images = random.standard_normal((3, 3, 32, 32))
    one_by_one = [net.forward(data=image[None])["prob"].copy() for image in images]
    net.reshape(data=(3, 3, 32, 32))
    together = net.forward(data=images)["prob"]
    np.testing.assert_allclose(together, np.concatenate(one_by_one), rtol=1e-4)
    np.testing.assert_allclose(together.sum(1), 1, rtol=1e-5)


def test_the_same_seed_makes_the_same_net() -> None:
    first, second, third = (load_net(LENET, seed=seed) for seed in (1, 1, 2))
    for a, b, c in zip(first.parameters, second.parameters, third.parameters, strict=True):
        np.testing.assert_array_equal(a.blob.data, b.blob.data)
        assert a.name.endswith("/1") or (a.blob.data != c.blob.data).any()


def test_algorithm_is_handed_to_convolutions() -> None:
    net = load_net("package:models/lenet_deploy.prototxt", algorithm="reference", seed=1)
    other = load_net("package:models/lenet_deploy.prototxt", seed=1)
    x = np.random.default_rng(0).standard_normal(net.blobs["data"].shape)
    np.testing.assert_allclose(net.forward(data=x)["prob"], other.forward(data=x)["prob"], rtol=1e-4)
    with pytest.raises((InvalidArgument, NotSupported), match="no such way"):
        load_net("package:models/lenet_deploy.prototxt", algorithm="no such way").forward()


def test_timing_names_every_layer() -> None:
    net = load_net(LENET, "TRAIN")
    seen: list[tuple[str, str]] = []
    net.observer = lambda layer, direction, seconds: seen.append((layer.name, direction))
    time = time_net(net, iterations=2)
    assert [layer.name for layer in time.layers] == [layer.name for layer in net.layers]
    assert all(layer.forward > 0 for layer in time.layers)
    assert {layer.name for layer in time.layers if layer.backward == 0} == {"digits"}
    assert (
        time.total
        == time.forward + time.backward
        >= sum(layer.forward + layer.backward for layer in time.layers)
    )
    assert any(line.startswith("     conv1\tforward: ") and line.endswith(" ms.") for line in time.lines())
    net.forward()
    assert len(seen) == len(net.layers)  # the observer is back, and was not told of the timed passes


# ---- weights in and out


def test_weights_go_out_and_come_back(tmp_path: Path) -> None:
    net, other = load_net(LENET, "TRAIN", seed=1), load_net("package:models/lenet_deploy.prototxt", seed=2)
    net.save_weights(tmp_path / "lenet.npz")
    assert other.load_weights(tmp_path / "lenet.npz") == ["conv1", "conv2", "ip1", "ip2"]
    for mine, theirs in zip(net.parameters, other.parameters, strict=True):
        np.testing.assert_array_equal(mine.blob.data, theirs.blob.data)
    assert [path.name for path in tmp_path.iterdir()] == ["lenet.npz"]


def test_weights_of_other_nets(tmp_path: Path) -> None:
    net = load_net(LENET, seed=1)
    before = net.weights["conv2"][0].data.copy()
    np.savez(
        tmp_path / "some.npz",
        **{"conv1/0": np.ones((20, 1, 5, 5)), "conv1/1": np.ones(20), "new/0": np.ones(3)},
    )
    assert net.load_weights(tmp_path / "some.npz") == ["conv1"]
    assert (net.weights["conv1"][0].data == 1).all()
    np.testing.assert_array_equal(net.weights["conv2"][0].data, before)
    for arrays, reason in [
        ({"conv1/0": np.ones((20, 1, 5, 4)), "conv1/1": np.ones(20)}, "rename the layer"),
        ({"conv1/0": np.ones((20, 1, 5, 5))}, "has 1 weights for layer 'conv1', and the net 2"),
        ({"else/0": np.ones(1)}, "no layer of the net"),
    ]:
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(InvalidArgument, match=reason):
            net.load_weights(tmp_path / "bad.npz")
    (tmp_path / "broken.npz").write_bytes((tmp_path / "some.npz").read_bytes()[:100])
    with pytest.raises(InvalidArgument, match="cannot be read"):
        net.load_weights(tmp_path / "broken.npz")
    (tmp_path / "weights.caffemodel").touch()
    with pytest.raises(InvalidArgument, match="is neither"):
        net.load_weights(tmp_path / "weights.caffemodel")
    with pytest.raises(InvalidArgument, match=r"saved as \.npz"):
        net.save_weights(tmp_path / "weights.bin")
    (tmp_path / "net_iter_1.jdsnap").write_bytes(b"nothing")
    with pytest.raises(SnapshotError, match="is no snapshot"):
        net.load_weights(tmp_path / "net_iter_1.jdsnap")


# ---- LeNet against PyTorch


def lenet_in_torch(torch: Any, weights: dict[str, Any], x: Any, labels: Any) -> Any:
    f = torch.nn.functional
    y = f.max_pool2d(f.conv2d(x, weights["conv1/0"], weights["conv1/1"]), 2, ceil_mode=True)
    y = f.max_pool2d(f.conv2d(y, weights["conv2/0"], weights["conv2/1"]), 2, ceil_mode=True)
    y = torch.relu(f.linear(y.flatten(1), weights["ip1/0"], weights["ip1/1"]))
    return f.cross_entropy(f.linear(y, weights["ip2/0"], weights["ip2/1"]), labels)


def as_leaves(torch: Any, net: Net) -> dict[str, Any]:
    return {p.name: torch.tensor(p.blob.data.copy(), requires_grad=True) for p in net.parameters}


def relative_error(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


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
