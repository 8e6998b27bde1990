"""Borrowed memory: what `Array` is, its views, and descriptors remembered by what their owners say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.errors import InvalidShape, InvalidType
from jitdnn.recorders import recorder_here
from jitdnn.retention import Recent
from jitdnn.tensor.descriptor import MAX_DIMENSIONS, TensorDescriptor
from jitdnn.tensor.dtypes import ACCEPTED, DTYPES, dtype_name, foreign_name, numpy_dtype

DeviceId = tuple[str, int]
"""A GPU: the name of its target, and its number."""


class Array:
    """Borrowed memory: the address of the element at index 0, a descriptor, and what keeps it alive.

    `owner` is the object that was given (or one that holds on to its memory), `library` the name of the
    package that made it (`numpy`, `torch`, or `buffer` for the rest). `key` is the layout in the owner's
    terms: arrays of one key have one descriptor, one library and one device, and it is cheaper to hash than a
    descriptor. `device_id` is the GPU that has the memory, None for that of the host. Valid while it is referenced.
    """

    __slots__ = ("descriptor", "is_readonly", "key", "library", "owner", "pointer")

    device_id: DeviceId | None = None  # of the class: arrays in host memory need none of their own

    def __init__(
        self,
        pointer: int,
        descriptor: TensorDescriptor,
        owner: object,
        library: str,
        is_readonly: bool = False,
        key: tuple[Any, ...] = (),
    ) -> None:
        self.pointer = pointer
        self.descriptor = descriptor
        self.owner = owner
        self.library = library
        self.is_readonly = is_readonly
        self.key = key

    def __repr__(self) -> str:
        d = self.descriptor
        return f"Array({self.library} {d.dtype} shape={d.shape} strides={d.strides} at {self.pointer:#x})"

    def part(self, *ranges: slice | None) -> Array:
        """Return a sub-region of the same memory: a slice, or None for all, for each axis from the first on."""
        cut = self.descriptor.slice(*ranges)
        descriptor = TensorDescriptor(cut.shape, cut.strides, cut.dtype).normalized()
        key = ("part", self.library, descriptor)
        pointer = self.pointer + cut.offset * DTYPES[cut.dtype]
        return Array(pointer, descriptor, self.owner, self.library, self.is_readonly, key)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a NumPy view of the same memory, of the logical shape. It keeps the owner alive."""
        return view(self.pointer, self.descriptor, self)


class _Memory:
    """What NumPy needs to make an array of memory that it does not own."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def strided_view(
    pointer: int, shape: Sequence[int], strides: Sequence[int], dtype: str, owner: object = None
) -> np.ndarray[Any, Any]:
    """Return a NumPy view of raw memory; its element at index 0 is at `pointer`, `strides` are in elements.

    It keeps `owner` alive; without one the caller vouches that the memory lives as long as the view.
    """
    if 0 in shape:
        return np.empty(shape, numpy_dtype(dtype))
    recorder = recorder_here()
    if recorder is not None:
        recorder.require_no_view(pointer)
    itemsize, element = DTYPES[dtype], numpy_dtype(dtype)
    # what has no type string comes as plain bits and is given its type afterwards
    is_foreign = foreign_name(dtype) is not None
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "strides": tuple(stride * itemsize for stride in strides),
        "typestr": f"<u{itemsize}" if is_foreign else element.str,
        "data": (pointer, False),
    }
    array = np.asarray(_Memory(interface, owner))
    return array.view(element) if is_foreign else array


def view(pointer: int, descriptor: TensorDescriptor, owner: object = None) -> np.ndarray[Any, Any]:
    """Return a NumPy view of raw memory at `pointer`, plus its offset; it keeps `owner` alive."""
    start = pointer + descriptor.offset * DTYPES[descriptor.dtype]
    return strided_view(start, descriptor.shape, descriptor.strides, descriptor.dtype, owner)


# bounded: a program with ever new shapes must not grow without end
known_descriptors: Recent[tuple[Any, ...], TensorDescriptor] = Recent(8192)


def remember(key: tuple[Any, ...], descriptor: TensorDescriptor) -> TensorDescriptor:
    # those that are in use are made young again by being made again, which costs little more than to look for them
    return known_descriptors.put(key, descriptor)


def describe(shape: tuple[int, ...], byte_strides: tuple[int, ...], dtype: np.dtype[Any]) -> TensorDescriptor:
    """Return the normalized descriptor of a NumPy array, made once for each kind of array."""
    name = dtype_name(dtype)
    if name is None:
        order = "" if dtype.isnative else " in foreign byte order"
        raise InvalidType(f"dtype {dtype}{order}: arrays must be of {ACCEPTED} in native byte order")
    if not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise InvalidShape(f"an array of shape {shape} has {len(shape)} dimensions: it must have 1 to 8")
    itemsize = dtype.itemsize
    strides = []
    for extent, step in zip(shape, byte_strides, strict=True):
        if step % itemsize and extent > 1:
            raise InvalidType(
                f"byte strides {byte_strides} are no multiples of the {itemsize} bytes of {dtype}: pass "
                "a copy (numpy.ascontiguousarray)"
            )
        strides.append(step // itemsize)
    return TensorDescriptor(shape, tuple(strides), name).normalized()
