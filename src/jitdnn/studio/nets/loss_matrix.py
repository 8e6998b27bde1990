"""Class weights and label smoothing: SoftmaxWithLoss as Caffe's InfogainLoss, with a matrix, while a net is trained.

    InfogainLoss        −Σ H[label, k] log p[k], the mean over the labels
    H[label, k]         w[k] ((1 − ε) [k = label] + ε / K),   ε the smoothing, w the class weights, K the classes

which is PyTorch's cross entropy with `weight` and `label_smoothing`, but that the mean counts each label once, whatever
its weight. Tests go on with SoftmaxWithLoss, so that runs can be compared whatever they were trained with.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetStateRule
from jitdnn.caffe.schema_layers import InfogainLossParameter
from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.nets.binding import Bound
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.options import BALANCED, Options

#: the file of a run that has H
FILE: Final = "infogain.npy"
_TASKS = ("classification", "segmentation")


def loss_matrix(options: Options, facts: DataFacts) -> Array | None:
    """H of a training, (K, K) float32; None where it has neither class weights nor smoothing.

    Raises InvalidArgument for a task without classes that exclude each other, and for weights that do not fit the
    classes.
    """
    if not options.smoothing and not options.class_weights:
        return None
    if facts.task not in _TASKS:
        name = "smoothing" if options.smoothing else "class_weights"
        raise InvalidArgument(
            f"{name} is for {' and '.join(_TASKS)}, and data set {facts.name!r} is for {facts.task}: leave it out"
        )
    count = len(facts.classes)
    weights = _weights(options.class_weights, facts) if options.class_weights else np.ones(count)
    smooth = np.eye(count) * (1 - options.smoothing) + options.smoothing / count
    return (weights * smooth).astype(np.float32)


def _weights(text: str, facts: DataFacts) -> Array:
    count = len(facts.classes)
    if text == BALANCED:
        held = np.array(facts.class_counts, np.float64)
        if len(held) != count or not held.sum():
            raise InvalidArgument(
                f"class_weights is {BALANCED!r}, and data set {facts.name!r} does not say how many images its classes "
                f"have: give {count} numbers"
            )
        # a class without images has none to weigh
        there = held > 0
        return np.where(there, held.sum() / (there.sum() * np.maximum(held, 1)), 1.0)
    given = np.array([float(part) for part in text.replace(",", " ").split()])
    if len(given) != count:
        raise InvalidArgument(
            f"class_weights has {len(given)} numbers, and data set {facts.name!r} {count} classes: give one for each, "
            f"in their order, or {BALANCED!r}"
        )
    return given


def train_by_matrix(bound: Bound, is_listed_only: bool = False) -> None:
    """Have the net's losses of single classes read FILE in training, and list it among the changes; with
    `is_listed_only` they are listed and nothing is changed.

    Raises InvalidArgument for a net without such a loss.
    """
    label = bound.data[1]
    layers = [
        each
        for each in bound.net.layer
        if each.type == "SoftmaxWithLoss" and label in each.bottom[1:] and _is_in(each, "TRAIN")
    ]
    if not layers:
        raise InvalidArgument(
            "class_weights and smoothing change the loss SoftmaxWithLoss, and the net has none that reads the labels"
        )
    for layer in layers:
        bound.changes.add(
            layer,
            texts.text(
                "layer %(name)s: InfogainLoss while it is trained, for class weights and smoothing",
                name=repr(layer.name),
            ),
        )
        if not is_listed_only:
            _divide(bound.net, layer)


def _divide(net: NetParameter, layer: LayerParameter) -> None:
    """One layer for training, one for testing, in the place of `layer`."""
    trained = layer.copy()
    trained.position, trained.positions = layer.position, dict(layer.positions)
    trained.type = "InfogainLoss"
    trained.infogain_loss_param = InfogainLossParameter(source=FILE)
    if layer.softmax_param.has("axis"):
        trained.infogain_loss_param.axis = layer.softmax_param.axis
    trained.clear("softmax_param")
    place = next(index for index, each in enumerate(net.layer) if each is layer)
    if not _is_in(layer, "TEST"):
        net.layer[place] = trained
        return
    _restrict(trained, "TRAIN", "TEST")
    _restrict(layer, "TEST", "TRAIN")
    net.layer.insert(place, trained)


def _is_in(layer: LayerParameter, phase: str) -> bool:
    """Whether the rules of a layer, as far as they are of phases, let it into a phase."""
    if layer.include:
        return any(not rule.has("phase") or rule.phase == phase for rule in layer.include)
    return not any(rule.has("phase") and rule.phase == phase for rule in layer.exclude)


def _restrict(layer: LayerParameter, phase: str, other: str) -> None:
    """Have a layer in one phase only. A layer has rules of one kind, include or exclude."""
    if layer.exclude:
        layer.exclude.append(NetStateRule(phase=other))
        return
    rules = [rule for rule in layer.include if not rule.has("phase") or rule.phase == phase]
    for rule in rules:
        rule.phase = phase
    layer.include = rules or [NetStateRule(phase=phase)]
