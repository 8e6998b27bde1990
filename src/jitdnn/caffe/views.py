"""Blobs and layers as Python code that was written for Caffe sees them."""

from __future__ import annotations

from typing import Any

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.errors import InvalidArgument


class BlobView:
    """A blob with Caffe's names: `data` and `diff` are its arrays themselves, which may be written into.

    num, channels, height and width are the first four extents, 1 where there are fewer axes.
    """

    __slots__ = ("_blob",)

    def __init__(self, blob: Blob) -> None:
        self._blob = blob

    @property
    def data(self) -> Array:
        """The values, of the blob's shape."""
        return self._blob.data

    @property
    def diff(self) -> Array:
        """The gradient by them."""
        return self._blob.diff

    @property
    def shape(self) -> tuple[int, ...]:
        return self._blob.shape

    @property
    def count(self) -> int:
        """The number of elements."""
        return self._blob.size

    @property
    def num(self) -> int:
        return self._extent(0)

    @property
    def channels(self) -> int:
        return self._extent(1)

    @property
    def height(self) -> int:
        return self._extent(2)

    @property
    def width(self) -> int:
        return self._extent(3)

    def reshape(self, *shape: int) -> None:
        """Take another shape; what the net's layers make of it follows with `Net.reshape` or the next pass."""
        extents = [int(extent) for extent in shape]
        if any(extent < 0 for extent in extents):
            raise InvalidArgument(
                f"blob {self._blob.name!r} cannot have shape {tuple(shape)}: extents are 0 or more"
            )
        self._blob.reshape(tuple(extents))

    def _extent(self, axis: int) -> int:
        shape = self._blob.shape
        if len(shape) > 4:
            raise InvalidArgument(
                f"blob {self._blob.name!r} has {len(shape)} axes: num, channels, height and width are for 4 at most; "
                "read shape"
            )
        return shape[axis] if axis < len(shape) else 1

    def __repr__(self) -> str:
        return f"<blob {self._blob.name!r} {self._blob.shape}>"


class BlobVector(list[Any]):
    """The weights of a layer, as views."""

    def __init__(self, layer: Any) -> None:
        super().__init__(BlobView(blob) for blob in layer.weights)
        self._layer = layer

    def add_blob(self, *shape: int) -> None:
        """Make the next weight of the layer, full of zeros; for a Python layer's setup."""
        self._layer.add_weight(tuple(int(extent) for extent in shape), FillerParameter())
        self.append(BlobView(self._layer.weights[-1]))


class Layer:
    """Base of layers written in Python: override setup, reshape, forward and backward.

    Before setup is called there are `param_str`, what the net's file says, `phase`, 0 in training and 1 in testing,
    and `blobs`, whose `add_blob` makes weights. Blobs are `BlobView`s.
    """

    param_str: str = ""
    phase: int = 0
    blobs: BlobVector

    def setup(self, bottom: Any, top: Any) -> None:
        """Check the parameters; called once."""

    def reshape(self, bottom: Any, top: Any) -> None:
        """Give the tops their shapes, `top[0].reshape(2, 3)`; called before each forward pass."""

    def forward(self, bottom: Any, top: Any) -> None:
        """Fill `top[i].data`."""

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        """Fill `bottom[i].diff` where `propagate_down[i]`, and add the gradients of weights to their diff."""
