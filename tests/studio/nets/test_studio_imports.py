"""Nets from elsewhere: what they answer is what PyTorch and onnxruntime answer, and what is not taken over is said."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from jitdnn.caffe import Net, NetParameter, NetState, parse
from jitdnn.errors import InvalidArgument
from jitdnn.studio import nets
from jitdnn.studio.nets.imports import import_code, import_file
from jitdnn.studio.nets.weights import weights_file

DIGITS = {
    "id": 1, "name": "digits", "task": "classification", "shape": [1, 28, 28], "train": 40, "val": 10, "test": 0,
    "classes": [str(digit) for digit in range(10)],
}  # fmt: skip


def answers(told: dict[str, Any], home: Path, x: Any) -> Any:
    """What the imported net makes of a batch."""
    parameter = parse(told["text"], NetParameter)
    parameter.layer[0].input_param.shape[0].dim[0] = len(x)
    net = Net(parameter, NetState(phase="TEST"), seed=0)
    net.load_weights(weights_file(home, told["weights"]))
    net.forward(data=x)
    return net.blobs[parameter.layer[-1].top[0]].data.copy()


def model() -> Any:
    """A net of PyTorch with branches, every kind of step that images have, and statistics that are not 0 and 1."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Small(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 2), bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.two = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
            self.slopes = nn.PReLU(16)
            self.up = nn.ConvTranspose2d(16, 6, 3, stride=2, padding=1)
            self.last = nn.Linear(6 * 5 * 6, 7)
            self.drop = nn.Dropout(0.3)

        def forward(self, x):  # type: ignore[no-untyped-def]
            x = nn.functional.leaky_relu(self.norm(self.one(x)), 0.2)
            y = nn.functional.elu(self.two(x)) * 0.5 + x
            z = self.slopes(torch.cat([x - y, torch.sigmoid(y) * torch.tanh(x)], 1))
            z = nn.functional.max_pool2d(nn.functional.relu6(self.up(z)), 3, 2, 1)
            z = nn.functional.avg_pool2d(z, 2)
            return torch.softmax(self.last(self.drop(torch.flatten(z, 1))), 1)

    torch.manual_seed(0)
    made = Small()
    made.norm.running_mean.uniform_(-1, 1)
    made.norm.running_var.uniform_(0.5, 2)
    return made.eval()


IMAGES = np.random.default_rng(1).standard_normal((4, 3, 21, 12)).astype(np.float32)


def program(module: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (torch.from_numpy(IMAGES[:1]),)), file)
    return file.getvalue()


def test_a_program_of_torch_answers_alike(tmp_path: Path) -> None:
    module = model()
    import torch

    told = import_file(program(module), "small.pt2", tmp_path)
    assert told["ok"], told["report"]
    assert told["weights"] == "file:small.npz"
    wanted = module(torch.from_numpy(IMAGES)).detach().numpy()
    np.testing.assert_allclose(answers(told, tmp_path, IMAGES), wanted, rtol=2e-4, atol=1e-5)
    assert any(
        row["what"] == "conv2d.default" and row["became"].startswith("Convolution") for row in told["report"]
    )


