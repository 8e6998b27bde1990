"""The end of a net for a task: its loss, and as many scores as the data set has classes.

classification   SoftmaxWithLoss, Accuracy               a class each
multi-label      SigmoidCrossEntropyLoss                 0 or 1 for each class
regression       EuclideanLoss                           a number for each target
segmentation     SoftmaxWithLoss, Accuracy               a class for each pixel
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.caffe.blob import Shape
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetStateRule
from jitdnn.caffe.schema_layers import LossParameter
from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.nets.changes import Changes
from jitdnn.studio.nets.facts import DataFacts

LOSSES = {
    "classification": "SoftmaxWithLoss",
    "multi-label": "SigmoidCrossEntropyLoss",
    "regression": "EuclideanLoss",
    "segmentation": "SoftmaxWithLoss",
}
#: losses of scores and labels that stand for each other
_EXCHANGED = ("SoftmaxWithLoss", "SigmoidCrossEntropyLoss", "EuclideanLoss")
_SCORED = {*_EXCHANGED, "HingeLoss", "MultinomialLogisticLoss", "InfogainLoss", "SmoothL1Loss"}
_WEIGHTED = {
    "InnerProduct": "inner_product_param",
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
}
# what changes the number of channels and has no num_output
_STOPS = {"Concat", "Slice", "Reshape", "Tile", "SPP", "Im2col", "Reduction", "ArgMax", "Flatten"}


def fit_heads(
    net: NetParameter, facts: DataFacts, labels: Sequence[str], image: Shape, changes: Changes
) -> None:
    """Give the net, in V2 syntax, the losses of the data set's task and the numbers of outputs; `labels` are the tops
    of its layers of data that hold labels, `image` is the shape (C, H, W) of what it gets.

    Raises InvalidArgument for a task that is not trained, and for fewer outputs than classes.
    """
    if facts.task not in LOSSES:
        raise InvalidArgument(
            f"data set {facts.name!r} has boxes: nets for {facts.task} can be looked at here and not trained; choose a "
            f"data set for {', '.join(LOSSES)}"
        )
    wanted = LOSSES[facts.task]
    for layer in list(net.layer):
        if layer.type == "Accuracy" and facts.task in ("multi-label", "regression"):
            net.layer.remove(layer)
            changes.add(
                layer,
                texts.text(
                    "layer %(name)s (Accuracy) left out: it counts single classes", name=repr(layer.name)
                ),
            )
    for layer in net.layer:
        if layer.type in _EXCHANGED and layer.type != wanted and set(layer.bottom) & set(labels):
            changes.add(
                layer,
                texts.text(
                    "layer %(name)s: %(wanted)s in the place of %(type)s, for %(task)s",
                    name=repr(layer.name),
                    wanted=wanted,
                    type=layer.type,
                    task=facts.task,
                ),
            )
            layer.type = wanted
            layer.clear("softmax_param")
            layer.loss_param = LossParameter() if wanted == "EuclideanLoss" else layer.loss_param.copy()
            if not layer.loss_param.present():
                layer.clear("loss_param")
    if not any(layer.type in _SCORED or any(layer.loss_weight) for layer in net.layer):
        _add_loss(net, wanted, labels, changes)
    for layer in net.layer:
        if layer.type in _SCORED and len(layer.bottom) > 1:
            if layer.bottom[1] in labels:
                _set_outputs(net, layer, facts, changes)
            else:
                _set_image(net, layer, image, changes)


def _add_loss(net: NetParameter, kind: str, labels: Sequence[str], changes: Changes) -> None:
    """A net for use gets a loss at its end, in the place of the softmax that it has there."""
    read = {name for layer in net.layer for name in layer.bottom}
    last = net.layer[-1]
    if not last.bottom:
        return
    if last.type in ("Softmax", "Sigmoid") and kind != "EuclideanLoss" and not set(last.top) & read:
        net.layer.remove(last)
        scores = last.bottom[0]
    elif last.top and last.top[0] not in labels:
        scores = last.top[0]
    else:
        return
    if kind == "SoftmaxWithLoss":
        rule = NetStateRule(phase="TEST")
        net.layer.append(
            LayerParameter(
                name="accuracy", type="Accuracy", bottom=[scores, labels[0]], top=["accuracy"], include=[rule]
            )
        )
    net.layer.append(LayerParameter(name="loss", type=kind, bottom=[scores, labels[0]], top=["loss"]))
    changes.add(
        last,
        texts.text(
            "the net has no loss: layer 'loss' (%(kind)s) of %(scores)s added", kind=kind, scores=repr(scores)
        ),
    )


def _set_outputs(net: NetParameter, loss: LayerParameter, facts: DataFacts, changes: Changes) -> None:
    source = scoring_layer(net, loss)
    if source is None:
        return
    count = max(1, len(facts.classes))
    field = _WEIGHTED[source.type]
    holder = getattr(source, field)
    if not holder.has("num_output"):
        if not source.has(field):
            setattr(source, field, type(holder)())
        getattr(source, field).num_output = count
        changes.add(
            source,
            texts.text(
                "layer %(name)s has %(count)d outputs, one for each target",
                name=repr(source.name),
                count=count,
            )
            if facts.task == "regression"
            else texts.text(
                "layer %(name)s has %(count)d outputs, one for each class",
                name=repr(source.name),
                count=count,
            ),
        )
        return
    given = holder.num_output
    if given < count or (given != count and facts.task in ("multi-label", "regression")):
        raise InvalidArgument(
            f"layer {source.name!r} ({source.type}){source.where(field)} has num_output {given}, and data set "
            f"{facts.name!r} needs {count}, one for each {_noun(facts)}: take num_output out, and it is set"
        ).at(source.place(field))
    if given != count:
        changes.add(
            source,
            texts.text(
                "layer %(name)s has %(given)s outputs, and the data set %(count)s classes",
                name=repr(source.name),
                given=given,
                count=count,
            ),
        )


def _set_image(net: NetParameter, loss: LayerParameter, image: Shape, changes: Changes) -> None:
    """What is compared with the image itself has as many numbers, or channels."""
    source = scoring_layer(net, loss)
    if source is None or getattr(source, _WEIGHTED[source.type]).has("num_output"):
        return
    holder = _WEIGHTED[source.type]
    if not source.has(holder):
        setattr(source, holder, type(getattr(source, holder))())
    count = math.prod(image) if source.type == "InnerProduct" else image[0]
    getattr(source, holder).num_output = count
    changes.add(
        source,
        texts.text(
            "layer %(name)s has %(count)s outputs, as many as an image", name=repr(source.name), count=count
        ),
    )


def _noun(facts: DataFacts) -> str:
    return "target" if facts.task == "regression" else "class"


def scoring_layer(net: NetParameter, loss: LayerParameter) -> LayerParameter | None:
    """The layer with weights whose outputs are the scores that a loss reads, None if that cannot be said."""
    end = next(index for index, layer in enumerate(net.layer) if layer is loss)
    name = loss.bottom[0]
    for layer in reversed(net.layer[:end]):
        if name not in layer.top:
            continue
        if layer.type in _WEIGHTED:
            return layer
        if layer.type in _STOPS or not layer.bottom:
            return None
        name = layer.bottom[0]
    return None
