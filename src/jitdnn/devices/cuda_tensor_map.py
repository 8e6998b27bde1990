"""Tensor maps as NVIDIA's driver encodes them, in the memory that a launch takes its first argument from."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from jitdnn.devices.cuda_driver import current, failure, fast_function
from jitdnn.devices.tensor_map import MAP_BYTES, WORKSPACE, Tables, TensorMap
from jitdnn.errors import DeviceError

# CUtensorMapDataType
_TYPES = {"bool": 0, "u8": 0, "i8": 0, "f8e4m3": 0, "f8e5m2": 0, "i32": 3, "f16": 6, "f32": 7, "bf16": 9}
_TF32 = 11  # f32 in memory, which loads round
_NO_INTERLEAVE = 0
_SWIZZLES = {32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle, by bytes of a row
_PROMOTE_TO_256_BYTES = 3  # what L2 fetches around what is read
_ZEROS = 0  # outside of the tensor


_MOST_PLACES = 64  # of operands, whose maps are remembered: half a KiB each


class EncodedTables:
    """The tables of one caller at a time, encoded for where the operands lie.

    In a program that runs the same calls again and again allocators hand out the same addresses, so tables are
    remembered, each in memory of its own: the driver takes as long to encode two maps as to launch a kernel, and a copy
    of them half as long.
    """

    __slots__ = ("_index", "_known", "_tables")

    def __init__(self, tables: Tables, index: int) -> None:
        self._tables, self._index = tables, index
        #: tables by the pointers and the workspace that they were made for
        self._known: dict[tuple[int, ...], _Table] = {}

    def at(self, pointers: Sequence[int], workspace: int) -> int:
        """The address of tables of operands at these addresses, there until another one is asked for. Raises
        DeviceError."""
        now = (*pointers, workspace)
        known = self._known.get(now)
        if known is not None:
            return known.address
        addresses = [
            (workspace if one.operand == WORKSPACE else pointers[one.operand]) + one.offset
            for one in self._tables.maps
        ]
        made = _Table(self._tables)
        before = next(iter(self._known.values()), None)
        with current(self._index):
            made.encode(addresses, before)
        if len(self._known) >= _MOST_PLACES:
            self._known.clear()
        self._known[now] = made
        return made.address


class _Table:
    """Tables in memory of their own."""

    __slots__ = ("_memory", "_tables", "address")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._memory = ctypes.create_string_buffer(tables.size + 64)
        self.address = ctypes.addressof(self._memory) + 63 & ~63
        numbers = tables.packed_numbers
        ctypes.memmove(self.address + MAP_BYTES * len(tables.maps), numbers, len(numbers))

    def encode(self, addresses: Sequence[int], like: _Table | None) -> None:
        """Have the maps describe operands at these addresses; `like`: the same for other addresses."""
        at = self.address
        if like is None:
            for one, address in zip(self._tables.maps, addresses, strict=True):
                _encode(one, at, address)
                at += MAP_BYTES
            return
        ctypes.memmove(at, like.address, MAP_BYTES * len(addresses))
        replace = _replace_address()
        for address in addresses:
            status = replace(ctypes.c_void_p(at), ctypes.c_void_p(address))
            if status:
                raise failure(status, f"a tensor map of memory at {address:#x}")
            at += MAP_BYTES


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
