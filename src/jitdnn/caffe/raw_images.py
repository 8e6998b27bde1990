"""Images that go to a GPU as the bytes they are: cut out on the host, and mirrored, less a mean and scaled there.

A batch of them is a quarter of what it is in float32, and needs no arithmetic of the host's: what a thread does for an
image is to copy its window. With a batch goes a table, three numbers for each image, of which its kernel
(`ops/image_transform.py`) makes the values that `Transformer` makes on the host, bit by bit. Batches lie in page-locked
memory and are copied from there while the GPU computes the pass before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.blob import Array, Blob, Shape
from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.transform import Transform, Transformer
from jitdnn.devices.copy_rows import copy_rows
from jitdnn.kernels.tables import has_generator
from jitdnn.ops.image_transform import COLUMNS, ImageTransform
from jitdnn.tensor import dtype_of
from jitdnn.tensor.array import address_of

_ALIGNMENT = 16  # of the table behind the images


@dataclass(frozen=True)
class RawBatch:
    """Images (n, C, H, W) of bytes in any order of their axes, and their table (n, 3), in one piece of memory."""

    memory: Array
    images: Array
    table: NDArray[np.int32]

    def fill(self, rows: slice, images: Array | list[Array], table: NDArray[np.int32], crop: int) -> None:
        """Copy images of one size, of each the `crop` x `crop` pixels that its row of the table says (0: all of it)."""
        self.table[rows] = table
        targets = self.images[rows]
        if not crop and isinstance(images, np.ndarray):
            np.copyto(targets, images)
            return
        if not len(images):
            return
        box = _box(images[0][:, :crop, :crop] if crop else images[0], targets[0])
        if box is None or (isinstance(images, list) and len({image.strides for image in images}) > 1):
            for image, target, (top, left, _) in zip(images, targets, table.tolist(), strict=True):
                np.copyto(target, image[:, top : top + crop, left : left + crop] if crop else image)
            return
        if isinstance(images, np.ndarray):
            addresses = address_of(images) + images.strides[0] * np.arange(len(images), dtype=np.int64)
        else:
            addresses = np.array([address_of(image) for image in images], np.int64)
        _, row, column = images[0].strides
        addresses += box.source + row * table[:, 0] + column * table[:, 1]
        target = address_of(targets) + box.target
        copy_rows(addresses, target, targets.strides[0], box.planes, box.rows, box.row_bytes)


class _Box(NamedTuple):
    """How windows are copied: what `copy_rows` takes, and where a window's first byte lies behind its element at index
    0, in the source and in the target.
    """

    planes: tuple[int, int, int]
    rows: tuple[int, int, int]
    row_bytes: int
    source: int
    target: int


def _box(source: Array, target: Array) -> _Box | None:
    """How to copy bytes (C, H, W), None where the two do not lie in the same order."""
    axes = sorted((abs(target.strides[axis]), axis) for axis in range(target.ndim) if target.shape[axis] > 1)
    starts, row_bytes = [0, 0], 1
    left: list[tuple[int, int, int]] = []
    for step, axis in axes:
        extent = target.shape[axis]
        if (source.strides[axis] < 0) != (target.strides[axis] < 0):
            return None
        for place, array in enumerate((source, target)):
            starts[place] += min(array.strides[axis], 0) * (extent - 1)
        if not left and step == abs(source.strides[axis]) == row_bytes:
            row_bytes *= extent
        else:
            left.append((extent, abs(source.strides[axis]), step))
    if len(left) > 2 or len(left) == 3 - sum(extent == 1 for extent in target.shape):
        return None  # single bytes, which NumPy copies as fast
    rows, planes = (*left, (1, 0, 0), (1, 0, 0))[:2]
    return _Box(planes, rows, row_bytes, starts[0], starts[1])


@dataclass(frozen=True)
class RawForm:
    """How the images of batches lie: their shape (C, H, W), and their strides, as those of the source's images."""

    image: Shape
    strides: tuple[int, ...]
    first: int  # where the element at index 0 lies behind an image's first byte
    memory: Callable[[int], Array]

    @classmethod
    def like(cls, image: Array, shape: Shape, memory: Callable[[int], Array]) -> RawForm:
        """For images of this shape, whose axes are in the order in which those of `image` (C, H, W) are."""
        order = sorted(
            range(3), key=lambda axis: -abs(image.strides[axis]) if image.shape[axis] > 1 else -math.inf
        )
        strides, step = [0, 0, 0], 1
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis]
        first = 0
        for axis in range(3):
            if image.strides[axis] < 0:
                first += strides[axis] * (shape[axis] - 1)
                strides[axis] = -strides[axis]
        return cls(shape, tuple(strides), first, memory)

    def new(self, count: int) -> RawBatch:
        """Memory for a batch of so many images."""
        size = math.prod(self.image)
        table = -(-count * size // _ALIGNMENT) * _ALIGNMENT
        memory = self.memory(table + 4 * COLUMNS * count)
        images = np.ndarray(
            (count, *self.image), np.uint8, memory, self.first if count else 0, (size, *self.strides)
        )
        return RawBatch(memory, images, memory[table:].view(np.int32).reshape(count, COLUMNS))


class RawUpload:
    """Sends the batches of one layer to a GPU and makes its data of them."""

    def __init__(self, device: NetDevice, transformer: Transformer, dtype: np.dtype[Any]) -> None:
        """Raises NotSupported on a GPU without the kernel, InvalidShape for images that are too large for it."""
        self._device = device
        mean = None
        if transformer.mean is not None:
            mean = device.empty(transformer.mean.shape, dtype)
            device.upload(mean, np.ascontiguousarray(transformer.mean))
        scale = float(transformer.scale)
        self._transform = ImageTransform(device.gpu, transformer.shape, mean, scale, dtype_of(dtype))
        self._ahead: Any = None
        self._size = 0
        self._sent: Callable[[], None] | None = None

    def send(self, batch: RawBatch, blob: Blob, give_back: Callable[[], None]) -> None:
        """Make the data of a blob of a batch, for calls that follow. `give_back` is called when the batch's memory may
        be written again, which a later call of `send` or `finish` finds out.
        """
        self._transform.check(batch.table)
        self.finish()
        memory = batch.memory
        if memory.nbytes > self._size:
            self._ahead, self._size = self._device.copy_ahead(memory.nbytes), memory.nbytes
        stream, images = self._device.stream, batch.images
        out = blob.values  # before anything of the batch is under way: it may be sent up itself
        self._ahead.send(memory, stream)
        self._sent = give_back
        moved = self._ahead.pointer - address_of(memory)
        image, table = address_of(images) + moved, address_of(batch.table) + moved
        self._transform(stream, image, images.strides, table, out)
        self._ahead.taken(stream)

    def finish(self) -> None:
        """Wait until the batch that was sent last has left its memory."""
        if self._sent is not None:
            self._ahead.wait()
            sent, self._sent = self._sent, None
            sent()


def refusal(device: NetDevice, transformer: Transform, image: Array) -> str | None:
    """Why images of a source cannot go up as bytes, None where they can; `image` is its first."""
    if not isinstance(transformer, Transformer):
        return "its source makes numbers of them"
    if image.dtype != np.uint8:
        return not_bytes(image)
    if not has_generator("image_transform", device.gpu.target):
        return f"{device.name} has no kernel for bytes"
    return None


def not_bytes(image: Array) -> str:
    """The reason why an image of another type cannot go up as bytes."""
    return f"they are {image.dtype} and not bytes"