def test_a_model_of_onnx_answers_alike(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    helper, random = onnx.helper, np.random.default_rng(2)
    held = {
        "w1": random.standard_normal((8, 3, 3, 3)), "b1": random.standard_normal(8), "scale": random.uniform(0.5, 2, 8),
        "shift": random.standard_normal(8), "mean": random.standard_normal(8), "var": random.uniform(0.5, 2, 8),
        "each": random.standard_normal((1, 8, 1, 1)), "half": np.array(0.5), "w2": random.standard_normal((80, 6)) / 9,
        "b2": random.standard_normal(6), "w3": random.standard_normal((5, 6)), "b3": random.standard_normal(5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Div", ["x", "half"], ["x0"]),
        helper.make_node("Conv", ["x0", "w1", "b1"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], name="first"),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], epsilon=1e-3),
        helper.make_node("Clip", ["n", "low", "high"], ["r"]),
        helper.make_node("Mul", ["r", "each"], ["m"]),
        helper.make_node("LRN", ["m"], ["l"], size=3, alpha=0.3, beta=0.6, bias=1.5),
        helper.make_node("MaxPool", ["l"], ["p"], kernel_shape=[2, 2], strides=[1, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("AveragePool", ["p"], ["a"], kernel_shape=[3, 3], strides=[3, 1], pads=[1, 1, 1, 1],
                         count_include_pad=1),
        helper.make_node("Flatten", ["a"], ["f0"]),
        helper.make_node("Reshape", ["f0", "rows"], ["f"]),
        helper.make_node("MatMul", ["f", "w2"], ["d0"]),
        helper.make_node("Add", ["d0", "b2"], ["d"]),
        helper.make_node("Softplus", ["d"], ["s"]),
        helper.make_node("Gemm", ["s", "w3", "b3"], ["y0"], transB=1, alpha=0.5, beta=2.0),
        helper.make_node("Softmax", ["y0"], ["y"]),
    ]  # fmt: skip
    arrays = [onnx.numpy_helper.from_array(v.astype(np.float32), k) for k, v in held.items()]
    arrays += [onnx.numpy_helper.from_array(np.array(v, np.float32), k) for k, v in (("low", 0), ("high", 6))]
    arrays.append(onnx.numpy_helper.from_array(np.array([0, -1]), "rows"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes[:7] + nodes[8:], "small", [value("x", 1, ["N", 3, 21, 12])], [value("y", 1, ["N", 5])], arrays
    )
    # the flattened length is what the shapes say
    content = _with_rows(onnx, helper, graph, random)
    told = import_file(content, "small.onnx", tmp_path)
    assert told["ok"], told["report"]
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        answers(told, tmp_path, IMAGES), session.run(None, {"x": IMAGES})[0], rtol=1e-4, atol=1e-5
    )


def _with_rows(onnx: Any, helper: Any, graph: Any, random: Any) -> bytes:
    """The model with as many rows in its first matrix as the flattened images have."""
    opset = [helper.make_opsetid("", 18)]
    made = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opset, ir_version=8))
    shape = next(each for each in made.graph.value_info if each.name == "a").type.tensor_type.shape
    count = int(np.prod([dim.dim_value for dim in shape.dim[1:]]))
    for tensor in graph.initializer:
        if tensor.name == "w2":
            matrix = random.standard_normal((count, 6)).astype(np.float32) / count**0.5
            tensor.CopyFrom(onnx.numpy_helper.from_array(matrix, "w2"))
    content: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return content


KERAS = """
model = keras.Sequential([
    layers.Input((28, 28, 1)),
    layers.Conv2D(20, 5, activation="relu"),
    layers.MaxPooling2D(),
    layers.Flatten(),
    layers.Dense(2 * 50, activation="relu", kernel_regularizer=l2(1e-4)),
    layers.Dropout(0.25),
    layers.Dense(10, activation="softmax"),
])
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
"""
TORCH = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8 * 14 * 14, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        y = self.body(x)
        x = F.max_pool2d(x + y, 2)
        x = x.view(-1, 8 * 14 * 14)
        return F.log_softmax(self.fc(x), dim=1)
