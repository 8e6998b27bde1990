"""The net that answers, made from the one that was trained: an input in the place of its data, probabilities in that of
its loss.

What looks at labels is left out, and so is what only other losses read (GoogLeNet's at half way): the last loss of the
net is the one whose scores count. Its images go through the transformation that the net states for testing, here and
wherever the net goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jitdnn.caffe.blob import Shape
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetState
from jitdnn.caffe.schema_layers import BlobShape, InputParameter, TransformationParameter
from jitdnn.caffe.transform import Transformer
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.errors import InvalidArgument

DATA = ("Data", "ImageData", "MemoryData", "HDF5Data", "WindowData", "DummyData")
#: what stands in the place of a loss, None where its scores are the answer
ANSWERS = {
    "SoftmaxWithLoss": "Softmax",
    "SigmoidCrossEntropyLoss": "Sigmoid",
    "EuclideanLoss": None,
    "SmoothL1Loss": None,
    "HingeLoss": "Softmax",
    "MultinomialLogisticLoss": None,
    "InfogainLoss": None,
}


@dataclass(frozen=True)
class Deployment:
    """`net` in V2 syntax with one Input for one image; `scores` is the blob that `answer` is made of (the same if
    nothing
    is made of it)."""

    net: NetParameter
    transformer: Transformer
    input: str
    scores: str
    answer: str


def deploy(net: NetParameter, image: Shape, base: Path | None = None) -> Deployment:
    """Turn a net for training into the one that answers for images (C, H, W); `base` is the folder of its mean file.

    A net that has an Input already keeps it, and its last output is the answer. Raises InvalidArgument for a net
    without data or without anything to answer.
    """
    found = filter_net(upgrade_net(net), NetState(phase="TEST"))
    sources = [layer for layer in found.layer if layer.type in DATA]
    inputs = [layer for layer in found.layer if layer.type == "Input"]
    if not sources and not inputs:
        raise InvalidArgument(
            f"net {net.name!r} has no layer of data and no Input: there is nothing to give it"
        )
    first = sources[0] if sources else inputs[0]
    parameter = first.transform_param if sources else TransformationParameter()
    transformer = Transformer(parameter, base, "TEST", image, np.dtype(np.float32))
    data = first.top[0]
    labels = {top for layer in [*sources, *inputs] for top in layer.top} - {data}
    kept, heads = _without_labels(
        [layer for layer in found.layer if layer.type not in (*DATA, "Input")], labels
    )
    if heads:
        scores, loss = heads[-1]
        kept = _towards(kept, scores)
    elif kept:
        scores, loss = _last_top(kept), None
    else:
        raise InvalidArgument(f"net {net.name!r} has no layers between its data and its losses")
    answer = scores
    kind = ANSWERS[loss.type] if loss is not None else None
    if loss is not None and kind is not None:
        names = {name for layer in kept for name in (layer.name, *layer.top)} | {data}
        answer = _new("prob" if kind == "Softmax" else "probabilities", names)
        layer = LayerParameter(name=answer, type=kind, bottom=[scores], top=[answer])
        if loss.has("softmax_param") and kind == "Softmax":
            layer.softmax_param = loss.softmax_param.copy()
        kept.append(layer)
    elif loss is None and kept[-1].type in ("Softmax", "Sigmoid") and kept[-1].bottom[0] != answer:
        scores = kept[-1].bottom[0]
    shape = BlobShape(dim=[1, *transformer.shape])
    found.layer = [
        LayerParameter(name=first.name, type="Input", top=[data], input_param=InputParameter(shape=[shape])),
        *kept,
    ]
    for layer in found.layer:
        layer.clear("include")
        layer.clear("exclude")
    return Deployment(found, transformer, data, scores, answer)


def _without_labels(
    layers: Sequence[LayerParameter], labels: set[str]
) -> tuple[list[LayerParameter], list[tuple[str, LayerParameter]]]:
    """The layers that do without labels, and of each loss its scores and itself."""
    tainted, kept, heads = set(labels), list[LayerParameter](), list[tuple[str, LayerParameter]]()
    for layer in layers:
        if layer.type in ANSWERS and layer.bottom and layer.bottom[0] not in tainted:
            heads.append((layer.bottom[0], layer))
        elif not tainted.intersection(layer.bottom) and layer.type not in ("Accuracy", "Silence"):
            kept.append(layer)
            continue
        tainted.update(set(layer.top) - set(layer.bottom))
    return kept, heads


def _towards(layers: Sequence[LayerParameter], blob: str) -> list[LayerParameter]:
    """The layers that a blob depends on."""
    needed, kept = {blob}, list[LayerParameter]()
    for layer in reversed(layers):
        if needed.intersection(layer.top):
            kept.append(layer)
            needed.update(layer.bottom)
    return kept[::-1]


def _last_top(layers: Sequence[LayerParameter]) -> str:
    read = {name for layer in layers for name in layer.bottom if name not in layer.top}
    ends = [top for layer in layers for top in layer.top if top not in read]
    return ends[-1] if ends else layers[-1].top[0]


def _new(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    return found
