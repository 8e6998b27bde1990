"""ONNX's checker over what a model says, and what of the model is not covered.

The checker is given the model without the elements of its tensors, so that the size of these does not matter; what it
is stricter about than onnxruntime, which writes such files itself, is filled in before: outputs without a type or
shape, initializers that IR 3 wanted among the inputs, domains that are not imported, and operators of onnxruntime in
ONNX's domain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import onnx

from jitdnn.errors import NotSupported
from jitdnn.frameworks.onnx.graph import Table, site_of
from jitdnn.frameworks.onnx.inlining import is_defined

_MOST_NAMES = 5  # nodes that a message names for one gap
_MOST_GAPS = 100
_LARGE = 1 << 10  # bytes of a tensor in a node that the checker need not see


def check(model: onnx.ModelProto, table: Table) -> None:
    """Raises what onnx's checker raises for a model that is not valid."""
    skeleton = onnx.ModelProto(ir_version=4 if model.ir_version == 3 else model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    _copy(model.graph, skeleton.graph)
    used: set[str] = set()
    _loosen(skeleton.graph, table, used)
    imported = {_domain(entry.domain) for entry in model.opset_import}
    for domain in sorted(used - imported - {""}):
        skeleton.opset_import.add(domain=domain, version=1)
    onnx.checker.check_model(skeleton)


def _copy(source: onnx.GraphProto, target: onnx.GraphProto) -> None:
    target.name = source.name
    target.input.extend(source.input)
    target.output.extend(source.output)
    target.node.extend(source.node)
    target.initializer.extend(_hollow(tensor) for tensor in source.initializer)
    target.initializer.extend(_hollow(tensor.values) for tensor in source.sparse_initializer)


def _hollow(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """A tensor of that name without elements."""
    return onnx.TensorProto(name=tensor.name, data_type=onnx.TensorProto.FLOAT, dims=[0], raw_data=b"")


def _loosen(graph: onnx.GraphProto, table: Table, used: set[str]) -> None:
    """Change a copy of a graph so that the checker accepts what onnxruntime does."""
    known = {value.name for value in (*graph.input, *graph.initializer)}
    known.update(name for node in graph.node for name in node.output)
    for value in graph.output:
        kind = value.type.WhichOneof("value")
        if kind is None or (kind == "tensor_type" and not value.type.tensor_type.elem_type):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if kind in {None, "tensor_type"} and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    for node in graph.node:
        domain = _domain(node.domain)
        if not domain and ("", node.op_type) in table and not onnx.defs.has(node.op_type):
            node.domain = domain = "com.microsoft"
        used.add(domain)
        for attribute in node.attribute:
            if attribute.HasField("t") and (
                attribute.t.data_location == onnx.TensorProto.EXTERNAL or attribute.t.ByteSize() > _LARGE
            ):
                attribute.t.CopyFrom(_hollow(attribute.t))
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                for tensor in inner.initializer:
                    tensor.CopyFrom(_hollow(tensor))
                _loosen(inner, table, used)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def check_covered(model: onnx.ModelProto, table: Table) -> None:
    """Raises NotSupported that names everything of the model that is not covered, by operators and nodes of its own."""
    versions = {_domain(entry.domain): entry.version for entry in model.opset_import}
    functions = {(_domain(function.domain), function.name) for function in model.functions}
    gaps: dict[str, list[str]] = defaultdict(list)
    _gather(model.graph.node, versions, functions, table, gaps)
    for function in model.functions:
        own = {_domain(entry.domain): entry.version for entry in function.opset_import}
        _gather(function.node, own, functions, table, gaps)
    if not gaps:
        return
    described = [_described(reason, names) for reason, names in gaps.items()]
    if len(described) == 1:
        raise NotSupported(described[0])
    more = f"; and {len(described) - _MOST_GAPS} more" if len(described) > _MOST_GAPS else ""
    raise NotSupported(
        f"{len(described)} things are not covered: " + "; ".join(described[:_MOST_GAPS]) + more
    )


def _gather(
    nodes: Any,
    versions: Mapping[str, int],
    functions: set[tuple[str, str]],
    table: Table,
    gaps: dict[str, list[str]],
) -> None:
    for node in nodes:
        domain = _domain(node.domain)
        if (domain, node.op_type) in functions:
            continue
        operator, site = table.get((domain, node.op_type)), site_of(node, versions)
        if operator is not None:
            try:
                operator.check(site, node.input, [attribute.name for attribute in node.attribute])
            except NotSupported as error:
                gaps[error.message].append(node.name)
        elif not is_defined(node.domain, node.op_type, versions):
            gaps[f"operator {site.operator} is not covered"].append(node.name)
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                _gather(inner.node, versions, functions, table, gaps)


def _described(reason: str, names: list[str]) -> str:
    named = [repr(name[:60]) for name in names if name]
    if not named:
        return reason if len(names) == 1 else f"{reason} ({len(names)} nodes)"
    shown = ", ".join(named[:_MOST_NAMES]) + (", ..." if len(named) > _MOST_NAMES else "")
    return f"{reason} (node {shown})" if len(names) == 1 else f"{reason} ({len(names)} nodes: {shown})"
