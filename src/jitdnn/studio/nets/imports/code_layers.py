"""The layers of Keras and of PyTorch by name: what their arguments say, and the layers of Caffe that they become."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitdnn.errors import NotSupported
from jitdnn.studio.nets.imports.writing import Array, NetWriter

_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def called(node: ast.AST) -> str:
    """The last name of what is called."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def value_of(node: ast.expr) -> Any:
    """A number, text, tuple or sum of numbers. Raises NotSupported for what would have to be run."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(value_of(each) for each in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        try:
            return _OPERATORS[type(node.op)](_number(node.left), _number(node.right))
        except ZeroDivisionError:
            raise NotSupported(f"{ast.unparse(node)[:60]} divides by 0") from None
    if isinstance(node, ast.Attribute | ast.Name):  # tf.nn.relu, activations.relu
        return called(ast.Call(node, [], []))
    raise NotSupported(f"{ast.unparse(node)[:60]} would have to be run: give a number or a text")


def _number(node: ast.expr) -> float:
    found = value_of(node)
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 1e9:
        raise NotSupported(f"{ast.unparse(node)[:60]} is no number that a net has")
    return found


class _Words:
    """The arguments of a layer by name."""

    def __init__(self, call: ast.Call, names: str) -> None:
        self.values: dict[str, Any] = {}
        order = names.split()
        if len(call.args) > len(order):
            raise NotSupported(f"{called(call)} has {len(call.args)} arguments: {', '.join(order) or 'none'}")
        for name, node in [
            *zip(order, call.args, strict=False),
            *((k.arg or "**", k.value) for k in call.keywords),
        ]:
            if name not in _IGNORED:
                self.values[name] = value_of(node)

    def whole(self, name: str, default: Any = None) -> Any:
        """A whole number; raises NotSupported for another value, and where one is needed and not given."""
        found = self.values.pop(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 1 << 30:
            raise NotSupported(f"{name} is {found!r}: a whole number is needed")
        return found

    def pair(self, name: str, default: Any = None) -> tuple[int, int]:
        found = self.values.pop(name, None)
        found = default if found is None else found
        both = found if isinstance(found, tuple) else (found, found)
        if len(both) != 2 or not all(
            isinstance(e, int) and not isinstance(e, bool) and 0 <= e < 1 << 16 for e in both
        ):
            raise NotSupported(f"{name} is {found!r}: one or two whole numbers are needed")
        return both[0], both[1]

    def real(self, name: str, default: float) -> float:
        found = self.values.pop(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise NotSupported(f"{name} is {found!r}: a number is needed")
        return float(found)

    def text(self, name: str, default: str) -> str:
        found = self.values.pop(name, default)
        return str(default if found is None else found)

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.values.pop(name, default))

    def done(self) -> None:
        """Raises NotSupported for arguments that nothing was made of."""
        if self.values:
            name, value = next(iter(self.values.items()))
            raise NotSupported(f"the argument {name}={value!r} has no form")


#: what does not change the net: names, how weights begin, and what training is told elsewhere
_IGNORED: Final = {
    "name", "input_shape", "kernel_initializer", "bias_initializer", "inplace", "dtype", "device", "data_format",
    "trainable", "kernel_regularizer", "momentum", "seed", "in_channels", "in_features", "num_features",
    "input_dim", "batch_size",
}  # fmt: skip


def _empty(*shape: int) -> Array:
    return np.empty(shape, np.float32)


class State:
    """What has been made so far: the blob that the next layer reads."""

    def __init__(self, net: NetWriter) -> None:
        self.net, self.x = net, "data"

    def take(self, call: ast.Call, several: Sequence[str] = ()) -> None:
        """Add the layers of a call, of `several` blobs where it joins them. Raises NotSupported."""
        name = called(call)
        if name in _JOINS:
            if len(several) < 2:
                raise NotSupported(f"{name} joins two blobs and more, and has {len(several)}")
            if _JOINS[name] == "CONCAT":
                self.x = self.net.concat(name.lower(), several, 1)
            else:
                self.x = self.net.eltwise(name.lower(), several, _JOINS[name])
            return
        if len(several) > 1:
            raise NotSupported(f"{name} reads one blob, and has {len(several)}")
        if name in _NOTHING:
            return
        if name not in FORMS:
            raise NotSupported(f"{name or 'this'} has no layer")
        names, form = FORMS[name]
        words = _Words(call, names)
        label = name.lower().removesuffix("2d")
        after = words.text("activation", "") if name in _ACTIVATED else ""
        form(self, words, label)
        words.done()
        if after and after != "linear":
            self.activate(after, after)

    def activate(self, kind: str, label: str) -> None:
        """An activation of Keras, by name."""
        kind = kind.lower()
        if kind == "softmax":
            self.x = self.net.softmax(label, self.x, 1)
        elif kind == "relu6":
            self.x = self.net.relu6(label, self.x)
        elif kind in _ACTIVATIONS:
            self.x = self.net.activation(_ACTIVATIONS[kind], label, self.x)
        else:
            raise NotSupported(
                f"the activation {kind!r} has no layer: {', '.join(_ACTIVATIONS)}, softmax and relu6 have"
            )


def _same(padding: Any, kernel: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    """Padding of Keras' or PyTorch's words, or numbers."""
    if padding == "valid":
        return 0, 0
    if padding != "same":
        raise NotSupported(f"padding is {padding!r}: valid, same or numbers")
    if stride != (1, 1) or any(k % 2 == 0 for k in kernel):
        raise NotSupported(
            f"padding 'same' of a window of {kernel} by steps of {stride} may differ at the two ends of an axis"
        )
    return (kernel[0] - 1) // 2, (kernel[1] - 1) // 2


def _padding(w: _Words, kernel: tuple[int, int], stride: tuple[int, int], default: Any) -> tuple[int, int]:
    if isinstance(w.values.get("padding", default), str):
        return _same(w.text("padding", "valid").lower(), kernel, stride)
    return w.pair("padding", default)


def _conv(
    is_keras: bool, is_transposed: bool = False, is_depthwise: bool = False
) -> Callable[[State, _Words, str], None]:
    def form(s: State, w: _Words, label: str) -> None:
        outputs = 0 if is_depthwise else w.whole("filters" if is_keras else "out_channels")
        kernel = w.pair("kernel_size")
        stride = w.pair("strides" if is_keras else "stride", 1)
        pad = _padding(w, kernel, stride, "valid" if is_keras else 0)
        dilation = w.pair("dilation_rate" if is_keras else "dilation", 1)
        groups = w.whole("groups", 1)
        bias = _empty(outputs) if w.flag("use_bias" if is_keras else "bias", True) else None
        if is_depthwise:
            raise NotSupported("DepthwiseConv2D needs the number of channels: write it in the prototxt")
        if groups < 1 or outputs < 1 or outputs % groups:
            raise NotSupported(f"{outputs} outputs in {groups} groups")
        shape = (1, outputs // groups, *kernel) if is_transposed else (outputs, 1, *kernel)
        s.x = s.net.convolution(
            label, s.x, _empty(*shape), bias, stride, pad, dilation, groups, is_transposed=is_transposed
        )

    return form


def _dense(units: str, bias: str) -> Callable[[State, _Words, str], None]:
    def form(s: State, w: _Words, label: str) -> None:
        outputs = w.whole(units)
        s.x = s.net.product(label, s.x, _empty(outputs, 1), _empty(outputs) if w.flag(bias, True) else None)

    return form


def _pooling(how: str, is_keras: bool) -> Callable[[State, _Words, str], None]:
    def form(s: State, w: _Words, label: str) -> None:
        kernel = w.pair("pool_size" if is_keras else "kernel_size", 2 if is_keras else None)
        stride = w.pair("strides" if is_keras else "stride", kernel)
        pad = _padding(w, kernel, stride, "valid" if is_keras else 0)
        rounds_up = w.flag("ceil_mode", False)
        if how == "AVE" and any(pad) and (is_keras or not w.flag("count_include_pad", True)):
            raise NotSupported("a mean that does not count the padding has no form")
        s.x = s.net.pooling(label, s.x, how, kernel, stride, pad, rounds_up=rounds_up)

    return form


def _global(how: str) -> Callable[[State, _Words, str], None]:
    def form(s: State, w: _Words, label: str) -> None:
        if w.pair("output_size", 1) != (1, 1):
            raise NotSupported("adaptive pooling to more than one place has no form here")
        w.flag("keepdims", False)
        s.x = s.net.global_pooling(label, s.x, how)

    return form


def _norm(epsilon: str, default: float) -> Callable[[State, _Words, str], None]:
    def form(s: State, w: _Words, label: str) -> None:
        one = _empty(1)
        s.x = s.net.batch_norm(label, s.x, one, one, one, one, w.real(epsilon, default))

    return form


def _plain(
    kind: str, argument: str = "", field: str = "", default: float = 0.0
) -> Callable[[State, _Words, str], None]:
    def form(s: State, w: _Words, label: str) -> None:
        s.x = s.net.activation(kind, label, s.x, **({field: w.real(argument, default)} if field else {}))

    return form


def _softmax(s: State, w: _Words, label: str) -> None:
    if w.values.pop("dim", w.values.pop("axis", -1)) not in (1, -1):
        raise NotSupported("softmax over another axis than that of classes")
    s.x = s.net.softmax(label, s.x, 1)


def _dropout(name: str) -> Callable[[State, _Words, str], None]:
    def form(s: State, w: _Words, label: str) -> None:
        s.x = s.net.dropout(label, s.x, w.real(name, 0.5))

    return form


def _flatten(s: State, w: _Words, label: str) -> None:
    if w.values.pop("start_dim", 1) != 1:
        raise NotSupported("a row an image is needed: start_dim 1")
    s.x = s.net.flatten(label, s.x)


def _activation(s: State, w: _Words, label: str) -> None:
    kind = w.text("activation", "")
    s.activate(kind, kind)


_JOINS: Final = {
    "Add": "SUM", "Multiply": "PROD", "Maximum": "MAX", "Concatenate": "CONCAT",
}  # fmt: skip
#: functions and methods of PyTorch by the layer that does the same
FUNCTIONS: Final = {
    "relu": "ReLU", "relu6": "ReLU6", "leaky_relu": "LeakyReLU", "elu": "ELU", "sigmoid": "Sigmoid", "tanh": "Tanh",
    "silu": "SiLU", "softplus": "Softplus", "max_pool2d": "MaxPool2d", "avg_pool2d": "AvgPool2d",
    "adaptive_avg_pool2d": "AdaptiveAvgPool2d", "adaptive_max_pool2d": "AdaptiveMaxPool2d", "dropout": "Dropout",
    "softmax": "Softmax", "log_softmax": "Softmax", "flatten": "Flatten", "view": "Flatten", "reshape": "Flatten",
    "cat": "Concatenate", "concat": "Concatenate",
}  # fmt: skip
_NOTHING: Final = {"Input", "InputLayer", "Identity"}
_ACTIVATED: Final = {"Conv2D", "Dense", "Conv2DTranspose"}
_ACTIVATIONS: Final = {
    "relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "TanH", "elu": "ELU", "softplus": "BNLL", "swish": "Swish",
    "silu": "Swish", "exponential": "Exp",
}  # fmt: skip
_KERAS_CONV: Final = "filters kernel_size strides padding"
_TORCH_CONV: Final = "in_channels out_channels kernel_size stride padding dilation groups bias"
FORMS: Final[dict[str, tuple[str, Callable[[State, _Words, str], None]]]] = {
    "Conv2D": (_KERAS_CONV, _conv(True)),
    "Conv2DTranspose": (_KERAS_CONV, _conv(True, True)),
    "DepthwiseConv2D": ("kernel_size strides padding", _conv(True, False, True)),
    "Dense": ("units activation", _dense("units", "use_bias")),
    "MaxPooling2D": ("pool_size strides padding", _pooling("MAX", True)),
    "MaxPool2D": ("pool_size strides padding", _pooling("MAX", True)),
    "AveragePooling2D": ("pool_size strides padding", _pooling("AVE", True)),
    "GlobalAveragePooling2D": ("", _global("AVE")),
    "GlobalMaxPooling2D": ("", _global("MAX")),
    "BatchNormalization": ("", _norm("epsilon", 1e-3)),
    "Activation": ("activation", _activation),
    "ReLU": ("", _plain("ReLU")),
    "LeakyReLU": ("negative_slope", _plain("ReLU", "negative_slope", "negative_slope", 0.01)),
    "ELU": ("alpha", _plain("ELU", "alpha", "alpha", 1.0)),
    "Softmax": ("dim", _softmax),
    "Dropout": ("p", _dropout("p")),
    "Flatten": ("start_dim", _flatten),
    "Conv2d": (_TORCH_CONV, _conv(False)),
    "ConvTranspose2d": ("in_channels out_channels kernel_size stride padding", _conv(False, True)),
    "Linear": ("in_features out_features bias", _dense("out_features", "bias")),
    "MaxPool2d": ("kernel_size stride padding", _pooling("MAX", False)),
    "AvgPool2d": ("kernel_size stride padding ceil_mode count_include_pad", _pooling("AVE", False)),
    "AdaptiveAvgPool2d": ("output_size", _global("AVE")),
    "AdaptiveMaxPool2d": ("output_size", _global("MAX")),
    "BatchNorm2d": ("num_features eps", _norm("eps", 1e-5)),
    "BatchNorm1d": ("num_features eps", _norm("eps", 1e-5)),
    "ReLU6": ("", lambda s, w, label: s.activate("relu6", label)),
    "Sigmoid": ("", _plain("Sigmoid")),
    "Tanh": ("", _plain("TanH")),
    "SiLU": ("", _plain("Swish")),
    "Softplus": ("", _plain("BNLL")),
    "Dropout2d": ("p", _dropout("p")),
}
