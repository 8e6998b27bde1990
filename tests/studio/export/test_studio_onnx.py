"""Nets as models of ONNX: every layer that has a form, by onnxruntime (or ONNX's reference) against our own run."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import studio_trained
from jitdnn.caffe import Net, NetParameter, NetState, load_net, parse
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.studio.export import onnx_export
from jitdnn.studio.export.onnx_layers import FORMS
from jitdnn.studio.look.trained import open_trained

# each line: a layer of the input "data" (2 to 6 channels, 9 x 11 pixels), or of what a line before it made
LAYERS = """
Convolution conv data convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 stride: 2 pad_h: 1 dilation: 1 }
Convolution conv2 data convolution_param { num_output: 4 kernel_size: 3 group: 2 dilation: 2 pad: 2 bias_term: false }
DepthwiseConvolution depthwise data convolution_param { num_output: 4 kernel_size: 3 pad: 1 }
ConvolutionDepthwise depthwise2 data convolution_param { num_output: 4 kernel_size: 3 }
Deconvolution deconv data convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 2 }
Pooling max data pooling_param { pool: MAX kernel_size: 3 stride: 2 }
Pooling max2 data pooling_param { pool: MAX kernel_h: 2 kernel_w: 3 stride: 3 pad_h: 0 pad_w: 1 }
Pooling ave data pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }
Pooling ave2 data pooling_param { pool: AVE kernel_size: 4 stride: 3 }
Pooling whole data pooling_param { pool: AVE global_pooling: true }
Pooling whole2 data pooling_param { pool: MAX global_pooling: true }
Pooling floor data pooling_param { pool: AVE kernel_size: 2 stride: 2 round_mode: FLOOR }
InnerProduct ip data inner_product_param { num_output: 5 }
InnerProduct ip2 data inner_product_param { num_output: 5 transpose: true bias_term: false }
InnerProduct ip3 data inner_product_param { num_output: 5 axis: 2 }
ReLU relu data
ReLU leaky data relu_param { negative_slope: 0.3 }
ReLU6 relu6 data
PReLU prelu data
PReLU prelu2 ip prelu_param { channel_shared: true }
ELU elu data elu_param { alpha: 0.7 }
Sigmoid sigmoid data
TanH tanh data
AbsVal abs data
BNLL bnll data
Clip clip data clip_param { min: -0.5 max: 0.8 }
Exp exp data exp_param { base: 2 scale: 0.5 shift: 0.25 }
Log log exp log_param { base: 3 scale: 2 shift: 1 }
Power power exp power_param { power: 1.5 scale: 0.5 shift: 0.1 }
Power linear data power_param { scale: -2 shift: 3 }
Power constant data power_param { power: 2 scale: 0 shift: 3 }
Swish swish data swish_param { beta: 1.5 }
Threshold threshold data threshold_param { threshold: 0.1 }
BatchNorm norm data
Scale scale data scale_param { bias_term: true }
Scale scale2 data scale_param { axis: 2 num_axes: 2 }
Scale scale3 data,ip4 scale_param { axis: 0 }
Bias bias data bias_param { axis: -1 }
Eltwise sum data,relu,tanh eltwise_param { operation: SUM coeff: 1 coeff: -0.5 coeff: 2 }
Eltwise prod data,tanh eltwise_param { operation: PROD }
Eltwise most data,tanh,sigmoid eltwise_param { operation: MAX }
Axpy axpy whole,data,tanh
LRN across data lrn_param { local_size: 3 alpha: 0.2 beta: 0.6 k: 2 }
LRN within data lrn_param { local_size: 3 alpha: 0.2 beta: 0.6 norm_region: WITHIN_CHANNEL }
MVN mvn data
MVN mvn2 data mvn_param { across_channels: true normalize_variance: false }
Normalize normalize data
Normalize normalize2 data norm_param { across_spatial: false channel_shared: false }
Softmax softmax data
Softmax softmax2 ip softmax_param { axis: -1 }
Concat concat data,tanh,conv2
Concat concat2 data,tanh concat_param { axis: 2 }
Slice slice data>slice_a,slice_b slice_param { slice_point: 1 }
Crop crop data,conv2x crop_param { axis: 2 offset: 1 offset: 2 }
Tile tile data tile_param { tiles: 3 axis: 2 }
Permute permute data permute_param { order: 0 order: 2 order: 3 order: 1 }
Flatten flatten data
Flatten flatten2 data flatten_param { axis: 2 }
Reshape reshape data reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 11 } }
Reshape merge data reshape_param { shape { dim: -1 dim: 99 } }
ShuffleChannel shuffle data shuffle_channel_param { group: 2 }
Reduction reduce data reduction_param { operation: MEAN axis: 1 coeff: 2 }
Reduction reduce2 data reduction_param { operation: ASUM axis: 2 }
Reduction reduce3 data reduction_param { operation: SUMSQ axis: 3 }
Upsample upsample data upsample_param { scale: 3 }
Interp interp data interp_param { height: 17 width: 13 }
Interp interp2 data interp_param { zoom_factor: 2 pad_beg: -1 pad_end: -2 }
Dropout dropout data
"""
FIRST = """
name: "everything"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 4 dim: 9 dim: 11 } } }
layer { name: "ip4" type: "InnerProduct" bottom: "data" top: "ip4" inner_product_param { num_output: 4 } }
layer { name: "conv2x" type: "Convolution" bottom: "data" top: "conv2x"
  convolution_param { num_output: 4 kernel_h: 4 kernel_w: 5 } }
