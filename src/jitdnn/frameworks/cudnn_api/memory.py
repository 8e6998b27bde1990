"""Memory that a descriptor describes: arrays come in as memory, and the descriptor says how the elements lie in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jitdnn.errors import DeviceError, InvalidArgument, InvalidType
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.tensor import DTYPES, Array, TensorDescriptor, borrow, require_writable
from jitdnn.tensor.gpu_array import GpuArray

#: the name of an array, what the caller gave for it, and its descriptor
Described = tuple[str, Any, TensorDescriptor]

# a workspace may begin anywhere, and kernels need the beginning of a cache line, or of what a GPU reads at once
_ALIGNMENT = 256


@lru_cache(4096)
def _normalized(tensor: TensorDescriptor) -> TensorDescriptor:
    return tensor.normalized()


def placed(array: Array, tensor: TensorDescriptor, offset: int = 0) -> Array:
    """The memory of an array, `offset` bytes on, as another tensor."""
    pointer = array.pointer + offset
    tensor = _normalized(tensor)
    key = ("cudnn", array.library, array.device_id, tensor)
    if isinstance(array, GpuArray):
        assert array.device_id is not None
        return GpuArray(
            pointer, tensor, array.owner, array.library, array.is_readonly, key, array.device_id, array.stream
        )
    return Array(pointer, tensor, array.owner, array.library, array.is_readonly, key)


def _borrowed(given: Any, name: str, writes: bool) -> Array:
    if given is None:
        raise BadParam(f"{name} is None: it must be an array")
    try:
        array = borrow(given, False, name)
        if writes:
            require_writable(array, name)
    except (InvalidArgument, InvalidType, DeviceError) as error:
        raise BadParam(str(error)) from None
    return array


def bound(given: Any, tensor: TensorDescriptor, name: str, writes: bool = False) -> Array:
    """The tensor in the memory of an array, which is of its type or of bytes (uint8), and without gaps or laid out
    exactly so. Raises BadParam."""
    array = _borrowed(given, name, writes)
    own = array.descriptor
    if own == tensor:
        return array
    if own.coincides(tensor):
        return placed(array, tensor)
    if own.dtype not in (tensor.dtype, "u8"):
        raise BadParam(
            f"{name} holds {own.dtype} and its descriptor says {tensor.dtype}: they must be of one type"
        )
    _require_run(array, name)
    needed, has = (tensor.span()[1] + 1) * DTYPES[tensor.dtype], own.nbytes
    if has < needed:
        raise BadParam(
            f"{name} has {has} bytes, and its descriptor (shape {tensor.shape}, strides {tensor.strides}, "
            f"{tensor.dtype}) reaches {needed}"
        )
    if array.pointer % DTYPES[tensor.dtype]:
        raise BadParam(f"{name} begins at {array.pointer:#x}, which is not aligned to {tensor.dtype}")
    if writes and tensor.is_overlapping():
        raise BadParam(
            f"{name} is written, and its descriptor (shape {tensor.shape}, strides {tensor.strides}) overlaps itself"
        )
    return placed(array, tensor)


def bound_all(arrays: Sequence[Described]) -> list[tuple[str, Array]]:
    """Inputs and, as the last one, an output by their names. Raises BadParam."""
    last = len(arrays) - 1
    return [(name, bound(given, tensor, name, i == last)) for i, (name, given, tensor) in enumerate(arrays)]


def optional(given: Any, tensor: TensorDescriptor, name: str, writes: bool = False) -> Array | None:
    """The same, or None for None."""
    return None if given is None else bound(given, tensor, name, writes)


def space(given: Any, size: int, needed: int, name: str, writes: bool = True) -> Array | None:
    """Plain memory of which the caller says that it has `size` bytes: None if none is needed. Raises BadParam where it
    has less, or less than what is needed."""
    if not needed:
        return None
    if size < needed:
        raise BadParam(f"{name} has {size} bytes: {needed} are needed, as the query of its size says")
    array = _borrowed(given, name, writes)
    _require_run(array, name)
    if array.descriptor.nbytes < size:
        raise BadParam(f"{name} is said to have {size} bytes, and the array has {array.descriptor.nbytes}")
    return placed(array, TensorDescriptor((array.descriptor.nbytes,), (1,), "u8"))


def with_room(bytes: int) -> int:
    """The bytes to ask for, so that so many can be had behind an aligned address."""
    return bytes + _ALIGNMENT - 1 if bytes else 0


def aligned(array: Array | None) -> int:
    """Where aligned memory begins in an array of bytes; 0 for none."""
    return 0 if array is None else -(-array.pointer // _ALIGNMENT) * _ALIGNMENT


def _require_run(array: Array, name: str) -> None:
    own = array.descriptor
    if not own.is_dense or own.span()[0] < 0:
        raise BadParam(
            f"{name} has shape {own.shape} and strides {own.strides} (in elements), with gaps or backwards: give "
            "memory without gaps, or a view of exactly the shape and strides of its descriptor"
        )
