"""Nets of Caffe on a GPU that are compiled: as the same net layer by layer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from caffe_cases import close, convolution, layer, product
from jitdnn.caffe import load_deployed, load_net
from jitdnn.errors import DeviceError, InvalidType
from jitdnn.tensor import DeviceArray

INPUT = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 12 dim: 11 } } }\n'
NET = (
    INPUT
    + convolution("conv1", "data", 8, "kernel_size: 3 pad: 1 bias_term: false")
    + layer("bn1", "BatchNorm", "conv1", "conv1")
    + layer("scale1", "Scale", "conv1", "conv1", "scale_param { bias_term: true }")
    + layer("relu1", "ReLU", "conv1", "conv1")
    + convolution("conv2", "conv1", 8, "kernel_size: 3 pad: 1 group: 2")
    + layer("sum", "Eltwise", "conv1 conv2")
    + layer("relu2", "ReLU", "sum", "sum")
    + layer("pool", "Pooling", "sum", rest="pooling_param { kernel_size: 3 stride: 2 }")
    + layer("norm", "LRN", "pool")
    + product("ip", "norm", 5)
    + layer("prob", "Softmax", "ip")
)


@pytest.fixture
def name(device: Any) -> str:
    return "{}:{}".format(*device.device_id)


def images(count: int = 2) -> Any:
    return np.random.default_rng(1).standard_normal((count, 3, 12, 11)).astype(np.float32)


def test_answers_are_those_of_the_net(name: str) -> None:
    net = load_net(NET, "TEST", seed=5, device=name)
    compiled = net.compiled(["prob", "sum"])
    for count in (2, 2, 2, 3):
        x = images(count)
        net.reshape(data=x.shape)
        net.forward(data=x)
        found = compiled.forward(data=x)
        for key, values in found.items():
            close(values, net.blobs[key].read(), key)
        found = compiled.forward(data=jd.to_device(x, name))
        for key, values in found.items():
            assert isinstance(values, DeviceArray)
            close(values.numpy(), net.blobs[key].read(), key)
    assert "0 functions of the host" in compiled.explain(data=x)


@pytest.mark.skipif(find_spec("llvmlite") is None, reason="the host's part is compiled by llvmlite")
def test_layers_that_have_no_kernels_there_are_the_hosts(name: str) -> None:
    text = NET + layer("top", "ArgMax", "prob", rest="argmax_param { top_k: 2 }")
    text += layer("up", "Power", "top", rest="power_param { power: 2 shift: 1 }")
    net = load_net(text, "TEST", seed=5, device=name)
    compiled, x = net.compiled(), images()
    net.forward(data=x)
    for _ in range(3):
        close(compiled.forward(data=x)["up"], net.blobs["up"].read())
    assert "1 functions of the host" in compiled.explain(data=x)


def test_files_are_loaded_onto_a_device(name: str, tmp_path: Path) -> None:
    net = load_net(NET, "TEST", seed=5, device=name)
    net.save_weights(str(tmp_path / "net.caffemodel"))
    (tmp_path / "net.prototxt").write_text(NET)
    loaded = load_deployed(tmp_path / "net.prototxt", tmp_path / "net.caffemodel", device=name)
    x = images()
    net.forward(data=x)
    close(loaded.forward(data=x)["prob"], net.blobs["prob"].read())


def test_data_of_the_net_itself(name: str) -> None:
    text = NET.replace(
        INPUT,
        'layer { name: "data" type: "DummyData" top: "data" dummy_data_param { shape { dim: 2 dim: 3 dim: 12 dim: 11 } '
        'data_filler { type: "constant" value: 0.5 } } }\n',
    )
    net = load_net(text, "TEST", seed=5, device=name)
    net.forward()
    close(net.compiled().forward()["prob"], net.blobs["prob"].read())


def test_arrays_that_do_not_fit(name: str) -> None:
    compiled = load_net(NET, "TEST", seed=5, device=name).compiled()
    with pytest.raises(InvalidType, match="float64"):
        compiled.forward(data=jd.to_device(images().astype(np.float64), name))
    if find_spec("llvmlite") is not None:
        with pytest.raises(DeviceError, match="prepared for the processor"):
            load_net(NET, "TEST", seed=5).compiled().forward(data=jd.to_device(images(), name))
