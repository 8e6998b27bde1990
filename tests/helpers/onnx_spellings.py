"""Models of a few nodes, held against these nodes run one by one and against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitdnn
from jitdnn.frameworks.onnx.graph import Graph
from jitdnn.frameworks.onnx.operators import OPERATORS

FLOAT = TensorProto.FLOAT


def filled(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes: list[Any], shape: list[int], constants: dict[str, Any], outputs: list[str]) -> Any:
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op: str, reads: str, makes: str, **attributes: Any) -> Any:
    return helper.make_node(op, reads.split(), makes.split(), name=makes, **attributes)


def check(model: Any, x: Any) -> list[str]:
    """Hold a model against its nodes and onnxruntime; what its kernels compute."""
    prepared = jitdnn.onnx.prepare(model, threads=1)
    results = prepared.run([x])
    nodes = Graph.read(model.graph, {"": 17}, OPERATORS).run(x)
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    options = runtime.SessionOptions()
    # without its passes, one of which takes x^4 for x^2
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    theirs = runtime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    for one, other, third in zip(results, nodes, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(one, third, rtol=2e-5, atol=2e-6)
    return [event["cat"] for event in prepared.profile([x])]
