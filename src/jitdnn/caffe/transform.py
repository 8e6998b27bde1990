"""transform_param: crop, subtract the mean, scale, mirror.

value = (x − mean) · scale. The crop of crop_size x crop_size is at random in training and in the middle
otherwise; `mirror: true` mirrors every second image on average, in testing too. The mean is a file (an image
of the full size, read where the crop is) or mean_value, one for all channels or one for each.

What is random about an image is drawn before it is decoded (`draw`), as many numbers for each, so that it does not
depend on who decodes it, nor when.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe import paths
from jitdnn.caffe.arrays import read_npy, read_npz
from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.blob_proto import read_binaryproto
from jitdnn.caffe.schema_layers import TransformationParameter
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType

Draw = tuple[int, int, int]
"""Whole numbers below 2³², drawn for one image: for mirroring, and for the row and the column of the crop."""


_HALF = 1 << 31


class Transform(Protocol):
    """What is done to the images of a source. It may be used by several threads at a time."""

    @property
    def shape(self) -> Shape:
        """(C, H, W) of what comes out."""

    def draw(self, random: np.random.Generator, count: int) -> list[Draw | None]:
        """Draw for so many images; nothing is drawn if nothing is random."""

    def apply_one(self, image: Array, out: Array, draw: Draw | None) -> None:
        """Write one transformed image to `out` (C, H, W)."""


class Transformer:
    """What a Data layer does to each image. It may be used by several threads at a time."""

    def __init__(
        self,
        parameter: TransformationParameter,
        base: Path | None,
        phase: str,
        image: Shape,
        dtype: np.dtype[Any],
    ) -> None:
        """Check the parameters for images like the first one, (C, H, W)."""
        self.parameter = parameter
        self.is_training = phase == "TRAIN"
        self.scale = dtype.type(parameter.scale)
        self.crop = parameter.crop_size
        self.channels = image[0]
        mean = read_mean(parameter, base, self.channels)
        if mean is not None and parameter.has("mean_file") and mean.shape != image:
            raise InvalidShape(
                f"mean_file {parameter.mean_file} has shape {mean.shape}, the images have {image}: they must agree"
            )
        self.mean: Array | None = None if mean is None else mean.astype(dtype)
        self.image = image
        self._crop_offsets(image, None)

    @property
    def shape(self) -> Shape:
        """(C, H, W) of what comes out."""
        return (self.channels, self.crop, self.crop) if self.crop else self.image

    def draw(self, random: np.random.Generator, count: int) -> list[Draw | None]:
        """Draw for so many images; nothing is drawn if nothing is random."""
        if not (self.parameter.mirror or (self.crop and self.is_training)):
            return [None] * count
        drawn = random.integers(0, 1 << 32, (count, 3), np.uint64).tolist()
        return [(mirror, row, column) for mirror, row, column in drawn]

    def apply(self, images: Array | list[Array], out: Array, random: np.random.Generator) -> None:
        """Write the transformed images to `out` (n, C, H, W)."""
        self.apply_drawn(images, out, self.draw(random, len(images)))

    def apply_drawn(self, images: Array | list[Array], out: Array, draws: list[Draw | None]) -> None:
        """As `apply`, by what `draw` gave for each image."""
        if isinstance(images, np.ndarray) and not self.crop:
            self._scaled(images, self.mean, out)
            mirrored = [place for place, draw in enumerate(draws) if self._is_mirrored(draw)]
            if mirrored:
                out[mirrored] = out[mirrored][..., ::-1]
            return
        for image, target, draw in zip(images, out, draws, strict=True):
            self.apply_one(image, target, draw)

    def apply_one(self, image: Array, out: Array, draw: Draw | None) -> None:
        """Write one transformed image to `out` (C, H, W)."""
        self.check(image.shape)
        mean = self.mean
        if self.crop:
            window = (slice(None), *self._crop_window(image.shape, draw))
            if mean is not None and mean.shape[1:] != (1, 1):
                mean = mean[window]
            image = image[window]
        self._scaled(image, mean, out[..., ::-1] if self._is_mirrored(draw) else out)

    def check(self, image: Shape) -> None:
        """Raises InvalidShape for an image that is not like the others, or not like the mean."""
        if image[0] != self.channels or (not self.crop and image != self.image):
            raise InvalidShape(
                f"an image has shape {image}, the first one {self.image}: all must have one size "
                "unless crop_size is set, and one number of channels (force_color, force_gray)"
            )
        self._crop_offsets(image, None)
        mean = self.mean
        if self.crop and mean is not None and mean.shape[1:] != (1, 1) and mean.shape != image:
            raise InvalidShape(f"the mean image has shape {mean.shape}, this image {image}: they must agree")

    def cut(self, image: Array, out: Array, draw: Draw | None) -> tuple[int, int, bool]:
        """Write what the crop leaves of an image to `out` (C, H, W), as it is; the row and the column where that
        begins, and whether it is to be mirrored.
        """
        self.check(image.shape)
        if not self.crop:
            np.copyto(out, image)
            return 0, 0, self._is_mirrored(draw)
        rows, columns = self._crop_window(image.shape, draw)
        np.copyto(out, image[:, rows, columns])
        return rows.start, columns.start, self._is_mirrored(draw)

    def places(self, image: Shape, draws: list[Draw | None]) -> NDArray[np.int32]:
        """The same three numbers for images of one shape, (n, 3)."""
        found = np.zeros((len(draws), 3), np.int32)
        words = np.array(draws, np.uint64) if draws and draws[0] is not None else None
        if self.crop:
            for axis in (1, 2):
                room = image[axis] - self.crop
                is_drawn = words is not None and self.is_training
                found[:, axis - 1] = _offset(words[:, axis], room) if is_drawn else room // 2  # type: ignore[index]
        if self.parameter.mirror and words is not None:
            found[:, 2] = words[:, 0] >= _HALF
        return found

    def window(self, mask: Array, draw: Draw | None) -> Array:
        """What is left of a mask (H, W) where its image is cropped and mirrored by the same draw."""
        if self.crop:
            mask = mask[self._crop_window((1, *mask.shape), draw)]
        return mask[:, ::-1] if self._is_mirrored(draw) else mask

    def _is_mirrored(self, draw: Draw | None) -> bool:
        return self.parameter.mirror and draw is not None and draw[0] >= _HALF

    def _crop_window(self, image: Shape, draw: Draw | None) -> tuple[slice, slice]:
        top, left = self._crop_offsets(image, draw if self.is_training else None)
        return slice(top, top + self.crop), slice(left, left + self.crop)

    def _scaled(self, images: Array, mean: Array | None, out: Array) -> None:
        if mean is None:
            np.multiply(images, self.scale, out=out, casting="unsafe")
        else:
            np.subtract(images, mean, out=out, casting="unsafe")
            if self.scale != 1:
                out *= self.scale

    def _crop_offsets(self, image: Shape, draw: Draw | None) -> tuple[int, int]:
        if not self.crop:
            return 0, 0
        height, width = (extent - self.crop for extent in image[1:])
        if min(height, width) < 0:
            raise InvalidShape(f"crop_size {self.crop} is larger than an image of {image[1]} x {image[2]}")
        if draw is None:
            return height // 2, width // 2
        return _offset(draw[1], height), _offset(draw[2], width)


def _offset(drawn: Any, room: int) -> Any:
    """A whole number from 0 to `room`, of one below 2³²; or some of some."""
    return drawn * (room + 1) >> 32


def read_mean(parameter: TransformationParameter, base: Path | None, channels: int) -> Array | None:
    """The mean that a layer subtracts: an image (C, H, W), or numbers (1, 1, 1) or (channels, 1, 1); None for none.

    Raises InvalidArgument if there are two, or a file that cannot be read.
    """
    if parameter.has("mean_file") and parameter.mean_value:
        raise InvalidArgument("mean_file and mean_value both are given: keep one")
    if parameter.mean_value and len(parameter.mean_value) not in (1, channels):
        raise InvalidArgument(
            f"there are {len(parameter.mean_value)} mean_value; give 1, or one for each of the {channels} channels"
        )
    if not parameter.has("mean_file"):
        return np.array(parameter.mean_value).reshape(-1, 1, 1) if parameter.mean_value else None
    path = paths.find(parameter.mean_file, base)
    mean = read_mean_file(path)
    if mean.dtype.kind not in "uif":
        raise InvalidType(f"mean_file {path} is {mean.dtype}; integers or floats are needed")
    if mean.ndim != 3:
        raise InvalidShape(f"mean_file {path} has shape {mean.shape}: an image (C, H, W) is needed")
    return mean


def read_mean_file(path: Path) -> Array:
    """The array of a .npy file, `mean` of an .npz file, or that of a .binaryproto file; of one image (1, C, H, W) that
    image. Raises InvalidArgument for a file that cannot be read.
    """
    if path.suffix == ".npy":
        mean = read_npy(path)
    elif path.suffix == ".npz":
        mean = read_npz(path, ["mean"])["mean"]
    else:
        mean = read_binaryproto(path)
    return mean[0] if mean.ndim == 4 and mean.shape[0] == 1 else mean
