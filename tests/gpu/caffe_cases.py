"""Caffe's nets that tests run on GPUs and on the processor, and what compares them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.caffe import Net, load_net

FILLER = 'weight_filler { type: "xavier" } '
SOURCES = """
layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {
    shape { dim: 4 dim: 3 dim: 12 dim: 11 } shape { dim: 4 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } } }
"""


def layer(name: str, kind: str, bottom: str, top: str | None = None, rest: str = "") -> str:
    bottoms = " ".join(f'bottom: "{one}"' for one in bottom.split())
    tops = " ".join(f'top: "{one}"' for one in (top or name).split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} {tops} {rest} }}\n'


def convolution(name: str, bottom: str, outputs: int, rest: str = "kernel_size: 3 pad: 1") -> str:
    bias = 'bias_filler { type: "constant" value: 0.1 }' if "bias_term" not in rest else ""
    return layer(
        name,
        "Convolution",
        bottom,
        rest=f"convolution_param {{ num_output: {outputs} {rest} {FILLER} {bias} }}",
    )


def product(name: str, bottom: str, outputs: int) -> str:
    return layer(
        name, "InnerProduct", bottom, rest=f"inner_product_param {{ num_output: {outputs} {FILLER} }}"
    )


LENET = (
    SOURCES
    + convolution("conv1", "data", 8)
    + layer("relu1", "ReLU", "conv1", "conv1")
    + layer("pool1", "Pooling", "conv1", rest="pooling_param { kernel_size: 3 stride: 2 }")
    + layer("norm1", "LRN", "pool1")
    + convolution("conv2", "norm1", 6, "kernel_size: 3 group: 2")
    + layer("pool2", "Pooling", "conv2", rest="pooling_param { pool: AVE kernel_size: 2 stride: 2 }")
    + product("ip1", "pool2", 16)
    + layer("relu2", "ReLU", "ip1", "ip1")
    + layer("drop", "Dropout", "ip1", "ip1")
    + product("ip2", "ip1", 5)
    + layer("loss", "SoftmaxWithLoss", "ip2 label")
    + layer("accuracy", "Accuracy", "ip2 label")
)
SMALL = (
    SOURCES
    + convolution("conv1", "data", 4)
    + product("ip", "conv1", 3)
    + layer("loss", "SoftmaxWithLoss", "ip label")
)
RESIDUAL = (
    SOURCES
    + convolution("conv1", "data", 8, "kernel_size: 3 pad: 1 bias_term: false")
    + layer("bn1", "BatchNorm", "conv1", "conv1")
    + layer("scale1", "Scale", "conv1", "conv1", "scale_param { bias_term: true }")
    + layer("relu1", "ReLU", "conv1", "conv1")
    + convolution("conv2", "conv1", 8, "kernel_size: 3 pad: 1 bias_term: false")
    + layer("bn2", "BatchNorm", "conv2", "conv2")
    + layer("scale2", "Scale", "conv2", "conv2", "scale_param { bias_term: true }")
    + layer("sum", "Eltwise", "conv1 conv2")
    + layer("relu2", "ReLU", "sum", "sum")
    + layer("pool", "Pooling", "sum", rest="pooling_param { pool: AVE global_pooling: true }")
    + product("ip", "pool", 5)
    + layer("loss", "SoftmaxWithLoss", "ip label", rest="loss_param { ignore_label: 9 }")
)
# layers that compute on the host, between others that do not
HOSTED = (
    SOURCES
    + convolution("conv1", "data", 4)
    + layer("elu1", "ELU", "conv1", "conv1", "elu_param { alpha: -0.5 }")
    + layer("relu1", "ReLU", "conv1", "conv1", "relu_param { negative_slope: -0.2 }")
    + layer("pool1", "Pooling", "conv1", "pool1 mask", "pooling_param { kernel_size: 2 stride: 2 }")
    + layer("up", "Upsample", "pool1 mask", rest="upsample_param { upsample_h: 12 upsample_w: 11 }")
    + layer("pos", "Power", "up", "up", "power_param { power: 2 shift: 0.1 }")
    + layer("pool2", "Pooling", "up", rest="pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }")
    + convolution("conv2", "pool2", 4)
    + layer("cols", "Im2col", "conv2", rest="convolution_param { kernel_size: 2 }")
    + layer("steps", "Reshape", "cols", rest="reshape_param { shape { dim: 4 dim: 4 dim: -1 } }")
    + layer("cont", "DummyData", "", rest="dummy_data_param { shape { dim: 4 dim: 4 } }")
    + layer("lstm", "LSTM", "steps cont", rest=f"recurrent_param {{ num_output: 5 {FILLER} }}")
    + layer("rnn", "RNN", "lstm cont", rest=f"recurrent_param {{ num_output: 3 {FILLER} }}")
    + layer("loss", "Reduction", "rnn", rest="loss_weight: 1 reduction_param { operation: SUMSQ }")
)
# sequences that go on from pass to pass
RECURRENT = (
    """
layer { name: "in" type: "DummyData" top: "x" top: "cont" top: "static" dummy_data_param {
    shape { dim: 5 dim: 3 dim: 7 } shape { dim: 5 dim: 3 } shape { dim: 3 dim: 4 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 }
    data_filler { type: "gaussian" std: 1 } } }
"""
    + layer("lstm", "LSTM", "x cont static", rest=f"recurrent_param {{ num_output: 6 {FILLER} }}")
    + layer("rnn", "RNN", "lstm cont", rest=f"recurrent_param {{ num_output: 3 {FILLER} }}")
    + layer("loss", "Reduction", "rnn", rest="loss_weight: 1 reduction_param { operation: SUMSQ }")
)
SOLVER = (
    'base_lr: 0.05 lr_policy: "inv" gamma: 0.1 power: 0.75 momentum: 0.9 weight_decay: 0.01 max_iter: 9 random_seed: 3 '
    "snapshot_after_train: false "
)


def close(found: Any, wanted: Any, what: str = "") -> None:
    largest = np.abs(wanted).max(initial=1e-6)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * largest, err_msg=what)


def pair(text: str, name: str, **options: Any) -> tuple[Net, Net]:
    return tuple(load_net(text, "TRAIN", seed=5, device=where, **options) for where in ("cpu", name))  # type: ignore[return-value]


def assert_equal(cpu: Net, gpu: Net) -> None:
    for key, blob in cpu.blobs.items():
        close(gpu.blobs[key].read(), blob.read(), key)
    for one, two in zip(cpu.parameters, gpu.parameters, strict=True):
        close(two.blob.diff, one.blob.diff, one.name)
