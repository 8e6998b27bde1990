"""Batches of images of bytes on a GPU become numbers: mirrored, less a mean, scaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.kernels.tables import image_transform_kernel
from jitdnn.retention import Recent
from jitdnn.tensor import COMMON_DTYPES, DeviceArray, TensorDescriptor

COLUMNS = 3  # of a table
_KERNELS = 8  # kept for outputs of other shapes
_MOST_POSITIONS = 1 << 31  # of an image


class ImageTransform:
    """y = (x - mean) * scale for images of bytes, each mirrored along its rows or not.

    A table has a row of int32 for each image: row and column at which the image lies in the mean image, where the mean
    is one, and 1 for an image that is mirrored, else 0. The mean is read where the image's pixel was before it is
    mirrored. Difference and product are computed and rounded in float32 (in float64 for a result of float64), so that
    the result in float32 or float64 is the one that NumPy computes in that type, bit by bit.
    """

    def __init__(self, gpu: Any, image: Sequence[int], mean: Any, scale: float, dtype: str) -> None:
        """For images (C, H, W). `mean`: None, an array on the GPU, packed and of the type that is computed in, of shape
        (1, 1, 1), (C, 1, 1) or (C, at least H, at least W). `dtype`: of the result, f16, bf16, f32 or f64.

        Raises InvalidShape, InvalidType, and NotSupported on a GPU that has no such kernels.
        """
        self._gpu, self._image, self._mean, self._scale, self._dtype = gpu, tuple(image), mean, scale, dtype
        channels, height, width = self._image
        if min(self._image) < 1 or height * width >= _MOST_POSITIONS:
            raise InvalidShape(
                f"images of {height} x {width} with {channels} channels: all must be positive, and an image may have "
                f"up to {_MOST_POSITIONS - 1:,} pixels"
            )
        if dtype not in COMMON_DTYPES:
            raise InvalidType(f"dtype is {dtype!r}: it must be one of {', '.join(COMMON_DTYPES)}")
        self._kernels: Recent[Any, Any] = Recent(_KERNELS)
        self._room: tuple[int, int] | None = None
        if mean is None:
            return
        wanted = "f64" if dtype == "f64" else "f32"
        if mean.descriptor.dtype != wanted:
            raise InvalidType(
                f"the mean is {mean.descriptor.dtype}: for results of {dtype} it must be {wanted}"
            )
        shape = mean.shape
        if len(shape) == 3 and shape[0] in (1, channels) and shape[1:] == (1, 1):
            return
        if len(shape) != 3 or shape[0] != channels or shape[1] < height or shape[2] < width:
            raise InvalidShape(
                f"the mean has shape {shape}: it must be (1, 1, 1), ({channels}, 1, 1), or ({channels}, H, W) with H "
                f"at least {height} and W at least {width}"
            )
        self._room = shape[1] - height, shape[2] - width

    def check(self, table: NDArray[np.int32]) -> None:
        """Raises InvalidArgument for a table with a row that reads beyond the mean, or is neither mirrored nor not,
        InvalidShape and InvalidType for what is no table.
        """
        if table.dtype != np.int32:
            raise InvalidType(f"the table is {table.dtype}: it must be int32")
        if table.ndim != 2 or table.shape[1] != COLUMNS:
            raise InvalidShape(f"the table has shape {table.shape}: it must be (images, {COLUMNS})")
        most = (*(self._room or (_MOST_POSITIONS - 1, _MOST_POSITIONS - 1)), 1)
        wrong = ((table < 0) | (table > most)).any(axis=1)
        if wrong.any():
            place = int(wrong.argmax())
            raise InvalidArgument(
                f"row {place} of the table is {tuple(table[place].tolist())}: row and column in the mean must be 0 to "
                f"{most[0]} and 0 to {most[1]}, and the last number 0 or 1"
            )

    def __call__(
        self, stream: Any, images: int, strides: Sequence[int], table: int, out: DeviceArray
    ) -> None:
        """Compute `out` (n, C, H, W), of any strides, on a stream. `images` is the address of the first element of the
        bytes and `strides` theirs, `table` the address of a table that `check` has seen; all are on the GPU.

        Raises InvalidShape and InvalidType for an `out` that does not fit.
        """
        descriptor = out.descriptor
        if len(descriptor.shape) != 4 or descriptor.shape[1:] != self._image or len(strides) != 4:
            raise InvalidShape(
                f"out has shape {descriptor.shape} and the bytes {len(strides)} strides: out must be (n, "
                f"{', '.join(map(str, self._image))}), and there must be a stride for each of its axes"
            )
        if descriptor.dtype != self._dtype:
            raise InvalidType(f"out is {descriptor.dtype}: it must be {self._dtype}")
        if not descriptor.shape[0]:
            return
        kernel = self.kernel(strides, descriptor)
        out.used_on(stream, writes=True)
        mean = 0
        if self._mean is not None:
            self._mean.used_on(stream, writes=False)
            mean = self._mean.pointer
        kernel(stream, [images, table, mean, out.pointer], 1.0, 0.0, 0)

    def kernel(self, strides: Sequence[int], out: TensorDescriptor) -> Any:
        """The kernel for bytes with these strides and such an output, compiled."""
        key = tuple(strides), out
        found = self._kernels.recall(key)
        if found is None:
            mean = None if self._mean is None else self._mean.descriptor
            found = self._kernels.put(key, image_transform_kernel(strides, mean, self._scale, out, self._gpu))
        return found
