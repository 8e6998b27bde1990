"""MemoryData: arrays that the caller gives, a batch after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.layers.base import BottomlessLayer
from jitdnn.caffe.transform import Transformer
from jitdnn.errors import InvalidArgument


class MemoryDataLayer(BottomlessLayer):
    """Tops data (batch_size, channels, height, width) and label (batch_size), from what `set_arrays` or `set_images`
    gave, in order, and from the start again at its end.
    """

    type = "MemoryData"
    tops = (2, 2)
    is_random = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.memory_data_param
        self.batch = parameter.batch_size
        self.shape = (parameter.channels, parameter.height, parameter.width)
        if not (self.batch and all(self.shape)):
            raise self.invalid(
                "batch_size, channels, height and width are needed, all positive", "memory_data_param"
            )
        self.data: Array | None = None
        self.labels: Array = np.zeros(0)
        self.position = 0

    def set_arrays(self, data: ArrayLike, labels: ArrayLike) -> None:
        """Give arrays (n, channels, height, width) and (n,), n a multiple of the batch: they are used as they are,
        without transform_param, and must last. Raises InvalidArgument for other shapes.
        """
        values, numbers = np.asarray(data), np.asarray(labels).reshape(-1)
        if values.shape[1:] != self.shape or len(values) == 0 or len(values) % self.batch:
            raise self.invalid(
                f"data has shape {values.shape}; {('n', *self.shape)} is needed, n a multiple of {self.batch}"
            )
        if len(numbers) != len(values):
            raise self.invalid(f"there are {len(numbers)} labels for {len(values)} images")
        if values.dtype.kind not in "uif" or numbers.dtype.kind not in "uif":
            raise self.invalid(
                f"data and labels are {values.dtype} and {numbers.dtype}: real numbers are needed"
            )
        self.data, self.labels, self.position = values, numbers, 0

    def set_images(self, images: Sequence[ArrayLike], labels: ArrayLike) -> None:
        """Give images (C, H, W), which go through transform_param now. Raises InvalidArgument as `set_arrays`."""
        arrays = [np.asarray(image) for image in images]
        if not arrays or any(array.ndim != 3 for array in arrays):
            raise self.invalid("images (C, H, W) are needed, one at least")
        transformer = Transformer(
            self.parameter.transform_param,
            self.context.base,
            self.context.phase,
            arrays[0].shape,
            self.context.dtype,
        )
        if transformer.shape != self.shape:
            raise self.invalid(f"transformed images have shape {transformer.shape}; {self.shape} is needed")
        out = np.empty((len(arrays), *self.shape), self.context.dtype)
        transformer.apply(arrays, out, self.context.random)
        self.set_arrays(out, labels)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.rows = self.context.rows(self.batch, f"a batch of layer {self.name!r}")
        count = self.rows.stop - self.rows.start
        top[0].reshape((count, *self.shape))
        top[1].reshape((count,))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.data is None:
            raise self.invalid("it has no data yet: give them by set_arrays(data, labels) of this layer")
        rows = slice(self.position + self.rows.start, self.position + self.rows.stop)
        top[0].data[...] = self.data[rows]
        top[1].data[...] = self.labels[rows]
        self.skip()

    def skip(self) -> None:
        if self.data is not None:
            self.position = (self.position + self.batch) % len(self.data)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "position": self.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the place; the arrays must have been given before, and be the same."""
        position, size = state["position"], 0 if self.data is None else len(self.data)
        if type(position) is not int or position % self.batch or not 0 <= position < max(size, 1):
            raise InvalidArgument(
                f"layer {self.name!r}: the saved position is {position!r}, and {size} images were given"
            )
        super().restore(state)
        self.position = position
