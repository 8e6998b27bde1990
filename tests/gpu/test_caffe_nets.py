"""Caffe's nets with their blobs on a GPU: the results are the processor's, and nothing moves that need not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.caffe import Net, Solver, load_net, load_solver
from jitdnn.caffe.events import Iterated
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.tensor import DeviceArray
from lone_group import LoneGroup

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
SOLVER = (
    'base_lr: 0.05 lr_policy: "inv" gamma: 0.1 power: 0.75 momentum: 0.9 weight_decay: 0.01 max_iter: 9 random_seed: 3 '
    "snapshot_after_train: false "
)


@pytest.fixture
def name(device: Any) -> str:
    target, index = device.device_id
    return f"{target}:{index}"


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


@pytest.mark.parametrize("text", [LENET, RESIDUAL, HOSTED], ids=["lenet", "residual", "hosted"])
def test_passes_are_those_of_the_processor(text: str, name: str) -> None:
    cpu, gpu = pair(text, name)
    for _ in range(2):
        for net in (cpu, gpu):
            net.clear_gradients()
            net.forward()
            net.backward()
        assert gpu.loss == pytest.approx(cpu.loss, rel=1e-5)
        assert_equal(cpu, gpu)
    for one, two in zip(cpu.layers, gpu.layers, strict=True):  # statistics of BatchNorm
        for weight, other in zip(one.weights, two.weights, strict=True):
            close(other.read(), weight.read(), one.name)


@pytest.mark.parametrize(
    ("text", "more"),
    [(LENET, ""), (RESIDUAL, "iter_size: 2 clip_gradients: 0.5"), (LENET, 'type: "Adam" momentum2: 0.9')],
    ids=["lenet", "residual, several batches", "adam"],
)
def test_training_is_that_of_the_processor(text: str, more: str, name: str) -> None:
    solvers = [
        load_solver(f"net_param {{ {text} }} {SOLVER} {more}", device=where) for where in ("cpu", name)
    ]
    for solver in solvers:
        solver.step(3)
    for one, two in zip(solvers[0].net.parameters, solvers[1].net.parameters, strict=True):
        largest = np.abs(one.blob.data).max()
        np.testing.assert_allclose(
            two.blob.data, one.blob.data, rtol=0, atol=1e-4 * largest, err_msg=one.name
        )
    for key, history in solvers[0].method.history.items():
        largest = np.abs(history).max(initial=1e-3)
        np.testing.assert_allclose(solvers[1].method.history[key], history, rtol=0, atol=1e-3 * largest)


@pytest.mark.parametrize("text", [LENET, RESIDUAL, HOSTED], ids=["lenet", "residual", "hosted"])
def test_blobs_that_share_memory_give_the_same(text: str, name: str) -> None:
    solvers = [
        load_solver(f"net_param {{ {text} }} {SOLVER}", device=name, keep_blobs=keep)
        for keep in (True, False)
    ]
    for solver in solvers:
        solver.step(4)
    for one, two in zip(*(solver.net.parameters for solver in solvers), strict=True):
        np.testing.assert_array_equal(two.blob.data, one.blob.data, err_msg=one.name)
    shared = solvers[1].net.shared
    assert shared is not None
    assert shared.bytes > 0
    assert shared.refusal is None


def test_blobs_stay_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = load_solver(f"net_param {{ {LENET} }} {SOLVER}", device=name, keep_blobs=True)
    solver.step(2)
    copied: list[int] = []
    device = solver.net.device
    assert device is not None
    download = type(device).download

    def counted(self: Any, array: DeviceArray, values: Any) -> None:
        copied.append(values.nbytes)
        download(self, array, values)

    monkeypatch.setattr(type(device), "download", counted)
    solver.step(3)
    assert copied == []
    assert isinstance(solver.net.blobs["conv1"].values, DeviceArray)
    assert solver.net.blobs["conv1"].read().shape == (4, 8, 12, 11)
    assert copied == [4 * 4 * 8 * 12 * 11]


def test_what_the_host_writes_goes_up(name: str) -> None:
    cpu, gpu = pair(LENET, name)
    for net in (cpu, gpu):
        net.forward()
        net.weights["conv1"][0].data[0] = 1
        net.weights["ip2"][1].data[...] = [1, 2, 3, 4, 5]
        net.clear_gradients()
        net.forward()
        net.blobs["ip2"].data[...] *= 2
        net.backward()
    assert_equal(cpu, gpu)


def test_a_layer_on_the_host_is_told_and_computes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    text = LENET + layer("top", "ArgMax", "ip2", rest="argmax_param { top_k: 2 }")
    cpu, gpu = pair(text, name)
    with jd.settings(log="warning"):
        for net in (cpu, gpu):
            net.clear_gradients()
            net.forward()
            net.backward()
    assert_equal(cpu, gpu)
    assert any("'top' (ArgMax) has no kernels for GPUs" in one.getMessage() for one in caplog.records)


def test_weights_and_snapshots_are_exchanged(name: str, tmp_path: Path) -> None:
    text = f"net_param {{ {LENET} }} {SOLVER} snapshot_prefix: '{tmp_path / 's'}'"
    gpu: Solver = load_solver(text, device=name)
    gpu.step(2)
    path = gpu.snapshot()
    gpu.step(2)
    for where in ("cpu", name):
        other = load_solver(text, device=where)
        other.restore(path)
        other.step(2)
        for one, two in zip(gpu.net.parameters, other.net.parameters, strict=True):
            largest = np.abs(one.blob.data).max()
            np.testing.assert_allclose(two.blob.data, one.blob.data, rtol=0, atol=1e-4 * largest)


def test_test_nets_share_the_weights(name: str) -> None:
    text = f"net_param {{ {LENET} }} {SOLVER} test_iter: 1 test_interval: 5 test_initialization: false"
    solver = load_solver(text, device=name)
    solver.step(2)
    loss = solver.test(0).outputs
    weight = solver.net.weights["conv1"][0]
    assert solver.test_nets[0].weights["conv1"][0].values.pointer == weight.values.pointer
    assert all(np.isfinite(output.value) for output in loss)


def test_graphs_and_single_calls_give_the_same(name: str) -> None:
    """Dropout and the rate of learning change from one launch to the next."""
    if not name.startswith("cuda"):
        pytest.skip("graphs are there for CUDA")
    found = []
    for graph in (True, False):
        solver = load_solver(f"net_param {{ {LENET} }} {SOLVER}", device=name, graph=graph)
        solver.step(6)
        found.append([parameter.blob.data.copy() for parameter in solver.net.parameters])
        assert np.isfinite(float(solver._losses[-1]))
        assert (solver._graph is not None and solver._graph.is_captured) == graph
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_limit_on_memory_is_for_the_processor(name: str) -> None:
    with pytest.raises(NotSupported, match="a limit on memory for a net on"):
        load_net(LENET, "TRAIN", device=name).limit_memory("1 GiB")


def test_labels_are_checked_where_the_host_has_them(name: str) -> None:
    net = load_net(LENET.replace("value: 2 }", "value: 7 }"), "TRAIN", device=name)
    with pytest.raises(InvalidArgument, match="label 7 is outside of 0"):
        net.forward()


X = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 dim: 5 dim: 4 } } }'
T = X.replace('"x"', '"t"').replace('"in"', '"targets"')
LABEL = 'layer { name: "labels" type: "Input" top: "label" input_param { shape { dim: 2 } } }'
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
    "MultinomialLogisticLoss": one("MultinomialLogisticLoss", bottom="x label", more=LABEL),
    "MVN": one("MVN"),
    "Normalize": one("Normalize", "norm_param { across_spatial: false channel_shared: false }"),
    "Permute": one("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"),
    "Power": one("Power", "power_param { scale: 2 shift: 1 }"),
    "PReLU": one("PReLU"),
    "Reduction": one("Reduction", "reduction_param { operation: SUMSQ axis: 1 }"),
    "ReLU6": one("ReLU6"),
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
FEW = ("ContrastiveLoss", "Embed", "Permute", "SPP")


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


# ---- blobs that lie channels last

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


@pytest.mark.parametrize(
    ("text", "shards_state"), [(LENET, True), (RESIDUAL, False)], ids=["lenet", "residual"]
)
def test_a_group_of_one_process_changes_nothing(text: str, shards_state: bool, name: str) -> None:
    def train(**options: Any) -> tuple[Solver, list[float]]:
        losses: list[float] = []
        made = load_solver(
            f"net_param {{ {text} }} {SOLVER} clip_gradients: 5",
            device=name,
            listener=lambda event: losses.append(float(event.loss)) if isinstance(event, Iterated) else None,
            **options,
        )
        made.step(3)
        return made, losses

    alone, expected = train()
    together, found = train(group=LoneGroup(), shards_state=shards_state)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for one, other in zip(alone.net.parameters, together.net.parameters, strict=True):
        close(other.blob.data, one.blob.data, one.name)
