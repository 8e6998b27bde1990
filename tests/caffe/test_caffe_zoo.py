"""Small nets of the well-known kinds: every layer as OpenCV computes it, from weights in a file that we wrote, and
their gradients; the numbers of weights of nets whose files are public."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffe_zoo import ZOO, zoo_net
from jitdnn.caffe import Net, NetState, parse
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import NetParameter
from paths import SHARED

# of the largest value of a layer
TOLERANCE = 2e-5


def built(definition: NetParameter, random: np.random.Generator, dtype: str = "f32") -> Net:
    """The net with statistics, factors and slopes as after a training."""
    net = Net(definition, NetState(phase="TEST"), seed=3, dtype=dtype)
    for layer in net.layers:
        for index, blob in enumerate(layer.weights):
            if layer.type == "BatchNorm":
                values: Any = (random.normal(size=blob.shape), random.uniform(0.5, 2, blob.shape), 4.0)[index]
                blob.data[...] = values
            elif layer.type in ("Scale", "PReLU"):
                blob.data[...] = random.uniform(0.5, 1.5, blob.shape) * (0.3 if layer.type == "PReLU" else 1)
    net.blobs["data"].data[...] = random.standard_normal(net.blobs["data"].shape)
    for node in net.nodes:  # and with outputs near 1
        node.layer.forward(node.bottom, node.top)
        if node.layer.type in ("Convolution", "InnerProduct", "Deconvolution"):
            size = node.top[0].data.std()
            for blob in node.layer.weights:
                blob.data[...] /= size
            node.layer.forward(node.bottom, node.top)
    return net


@pytest.fixture(scope="module")
def opencv() -> Any:
    cv2 = pytest.importorskip("cv2")
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("this OpenCV does not read Caffe's files: install opencv-python-headless<5")
    return cv2


@pytest.mark.parametrize("name", ZOO)
def test_every_layer_is_as_in_opencv(name: str, opencv: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(sum(map(ord, name)))
    definition = zoo_net(name)
    net = built(definition, random)
    (tmp_path / "net.prototxt").write_text(str(definition))
    net.save_weights(tmp_path / "net.caffemodel")
    peer = opencv.dnn.readNetFromCaffe(str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel"))
    peer.enableFusion(False)  # it would leave layers out
    data = random.standard_normal(net.blobs["data"].shape).astype(np.float32)
    net.forward(data=data)
    peer.setInput(data)
    # of layers in place the last one has what the blob holds at the end
    last = {blob: layer.name for layer in definition.layer if layer.type != "Input" for blob in layer.top}
    found = peer.forward(list(last.values()))
    assert len(found) == len(last) > 8
    for blob, theirs in zip(last, found, strict=True):
        ours = net.blobs[blob].data
        if blob == "detection_out":  # whose classes come in another order
            ours, theirs = (
                rows.reshape(-1, 7)[np.lexsort(rows.reshape(-1, 7).T[:3])] for rows in (ours, theirs)
            )
        assert ours.size == theirs.size, blob
        largest = np.abs(theirs).max()
        assert largest > 0, blob
        assert np.abs(ours.reshape(theirs.shape) - theirs).max() <= TOLERANCE * largest, blob


@pytest.mark.parametrize("name", ZOO)
def test_its_gradients(name: str) -> None:
    """Along one direction for all weights and the input, against central differences in double precision."""
    random = np.random.default_rng(sum(map(ord, name)) + 1)
    definition = zoo_net(name)
    definition.force_backward = True
    net = built(definition, random, "f64")
    data = random.standard_normal(net.blobs["data"].shape)
    # detections have no gradient
    outputs = [name for name in net.outputs if name != "detection_out"] or ["mbox_loc", "mbox_conf_flatten"]
    for output in outputs:
        net.blobs[output].diff[...] = random.standard_normal(net.blobs[output].shape)
    net.forward(data=data)
    net.clear_gradients()
    net.backward()
    trained = [blob for layer in net.layers if layer.type != "BatchNorm" for blob in layer.weights]
    arrays = [net.blobs["data"].data, *(blob.data for blob in trained)]
    slopes = [net.blobs["data"].diff.copy(), *(blob.diff.copy() for blob in trained)]
    # few values change, so that no maximum and no kink is passed
    ways = [
        random.standard_normal(array.shape) * (random.uniform(size=array.shape) < 0.02) for array in arrays
    ]
    step = 1e-7

    def loss(distance: float) -> float:
        for array, way in zip(arrays, ways, strict=True):
            array += distance * way
        net.forward_layers()
        for array, way in zip(arrays, ways, strict=True):
            array -= distance * way
        return sum(float((net.blobs[name].data * net.blobs[name].diff).sum()) for name in outputs)

    slope = (loss(step) - loss(-step)) / (2 * step)
    expected = sum(float((s * w).sum()) for s, w in zip(slopes, ways, strict=True))
    scale = sum(float(np.abs(s * w).sum()) for s, w in zip(slopes, ways, strict=True))
    assert scale > 0
    assert abs(slope - expected) <= 1e-5 * scale


@pytest.mark.parametrize(
    ("file", "phase", "count"),
    [
        ("mnist/lenet.prototxt", "TEST", 431_080),
        ("bvlc_reference_caffenet/deploy.prototxt", "TEST", 60_965_224),
        ("bvlc_alexnet/deploy.prototxt", "TEST", 60_965_224),
        ("bvlc_googlenet/deploy.prototxt", "TEST", 6_998_552),
        ("bvlc_googlenet/train_val.prototxt", "TRAIN", 13_378_280),
    ],
)
def test_numbers_of_weights(file: str, phase: str, count: int) -> None:
    path = SHARED / "prototxt" / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = path.read_text()
    # shapes alone: drawing so many numbers takes seconds
    for kind in ("gaussian", "xavier"):
        text = text.replace(f'type: "{kind}"', 'type: "constant"')
    definition = filter_net(parse(text, NetParameter), NetState(phase=phase))
    data = parse(
        """layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
             shape { dim: 1 dim: 3 dim: 224 dim: 224 } shape { dim: 1 } } }""",
        NetParameter,
    )
    definition.layer = [data.layer[0] if layer.type == "Data" else layer for layer in definition.layer]
    assert Net(definition, NetState(phase=phase)).weight_count == count
