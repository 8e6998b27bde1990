"""Backward passes of neighbours in one, and gradients that are written in place of cleared and added to: nothing that a
solver makes of a net changes by it, whatever the memory held before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.caffe import Net, Solver, load_net, load_solver
from jitdnn.caffe.layers import LAYERS

FILLER = 'weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.1 }'
SOURCES = """
layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {
    shape { dim: 3 dim: 2 dim: 6 dim: 5 } shape { dim: 3 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } } }
"""
LOSS = (
    'layer { name: "ip" type: "InnerProduct" bottom: "LAST" top: "ip" inner_product_param { num_output: 4 '
    f'{FILLER} }} }} layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}'
)
SOLVER = "base_lr: 0.05 lr_policy: 'fixed' weight_decay: 0.01 random_seed: 3 snapshot_after_train: false "


def layer(name: str, kind: str, bottom: str, top: str = "", rest: str = "") -> str:
    bottoms = " ".join(f'bottom: "{one}"' for one in bottom.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{top or name}" {rest} }}\n'


def conv(name: str, bottom: str, kernel: str = "kernel_size: 1", kind: str = "Convolution") -> str:
    return layer(name, kind, bottom, rest=f"convolution_param {{ num_output: 4 {kernel} {FILLER} }}")


FORKS = (
    SOURCES
    + conv("c0", "data", "kernel_size: 3 pad: 1")
    + layer("r0", "ReLU", "c0", "c0")  # read by four
    + conv("a", "c0")
    + layer("ra", "ReLU", "a", "a", "relu_param { negative_slope: 0.1 }")
    + conv("b", "c0")
    + conv("c", "c0")
    + layer("s1", "Eltwise", "a b")  # behind a ReLU, and a convolution
    + layer("rs", "ReLU", "s1", "s1", "relu_param { negative_slope: 0.2 }")  # read by two
    + conv("d", "s1")
    + layer("bn", "BatchNorm", "d", "d")
    + layer("scale", "Scale", "d", "d", "scale_param { bias_term: true }")
    + layer("s2", "Eltwise", "s1 d")  # behind a Split, and a normalization
    + layer("s3", "Eltwise", "s2 c")  # behind a sum
    + layer("s4", "Eltwise", "s3 c0", rest="eltwise_param { coeff: 1 coeff: -0.5 }")
    + LOSS.replace("LAST", "s4")
)
#: layers of every type that writes the gradients of its weights
WEIGHTS = (
    SOURCES
    + conv("c", "data", "kernel_size: 3")
    + layer("n", "Normalize", "c", rest="norm_param { across_spatial: false channel_shared: false }")
    + layer("p", "PReLU", "n")
    + layer("s", "Scale", "p", rest="scale_param { bias_term: true }")
    + layer("b", "Bias", "s")
    + conv("up", "b", "kernel_size: 2 stride: 2", "Deconvolution")
    + layer("words", "Embed", "label", rest=f"embed_param {{ input_dim: 5 num_output: 3 {FILLER} }}")
    + layer("bn", "BatchNorm", "up")
    + layer("own", "Parameter", "", rest="parameter_param { shape { dim: 3 dim: 3 } }").replace(
        'bottom: ""', ""
    )
    + layer("sum", "Eltwise", "words own")
    + layer("flat", "Flatten", "bn")
    + layer("all", "Concat", "flat sum")
    + LOSS.replace("LAST", "all")
)
#: two layers that share a weight, and one that no loss depends on
SHARED = (
    SOURCES
    + conv("c", "data", "kernel_size: 3 pad: 1")
    + layer("x", "Convolution", "c", rest=f'param {{ name: "w" }} convolution_param {{ bias_term: false num_output: 4 '
            f"kernel_size: 1 {FILLER} }}")
    + layer("y", "Convolution", "x", rest=f'param {{ name: "w" }} convolution_param {{ bias_term: false num_output: 4 '
            f"kernel_size: 1 {FILLER} }}")
    + conv("aside", "x")
    + layer("silence", "Silence", "aside").replace('top: "silence"', "")
    + LOSS.replace("LAST", "y")
)  # fmt: skip
#: ReLUs, a Split and a convolution joined
JOINED = (
    SOURCES
    + conv("c", "data", "kernel_size: 3 pad: 1")
    + layer("r", "ReLU", "c", "c")
    + conv("a", "c")
    + layer("ra", "ReLU", "a", "a", "relu_param { negative_slope: 0.1 }")
    + conv("b", "c")
    + layer("all", "Concat", "a c b")
    + conv("d", "all")
    + layer("rd", "ReLU", "d", "d")
    + conv("e", "d")
    + layer("e2", "Concat", "d e")
    + layer("rows", "Concat", "e2", rest="concat_param { axis: 2 }")
    + LOSS.replace("LAST", "rows")
)
NETS = {"forks": FORKS, "joined": JOINED, "weights": WEIGHTS, "shared": SHARED}


def trained(text: str, more: str = "", **options: Any) -> Solver:
    made = load_solver(f"net_param {{ {text} }} {SOLVER} momentum: 0.9 {more}", **options)
    for _ in range(4):
        made.step(1)
        block = made.net.shared and made.net.shared._block._memory
        if block is not None:
            block[...] = 255  # NaN, whatever the type
    return made


def weights_of(solver: Solver) -> list[np.ndarray[Any, Any]]:
    return [blob.read() for blobs in solver.net.weights.values() for blob in blobs]


def assert_same(found: Solver, wanted: Solver) -> None:
    for one, other in zip(weights_of(found), weights_of(wanted), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", list(NETS))
@pytest.mark.parametrize("more", ["", "iter_size: 2", "clip_gradients: 0.1"])
def test_what_is_learned_stays_the_same_bits(name: str, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = trained(NETS[name], more)
    kept = trained(NETS[name], more, keep_blobs=True)
    for layer_type in set(LAYERS.values()):
        monkeypatch.setattr(layer_type, "writes_gradients", False)
    cleared = trained(NETS[name], more, keep_blobs=True)
    assert_same(found, kept)
    assert_same(found, cleared)


def test_joined_gradients_are_read_where_they_lie() -> None:
    made = load_solver(f"net_param {{ {JOINED} }} {SOLVER}")
    ran = runs(made.net)
    made.step(1)
    assert {"all 001", "e2 01", "rows 1"} <= set(ran)


def test_every_type_with_weights_is_tried() -> None:
    nets = [load_net(text, "TRAIN") for text in NETS.values()]
    tried = {layer.type for net in nets for layer in net.layers if layer.writes_gradients}
    writing = {kind for kind, layer_type in LAYERS.items() if layer_type.writes_gradients}
    assert writing - tried <= {"ConvolutionDepthwise", "DepthwiseConvolution", "DummyData"}


def test_a_weight_that_no_loss_depends_on_decays() -> None:
    made = load_solver(f"net_param {{ {SHARED} }} {SOLVER}")
    before = made.net.weights["aside"][0].data.astype(np.float64)
    for _ in range(3):
        made.step(1)
    after = made.net.weights["aside"][0].data
    np.testing.assert_allclose(after, before * (1 - 0.05 * 0.01) ** 3, rtol=1e-5)


def test_gradients_are_zeros_after_clearing_and_pile_up_otherwise() -> None:
    made = trained(WEIGHTS)
    net = made.net
    net.clear_gradients()
    assert not any(parameter.blob.diff.any() for parameter in net.parameters)
    net.forward()
    net.backward()
    once = [parameter.blob.diff.astype(np.float64) for parameter in net.parameters]
    net.backward()
    assert sum(one.any() for one in once) > len(once) / 2
    for parameter, one in zip(net.parameters, once, strict=True):
        np.testing.assert_allclose(parameter.blob.diff, 2 * one, rtol=1e-3, atol=1e-5)


def test_a_pass_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trained(SHARED, keep_blobs=True)
    first = next(node.layer for node in made.net.nodes if node.layer.name == "c")
    monkeypatch.setattr(first, "backward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.step(1)
    monkeypatch.undo()
    assert not any(parameter.blob.is_gradient_new for parameter in made.net.parameters)


def gradients(net: Net) -> dict[str, np.ndarray[Any, Any]]:
    return {name: blob.diff for name, blob in net.blobs.items()}


def test_passes_that_a_program_runs_fill_every_gradient() -> None:
    fused, other = (load_net(FORKS, "TRAIN", seed=2, dtype="f64", fuse=fuse) for fuse in (True, False))
    for net in (fused, other):
        net.forward()
        net.backward()
    wanted = gradients(other)
    for name, found in gradients(fused).items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)


def runs(net: Net) -> list[str]:
    """The layers whose backward pass runs in one of `net`."""
    ran: list[str] = []
    for node in net.nodes:
        layer, backward = node.layer, node.layer.backward

        def noted(
            top: Any, propagate: Sequence[bool], bottom: Any, layer: Any = layer, backward: Any = backward
        ) -> None:
            ran.append(f"{layer.name} {''.join('01'[wanted] for wanted in propagate)}")
            backward(top, propagate, bottom)

        layer.backward = noted  # type: ignore[method-assign]
    return ran


def test_neighbours_are_one_pass() -> None:
    made = load_solver(f"net_param {{ {FORKS} }} {SOLVER}")
    ran = runs(made.net)
    made.step(1)
    assert not {"r0 1", "rs 1"} & set(ran)  # with the Splits behind them
    assert "ra 1" in ran
    sums = [one for one in ran if one.startswith(("s1 ", "s2 ", "s3 ", "s4 "))]
    assert sums == ["s4 11", "s3 10", "s2 00", "s1 00"]  # copies for a factor, and for sums
    ran.clear()
    with pytest.raises(jd.InvalidArgument, match="has no values now"):
        _ = made.net.blobs["b"].diff  # which nothing fills
    made.step(1)  # every blob has memory of its own now
    assert {"s2 11", "s1 11"} <= set(ran)
    assert made.net.blobs["b"].diff.any()
