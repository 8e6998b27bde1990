"""Functions put in place of the nodes that call them: those of the model, and operators that ONNX defines by others."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import inliner

from jitdnn.frameworks.onnx.graph import Table

# definitions may use operators that are defined by others in turn
_DEPTH = 8


def in_place(model: onnx.ModelProto, table: Table) -> onnx.ModelProto:
    """The model without functions, and with the definitions of the operators that `table` has not, where ONNX has
    one. The model that was given stays as it is. The inliner sees the initializers' names alone."""
    held = list(model.graph.initializer)
    if not (
        model.functions or any(is_defined(*found, _versions(model)) for found in _missing(model.graph, table))
    ):
        return model
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    for field in ("name", "node", "input", "output", "sparse_initializer"):
        value = getattr(model.graph, field)
        if isinstance(value, str):
            light.graph.name = value
        else:
            getattr(light.graph, field).extend(value)
    for tensor in held:
        light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
    made = _inlined(light, table)
    del made.graph.initializer[:]
    made.graph.initializer.extend(held)
    return made


def _versions(model: onnx.ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def _inlined(model: onnx.ModelProto, table: Table) -> onnx.ModelProto:
    if model.functions:
        model = inliner.inline_local_functions(model)
    for _ in range(_DEPTH):
        versions = _versions(model)
        others = {found for found in _missing(model.graph, table) if is_defined(*found, versions)}
        if not others:
            break
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        _complete(copy.graph, others, versions)
        # a type for the name of inputs that are left out, without which the inliner gives up
        copy.graph.value_info.add().type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        model = inliner.inline_selected_functions(copy, sorted(others), inline_schema_functions=True)
    return model


def _missing(graph: onnx.GraphProto, table: Table) -> set[tuple[str, str]]:
    """Operators of the graph, and of the graphs in its nodes, that the table has not."""
    found: set[tuple[str, str]] = set()
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) not in table:
            found.add((node.domain, node.op_type))
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found |= _missing(attribute.g, table)
    return found


def is_defined(domain: str, operator: str, versions: Mapping[str, int]) -> bool:
    """True if ONNX defines the operator by others."""
    if not onnx.defs.has(operator, domain):
        return False
    schema = onnx.defs.get_schema(operator, versions.get(domain, 1), domain)
    # onnx's stubs do not have these two
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def _complete(graph: onnx.GraphProto, operators: set[tuple[str, str]], versions: dict[str, int]) -> None:
    """Attributes that have defaults, written out: a definition refers to them by name."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _complete(attribute.g, operators, versions)
        if (node.domain, node.op_type) in operators:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
            given = {attribute.name for attribute in node.attribute}
            for name, attribute in schema.attributes.items():
                if name not in given and attribute.default_value.type:
                    node.attribute.append(attribute.default_value)
