"""What a model may ask for, looked at before any of it is believed: nodes, nesting, calls of functions, tensors.

ONNX's own checker looks at whether a model means something; this, at whether it can be read in bounded time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from jitdnn import limits
from jitdnn.errors import InvalidArgument, InvalidType, JitdnnError, NotSupported
from jitdnn.settings import check_bytes

# elements that share a byte
_BITS = {
    getattr(TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(TensorProto, name)
}
_Function = tuple[str, str, str]


@contextmanager
def reading() -> Iterator[None]:
    """What onnx and protobuf raise in the block over a model that means nothing, in all their ways, as
    InvalidArgument. Their functions document none of it: an unknown type is a KeyError, text that is no UTF-8 is found
    when a name is first read.
    """
    try:
        yield
    except JitdnnError:
        raise
    except (
        onnx.checker.ValidationError, onnx.shape_inference.InferenceError, DecodeError, ValueError, TypeError, KeyError,
        IndexError, AttributeError, OverflowError, RuntimeError, MemoryError,
    ) as error:  # fmt: skip
        raise InvalidArgument(f"not a valid model of ONNX: {str(error)[:1000]}") from error


def check_bounds(model: onnx.ModelProto, may_be_outside: bool = False) -> None:
    """Raises InvalidArgument for a model beyond `limits` or the setting `load_limit`, or with tensors whose bytes do
    not fit their shape; NotSupported for tensors in other files, unless they may be there; InvalidType for what is no
    model."""
    if not isinstance(model, onnx.ModelProto):
        raise InvalidType(
            f"a {type(model).__name__} is no model: give an onnx.ModelProto, as jitdnn.frameworks.onnx.load(path) "
            "returns"
        )
    functions = {_name(function): function for function in model.functions}
    sizes: dict[_Function, tuple[int, int]] = {}  # nodes with all calls in place, and how deep calls go
    for name in functions:
        _measure(name, functions, sizes)
    count, _ = _total(model.graph.node, sizes)
    if count > limits.ONNX_NODES:
        raise InvalidArgument(
            f"this model has {count:,} nodes with its functions in place of their calls: at most "
            f"{limits.ONNX_NODES:,} are read"
        )
    held = sum(_checked_size(tensor, may_be_outside) for tensor in tensors(model))
    held += sum(_dense_size(tensor) for tensor in _sparse(model))
    check_bytes("what the tensors of this model hold", held)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initializers and attributes, of its graphs and functions; of sparse ones their values
    and indices. Raises InvalidArgument for graphs that nest too deeply."""
    for graph in _all_graphs(model):
        yield from graph.initializer
    for attribute in _all_attributes(model):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
    for sparse in _sparse(model):
        yield sparse.values
        yield sparse.indices


def _sparse(model: onnx.ModelProto) -> Iterator[onnx.SparseTensorProto]:
    """Every sparse tensor of a model."""
    for graph in _all_graphs(model):
        yield from graph.sparse_initializer
    for attribute in _all_attributes(model):
        if attribute.HasField("sparse_tensor"):
            yield attribute.sparse_tensor
        yield from attribute.sparse_tensors


