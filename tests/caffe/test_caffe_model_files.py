""".caffemodel and .solverstate, binary and HDF5: against protobuf, h5py and OpenCV's reader of Caffe's nets."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caffe_protobuf
from caffe_nets import LENET
from jitdnn.caffe import Net, load_net, to_text
from jitdnn.caffe.blob_proto import read_binaryproto, write_binaryproto
from jitdnn.caffe.schema import NetParameter
from jitdnn.caffe.solver_state import read_solverstate, write_solverstate
from jitdnn.caffe.wire import Reader, decode, prefixed
from jitdnn.errors import InvalidArgument, InvalidShape, JitdnnError, NotSupported
from jitdnn.settings import settings
from paths import ROOT, SHARED

SMALL = """
  name: "small"
  layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 5 } } }
  layer { name: "conv/a" type: "Convolution" bottom: "x" top: "a"
          convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" }
                              bias_filler { type: "gaussian" } } }
  layer { name: "ip" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" }
          inner_product_param { num_output: 36 weight_filler { type: "gaussian" } } }
  layer { name: "ip2" type: "InnerProduct" bottom: "b" top: "c" param { name: "w" }
          inner_product_param { num_output: 36 weight_filler { type: "gaussian" } bias_filler { value: 1 } } }
"""
SUFFIXES = [".caffemodel", ".caffemodel.h5", ".npz"]


def read_definition(path: Path) -> NetParameter:
    """The net in a binary file, without weights."""
    return decode(memoryview(path.read_bytes()), NetParameter, Reader(path.name))


def values(net: Net) -> dict[str, list[Any]]:
    return {name: [blob.data.copy() for blob in blobs] for name, blobs in net.weights.items()}


def assert_same(net: Net, other: Net) -> None:
    found, wanted = values(net), values(other)
    assert found.keys() == wanted.keys()
    for name, blobs in wanted.items():
        for mine, theirs in zip(found[name], blobs, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_weights_come_back(tmp_path: Path, suffix: str, dtype: str) -> None:
    first, second = load_net(SMALL, seed=1, dtype=dtype), load_net(SMALL, seed=2, dtype=dtype)
    path = tmp_path / f"w{suffix}"
    first.save_weights(path)
    assert second.load_weights(path) == ["conv/a", "ip", "ip2"]
    assert_same(second, first)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_binary_file_is_protobufs(tmp_path: Path) -> None:
    net = load_net(SMALL, seed=1)
    net.save_weights(tmp_path / "w.caffemodel")
    theirs = caffe_protobuf.classes()["NetParameter"].FromString((tmp_path / "w.caffemodel").read_bytes())
    assert theirs.name == "small"
    assert [layer.name for layer in theirs.layer] == [node.layer.name for node in net.nodes]
    stored = {layer.name: layer.blobs for layer in theirs.layer if layer.blobs}
    assert {name: len(blobs) for name, blobs in stored.items()} == {"conv/a": 2, "ip": 2, "ip2": 2}
    for name, blobs in net.weights.items():
        for mine, other in zip(blobs, stored[name], strict=True):
            assert tuple(other.shape.dim) == mine.shape
            np.testing.assert_array_equal(np.array(other.data, np.float32).reshape(mine.shape), mine.data)
    definition = read_definition(tmp_path / "w.caffemodel")
    built = Net(definition, seed=4)
    built.load_weights(tmp_path / "w.caffemodel")
    assert_same(built, net)
    assert to_text(definition).count('type: "InnerProduct"') == 2


def test_shared_weights_stand_once_in_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    net = load_net(SMALL, seed=1)
    net.save_weights(tmp_path / "w.caffemodel.h5")
    with h5py.File(tmp_path / "w.caffemodel.h5") as file:
        assert sorted(file["data/ip2"]) == ["1"]
        np.testing.assert_array_equal(file["data/conv/a/0"][()], net.weights["conv/a"][0].data)


def legacy(net: Net, syntax: str) -> bytes:
    """The net's weights as files of 2013 and 2014 have them."""
    known = caffe_protobuf.classes()
    model = known["NetParameter"](name="old")
    for name, blobs in net.weights.items():
        layer = model.layers.add()
        if syntax == "V0":
            layer = layer.layer
        layer.name = name
        for blob in blobs:
            n, c, h, w = (1,) * (4 - len(blob.shape)) + blob.shape
            layer.blobs.add(num=n, channels=c, height=h, width=w, data=blob.data.reshape(-1).tolist())
    content: bytes = model.SerializeToString()
    return content


