"""Images, and what is done to them before a net sees them, as in pycaffe.

Images are (H, W, K) arrays of float32, values 0 to 1, K = 3 (red, green, blue) or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.images import read_image
from jitdnn.caffe.pycaffe.proto.caffe_pb2 import BlobProto, Datum
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.ops.resize import resize

_ORDERS: Final = {0: "nearest", 1: "linear", 3: "cubic"}


def load_image(filename: str | PathLike[str], color: bool = True) -> Array:
    """Read an image file (PNG, JPEG, BMP, PPM) as (H, W, 3), or (H, W, 1) without `color`; what is transparent is
    ignored. Raises InvalidArgument for a file that is no image or too large, NotSupported without pillow.
    """
    pixels = read_image(Path(filename), "RGB" if color else "L")  # (C, H, W), blue first
    return (pixels[::-1] if color else pixels).transpose(1, 2, 0).astype(np.float32) / 255


def resize_image(im: ArrayLike, new_dims: Sequence[int], interp_order: int = 1) -> Array:
    """Resize an image (H, W, K) to (new_dims[0], new_dims[1], K), without smoothing: `interp_order` 0 nearest, 1
    bilinear, 3 cubic. Pixels have their centres at halves, and those of the edge go on beyond it.
    """
    image = np.ascontiguousarray(im, np.float32)
    if image.ndim != 3 or len(new_dims) != 2 or min(new_dims) < 1:
        raise InvalidShape(
            f"an image of shape {image.shape} to {tuple(new_dims)}: (H, W, K) and two extents are needed"
        )
    if interp_order not in _ORDERS:
        raise InvalidArgument(
            f"interp_order {interp_order}: there are 0 (nearest), 1 (bilinear) and 3 (cubic)"
        )
    size = tuple(int(extent) for extent in new_dims)
    if image.shape[:2] == size:
        return image
    found: Array = resize(image[None], size, mode=_ORDERS[interp_order], layout="NHWC")[0]
    return found


def oversample(images: Sequence[Array], crop_dims: Sequence[int]) -> Array:
    """Of each image (H, W, K) the four corners and the middle, and the mirrored ones of the same: (10 images, *crop,
    K)."""
    height, width = (int(extent) for extent in crop_dims)
    crops = []
    for image in images:
        tall, wide = image.shape[:2]
        if height > tall or width > wide:
            raise InvalidShape(f"an image of shape {image.shape} has no part of {height} x {width}")
        starts = [(y, x) for y in (0, tall - height) for x in (0, wide - width)]
        starts.append(((tall - height) // 2, (wide - width) // 2))
        parts = [image[y : y + height, x : x + width] for y, x in starts]
        crops += parts + [part[:, ::-1] for part in parts]
    return np.stack(crops).astype(np.float32)


class Transformer:
    """What turns images into inputs of a net, by the names of the inputs, which `inputs` gives with their shapes.

    In this order: resized to the input's extents, `transpose` of the axes, `channel_swap`, times `raw_scale`, minus
    `mean`, times `input_scale`. `set_transpose("data", (2, 0, 1))` and so on; what is not set is not done.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs: dict[str, Shape] = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, tuple[int, ...]] = {}
        self.channel_swap: dict[str, tuple[int, ...]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, Array] = {}
        self.input_scale: dict[str, float] = {}

    def preprocess(self, in_: str, data: ArrayLike) -> Array:
        """An image (H, W, K) as one input of the net, (K, H, W)."""
        self._check(in_)
        image = np.asarray(data, np.float32)
        extents = self.inputs[in_][2:]
        if image.shape[:2] != extents:
            image = resize_image(image, extents)
        if in_ in self.transpose:
            image = image.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            image = image[self.channel_swap[in_], :, :]
        image = image.astype(np.float32)  # a copy
        if in_ in self.raw_scale:
            image *= self.raw_scale[in_]
        if in_ in self.mean:
            image -= self.mean[in_]
        if in_ in self.input_scale:
            image *= self.input_scale[in_]
        return image

    def deprocess(self, in_: str, data: ArrayLike) -> Array:
        """The image of an input, or of a gradient: all steps but resizing undone."""
        self._check(in_)
        image = np.array(data, np.float32).squeeze()
        if in_ in self.input_scale:
            image /= self.input_scale[in_]
        if in_ in self.mean:
            image += self.mean[in_]
        if in_ in self.raw_scale:
            image /= self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_]), :, :]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """The order of the axes of an image: (2, 0, 1) for channels first."""
        self._check(in_)
        if sorted(order) != list(range(len(self.inputs[in_]) - 1)):
            raise InvalidArgument(
                f"transpose {tuple(order)} must name each axis of an image of input {in_!r} once"
            )
        self.transpose[in_] = tuple(order)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """The order of the channels: (2, 1, 0) makes blue, green, red of red, green, blue."""
        self._check(in_)
        if sorted(order) != list(range(self.inputs[in_][1])):
            raise InvalidArgument(
                f"channel_swap {tuple(order)} must name each of the {self.inputs[in_][1]} channels of {in_!r} once"
            )
        self.channel_swap[in_] = tuple(order)

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """The factor before the mean: 255 for images of 0 to 1 and means of 0 to 255."""
        self._check(in_)
        self.raw_scale[in_] = float(scale)

    def set_mean(self, in_: str, mean: ArrayLike) -> None:
        """What is subtracted: one value for each channel, (K), or an image (K, H, W), resized if it must."""
        self._check(in_)
        values, shape = np.asarray(mean, np.float32), self.inputs[in_][1:]
        if values.ndim == 1:
            if len(values) not in (1, shape[0]):
                raise InvalidShape(f"{len(values)} means for the {shape[0]} channels of {in_!r}")
            values = values[:, None, None]
        else:
            values = values[None] if values.ndim == 2 else values
            if values.ndim != 3 or values.shape[0] != shape[0]:
                raise InvalidShape(f"a mean of shape {values.shape} for input {in_!r} of {shape}")
            values = resize_image(values.transpose(1, 2, 0), shape[1:]).transpose(2, 0, 1)
        self.mean[in_] = values

    def set_input_scale(self, in_: str, scale: float) -> None:
        """The factor behind the mean."""
        self._check(in_)
        self.input_scale[in_] = float(scale)

    def set_all(self, in_: str, **steps: Any) -> None:
        """Those of the steps that are not None, by name."""
        setters: dict[str, Callable[[str, Any], None]] = {
            "transpose": self.set_transpose,
            "mean": self.set_mean,
            "input_scale": self.set_input_scale,
            "raw_scale": self.set_raw_scale,
            "channel_swap": self.set_channel_swap,
        }
        for name, value in steps.items():
            if value is not None:
                setters[name](in_, value)

    def _check(self, in_: str) -> None:
        if in_ not in self.inputs:
            raise InvalidArgument(f"there is no input {in_!r}: there are {', '.join(self.inputs)}")


