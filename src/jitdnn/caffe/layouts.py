"""Arrays of four axes on a GPU that lie channels last in its memory, as (N, H, W, C), in the views that layers compute
with; layout_choice.py says which do.
"""

from __future__ import annotations

from typing import Any

from jitdnn.caffe.blob import Shape
from jitdnn.tensor import DeviceArray, packed_strides


def is_channels_last(array: Any) -> bool:
    """Whether an array of four axes lies in memory as (N, H, W, C), and not as its shape."""
    return isinstance(array, DeviceArray) and array.descriptor.strides != packed_strides(array.shape)


def flat(array: Any) -> Any:
    """All elements along one axis, as they lie in memory: for arrays of one shape that lie alike."""
    return array.transpose(0, 2, 3, 1).reshape(-1) if is_channels_last(array) else array.reshape(-1)


def by_channel(array: Any, view: Shape) -> Any:
    """The array as `view`; one that lies channels last as (N, C, H W), which `view` is then."""
    if not is_channels_last(array):
        return array.reshape(view)
    images, channels, inner = view
    return array.transpose(0, 2, 3, 1).reshape(images, inner, channels).transpose(0, 2, 1)


def by_pixel(array: Any, view: Shape) -> Any:
    """The array as the matrix `view`, with a row for each image; one that lies channels last as a matrix with a row for
    each pixel.
    """
    if not is_channels_last(array):
        return array.reshape(view)
    return array.transpose(0, 2, 3, 1).reshape(-1, array.shape[1])
