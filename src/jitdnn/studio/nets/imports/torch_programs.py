"""Programs that torch.export.save wrote, as nets. The archive has the graph as JSON and weights as plain bytes: neither
PyTorch nor any pickle is needed to read them, and members that are pickles are not read."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.studio.nets.imports.writing import Array, NetWriter

_MOST_BYTES: Final = 4 << 30  # unpacked
#: torch's numbers of types, as its archives have them
_TYPES: Final = {4: np.int32, 5: np.int64, 6: np.float16, 7: np.float32, 8: np.float64}
_HOW: Final = "save it by torch.export.save of PyTorch 2.8 or newer, or export it to ONNX"


def read_program(content: bytes, name: str) -> NetWriter:
    """The net of an exported program with one input of images. Raises InvalidArgument."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
                raise InvalidArgument(f"{name} has more than {_MOST_BYTES:,} bytes unpacked")
            found = {member.split("/", 1)[-1]: member for member in archive.namelist()}
            program = json.loads(archive.read(_member(found, "models/", ".json", name)))
            listed = json.loads(archive.read(_member(found, "data/weights/", "_config.json", name)))["config"]
            kept = {key: _array(archive, found, key, entry) for key, entry in listed.items()}
        return _net(program["graph_module"], kept, name)
    except (
        zipfile.BadZipFile,
        json.JSONDecodeError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        StopIteration,
    ) as error:
        raise InvalidArgument(
            f"{name} is no program of torch.export that is read here ({type(error).__name__}: {error}): {_HOW}"
        ) from None


def _member(found: dict[str, str], start: str, end: str, name: str) -> str:
    for short, member in found.items():
        if short.startswith(start) and short.endswith(end):
            return member
    raise InvalidArgument(f"{name} has no {start}*{end}: {_HOW}")


def _array(archive: zipfile.ZipFile, found: dict[str, str], key: str, entry: Any) -> Array:
    """A weight. Raises InvalidArgument for one that is a pickle, or has another layout."""
    meta = entry["tensor_meta"]
    if entry.get("use_pickle"):
        raise InvalidArgument(f"the weight {key!r} is a pickle, which could run code: {_HOW}")
    if meta["dtype"] not in _TYPES:
        raise InvalidArgument(
            f"the weight {key!r} is of torch's type {meta['dtype']}: reals and integers are read"
        )
    sizes: list[int] = [int(each["as_int"]) for each in meta["sizes"]]
    strides: list[int] = [int(each["as_int"]) for each in meta["strides"]]
    count = int(np.prod(sizes, dtype=np.int64))
    values = np.frombuffer(archive.read(found[f"data/weights/{entry['path_name']}"]), _TYPES[meta["dtype"]])
    offset, item = int(meta["storage_offset"]["as_int"]), values.itemsize
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if min([*sizes, *strides, offset, 0]) < 0 or (count and last >= values.size):
        raise InvalidArgument(f"the weight {key!r} has {values.size} numbers, and reads number {last}")
    if not count:
        return np.zeros(sizes, values.dtype)
    return np.lib.stride_tricks.as_strided(
        values[offset:], sizes, [stride * item for stride in strides]
    ).copy()


def _net(module: dict[str, Any], kept: dict[str, Array], name: str) -> NetWriter:
    graph = module["graph"]
    arrays: dict[str, Array] = {}
    images: list[str] = []
    for spec in module["signature"]["input_specs"]:
        ((kind, value),) = spec.items()
        if kind == "user_input":
            images.append(value["arg"]["as_tensor"]["name"])
            continue
        key = value.get("parameter_name") or value.get("buffer_name") or value.get("tensor_constant_name")
        if key in kept:
            arrays[value["arg"]["name"]] = kept[key]
    if len(images) != 1:
        raise InvalidArgument(f"{name} has {len(images)} inputs: one of images is needed")
    shapes = {
        key: [size.get("as_int") for size in value["sizes"]] for key, value in graph["tensor_values"].items()
    }
    shape = shapes[images[0]][1:]
    if len(shape) not in (1, 3) or None in shape:
        raise InvalidArgument(
            f"the input has shape {shapes[images[0]]}: (N, C, H, W) or (N, C), with numbers for all but N"
        )
    net = NetWriter(name, [*shape, 1, 1][:3])
    reader = _Reader(net, arrays, shapes, {images[0]: "data"})
    for node in graph["nodes"]:
        operator = node["target"].removeprefix("torch.ops.aten.")
        net.step(f"node {node.get('name') or operator}", operator, partial(reader.take, node, operator))
    return net


