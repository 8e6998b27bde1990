"""What a unit of a layer looks for: an image made from noise, or changed, so that the unit answers strongly.

Gradient ascent on the net's input with three restraints without which it finds noise (Yosinski et al. 2015, Mordvintsev
et al. 2015): the image is moved about by some pixels at each step, the gradient is smoothed, less and less, and large
values decay. Several units are made at once, one in each image of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe import Net
from jitdnn.errors import InvalidArgument
from jitdnn.studio.look import pictures
from jitdnn.studio.look.classify import given_image
from jitdnn.studio.look.evaluate import plain
from jitdnn.studio.look.layers import check_units, units_of
from jitdnn.studio.look.trained import Array, Given, Row, Trained, open_trained

MOST_UNITS: Final = 64
MOST_STEPS: Final = 1024
_DECAY: Final = 0.003
_JITTER: Final = 16  # the image's side over it is the most that it is moved


def maximize(
    home: Path,
    run: Row,
    dataset: Row,
    layer: str,
    units: Sequence[int],
    *,
    steps: int = 128,
    rate: float = 0.06,
    seed: int = 0,
    at: int | None = None,
    weights: str = "",
) -> dict[str, Any]:
    """Images that maximize units (channels; their mean over all places) of a layer, as `tiles` (PNG) and `images`, each
    with its unit, what it was at first and what it is.

    `at` starts from that image of the part that is evaluated, instead of from noise. Raises InvalidArgument for a
    layer or units that are not there.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise InvalidArgument(f"steps is {steps}: 1 to {MOST_STEPS} will do")
    if not 1 <= len(units) <= MOST_UNITS:
        raise InvalidArgument(f"{len(units)} units: 1 to {MOST_UNITS} at a time")
    if not 0 < rate <= 10:
        raise InvalidArgument(f"the rate is {rate:g}: above 0, and at most 10")
    trained, data = open_trained(home, run, dataset, weights)
    start = None
    if at is not None:
        image, _ = given_image(trained, data, dataset, Given(at=at))
        start = trained.prepare(image[np.newaxis])[0]
    found, before, after = ascend(trained, layer, units, steps, rate, seed, start)
    shown = [as_image(trained, each) for each in found]
    columns = max(1, round(np.sqrt(len(shown) * 1.6)))
    described = [
        {"unit": int(unit), "before": plain(a), "after": plain(b), "png": pictures.image_png(image)}
        for unit, a, b, image in zip(units, before, after, shown, strict=True)
    ]
    return {"layer": layer, "tiles": pictures.images_png(shown, columns), "images": described}


def ascend(
    trained: Trained,
    layer: str,
    units: Sequence[int],
    steps: int,
    rate: float,
    seed: int,
    start: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The inputs (N, C, H, W) that units answer to, and their answers before and after."""
    group, count = units_of(trained, layer)
    check_units(layer, units, count)
    # the sum before an activation in place: a unit that is rectified to 0 would have no gradient
    blob, name = group[0].top[0].name, group[0].layer.name
    net = trained.net_with_gradient(blob, name, batch=len(units))
    random = np.random.default_rng(seed)
    low, high = _bounds(trained)
    shape = net.blobs[trained.input].shape
    span = high - low
    if start is None:
        middle = (low + high) / 2
        image = middle + 0.1 * span * random.standard_normal(shape, np.float32)
    else:
        middle = start[np.newaxis].astype(np.float32)
        image = np.repeat(middle, len(units), 0)
    image = image.astype(np.float32)
    before, _ = _step(net, trained.input, blob, image, units)
    for number in range(steps):
        shift = random.integers(-(max(shape[2:]) // _JITTER), max(shape[2:]) // _JITTER + 1, 2)
        moved = np.roll(image, shift, (2, 3))
        _, gradient = _step(net, trained.input, blob, moved, units)
        gradient = np.roll(gradient, -shift, (2, 3))
        gradient = _smoothed(gradient, 1.5 * (1 - number / steps))
        size = np.sqrt(np.square(gradient).mean((1, 2, 3), keepdims=True))
        image += rate * span * gradient / np.maximum(size, 1e-12)
        image = np.clip(image + _DECAY * (middle - image), low, high).astype(np.float32)
    after, _ = _step(net, trained.input, blob, image, units)
    return image, before, after


def as_image(trained: Trained, inputs: Array) -> NDArray[np.uint8]:
    """A net's input (C, H, W) as an image again: scaled back, with the mean."""
    transformer = trained.transformer
    values = inputs / (transformer.scale or 1)
    mean = transformer.mean
    if mean is not None:
        values = values + (pictures.cropped(mean, inputs.shape[1:]) if mean.shape[1:] != (1, 1) else mean)
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _bounds(trained: Trained) -> tuple[Array, Array]:
    """What a black and a white pixel become for the net, (1, C, H, W)."""
    shape = (1, *trained.image_shape)
    low, high = (trained.prepare(np.full(shape, value, np.float32)) for value in (0, 255))
    return np.minimum(low, high), np.maximum(low, high)


def _step(net: Net, source: str, blob: str, image: Array, units: Sequence[int]) -> tuple[Array, Array]:
    """What units answer, the mean over places, and the gradient of that by the image."""
    net.forward(**{source: image})
    top = net.blobs[blob]
    values = top.data.reshape(len(units), top.shape[1] if len(top.shape) > 1 else 1, -1)
    rows = np.arange(len(units))
    found = values[rows, list(units)].mean(1)
    top.diff[...] = 0
    top.diff.reshape(values.shape)[rows, list(units)] = 1.0 / values.shape[2]
    net.backward()
    return found.copy(), net.blobs[source].diff.copy()


def _smoothed(values: Array, sigma: float) -> Array:
    """Gaussian smoothing of the last two axes, edges repeated."""
    reach = int(np.ceil(2 * sigma))
    if reach < 1:
        return values
    weights = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / sigma))
    weights /= weights.sum()
    for axis in (2, 3):
        pad = [(0, 0)] * 4
        pad[axis] = (reach, reach)
        wide = np.pad(values, pad, "edge")
        size = values.shape[axis]
        values = sum(w * np.take(wide, range(k, k + size), axis) for k, w in enumerate(weights))
    return values
