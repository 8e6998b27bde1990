"""pycaffe's Net and solvers: blobs, partial passes, batches, weights, net surgery, and the errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jitdnn.caffe.pycaffe as caffe
from caffe_nets import LENET
from jitdnn.caffe.pycaffe import mode
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported

LAYERS = """
    name: "small"
    force_backward: true
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
      num_output: 5 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "gaussian" } } }
    layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
    layer { name: "f" type: "InnerProduct" bottom: "c" top: "f" inner_product_param {
      num_output: 6 weight_filler { type: "xavier" } } }
    layer { name: "p" type: "Softmax" bottom: "f" top: "p" }
"""


@pytest.fixture
def net() -> caffe.Net:
    caffe.set_random_seed(4)
    return caffe.Net(LAYERS, caffe.TEST)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(41)


def test_what_a_net_shows(net: caffe.Net) -> None:
    assert list(net.blobs) == ["x", "c", "f", "p"]
    assert [(name, [w.shape for w in weights]) for name, weights in net.params.items()] == [
        ("c", [(5, 3, 3, 3), (5,)]),
        ("f", [(6, 20), (6,)]),
    ]
    assert (net.inputs, net.outputs, net.name) == (["x"], ["p"], "small")
    assert [layer.type for layer in net.layers] == ["Input", "Convolution", "ReLU", "InnerProduct", "Softmax"]
    assert net.layer_dict["f"].blobs[0].shape == (6, 20)
    assert (net.top_names["r"], net.bottom_names["f"]) == (["c"], ["c"])
    x, f = net.blobs["x"], net.blobs["f"]
    assert (x.num, x.channels, x.height, x.width, x.count) == (2, 3, 4, 4, 96)
    assert (f.num, f.channels, f.height, f.width) == (2, 6, 1, 1)
    assert net.blob_loss_weights["p"] == 0
    assert {"Convolution", "LSTM", "Python"} <= set(caffe.layer_type_list())


def test_arrays_are_the_nets_own(net: caffe.Net, random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 4, 4))
    net.blobs["x"].data[...] = x
    before = net.forward()["p"].copy()
    assert before.sum(1) == pytest.approx([1, 1], rel=1e-6)
    net.params["f"][0].data[...] = 0
    net.params["f"][1].data[...] = 0
    np.testing.assert_allclose(net.forward(x=x)["p"], 1 / 6, rtol=1e-6)
    assert not np.allclose(before, 1 / 6)


def test_parts_of_a_net(net: caffe.Net, random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 4, 4))
    whole = net.forward(blobs=["f"], x=x)
    assert set(whole) == {"p", "f"}
    f = whole["f"].copy()
    assert set(net.forward(end="r", x=x)) == {"c"}
    net.blobs["c"].data[...] *= 2
    twice = net.forward(start="f")["p"]
    bias = net.params["f"][1].data
    scores = 2 * (f - bias) + bias
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(twice, expected, rtol=1e-5)


def test_parts_of_a_backward_pass(net: caffe.Net, random: np.random.Generator) -> None:
    net.forward(x=random.standard_normal((2, 3, 4, 4)))
    dp = random.standard_normal((2, 6))
    whole = net.backward(diffs=["f"], p=dp)
    assert set(whole) == {"x", "f"}
    dx, df = whole["x"].copy(), whole["f"].copy()
    p = net.blobs["p"].data
    np.testing.assert_allclose(df, p * (dp - (dp * p).sum(1, keepdims=True)), rtol=1e-4, atol=1e-6)
    net.blobs["x"].diff.fill(np.nan)
    net.clear_param_diffs()
    net.blobs["f"].diff[...] = 2 * df
    assert set(net.backward(start="f", end="f")) == {"c"}
    assert np.isnan(net.blobs["x"].diff).all()
    assert net.params["f"][0].diff.any()
    assert not net.params["c"][0].diff.any()
    net.backward(start="r")
    np.testing.assert_allclose(net.blobs["x"].diff, 2 * dx, rtol=1e-4, atol=1e-6)


def test_batches(net: caffe.Net, random: np.random.Generator) -> None:
    x = random.standard_normal((5, 3, 4, 4)).astype(np.float32)
    found = net.forward_all(blobs=["f"], x=x)
    assert found["p"].shape == found["f"].shape == (5, 6)
    dp = random.standard_normal((5, 6)).astype(np.float32)
    values, gradients = net.forward_backward_all(diffs=["c"], x=x, p=dp)
    np.testing.assert_array_equal(values["p"], found["p"])
    net.blobs["x"].reshape(5, 3, 4, 4)
    net.reshape()
    assert net.blobs["p"].data.shape == (5, 6)
    np.testing.assert_allclose(net.forward(x=x)["p"], found["p"], rtol=1e-5)
    np.testing.assert_allclose(net.backward(p=dp)["x"], gradients["x"], rtol=1e-4, atol=1e-6)
    assert gradients["c"].shape == (5, 5, 2, 2)


def test_weights_go_from_net_to_net(net: caffe.Net, tmp_path: Path, random: np.random.Generator) -> None:
    x = random.standard_normal((2, 3, 4, 4))
    expected = net.forward(x=x)["p"].copy()
    (tmp_path / "net.prototxt").write_text(LAYERS)
    files = [tmp_path / "w.caffemodel", tmp_path / "w.npz"]
    for file in files:
        net.save(file)
        other = caffe.Net(str(tmp_path / "net.prototxt"), str(file), caffe.TEST)
        np.testing.assert_array_equal(other.forward(x=x)["p"], expected)
    other = caffe.Net(LAYERS, caffe.TEST)
    assert not np.array_equal(other.forward(x=x)["p"], expected)
    other.copy_from(files[0])
    np.testing.assert_array_equal(other.forward(x=x)["p"], expected)
    third = caffe.Net(LAYERS, phase=caffe.TRAIN)
    third.share_with(net)
    net.params["c"][1].data[...] = 7
    np.testing.assert_array_equal(third.params["c"][1].data, 7)


def test_net_surgery(net: caffe.Net, random: np.random.Generator) -> None:
    """A fully connected layer becomes a convolution, so that the net gives a map of scores for a larger image."""
    text = LAYERS.replace('name: "f" type: "InnerProduct"', 'name: "f-conv" type: "Convolution"')
    text = text.replace(
        "inner_product_param {\n      num_output: 6",
        "convolution_param {\n      num_output: 6 kernel_size: 2",
    )
    conv = caffe.Net(text, caffe.TEST)
    conv.params["c"][0].data[...] = net.params["c"][0].data
    conv.params["c"][1].data[...] = net.params["c"][1].data
    conv.params["f-conv"][0].data.flat = net.params["f"][0].data.flat
    conv.params["f-conv"][1].data[...] = net.params["f"][1].data
    image = random.standard_normal((1, 3, 7, 6))
    conv.blobs["x"].reshape(1, 3, 7, 6)
    scores = conv.forward(x=image)["p"]
    assert scores.shape == (1, 6, 4, 3)
    windows = np.stack([image[0, :, i : i + 4, j : j + 4] for i in range(4) for j in range(3)])
    expected = net.forward_all(x=windows)["p"]
    np.testing.assert_allclose(scores[0].reshape(6, 12).T, expected, rtol=1e-4, atol=1e-6)


# ---- solvers

SOLVER = """
    base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 max_iter: 6 display: 0 test_iter: 1 test_interval: 100
    type: "Nesterov" snapshot_prefix: "PREFIX"
    net_param {
      layer { name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param {
        shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 } data_filler { type: "constant" value: 1 } } }
      layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param {
        num_output: 2 weight_filler { type: "gaussian" } } }
      layer { name: "l" type: "EuclideanLoss" bottom: "f" bottom: "t" top: "l" }
    }