class _Call:
    """A call of an operator: its arguments by name."""

    def __init__(self, reader: _Reader, node: dict[str, Any]) -> None:
        self._reader = reader
        self.net: NetWriter = reader.net
        self.name: str = node["outputs"][0]["as_tensor"]["name"]
        self._given = {each["name"]: each["arg"] for each in node["inputs"]}

    def value(self, name: str, default: Any = None) -> Any:
        """A number, a flag or a list of numbers."""
        arg = self._given.get(name)
        if arg is None or "as_none" in arg:
            return default
        ((kind, found),) = arg.items()
        if kind == "as_sym_ints":
            return [each.get("as_int") for each in found]
        if kind not in ("as_int", "as_float", "as_bool", "as_ints", "as_floats", "as_string"):
            raise NotSupported(f"its argument {name} is computed: a constant is needed")
        return found

    def is_tensor(self, name: str) -> bool:
        return "as_tensor" in self._given.get(name, {})

    def blob(self, name: str) -> str:
        return self._reader.blob(self._given[name]["as_tensor"]["name"])

    def blobs(self, name: str) -> list[str]:
        return [self._reader.blob(each["name"]) for each in self._given[name]["as_tensors"]]

    def array(self, name: str) -> Array | None:
        arg = self._given.get(name)
        if arg is None or "as_none" in arg:
            return None
        found = self._reader.arrays.get(arg["as_tensor"]["name"]) if "as_tensor" in arg else None
        if found is None:
            raise NotSupported(f"its argument {name} is computed: a weight is needed")
        return found

    def needed(self, name: str) -> Array:
        found = self.array(name)
        if found is None:
            raise NotSupported(f"its argument {name} is not given")
        return found

    def shape(self, name: str) -> list[int | None]:
        return self._reader.shapes.get(self._given[name]["as_tensor"]["name"], [])

    @property
    def made(self) -> list[int | None]:
        """The shape of what it makes."""
        return self._reader.shapes.get(self.name, [])


class _Reader:
    def __init__(
        self, net: NetWriter, arrays: dict[str, Array], shapes: dict[str, list[int | None]], blobs: dict[str, str]
    ) -> None:  # fmt: skip
        self.net, self.arrays, self.shapes, self.blobs = net, arrays, shapes, blobs

    def take(self, node: dict[str, Any], operator: str) -> None:
        """Add the layers of a node. Raises NotSupported."""
        if operator not in _FORMS:
            raise NotSupported(f"{operator} has no layer")
        call = _Call(self, node)
        self.blobs[call.name] = _FORMS[operator](call)

    def blob(self, name: str) -> str:
        if name not in self.blobs:
            raise NotSupported(
                f"its input {name!r} is " + ("a weight" if name in self.arrays else "not taken over")
            )
        return self.blobs[name]


