"""DLPack's structure in memory: taking a capsule of a GPU's memory apart, and making one. NumPy does the host's."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

from jitdnn.errors import InvalidType
from jitdnn.tensor.descriptor import packed_strides

_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
# (kind, bits) of the elements: 0 integers, 1 without a sign, 2 reals, 4 bfloat16, 6 bool, 10 and 12 8-bit reals
_TYPES = {
    (2, 32): "f32", (2, 64): "f64", (2, 16): "f16", (4, 16): "bf16", (0, 8): "i8", (0, 16): "i16", (0, 32): "i32",
    (0, 64): "i64", (1, 8): "u8", (1, 16): "u16", (1, 32): "u32", (1, 64): "u64", (6, 8): "bool",
    (10, 8): "f8e4m3", (12, 8): "f8e5m2",
}  # fmt: skip
_CODES = {name: code for code, name in _TYPES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))

_python = ctypes.pythonapi
_is_valid = _python.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = _python.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_rename = _python.PyCapsule_SetName
_rename.argtypes, _rename.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_new = _python.PyCapsule_New
_new.argtypes, _new.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object


class Held:
    """Memory that came in a capsule. It goes back to its producer with the last reference."""

    def __init__(self, managed: Any, owner: object) -> None:
        self._managed, self.owner = managed, owner
        tensor = managed.contents.tensor
        rank = tensor.rank
        name = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
        if name is None:
            raise InvalidType(
                f"DLPack elements of kind {tensor.code} with {tensor.bits} bits cannot be borrowed"
            )
        self.dtype = name
        self.shape = tuple(tensor.shape[axis] for axis in range(rank))
        self.strides: tuple[int, ...] = (
            tuple(tensor.strides[axis] for axis in range(rank))
            if tensor.strides
            else packed_strides(self.shape)
        )
        self.pointer: int = (tensor.data or 0) + tensor.offset

    def __del__(self) -> None:
        deleter = self._managed.contents.deleter
        if deleter:
            deleter(self._managed)


def open_capsule(capsule: Any, owner: object) -> Held:
    """Take over what a capsule holds. Raises InvalidType for one that was used, or of another kind."""
    if not _is_valid(capsule, _NAME):
        raise InvalidType("the DLPack capsule was used before, or is of a version that is not known")
    managed = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed))
    _rename(capsule, _USED_NAME)
    return Held(managed, owner)


_numbers = itertools.count(1)
_given: dict[int, tuple[Any, ...]] = {}  # what lies in capsules, by the number that is its context


def _forget(managed: Any) -> None:
    _given.pop(managed.contents.context, None)


def _destroy(capsule: int) -> None:
    """The destructor of a capsule: nobody may have taken what is in it."""
    name = ctypes.c_char_p(_NAME)
    if _raw_is_valid(capsule, name):
        managed = ctypes.cast(_raw_pointer(capsule, name), ctypes.POINTER(_Managed))
        _forget(managed)


_give_back = _DELETER(_forget)
_drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_destroy)
# by address: a capsule that is being destroyed must get no new references
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def make_capsule(
    pointer: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    device: tuple[int, int],
    owner: object,
) -> Any:
    """A capsule of memory of a device (type, number), which keeps `owner` alive until its consumer is done with it."""
    rank, number = len(shape), next(_numbers)
    extents, steps = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*strides)
    code, bits = _CODES[dtype]
    tensor = _Tensor(pointer, *device, rank, code, bits, 1, extents, steps, 0)
    managed = _Managed(tensor, number, _give_back)
    _given[number] = (managed, extents, steps, owner)
    return _new(ctypes.addressof(managed), _NAME, ctypes.cast(_drop, ctypes.c_void_p))
