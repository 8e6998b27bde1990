"""Tables of tensor maps that follow their operands: a stand-in for the driver writes the address into a map."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any

import pytest

from jitdnn.devices import cuda_tensor_map
from jitdnn.devices.cuda_tensor_map import EncodedTables
from jitdnn.devices.tensor_map import MAP_BYTES, WORKSPACE, Tables, TensorMap
from jitdnn.errors import DeviceError

MAP = TensorMap(0, 0, "bf16", (64, 8, 8), (128, 1024), (64, 4, 4), (1, 1, 1))
TABLES = Tables((MAP, TensorMap(1, 256, *(getattr(MAP, n) for n in ("dtype", "extents", "strides", "box", "steps"))),
                 TensorMap(WORKSPACE, 0, "f32", (32, 8), (128,), (32, 8), (1, 1))), (7, -9))  # fmt: skip


class Driver:
    """Counts what is asked of it; `status` is what it answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoded = self.replaced = self.status = 0
        monkeypatch.setattr(cuda_tensor_map, "current", lambda index: nullcontext())
        monkeypatch.setattr(cuda_tensor_map, "failure", lambda status, what: DeviceError(f"{what}: {status}"))
        monkeypatch.setattr(cuda_tensor_map, "_encode_tiled", lambda: self.encode)
        monkeypatch.setattr(cuda_tensor_map, "_replace_address", lambda: self.replace)

    def encode(self, at: Any, kind: int, rank: Any, address: Any, *_: Any) -> int:
        self.encoded += 1
        ctypes.memset(at, 0xAB, MAP_BYTES)
        ctypes.memmove(at, ctypes.byref(address), 8)
        return self.status

    def replace(self, at: Any, address: Any) -> int:
        self.replaced += 1
        ctypes.memmove(at, ctypes.byref(address), 8)
        return self.status


def addresses(tables: int) -> list[int]:
    maps = [ctypes.string_at(tables + n * MAP_BYTES, MAP_BYTES) for n in range(3)]
    assert all(one[8:] == b"\xab" * (MAP_BYTES - 8) for one in maps)
    numbers = ctypes.string_at(tables + 3 * MAP_BYTES, 16)
    assert [int.from_bytes(numbers[n : n + 8], "little", signed=True) for n in (0, 8)] == [7, -9]
    return [int.from_bytes(one[:8], "little") for one in maps]


PLACES = [
    ((0x1000, 0x2000, 0x9000), 0x5000),
    ((0x1000, 0x2400, 0x9000), 0x5000),
    ((0xFFFF_3000, 0x2000, 0x9000), 0),
]
_TRIED = 6  # two other addresses for each map


def test_maps_are_those_of_the_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver encodes them once, and is asked once whether the first word is the address."""
    driver = Driver(monkeypatch)
    tables = EncodedTables(TABLES, 0)
    for _ in range(2):
        for pointers, workspace in PLACES:
            found = addresses(tables.at(pointers, workspace))
            assert found == [pointers[0], pointers[1] + 256, workspace]
    assert (driver.encoded, driver.replaced) == (3, _TRIED)


class OtherDriver(Driver):
    """Of whose maps more than the first word depends on the address; of the last one, where all are to be seen."""

    def replace(self, at: Any, address: Any) -> int:
        status = super().replace(at, address)
        if self.replaced > 4:
            ctypes.memmove(at.value + 64, ctypes.byref(address), 8)
        return status


def test_maps_of_another_kind_are_the_drivers_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = OtherDriver(monkeypatch)
    tables = EncodedTables(TABLES, 0)
    tables.at(*PLACES[-1])
    tried = driver.replaced
    for count, (pointers, workspace) in enumerate(PLACES, 1):
        for _ in range(2):
            at = tables.at(pointers, workspace)
        for number, address in enumerate((pointers[0], pointers[1] + 256, workspace)):
            one = ctypes.string_at(at + number * MAP_BYTES, MAP_BYTES)
            assert [int.from_bytes(one[n : n + 8], "little") for n in (0, 64)] == [address] * 2
        assert driver.replaced == tried + 3 * count
    assert driver.encoded == 3


def test_what_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first addresses, of which nothing is kept, and later ones that are not aligned."""
    driver = Driver(monkeypatch)
    tables = EncodedTables(TABLES, 0)
    driver.status = 1
    with pytest.raises(DeviceError, match="tensor map"):
        tables.at((0x3000, 0x2000), 0x5000)
    driver.status = 0
    assert addresses(tables.at((0x1000, 0x2000), 0x5000)) == [0x1000, 0x2100, 0x5000]
    driver.status = 1
    with pytest.raises(DeviceError, match="a tensor map of memory at 0x3008"):
        tables.at((0x3008, 0x2000), 0x5000)
    assert addresses(tables.at((0x3000, 0x2000), 0x5000)) == [0x3000, 0x2100, 0x5000]