@pytest.mark.parametrize("syntax", ["V1", "V0"])
def test_old_files_with_num_channels_height_width(tmp_path: Path, syntax: str) -> None:
    net, other = load_net(SMALL, seed=1), load_net(SMALL, seed=2)
    (tmp_path / "old.caffemodel").write_bytes(legacy(net, syntax))
    other.load_weights(tmp_path / "old.caffemodel")
    assert_same(other, net)


def test_layers_go_by_name_and_shapes_must_agree(tmp_path: Path) -> None:
    net = load_net(SMALL, seed=1)
    net.save_weights(tmp_path / "w.caffemodel")
    fewer = load_net(SMALL.replace("kernel_size: 3", "kernel_size: 1 stride: 2"), seed=2)
    before = values(fewer)
    with pytest.raises(InvalidShape, match=r"conv/a/0 has shape \(4, 3, 3, 3\).*rename the layer"):
        fewer.load_weights(tmp_path / "w.caffemodel")
    for name, blobs in before.items():
        for mine, theirs in zip(blobs, fewer.weights[name], strict=True):
            np.testing.assert_array_equal(mine, theirs.data)
    renamed = load_net(SMALL.replace("conv/a", "conv/b"), seed=2)
    assert renamed.load_weights(tmp_path / "w.caffemodel") == ["ip", "ip2"]
    with pytest.raises(InvalidArgument, match="no layer of the net"):
        load_net(SMALL.replace("conv/a", "d").replace('"ip', '"q')).load_weights(tmp_path / "w.caffemodel")
    without_bias = SMALL.replace("num_output: 4", "bias_term: false num_output: 4")
    with pytest.raises(InvalidArgument, match="2 weights for layer 'conv/a'"):
        load_net(without_bias).load_weights(tmp_path / "w.caffemodel")


def test_damaged_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    net = load_net(SMALL, seed=1)
    net.save_weights(tmp_path / "w.caffemodel")
    net.save_weights(tmp_path / "w.caffemodel.h5")
    before = values(net)
    random = np.random.default_rng(0)
    for name in ("w.caffemodel", "w.caffemodel.h5"):
        content = (tmp_path / name).read_bytes()
        bad = tmp_path / f"bad.{name}"
        for number in range(60):
            damaged = bytearray(content)
            if number % 2:
                del damaged[int(random.integers(len(content))) :]
            else:
                damaged[int(random.integers(min(len(content), 400)))] ^= 1 << int(random.integers(8))
            bad.write_bytes(damaged)
            with contextlib.suppress(JitdnnError):
                net.load_weights(bad)  # fine, if a bit of a number is another one
                net.load_weights(tmp_path / name)
            for layer, blobs in before.items():
                for mine, theirs in zip(blobs, net.weights[layer], strict=True):
                    np.testing.assert_array_equal(mine, theirs.data)


