"""Blobs of Caffe's nets that lie channels last in a GPU's memory."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_cases import FILLER, RESIDUAL, SOLVER, SOURCES, assert_equal, convolution, layer, pair, product
from jitdnn.caffe import load_net, load_solver

BRANCHES = (
    SOURCES
    + convolution("conv1", "data", 8)
    + layer("relu1", "ReLU", "conv1", "conv1")
    + layer("pool1", "Pooling", "conv1", rest="pooling_param { kernel_size: 3 stride: 2 }")
    + layer("norm1", "LRN", "pool1")
    + convolution("one", "norm1", 3, "kernel_size: 1 bias_term: false")
    + convolution("three", "norm1", 5, "kernel_size: 3 pad: 1 bias_term: false")
    + layer("joined", "Concat", "one three")
    + layer("bn", "BatchNorm", "joined", "normed")
    + layer("scale", "Scale", "normed", "normed", "scale_param { bias_term: true }")
    + convolution("grouped", "normed", 8, "kernel_size: 3 pad: 1 group: 2")
    + layer("most", "Eltwise", "normed grouped", rest="eltwise_param { operation: MAX }")
    + layer("tanh", "TanH", "most", "tanh")
    + convolution("packed", "tanh", 4)
    + layer("flat", "Flatten", "packed")
    + product("ip", "flat", 5)
    + layer("loss", "SoftmaxWithLoss", "ip label")
)


def test_channels_last_gives_the_same(name: str) -> None:
    """Shapes and what programs see are as ever; only the order in the GPU's memory is another."""
    cpu = load_net(BRANCHES, "TRAIN", seed=5)
    gpu = load_net(BRANCHES, "TRAIN", seed=5, device=name, channels_last=True)
    lying = {key for key in gpu.channels_last if key in gpu.blobs and "_split_" not in key}
    assert lying == {"conv1", "pool1", "norm1", "one", "three", "joined", "normed", "grouped", "most", "tanh"}
    for _ in range(2):
        for net in (cpu, gpu):
            net.clear_gradients()
            net.forward()
            net.backward()
        assert gpu.loss == pytest.approx(cpu.loss, rel=1e-5)
        assert_equal(cpu, gpu)
    for key in lying:
        blob = gpu.blobs[key]
        _, c, h, w = blob.shape
        for array in (blob.values, blob.gradient):
            assert array.descriptor.strides == (c * h * w, 1, w * c, c), key
        assert blob.data.flags.c_contiguous
    assert gpu.weights["grouped"][0].values.descriptor.strides == (4 * 9, 1, 3 * 4, 4)
    for one, two in zip(cpu.layers, gpu.layers, strict=True):  # what programs write is taken up
        for weight, other in zip(one.weights, two.weights, strict=True):
            for each in (weight, other):
                each.data[...] = np.arange(each.size).reshape(each.shape) % 7 / 10
    for net in (cpu, gpu):
        net.forward()
    assert_equal(cpu, gpu)
    own = load_net(BRANCHES, "TRAIN", seed=5, device=name)
    assert own.channels_last == (gpu.channels_last if name.startswith("cuda") else [])
    assert load_net(BRANCHES, "TRAIN", seed=5, device=name, channels_last=False).channels_last == []


def test_losses_and_outputs_stay_packed(name: str) -> None:
    text = BRANCHES.replace('name: "most"', 'name: "most" loss_weight: 0.5') + convolution("end", "tanh", 4)
    cpu, gpu = pair(text, name, channels_last=True)
    assert not {"most", "tanh", "end"} & set(gpu.channels_last)
    for net in (cpu, gpu):
        net.forward()
        net.backward()
    assert gpu.loss == pytest.approx(cpu.loss, rel=1e-5)
    assert_equal(cpu, gpu)


def test_training_with_channels_last_is_that_of_the_processor(name: str) -> None:
    solvers = [
        load_solver(
            f"net_param {{ {RESIDUAL} }} {SOLVER} clip_gradients: 0.5", device=where, channels_last=True
        )
        for where in ("cpu", name)
    ]
    for solver in solvers:
        solver.step(5)
    for one, two in zip(solvers[0].net.parameters, solvers[1].net.parameters, strict=True):
        largest = np.abs(one.blob.data).max()
        np.testing.assert_allclose(
            two.blob.data, one.blob.data, rtol=0, atol=2e-4 * largest, err_msg=one.name
        )
    for key, history in solvers[0].method.history.items():
        largest = np.abs(history).max(initial=1e-3)
        np.testing.assert_allclose(solvers[1].method.history[key], history, rtol=0, atol=1e-3 * largest)


def test_channels_last_with_a_single_channel_among_others(name: str) -> None:
    """A Concat of one channel and three lies alike, in passes both ways."""
    text = (
        SOURCES
        + convolution("first", "data", 4)
        + convolution("mask", "first", 1)
        + convolution("wide", "first", 3)
        + layer("both", "Concat", "mask wide")
        + convolution("last", "both", 4)
        + product("ip", "last", 5)
        + layer("loss", "SoftmaxWithLoss", "ip label")
    )
    cpu = load_net(text, "TRAIN", seed=5)
    gpu = load_net(text, "TRAIN", seed=5, device=name, channels_last=True)
    for net in (cpu, gpu):
        net.forward()
        net.backward()
    assert "both" in gpu.channels_last
    assert_equal(cpu, gpu)


def test_filters_shared_in_another_shape_stay_packed(name: str) -> None:
    """Of two convolutions that share one filter as (4, 4, 3, 1) and (4, 4, 1, 3), both between blobs channels last."""
    shared = 'param { name: "w" share_mode: PERMISSIVE } convolution_param { bias_term: false '
    text = SOURCES + convolution("first", "data", 4)
    for one, bottom, rest in (
        ("a", "first", "kernel_h: 3 kernel_w: 1"),
        ("b", "a", "kernel_h: 1 kernel_w: 3"),
    ):
        own = f"{shared} num_output: 4 {rest} {FILLER} }}"
        text += layer(one, "Convolution", bottom, rest=own)
    text += product("ip", "b", 5) + layer("loss", "SoftmaxWithLoss", "ip label")
    cpu, gpu = (
        load_net(text, "TRAIN", seed=5),
        load_net(text, "TRAIN", seed=5, device=name, channels_last=True),
    )
    assert gpu.channels_last == ["first", "a"]
    for net in (cpu, gpu):
        net.forward()
        net.backward()
    assert_equal(cpu, gpu)
