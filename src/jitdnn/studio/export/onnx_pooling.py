"""Pooling in ONNX with Caffe's rounding and divisor: the padding at the end is stated, and nothing is left to be
rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.caffe.graph import Node
from jitdnn.errors import NotSupported
from jitdnn.studio.export.onnx_writer import Writer


def pooling(w: Writer, node: Node, x: list[str]) -> list[str]:
    """MAX and AVE, global or not; the mask of MAX and STOCHASTIC have no form."""
    layer: Any = node.layer
    if layer.method == "STOCHASTIC":
        raise NotSupported("pool STOCHASTIC has no operator in ONNX")
    if len(node.top) > 1:
        raise NotSupported("the mask counts within an image, that of ONNX through all of them")
    extents, outputs = node.bottom[0].shape[2:], node.top[0].shape[2:]
    strides, padding = layer.arguments["stride"], layer.arguments["padding"]
    geometry = list(zip(extents, outputs, layer.window, strides, padding, strict=True))
    ends = [max(0, (q - 1) * s + k - i - p) for i, q, k, s, p in geometry]
    if layer.method == "AVE" and tuple(layer.window) == tuple(extents) and not any((*padding, *ends)):
        return [w.node("GlobalAveragePool", x)]
    attributes = {"kernel_shape": list(layer.window), "strides": list(strides), "pads": [*padding, *ends]}
    if layer.method == "MAX":
        # a window of the padding alone would be minus infinity; Caffe's rounding leaves none
        return [w.node("MaxPool", x, **attributes)]
    found = w.node("AveragePool", x, count_include_pad=1, **attributes)
    # ONNX divides by the whole window; Caffe by its part within the image and the padding that was asked for
    counts = [
        np.array([min(j * s - p + k, i + p) - (j * s - p) for j in range(q)], np.float64)
        for i, q, k, s, p in geometry
    ]
    factor = np.prod(layer.window) / np.multiply.outer(*counts)
    return [found if (factor == 1).all() else w.node("Mul", [found, w.weight(factor, "divisor")])]
