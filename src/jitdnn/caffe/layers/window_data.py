"""WindowData: windows of images, for detectors that were trained on proposals (R-CNN)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitdnn.caffe import paths
from jitdnn.caffe.blob import Array, Blob, Shape
from jitdnn.caffe.images import read_image, resize_image
from jitdnn.caffe.layers.data import SourceLayer
from jitdnn.caffe.schema_layers import TransformationParameter, WindowDataParameter
from jitdnn.caffe.sources import ListSource, Placed, Source, read_list
from jitdnn.caffe.transform import Draw, read_mean
from jitdnn.errors import InvalidArgument

#: channels, as windows are cut from images in colour
_CHANNELS = 3


class Window(NamedTuple):
    """Columns x1 .. x2 and rows y1 .. y2 of an image, both ends in it; label 0 is the background."""

    image: Path
    label: int
    x1: int
    y1: int
    x2: int
    y2: int


class Windows(NamedTuple):
    """The windows of a file, by their overlap with an object."""

    foreground: list[Window]
    background: list[Window]


def read_windows(path: Path, parameter: WindowDataParameter) -> Windows:
    """Read a window file. For each image it has the lines `# index`, the file's name, channels, height, width, the
    number of windows, and for each of them class, overlap, x1, y1, x2, y2. Raises InvalidArgument, naming the line.
    """
    lines = read_list(path, "a list of windows")
    found, at = Windows([], []), 0

    def wrong(what: str) -> InvalidArgument:
        return InvalidArgument(f"{path}, line {at + 1} of those that are not empty: {what}")

    def number() -> int:
        nonlocal at
        try:
            value = int(lines[at])
        except (ValueError, IndexError):
            raise wrong("a whole number is needed") from None
        at += 1
        return value

    while at < len(lines):
        if not lines[at].startswith("#"):
            raise wrong("`# index` of an image is needed")
        if at + 1 >= len(lines):
            raise wrong("the name of an image is missing")
        image = Path(parameter.root_folder + lines[at + 1].strip())
        at += 2
        _, height, width, count = (number() for _ in range(4))
        for _ in range(count):
            try:
                label, overlap, *corners = lines[at].split()
                window = Window(image, int(label), *(int(corner) for corner in corners))
                share = float(overlap)
            except (ValueError, IndexError, TypeError):
                raise wrong("class, overlap, x1, y1, x2, y2 are needed") from None
            if not -(1 << 31) <= window.label < 1 << 31:
                raise wrong("a class has 32 bits")
            if not (0 <= window.x1 <= window.x2 < width and 0 <= window.y1 <= window.y2 < height):
                raise wrong(f"{tuple(window[2:])} is no window of an image of {height} x {width}")
            if share >= parameter.fg_threshold:
                if window.label <= 0:
                    raise wrong(f"class {window.label} overlaps with an object, so that it must be positive")
                found.foreground.append(window)
            elif share < parameter.bg_threshold:
                found.background.append(window._replace(label=0))
            at += 1
    return found


class WindowSource(ListSource):
    """Windows, drawn at random: of each batch the last fg_fraction from the foreground, the others from the background.
    What is drawn depends on the place alone.
    """

    def __init__(
        self,
        windows: Windows,
        batch: int,
        parameter: WindowDataParameter,
        transform: TransformationParameter,
        mean: Array | None,
        seed: int,
    ) -> None:
        """`transform` has crop size, scale and mirror; `mean` is an image at least as large, or a number a channel."""
        super().__init__(
            [(window.image, window.label) for part in windows for window in part], "RGB", None, seed
        )
        self.windows, self.batch, self.parameter = windows, batch, parameter
        self.transform, self.mean = transform, mean

    def records(self, place: int) -> Iterator[Placed]:
        backgrounds = self.batch - int(self.batch * self.parameter.fg_fraction)
        while True:
            kind = self.windows.background if place % self.batch < backgrounds else self.windows.foreground
            assert self.shuffle_seed is not None
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.shuffle_seed, place])))
            window = kind[int(random.integers(len(kind)))]
            is_mirrored = self.transform.mirror and bool(random.integers(2))
            place += 1
            yield Placed((window, is_mirrored), place)

    def for_process(self) -> Source | None:
        found = copy(self)
        found.files, found.windows = [], Windows([], [])
        return found

    def name_of(self, record: Any) -> str:
        return str(record[0].image)

    def first_shape(self) -> Shape:
        return (_CHANNELS, self.transform.crop_size, self.transform.crop_size)

    def decode(self, record: Any) -> tuple[Array, int]:
        window, is_mirrored = record
        image = read_image(window.image, "RGB")
        if window.x2 >= image.shape[2] or window.y2 >= image.shape[1]:
            raise InvalidArgument(
                f"{window.image} has {image.shape[1]} x {image.shape[2]} pixels: {tuple(window[2:])} is no window of it"
            )
        return self._cut(image, window, is_mirrored), window.label

    def _cut(self, image: Array, window: Window, is_mirrored: bool) -> Array:
        """The window, with its context, warped into a square of the crop size; 0 where there is no image."""
        crop = self.transform.crop_size
        place = _placement(window, image.shape, crop, self.parameter, is_mirrored)
        part = image[:, place.y1 : place.y2 + 1, place.x1 : place.x2 + 1]
        pixels = resize_image(part, (place.height, place.width))
        if is_mirrored:
            pixels = pixels[..., ::-1]
        target = (
            slice(None),
            slice(place.top, place.top + place.height),
            slice(place.left, place.left + place.width),
        )
        values = pixels.astype(np.float64)
        if self.mean is not None and self.mean.shape[1:] != (1, 1):
            offset = (self.mean.shape[2] - crop) // 2
            values -= self.mean[:, offset : offset + crop, offset : offset + crop][target]
        elif self.mean is not None:
            values -= self.mean
        out = np.zeros((_CHANNELS, crop, crop))
        out[target] = values * self.transform.scale
        return out


class _Placement(NamedTuple):
    """What is cut from an image, and where it lands in the square: rows top .., columns left .., of this size."""

    x1: int
    y1: int
    x2: int
    y2: int
    top: int
    left: int
    height: int
    width: int


def _placement(
    window: Window, image: Shape, crop: int, parameter: WindowDataParameter, is_mirrored: bool
) -> _Placement:
    x1, y1, x2, y2 = window[2:]
    is_square = parameter.crop_mode == "square"
    if not parameter.context_pad and not is_square:
        return _Placement(x1, y1, x2, y2, 0, 0, crop, crop)
    # so much larger that context_pad pixels of the square are context
    scale = crop / (crop - 2 * parameter.context_pad)
    half_height, half_width = (y2 - y1 + 1) / 2, (x2 - x1 + 1) / 2
    middle_x, middle_y = x1 + half_width, y1 + half_height
    if is_square:
        half_height = half_width = max(half_height, half_width)
    x1, x2 = _round(middle_x - half_width * scale), _round(middle_x + half_width * scale)
    y1, y2 = _round(middle_y - half_height * scale), _round(middle_y + half_height * scale)
    scale_x, scale_y = crop / (x2 - x1 + 1), crop / (y2 - y1 + 1)
    # what lies outside of the image
    left, top = max(0, -x1), max(0, -y1)
    right, bottom = max(0, x2 - image[2] + 1), max(0, y2 - image[1] + 1)
    x1, x2, y1, y2 = x1 + left, x2 - right, y1 + top, y2 - bottom
    height, width = _round((y2 - y1 + 1) * scale_y), _round((x2 - x1 + 1) * scale_x)
    left, top = _round((right if is_mirrored else left) * scale_x), _round(top * scale_y)
    return _Placement(
        x1, y1, x2, y2, top, left, max(1, min(height, crop - top)), max(1, min(width, crop - left))
    )


def _round(value: float) -> int:
    """To the nearest whole number, halves away from 0, as C does."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


