"""Tensor maps as NVIDIA's driver encodes them, in the memory that a launch takes its first argument from."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any

from jitdnn.devices.cuda_driver import current, failure, fast_function
from jitdnn.devices.tensor_map import ALIGNMENT, MAP_BYTES, WORKSPACE, Tables, TensorMap
from jitdnn.errors import DeviceError

# CUtensorMapDataType
_TYPES = {"bool": 0, "u8": 0, "i8": 0, "f8e4m3": 0, "f8e5m2": 0, "i32": 3, "f16": 6, "f32": 7, "bf16": 9}
_TF32 = 11  # f32 in memory, which loads round
_NO_INTERLEAVE = 0
_SWIZZLES = {32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle, by bytes of a row
_PROMOTE_TO_256_BYTES = 3  # what L2 fetches around what is read
_ZEROS = 0  # outside of the tensor


_WORDS = MAP_BYTES // 8  # of a map


class EncodedTables:
    """The tables of one caller at a time, encoded for where the operands lie.

    Operands lie elsewhere in most calls of a program that allocates them, and the driver takes as long to give two maps
    another address as to launch a kernel. A map holds it as its first word: where it does, as is seen with the first
    addresses, the word alone is written.
    """

    __slots__ = (
        "_address", "_has_words", "_index", "_is_made", "_memory", "_now", "_places", "_tables", "_words",
    )  # fmt: skip

    def __init__(self, tables: Tables, index: int) -> None:
        self._tables, self._index = tables, index
        self._memory = ctypes.create_string_buffer(tables.size + 64)
        self._address = ctypes.addressof(self._memory) + 63 & ~63
        numbers = tables.packed_numbers
        ctypes.memmove(self._address + MAP_BYTES * len(tables.maps), numbers, len(numbers))
        self._words = (ctypes.c_uint64 * (_WORDS * len(tables.maps))).from_address(self._address)
        #: of each map its first word, its operand and the offset there
        self._places = [(_WORDS * n, one.operand, one.offset) for n, one in enumerate(tables.maps)]
        self._is_made = self._has_words = False
        #: what the driver was asked for last
        self._now: tuple[int, ...] | None = None

    def at(self, pointers: Sequence[int], workspace: int) -> int:
        """The address of tables of operands at these addresses, there until other ones are asked for. Raises
        DeviceError."""
        if not self._has_words:
            now = (*pointers, workspace)
            if now != self._now:
                self._now = None
                self._encode(pointers, workspace)
                self._now = now
            return self._address
        words = self._words
        for word, operand, offset in self._places:
            address = (workspace if operand == WORKSPACE else pointers[operand]) + offset
            if address % ALIGNMENT:
                self._replace(self._address + 8 * word, address)  # which the driver refuses
            words[word] = address
        return self._address

    def frozen(self) -> tuple[bytes, tuple[tuple[int, int, int], ...]] | None:
        """The tables as they are now, and where addresses of operands are in them: word, operand, offset. None if an
        address is more than a word, or that of workspace."""
        if not self._has_words or any(operand == WORKSPACE for _, operand, _ in self._places):
            return None
        return ctypes.string_at(self._address, self._tables.size), tuple(self._places)

    def _encode(self, pointers: Sequence[int], workspace: int) -> None:
        """The same by the driver."""
        addresses = [
            (workspace if operand == WORKSPACE else pointers[operand]) + offset
            for _, operand, offset in self._places
        ]
        places = range(self._address, self._address + MAP_BYTES * len(addresses), MAP_BYTES)
        with current(self._index):
            if self._is_made:
                for at, address in zip(places, addresses, strict=True):
                    self._replace(at, address)
                return
            for one, at, address in zip(self._tables.maps, places, addresses, strict=True):
                _encode(one, at, address)
            self._is_made = True
            self._has_words = all(map(_holds_as_word, places, addresses))

    def _replace(self, at: int, address: int) -> None:
        with current(self._index):
            status = _replace_address()(ctypes.c_void_p(at), ctypes.c_void_p(address))
        if status:
            raise failure(status, f"a tensor map of memory at {address:#x}")


def _holds_as_word(at: int, address: int) -> bool:
    """Whether of a map at `at` of memory at `address` nothing but the first word depends on that, which is it."""
    memory = ctypes.create_string_buffer(MAP_BYTES + 64)
    copy = ctypes.addressof(memory) + 63 & ~63
    given = ctypes.string_at(at, MAP_BYTES)
    if int.from_bytes(given[:8], sys.byteorder) != address:
        return False
    for other in (address ^ 1 << 32, address + ALIGNMENT):
        ctypes.memmove(copy, given, MAP_BYTES)
        if _replace_address()(ctypes.c_void_p(copy), ctypes.c_void_p(other)):
            return False
        if ctypes.string_at(copy, MAP_BYTES) != other.to_bytes(8, sys.byteorder) + given[8:]:
            return False
    return True


@functools.cache
def _replace_address() -> Any:
    return fast_function("cuTensorMapReplaceAddress")


@functools.cache
def _encode_tiled() -> Any:
    return fast_function("cuTensorMapEncodeTiled")


@functools.cache
def _encode_im2col() -> Any:
    return fast_function("cuTensorMapEncodeIm2col")


def _encode(one: TensorMap, at: int, address: int) -> None:
    """Write the map of a tensor at `address` to the 128 bytes at `at`."""
    rank, kind = one.rank, _TF32 if one.is_rounded else _TYPES[one.dtype]
    common = (
        ctypes.c_void_p(at), kind, ctypes.c_uint32(rank), ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*one.extents), (ctypes.c_uint64 * (rank - 1))(*one.strides),
    )  # fmt: skip
    steps = (ctypes.c_uint32 * rank)(*one.steps)
    ends = _NO_INTERLEAVE, _SWIZZLES[one.row_bytes], _PROMOTE_TO_256_BYTES, _ZEROS
    if one.corners is None:
        status = _encode_tiled()(*common, (ctypes.c_uint32 * rank)(*one.box), steps, *ends)
    else:
        lower, upper = ((ctypes.c_int * (rank - 2))(*corner) for corner in one.corners)
        channels, pixels = one.box
        status = _encode_im2col()(
            *common, lower, upper, ctypes.c_uint32(channels), ctypes.c_uint32(pixels), steps, *ends
        )
    if status:
        raise DeviceError(f"{failure(status, 'encoding a tensor map')}: {one} at {address:#x}")
