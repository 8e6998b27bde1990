"""Quantized models as onnxruntime makes them (QDQ, QOperator, dynamic), against onnxruntime: bytes are multiplied."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from jitdnn.frameworks.onnx import prepare
from jitdnn.rtcg.isa import isa

Array = np.ndarray[Any, Any]


class Net:
    """Nodes and weights of a model that grows at its end."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"n_{name}", **attributes))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        values = (scale * self.rng.standard_normal(shape)).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, x: str, depth: int, results: int, taps: int, groups: int = 1, **how: Any) -> str:
        w = self.weight(
            results, depth // groups, taps, taps, scale=(2 / (depth // groups * taps * taps)) ** 0.5
        )
        pads = how.pop("pads", [taps // 2] * 4)
        return self.add("Conv", x, w, self.weight(results, scale=0.3), pads=pads, group=groups, **how)

    def save(self, result: str, shape: tuple[int, ...], path: Path) -> None:
        values = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), (result, None))
        ]
        graph = helper.make_graph(self.nodes, "net", values[:1], values[1:], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)


def residual(net: Net) -> str:
    """A bottleneck, whose sum is of tensors with different scales, behind a stem with a maximum."""
    y = net.add("Relu", net.conv("x", 3, 10, 3, strides=[2, 2]))
    y = net.add("MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    z = net.add("Relu", net.conv(y, 10, 7, 1))
    z = net.add("Relu", net.conv(z, 7, 5, 3))
    z = net.conv(z, 5, 10, 1)
    return net.add("Relu", net.add("Add", z, y))


def inverted(net: Net) -> str:
    """Depthwise taps over a border that zero is not the byte 0 of, an activation between, dilation."""
    y = net.conv("x", 3, 12, 1)
    y = net.add("Mul", y, net.add("Sigmoid", y))
    y = net.conv(y, 12, 12, 3, groups=12)
    y = net.conv(y, 12, 9, 3, pads=[2, 1, 0, 3], dilations=[2, 1])
    return net.add("Concat", y, net.conv(y, 9, 4, 1), axis=1)


def classifier(net: Net) -> str:
    y = net.add("Relu", net.conv("x", 3, 11, 3))
    y = net.add("Flatten", net.add("GlobalAveragePool", y))
    y = net.add("Relu", net.add("Gemm", y, net.weight(13, 11), net.weight(13), transB=1))
    return net.add("Softmax", net.add("MatMul", y, net.weight(13, 6)))


NETS = {"residual": residual, "inverted": inverted, "classifier": classifier}


class Data(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, *samples: Array) -> None:
        self.left = list(samples)

    def get_next(self) -> dict[str, Array] | None:
        return {"x": self.left.pop()} if self.left else None


def saved(name: str, folder: Path, shape: tuple[int, ...]) -> Path:
    net = Net(sum(map(ord, name)))
    result = NETS[name](net)
    net.save(result, shape, folder / "real.onnx")
    return folder / "real.onnx"


def onnxruntimes(path: Path, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize("x_type", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", NETS)
def test_static(name: str, form: str, x_type: str, tmp_path: Path) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    shape = (2, 3, 15, 13)
    real, path = saved(name, tmp_path, shape), tmp_path / "bytes.onnx"
    rng = np.random.default_rng(1)
    samples = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    # with samples smaller than what comes later, some results saturate
    quantize_static(
        real, path, Data(*(0.7 * sample for sample in samples)), quant_format=QuantFormat[form],
        activation_type=QuantType[x_type], weight_type=QuantType.QInt8, per_channel=True,
        extra_options={"ActivationSymmetric": x_type == "QInt8"},
    )  # fmt: skip
    model = prepare(path)
    found, expected = model.run([samples[0]])[0], onnxruntimes(path, samples[0])
    # onnxruntime makes reals of bytes between all operators here: where a result is nearly a tie ours may round
    # the other way, which the layers behind it see as one step
    step = np.unique(np.abs(np.diff(np.unique(expected)))).max()
    apart = np.abs(found - expected)
    assert apart.max() <= 3.01 * step
    assert (apart > 1e-6).mean() < 0.02
    if isa().has_dot:
        assert set(multiplied(model, {"x": samples[0]})) == {
            "uint8 int8" if x_type == "QUInt8" else "int8 int8"
        }


def multiplied(model: Any, inputs: dict[str, Array]) -> list[str]:
    """The types of what products and convolutions of a prepared model multiply, all in one list of kernels."""
    prepared = model.engine(inputs).prepared(inputs)
    assert prepared.rest is None
    assert not prepared.calls
    products = [node for node in prepared.graph.nodes if node.op in ("conv", "matmul")]
    return [f"{node.inputs[0].dtype} {node.inputs[1].dtype}" for node in products]


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic(per_channel: bool, tmp_path: Path) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    net = Net(4)
    y = net.add("Relu", net.add("MatMul", "x", net.weight(21, 19)))
    net.save(
        net.add("Add", net.add("MatMul", y, net.weight(19, 5)), net.weight(5)),
        (3, 4, 21),
        tmp_path / "real.onnx",
    )
    path = tmp_path / "bytes.onnx"
    quantize_dynamic(tmp_path / "real.onnx", path, per_channel=per_channel, weight_type=QuantType.QInt8)
    x = np.random.default_rng(2).standard_normal((3, 4, 21)).astype(np.float32)
    model = prepare(path)
    found, expected = model.run([x])[0], onnxruntimes(path, x)
    if isa().has_dot:
        assert multiplied(model, {"x": x}) == ["uint8 int8"] * 2
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2 * np.abs(expected).max())
    assert (np.abs(found - expected) > 1e-5).mean() < 0.1


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (4, 1), (4, 4)])
def test_biases_of_products_along_either_axis(shape: tuple[int, ...], tmp_path: Path) -> None:
    """As many rows as columns: a bias of (4, 1) belongs to the rows."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 256, (4, 9), np.uint8), rng.integers(-128, 128, (9, 4), np.int8)
    c = rng.integers(-5000, 5000, shape, np.int32)
    constants = {
        "s": np.float32(0.02), "z": np.uint8(7), "b": b, "t": np.float32(0.01), "y": np.int8(0), "c": c,
    }  # fmt: skip
    node = helper.make_node("QGemm", ["a", "s", "z", "b", "t", "y", "c"], ["out"], domain="com.microsoft")
    graph = helper.make_graph(
        [node], "net", [helper.make_tensor_value_info("a", TensorProto.UINT8, [4, 9])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")
    found = prepare(tmp_path / "net.onnx").run([a])[0]
    expected = ((a.astype(int) - 7) @ b.astype(int) + c) * (np.float32(0.02) * np.float32(0.01))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