class _AsItIs:
    """Windows come transformed from their source."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def draw(self, random: np.random.Generator, count: int) -> list[Draw | None]:
        return [None] * count

    def apply_one(self, image: Array, out: Array, draw: Draw | None) -> None:
        out[...] = image


class WindowDataLayer(SourceLayer):
    """Windows that window_data_param.source lists (`read_windows`), drawn at random, warped to crop_size: tops data
    (batch_size, 3, crop_size, crop_size) and label (batch_size).
    """

    type = "WindowData"
    tops = (2, 2)

    def open(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter, transform = self.parameter.window_data_param, self.parameter.transform_param
        self._refuse_v1("window_data_param")
        crop, batch = transform.crop_size, parameter.batch_size
        if not parameter.source or not batch or not crop:
            raise self.invalid(
                "source, batch_size and transform_param.crop_size are needed", "window_data_param"
            )
        if parameter.crop_mode not in ("warp", "square"):
            raise self.invalid(
                f"crop_mode is {parameter.crop_mode!r}: there are warp and square", "window_data_param"
            )
        if 2 * parameter.context_pad >= crop:
            raise self.invalid(
                f"context_pad {parameter.context_pad} leaves nothing of {crop}", "window_data_param"
            )
        if not 0 <= parameter.fg_fraction <= 1:
            raise self.invalid(f"fg_fraction is {parameter.fg_fraction:g}: 0 to 1 are", "window_data_param")
        path = paths.find(parameter.source, self.context.base)
        windows = read_windows(path, parameter)
        foregrounds = int(batch * parameter.fg_fraction)
        if (foregrounds and not windows.foreground) or (foregrounds < batch and not windows.background):
            raise self.invalid(
                f"{path} has {len(windows.foreground)} windows of objects and {len(windows.background)} of the "
                "background: batches need both",
                "window_data_param",
            )
        mean = read_mean(transform, self.context.base, _CHANNELS)
        if (
            mean is not None
            and mean.shape[1:] != (1, 1)
            and (min(mean.shape[1:]) < crop or len(mean) != _CHANNELS)
        ):
            raise self.invalid(f"the mean image has shape {mean.shape}: {crop} x {crop} at least is needed")
        self.batch = batch
        seed = int(self.context.random.integers(1 << 62))
        self.source = WindowSource(windows, batch, parameter, transform, mean, seed)
        self.transformer = _AsItIs(self.source.first_shape())
