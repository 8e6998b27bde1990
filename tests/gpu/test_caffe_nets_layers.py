"""Layers of Caffe's nets, one by one: on a GPU they give what they give on the processor."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_cases import FILLER, assert_equal, close, layer, pair

X = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 dim: 5 dim: 4 } } }'
T = X.replace('"x"', '"t"').replace('"in"', '"targets"')
LABEL = 'layer { name: "labels" type: "Input" top: "label" input_param { shape { dim: 2 } } }'
CONT = LABEL.replace('"label"', '"cont"').replace("dim: 2", "dim: 2 dim: 6")
GATES = (
    'layer { name: "a" type: "Input" top: "x" top: "given" top: "cont" input_param '
    "{ shape { dim: 1 dim: 6 dim: 5 } shape { dim: 1 dim: 6 dim: 20 } shape { dim: 1 dim: 6 } } }"
)
SPREAD = 'filler { type: "gaussian" std: 1 }'


def one(kind: str, rest: str = "", bottom: str = "x", more: str = "", top: str = "y") -> str:
    return X + more + layer("y", kind, bottom, top, rest)


LAYERS = {
    "AbsVal": one("AbsVal"),
    "Axpy": one(
        "Axpy", bottom="a x t", more=T + LABEL.replace('"label"', '"a"').replace("dim: 2", "dim: 2 dim: 6")
    ),
    "BatchReindex": one("BatchReindex", bottom="x label", more=LABEL),
    "Bias": one("Bias", f"bias_param {{ {SPREAD} }}"),
    "BNLL": one("BNLL"),
    "Clip": one("Clip", "clip_param { min: -0.5 max: 0.4 }"),
    "Concat": one("Concat", bottom="x t", more=T),
    "ContrastiveLoss": one("ContrastiveLoss", bottom="x t label", more=T + LABEL),
    "Crop": one("Crop", "crop_param { axis: 3 offset: 1 }", "x t", T.replace("dim: 4", "dim: 2")),
    "Deconvolution": one(
        "Deconvolution", f"convolution_param {{ num_output: 3 kernel_size: 2 stride: 2 {FILLER} }}"
    ),
    "Eltwise MAX": one("Eltwise", "eltwise_param { operation: MAX }", "x t", T),
    "Eltwise PROD": one("Eltwise", "eltwise_param { operation: PROD }", "x t", T),
    "ELU": one("ELU"),
    "Embed": LABEL
    + layer("y", "Embed", "label", rest=f"embed_param {{ input_dim: 5 num_output: 3 {FILLER} }}"),
    "EuclideanLoss": one("EuclideanLoss", bottom="x t", more=T),
    "Exp": one("Exp", "exp_param { base: 2 }"),
    "Flatten": one("Flatten"),
    "HingeLoss": one("HingeLoss", "hinge_loss_param { norm: L2 }", "x label", LABEL),
    "SoftmaxWithLoss": one(
        "SoftmaxWithLoss",
        "softmax_param { axis: 0 }",
        "x l",
        LABEL.replace('"label"', '"l"').replace("dim: 2", "dim: 120"),
    ),
    "Interp": one("Interp", "interp_param { height: 7 width: 9 pad_beg: -1 }"),
    "LSTM": one("LSTM", f"recurrent_param {{ num_output: 7 {FILLER} }}", "x cont", CONT),
    "LSTMUnit": GATES + layer("y", "LSTMUnit", "x given cont", "c h"),
    "MultinomialLogisticLoss": one("MultinomialLogisticLoss", bottom="x label", more=LABEL),
    "MVN": one("MVN"),
    "Normalize": one("Normalize", "norm_param { across_spatial: false channel_shared: false }"),
    "Permute": one("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"),
    "Power": one("Power", "power_param { scale: 2 shift: 1 }"),
    "PReLU": one("PReLU"),
    "Reduction": one("Reduction", "reduction_param { operation: SUMSQ axis: 1 }"),
    "ReLU6": one("ReLU6"),
    "RNN": one("RNN", f"recurrent_param {{ num_output: 7 {FILLER} }}", "x cont", CONT),
    "Scale": one("Scale", f"scale_param {{ bias_term: true {SPREAD} }}"),
    "Sigmoid": one("Sigmoid"),
    "SigmoidCrossEntropyLoss": one("SigmoidCrossEntropyLoss", bottom="x t", more=T),
    "Slice": one("Slice", top="y z"),
    "Softmax": one("Softmax"),
    "SPP": one("SPP", "spp_param { pyramid_height: 2 }"),
    "Swish": one("Swish"),
    "TanH": one("TanH"),
    "Threshold": one("Threshold"),
    "Tile": one("Tile", "tile_param { axis: 1 tiles: 3 }"),
}
#: one of each kind of code, where every kernel takes a second to compile
FEW = ("ContrastiveLoss", "Embed", "LSTMUnit", "Permute", "SPP")


@pytest.mark.parametrize("kind", list(LAYERS))
def test_layers_are_those_of_the_processor(kind: str, name: str) -> None:
    if not name.startswith("cuda") and kind not in FEW:
        pytest.skip("a few layers are enough where compiling takes long")
    text = LAYERS[kind]
    is_without = kind in ("Threshold", "Embed", "BatchReindex", "SoftmaxWithLoss")
    cpu, gpu = pair(text if is_without else "force_backward: true " + text, name)
    random = np.random.default_rng(3)
    values = {
        key: random.integers(0, 2, cpu.blobs[key].shape)
        if key in ("label", "l")
        else random.uniform(0.1, 1, cpu.blobs[key].shape)
        for key in cpu.inputs
    }
    slopes = {key: random.standard_normal(cpu.blobs[key].shape) for key in cpu.outputs}
    for net in (cpu, gpu):
        net.clear_gradients()
        net.forward(**values)
        for key, slope in slopes.items():
            if not any(weight for node in net.nodes for weight in node.loss_weights):
                net.blobs[key].diff[...] = slope
        net.backward()
    assert_equal(cpu, gpu)
    for key in () if is_without else ("x",):
        close(gpu.blobs[key].diff, cpu.blobs[key].diff, key)


def test_inputs_are_what_the_caller_left(name: str) -> None:
    """Also where a layer works in place on them, and where nobody writes them anew."""
    text = LAYERS["Scale"].replace('top: "y"', 'top: "x"')
    cpu, gpu = pair(text, name)
    values = np.random.default_rng(2).standard_normal(cpu.blobs["x"].shape)
    for net in (cpu, gpu):
        net.forward(x=values)
        net.forward()
    close(gpu.blobs["x"].data, cpu.blobs["x"].data)
    for net in (cpu, gpu):
        net.blobs["x"].data[0] = 3
        net.forward()
    close(gpu.blobs["x"].read(), cpu.blobs["x"].data)
