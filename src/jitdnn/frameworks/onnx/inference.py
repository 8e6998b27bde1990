"""Shapes and types of the results of a node, as onnx infers them from those of its operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from jitdnn.frameworks.onnx.einsum import is_equation
from jitdnn.graph.operand import Operand

if TYPE_CHECKING:
    from jitdnn.frameworks.onnx.graph import Step
    from jitdnn.graph.tracer import Kind

_MOST_DATA = 1024  # elements of an operand that may say a shape


def inferred(step: Step, values: Mapping[str, Any]) -> list[Kind | None] | None:
    """Kinds of all results of a step, None if onnx cannot tell one of them."""
    node = step.node
    domain = "" if node.domain == "ai.onnx" else node.domain
    if any(isinstance(value, type(step)) or hasattr(value, "steps") for value in step.attributes.values()):
        return None
    if node.op_type == "Einsum" and not is_equation(step.attributes.get("equation", "")):
        return None
    types, data = {}, {}
    try:
        schema = onnx.defs.get_schema(node.op_type, step.site.version, domain)
        for name in step.inputs:
            held = values.get(name) if name else None
            if held is None:
                continue
            if not isinstance(held, (Operand, np.ndarray)):
                return None
            types[name] = helper.make_tensor_type_proto(
                helper.np_dtype_to_tensor_dtype(held.dtype), list(held.shape)
            )
            if isinstance(held, np.ndarray) and held.size <= _MOST_DATA:
                data[name] = numpy_helper.from_array(held, name)
        versions = [helper.make_opsetid(domain, step.site.version)]
        found = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=versions)
    except Exception:  # whatever onnx raises for what it does not know
        return None
    kinds: list[Kind | None] = []
    for name in step.outputs:
        if not name:
            kinds.append(None)
            continue
        kind = found.get(name)
        if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
            return None
        extents = kind.tensor_type.shape.dim
        if not all(dim.HasField("dim_value") for dim in extents):
            return None
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))
        kinds.append((tuple(dim.dim_value for dim in extents), dtype))
    return kinds
