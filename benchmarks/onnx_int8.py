"""Quantized models of ONNX (QDQ) against onnxruntime's int8 on the CPU: blocks of ResNet-50 and of MobileNet v2.

    python benchmarks/onnx_int8.py --threads 1

Both models are made here with random weights and quantized by onnxruntime.quantization: activations uint8 with a zero
point, weights int8 for each channel. Both sides run in turns in one process, and the least time of each counts;
results must agree within three steps of the last quantization first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import jitdnn as jd
from jitdnn.frameworks.onnx import prepare

Array = np.ndarray[Any, Any]


class _Net:
    """Nodes and weights of a model that grows at its end."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of a node's result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"n_{name}", **attributes))
        return name

    def conv(self, x: str, channels: int, results: int, taps: int, groups: int = 1, stride: int = 1) -> str:
        depth = channels // groups
        w = self._rng.standard_normal((results, depth, taps, taps)) * np.sqrt(2 / (depth * taps * taps))
        number = len(self.weights)
        self.weights.append(numpy_helper.from_array(w.astype(np.float32), f"w{number}"))
        self.weights.append(numpy_helper.from_array(np.zeros(results, np.float32), f"b{number}"))
        return self.add(
            "Conv", x, f"w{number}", f"b{number}", pads=[taps // 2] * 4, group=groups, strides=[stride] * 2
        )


def resnet(net: _Net) -> str:
    """Three bottlenecks of 256 channels."""
    x = "x"
    for _ in range(3):
        y = net.add("Relu", net.conv(x, 256, 64, 1))
        y = net.add("Relu", net.conv(y, 64, 64, 3))
        x = net.add("Relu", net.add("Add", net.conv(y, 64, 256, 1), x))
    return x


def mobilenet(net: _Net) -> str:
    """Three inverted residuals of 32 channels, six times as many inside."""
    x = "x"
    for _ in range(3):
        y = net.add("Relu", net.conv(x, 32, 192, 1))
        y = net.add("Relu", net.conv(y, 192, 192, 3, groups=192))
        x = net.add("Add", net.conv(y, 192, 32, 1), x)
    return x


MODELS: dict[str, tuple[Callable[[_Net], str], tuple[int, ...]]] = {
    "resnet50-like": (resnet, (1, 256, 28, 28)),
    "mobilenet-like": (mobilenet, (1, 32, 28, 28)),
}


class _Data(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, x: Array) -> None:
        self._left = [x]

    def get_next(self) -> dict[str, Array] | None:
        """The next inputs to calibrate with."""
        return {"x": self._left.pop()} if self._left else None


def quantized(name: str, folder: Path) -> tuple[Path, Array]:
    """The file of a quantized model, and what it is run with."""
    build, shape = MODELS[name]
    net = _Net()
    result = build(net)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", result)]
    graph = helper.make_graph(net.nodes, name, values[:1], values[1:], net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plain, path = folder / f"{name}.onnx", folder / f"{name}-int8.onnx"
    onnx.save(model, plain)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    quantize_static(
        plain, path, _Data(x), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=True,
    )  # fmt: skip
    return path, x


def main() -> None:
    """A line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=30)
    chosen = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = chosen.threads
    with tempfile.TemporaryDirectory() as folder, jd.settings(threads=chosen.threads):
        for name in MODELS:
            path, x = quantized(name, Path(folder))
            theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            ours = prepare(path)
            sides = (lambda m=ours, v=x: m.run([v])[0], lambda m=theirs, v=x: m.run(None, {"x": v})[0])
            y, expected = (run() for run in sides)
            apart = float(np.abs(y - expected).max() / np.abs(expected).max())
            if apart > 3 / 128:
                raise SystemExit(f"{name}: results are {apart:.1e} of the largest apart")
            best = [float("inf")] * 2
            for _ in range(chosen.turns):
                for side, run in enumerate(sides):
                    begin = time.perf_counter()
                    run()
                    best[side] = min(best[side], time.perf_counter() - begin)
            sys.stdout.write(
                f"{name}: {best[0] * 1e3:.2f} ms, onnxruntime {best[1] * 1e3:.2f} ms: "
                f"{best[1] / best[0]:.2f} of its speed; {apart:.1e} of the largest apart\n"
            )


if __name__ == "__main__":
    main()