def test_what_a_file_claims_is_compared_with_its_bytes(tmp_path: Path) -> None:
    lie = prefixed(
        100, prefixed(1, b"conv/a") + prefixed(7, prefixed(7, prefixed(1, b"\xff\xff\xff\x7f")) + b"")
    )
    (tmp_path / "w.caffemodel").write_bytes(lie)
    with pytest.raises(
        InvalidArgument, match=r"layer 'conv/a', weight 0 has the shape \(268435455,\) and 0 values"
    ):
        load_net(SMALL).load_weights(tmp_path / "w.caffemodel")
    load_net(SMALL).save_weights(tmp_path / "v.caffemodel")
    with settings(load_limit=10_000), pytest.raises(InvalidArgument, match="load_limit"):
        load_net(SMALL).load_weights(tmp_path / "v.caffemodel")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "bomb.caffemodel.h5", "w") as file:
        file.create_dataset("data/conv/a/0", (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")
    with pytest.raises(InvalidArgument, match="load_limit"):
        load_net(SMALL).load_weights(tmp_path / "bomb.caffemodel.h5")
    with h5py.File(tmp_path / "link.caffemodel.h5", "w") as file:
        file.create_group("data/conv/a")["0"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(InvalidArgument, match="link to another place"):
        load_net(SMALL).load_weights(tmp_path / "link.caffemodel.h5")


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (4, 5), (7,)])
def test_binaryproto_both_ways(tmp_path: Path, shape: tuple[int, ...]) -> None:
    mean = np.random.default_rng(0).random(shape, np.float32)
    write_binaryproto(tmp_path / "m.binaryproto", mean)
    theirs = caffe_protobuf.classes()["BlobProto"].FromString((tmp_path / "m.binaryproto").read_bytes())
    assert (theirs.num, theirs.channels, theirs.height, theirs.width) == (
        shape if len(shape) == 4 else (0,) * 4
    )
    np.testing.assert_array_equal(np.array(theirs.data, np.float32).reshape(shape), mean)
    np.testing.assert_array_equal(read_binaryproto(tmp_path / "m.binaryproto"), mean)


@pytest.mark.parametrize("suffix", [".solverstate", ".solverstate.h5"])
def test_solver_states_come_back(tmp_path: Path, suffix: str) -> None:
    history = [np.random.default_rng(0).random(shape, np.float32) for shape in ((2, 3), (3,), ())]
    path = tmp_path / f"s{suffix}"
    write_solverstate(path, 5000, "net_iter_5000.caffemodel", history, 3)
    found = read_solverstate(path)
    assert (found.iteration, found.learned_net, found.current_step) == (5000, "net_iter_5000.caffemodel", 3)
    for mine, theirs in zip(found.history, history, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    if suffix == ".solverstate":
        theirs_state = caffe_protobuf.classes()["SolverState"].FromString(path.read_bytes())
        assert (theirs_state.iter, theirs_state.current_step) == (5000, 3)
        assert theirs_state.learned_net == "net_iter_5000.caffemodel"
        assert [tuple(blob.shape.dim) for blob in theirs_state.history] == [(2, 3), (3,), ()]
        assert theirs_state.SerializeToString() == path.read_bytes()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InvalidArgument, match=str(path)):
        read_solverstate(path)


# ---- OpenCV


def opencv(prototxt: Path, model: Path) -> Any:
    cv2 = pytest.importorskip("cv2")
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("this OpenCV does not read Caffe's nets: below 5 does")
    return cv2.dnn.readNetFromCaffe(str(prototxt), str(model))


@pytest.mark.parametrize(
    "prototxt",
    [
        ROOT / "src/jitdnn/caffe/models/lenet_deploy.prototxt",
        SHARED / "prototxt/cifar10/cifar10_quick.prototxt",
    ],
)
def test_opencv_computes_the_same_from_weights_written_here(prototxt: Path, tmp_path: Path) -> None:
    if not prototxt.exists():
        pytest.skip(f"{prototxt} is not here")
    net = load_net(prototxt, seed=3)
    for blobs in net.weights.values():  # biases other than 0, weights that keep the signal's size
        for blob in blobs:
            fan_in = max(1, blob.data[0].size)
            blob.data[...] = np.random.default_rng(blob.size).standard_normal(blob.shape) / np.sqrt(fan_in)
    net.save_weights(tmp_path / "w.caffemodel")
    theirs = opencv(prototxt, tmp_path / "w.caffemodel")
    image = np.random.default_rng(0).random(net.blobs["data"].shape, np.float32)
    net.forward(data=image)
    theirs.setInput(image, "data")
    layers = {node.layer.name: node.top[0] for node in net.nodes if node.layer.type != "Input"}
    names = [name for name in theirs.getLayerNames() if name in layers]
    last_of = {
        blob.name: name for name, blob in layers.items()
    }  # of layers in place only the last result is left
    compared = 0
    for name, output in zip(names, theirs.forward(names), strict=True):
        blob = layers[name]
        if last_of[blob.name] == name:
            ours = blob.data.reshape(output.shape)
            np.testing.assert_allclose(ours, output, rtol=0, atol=2e-5 * np.abs(output).max())
            compared += 1
    assert compared >= 5


def test_opencv_definition_in_the_file_is_what_was_built(tmp_path: Path) -> None:
    net = load_net(LENET, seed=1, phase="TRAIN")
    net.save_weights(tmp_path / "w.caffemodel")
    assert read_definition(tmp_path / "w.caffemodel").layer[0].type == "Data"
    assert isinstance(net.parameter, NetParameter)


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(NotSupported, match=r"pip install 'jitdnn\[caffe\]'"):
        load_net(SMALL).save_weights(tmp_path / "w.caffemodel.h5")
