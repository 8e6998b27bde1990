"""Models of ONNX as nets: one function for each operator that has a layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.studio.nets.imports.writing import Array, NetWriter, symmetric

_NO_ONNX: Final = 'reading models of ONNX needs the package onnx: pip install "jitdnn[onnx]"'


def read_onnx(content: bytes, name: str) -> NetWriter:
    """The net of a model with one input, images of a known shape. Raises InvalidArgument."""
    if find_spec("onnx") is None:
        raise InvalidArgument(_NO_ONNX)
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise InvalidArgument(f"{name} is no model of ONNX: {error}") from None
    graph = model.graph
    if not graph.node:
        raise InvalidArgument(f"{name} has no nodes: it is no model of ONNX, or an empty one")
    try:
        shaped = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # of shapes that contradict each other: what is stated has to do
        shaped = graph
    held: dict[str, Array] = {}
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise InvalidArgument(
                f"{tensor.name} is kept in another file: save the model with its weights inside"
            )
        held[tensor.name] = numpy_helper.to_array(tensor)
    shapes = {
        each.name: [dim.dim_value or None for dim in each.type.tensor_type.shape.dim]
        for each in (*shaped.value_info, *shaped.input, *shaped.output)
    }
    inputs = [each.name for each in graph.input if each.name not in held]
    if len(inputs) != 1:
        raise InvalidArgument(f"{name} has {len(inputs)} inputs: one of images is needed")
    shape = shapes[inputs[0]][1:]
    if len(shape) not in (1, 3) or None in shape:
        raise InvalidArgument(
            f"the input {inputs[0]!r} has shape {shapes[inputs[0]]}: (N, C, H, W) or (N, C), with numbers for "
            "all but N"
        )
    net = NetWriter(graph.name or name, [int(extent or 1) for extent in (*shape, 1, 1)][:3])
    reader = _Reader(net, held, shapes, {inputs[0]: "data"}, _readers(graph))
    for number, node in enumerate(graph.node):
        attributes = {a.name: _attribute(onnx, numpy_helper, a) for a in node.attribute}
        words = f"{node.op_type} {node.name}".strip()
        net.step(f"node {number}", words, partial(reader.take, node, attributes))
    return net


def _readers(graph: Any) -> dict[str, int]:
    """How many nodes and outputs read a value."""
    found: dict[str, int] = {}
    for name in [
        *(each for node in graph.node for each in node.input),
        *(each.name for each in graph.output),
    ]:
        found[name] = found.get(name, 0) + 1
    return found


def _attribute(onnx: Any, helper: Any, attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.TENSOR:
        return helper.to_array(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class _Reader:
    """What values of the graph are: blobs of the net, or arrays."""

    def __init__(
        self, net: NetWriter, held: dict[str, Array], shapes: dict[str, list[int | None]], blobs: dict[str, str],
        readers: dict[str, int],
    ) -> None:  # fmt: skip
        self.net, self.held, self.shapes, self.blobs, self.readers = net, held, shapes, blobs, readers

    def take(self, node: Any, a: dict[str, Any]) -> None:
        """Add the layers of a node. Raises NotSupported."""
        if node.domain not in ("", "ai.onnx"):
            raise NotSupported(f"operators of {node.domain} have no layer")
        if node.op_type == "Constant":
            self.held[node.output[0]] = np.asarray(next(iter(a.values())))
            return
        inputs = [name for name in node.input if name]
        if all(name in self.held for name in inputs) and node.op_type in _FOLDED:
            self.held[node.output[0]] = _FOLDED[node.op_type]([self.held[name] for name in inputs], a)
            return
        if node.op_type not in _FORMS:
            raise NotSupported(f"{node.op_type} has no layer")
        self.blobs[node.output[0]] = _FORMS[node.op_type](self, node, a)

    def blob(self, node: Any, index: int = 0) -> str:
        """The blob that an input is."""
        name = node.input[index]
        if name not in self.blobs:
            told = "a constant" if name in self.held else "not taken over"
            raise NotSupported(f"its input {name!r} is {told}")
        return self.blobs[name]

    def array(self, node: Any, index: int) -> Array | None:
        """The array that an input is; None where it is not given."""
        if len(node.input) <= index or not node.input[index]:
            return None
        if node.input[index] not in self.held:
            raise NotSupported(f"its input {node.input[index]!r} is computed: a constant is needed")
        return self.held[node.input[index]]

    def needed(self, node: Any, index: int) -> Array:
        found = self.array(node, index)
        if found is None:
            raise NotSupported(f"its input {index} is not given")
        return found

    def rank(self, node: Any, index: int = 0) -> int:
        return len(self.shapes.get(node.input[index], ())) or 4

    def is_constant(self, node: Any, index: int) -> bool:
        return node.input[index] in self.held


def _name(node: Any) -> str:
    return str(node.name or node.output[0])


def _fold_shape(values: list[Array], a: dict[str, Any]) -> Array:
    return values[0].reshape([int(extent) for extent in values[1]])


_FOLDED: Final[dict[str, Callable[[list[Array], dict[str, Any]], Array]]] = {
    "Identity": lambda v, a: v[0],
    "Transpose": lambda v, a: v[0].transpose(a.get("perm")),
    "Reshape": _fold_shape,
    "Unsqueeze": lambda v, a: np.expand_dims(v[0], tuple(int(x) for x in (a.get("axes") or v[1]))),
    "Squeeze": lambda v, a: np.squeeze(v[0]),
    "Concat": lambda v, a: np.concatenate([np.atleast_1d(x) for x in v], a.get("axis", 0)),
    "Cast": lambda v, a: v[0],
}


def _windows(node: Any, a: dict[str, Any], kernel: list[int]) -> tuple[list[int], tuple[int, int]]:
    """Strides and padding."""
    if len(kernel) != 2:
        raise NotSupported(f"a window of {kernel}: images have two axes")
    if a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        strides = list(a.get("strides", (1, 1)))
        if strides != [1, 1] or any(k % 2 == 0 for k in kernel):
            raise NotSupported(f"auto_pad {a['auto_pad']} by strides {strides} may pad two ends differently")
        return strides, ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
    return list(a.get("strides", (1, 1))), symmetric(a.get("pads", (0, 0, 0, 0)))


def _conv(r: _Reader, node: Any, a: dict[str, Any], is_transposed: bool = False) -> str:
    weight = r.needed(node, 1)
    strides, pads = _windows(node, a, list(weight.shape[2:]))
    if any(a.get("output_padding", (0,))) or "output_shape" in a:
        raise NotSupported("output_padding and output_shape have no form")
    return r.net.convolution(
        _name(node), r.blob(node), weight, r.array(node, 2), strides, pads, a.get("dilations", (1, 1)),
        a.get("group", 1), is_transposed=is_transposed,
    )  # fmt: skip


def _gemm(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    if a.get("transA", 0):
        raise NotSupported("transA: rows of images are no columns")
    weight = r.needed(node, 1) * np.float32(a.get("alpha", 1.0))
    bias = r.array(node, 2)
    outputs = weight.shape[0 if a.get("transB", 0) else 1]
    if bias is not None:
        bias = np.broadcast_to(bias * np.float32(a.get("beta", 1.0)), (1, outputs)).reshape(outputs)
    return r.net.product(_name(node), r.blob(node), weight if a.get("transB", 0) else weight.T, bias)


def _matmul(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    if r.rank(node) != 2:
        raise NotSupported(f"a product of rows is needed, and its input has {r.rank(node)} axes")
    return r.net.product(_name(node), r.blob(node), r.needed(node, 1).T, None)


def _pool(how: str, r: _Reader, node: Any, a: dict[str, Any]) -> str:
    kernel = list(a["kernel_shape"])
    strides, pads = _windows(node, a, kernel)
    if any(d != 1 for d in a.get("dilations", (1,))):
        raise NotSupported("pooling with dilations has no form")
    if how == "AVE" and any(pads) and not a.get("count_include_pad", 0):
        raise NotSupported("a mean that does not count the padding has no form: count_include_pad is 0")
    rounds_up = bool(a.get("ceil_mode", 0))
    return r.net.pooling(_name(node), r.blob(node), how, kernel, strides, pads, rounds_up=rounds_up)


def _reduce_mean(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    axes = a.get("axes") or r.array(node, 1)
    if axes is None or sorted(int(axis) % 4 for axis in axes) != [2, 3] or r.rank(node) != 4:
        raise NotSupported("a mean over other axes than those of images has no form")
    pooled = r.net.global_pooling(_name(node), r.blob(node))
    return pooled if a.get("keepdims", 1) else r.net.flatten(f"{_name(node)}_rows", pooled)


def _norm(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    if a.get("training_mode", 0):
        raise NotSupported("training_mode: export the model for inference")
    scale, bias, mean, variance = (r.needed(node, k) for k in (1, 2, 3, 4))
    return r.net.batch_norm(_name(node), r.blob(node), mean, variance, scale, bias, a.get("epsilon", 1e-5))


def _binary(how: str, r: _Reader, node: Any, a: dict[str, Any]) -> str:
    """Add, Sub, Mul and Div of blobs, or of a blob and a constant: for all, or for each channel."""
    first, second = (r.is_constant(node, k) for k in (0, 1))
    name = _name(node)
    if not first and not second:
        if r.shapes.get(node.input[0]) != r.shapes.get(node.input[1]):
            raise NotSupported("blobs of two shapes have no form")
        several = [r.blob(node, 0), r.blob(node, 1)]
        if how == "Div":
            raise NotSupported("the quotient of two blobs has no form")
        return r.net.eltwise(
            name, several, "PROD" if how == "Mul" else "SUM", (1, -1) if how == "Sub" else ()
        )
    values = np.asarray(r.needed(node, 0 if first else 1), np.float32)
    x = r.blob(node, 1 if first else 0)
    if values.size == 1:
        value = float(values.reshape(()))
        if first and how == "Div":
            raise NotSupported("a constant over a blob has no form")
        scale, shift = {
            "Add": (1, value), "Mul": (value, 0), "Div": (1 / value if value else math.inf, 0),
            "Sub": (-1, value) if first else (1, -value),
        }[how]  # fmt: skip
        return r.net.linear(name, x, scale, shift)
    rank = r.rank(node, 1 if first else 0)
    padded = (1,) * (rank - values.ndim) + values.shape
    if len(padded) != rank or any(extent != 1 for axis, extent in enumerate(padded) if axis != 1):
        raise NotSupported(f"a constant of shape {values.shape} has no form: one number, or one a channel")
    if how in ("Sub", "Div") and first:
        raise NotSupported("a constant less a blob, or over it, has no form")
    each: Array = -values if how == "Sub" else 1 / values if how == "Div" else values
    return r.net.per_channel(name, x, each, is_scale=how in ("Mul", "Div"))


def _several(how: str, r: _Reader, node: Any, a: dict[str, Any]) -> str:
    if len({tuple(r.shapes.get(name, ())) for name in node.input}) != 1:
        raise NotSupported("blobs of several shapes have no form")
    return r.net.eltwise(_name(node), [r.blob(node, k) for k in range(len(node.input))], how)


def _clip(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    low, high = a.get("min", r.array(node, 1)), a.get("max", r.array(node, 2))
    ends = [-math.inf if low is None else float(low), math.inf if high is None else float(high)]
    return r.net.clip(_name(node), r.blob(node), *ends)


def _concat(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    axis = a["axis"] % r.rank(node)
    return r.net.concat(_name(node), [r.blob(node, k) for k in range(len(node.input))], axis)


def _flatten(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    if a.get("axis", 1) != 1:
        raise NotSupported(f"axis {a['axis']}: a row an image is needed")
    return r.net.flatten(_name(node), r.blob(node))


def _reshape(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    wanted = [int(extent) for extent in r.needed(node, 1)]
    before, after = r.shapes.get(node.input[0], []), r.shapes.get(node.output[0], [])
    if after and before == after:
        return r.blob(node)
    is_row = len(wanted) == 2 and (wanted[1] == -1 or (None not in before[1:] and _size(before) == wanted[1]))
    if not is_row:
        raise NotSupported(f"a shape of {wanted} has no form: a row an image has")
    return r.net.flatten(_name(node), r.blob(node))


def _size(shape: list[int | None]) -> int:
    """Numbers of an image; 0 where a shape is not known."""
    return math.prod(extent or 0 for extent in shape[1:]) if shape else 0


def _squeeze(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    shape = r.shapes.get(node.input[0], [])
    axes = a.get("axes") or r.array(node, 1)
    if len(shape) != 4 or shape[2:] != [1, 1] or axes is None or sorted(int(x) % 4 for x in axes) != [2, 3]:
        raise NotSupported("axes that are left out are those of images of one pixel")
    return r.net.flatten(_name(node), r.blob(node))


def _softmax(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    return r.net.softmax(_name(node), r.blob(node), a.get("axis", -1) % r.rank(node))


def _dropout(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    ratio = a.get("ratio", r.array(node, 1))
    return r.net.dropout(_name(node), r.blob(node), 0.5 if ratio is None else float(ratio))


def _lrn(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    alpha, beta, k = a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)
    return r.net.lrn(_name(node), r.blob(node), a["size"], alpha, beta, k)


def _same(r: _Reader, node: Any, a: dict[str, Any]) -> str:
    return r.blob(node)


def _plainly(kind: str, given: str = "", field: str = "", value: float = 0.0) -> Any:
    def form(r: _Reader, node: Any, a: dict[str, Any]) -> str:
        values = {field: a.get(given, value)} if field else {}
        return r.net.activation(kind, _name(node), r.blob(node), **values)

    return form


_FORMS: Final[dict[str, Callable[[_Reader, Any, dict[str, Any]], str]]] = {
    "Conv": _conv,
    "ConvTranspose": lambda r, n, a: _conv(r, n, a, True),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MaxPool": lambda r, n, a: _pool("MAX", r, n, a),
    "AveragePool": lambda r, n, a: _pool("AVE", r, n, a),
    "GlobalAveragePool": lambda r, n, a: r.net.global_pooling(_name(n), r.blob(n)),
    "GlobalMaxPool": lambda r, n, a: r.net.global_pooling(_name(n), r.blob(n), "MAX"),
    "ReduceMean": _reduce_mean,
    "BatchNormalization": _norm,
    "Add": lambda r, n, a: _binary("Add", r, n, a),
    "Sub": lambda r, n, a: _binary("Sub", r, n, a),
    "Mul": lambda r, n, a: _binary("Mul", r, n, a),
    "Div": lambda r, n, a: _binary("Div", r, n, a),
    "Sum": lambda r, n, a: _several("SUM", r, n, a),
    "Max": lambda r, n, a: _several("MAX", r, n, a),
    "Clip": _clip,
    "Concat": _concat,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Softmax": _softmax,
    "Dropout": _dropout,
    "LRN": _lrn,
    "Identity": _same,
    "Relu": _plainly("ReLU"),
    "LeakyRelu": _plainly("ReLU", "alpha", "negative_slope", 0.01),
    "Elu": _plainly("ELU", "alpha", "alpha", 1.0),
    "Sigmoid": _plainly("Sigmoid"),
    "Tanh": _plainly("TanH"),
    "Softplus": _plainly("BNLL"),
    "Abs": _plainly("AbsVal"),
    "Exp": _plainly("Exp"),
    "Log": _plainly("Log"),
    "PRelu": lambda r, n, a: r.net.prelu(_name(n), r.blob(n), r.needed(n, 1)),
}
