"""A CUDA device made of g++: kernels are compiled for the CPU and run thread by thread, with every barrier checked.

    device = EmulatedCudaDevice()
    source = Source("add", text, dialect="cuda")
    kernel = device.kernel(source, [Launch("add", groups=4, threads=128)], pointers=2, extras=[n])
    kernel(None, [x.ctypes.data, y.ctypes.data], 1.0, 0.0, 0)

Addresses are those of host memory. What is wrong with a kernel (threads that miss a barrier, misaligned vectors, shared
memory out of range, no end) raises DeviceError and names block, thread and line. See runtime.cpp for the schedule.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import struct
import subprocess
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulation.build import built_runtime, built_source, missing
from emulation.tensor_maps import check, encoded
from jitdnn.devices.gpu import Launch, Source
from jitdnn.devices.gpu_facts import FromFacts, GpuFacts, on_paper
from jitdnn.devices.tensor_map import Tables
from jitdnn.errors import CompileError, DeviceError

__all__ = ["EmulatedCudaDevice", "missing"]

_LOCK = threading.Lock()  # the runtime has one set of fibers
_MEMORIES: weakref.WeakSet[HostMemory] = weakref.WeakSet()


_SLOWER = 20
"""How many times as long a launch may take where races are looked for."""
_FACTS = replace(on_paper(90), model="emulated", multiprocessors=4)


@dataclass(frozen=True)
class EmulatedCudaDevice(FromFacts):
    """The facts are those of an H100 of four multiprocessors; only the results are real."""

    arch: str = "sm_90a"
    seconds: float = 60.0
    """CPU time after which a launch has failed."""
    finds_races: bool = field(default_factory=lambda: bool(os.environ.get("JITDNN_TESTS_RACES")))
    """Whether accesses to shared memory that nothing orders are errors (races.h): kernels run several times as long."""

    target: str = "cuda"
    name: str = "emulated"
    threads: int = 1
    max_threads: int = 1024
    has_f64: bool = True
    cooperates: bool = False
    facts: GpuFacts = _FACTS

    def compile(self, source: Source) -> bytes:
        """The path of the compiled source. Raises CompileError."""
        return os.fsencode(built_source(source, self.arch, self.finds_races))

    def kernel(
        self,
        source: Source,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int] = (),
        floats: Sequence[float] = (),
        tables: Tables | None = None,
    ) -> EmulatedKernel:
        return EmulatedKernel(self, source, launches, pointers, extras, floats, tables)

    def allocate(self, size: int) -> HostMemory:
        return HostMemory(size)

    def trim(self) -> None:
        """Nothing is kept."""

    def write(self, pointer: int, data: Any, stream: Any = None) -> None:
        ctypes.memmove(pointer, data.ctypes.data, data.nbytes)

    send = write

    def copy(self, target: int, source: int, size: int, stream: Any = None) -> None:
        ctypes.memmove(target, source, size)

    def read(self, data: Any, pointer: int, stream: Any = None) -> None:
        ctypes.memmove(data.ctypes.data, pointer, data.nbytes)

    def synchronize(self, stream: Any = None) -> None:
        """Every launch is over when its call returns."""

    def release(self, stream: Any, *held: object) -> None:
        """The same."""


class HostMemory:
    """Memory aligned to 256 bytes, as an allocation of CUDA is."""

    def __init__(self, size: int) -> None:
        self._bytes = np.empty(size + 256, np.uint8)
        self.pointer, self.size = self._bytes.ctypes.data + 255 & ~255, size
        _MEMORIES.add(self)


def _ranges() -> tuple[Any, int]:
    """Where memory begins and how many bytes it has, and how many ranges these are."""
    ranges = [number for one in _MEMORIES for number in (one.pointer, one.size)]
    return (ctypes.c_size_t * len(ranges))(*ranges), len(ranges) // 2


class EmulatedKernel:
    def __init__(
        self, device: EmulatedCudaDevice, source: Source, launches: Sequence[Launch], pointers: int,
        extras: Sequence[int], floats: Sequence[float], tables: Tables | None,
    ) -> None:  # fmt: skip
        self._device, self._source, self._launches = device, source, tuple(launches)
        self._pointers, self._extras, self._floats = pointers, tuple(extras), tuple(floats)
        self._tables = tables
        for tensor_map in tables.maps if tables else ():
            check(tensor_map, pointers)
        self._library = _library(os.fsdecode(device.compile(source)))
        for launch in self._launches:
            self._check(launch)

    def _check(self, launch: Launch) -> None:
        """What the driver would refuse, and what it would not see."""
        name, device = launch.function, self._device
        if not hasattr(self._library, f"emulation_entry_{name}"):
            raise CompileError(f"{self._source.name} has no kernel {name}")
        takes = getattr(self._library, f"emulation_arity_{name}")()
        gets = (self._tables is not None) + self._pointers + 3 + len(self._extras) + len(self._floats)
        if takes != gets:
            raise CompileError(f"{name} takes {takes} arguments and is launched with {gets}")
        structure = getattr(self._library, f"emulation_structure_{name}")()
        given = self._tables.size if self._tables else 0
        if structure != given:
            raise CompileError(f"{name} takes tables of {structure} bytes and is launched with {given}")
        declared = getattr(self._library, f"emulation_threads_{name}")()
        if declared not in (0, launch.threads):
            raise DeviceError(f"{name} is declared for {declared} threads and launched with {launch.threads}")
        cluster = getattr(self._library, f"emulation_cluster_{name}")()
        if launch.sets_cluster != (cluster == 0):
            raise DeviceError(f"{name} declares how large its clusters are, or its launch does, and not both")
        if cluster not in (0, launch.cluster):
            raise DeviceError(
                f"{name} is declared for clusters of {cluster} blocks and launched in those of {launch.cluster}"
            )
        if launch.grid[0] % launch.cluster:
            raise DeviceError(
                f"{name} is launched with {launch.grid[0]} blocks, in clusters of {launch.cluster}"
            )
        if not 1 <= launch.threads <= device.max_threads:
            raise DeviceError(f"{name} is launched with {launch.threads} threads of a group")
        if not 0 <= launch.shared <= device.shared_bytes:
            raise DeviceError(
                f"{name} asks for {launch.shared} bytes of shared memory of {device.shared_bytes}"
            )

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        if len(pointers) != self._pointers:
            raise DeviceError(
                f"{self._source.name} is called with {len(pointers)} pointers of {self._pointers}"
            )
        tables = ctypes.create_string_buffer(self._packed_tables(pointers, workspace))
        first = (ctypes.addressof(tables),) if self._tables else ()
        slots = struct.pack(
            f"{len(first) + len(pointers) + 1}Q2d{len(self._extras)}q{len(self._floats)}d",
            *first, *pointers, workspace, alpha, beta, *self._extras, *self._floats,
        )  # fmt: skip
        for launch in self._launches:
            self._run(launch, slots)

    def _packed_tables(self, pointers: Sequence[int], workspace: int) -> bytes:
        if not self._tables:
            return b""
        maps = b"".join(encoded(one, pointers, workspace) for one in self._tables.maps)
        return (maps + self._tables.packed_numbers).ljust(self._tables.size, b"\0")

    def _run(self, launch: Launch, slots: bytes) -> None:
        library, message, fault = self._library, ctypes.create_string_buffer(2000), ctypes.c_size_t()
        with _LOCK:
            failed = _runtime().emulation_launch(
                getattr(library, f"emulation_entry_{launch.function}"), slots, (ctypes.c_uint * 3)(*launch.grid),
                launch.threads, launch.cluster, launch.shared, library.emulation_alignment(),
                library.emulation_shared_begin(), library.emulation_shared_end(), self._seconds(),
                self._source.dialect == "plain", launch.is_early, self._device.finds_races,
                *(_ranges() if self._device.finds_races else (None, 0)), message, len(message),
                ctypes.byref(fault),
            )  # fmt: skip
        if failed:
            place = _place(library, fault.value) if fault.value else ""
            text = re.sub(
                "@([0-9a-f]+)@",
                lambda found: _place(library, int(found[1], 16) - 1)[4:] or "an unknown line",
                message.value.decode("utf-8", "replace"),
            )
            raise DeviceError(f"{launch.function} of {self._source.name}: {text}{place}")

    def _seconds(self) -> float:
        return self._device.seconds * (_SLOWER if self._device.finds_races else 1)


@functools.cache
def _runtime() -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(built_runtime()), mode=ctypes.RTLD_GLOBAL)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    runtime.emulation_launch.argtypes = [
        pointer, ctypes.c_char_p, pointer, ctypes.c_int, ctypes.c_int, size, size, pointer, pointer,
        ctypes.c_double, ctypes.c_int, ctypes.c_int, ctypes.c_int, pointer, ctypes.c_int,
        pointer, ctypes.c_int, pointer,
    ]  # fmt: skip
    return runtime


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    _runtime()  # whose names the kernels use
    library = ctypes.CDLL(path)
    library.emulation_shared_begin.restype = library.emulation_shared_end.restype = ctypes.c_void_p
    return library


def _place(library: ctypes.CDLL, address: int) -> str:
    """The line of the instruction at an address, if it is known."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    starts = [int(line.split("-")[0], 16) for line in maps if line.endswith(library._name)]
    tool = shutil.which("addr2line")
    if not starts or not tool or address < min(starts):
        return ""
    command = [tool, "-i", "-e", library._name, hex(address - min(starts))]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    lines = [
        Path(one.split(" ")[0]).name.replace(".cpp:", ":")
        for one in found
        if one and not one.startswith("??")
    ]
    return f" at {', called from '.join(lines)}" if lines else ""
