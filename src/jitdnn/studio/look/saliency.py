"""Which pixels a score depends on: its gradient by the image, the same over noisy copies, and what covering does.

gradient      Simonyan et al. 2013: |d score / d pixel|, the greatest of the channels
smooth        SmoothGrad, Smilkov et al. 2017: its mean over copies with noise
occlusion     Zeiler and Fergus 2013: how far the answer falls where a patch covers the image

The gradient is that of the score before softmax or sigmoid, and goes through the net by `force_backward`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from jitdnn.caffe import Net
from jitdnn.errors import InvalidArgument
from jitdnn.studio.look import pictures
from jitdnn.studio.look.classify import given_image
from jitdnn.studio.look.evaluate import name_of, plain
from jitdnn.studio.look.trained import Array, Found, Given, Row, Trained, open_trained

COPIES: Final = 16
NOISE: Final = 0.15  # of the span of the image
_SIDE: Final = 25  # places of a patch along an axis


def saliency(
    home: Path,
    run: Row,
    dataset: Row,
    kind: str,
    given: Given,
    *,
    weights: str = "",
    target: int | None = None,
    seed: int = 0,
) -> Found:
    """A map of one image for class `target` (None: the one that is said): `kind` gradient, smooth or occlusion.

    Returns `map` (H, W), `overlay` and `image` (PNG), the class and its probability or number. Raises InvalidArgument.
    """
    trained, data = open_trained(home, run, dataset, weights)
    image, _ = given_image(trained, data, dataset, given)
    inputs = trained.prepare(image[np.newaxis])
    answer = trained.run(inputs)[0]
    totals = answer.reshape(len(answer), -1).sum(1) if answer.ndim > 1 else answer
    chosen = int(np.nan_to_num(totals, nan=-np.inf).argmax()) if target is None else target
    if not 0 <= chosen < len(totals):
        raise InvalidArgument(f"there is no class {chosen}: the net has 0 to {len(totals) - 1}")
    if kind == "occlusion":
        found = occlusion_map(trained, inputs[0], chosen)
    elif kind in ("gradient", "smooth"):
        found = gradient_map(trained, inputs[0], chosen, COPIES if kind == "smooth" else 1, seed)
    else:
        raise InvalidArgument(f"the kind is {kind!r}: gradient, smooth or occlusion")
    seen = pictures.cropped(image, inputs.shape[2:])
    value = totals[chosen] / (answer[0].size if answer.ndim > 1 else 1)
    return {
        "kind": kind,
        "map": found,
        "overlay": pictures.heat_over(seen, found, signed=kind == "occlusion"),
        "image": pictures.image_png(seen),
        "class": chosen,
        "name": name_of(data.classes, chosen),
        "value": plain(value),
    }


def gradient_map(trained: Trained, image: Array, target: int, copies: int = 1, seed: int = 0) -> Array:
    """|d score / d input| (H, W), the greatest of the channels, the mean over `copies` of which all but the first one
    have noise; `image` is prepared, (C, H, W).
    """
    try:
        net = trained.net_with_gradient(trained.scores, batch=min(copies, trained.batch))
    except InvalidArgument:  # a net for one number of images, by a Reshape that says so
        net = trained.net_with_gradient(trained.scores)
    batch = net.blobs[trained.input].shape[0]
    random = np.random.default_rng(seed)
    noise = NOISE * float(np.ptp(image))
    total = np.zeros(image.shape[1:])
    for start in range(0, copies, batch):
        count = min(batch, copies - start)
        given = np.repeat(image[np.newaxis], batch, 0)
        if copies > 1:
            given += noise * random.standard_normal(given.shape, np.float32)
            if start == 0:
                given[0] = image
        gradients = score_gradient(net, trained, given, target)[:count]
        total += np.abs(gradients).max(1).sum(0)
    return total / copies


def score_gradient(net: Net, trained: Trained, inputs: Array, target: int) -> Array:
    """d score / d input of each of a batch: of a segmentation the sum of the class's scores over all pixels."""
    net.forward(**{trained.input: inputs})
    scores = net.blobs[trained.scores]
    scores.diff[...] = 0
    scores.diff.reshape(len(inputs), scores.shape[1], -1)[:, target] = 1
    net.backward()
    gradient: Array = net.blobs[trained.input].diff
    return gradient


def occlusion_map(trained: Trained, image: Array, target: int, patch: int | None = None) -> Array:
    """How far the answer falls (H, W) where a patch with the image's mean covers it: positive where it is needed.

    Patches of `patch` pixels (None: a sixth of the image) stand at up to 25 places along each axis, and each pixel
    gets the mean of those that cover it.
    """
    height, width = image.shape[1:]
    side = patch or max(2, min(height, width) // 6)
    if not 1 <= side <= min(height, width):
        raise InvalidArgument(f"a patch of {side} pixels does not fit an image of {height} x {width}")
    tops, lefts = (_places(extent, side) for extent in (height, width))
    mean = image.mean((1, 2), keepdims=True)
    places = [(top, left) for top in tops for left in lefts]
    whole = _share_of(trained.run(image[np.newaxis]), target)[0]
    total, counts = np.zeros((height, width)), np.zeros((height, width))
    for start in range(0, len(places), 256):
        chosen = places[start : start + 256]
        covered = np.repeat(image[np.newaxis], len(chosen), 0)
        for each, (top, left) in zip(covered, chosen, strict=True):
            each[:, top : top + side, left : left + side] = mean
        fallen = whole - _share_of(trained.run(covered), target)
        for value, (top, left) in zip(fallen, chosen, strict=True):
            total[top : top + side, left : left + side] += value
            counts[top : top + side, left : left + side] += 1
    return total / np.maximum(counts, 1)


def _share_of(answers: Array, target: int) -> Array:
    found: Array = answers.reshape(len(answers), answers.shape[1], -1)[:, target].mean(1, dtype=np.float64)
    return found


def _places(extent: int, side: int) -> list[int]:
    count = min(_SIDE, extent - side + 1)
    return sorted({round(place) for place in np.linspace(0, extent - side, count)})
