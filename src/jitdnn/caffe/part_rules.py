"""Which layers several processes cannot divide a batch of: those that mix its images in a way that sums do not undo."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.caffe.graph import Node
from jitdnn.caffe.layers.base import Layer
from jitdnn.errors import NotSupported

#: of layers that work along an axis or from one on: the message that gives it
_AXES = {
    "Bias": "bias_param",
    "Crop": "crop_param",
    "InfogainLoss": "infogain_loss_param",
    "InnerProduct": "inner_product_param",
    "Scale": "scale_param",
    "Slice": "slice_param",
    "Softmax": "softmax_param",
    "SoftmaxWithLoss": "softmax_param",
}


def refuse_undivided(nodes: Sequence[Node]) -> None:
    """Raise NotSupported, naming layer and line, if a net's batch cannot be divided by rows: its gradients would not
    add up to those of the whole batch.
    """
    read = {id(blob) for node in nodes for blob in node.bottom}
    divided: set[int] = set()  # blobs with a part of the batch
    for node in nodes:
        layer = node.layer
        if layer.undivided:
            raise _refusal(layer, layer.undivided)
        message = _AXES.get(layer.type)
        axis = getattr(layer.parameter, message).axis if message else 1
        if message and node.bottom and axis % max(1, len(node.bottom[0].shape)) == 0:
            raise _refusal(layer, "it works along the axis of the images")
        if layer.type == "Permute" and (list(layer.parameter.permute_param.order) or [0])[0] != 0:
            raise _refusal(layer, "it moves the axis of the images")
        if (
            layer.type == "Reduction"
            and layer.parts_of_top == "sum"
            and any(id(blob) in read for blob in node.top)
        ):
            raise _refusal(layer, "other layers read what it sums up over the images")
        is_part = (
            layer.parts_of_top == "rows" if not node.bottom else any(id(b) in divided for b in node.bottom)
        )
        if is_part:
            divided.update(id(blob) for blob in node.top)
        elif any(node.loss_weights):
            raise _refusal(layer, "its loss does not depend on the images, and each process would add it")


def _refusal(layer: Layer, why: str) -> NotSupported:
    message = f"{layer.named()}{why}, so that several processes cannot divide a batch: train with one process"
    return NotSupported(message).at(layer.parameter.place())
