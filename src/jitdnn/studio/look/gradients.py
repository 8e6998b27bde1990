"""How an answer depends on what each layer makes and has learned: gradients of a score as tiles.

The score is that of a class before softmax or sigmoid, of one image; its gradient goes through the net by
`force_backward`, and reaches every blob and every weight on the way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jitdnn.caffe.graph import Node
from jitdnn.errors import InvalidArgument
from jitdnn.studio.look import pictures
from jitdnn.studio.look.classify import given_image
from jitdnn.studio.look.evaluate import name_of, plain
from jitdnn.studio.look.layers import as_maps, groups_of, names_of, statistics, weight_row
from jitdnn.studio.look.saliency import score_gradient
from jitdnn.studio.look.trained import Found, Given, Row, open_trained


def gradients(
    home: Path,
    run: Row,
    dataset: Row,
    given: Given,
    *,
    target: int | None = None,
    weights: str = "",
    most: int = 128,
) -> Found:
    """d score / d blob of every layer that the score depends on, for one image: `layers`, each with name, type, shape,
    statistics, histogram and `tiles` around 0, and `learned`, the same of d score / d weight; with the `image`, the
    `class`, its `name` and its `score`.

    `target` is the class (None: the one with the greatest score). Of layers in place the gradient is that of what they
    are given. Raises InvalidArgument for a class that is not there.
    """
    trained, data = open_trained(home, run, dataset, weights)
    image, _ = given_image(trained, data, dataset, given)
    net = trained.net_with_gradient(trained.scores)
    for layer in net.layers:
        layer.weight_needs_gradient = [True] * len(layer.weights)
    inputs = trained.prepare(image[np.newaxis])
    net.forward(**{trained.input: inputs})
    scores = net.blobs[trained.scores].data.reshape(net.blobs[trained.scores].shape[1], -1).sum(1)
    chosen = int(np.nan_to_num(scores, nan=-np.inf).argmax()) if target is None else target
    if not 0 <= chosen < len(scores):
        raise InvalidArgument(f"there is no class {chosen}: the net has 0 to {len(scores) - 1}")
    for node in net.nodes:
        for blob in node.layer.weights:
            blob.diff[...] = 0  # to which the backward pass adds
    score_gradient(net, trained, inputs, chosen)
    return {
        "image": pictures.image_png(image),
        "class": chosen,
        "name": name_of(data.classes, chosen),
        "score": plain(scores[chosen]),
        "layers": [_of_blob(group, most) for group in groups_of(net)],
        "learned": [
            {
                "name": node.layer.name,
                "type": node.layer.type,
                "weights": [weight_row(blob.name, blob.diff) for blob in node.layer.weights],
            }
            for node in net.nodes
            if node.layer.weights
        ],
    }


def _of_blob(group: list[Node], most: int) -> Found:
    top = group[0].top[0]
    values = top.diff[0] if top.diff.ndim > 1 else top.diff
    return {
        **names_of(group),
        "shape": list(values.shape),
        "tiles": pictures.tiles(as_maps(values), signed=True, most=most),
        **statistics(values),
    }
