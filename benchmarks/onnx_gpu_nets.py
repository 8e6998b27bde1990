"""Nets for onnx_gpu.py: written down once, as calls of a builder, and made of ONNX's nodes and of PyTorch's functions.

    net = NETS["resnet50"](8)          # for a batch of 8
    as_onnx(net), as_torch(net)        # the same weights

They are those of the papers (and of torchvision) layer by layer, with random weights scaled to keep activations of one
size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Call:
    """An operation: its name, the values that it reads and makes, its parameters by name and what else it is told."""

    op: str
    inputs: tuple[str, ...]
    output: str
    parameters: dict[str, Array] = field(default_factory=dict)
    how: dict[str, Any] = field(default_factory=dict)


class Net:
    """Calls in order, from "x" of `shape` to "y"; shapes of values are known."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.calls: list[Call] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape}
        self._random = np.random.default_rng(0)

    def _add(
        self,
        op: str,
        inputs: tuple[str, ...],
        shape: tuple[int, ...],
        parameters: dict[str, Array] | None = None,
        **how: Any,
    ) -> str:
        name = f"v{len(self.calls)}"
        self.calls.append(Call(op, inputs, name, parameters or {}, how))
        self.shapes[name] = tuple(shape)
        return name

    def _normal(self, *shape: int, scale: float = 1.0) -> Array:
        return (scale * self._random.standard_normal(shape)).astype(np.float32)

    def conv(
        self, x: str, k: int, r: int, stride: int = 1, groups: int = 1, bias: bool = False, pad: int = -1
    ) -> str:
        n, c, h, w = self.shapes[x]
        pad = r // 2 if pad < 0 else pad
        parameters = {"w": self._normal(k, c // groups, r, r, scale=math.sqrt(1.6 / (c // groups * r * r)))}
        if bias:
            parameters["b"] = self._normal(k, scale=0.1)
        space = ((e + 2 * pad - r) // stride + 1 for e in (h, w))
        return self._add("conv", (x,), (n, k, *space), parameters, stride=stride, pad=pad, groups=groups)

    def norm(self, x: str) -> str:
        c = self.shapes[x][1]
        parameters = {
            "scale": 1.0 + self._normal(c, scale=0.1), "bias": self._normal(c, scale=0.1),
            "mean": self._normal(c, scale=0.1), "var": 1.0 + 0.2 * self._random.random(c).astype(np.float32),
        }  # fmt: skip
        return self._add("batch_norm", (x,), self.shapes[x], parameters)

    def act(self, x: str, kind: str) -> str:
        return self._add(kind, (x,), self.shapes[x])

    def add(self, x: str, y: str) -> str:
        return self._add("add", (x, y), self.shapes[x])

    def times(self, x: str, y: str) -> str:
        return self._add("mul", (x, y), self.shapes[x])

    def max_pool(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        return self._add("max_pool", (x,), (n, c, (h + 1) // 2, (w + 1) // 2))

    def mean(self, x: str) -> str:
        n, c = self.shapes[x][:2]
        return self._add("mean", (x,), (n, c, 1, 1))

    def reshape(self, x: str, *shape: int) -> str:
        return self._add("reshape", (x,), shape, extents=shape)

    def permute(self, x: str, *order: int) -> str:
        return self._add("permute", (x,), tuple(self.shapes[x][axis] for axis in order), order=order)

    def linear(self, x: str, k: int) -> str:
        c = self.shapes[x][-1]
        parameters = {"w": self._normal(c, k, scale=math.sqrt(1.0 / c)), "b": self._normal(k, scale=0.1)}
        return self._add("linear", (x,), (*self.shapes[x][:-1], k), parameters)

    def layer_norm(self, x: str) -> str:
        c = self.shapes[x][-1]
        parameters = {"scale": 1.0 + self._normal(c, scale=0.1), "bias": self._normal(c, scale=0.1)}
        return self._add("layer_norm", (x,), self.shapes[x], parameters)

    def scaled(self, x: str, *shape: int) -> str:
        """Times a parameter of this shape."""
        return self._add("scale", (x,), self.shapes[x], {"w": 0.5 + 0.1 * self._normal(*shape)})

    def shifted(self, x: str, *shape: int) -> str:
        """Plus a parameter of this shape."""
        return self._add("shift", (x,), self.shapes[x], {"w": self._normal(*shape, scale=0.1)})

    def matmul(self, x: str, y: str) -> str:
        return self._add("matmul", (x, y), (*self.shapes[x][:-1], self.shapes[y][-1]))

    def softmax(self, x: str) -> str:
        return self._add("softmax", (x,), self.shapes[x])

    def part(self, x: str, number: int) -> str:
        """x[number]."""
        return self._add("part", (x,), self.shapes[x][1:], number=number)


def resnet50(batch: int) -> Net:
    net = Net(batch, 3, 224, 224)
    x = net.max_pool(net.act(net.norm(net.conv("x", 64, 7, 2)), "relu"))
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            stride = first if number == 0 else 1
            y = net.act(net.norm(net.conv(x, width, 1)), "relu")
            y = net.act(net.norm(net.conv(y, width, 3, stride)), "relu")
            y = net.norm(net.conv(y, 4 * width, 1))
            if number == 0:
                x = net.norm(net.conv(x, 4 * width, 1, stride))
            x = net.act(net.add(y, x), "relu")
    net.linear(net.reshape(net.mean(x), batch, 2048), 1000)
    return net


def _inverted(
    net: Net,
    x: str,
    expand: int,
    channels: int,
    taps: int,
    stride: int,
    function: str,
    is_gated: bool = False,
) -> str:
    """An inverted residual: wider by a factor, depthwise, gated by a squeeze of its average if wanted, narrow."""
    before, y = net.shapes[x][1], x
    if expand > 1:
        y = net.act(net.norm(net.conv(y, expand * before, 1)), function)
    wide = net.shapes[y][1]
    y = net.act(net.norm(net.conv(y, wide, taps, stride, wide)), function)
    if is_gated:
        gate = net.act(net.conv(net.mean(y), max(1, before // 4), 1, bias=True), function)
        y = net.times(y, net.act(net.conv(gate, wide, 1, bias=True), "sigmoid"))
    y = net.norm(net.conv(y, channels, 1))
    return net.add(x, y) if stride == 1 and before == channels else y


def mobilenet_v2(batch: int) -> Net:
    net = Net(batch, 3, 224, 224)
    x = net.act(net.norm(net.conv("x", 32, 3, 2)), "relu6")
    for expand, channels, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            x = _inverted(net, x, expand, channels, 3, 1 if number else first, "relu6")
    x = net.act(net.norm(net.conv(x, 1280, 1)), "relu6")
    net.linear(net.reshape(net.mean(x), batch, 1280), 1000)
    return net


def efficientnet_b0(batch: int) -> Net:
    net = Net(batch, 3, 224, 224)
    x = net.act(net.norm(net.conv("x", 32, 3, 2)), "silu")
    for expand, r, first, channels, count in (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    ):  # fmt: skip
        for number in range(count):
            x = _inverted(net, x, expand, channels, r, 1 if number else first, "silu", is_gated=True)
    x = net.act(net.norm(net.conv(x, 1280, 1)), "silu")
    net.linear(net.reshape(net.mean(x), batch, 1280), 1000)
    return net


def convnext_tiny(batch: int) -> Net:
    net = Net(batch, 3, 224, 224)

    def normed(x: str) -> str:
        return net.permute(net.layer_norm(net.permute(x, 0, 2, 3, 1)), 0, 3, 1, 2)

    x = normed(net.conv("x", 96, 4, 4, bias=True, pad=0))
    for stage, (width, count) in enumerate(((96, 3), (192, 3), (384, 9), (768, 3))):
        if stage:
            x = net.conv(normed(x), width, 2, 2, bias=True, pad=0)
        for _ in range(count):
            y = net.layer_norm(net.permute(net.conv(x, width, 7, 1, width, True), 0, 2, 3, 1))
            y = net.linear(net.act(net.linear(y, 4 * width), "gelu"), width)
            x = net.add(net.scaled(net.permute(y, 0, 3, 1, 2), width, 1, 1), x)
    y = net.layer_norm(net.reshape(net.mean(x), batch, 768))
    net.linear(y, 1000)
    return net


def vit_small(batch: int) -> Net:
    """Patches of 16, 12 layers of 6 heads; the mean of the tokens in place of a token of its own."""
    net = Net(batch, 3, 224, 224)
    tokens, width, heads = 196, 384, 6
    x = net.conv("x", width, 16, 16, bias=True, pad=0)
    x = net.permute(net.reshape(x, batch, width, tokens), 0, 2, 1)
    x = net.shifted(x, 1, tokens, width)
    for _ in range(12):
        y = net.linear(net.layer_norm(x), 3 * width)
        y = net.permute(net.reshape(y, batch, tokens, 3, heads, width // heads), 2, 0, 3, 1, 4)
        q, k, v = (net.part(y, number) for number in range(3))
        scores = net._add(
            "by", (net.matmul(q, net.permute(k, 0, 1, 3, 2)),), (batch, heads, tokens, tokens), factor=1 / 8
        )
        y = net.permute(net.matmul(net.softmax(scores), v), 0, 2, 1, 3)
        x = net.add(x, net.linear(net.reshape(y, batch, tokens, width), width))
        y = net.act(net.linear(net.layer_norm(x), 4 * width), "gelu")
        x = net.add(x, net.linear(y, width))
    x = net.permute(net.layer_norm(x), 0, 2, 1)
    x = net.reshape(net.mean(net.reshape(x, batch, width, tokens, 1)), batch, width)
    net.linear(x, 1000)
    return net


NETS: dict[str, Callable[[int], Net]] = {
    "resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "efficientnet_b0": efficientnet_b0,
    "convnext_tiny": convnext_tiny, "vit_small": vit_small,
}  # fmt: skip


def as_onnx(net: Net) -> Any:
    """The net as an onnx.ModelProto of operator set 17, spelled as PyTorch exports it."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, array: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(op: str, inputs: list[str], output: str, **how: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **how))
        return output

    last = net.calls[-1].output
    for call in net.calls:
        out = "y" if call.output == last else call.output
        x = list(call.inputs)
        p = {name: constant(f"{call.output}.{name}", array) for name, array in call.parameters.items()}
        how = call.how
        match call.op:
            case "conv":
                pads, strides = [how["pad"]] * 4, [how["stride"]] * 2
                node("Conv", [*x, *p.values()], out, pads=pads, strides=strides, group=how["groups"])
            case "batch_norm":
                node("BatchNormalization", [*x, p["scale"], p["bias"], p["mean"], p["var"]], out)
            case "relu" | "sigmoid" | "softmax":
                node(call.op.capitalize(), x, out)
            case "relu6":
                low, high = (constant(f"{out}.{n}", np.float32(n)) for n in (0, 6))
                node("Clip", [*x, low, high], out)
            case "silu":
                node("Mul", [*x, node("Sigmoid", x, f"{out}.s")], out)
            case "gelu":
                root, one, half = (
                    constant(f"{out}.{n}", np.float32(v))
                    for n, v in (("r", math.sqrt(2)), ("1", 1), ("h", 0.5))
                )
                e = node("Erf", [node("Div", [*x, root], f"{out}.d")], f"{out}.e")
                node("Mul", [node("Mul", [*x, node("Add", [e, one], f"{out}.a")], f"{out}.m"), half], out)
            case "add" | "mul" | "matmul":
                node({"add": "Add", "mul": "Mul", "matmul": "MatMul"}[call.op], x, out)
            case "scale" | "shift":
                node("Mul" if call.op == "scale" else "Add", [*x, p["w"]], out)
            case "by":
                node("Mul", [*x, constant(f"{out}.f", np.float32(how["factor"]))], out)
            case "max_pool":
                node("MaxPool", x, out, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
            case "mean":
                node("GlobalAveragePool", x, out)
            case "reshape":
                node("Reshape", [*x, constant(f"{out}.s", np.array(how["extents"], np.int64))], out)
            case "permute":
                node("Transpose", x, out, perm=list(how["order"]))
            case "part":
                node("Gather", [*x, constant(f"{out}.i", np.int64(how["number"]))], out, axis=0)
            case "linear":
                node("Add", [node("MatMul", [*x, p["w"]], f"{out}.p"), p["b"]], out)
            case "layer_norm":
                node("LayerNormalization", [*x, p["scale"], p["bias"]], out)
            case _:
                raise AssertionError(call.op)
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))]
        for name, shape in (("x", net.shape), ("y", net.shapes[last]))
    ]
    graph = helper.make_graph(nodes, "net", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def as_torch(net: Net) -> Any:
    """The net as a torch.nn.Module."""
    import torch
    from torch.nn import functional as f

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number, call in enumerate(net.calls):
                for name, array in call.parameters.items():
                    self.register_buffer(f"p{number}_{name}", torch.from_numpy(array.copy()))

        def forward(self, x: Any) -> Any:
            values = {"x": x}
            for number, call in enumerate(net.calls):
                p = {name: getattr(self, f"p{number}_{name}") for name in call.parameters}
                values[call.output] = _torch_call(f, call, [values[n] for n in call.inputs], p)
            return values[net.calls[-1].output]

    return Module()


def _torch_call(f: Any, call: Call, x: list[Any], p: dict[str, Any]) -> Any:
    how = call.how
    match call.op:
        case "conv":
            return f.conv2d(x[0], p["w"], p.get("b"), how["stride"], how["pad"], 1, how["groups"])
        case "batch_norm":
            return f.batch_norm(x[0], p["mean"], p["var"], p["scale"], p["bias"])
        case "relu" | "relu6" | "silu" | "gelu" | "sigmoid":
            return x[0].sigmoid() if call.op == "sigmoid" else getattr(f, call.op)(x[0])
        case "add":
            return x[0] + x[1]
        case "mul":
            return x[0] * x[1]
        case "matmul":
            return x[0] @ x[1]
        case "scale":
            return x[0] * p["w"]
        case "shift":
            return x[0] + p["w"]
        case "by":
            return x[0] * how["factor"]
        case "softmax":
            return x[0].softmax(-1)
        case "max_pool":
            return f.max_pool2d(x[0], 3, 2, 1)
        case "mean":
            return x[0].mean((2, 3), keepdim=True)
        case "reshape":
            return x[0].reshape(how["extents"])
        case "permute":
            return x[0].permute(how["order"])
        case "part":
            return x[0][how["number"]]
        case "linear":
            return f.linear(x[0], p["w"].t(), p["b"])
        case "layer_norm":
            return f.layer_norm(x[0], x[0].shape[-1:], p["scale"], p["bias"])
    raise AssertionError(call.op)