layer { name: "place" type: "Convolution" bottom: "data" top: "place"
  convolution_param { num_output: 3 kernel_size: 1 } }
layer { name: "place relu" type: "ReLU" bottom: "place" top: "place" }
layer { name: "place scale" type: "Scale" bottom: "place" top: "place" }
layer { name: "quiet" type: "Silence" bottom: "relu" }
"""


def everything() -> Net:
    """A net of every type that has a form, with random weights."""
    texts = []
    for line in LAYERS.strip().splitlines():
        kind, name, bottoms, *parameter = line.split(" ", 3)
        bottoms, _, tops = bottoms.partition(">")
        blobs = "".join(f' bottom: "{b}"' for b in bottoms.split(","))
        blobs += "".join(f' top: "{t}"' for t in (tops or name).split(","))
        texts.append(f'layer {{ name: "{name}" type: "{kind}"{blobs} {" ".join(parameter)} }}')
    *first, last = FIRST.strip().rsplit("\n", 1)
    net = Net(parse("\n".join([*first, *texts, last]), NetParameter), NetState(phase="TEST"), seed=1)
    random = np.random.default_rng(2)
    for name, blobs in net.weights.items():
        for index, blob in enumerate(blobs):
            positive = name == "norm" and index > 0
            blob.data[...] = (
                random.random(blob.shape) + 0.5 if positive else random.normal(0, 0.4, blob.shape)
            )
    return net


def test_every_layer_that_has_a_form() -> None:
    net = everything()
    types = {node.layer.type for node in net.nodes} | {"Input"}
    assert types == {*FORMS, "Input"}
    model = onnx_export.to_onnx(net)
    images = np.random.default_rng(3).normal(size=(5, 4, 9, 11)).astype(np.float32)
    net.reshape(data=images.shape)
    expected = {name: values.copy() for name, values in net.forward(data=images).items()}
    if find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        found = session.run(None, {"image": images})
    else:
        found = ReferenceEvaluator(model).run(None, {"image": images})
    names = [output.name for output in model.graph.output]
    assert sorted(names) == sorted(net.outputs)
    for name, values in zip(names, found, strict=True):
        assert values.shape == expected[name].shape, name
        scale = max(1.0, abs(expected[name]).max())
        np.testing.assert_allclose(values / scale, expected[name] / scale, rtol=0, atol=2e-6, err_msg=name)
    assert abs(expected["place"]).max() > 0.1  # in place: after the last of the three


def test_a_trained_net_with_its_preprocessing() -> None:
    for case in (
        studio_trained.digits(),
        studio_trained.of_task("segmentation"),
        studio_trained.of_task("regression"),
    ):
        trained, data = open_trained(*case)
        images = np.asarray(data.images("test")[:7])
        expected = {trained.answer: trained.predict(images)}
        model = onnx_export.to_onnx(trained.one, trained.transformer, [trained.answer], {"classes": "a,b"})
        found = onnx_export.check_onnx(model, images, expected)
        assert found[0].runner == "jitdnn"
        assert all(check.distance < 1e-5 * max(1, check.largest) for check in found)
        assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [
            "N", *trained.image_shape,
        ]  # fmt: skip
        assert {p.key: p.value for p in model.metadata_props} == {"classes": "a,b"}
        reference = ReferenceEvaluator(model).run(None, {"image": images.astype(np.float32)})[0]
        np.testing.assert_allclose(reference, expected[trained.answer], rtol=1e-4, atol=1e-5)
        assert trained.one.blobs[trained.input].shape[0] == 1  # as it was
        wrong = {trained.answer: expected[trained.answer] + 0.01}
        with pytest.raises(InvalidArgument, match=r"jitdnn runs the model of ONNX to within 0\.0"):
            onnx_export.check_onnx(model, images, wrong)


def test_without_preprocessing_the_model_takes_what_the_net_takes() -> None:
    net = load_net("package:models/lenet_deploy.prototxt", seed=1)
    model = onnx_export.to_onnx(net)
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [
        "N",
        1,
        26,
        26,
    ]
    assert model.opset_import[0].version == 18
    assert model.ir_version == 8
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        ('type: "ArgMax"', r"layer 'x' \(ArgMax\) \(line 2\)"),
        ('type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }', "STOCHASTIC has no operator"),
        ('type: "BatchNorm" batch_norm_param { use_global_stats: false }', "statistics of the batch"),
        ('type: "Slice" top: "y" slice_param { axis: 0 }', "along the images"),
        ('type: "InnerProduct" inner_product_param { num_output: 2 axis: 0 }', "axis is 0"),
    ],
)
def test_what_has_no_form_is_refused_by_name(layer: str, match: str) -> None:
    shape = "dim: 6 dim: 2 dim: 4 dim: 4"
    text = f"""layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}
    layer {{ name: "x" {layer} bottom: "data" top: "x" }}"""
    net = load_net(text, seed=0)
    with pytest.raises(NotSupported, match=match):
        onnx_export.to_onnx(net)
    assert net.blobs["data"].shape[0] == 6


def test_a_net_for_one_number_of_images() -> None:
    net = load_net("""layer { name: "data" type: "Input" top: "data"
      input_param { shape { dim: 4 dim: 2 dim: 3 dim: 3 } } }
    layer { name: "rows" type: "Reshape" bottom: "data" top: "rows" reshape_param { shape { dim: 4 dim: 18 } } }""")
    model = onnx_export.to_onnx(net)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [4, 2, 3, 3]
    images = np.random.default_rng(0).random((4, 2, 3, 3)).astype(np.float32)
    found = onnx_export.check_onnx(model, images, net.forward(data=images))
    assert all(check.distance == 0 for check in found)


def test_other_refusals() -> None:
    train = load_net("package:models/lenet.prototxt", phase="TRAIN", seed=1)
    with pytest.raises(InvalidArgument, match="phase TRAIN"):
        onnx_export.to_onnx(train)
    with pytest.raises(InvalidArgument, match="0 inputs"):
        onnx_export.to_onnx(load_net("package:models/lenet.prototxt", seed=1))
    with pytest.raises(InvalidArgument, match=r"no blob 'logits'.*prob"):
        onnx_export.to_onnx(load_net("package:models/lenet_deploy.prototxt", seed=1), outputs=["logits"])
