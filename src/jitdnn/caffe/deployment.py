"""The net that answers, made from the one that is trained: its data becomes an input, its losses what they compare.

    Data, ImageData, ...                       Input, with what is to be done to images as a transformer
    SoftmaxWithLoss, InfogainLoss              Softmax
    SigmoidCrossEntropyLoss                    Sigmoid
    EuclideanLoss, SmoothL1Loss, HingeLoss     the scores themselves
    MultinomialLogisticLoss                    its probabilities
    Accuracy, Silence, all that reads labels   left out

Losses that compare with the same labels are heads of one answer, such as GoogLeNet's three: that with the largest
weight counts, the last one of several. What only the others read is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jitdnn.caffe.blob import Shape
from jitdnn.caffe.net import Net
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetState
from jitdnn.caffe.schema_layers import BlobShape, InputParameter, TransformationParameter
from jitdnn.caffe.transform import Transformer
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.errors import InvalidArgument

#: layers that bring data from somewhere
SOURCES = ("Data", "ImageData", "MemoryData", "HDF5Data", "WindowData", "DummyData")
#: by the type of a loss, the layer that makes an answer of its scores; None: they are the answer
ANSWERS: Mapping[str, str | None] = {
    "SoftmaxWithLoss": "Softmax",
    "InfogainLoss": "Softmax",
    "SigmoidCrossEntropyLoss": "Sigmoid",
    "EuclideanLoss": None,
    "SmoothL1Loss": None,
    "HingeLoss": None,
    "MultinomialLogisticLoss": None,
    "ContrastiveLoss": None,
}
_NAMES = {"Softmax": "prob", "Sigmoid": "probabilities"}
_JUDGES = ("Accuracy", "Silence", "ArgMax")
_FILLERS = ("weight_filler", "bias_filler")


class Output(NamedTuple):
    """What a net answers: the blob `name`, made of the blob `scores` (the same if nothing is made of it); `kind` is
    "softmax" (probabilities along `axis`), "sigmoid" (a probability each) or "values"; `loss` the name of the loss that
    it comes from, "" if the net had none."""

    name: str
    scores: str
    kind: str
    axis: int
    loss: str


@dataclass(frozen=True)
class Deployment:
    """A net in V2 syntax that answers, and how to put images into it.

    `input` is the blob of its images, `image` their shape (C, H, W) before `transform` is done to them, `outputs` what
    it answers, the most important first. Further inputs, of a net with several layers of data, keep their names and
    have the shapes of a batch of one. `base` is the folder that the mean's file is looked for from.
    """

    net: NetParameter
    input: str
    outputs: tuple[Output, ...]
    image: Shape
    transform: TransformationParameter
    base: Path | None = None

    @cached_property
    def transformer(self) -> Transformer:
        """What is done to images: cropped in the middle, less the mean, scaled. Raises InvalidArgument for a mean that
        cannot be read."""
        return Transformer(self.transform, self.base, "TEST", self.image, np.dtype(np.float32))

    @property
    def answer(self) -> str:
        """The blob of the first output."""
        return self.outputs[0].name

    @property
    def scores(self) -> str:
        """The blob that the first output is made of."""
        return self.outputs[0].scores

    def prepare(self, images: np.ndarray) -> np.ndarray:
        """What the net takes for images (N, C, H, W) as a Data layer has them: cropped in the middle, less the mean,
        scaled, float32. Nothing is mirrored. Raises InvalidShape for images of another shape."""
        out = np.empty((len(images), *self.transformer.shape), np.float32)
        for image, target in zip(images, out, strict=True):
            self.transformer.apply_one(image, target, None)
        return out


def deployment(
    net: NetParameter,
    image: Shape | None = None,
    base: Path | None = None,
    state: NetState | None = None,
) -> Deployment:
    """Turn a net that is trained into one that answers, for one image at a time.

    `image` is the shape (C, H, W) of images before they are cropped; without it the net's source is looked at. `base`
    is the folder of the net's file, for its mean and its source, `state` what is added to phase TEST. A net that has
    inputs already keeps them.

    Raises InvalidArgument for a net without anything to give it or anything that it answers.
    """
    whole = upgrade_net(net)
    tested = _chosen(whole, "TEST", state)
    sources = [layer for layer in tested.layer if layer.type in SOURCES]
    heads = _heads(tested, sources) or _heads_of_training(whole, tested, state)
    outputs, added = _answers(tested, heads) if heads else (_ends(tested, sources), [])
    if not outputs:
        raise InvalidArgument(
            f"net {net.name!r} computes nothing from its data: there is nothing that it answers"
        )
    layers = [*_towards(tested, outputs, heads), *added]
    read = {name for layer in layers for name in layer.bottom}
    inputs = [layer for layer in layers if layer.type in SOURCES or layer.type == "Input"]
    if not inputs:
        raise InvalidArgument(
            f"net {net.name!r} has no layer of data and no Input: there is nothing to give it"
        )
    first = inputs[0]
    data = next(top for top in first.top if top in read or len(first.top) == 1)
    shapes = _shapes(inputs, data, image, base)
    whole_image, transform = _transform(first, shapes[data])
    if len(shapes[data]) == 4:
        shapes[data] = (1, *_cropped(whole_image, transform))
    result = tested.copy()
    result.layer = [_finished(layer, read, shapes) for layer in layers]
    result.clear("state")
    return Deployment(result, data, outputs, whole_image, transform, base)


def _chosen(net: NetParameter, phase: str, state: NetState | None) -> NetParameter:
    wanted = NetState(phase=phase)
    if net.has("state"):
        wanted.merge(net.state)
    if state is not None:
        wanted.merge(state)
    wanted.phase = phase
    return filter_net(net, wanted)


class _Head(NamedTuple):
    """A loss, where it stands in the net, and what it counts."""

    place: int
    loss: LayerParameter
    weight: float


def _heads(net: NetParameter, sources: Sequence[LayerParameter]) -> list[_Head]:
    """The losses that count, the most important first: of those with the same labels the one with the most weight."""
    brought = {top for layer in sources for top in layer.top}
    best: dict[tuple[str, ...], _Head] = {}
    for place, layer in enumerate(net.layer):
        if layer.type not in ANSWERS or not layer.bottom:
            continue
        if layer.type == "EuclideanLoss" and layer.bottom[0] in brought:
            layer = layer.copy()  # which of the two comes first is all the same to it
            layer.bottom = list(reversed(layer.bottom))
        weight = layer.loss_weight[0] if layer.loss_weight else 1.0
        labels = tuple(layer.bottom[1:])
        known = best.get(labels)
        if known is None or weight >= known.weight:
            best[labels] = _Head(place, layer, weight)
    found = [head for head in best.values() if head.loss.bottom[0] not in brought]
    return sorted(found, key=lambda head: (-head.weight, -head.place))


def _heads_of_training(whole: NetParameter, tested: NetParameter, state: NetState | None) -> list[_Head]:
    """Those of a net whose losses are for training alone: of scores that the net for testing has, at its end."""
    trained = _chosen(whole, "TRAIN", state)
    made = {top for layer in tested.layer for top in layer.top}
    found = _heads(trained, [layer for layer in trained.layer if layer.type in SOURCES])
    return [head._replace(place=len(tested.layer)) for head in found if head.loss.bottom[0] in made]


def _answers(net: NetParameter, heads: Sequence[_Head]) -> tuple[tuple[Output, ...], list[LayerParameter]]:
    """What is answered in the place of losses, and the layers that are added for it."""
    taken = {name for layer in net.layer for name in (layer.name, *layer.top)}
    outputs, added = list[Output](), list[LayerParameter]()
    for head in heads:
        scores, kind = head.loss.bottom[0], ANSWERS[head.loss.type]
        axis = head.loss.softmax_param.axis
        if kind is None:
            outputs.append(Output(scores, scores, "values", axis, head.loss.name))
            continue
        # a net may have that layer already, for testing
        own = [
            other
            for other in net.layer
            if other.type == kind and other.bottom == [scores] and other.top != [scores]
        ]
        if own:
            outputs.append(Output(own[-1].top[0], scores, kind.lower(), axis, head.loss.name))
            continue
        name = _new(_NAMES[kind], taken)
        taken.add(name)
        layer = LayerParameter(name=name, type=kind, bottom=[scores], top=[name])
        if kind == "Softmax" and head.loss.has("softmax_param"):
            layer.softmax_param = head.loss.softmax_param.copy()
        added.append(layer)
        outputs.append(Output(name, scores, kind.lower(), axis, head.loss.name))
    return tuple(outputs), added


def _ends(net: NetParameter, sources: Sequence[LayerParameter]) -> tuple[Output, ...]:
    """What a net without losses answers: the blobs that nothing reads, the last one first."""
    judged = [layer for layer in net.layer if layer.type in _JUDGES]
    brought = {
        top for layer in [*sources, *(la for la in net.layer if la.type == "Input")] for top in layer.top
    }
    read = {
        name for layer in net.layer if layer not in judged for name in layer.bottom if name not in layer.top
    }
    found = list[Output]()
    for layer in reversed(net.layer):
        kind = {"Softmax": "softmax", "Sigmoid": "sigmoid"}.get(layer.type, "values")
        for top in layer.top:
            if layer not in judged and top not in read | brought and top not in [each.name for each in found]:
                scores = layer.bottom[0] if kind != "values" and layer.bottom[0] != top else top
                found.append(Output(top, scores, kind, layer.softmax_param.axis, ""))
    return tuple(found)


def _towards(net: NetParameter, outputs: Sequence[Output], heads: Sequence[_Head]) -> list[LayerParameter]:
    """The layers that the outputs depend on, as they stand before the losses."""
    places: dict[int, list[str]] = {}
    for output in outputs:
        head = next((head for head in heads if head.loss.name == output.loss), None)
        made = any(output.name in layer.top for layer in net.layer)
        is_scored = head is not None and (output.name == output.scores or not made)
        place = head.place if head is not None and is_scored else len(net.layer)
        places.setdefault(place, []).append(output.scores if is_scored else output.name)
    needed, kept = set(places.get(len(net.layer), ())), list[LayerParameter]()
    for place in range(len(net.layer) - 1, -1, -1):
        layer = net.layer[place]
        if needed.intersection(layer.top):
            kept.append(layer)
            needed.difference_update(layer.top)
            needed.update(layer.bottom)
        needed.update(places.get(place, ()))
    return kept[::-1]


def _shapes(
    inputs: Sequence[LayerParameter], data: str, image: Shape | None, base: Path | None
) -> dict[str, Shape]:
    """The shapes of all that the inputs make, for one image, before anything is cropped."""
    shapes: dict[str, Shape] = {}
    for layer in inputs:
        if layer.type != "Input" and (image is None or data not in layer.top):
            plain = layer.copy()
            plain.clear("transform_param")
            source = Net(
                NetParameter(layer=[plain]), NetState(phase="TEST"), base=base, seed=0, shapes_only=True
            )
            shapes |= {name: (1, *blob.shape[1:]) for name, blob in source.blobs.items()}
        elif layer.type == "Input":
            given = layer.input_param.shape
            for index, top in enumerate(layer.top):
                shape = given[min(index, len(given) - 1)].dim if given else []
                shapes[top] = (1, *shape[1:])
        else:
            assert image is not None
            shapes |= {top: (1, *image) if top == data else (1,) for top in layer.top}
    return shapes


def _transform(layer: LayerParameter, shape: Shape) -> tuple[Shape, TransformationParameter]:
    """The shape of an image, and what is done to it before it comes into the net; mirroring is for training alone."""
    parameter = TransformationParameter()
    if layer.type in SOURCES and len(shape) == 4:
        parameter = layer.transform_param.copy()
        for name in ("mirror", "force_color", "force_gray"):
            parameter.clear(name)
    return shape[1:] if len(shape) == 4 else (1, 1, 1), parameter


def _cropped(image: Shape, parameter: TransformationParameter) -> Shape:
    """The shape of a transformed image. Raises InvalidShape for one that is too small."""
    plain = TransformationParameter(crop_size=parameter.crop_size)
    return Transformer(plain, None, "TEST", image, np.dtype(np.float32)).shape


def _finished(layer: LayerParameter, read: set[str], shapes: Mapping[str, Shape]) -> LayerParameter:
    """A layer as it stands in a net that answers: the rules that chose it and what its weights start from are gone."""
    result = layer.copy()
    for name in ("include", "exclude", "phase"):
        result.clear(name)
    if layer.type in SOURCES or layer.type == "Input":
        tops = [top for top in layer.top if top in read] or list(layer.top)
        dims = [BlobShape(dim=list(shapes[top])) for top in tops]
        made = LayerParameter(name=layer.name, type="Input", top=tops, input_param=InputParameter(shape=dims))
        made.position, made.positions = layer.position, dict(layer.positions)
        return made
    for field, value in result.present():
        if field.message is not None and not field.is_repeated:
            for name in _FILLERS:
                if name in value.fields:
                    value.clear(name)
    return result


def _new(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    return found
