"""Classifier and Detector: nets over images of any size, as in pycaffe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jitdnn.caffe.blob import Array
from jitdnn.caffe.compiled import CompiledNet
from jitdnn.caffe.pycaffe import io, mode
from jitdnn.caffe.pycaffe.net import Net
from jitdnn.errors import InvalidArgument

Path = str | PathLike[str]


class Classifier(Net):
    """A net that gives one row of scores for an image."""

    def __init__(
        self,
        model_file: Path,
        pretrained_file: Path | None,
        image_dims: Sequence[int] | None = None,
        mean: ArrayLike | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        """Build the net for testing. `image_dims`: the extents that images are resized to before they are cropped
        (None: those of the input); the others are those of `io.Transformer`."""
        super().__init__(model_file, mode.TEST, weights=pretrained_file)
        self.transformer, name = _transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = self.blobs[name].shape[2:]
        self.image_dims = tuple(image_dims) if image_dims is not None else self.crop_dims
        self._compiled: CompiledNet | None = None

    def predict(self, inputs: Iterable[Array], oversample: bool = True) -> Array:
        """The scores (images, classes) of images (H, W, K): of the middle of each, or with `oversample` the mean of
        those of ten parts."""
        return self._predict(inputs, oversample, lambda data: self.forward_all(**data)[self.outputs[0]])

    def predict_compiled(self, inputs: Iterable[Array], oversample: bool = True) -> Array:
        """What `predict` gives, by rounding, from the net compiled (`Net.compiled`): blobs stay as they are."""
        if self._compiled is None:
            self._compiled = self.core.compiled(self.outputs[:1])
        forward = self._compiled.forward

        def scores(data: dict[str, Array]) -> Array:
            count = len(data[self.inputs[0]])
            return np.concatenate([forward(**batch)[self.outputs[0]] for batch in self._batches(data)])[
                :count
            ]

        return self._predict(inputs, oversample, scores)

    def _predict(
        self, inputs: Iterable[Array], oversample: bool, scores_of: Callable[[dict[str, Array]], Array]
    ) -> Array:
        images = [io.resize_image(image, self.image_dims) for image in inputs]
        if not images:
            raise InvalidArgument("there is no image to predict")
        if oversample:
            crops = io.oversample(images, self.crop_dims)
        else:
            tall, wide = self.crop_dims
            top, left = (self.image_dims[0] - tall) // 2, (self.image_dims[1] - wide) // 2
            crops = np.stack([image[top : top + tall, left : left + wide] for image in images])
        name = self.inputs[0]
        data = np.stack([self.transformer.preprocess(name, crop) for crop in crops])
        scores = scores_of({name: data})
        if oversample:
            scores = scores.reshape(len(images), 10, -1).mean(1)
        return scores


class Detector(Net):
    """A net that is given windows of images."""

    def __init__(
        self,
        model_file: Path,
        pretrained_file: Path | None,
        mean: ArrayLike | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
    ) -> None:
        """Build the net for testing. `context_pad`: pixels of the input around each window that show what is around it;
        the others are those of `io.Transformer`."""
        super().__init__(model_file, mode.TEST, weights=pretrained_file)
        self.transformer, self._input = _transformer(self, mean, input_scale, raw_scale, channel_swap)
        extents = self.blobs[self._input].shape[2:]
        self.context_pad = int(context_pad or 0)
        if self.context_pad and (extents[0] != extents[1] or 2 * self.context_pad >= extents[0]):
            raise InvalidArgument(f"context_pad {self.context_pad} needs a square input of more than twice of it: "
                                  f"this has {extents}")  # fmt: skip

    def detect_windows(self, images_windows: Iterable[tuple[Path, ArrayLike]]) -> list[dict[str, Any]]:
        """For each image file and its windows (top, left, bottom, right) in pixels, the net's output of each window: a
        list of dictionaries of window, prediction and filename."""
        found: list[dict[str, Any]] = []
        parts: list[Array] = []
        for filename, windows in images_windows:
            image = io.load_image(filename)
            for window in np.asarray(windows, np.float64).reshape(-1, 4):
                parts.append(self.transformer.preprocess(self._input, self.crop(image, window)))
                found.append({"window": window, "filename": filename})
        if not found:
            return []
        predictions = self.forward_all(**{self._input: np.stack(parts)})[self.outputs[0]]
        for detection, prediction in zip(found, predictions.reshape(len(found), -1), strict=True):
            detection["prediction"] = prediction
        return found

    def crop(self, image: Array, window: Array) -> Array:
        """The part of an image, with what is around it if there is a `context_pad`; beyond the image it is the mean."""
        edges = np.asarray(window, np.float64)
        height, width = image.shape[:2]
        if edges.shape != (4,) or not np.isfinite(edges).all():
            raise InvalidArgument(
                f"a window is four finite numbers (top, left, bottom, right), and this one is {edges.tolist()}"
            )
        top, left, bottom, right = (round(edge) for edge in edges.tolist())
        if not (0 <= top < bottom <= height and 0 <= left < right <= width):
            raise InvalidArgument(
                f"window {tuple(edges.tolist())} is no part of an image of {height} x {width}"
            )
        if not self.context_pad:
            return image[top:bottom, left:right]
        size = self.blobs[self._input].shape[2]
        scale = size / (size - 2 * self.context_pad)
        tall, wide = (bottom - top) * scale, (right - left) * scale
        centre = (top + bottom) / 2, (left + right) / 2
        box = [round(centre[0] - tall / 2), round(centre[1] - wide / 2),
               round(centre[0] + tall / 2), round(centre[1] + wide / 2)]  # fmt: skip
        inside = [max(box[0], 0), max(box[1], 0), min(box[2], height), min(box[3], width)]
        room = np.empty((box[2] - box[0], box[3] - box[1], image.shape[2]), np.float32)
        room[...] = self._background(image.shape[2])
        y, x = inside[0] - box[0], inside[1] - box[1]
        part = image[inside[0] : inside[2], inside[1] : inside[3]]
        room[y : y + part.shape[0], x : x + part.shape[1]] = part
        return io.resize_image(room, (size, size))

    def _background(self, channels: int) -> Array:
        """The mean as a colour of an image."""
        mean = self.transformer.mean.get(self._input)
        if mean is None:
            return np.zeros(channels, np.float32)
        colour = np.broadcast_to(mean.mean((1, 2)), (channels,)) / self.transformer.raw_scale.get(
            self._input, 1.0
        )
        swap = self.transformer.channel_swap.get(self._input)
        return colour if swap is None else colour[np.argsort(swap)]


def _transformer(
    net: Net,
    mean: ArrayLike | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> tuple[io.Transformer, str]:
    if not net.inputs:
        raise InvalidArgument("the net has no input: a deploy net, with an Input layer, is needed")
    name = net.inputs[0]
    transformer = io.Transformer({name: net.blobs[name].shape})
    transformer.set_transpose(name, (2, 0, 1))
    transformer.set_all(
        name, mean=mean, input_scale=input_scale, raw_scale=raw_scale, channel_swap=channel_swap
    )
    return transformer, name
