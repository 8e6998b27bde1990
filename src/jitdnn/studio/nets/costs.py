"""What the layers of a net take: operations of an image forwards, and bytes in training."""

from __future__ import annotations

import math
from collections.abc import Iterable

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.graph import Node
from jitdnn.caffe.net import Net
from jitdnn.caffe.schema import SolverParameter
from jitdnn.caffe.update_rules import rule_of


def operations(node: Node) -> int:
    """Additions and multiplications of a forward pass of a layer, for one image; of layers without a product of
    matrices one for each result."""
    if not node.top or not node.top[0].shape:
        return 0
    batch = max(1, node.top[0].shape[0])
    weights = node.layer.weights
    if not weights or node.layer.type in ("BatchNorm", "Scale", "Bias", "PReLU", "Embed", "Parameter"):
        return sum(blob.size for blob in node.top) // batch
    each = math.prod(weights[0].shape[1:])
    if node.layer.type == "InnerProduct":
        each = weights[0].size // max(1, node.layer.parameter.inner_product_param.num_output)
    places = node.bottom if node.layer.type == "Deconvolution" else node.top
    return 2 * each * sum(blob.size for blob in places) // batch


def layer_bytes(node: Node) -> int:
    """Bytes of what a layer makes, and of its gradient where there is one; nothing for one that works in place."""
    return _bytes(blob for blob in node.top if blob not in node.bottom)


def activation_bytes(net: Net) -> int:
    """Bytes of all blobs of a net and their gradients; what views another one counts once."""
    blobs = net.blobs.values()
    data = {id(blob.owner): blob.owner.nbytes for blob in blobs}
    gradients = {id(blob.gradient_owner): blob.gradient_owner.nbytes for blob in blobs}
    return sum(data.values()) + sum(gradients.values())


def weight_bytes(net: Net, solver: SolverParameter) -> int:
    """Bytes of weights, their gradients, and what the solver keeps beside them."""
    copies = 2 + len(rule_of(solver).histories) + bool(solver.ema_decay)
    return copies * sum(parameter.blob.nbytes for parameter in net.parameters)


def _bytes(blobs: Iterable[Blob]) -> int:
    return sum(
        (blob.owner is blob) * blob.nbytes + (blob.gradient_owner is blob) * blob.nbytes for blob in blobs
    )
