"""Nets that answer, made from nets that are trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command_line import call
from jitdnn.caffe import Net, NetState, deploy, load_net, parse, to_text
from jitdnn.caffe.schema import NetParameter
from jitdnn.errors import InvalidArgument, InvalidShape

LENET = "package:models/lenet.prototxt"
DATA = """name: "n"
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "a" batch_size: 8 } transform_param { crop_size: 6 mirror: true scale: 0.5 mean_value: 4 } }
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { source: "b" batch_size: 4 } transform_param { crop_size: 6 mirror: true scale: 0.5 mean_value: 4 } }
layer { name: "trunk" type: "Convolution" bottom: "data" top: "trunk"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
"""


def ip(name: str, bottom: str = "trunk", outputs: int = 3) -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" inner_product_param '
        f'{{ num_output: {outputs} weight_filler {{ type: "xavier" }} }} }}\n'
    )


def loss(kind: str, scores: str, label: str = "label", more: str = "") -> str:
    return f'layer {{ name: "{kind} {scores}" type: "{kind}" bottom: "{scores}" bottom: "{label}" {more} }}\n'


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def names(text: str, **options: object) -> list[str]:
    return [layer.name for layer in deploy(DATA + text, (1, 8, 8), **options).net.layer]


def test_it_answers_as_the_net_in_testing(tmp_path: Path) -> None:
    net = load_net(LENET, "TEST", seed=3)
    net.forward()
    weights = tmp_path / "w.npz"
    net.save_weights(weights)
    found = deploy(LENET)
    assert (found.input, found.answer, found.scores, found.image) == ("data", "prob", "ip2", (1, 28, 28))
    assert found.transformer.shape == (1, 26, 26)
    with np.load(load_net_data()) as arrays:
        images = arrays["test_data"][:20].reshape(20, 1, 28, 28)
    inputs = found.prepare(images)
    np.testing.assert_array_equal(inputs, net.blobs["data"].data[:20])
    answering = Net(found.net, seed=0)
    answering.load_weights(weights)
    answering.reshape(data=inputs.shape)
    answers = answering.forward(data=inputs)["prob"]
    scores = next(blob for name, blob in net.blobs.items() if name.startswith("ip2")).data[:20]
    np.testing.assert_allclose(answers, softmax(scores.astype(np.float64)), rtol=1e-5, atol=1e-7)


def load_net_data() -> Path:
    from jitdnn.caffe import paths

    return paths.find("package:data/mnist_5k.npz")


def test_it_is_the_deploy_net_that_is_shipped() -> None:
    ours, shipped = deploy(LENET).net, deploy("package:models/lenet_deploy.prototxt").net
    assert [(la.type, la.top, la.bottom) for la in ours.layer] == [
        (la.type, la.top, la.bottom) for la in shipped.layer
    ]
    assert to_text(deploy(ours).net) == to_text(ours)


def test_heads_of_the_same_labels_are_one_answer() -> None:
    text = (
        ip("half") + loss("SoftmaxWithLoss", "half", more="loss_weight: 0.3")
        + ip("hidden") + ip("scores", "hidden") + loss("SoftmaxWithLoss", "scores")
        + loss("HingeLoss", "half", more="loss_weight: 0.1")
        + 'layer { name: "right" type: "Accuracy" bottom: "scores" bottom: "label" top: "right" }\n'
    )  # fmt: skip
    found = deploy(DATA + text, (1, 8, 8))
    assert [layer.name for layer in found.net.layer] == ["d", "trunk", "hidden", "scores", "prob"]
    assert [(each.name, each.scores, each.kind) for each in found.outputs] == [("prob", "scores", "softmax")]
    text = text.replace("loss_weight: 0.3", "loss_weight: 2")
    assert names(text) == ["d", "trunk", "half", "prob"]


def test_losses_of_other_labels_are_other_answers() -> None:
    text = (
        'layer { name: "m" type: "MemoryData" top: "x" top: "other" memory_data_param '
        "{ batch_size: 4 channels: 1 height: 1 width: 1 } }\n"
        + ip("what") + loss("SoftmaxWithLoss", "what")
        + ip("where", outputs=1) + loss("EuclideanLoss", "where", "other")
        + ip("which") + loss("SigmoidCrossEntropyLoss", "which", "x")
    )  # fmt: skip
    found = deploy(DATA + text, (1, 8, 8))
    assert {(each.name, each.kind, each.scores) for each in found.outputs} == {
        ("prob", "softmax", "what"), ("where", "values", "where"), ("probabilities", "sigmoid", "which"),
    }  # fmt: skip
    net = Net(found.net, seed=0)
    assert set(net.outputs) == {"prob", "where", "probabilities"}


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        ("SoftmaxWithLoss", "Softmax"),
        ("InfogainLoss", "Softmax"),
        ("SigmoidCrossEntropyLoss", "Sigmoid"),
        ("EuclideanLoss", "InnerProduct"),
        ("HingeLoss", "InnerProduct"),
    ],
)
def test_what_stands_for_a_loss(kind: str, layer: str) -> None:
    found = deploy(DATA + ip("s") + loss(kind, "s"), (1, 8, 8))
    assert found.net.layer[-1].type == layer
    assert found.net.layer[-1].top == [found.answer]


def test_a_euclidean_loss_may_name_the_labels_first() -> None:
    swapped = 'layer { name: "l" type: "EuclideanLoss" bottom: "label" bottom: "s" }'
    found = deploy(DATA + ip("s", outputs=1) + swapped, (1, 8, 8))
    assert [layer.name for layer in found.net.layer] == ["d", "trunk", "s"]
    assert (found.answer, found.outputs[0].loss) == ("s", "l")


@pytest.mark.parametrize("image", [(8, 8), (1, 2, 8, 8), (1, 0, 8), (1, -8, 8), (1, 8.5, 8), "abc", 8])
def test_images_of_another_shape_are_refused(image: object) -> None:
    with pytest.raises(InvalidShape, match="image"):
        deploy(DATA + ip("s") + loss("SoftmaxWithLoss", "s"), image)  # type: ignore[arg-type]


def test_axis_names_and_layers_in_place() -> None:
    text = (
        'layer { name: "prob" type: "Convolution" bottom: "trunk" top: "prob" convolution_param '
        "{ num_output: 2 kernel_size: 1 } }\n"
        + loss("SoftmaxWithLoss", "prob", more="softmax_param { axis: 2 }")
    )  # fmt: skip
    found = deploy(DATA + text, (1, 8, 8))
    assert found.answer == "prob2"
    assert found.net.layer[-1].softmax_param.axis == 2
    assert found.outputs[0].axis == 2
    # what comes after the loss changes what it compared no more
    text = ip("s") + loss("EuclideanLoss", "s") + 'layer { name: "r" type: "ReLU" bottom: "s" top: "s" }\n'
    assert names(text) == ["d", "trunk", "s"]
    text = ip("s") + 'layer { name: "r" type: "ReLU" bottom: "s" top: "s" }\n' + loss("EuclideanLoss", "s")
    assert names(text) == ["d", "trunk", "s", "r"]


def test_a_loss_for_training_alone() -> None:
    text = ip("s") + loss("SoftmaxWithLoss", "s", more="include { phase: TRAIN }")
    assert names(text) == ["d", "trunk", "s", "prob"]
    own = 'layer { name: "p" type: "Softmax" bottom: "s" top: "p" include { phase: TEST } }\n'
    found = deploy(DATA + text + own, (1, 8, 8))
    assert (found.answer, found.scores) == ("p", "s")
    assert found.net.layer[-1].name == "p"


def test_without_losses() -> None:
    found = deploy(DATA + ip("a") + ip("b", "a"), (1, 8, 8))
    assert [each.name for each in found.outputs] == ["b"]
    text = (
        'layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "s" batch_size: 1 } }'
    )
    with pytest.raises(InvalidArgument, match="computes nothing"):
        deploy(text, (1, 8, 8))
    with pytest.raises(InvalidArgument, match="nothing to give it"):
        deploy(
            'layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 3 } } }\n'
            + ip("s", "p")
        )


def test_images(tmp_path: Path) -> None:
    found = deploy(DATA + ip("s") + loss("SoftmaxWithLoss", "s"), (1, 8, 8))
    assert found.net.layer[0].input_param.shape[0].dim == [1, 1, 6, 6]
    images = np.arange(2 * 64, dtype=np.uint8).reshape(2, 1, 8, 8)
    np.testing.assert_array_equal(
        found.prepare(images), (images[:, :, 1:7, 1:7].astype(np.float32) - 4) * 0.5
    )
    with pytest.raises(InvalidShape, match="crop_size 6 is larger"):
        deploy(DATA + ip("s"), (1, 5, 5))
    text = (DATA + ip("s")).replace("mean_value: 4", 'mean_file: "mean.npy"')
    later = deploy(text, (1, 8, 8), base=tmp_path)
    with pytest.raises(InvalidArgument, match=r"mean\.npy"):
        later.prepare(images)
    np.save(tmp_path / "mean.npy", np.full((1, 8, 8), 4.0))
    np.testing.assert_array_equal(later.prepare(images), found.prepare(images))


def test_what_is_not_needed_is_gone() -> None:
    net = deploy(DATA + ip("s") + loss("SoftmaxWithLoss", "s"), (1, 8, 8)).net
    assert "filler" not in to_text(net)
    assert "phase" not in to_text(net)
    assert Net(parse(to_text(net), NetParameter), NetState(phase="TRAIN"), seed=0).outputs == ["prob"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deploy.prototxt"
    code, _, said = call(capsys, "deploy", LENET, str(out))
    assert code == 0
    assert load_net(out).outputs == ["prob"]
    assert "input 'data': images (1, 28, 28), scale 0.0125 crop_size 26" in said
    assert "output 'prob', softmax of 'ip2'" in said
    code, _, said = call(capsys, "deploy", LENET, str(out), "--image", "1,28")
    assert code != 0
    assert "--image" in said