def _all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph and those inside of its nodes and functions."""
    yield model.graph
    for nodes in _lists(model):
        yield from _graphs(nodes)


def _all_attributes(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """The attributes of all nodes, those of functions and of graphs inside of nodes among them."""
    for nodes in _lists(model):
        for node in _nodes(nodes):
            yield from node.attribute


def _lists(model: onnx.ModelProto) -> Iterator[Sequence[onnx.NodeProto]]:
    """The nodes of the graph, and of each function."""
    yield model.graph.node
    for function in model.functions:
        yield function.node


def _levels(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[list[onnx.NodeProto], list[onnx.GraphProto]]]:
    """Nodes of a graph, then those of the graphs inside of them with these graphs, level by level."""
    level, graphs = list(nodes), list[onnx.GraphProto]()
    for _ in range(limits.ONNX_DEPTH + 1):
        yield level, graphs
        graphs = [
            graph
            for node in level
            for attribute in node.attribute
            for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs)
        ]
        if not graphs:
            return
        level = [node for graph in graphs for node in graph.node]
    raise InvalidArgument(
        f"graphs nest more than {limits.ONNX_DEPTH} times inside of nodes: at most that many are read"
    )


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for level, _ in _levels(nodes):
        yield from level


def _graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for _, graphs in _levels(nodes):
        yield from graphs


# ---- functions, which may call each other: twice each, and the model doubles with every one


def _name(what: onnx.FunctionProto) -> _Function:
    return _domain(what.domain), what.name, what.overload


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _called(node: onnx.NodeProto) -> _Function:
    return _domain(node.domain), node.op_type, node.overload


def _measure(
    name: _Function, functions: dict[_Function, onnx.FunctionProto], sizes: dict[_Function, tuple[int, int]]
) -> None:
    """Put the size of a function, and of those that it calls, into `sizes`; in a loop, since calls may go deep."""
    stack, open_ = [name], set[_Function]()
    while stack:
        current = stack[-1]
        if current in sizes:
            stack.pop()
            continue
        calls = {_called(node) for node in _nodes(functions[current].node)} & functions.keys()
        missing = calls - sizes.keys()
        if missing and current in open_:
            raise InvalidArgument(f"function {current[1]!r} of domain {current[0]!r} calls itself")
        if missing:
            open_.add(current)
            stack += sorted(missing)
            continue
        total, depth = _total(functions[current].node, sizes)
        if depth >= limits.ONNX_DEPTH:
            raise InvalidArgument(f"functions call each other more than {limits.ONNX_DEPTH} times deep")
        sizes[current] = total, depth + 1
        stack.pop()


def _total(nodes: Iterable[onnx.NodeProto], sizes: dict[_Function, tuple[int, int]]) -> tuple[int, int]:
    found = [sizes.get(_called(node), (1, 0)) for node in _nodes(nodes)]
    return sum(count for count, _ in found), max((depth for _, depth in found), default=0)


# ---- tensors


def size_of(tensor: onnx.TensorProto) -> int:
    """The bytes that the elements of a tensor take as raw data. Raises InvalidArgument for types and shapes that do not
    exist."""
    if any(extent < 0 for extent in tensor.dims):
        raise InvalidArgument(f"tensor {tensor.name!r} has shape {list(tensor.dims)}: no extent is negative")
    elements: int = math.prod(tensor.dims)
    if tensor.data_type in _BITS:
        return -(-elements * int(_BITS[tensor.data_type]) // 8)
    try:
        return elements * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except KeyError:
        raise InvalidArgument(
            f"tensor {tensor.name!r} has type {tensor.data_type}, which ONNX does not have"
        ) from None


def _dense_size(tensor: onnx.SparseTensorProto) -> int:
    """The bytes of a sparse tensor with its zeros."""
    return size_of(
        onnx.TensorProto(name=tensor.values.name, data_type=tensor.values.data_type, dims=tensor.dims)
    )


def is_packed(tensor: onnx.TensorProto) -> bool:
    """True for elements that share bytes."""
    return tensor.data_type in _BITS


def _checked_size(tensor: onnx.TensorProto, may_be_outside: bool) -> int:
    is_outside = tensor.data_location == TensorProto.EXTERNAL
    if is_outside and not may_be_outside:
        raise in_another_file(tensor)
    size = size_of(tensor)
    if (
        not is_outside
        and tensor.HasField("raw_data")
        and tensor.data_type != TensorProto.STRING
        and len(tensor.raw_data) != size
    ):
        raise InvalidArgument(
            f"not a valid model of ONNX: tensor {tensor.name!r} of shape {list(tensor.dims)} takes {size} bytes, and "
            f"its raw_data has {len(tensor.raw_data)}"
        )
    return size


def in_another_file(tensor: onnx.TensorProto) -> NotSupported:
    """The error for external data: they are read by `load`, which knows the model's folder."""
    return NotSupported(
        f"tensor {tensor.name!r} lies in another file: give prepare the model's path, or load it by "
        "jitdnn.frameworks.onnx.load(path)"
    )
