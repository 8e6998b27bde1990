"""What each type of layer is in ONNX: a function of the writer, the layer in its net and the names of its bottoms.

A type that is not in `FORMS` has none. Functions raise NotSupported for a layer that ONNX cannot state; the caller adds
which layer it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jitdnn.caffe.graph import Node
from jitdnn.errors import NotSupported
from jitdnn.studio.export.onnx_pooling import pooling
from jitdnn.studio.export.onnx_writer import Writer

Form = Callable[[Writer, Node, list[str]], list[str]]


def _convolution(operator: str, w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    if layer.axis != 1:
        raise NotSupported(f"axis is {layer.axis}: ONNX has channels at axis 1")
    weights = [
        w.weight(blob.data, name) for blob, name in zip(layer.weights, ("weight", "bias"), strict=False)
    ]
    arguments = layer.arguments
    return [
        w.node(
            operator, [each, *weights], kernel_shape=list(layer.kernel), strides=list(arguments["stride"]),
            pads=[*arguments["padding"]] * 2, dilations=list(arguments["dilation"]), group=arguments["groups"],
        )
        for each in x
    ]  # fmt: skip


def _inner_product(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    weight = layer.weights[0].data
    bias = [w.weight(blob.data, "bias") for blob in layer.weights[1:]]
    if layer.axis == 0:
        raise NotSupported("axis is 0: all images would be one row")
    if layer.axis == 1:
        rows = w.node("Flatten", x, axis=1)
        kept = w.weight(weight, "weight")
        return [w.node("Gemm", [rows, kept, *bias], transB=0 if layer.is_transposed else 1)]
    shape = node.bottom[0].shape
    rows = w.reshaped(x[0], shape, (*shape[: layer.axis], layer.columns))
    product = w.node("MatMul", [rows, w.weight(weight if layer.is_transposed else weight.T, "weight")])
    return [w.node("Add", [product, *bias]) if bias else product]


def _batch_norm(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    if not layer.is_global:
        raise NotSupported("use_global_stats is false: statistics of the batch are no fixed factors")
    means, variances, weight = (blob.data.astype(np.float64) for blob in layer.weights)
    factor = 0.0 if weight[0] == 0 else 1.0 / weight[0]
    ones = np.ones(means.shape)
    values = {"scale": ones, "bias": 0 * ones, "mean": means * factor, "variance": variances * factor}
    operands = [w.weight(value, name) for name, value in values.items()]
    return [w.node("BatchNormalization", [*x, *operands], epsilon=float(layer.epsilon))]


def _per_axis(operator: str, w: Writer, node: Node, x: list[str]) -> list[str]:
    """Scale and Bias: an operand for some axes, a weight or the second bottom."""
    layer: Any = node.layer
    shape = node.bottom[0].shape
    operand = layer.operand(node.bottom)
    behind = next(
        len(shape) - end
        for start in range(len(shape) + 1)
        for end in [start + len(operand.shape)]
        if shape[start:end] == operand.shape and np.prod(shape[:start], dtype=int) == layer.view[0]
    )
    if len(x) == 2:
        axes = w.integers(range(len(operand.shape), len(operand.shape) + behind))
        other = w.node("Unsqueeze", [x[1], axes]) if behind else x[1]
    else:
        other = w.weight(operand.data.reshape(*operand.shape, *(1,) * behind), "factor")
    found = w.node(operator, [x[0], other])
    if operator == "Mul" and layer.bias is not None:
        bias = layer.bias.data
        found = w.node("Add", [found, w.weight(bias.reshape(*bias.shape, *(1,) * behind), "bias")])
    return [found]


def _relu(w: Writer, node: Node, x: list[str]) -> list[str]:
    slope = node.layer.parameter.relu_param.negative_slope
    return [w.node("LeakyRelu", x, alpha=float(slope)) if slope else w.node("Relu", x)]


def _prelu(w: Writer, node: Node, x: list[str]) -> list[str]:
    slope = node.layer.weights[0].data
    behind = (1,) * (len(node.bottom[0].shape) - 2)
    return [w.node("PRelu", [x[0], w.weight(slope.reshape(-1, *behind), "slope")])]


def _elu(w: Writer, node: Node, x: list[str]) -> list[str]:
    return [w.node("Elu", x, alpha=float(node.layer.parameter.elu_param.alpha))]


def _clip(w: Writer, node: Node, x: list[str]) -> list[str]:
    is_six = node.layer.type == "ReLU6"
    low, high = (0.0, 6.0) if is_six else node.layer.numbers()  # type: ignore[attr-defined]
    return [w.node("Clip", [x[0], w.number(low), w.number(high)])]


def _plain(operator: str, w: Writer, node: Node, x: list[str]) -> list[str]:
    return [w.node(operator, x)]


def _same(w: Writer, node: Node, x: list[str]) -> list[str]:
    """Dropout in testing, and Split: every top is the bottom."""
    return x * len(node.top)


def _affine(w: Writer, x: str, scale: float, shift: float) -> str:
    if scale != 1:
        x = w.node("Mul", [x, w.number(scale)])
    return w.node("Add", [x, w.number(shift)]) if shift else x


def _exp(w: Writer, node: Node, x: list[str]) -> list[str]:
    slope, start = node.layer.numbers()  # type: ignore[attr-defined]
    return [w.node("Exp", [_affine(w, x[0], slope, start)])]


def _log(w: Writer, node: Node, x: list[str]) -> list[str]:
    scale, shift, factor = node.layer.numbers()  # type: ignore[attr-defined]
    return [_affine(w, w.node("Log", [_affine(w, x[0], scale, shift)]), factor, 0.0)]


def _power(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    power, scale, shift = layer.numbers()
    if layer.is_constant:
        return [_affine(w, w.node("Mul", [x[0], w.number(0.0)]), 1.0, layer.constant)]
    base = _affine(w, x[0], scale, shift)
    return [base if power == 1 else w.node("Pow", [base, w.number(power)])]


def _swish(w: Writer, node: Node, x: list[str]) -> list[str]:
    (beta,) = node.layer.numbers()  # type: ignore[attr-defined]
    return [w.node("Mul", [x[0], w.node("Sigmoid", [_affine(w, x[0], beta, 0.0)])])]


def _threshold(w: Writer, node: Node, x: list[str]) -> list[str]:
    (threshold,) = node.layer.numbers()  # type: ignore[attr-defined]
    return [w.node("Cast", [w.node("Greater", [x[0], w.number(threshold)])], to=1)]  # 1: float


def _eltwise(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    if layer.operation == "MAX":
        return [w.node("Max", x)]
    if layer.operation == "SUM":
        return [w.node("Sum", [_affine(w, each, f, 0.0) for each, f in zip(x, layer.factors, strict=True)])]
    found = x[0]
    for each in x[1:]:
        found = w.node("Mul", [found, each])
    return [found]


def _axpy(w: Writer, node: Node, x: list[str]) -> list[str]:
    a, shape = node.bottom[0].shape, node.bottom[1].shape
    factor = w.reshaped(x[0], a, (*a[:2], *(1,) * (len(shape) - 2)))
    return [w.node("Add", [w.node("Mul", [factor, x[1]]), x[2]])]


def _lrn(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    size, alpha, beta = layer.size, float(layer.factor), float(layer.exponent)
    if layer.mode == "across":
        return [w.node("LRN", x, size=size, alpha=alpha, beta=beta, bias=float(layer.offset))]
    mean = w.node(
        "AveragePool",
        [w.node("Mul", x * 2)],
        kernel_shape=[size] * 2,
        pads=[size // 2] * 4,
        count_include_pad=1,
    )
    return [w.node("Div", [x[0], w.node("Pow", [_affine(w, mean, alpha, 1.0), w.number(beta)])])]


def _mvn(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    first = 1 if layer.parameter.mvn_param.across_channels else 2
    axes = w.integers(range(first, len(node.bottom[0].shape)))
    centred = w.node("Sub", [x[0], w.node("ReduceMean", [x[0], axes])])
    if not layer.is_divided:
        return [centred]
    variance = w.node("ReduceMean", [w.node("Mul", [centred] * 2), axes])
    return [w.node("Div", [centred, _affine(w, w.node("Sqrt", [variance]), 1.0, layer.epsilon)])]


def _normalize(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    rank = len(node.bottom[0].shape)
    axes = w.integers(range(1, rank if layer.parameter.norm_param.across_spatial else 2))
    norm = w.node("Sqrt", [_affine(w, w.node("ReduceSumSquare", [x[0], axes]), 1.0, 1e-10)])
    weight = layer.weights[0].data.reshape(-1, *(1,) * (rank - 2))
    return [w.node("Mul", [w.node("Div", [x[0], norm]), w.weight(weight, "weight")])]


def _softmax(w: Writer, node: Node, x: list[str]) -> list[str]:
    return [w.node("Softmax", x, axis=node.layer.axis)]  # type: ignore[attr-defined]


def _concat(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    return [w.node("Concat", x, axis=layer.axis_of("concat_param", "concat_dim", len(node.top[0].shape)))]


def _slice(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    axis = layer.axis_of("slice_param", "slice_dim", len(node.bottom[0].shape))
    if axis == 0 or len(x) != 1:
        raise NotSupported("it is cut along the images, whose number is open")
    parts = w.integers([top.shape[axis] for top in node.top], "parts")
    return w.nodes_of("Split", [x[0], parts], len(node.top), axis=axis)


def _crop(w: Writer, node: Node, x: list[str]) -> list[str]:
    part = node.layer.part  # type: ignore[attr-defined]
    axes = [axis for axis, each in enumerate(part) if each != slice(None)]
    if 0 in axes:
        raise NotSupported("it crops the images, whose number is open")
    bounds = ([part[a].start for a in axes], [part[a].stop for a in axes], axes)
    return [w.node("Slice", [x[0], *(w.integers(each, "bounds") for each in bounds)])]


def _tile(w: Writer, node: Node, x: list[str]) -> list[str]:
    before, after = node.bottom[0].shape, node.top[0].shape
    return [
        w.node("Tile", [x[0], w.integers([b // a for a, b in zip(before, after, strict=True)], "repeats")])
    ]


def _permute(w: Writer, node: Node, x: list[str]) -> list[str]:
    return [w.node("Transpose", x, perm=list(node.layer.order))]  # type: ignore[attr-defined]


def _view(w: Writer, node: Node, x: list[str]) -> list[str]:
    return [w.reshaped(x[0], node.bottom[0].shape, node.top[0].shape)]


def _shuffle(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    shape = node.bottom[0].shape
    parted = w.reshaped(x[0], shape, layer.view)
    return [w.reshaped(w.node("Transpose", [parted], perm=[0, 2, 1, 3]), shape, shape)]


def _reduction(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    first, rank = len(node.top[0].shape), len(node.bottom[0].shape)
    operator = {"SUM": "ReduceSum", "ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare", "MEAN": "ReduceMean"}
    found = w.node(operator[layer.operation], [x[0], w.integers(range(first, rank))], keepdims=0)
    return [_affine(w, found, layer.coefficient, 0.0)]


def _upsample(w: Writer, node: Node, x: list[str]) -> list[str]:
    if len(x) == 2:
        raise NotSupported("the mask of a pooling counts within an image, that of ONNX through all of them")
    scales = w.constant(np.array([1, 1, *node.layer.scales], np.float32), "scales")  # type: ignore[attr-defined]
    return [w.node("Resize", [x[0], "", scales], mode="nearest", nearest_mode="floor",
                   coordinate_transformation_mode="asymmetric")]  # fmt: skip


def _interp(w: Writer, node: Node, x: list[str]) -> list[str]:
    layer: Any = node.layer
    inside, channels = x[0], node.bottom[0].shape[1]
    if layer.cuts:
        part = layer.part[2:]
        bounds = ([each.start for each in part], [each.stop for each in part], [2, 3])
        inside = w.node("Slice", [inside, *(w.integers(each, "bounds") for each in bounds)])
    size = w.integers([channels, *layer.size], "size")
    first = w.node("Shape", [inside], start=0, end=1)
    sizes = w.node("Concat", [first, size], axis=0)
    return [
        w.node(
            "Resize", [inside, "", "", sizes], mode="linear", coordinate_transformation_mode="align_corners"
        )
    ]


FORMS: dict[str, Form] = {
    "AbsVal": partial(_plain, "Abs"),
    "Axpy": _axpy,
    "BNLL": partial(_plain, "Softplus"),
    "BatchNorm": _batch_norm,
    "Bias": partial(_per_axis, "Add"),
    "Clip": _clip,
    "Concat": _concat,
    "Convolution": partial(_convolution, "Conv"),
    "ConvolutionDepthwise": partial(_convolution, "Conv"),
    "Crop": _crop,
    "Deconvolution": partial(_convolution, "ConvTranspose"),
    "DepthwiseConvolution": partial(_convolution, "Conv"),
    "Dropout": _same,
    "ELU": _elu,
    "Eltwise": _eltwise,
    "Exp": _exp,
    "Flatten": _view,
    "InnerProduct": _inner_product,
    "Interp": _interp,
    "LRN": _lrn,
    "Log": _log,
    "MVN": _mvn,
    "Normalize": _normalize,
    "PReLU": _prelu,
    "Permute": _permute,
    "Pooling": pooling,
    "Power": _power,
    "ReLU": _relu,
    "ReLU6": _clip,
    "Reduction": _reduction,
    "Reshape": _view,
    "Scale": partial(_per_axis, "Mul"),
    "ShuffleChannel": _shuffle,
    "Sigmoid": partial(_plain, "Sigmoid"),
    "Silence": lambda w, node, x: [],
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _same,
    "Swish": _swish,
    "TanH": partial(_plain, "Tanh"),
    "Threshold": _threshold,
    "Tile": _tile,
    "Upsample": _upsample,
}
