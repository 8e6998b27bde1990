"""Nets of shapes only: as those that run, without their memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported

SHARED = """
name: "shared"
layer { name: "data" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 3 dim: 2 dim: 9 dim: 9 } shape { dim: 3 } } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "d" type: "Convolution" bottom: "c" top: "d" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "d" top: "d" }
layer { name: "up" type: "Deconvolution" bottom: "d" top: "up"
  convolution_param { num_output: 2 group: 2 kernel_size: 4 stride: 2 weight_filler { type: "bilinear" } } }
layer { name: "pool" type: "Pooling" bottom: "up" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.1 sparse: 2 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" top: "prob" loss_weight: 1
  loss_weight: 0.5 }
"""
LENET = "package:models/lenet.prototxt"


@pytest.mark.parametrize("source", [SHARED, LENET, "package:models/cifar10_quick.prototxt"])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_shapes_are_those_of_a_net_that_runs(source: str, phase: str) -> None:
    if "cifar" in source:
        source = _with_input(source)
    whole, sketch = (load_net(source, phase, seed=0, shapes_only=only) for only in (False, True))
    assert {name: blob.shape for name, blob in whole.blobs.items()} == {
        name: blob.shape for name, blob in sketch.blobs.items()
    }
    assert {name: [b.shape for b in blobs] for name, blobs in whole.weights.items()} == {
        name: [b.shape for b in blobs] for name, blobs in sketch.weights.items()
    }
    assert whole.weight_count == sketch.weight_count
    assert whole.outputs == sketch.outputs
    assert [node.propagate for node in whole.nodes] == [node.propagate for node in sketch.nodes]


def _with_input(source: str) -> str:
    from jitdnn.caffe import paths

    text = paths.find(source).read_text()
    start, end = text.index("layer {"), text.index('name: "conv1"')
    end = text.rindex("layer {", 0, end)
    shapes = "shape { dim: 4 dim: 3 dim: 32 dim: 32 } shape { dim: 4 }"
    data = f'layer {{ name: "d" type: "Input" top: "data" top: "label" input_param {{ {shapes} }} }}\n'
    return text[:start] + data + text[end:]


def test_nothing_is_allocated() -> None:
    text = (
        SHARED.replace("dim: 3", "dim: 65536")
        .replace("dim: 9", "dim: 500")
        .replace("num_output: 5", "num_output: 999")
    )
    tracemalloc.start()
    try:
        net = load_net(text, "TRAIN", seed=0, shapes_only=True)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(blob.nbytes for blob in net.blobs.values()) > 1 << 39
    assert net.weights["ip"][0].shape == (999, 2 * 501 * 501)  # 1002 of the deconvolution, pooled
    assert most < 4 << 20
    net.reshape(data=(1, 2, 500, 500), label=(1,))
    assert net.blobs["pool"].shape == (1, 2, 501, 501)


def test_it_does_not_run() -> None:
    net = load_net(SHARED, "TRAIN", seed=0, shapes_only=True)
    for run in (
        lambda: net.forward(data=np.zeros((3, 2, 9, 9)), label=np.zeros(3)),
        net.forward,
        net.backward,
        lambda: net.save_weights("nowhere.npz"),
        lambda: net.limit_memory("1 GiB"),
    ):
        with pytest.raises(InvalidArgument, match="shapes_only"):
            run()


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ('"bilinear"', '"bilinaer"', NotSupported, "unknown filler type 'bilinaer'"),
        ("std: 0.1", "std: -0.1", InvalidArgument, "std -0.1 is negative"),
        ('"gaussian" std: 0.1', '"bilinear"', InvalidShape, "bilinear filler"),
        ("kernel_size: 4", "kernel_size: [4, 2]", InvalidShape, "no square kernel"),
    ],
)
def test_fillers_are_checked_all_the_same(old: str, new: str, kind: type[Exception], said: str) -> None:
    messages = []
    for only in (False, True):
        with pytest.raises(kind, match=said) as caught:
            load_net(SHARED.replace(old, new), "TRAIN", seed=0, shapes_only=only)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]  # with the shape of the weight itself
