"""A target of its own for tests: the plain kernels, compiled by the system's C compiler and run by the processor.

It shows what a new target takes: a language (`language.h`), a device, and a `Target` that is registered. Thread blocks
run one after the other, the threads of one as fibers. Addresses are those of host memory.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitdnn import targets
from jitdnn.devices.gpu import Launch, Source, plain_prelude
from jitdnn.devices.gpu_facts import FromFacts, GpuFacts
from jitdnn.errors import CompileError, DeviceError
from jitdnn.locks import lock
from jitdnn.rtcg.recording import Generated, records

COMPILER = shutil.which("cc") or shutil.which("gcc")
_OPTIONS = ("-std=gnu11", "-O1", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_KERNEL = re.compile(r"\bkernel_of_this_source\s+void\s+(\w+)\s*\(([^()]*)\)")
_lock = lock()  # a library has one set of fibers


class _Memory:
    def __init__(self, size: int, stream: Any) -> None:
        self._bytes = np.empty(size + 64, np.uint8)
        self.pointer, self.size = self._bytes.ctypes.data + 63 & ~63, size
        self.streams = frozenset((stream,))

    def free(self) -> None:
        """Python does."""


FACTS = GpuFacts(
    "a processor",
    capability=0,
    multiprocessors=2,
    clock=1e9,
    bytes_per_second=1.1e10,
    memory_bytes=1 << 30,
    l2_bytes=1 << 20,
    shared_bytes=48 << 10,
    reserved_shared_bytes=0,
    registers=65536,
    resident_threads=2048,
    resident_blocks=32,
    f32_rate=1,
    f64_rate=1,
    mma_rate=0,
)


@dataclass(frozen=True)
class PlainDevice(FromFacts):
    """A processor as a GPU of two multiprocessors. Its one stream is 0; every launch is over when its call returns."""

    index: int = 0

    target = "plain"
    name = "processor by way of C"
    arch = ""
    threads = 1
    max_threads = 1024
    has_f64 = True
    facts = FACTS
    default_stream = 0

    @property
    def device_id(self) -> tuple[str, int]:
        return self.target, self.index

    def stream(self, given: Any) -> int:
        return int(given)

    def own_stream(self) -> int:
        return 0

    def order(self, stream: Any, after: Any) -> None:
        """There is one stream."""

    def is_capturing(self, stream: Any) -> bool:
        return False

    def measure(self, stream: Any, run: Callable[[], None]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def allocate(self, size: int, stream: Any = None) -> _Memory:
        return _Memory(size, stream or 0)

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
        """Nothing is under way."""

    def release(self, stream: Any, *held: object) -> None:
        """Nothing is under way."""

    def compile(self, source: Source) -> Any:
        return _compiled(source)

    def kernel(
        self,
        source: Source,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int] = (),
        floats: Sequence[float] = (),
    ) -> _Kernel:
        return _Kernel(_compiled(source), source.name, tuple(launches), pointers, extras, floats)


class _Kernel:
    def __init__(
        self,
        library: ctypes.CDLL | None,
        name: str,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int],
        floats: Sequence[float],
    ) -> None:
        self._library, self._name, self._launches = library, name, launches
        self._head = struct.Struct(f"{pointers + 1}Q2d")
        self._numbers = struct.pack(f"{len(extras)}q{len(floats)}d", *extras, *floats)

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        slots = self._head.pack(*pointers, workspace, alpha, beta) + self._numbers
        for launch in self._launches:
            with _lock:
                run = getattr(self._library, f"launch_{launch.function}")
                grid = (ctypes.c_longlong * 3)(*launch.grid)
                if run(slots, grid, ctypes.c_longlong(launch.threads)):
                    raise DeviceError(f"{launch.function} of {self._name}: threads of a block miss a barrier")


@functools.cache
def _prelude() -> str:
    return plain_prelude(language=(Path(__file__).parent / "language.h").read_text("utf-8"))


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="jitdnn-plain-c-")


def _compiled(source: Source) -> ctypes.CDLL | None:
    """The library of a source; None inside of `recording()`. Raises CompileError."""
    if source.dialect != "plain":
        raise CompileError(f"{source.name} is {source.dialect} code, and the plain target takes plain C")
    text = source.complete(_prelude())
    made = records()
    if made is not None:
        made.append(Generated(source.name, "c", text, "", str))
        return None
    return _library(source.name, text)


@functools.cache
def _library(name: str, text: str) -> ctypes.CDLL:
    path = Path(_folder().name) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    whole, library = path.with_suffix(".c"), path.with_suffix(".so")
    text = _compiler(name, "-E", "-P", "-x", "c", "-", given=text)
    launchers = "".join(_launcher(*one) for one in _KERNEL.findall(text))
    whole.write_text(_KERNEL.sub(r"static void \1(\2)", text) + launchers)
    _compiler(name, "-shared", str(whole), "-o", str(library), "-lm")
    return ctypes.CDLL(str(library))


def _compiler(name: str, *arguments: str, given: str = "") -> str:
    command = [str(COMPILER), *_OPTIONS, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{name} does not compile:\n{done.stderr[:4000]}")
    return done.stdout


def _launcher(kernel: str, parameters: str) -> str:
    """C of the function that runs a grid of a kernel; each argument is 8 bytes of the block that it is given."""
    values = []
    for number, parameter in enumerate(parameters.split(",")):
        is_real = re.match(r"\s*(const\s+)?(SCALE|f64|double|f32|float)\b", parameter)
        kind = "pointer" if "*" in parameter else "real" if is_real else "integer"
        values.append(f"slots[{number}].{kind}")
    return (
        f"\nstatic void entry_{kernel}(const Argument *slots) {{ {kernel}({', '.join(values)}); }}\n"
        f"int launch_{kernel}(const Argument *slots, const i64 *grid, i64 threads) "
        f"{{ return run_grid(entry_{kernel}, 1, slots, grid, threads); }}\n"
    )


def missing() -> str | None:
    """Why the target cannot be used; None if it can."""
    return None if COMPILER else "the plain target needs a C compiler, cc or gcc"


def _devices() -> Any:
    return SimpleNamespace(
        device=lambda index=0, values=None: PlainDevice(index),
        device_count=lambda: int(missing() is None),
        missing=missing,
    )


def _table() -> Any:
    from jitdnn.kernels.gpu import table

    return SimpleNamespace(
        ALGORITHMS=table.PLAIN, ELEMENTWISE=table.ELEMENTWISE, REDUCTION=table.REDUCTION, SCAN=table.SCAN
    )


TARGET = targets.Target("plain", _devices, _table, code_forms=("c",))


@contextmanager
def registered() -> Iterator[None]:
    """The target is there inside of the `with` block."""
    targets.register(TARGET)
    try:
        yield
    finally:
        targets.unregister(TARGET.name)
