"""Nets as models of ONNX: every layer that has a form, by onnxruntime (or ONNX's reference) against our own run."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import studio_trained
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.studio.export import onnx_export
from jitdnn.studio.export.onnx_layers import FORMS
from jitdnn.studio.look.trained import open_trained
from studio_layers import everything


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
