"""NetSpec: nets written in Python, LeNet among them, trained step by step; drawings of nets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import jitdnn.caffe.pycaffe as caffe
from jitdnn.caffe import NetParameter, load_net, parse
from jitdnn.caffe.pycaffe import layers as L  # noqa: N812
from jitdnn.caffe.pycaffe import params as P  # noqa: N812
from jitdnn.errors import InvalidArgument, NotSupported

XAVIER = {"type": "xavier"}


def lenet(source: str, batch: int) -> NetParameter:
    n = caffe.NetSpec()
    n.data, n.label = L.Data(batch_size=batch, source=source, transform_param={"scale": 1 / 255}, ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=XAVIER)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=5, num_output=50, weight_filler=XAVIER)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.fc1 = L.InnerProduct(n.pool2, num_output=500, weight_filler=XAVIER)
    n.relu1 = L.ReLU(n.fc1, in_place=True)
    n.score = L.InnerProduct(n.relu1, num_output=10, weight_filler=XAVIER)
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    return n.to_proto()


def test_lenet_of_netspec_is_trained_by_steps(tmp_path: Path) -> None:
    (tmp_path / "train.prototxt").write_text(str(lenet("package:data/mnist_5k.npz#train", 64)))
    (tmp_path / "test.prototxt").write_text(str(lenet("package:data/mnist_5k.npz#test", 50)))
    (tmp_path / "solver.prototxt").write_text(
        'train_net: "train.prototxt" test_net: "test.prototxt" test_iter: 4 test_interval: 1000\n'
        'base_lr: 0.01 momentum: 0.9 weight_decay: 5e-4 lr_policy: "inv" gamma: 0.0001 power: 0.75\n'
        "max_iter: 1000 snapshot_after_train: false test_initialization: false\n"
    )
    caffe.set_random_seed(2)
    solver = caffe.SGDSolver(str(tmp_path / "solver.prototxt"))
    assert [(name, blob.data.shape) for name, blob in solver.net.blobs.items()][:2] == [
        ("data", (64, 1, 28, 28)), ("label", (64,)),
    ]  # fmt: skip
    losses = np.zeros(40)
    for step in range(40):
        solver.step(1)
        losses[step] = solver.net.blobs["loss"].data
    assert sum(w.data.size for weights in solver.net.params.values() for w in weights) == 431_080
    assert losses[-10:].mean() < 0.4 * losses[:5].mean()
    solver.test_nets[0].forward(start="conv1")  # data that are there already
    right = 0
    for _ in range(4):
        solver.test_nets[0].forward()
        right += (
            solver.test_nets[0].blobs["score"].data.argmax(1) == solver.test_nets[0].blobs["label"].data
        ).sum()
    assert right > 0.8 * 200


def test_what_is_written_in_python() -> None:
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3, 9, 9]})
    n.conv = L.Convolution(
        n.data, kernel_size=[3, 1], num_output=np.int64(4), group=1, pad=1, bias_term=False,
        param=[{"lr_mult": 1, "decay_mult": 0}], weight_filler={"type": "gaussian", "std": np.float32(0.5)},
    )  # fmt: skip
    n.norm = L.BatchNorm(n.conv, in_place=True, use_global_stats=True, include={"phase": caffe.TEST})
    n.up = L.Deconvolution(n.norm, convolution_param={"kernel_size": 2, "num_output": 2}, name="upwards")
    n["sum"] = L.Eltwise(n.up, n.up, operation=P.Eltwise.SUM, coeff=[1, -1], loss_weight=2)
    n.a, n.b = L.Slice(n.up, slice_point=1, ntop=2)
    n.quiet = L.Silence(n.a, n.b, ntop=0)
    expected = """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 9 dim: 9 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 decay_mult: 0 }
          convolution_param { kernel_size: 3 kernel_size: 1 num_output: 4 group: 1 pad: 1 bias_term: false
            weight_filler { type: "gaussian" std: 0.5 } } }
        layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" include { phase: TEST }
          batch_norm_param { use_global_stats: true } }
        layer { name: "upwards" type: "Deconvolution" bottom: "conv" top: "up"
          convolution_param { kernel_size: 2 num_output: 2 } }
        layer { name: "sum" type: "Eltwise" bottom: "up" bottom: "up" top: "sum" loss_weight: 2
          eltwise_param { operation: SUM coeff: 1 coeff: -1 } }
        layer { name: "a" type: "Slice" bottom: "up" top: "a" top: "b" slice_param { slice_point: 1 } }
        layer { name: "quiet" type: "Silence" bottom: "a" bottom: "b" }
    """
    made = n.to_proto()
    assert made == parse(expected, NetParameter)
    assert parse(str(made), NetParameter) == made
    assert load_net(str(made)).outputs == ["sum"]


def test_names_that_are_made_up() -> None:
    data = L.DummyData(shape={"dim": [2, 3]})
    top = L.ReLU(L.InnerProduct(L.ReLU(data), num_output=2), in_place=True)
    made = caffe.to_proto(top)
    assert [(layer.name, *layer.top) for layer in made.layer] == [
        ("DummyData1", "DummyData1"), ("ReLU1", "ReLU1"), ("InnerProduct1", "InnerProduct1"),
        ("ReLU2", "InnerProduct1"),
    ]  # fmt: skip
    assert top.to_proto() == made


def test_what_cannot_be_written() -> None:
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3]})
    for build, match in (
        (lambda: L.ReLU("data"), "bottoms are tops of other layers"),
        (lambda: setattr(n, "x", 3), "a top is needed"),
        (lambda: setattr(n, "x", L.Slice(n.data, ntop=2)), "a layer of several gives a tuple"),
        (lambda: caffe.to_proto(L.ReLU(n.data, slope=1)), "has no field 'slope'"),
        (lambda: caffe.to_proto(L.Input(shape={"dims": [1]})), "BlobShape has no field 'dims'"),
        (lambda: caffe.to_proto(L.Pooling(n.data, pool=7)), "7 is not one of"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            build()
    for name in ("absent", "_x"):
        with pytest.raises(AttributeError):
            getattr(n, name)
    with pytest.raises(AttributeError):
        P.Nothing  # noqa: B018
    assert (P.Pooling.AVE, P.Data.LMDB, P.Eltwise.MAX) == (1, 1, 2)


# ---- draw


def test_a_drawing(tmp_path: Path) -> None:
    net = parse(
        """
        name: "a \\"net\\""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 7 kernel_size: 3 } }
        layer { name: "r" type: "ReLU" bottom: "c" top: "c" include { phase: TRAIN } }
        layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
        """,
        NetParameter,
    )
    text = caffe.draw.dot_text(net)
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == 'digraph "a \\"net\\"" {'
    assert lines[1] == "rankdir=LR;"
    assert lines[-1] == "}"
    edges = Counter(line for line in lines if "->" in line)
    assert edges == Counter({
        '"blob x" -> layer1;': 1, 'layer0 -> "blob x";': 1, 'layer1 -> "blob c" [label="7"];': 1,
        '"blob c" -> layer2;': 1, 'layer2 -> "blob c";': 1, '"blob c" -> layer3;': 1, 'layer3 -> "blob p";': 1,
    })  # fmt: skip
    assert any('label="c\\n(Convolution)\\nkernel: 3\\nstride: 1 x 1\\npad: 0 x 0"' in line for line in lines)
    assert "ReLU" not in caffe.draw.dot_text(net, "TB", caffe.TEST)
    caffe.draw.draw_net_to_file(net, tmp_path / "net.dot")
    assert (tmp_path / "net.dot").read_text() == text
    with pytest.raises(InvalidArgument, match=r"there are LR, RL, TB, BT"):
        caffe.draw.dot_text(net, "up")
    with pytest.raises(InvalidArgument, match=r"must end in \.dot"):
        caffe.draw.draw_net_to_file(net, tmp_path / "net")


def test_pictures_are_drawn_by_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = parse('layer { name: "x" type: "DummyData" top: "x" }', NetParameter)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupported, match=r"install Graphviz, or name a \.dot file"):
        caffe.draw.draw_net_to_file(net, tmp_path / "net.svg")
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\necho "$1"\nexec /bin/cat\n')
    program.chmod(0o755)
    caffe.draw.draw_net_to_file(net, tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_text() == "-Tsvg\n" + caffe.draw.dot_text(net)
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    with pytest.raises(InvalidArgument, match=r"cannot draw .*broken"):
        caffe.draw.draw_net_to_file(net, tmp_path / "other.svg")
    assert not (tmp_path / "other.svg").exists()
