"""`jitdnn.onnx`: models as functions, what is refused of their inputs, and what is told of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitdnn
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from jitdnn.frameworks.onnx.graph import Graph  # noqa: E402
from jitdnn.frameworks.onnx.operators import OPERATORS  # noqa: E402

Array = np.ndarray[Any, Any]
FLOAT = TensorProto.FLOAT


def filled(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(
    nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, int], constants: dict[str, Array]
) -> Any:
    graph = helper.make_graph(
        nodes, "test",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, [f"{name}{n}" for n in range(k)]) for name, k in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def net() -> Any:
    """Blocks of MobileNet's kind: convolution, normalization, hard-swish, squeeze and excite, a residual, a branch."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c0", "s", "b", "m", "v"], ["n0"]),
        node("Add", ["n0", "three"], ["a0"]), node("Clip", ["a0", "zero", "six"], ["l0"]),
        node("Mul", ["n0", "l0"], ["p0"]), node("Div", ["p0", "six"], ["h0"]),
        node("GlobalAveragePool", ["h0"], ["g"]), node("Conv", ["g", "w1"], ["e0"]), node("Relu", ["e0"], ["e1"]),
        node("Conv", ["e1", "w2"], ["e2"]), node("HardSigmoid", ["e2"], ["e3"]), node("Mul", ["h0", "e3"], ["q"]),
        node("Conv", ["q", "w3"], ["d"], pads=[1, 1, 1, 1], group=6), node("Add", ["d", "h0"], ["r"]),
        node("MaxPool", ["r"], ["k"], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
        node("Concat", ["k", "r", "q"], ["j"], axis=1), node("Shape", ["j"], ["shape"]),
        node("Slice", ["shape", "i0", "i1"], ["batch"]), node("Concat", ["batch", "rest"], ["flat"], axis=0),
        node("Reshape", ["j", "flat"], ["f"]), node("MatMul", ["f", "w4"], ["o"]),
        node("Softmax", ["o"], ["y"], axis=-1),
    ]  # fmt: skip
    constants = {
        "w0": filled(6, 3, 3, 3), "s": filled(6, seed=1), "b": filled(6, seed=2), "m": filled(6, seed=3),
        "v": np.abs(filled(6, seed=4)) + 0.1, "three": np.float32(3), "zero": np.float32(0), "six": np.float32(6),
        "w1": filled(2, 6, 1, 1, seed=5), "w2": filled(6, 2, 1, 1, seed=6), "w3": filled(6, 1, 3, 3, seed=7),
        "i0": np.array([0]), "i1": np.array([1]), "rest": np.array([-1]), "w4": 0.1 * filled(18 * 20, 5, seed=8),
    }  # fmt: skip
    return model_of(
        nodes, {"x": ["n", 3, 10, 8]}, {"y": 2, "r": 4}, {k: np.asarray(v) for k, v in constants.items()}
    )