def _convolution(c: _Call) -> str:
    stride, pad, dilation = c.value("stride", [1, 1]), c.value("padding", [0, 0]), c.value("dilation", [1, 1])
    weight = c.needed("weight")
    if isinstance(pad, str):
        if pad == "same" and any(
            d * (k - 1) % 2 for d, k in zip(dilation * 2, weight.shape[2:], strict=False)
        ):
            raise NotSupported("padding 'same' of an even window differs at the two ends of an axis")
        both = zip(dilation * 2, weight.shape[2:], strict=False)
        pad = [0, 0] if pad == "valid" else [d * (k - 1) // 2 for d, k in both]
    return c.net.convolution(
        c.name, c.blob("input"), weight, c.array("bias"), stride, pad, dilation, c.value("groups", 1)
    )


def _transposed(c: _Call) -> str:
    if any(c.value("output_padding", [0])):
        raise NotSupported("output_padding has no form")
    return c.net.convolution(
        c.name, c.blob("input"), c.needed("weight"), c.array("bias"), c.value("stride", [1, 1]),
        c.value("padding", [0, 0]), c.value("dilation", [1, 1]), c.value("groups", 1), is_transposed=True,
    )  # fmt: skip


def _linear(c: _Call) -> str:
    if len(c.shape("input")) != 2:
        raise NotSupported(f"rows are needed, and its input has shape {c.shape('input')}")
    return c.net.product(c.name, c.blob("input"), c.needed("weight"), c.array("bias"))


def _max_pool(c: _Call) -> str:
    kernel = c.value("kernel_size")
    if any(d != 1 for d in c.value("dilation", [1])):
        raise NotSupported("pooling with dilations has no form")
    stride, pad = c.value("stride") or kernel, c.value("padding", [0, 0])
    return c.net.pooling(
        c.name, c.blob("self"), "MAX", kernel, stride, pad, rounds_up=c.value("ceil_mode", False)
    )


def _mean_pool(c: _Call) -> str:
    kernel, pad = c.value("kernel_size"), c.value("padding", [0, 0])
    if (any(pad) and not c.value("count_include_pad", True)) or c.value("divisor_override"):
        raise NotSupported("a mean that does not count the padding, or with another divisor, has no form")
    stride = c.value("stride") or kernel
    return c.net.pooling(
        c.name, c.blob("self"), "AVE", kernel, stride, pad, rounds_up=c.value("ceil_mode", False)
    )


def _adaptive(c: _Call, how: str) -> str:
    size, shape = c.value("output_size"), c.shape("self")[2:]
    if all(extent == 1 for extent in size):
        return c.net.global_pooling(c.name, c.blob("self"), how)
    if list(size) == shape:
        return c.blob("self")
    if len(shape) != 2 or None in shape or any(x % y for x, y in zip(shape, size, strict=False)):
        raise NotSupported(f"pooling of {shape} to {size} has windows of several sizes")
    kernel = [int(x or 0) // y for x, y in zip(shape, size, strict=False)]
    return c.net.pooling(c.name, c.blob("self"), how, kernel, kernel, (0, 0))


def _mean(c: _Call) -> str:
    rank = len(c.shape("self"))
    if rank != 4 or sorted(axis % 4 for axis in c.value("dim") or ()) != [2, 3]:
        raise NotSupported("a mean over other axes than those of images has no form")
    pooled = c.net.global_pooling(c.name, c.blob("self"))
    return pooled if c.value("keepdim", False) else c.net.flatten(f"{c.name}_rows", pooled)


def _batch_norm(c: _Call) -> str:
    if c.value("training", False):
        raise NotSupported("statistics of the batch: call model.eval() before it is exported")
    found = (c.needed("running_mean"), c.needed("running_var"), c.array("weight"), c.array("bias"))
    return c.net.batch_norm(c.name, c.blob("input"), *found, c.value("eps", 1e-5))


def _binary(c: _Call, how: str) -> str:
    if c.value("alpha", 1) != 1:
        raise NotSupported(f"alpha is {c.value('alpha')}")
    if not c.is_tensor("other"):
        value = float(c.value("other"))
        scale, shift = {
            "add": (1.0, value),
            "sub": (1.0, -value),
            "mul": (value, 0.0),
            "div": (1 / (value or 1), 0.0),
        }[how]
        return c.net.linear(c.name, c.blob("self"), scale, shift)
    if c.shape("self") != c.shape("other") or how == "div":
        raise NotSupported("blobs of two shapes, and quotients, have no form")
    several = [c.blob("self"), c.blob("other")]
    return c.net.eltwise(c.name, several, "PROD" if how == "mul" else "SUM", (1, -1) if how == "sub" else ())


def _rows(c: _Call) -> str:
    before, after = c.shape("self"), c.made
    if before == after:
        return c.blob("self")
    if len(after) != 2 or before[:1] != after[:1]:
        raise NotSupported(f"a shape of {after} for {before} has no form: a row an image has")
    return c.net.flatten(c.name, c.blob("self"))


def _cat(c: _Call) -> str:
    return c.net.concat(c.name, c.blobs("tensors"), c.value("dim", 0) % max(1, len(c.made)))


def _clamp(c: _Call) -> str:
    low = c.value("min", c.value("min_val", -math.inf))
    return c.net.clip(c.name, c.blob("self"), float(low), float(c.value("max", c.value("max_val", math.inf))))


def _softmax(c: _Call) -> str:
    return c.net.softmax(c.name, c.blob("self"), c.value("dim") % len(c.shape("self")))


def _plain(kind: str, argument: str = "", field: str = "", default: float = 0.0) -> Callable[[_Call], str]:
    def form(c: _Call) -> str:
        values = {field: float(c.value(argument, default))} if field else {}
        return c.net.activation(kind, c.name, c.blob("self"), **values)

    return form


_OVERLOADS: Final[dict[str, Callable[[_Call], str]]] = {
    "conv2d.default conv2d.padding": _convolution,
    "conv_transpose2d.input": _transposed,
    "linear.default": _linear,
    "max_pool2d.default": _max_pool,
    "avg_pool2d.default": _mean_pool,
    "adaptive_avg_pool2d.default": lambda c: _adaptive(c, "AVE"),
    "adaptive_max_pool2d.default": lambda c: _adaptive(c, "MAX"),
    "mean.dim": _mean,
    "batch_norm.default": _batch_norm,
    "add.Tensor add_.Tensor": lambda c: _binary(c, "add"),
    "sub.Tensor sub_.Tensor": lambda c: _binary(c, "sub"),
    "mul.Tensor mul_.Tensor": lambda c: _binary(c, "mul"),
    "div.Tensor div_.Tensor": lambda c: _binary(c, "div"),
    "flatten.using_ints view.default reshape.default": _rows,
    "cat.default": _cat,
    "clamp.default clamp_.default hardtanh.default hardtanh_.default": _clamp,
    "relu6.default relu6_.default": lambda c: c.net.relu6(c.name, c.blob("self")),
    "softmax.int": _softmax,
    "dropout.default dropout_.default": lambda c: c.net.dropout(
        c.name, c.blob("input"), float(c.value("p", 0.5))
    ),
    "prelu.default": lambda c: c.net.prelu(c.name, c.blob("self"), c.needed("weight")),
    "relu.default relu_.default": _plain("ReLU"),
    "leaky_relu.default leaky_relu_.default": _plain("ReLU", "negative_slope", "negative_slope", 0.01),
    "elu.default elu_.default": _plain("ELU", "alpha", "alpha", 1.0),
    "sigmoid.default sigmoid_.default": _plain("Sigmoid"),
    "tanh.default tanh_.default": _plain("TanH"),
    "silu.default silu_.default": _plain("Swish"),
    "softplus.default": _plain("BNLL"),
    "abs.default": _plain("AbsVal"),
    "exp.default": _plain("Exp"),
    "log.default": _plain("Log"),
    "contiguous.default clone.default detach.default alias.default": lambda c: c.blob("self"),
}
_FORMS: Final = {name: form for names, form in _OVERLOADS.items() for name in names.split()}