def blobproto_to_array(blob: BlobProto, return_diff: bool = False) -> Array:
    """The values of a BlobProto, or its gradient, in its shape. Raises InvalidShape where they do not fill it."""
    return np.array(blob.array("diff" if return_diff else "data"))


def array_to_blobproto(arr: ArrayLike, diff: ArrayLike | None = None) -> BlobProto:
    """A BlobProto of an array, and of its gradient of the same shape if there is one."""
    values = np.asarray(arr)
    blob = BlobProto()
    blob.shape.dim = list(values.shape)
    blob.data = values.reshape(-1)
    if diff is not None:
        blob.diff = np.asarray(diff).reshape(-1)
        blob.array("diff")
    blob.array()
    return blob


def array_to_datum(arr: ArrayLike, label: int | None = None) -> Datum:
    """The record of an image (C, H, W): bytes where the array is uint8, else floats. Raises InvalidShape."""
    image = np.asarray(arr)
    if image.ndim != 3:
        raise InvalidShape(f"an image of shape {image.shape}: (C, H, W) is needed")
    datum = Datum()
    datum.channels, datum.height, datum.width = image.shape
    if image.dtype == np.uint8:
        datum.data = image.tobytes()
    else:
        datum.float_data = np.asarray(image, np.float32).reshape(-1)
    if label is not None:
        datum.label = label
    return datum


def datum_to_array(datum: Datum) -> Array:
    """The image of a record, (C, H, W). Raises InvalidArgument for one that is a file of an image, which layers of data
    decode, InvalidShape for values that do not fill the shape.
    """
    if datum.encoded:
        raise InvalidArgument(
            "the datum is a file of an image: decode its data, or have a layer of data read it"
        )
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.asarray(datum.float_data, np.float32)
    shape = (datum.channels, datum.height, datum.width)
    if min(shape) < 0 or values.size != shape[0] * shape[1] * shape[2]:
        raise InvalidShape(f"the datum says {shape} and has {values.size:,} values")
    return values.reshape(shape)
