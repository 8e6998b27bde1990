"""PriorBox of SSD's fork: the boxes that a detector starts from, for each place of a map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.layers.base import Layer, Reads


class PriorBoxLayer(Layer):
    """Bottoms: a map (N, C, H, W) and the images (N, C, P, Q), of which only the extents count. Top (1, 2,
    4 H W boxes): left, upper, right and lower edge of each box as parts of the image, and behind them the `variance` of
    each.

    At each place, whose centre is (place + `offset`) · `step` pixels: for each `min_size` s a square of s, one of
    √(s · `max_size`) if there is one, and boxes of s √r by s / √r for each `aspect_ratio` r other than 1, and for 1 / r
    with `flip`. `step` is the extent of the images by that of the map unless it is given, `clip` keeps boxes inside.
    """

    parts_of_top = "same"
    type = "PriorBox"
    bottoms = (2, 2)
    reads = Reads(bottom=False, top=False)
    forced_bottoms = 0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.prior_box_param
        least, most = parameter.min_size, parameter.max_size
        if not least or min(least) <= 0:
            raise self.invalid(
                f"min_size is {least}: at least one, all positive, is needed", "prior_box_param"
            )
        if most and (len(most) != len(least) or any(b <= a for a, b in zip(least, most, strict=True))):
            raise self.invalid(
                f"max_size {most} must be as many as min_size {least}, and each above its own",
                "prior_box_param",
            )
        ratios = [1.0]
        for ratio in parameter.aspect_ratio:
            if ratio <= 0:
                raise self.invalid(f"aspect_ratio {ratio:g} must be positive", "prior_box_param")
            if all(abs(ratio - other) >= 1e-6 for other in ratios):
                ratios += [ratio, 1 / ratio] if parameter.flip else [ratio]
        self.variance = list(parameter.variance) or [0.1]
        if len(self.variance) not in (1, 4) or min(self.variance) <= 0:
            raise self.invalid(
                f"variance is {self.variance}: give one, or 4, all positive", "prior_box_param"
            )
        sizes = []
        for index, size in enumerate(least):
            sizes.append((size, size))
            if most:
                sizes.append((math.sqrt(size * most[index]),) * 2)
            sizes += [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios[1:]]
        self.sizes = np.array(sizes)
        self.image = self._pair("img_size", "img_h", "img_w")
        self.step = self._pair("step", "step_h", "step_w")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 4 or len(bottom[1].shape) != 4:
            raise self.invalid(
                f"bottoms have shapes {bottom[0].shape} and {bottom[1].shape}; 4 axes (N, C, H, W) are needed"
            )
        (height, width), image = bottom[0].shape[2:], self.image or bottom[1].shape[2:]
        if 0 in bottom[0].shape[2:] or 0 in image:
            raise self.invalid(
                f"bottoms have shapes {bottom[0].shape} and {bottom[1].shape}: extents must be positive"
            )
        steps = self.step or (image[0] / height, image[1] / width)
        offset = self.parameter.prior_box_param.offset
        y, x = np.meshgrid(
            (np.arange(height) + offset) * steps[0], (np.arange(width) + offset) * steps[1], indexing="ij"
        )
        centres = np.stack([x, y], -1)[:, :, None, :]
        corners = np.concatenate([centres - self.sizes / 2, centres + self.sizes / 2], -1)
        corners /= [image[1], image[0]] * 2
        if self.parameter.prior_box_param.clip:
            corners = corners.clip(0, 1)
        self.boxes: Array = corners.reshape(-1)
        top[0].reshape((1, 2, self.boxes.size))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[0, 0] = self.boxes
        top[0].data[0, 1] = np.resize(self.variance, self.boxes.size)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for blob, is_wanted in zip(bottom, propagate, strict=True):
            if is_wanted:
                blob.diff.fill(0)

    def _pair(self, name: str, name_h: str, name_w: str) -> tuple[float, float] | None:
        """Height and width that the fields give, None if they are absent."""
        parameter = self.parameter.prior_box_param
        given = [parameter.has(field) for field in (name, name_h, name_w)]
        if given[1] != given[2] or (given[0] and given[1]):
            raise self.invalid(f"give {name}, or both {name_h} and {name_w}", "prior_box_param")
        if not any(given):
            return None
        names = (name, name) if given[0] else (name_h, name_w)
        pair = float(getattr(parameter, names[0])), float(getattr(parameter, names[1]))
        if min(pair) <= 0:
            raise self.invalid(f"{name} is {pair}: it must be positive", "prior_box_param")
        return pair