"""


@pytest.mark.parametrize(
    ("kind", "type_name"),
    [
        (caffe.get_solver, "Nesterov"),
        (caffe.SGDSolver, "SGD"),
        (caffe.AdamSolver, "Adam"),
        (caffe.AdaGradSolver, "AdaGrad"),
        (caffe.AdaDeltaSolver, "AdaDelta"),
        (caffe.RMSPropSolver, "RMSProp"),
        (caffe.NesterovSolver, "Nesterov"),
    ],
)
def test_solvers_have_their_types(kind: type[caffe.SGDSolver], type_name: str, tmp_path: Path) -> None:
    text = SOLVER.replace("PREFIX", str(tmp_path / "s"))
    if type_name in ("AdaGrad", "RMSProp"):
        text = text.replace("momentum: 0.9", "")
    assert kind(text).param.type == type_name


def test_a_solver_step_by_step(tmp_path: Path) -> None:
    file = tmp_path / "solver.prototxt"
    file.write_text(SOLVER.replace("PREFIX", str(tmp_path / "s")))
    caffe.set_random_seed(9)
    solver = caffe.get_solver(str(file))
    losses = []
    for _ in range(4):
        solver.step(1)
        losses.append(float(solver.net.blobs["l"].data))
    assert solver.iter == 4
    assert losses[-1] < losses[0]
    assert solver.net.params["f"][0].diff.any()
    state = solver.snapshot()
    weights = solver.net.params["f"][0].data.copy()
    np.testing.assert_array_equal(solver.test_nets[0].params["f"][0].data, weights)
    solver.solve()
    assert solver.iter == 6
    again = caffe.get_solver(str(file))
    again.restore(state)
    assert again.iter == 4
    np.testing.assert_array_equal(again.net.params["f"][0].data, weights)
    again.solve()
    np.testing.assert_array_equal(again.net.params["f"][0].data, solver.net.params["f"][0].data)


# ---- the process, and errors


def test_layers_in_python_are_allowed_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import caffe\n"
        "class Twice(caffe.Layer):\n"
        "    def reshape(self, bottom, top):\n"
        "        top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top):\n"
        "        top[0].data[...] = 2 * bottom[0].data\n"
    )
    text = (
        LAYERS
        + 'layer { name: "t" type: "Python" bottom: "p" top: "t" python_param { module: "mine" layer: "Twice" } }'
    )
    with pytest.raises(NotSupported, match="unless you allow the folder"):
        caffe.Net(text, caffe.TEST)
    caffe.allow_python_layers(tmp_path)
    try:
        found = caffe.Net(text, caffe.TEST).forward(blobs=["p"])
        np.testing.assert_array_equal(found["t"], 2 * found["p"])
    finally:
        caffe.allow_python_layers(None)
    with pytest.raises(InvalidArgument, match="is no folder"):
        caffe.allow_python_layers(tmp_path / "absent")


def test_seeds(net: caffe.Net) -> None:
    caffe.set_random_seed(4)
    again, other = caffe.Net(LAYERS, caffe.TEST), caffe.Net(LAYERS, caffe.TEST)
    np.testing.assert_array_equal(again.params["c"][0].data, net.params["c"][0].data)
    assert (other.params["c"][0].data != net.params["c"][0].data).any()


def test_modes() -> None:
    assert mode.device() is None
    try:
        caffe.set_mode_gpu()
        assert mode.device() == "cuda:0"
        caffe.set_device(3)
        assert mode.device() == "cuda:3"
        with pytest.raises(InvalidArgument, match="device -1"):
            caffe.set_device(-1)
        caffe.set_mode_cpu()
        assert mode.device() == "cpu"
        assert caffe.Net(LAYERS, caffe.TEST).core.device is None
    finally:
        mode._STATE.is_gpu, mode._STATE.device = None, 0


def test_what_a_net_refuses(net: caffe.Net) -> None:
    for call, match in (
        (lambda: net.forward(start="z"), "there is no layer 'z': there are x, c, r"),
        (lambda: net.forward(blobs=["z"]), "there is no blob 'z'"),
        (lambda: net.forward(y=1), "the inputs given are y, and the net has x"),
        (lambda: net.backward(f=1), "outputs are p"),
        (lambda: net.forward_all(), "at least one"),
        (lambda: caffe.Net(LAYERS), "the phase is None"),
        (lambda: caffe.Net(LAYERS, None, 3), "the phase is 3"),
        (lambda: caffe.Net(LAYERS, 1, 2, 3), "not 4 arguments"),
        (lambda: net.blobs["x"].reshape(-1, 2), "extents are 0 or more"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            call()
    fed = caffe.Net('layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 1 } } }', 0)
    with pytest.raises(InvalidArgument, match="the inputs given are d, and the net has no inputs"):
        fed.forward(d=np.zeros(1))
    with pytest.raises(InvalidShape, match=r"input 'x' has shape \(2, 3, 4, 4\), these values \(1,\)"):
        net.forward(x=np.zeros(1))
    net.core.limit_memory("1 GiB", is_trained=False)
    with pytest.raises(NotSupported, match="runs whole"):
        net.forward(end="c")
    net.core.limit_memory(None)
    assert LENET