"""
FUNCTIONAL = """
inputs = keras.Input(shape=(28, 28, 1))
a = Conv2D(8, 3, padding="same", activation="relu")(inputs)
b = Conv2D(4, 1)(a)
c = Conv2D(4, 3, padding="same")(a)
x = Concatenate()([b, c])
x = Add()([x, a])
x = GlobalAveragePooling2D()(x)
outputs = Dense(10)(x)
model = keras.Model(inputs, outputs)
"""


@pytest.mark.parametrize("text", [KERAS, TORCH, FUNCTIONAL])
def test_code_becomes_a_net_that_trains(text: str, tmp_path: Path) -> None:
    told = import_code(text)
    assert told["ok"], told["report"]
    assert told["weights"] == ""
    checked = nets.check(told["text"], {}, DIGITS, tmp_path)
    assert checked["ok"], checked
    assert [layer["shape"] for layer in checked["layers"] if layer["type"] == "InnerProduct"][-1][-1] == 10


def test_branches_of_code_are_branches_of_the_net() -> None:
    layers = {each.name: each for each in parse(import_code(TORCH)["text"], NetParameter).layer}
    (add,) = [each for each in layers.values() if each.type == "Eltwise"]
    assert list(add.bottom) == ["relu", "relu_2"]
    found = {each.type: each for each in parse(import_code(FUNCTIONAL)["text"], NetParameter).layer}
    assert list(found["Concat"].bottom) == ["conv_2", "conv_3"]
    assert list(found["Eltwise"].bottom) == ["concatenate", "relu"]


def test_what_is_not_taken_over_is_said_with_its_line() -> None:
    told = import_code(
        "m = Sequential([\n  Conv2D(4, 3),\n  Lambda(f),\n  Dense(units()),\n  Dense(3, spin=1)])\n"
    )
    assert not told["ok"]
    assert [row["is_ok"] for row in told["report"]] == [True, False, False, False]
    assert [row["where"] for row in told["report"]] == ["line 2", "line 3", "line 4", "line 5"]
    assert "would have to be run" in told["report"][2]["became"]
    assert "spin" in told["report"][3]["became"]
    assert told["text"].count("# not taken over") == 3
    loop = import_code("m = Sequential()\nfor k in range(3):\n    m.add(Dense(k))\n")
    assert "a loop would have to be run" in loop["report"][0]["became"]
    assert not import_code("m = Sequential([MaxPool2D(2, padding='same')])")["ok"]


def test_code_is_never_run(tmp_path: Path) -> None:
    file = tmp_path / "was run"
    import_code(
        f"m = Sequential([Dense(10)])\nopen({str(file)!r}, 'w')\nimport os\nos.mkdir({str(file)!r})\n"
    )
    told = import_code(f"m = Sequential([Dense(__import__('os').mkdir({str(file)!r}))])")
    assert not told["ok"]
    assert not file.exists()


@pytest.mark.parametrize(
    "name", ["net.pth", "net.pkl", "net.bin", "net"],
)  # fmt: skip
def test_files_that_are_not_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is not read"):
        import_file(b"", name, tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    for name in ("a.onnx", "a.pt2", "a.py"):
        for content in (b"", b"no file", b"\x08\x07" * 40, b"PK\x03\x04" + bytes(80)):
            with pytest.raises(InvalidArgument):
                import_file(content, name, tmp_path)
    assert not list(tmp_path.rglob("*"))


def test_a_program_with_pickles_or_too_few_bytes_is_refused(tmp_path: Path) -> None:
    content = program(model())

    def changed(change: Any) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
            for member in old.namelist():
                new.writestr(member, change(member, old.read(member)))
        return file.getvalue()

    def pickled(member: str, data: bytes) -> bytes:
        if not member.endswith("weights_config.json"):
            return data
        config = json.loads(data)
        next(iter(config["config"].values()))["use_pickle"] = True
        return json.dumps(config).encode()

    with pytest.raises(InvalidArgument, match="pickle"):
        import_file(changed(pickled), "a.pt2", tmp_path)
    with pytest.raises(InvalidArgument, match="numbers"):
        import_file(changed(lambda m, d: d[:4] if "/weight_" in m else d), "a.pt2", tmp_path)
    with pytest.raises(InvalidArgument, match=r"no program|has no"):
        import_file(changed(lambda m, d: b"{}" if m.endswith("model.json") else d), "a.pt2", tmp_path)


def test_operators_without_a_layer_are_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Odd(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x):  # type: ignore[no-untyped-def]
            return torch.relu(torch.sort(x)[0])

    told = import_file(program(Odd()), "odd.pt2", tmp_path)
    assert not told["ok"]
    assert told["weights"] == ""
    assert "sort" in told["report"][0]["what"]
    assert "not taken over" in told["report"][-1]["became"]


@given(
    text=st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                *"()[]=,.\n x1",
                "Sequential",
                "Dense",
                "add",
                "Conv2D",
                "class A:\n ",
                "def forward(self, x):\n ",
                "return ",
                "for x in y:\n ",
            ]
        )
    ).map("".join)
)
@settings(max_examples=examples(60), deadline=None)
def test_any_text_is_a_net_or_refused(text: str) -> None:
    try:
        told = import_code(text)
    except InvalidArgument:
        return
    parse(told["text"], NetParameter)
