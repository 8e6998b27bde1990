"""Fused layers give what the same layers give one by one, and every blob is as it would be without fusion."""

from __future__ import annotations

import numpy as np
import pytest

from jitdnn.caffe import Net, load_net

INPUT = """
layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {
    shape { dim: 3 dim: 3 dim: 7 dim: 6 } shape { dim: 3 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } } }
"""
LOSS = (
    'layer { name: "ip9" type: "InnerProduct" bottom: "LAST" top: "ip9" inner_product_param { num_output: 4 '
    'weight_filler { type: "xavier" } } } '
    'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip9" bottom: "label" top: "loss" }'
)
CONV = (
    'layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}" convolution_param {{ num_output: 5 '
    'kernel_size: 3 pad: 1 {2} weight_filler {{ type: "xavier" }} bias_filler {{ type: "gaussian" std: 0.5 }} }} }} '
)
HERE = 'layer {{ name: "{0}" type: "{1}" bottom: "{2}" top: "{2}" {3} }} '
GAUSSIAN = 'filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'


def in_place(name: str, kind: str, blob: str, rest: str = "") -> str:
    return HERE.format(name, kind, blob, rest)


def conv(name: str, bottom: str, rest: str = "") -> str:
    return CONV.format(name, bottom, rest)


SCALE = f"scale_param {{ bias_term: true {GAUSSIAN} }}"
BARE = 'scale_param { filler { type: "gaussian" std: 1 } }'
NORMALIZED = conv("c", "data") + in_place("bn", "BatchNorm", "c")
NETS = {
    "conv+relu": (conv("c", "data") + in_place("r", "ReLU", "c"), "c", ["c+r"]),
    "conv without bias+leaky": (
        conv("c", "data", "bias_term: false")
        + in_place("r", "ReLU", "c", "relu_param { negative_slope: 0.2 }"),
        "c",
        ["c+r"],
    ),
    "conv+bn+scale+relu": (
        NORMALIZED + in_place("s", "Scale", "c", SCALE) + in_place("r", "ReLU", "c"),
        "c",
        ["c", "bn+s+r"],
    ),
    "conv+bn+scale": (NORMALIZED + in_place("s", "Scale", "c", BARE), "c", ["c", "bn+s"]),
    "conv+bn+relu": (NORMALIZED + in_place("r", "ReLU", "c"), "c", ["c", "bn+r"]),
    "conv+bn": (NORMALIZED, "c", ["c"]),
    "bn, its own top": (
        conv("c", "data")
        + 'layer { name: "bn" type: "BatchNorm" bottom: "c" top: "n" } '
        + in_place("s", "Scale", "n", SCALE)
        + in_place("r", "ReLU", "n"),
        "n",
        ["bn+s+r"],
    ),
    "relu under dropout": (
        NORMALIZED
        + in_place("s", "Scale", "c", SCALE)
        + in_place("r", "ReLU", "c")
        + in_place("d", "Dropout", "c", "dropout_param { dropout_ratio: 0.25 }"),
        "c",
        ["c", "bn+s"],
    ),
    "conv+relu under dropout": (
        conv("c", "data") + in_place("r", "ReLU", "c") + in_place("d", "Dropout", "c"),
        "c",
        ["c+r"],
    ),
    "sums": (
        conv("a", "data")
        + conv("b", "data")
        + conv("c", "data")
        + 'layer { name: "e" type: "Eltwise" bottom: "a" bottom: "b" bottom: "c" top: "e" '
        "eltwise_param { coeff: 1 coeff: -2 coeff: 0.5 } } " + in_place("r", "ReLU", "e"),
        "e",
        ["e+r"],
    ),
    "sum of two": (
        conv("a", "data")
        + conv("b", "data")
        + 'layer { name: "e" type: "Eltwise" bottom: "a" bottom: "b" top: "e" } '
        + in_place("r", "ReLU", "e"),
        "e",
        ["e+r"],
    ),
    "product+relu": (
        'layer { name: "i" type: "InnerProduct" bottom: "data" top: "i" inner_product_param { num_output: 6 '
        'weight_filler { type: "xavier" } bias_filler { type: "gaussian" std: 1 } } } '
        + in_place("r", "ReLU", "i"),
        "i",
        ["i+r"],
    ),
    "nothing": (
        conv("c", "data") + 'layer { name: "r" type: "ReLU" bottom: "c" top: "r" }',
        "r",
        [],
    ),
}


def pair(text: str, phase: str) -> tuple[Net, Net]:
    made = [load_net(text, phase, seed=4, dtype="f64", fuse=fuse) for fuse in (True, False)]
    return made[0], made[1]


def assert_equal(fused: Net, other: Net) -> None:
    for name, blob in other.blobs.items():
        np.testing.assert_allclose(fused.blobs[name].data, blob.data, rtol=1e-9, atol=1e-12, err_msg=name)
    for one, two in zip(fused.layers, other.layers, strict=True):
        for mine, theirs in zip(one.weights, two.weights, strict=True):
            np.testing.assert_allclose(mine.data, theirs.data, rtol=1e-9, atol=1e-12, err_msg=mine.name)
            np.testing.assert_allclose(mine.diff, theirs.diff, rtol=1e-9, atol=1e-12, err_msg=mine.name)


@pytest.mark.parametrize("name", list(NETS))
def test_training(name: str) -> None:
    text, last, groups = NETS[name]
    fused, other = pair(INPUT + text + LOSS.replace("LAST", last), "TRAIN")
    assert [group.name for group in fused.fusion.groups] == groups
    for _ in range(2):
        for net in (fused, other):
            net.forward()
            net.backward()  # gradients of weights pile up
        assert_equal(fused, other)
    assert fused.fusion.is_on
    assert not other.fusion.is_on
    assert np.any(fused.blobs[last].data)


@pytest.mark.parametrize("name", list(NETS))
def test_testing_folds_and_may_go_backward(name: str) -> None:
    text, last, _ = NETS[name]
    fused, other = pair(INPUT + text + LOSS.replace("LAST", last), "TEST")
    for net in (fused, other):
        for weights in net.weights.values():
            if len(weights) == 3:  # statistics
                random = np.random.default_rng(1)
                for blob in weights:
                    blob.data[...] = random.uniform(0.5, 2, blob.shape)
        net.forward()
    assert_equal(fused, other)
    if "bn" in name and name != "bn, its own top":
        assert any(group.name.startswith("c+bn") for group in fused.fusion.groups)
    for net in (fused, other):
        net.backward()
    assert_equal(fused, other)
    for net in (fused, other):
        net.forward()
        net.backward()
    assert_equal(fused, other)


def test_a_named_algorithm_is_left_alone() -> None:
    net = load_net(INPUT + NETS["conv+relu"][0], "TRAIN", algorithm="reference", seed=1)
    assert net.fusion.groups == []
    net.forward()


def test_a_limit_on_memory_ends_fusion() -> None:
    text = INPUT + NETS["conv+bn+scale+relu"][0] + LOSS.replace("LAST", "c")
    fused, other = pair(text, "TRAIN")
    for net in (fused, other):
        net.forward()
    fused.limit_memory("1 GiB")
    for net in (fused, other):
        net.forward()
        net.backward()
    assert not fused.fusion.is_on
    for one, two in zip(fused.parameters, other.parameters, strict=True):
        np.testing.assert_allclose(one.blob.diff, two.blob.diff, rtol=1e-9, atol=1e-12)
