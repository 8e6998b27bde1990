"""Functions of C that XLA calls and that are Python: for calls that are more than launches on the processor.

They are given the addresses of the arrays where they lie, and on a GPU the stream on which XLA's program runs: nothing
is copied, and on a GPU nothing is waited for. They hold the interpreter's lock while they run, as all of Python does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

from jitdnn.frameworks.jax import interface

Run = Callable[[list[int], int], None]
"""Given the addresses of arguments and results, and the stream (0 on a processor)."""

_SLOT = 8
_FRAME_SLOTS = interface.RESULTS // _SLOT + 1
_HANDLER = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _ErrorCreate(ctypes.Structure):
    _fields_ = [("size", c_int64), ("extension", c_void_p), ("message", c_char_p), ("code", c_int32)]


class _StreamGet(ctypes.Structure):
    _fields_ = [("size", c_int64), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p)]


_kept: list[Any] = []  # XLA keeps their addresses


def add(run: Run, arguments: int, results: int, has_stream: bool) -> int:
    """The address of a handler that runs `run`; what it raises becomes an error of XLA's program."""
    minor = interface.minor()

    def handler(frame: int) -> int | None:
        slots = (c_int64 * _FRAME_SLOTS).from_address(frame)
        extension = slots[interface.EXTENSION // _SLOT]
        if extension and _int32(extension + interface.EXTENSION_TYPE) == interface.ASKS_METADATA:
            metadata = c_int64.from_address(extension + interface.METADATA).value
            for offset, value in (
                (interface.METADATA_MAJOR, 0), (interface.METADATA_MINOR, minor), (interface.METADATA_TRAITS, 0),
            ):  # fmt: skip
                c_int32.from_address(metadata + offset).value = value
            return None
        if _int32(frame + interface.STAGE) != interface.EXECUTE:
            return None
        api = slots[interface.API // _SLOT]
        try:
            addresses = _addresses(slots[interface.ARGUMENTS // _SLOT], arguments)
            addresses += _addresses(slots[interface.RESULTS // _SLOT], results)
            run(addresses, _stream(api, slots[interface.CONTEXT // _SLOT]) if has_stream else 0)
        except BaseException as error:  # there is nobody above who could take it
            return _error(api, f"{type(error).__name__}: {error}")
        return None

    made = _HANDLER(handler)
    _kept.append(made)
    address = ctypes.cast(made, c_void_p).value
    assert address is not None
    return address


def _int32(address: int) -> int:
    return c_int32.from_address(address).value


def _addresses(buffers: int, count: int) -> list[int]:
    """Where the elements of so many arrays lie."""
    if not count:
        return []
    data = interface.BUFFER_DATA
    return [c_int64.from_address(buffer + data).value for buffer in (c_int64 * count).from_address(buffers)]


@cache
def _function(api: int, offset: int) -> Any:
    """One of XLA's functions; its table lives as long as the process."""
    return _FUNCTION(c_int64.from_address(api + offset).value)


def _stream(api: int, context: int) -> int:
    asked = _StreamGet(ctypes.sizeof(_StreamGet), None, context, None)
    if _function(api, interface.API_STREAM_GET)(ctypes.addressof(asked)):
        raise RuntimeError("XLA does not say on which stream its program runs")
    return asked.stream or 0


def _error(api: int, text: str) -> int | None:
    message = text.encode("utf-8", "replace").replace(b"\0", b" ")
    made = _ErrorCreate(32, None, message, interface.INTERNAL_ERROR)
    found: int | None = _function(api, interface.API_ERROR_CREATE)(ctypes.addressof(made))
    return found
