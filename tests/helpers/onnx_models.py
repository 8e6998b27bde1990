"""One node of ONNX as a model, and what onnxruntime makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
VERSION = 21


def one_node(
    operator: str,
    inputs: Sequence[Array | None],
    outputs: int = 1,
    version: int = VERSION,
    domain: str = "",
    omitted: Sequence[int] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of a single node; None stands for an input that is left out, `omitted` are outputs that are."""
    names = ["" if value is None else f"in{place}" for place, value in enumerate(inputs)]
    results = ["" if n in omitted else f"out{n}" for n in range(outputs)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    ins = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, inputs, strict=True)
        if value is not None
    ]
    outs = [onnx.ValueInfoProto(name=name) for name in results if name]
    opsets = [helper.make_opsetid("", version)]
    if domain:
        opsets.append(helper.make_opsetid(domain, {"ai.onnx.ml": 4}.get(domain, 1)))
    return helper.make_model(helper.make_graph([node], "one", ins, outs), opset_imports=opsets, ir_version=10)


def feeds(inputs: Sequence[Array | None]) -> dict[str, Array]:
    """The inputs of `one_node` by their names."""
    return {f"in{place}": np.asarray(value) for place, value in enumerate(inputs) if value is not None}


def with_constants(model: onnx.ModelProto, given: dict[str, Array]) -> onnx.ModelProto:
    """The model with what is given as constants, no longer inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    left = [value for value in fixed.graph.input if value.name not in given]
    del fixed.graph.input[:]
    fixed.graph.input.extend(left)
    fixed.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in given.items())
    return fixed


def by_onnxruntime(model: onnx.ModelProto, given: dict[str, Array]) -> list[Any]:
    """The outputs of onnxruntime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Any] = session.run(None, given)
    return found