def by_node(model: Any, inputs: list[Array]) -> tuple[Array, ...]:
    return Graph.read(model.graph, {"": 17}, OPERATORS).run(*inputs)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_net_gives_what_its_nodes_give(batch: int) -> None:
    model, x = net(), filled(batch, 3, 10, 8)
    prepared = jitdnn.onnx.prepare(model, threads=1)
    for _ in range(2):
        for one, other in zip(prepared.run([x]), by_node(model, [x]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_net_gives_what_onnxruntime_gives() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, x = net(), filled(2, 3, 10, 8)
    session = runtime.InferenceSession(model.SerializeToString())
    for one, other in zip(jitdnn.onnx.prepare(model).run([x]), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Softplus", "Identity", "HardSwish")


@settings(deadline=None, max_examples=8)
@given(st.data())
def test_graphs_give_what_their_nodes_give(data: Any) -> None:
    """Random graphs over images: convolutions, sums, products, activations, joins, transposes, reductions."""
    nodes: list[Any] = []
    constants: dict[str, Array] = {}
    images = ["x"]  # all of 4 channels of 5 x 6
    for number in range(data.draw(st.integers(1, 7))):
        one, other = data.draw(st.sampled_from(images)), data.draw(st.sampled_from(images))
        kind = data.draw(st.sampled_from(("conv", "unary", "Add", "Mul", "norm", "join", "turn", "mean")))
        y = f"t{number}"
        if kind == "conv":
            constants[f"w{number}"] = 0.3 * filled(4, 4, 3, 3, seed=number)
            nodes.append(helper.make_node("Conv", [one, f"w{number}"], [y], pads=[1, 1, 1, 1]))
        elif kind == "unary":
            nodes.append(helper.make_node(data.draw(st.sampled_from(UNARY)), [one], [y]))
        elif kind == "norm":
            for name, seed in (("s", 1), ("b", 2), ("m", 3)):
                constants[f"{name}{number}"] = filled(4, seed=seed + number)
            constants[f"v{number}"] = np.ones(4, np.float32)
            names = [one, *(f"{p}{number}" for p in "sbmv")]
            nodes.append(helper.make_node("BatchNormalization", names, [y]))
        elif kind == "join":
            constants[f"w{number}"] = 0.3 * filled(4, 8, 1, 1, seed=number)
            nodes.append(helper.make_node("Concat", [one, other], [f"j{number}"], axis=1))
            nodes.append(helper.make_node("Conv", [f"j{number}", f"w{number}"], [y]))
        elif kind == "turn":
            nodes.append(helper.make_node("Transpose", [one], [f"a{number}"], perm=[0, 2, 3, 1]))
            nodes.append(helper.make_node("Softmax", [f"a{number}"], [f"b{number}"], axis=-1))
            nodes.append(helper.make_node("Transpose", [f"b{number}"], [y], perm=[0, 3, 1, 2]))
        elif kind == "mean":
            nodes.append(helper.make_node("ReduceMean", [one], [f"a{number}"], axes=[2, 3], keepdims=1))
            nodes.append(helper.make_node("Mul", [other, f"a{number}"], [y]))
        else:
            nodes.append(helper.make_node(kind, [one, other], [y]))
        images.append(y)
    outputs = list(dict.fromkeys([images[-1], data.draw(st.sampled_from(images[1:]))]))
    model = model_of(nodes, {"x": [2, 4, 5, 6]}, dict.fromkeys(outputs, 4), constants)
    x = filled(2, 4, 5, 6, seed=11)
    for one_, other_ in zip(jitdnn.onnx.prepare(model).run([x]), by_node(model, [x]), strict=True):
        np.testing.assert_allclose(one_, other_, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(other_).max())))


def test_everything_is_fused_that_can_be() -> None:
    model, x = jitdnn.onnx.prepare(net(), threads=1), filled(1, 3, 10, 8)
    text = model.explain([x])
    assert "0 functions of the host" in text
    assert "Conv + BatchNormalization + " in text
    assert "estimated" in model.explain([x], measure=False)


def test_a_run_as_a_trace(tmp_path: Path) -> None:
    model, x = jitdnn.onnx.prepare(net()), filled(1, 3, 10, 8)
    events = model.profile({"x": x}, tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written["traceEvents"] == events
    assert all(event["dur"] >= 0 for event in events)
    with pytest.raises(InvalidArgument, match="cannot be written"):
        model.profile({"x": x}, tmp_path / "nowhere" / "trace.json")


def test_the_time_beside_kernels() -> None:
    """Some microseconds, and nothing of it is left in what the model gives."""
    model, x = jitdnn.onnx.prepare(net(), threads=1), filled(1, 3, 10, 8)
    before = model.run([x])
    assert model.host_time([x]) > 0
    for one, other in zip(model.run([x]), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert "beside them" in model.explain([x])


def test_a_model_from_a_file(tmp_path: Path) -> None:
    onnx.save(net(), tmp_path / "net.onnx")
    model = jitdnn.onnx.load(tmp_path / "net.onnx")
    assert (model.inputs, model.outputs) == (("x",), ("y", "r"))
    assert model.run([filled(1, 3, 10, 8)])[0].shape == (1, 5)


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ([filled(1, 3, 10, 8).astype(np.float64)], InvalidType, r"'x' is float64: the model takes float32"),
        ([filled(1, 4, 10, 8)], InvalidShape, r"shape \(1, 4, 10, 8\): the model takes \(n, 3, 10, 8\)"),
        ([filled(3, 10, 8)], InvalidShape, r"shape \(3, 10, 8\)"),
        ([], InvalidArgument, "0 inputs are given"),
        ([[[1.0, 2.0]]], InvalidType, "'x' is a sequence of arrays"),
        ([None], InvalidType, "'x' is None"),
        ({"z": filled(1)}, InvalidArgument, r"inputs missing: \['x'\], unknown: \['z'\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        jitdnn.onnx.prepare(net()).run(inputs)


def test_a_branch_is_chosen_by_the_value_of_an_input() -> None:
    """By a sub-plan of its own for each."""
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x", "k"], [f"{name}_y"])], name, [],
            [helper.make_tensor_value_info(f"{name}_y", FLOAT, [2, 3])],
        )
        for name, op in (("then", "Add"), ("other", "Mul"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Equal", ["rate", "limit"], ["is"]),
        helper.make_node("If", ["is"], ["y"], then_branch=branches["then"], else_branch=branches["other"]),
    ]
    graph = helper.make_graph(
        nodes, "test",
        [
            helper.make_tensor_value_info("x", FLOAT, [2, 3]),
            helper.make_tensor_value_info("rate", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, [2, 3])],
        [numpy_helper.from_array(np.array(16), "limit"), numpy_helper.from_array(np.float32([3]), "k")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model, x = jitdnn.onnx.prepare(made), filled(2, 3)
    for _ in range(2):
        np.testing.assert_allclose(model.run([x, np.array(16)])[0], x + 3, rtol=1e-6)
        np.testing.assert_allclose(model.run([x, np.array(8)])[0], x * 3, rtol=1e-6)
    assert "0 functions of the host" in model.explain([x, np.array(8)])


def test_text_of_numpy_is_text() -> None:
    node = helper.make_node("StringConcat", ["x", "x"], ["y"])
    info = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "xy"]
    graph = helper.make_graph([node], "one", info[:1], info[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model = jitdnn.onnx.prepare(made)
    for kind in ("U", object):
        text = np.array(["a", "b\u00e9"]).astype(kind)
        assert model.run([text])[0].tolist() == ["aa", "b\u00e9b\u00e9"]


class OnlyDlpack:
    """An array of a library that nobody knows."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_arrays_of_any_library_come_in() -> None:
    torch = pytest.importorskip("torch")
    node = helper.make_node("Neg", ["x"], ["y"])
    for kind, torch_type in ((FLOAT, torch.float32), (TensorProto.BFLOAT16, torch.bfloat16)):
        info = [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in "xy"]
        graph = helper.make_graph([node], "one", info[:1], info[1:])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model, x = jitdnn.onnx.prepare(made), torch.from_numpy(filled(2, 3)).to(torch_type)
        others = [OnlyDlpack(x)] if kind == FLOAT else []  # NumPy reads no bfloat16 from DLPack
        for one in (x, x.clone().requires_grad_(), x.T.contiguous().T, *others):
            (y,) = model.run([one])
            np.testing.assert_array_equal(y.astype(np.float32), -x.float().numpy())
    x = filled(2, 3)
    with pytest.raises(InvalidType, match="masked"):
        jitdnn.onnx.prepare(net()).run([np.ma.masked_array(x, x > 0)])
