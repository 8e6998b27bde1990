"""Nets: what they are built of, what they count, what they refuse, and weights in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffe_nets import LENET, vars_of
from jitdnn.caffe import Net, NetState, load_net, parse, time_net
from jitdnn.caffe.schema import NetParameter
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported, ParseError, SnapshotError
from paths import SHARED

PROTOTXT = SHARED / "prototxt"
needs_shared = pytest.mark.skipif(
    not PROTOTXT.is_dir(), reason="no folder ../shared/prototxt beside this checkout"
)


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
    definition = parse((PROTOTXT / name).read_text(), NetParameter)
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
    net = load_net(PROTOTXT / "cifar10/cifar10_quick.prototxt")
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


# ---- what is refused

ONE = 'input: "x" input_shape { dim: 1 } '


def relu(name: str, bottom: str, top: str, fields: str = "") -> str:
    return f'layer {{ name: "{name}" type: "ReLU" bottom: "{bottom}" top: "{top}" {fields} }} '


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (
            'layer { name: "a" type: "Convolutoin" }',
            NotSupported,
            r"'a' \(line 1\) has type 'Convolutoin', which does not exist: did you mean 'Convolution'",
        ),
        ('layer { name: "a" }', NotSupported, "has no type"),
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
    (tmp_path / "weights.pth").touch()
    with pytest.raises(InvalidArgument, match="is none"):
        net.load_weights(tmp_path / "weights.pth")
    with pytest.raises(InvalidArgument, match=r"saved as \.npz"):
        net.save_weights(tmp_path / "weights.bin")
    (tmp_path / "net_iter_1.jdsnap").write_bytes(b"nothing")
    with pytest.raises(SnapshotError, match="is no snapshot"):
        net.load_weights(tmp_path / "net_iter_1.jdsnap")
