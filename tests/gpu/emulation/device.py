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
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.devices.gpu import Launch, Source, read_text
from jitdnn.errors import CompileError, DeviceError
from jitdnn.tensor import compute_dtype

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
_CHECKS = "alignment,bounds,shift-exponent,signed-integer-overflow,integer-divide-by-zero"
_OPTIONS = [
    "-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-fvisibility=hidden",
    "-w", "-g1", f"-fsanitize={_CHECKS}",
]  # fmt: skip
_DYNAMIC = re.compile(
    r"\bextern\b(?P<before>[^;{}]*?)\b__shared__\b(?P<type>[^;{}]*?)(?P<name>\w+)\s*\[\s*\]\s*;"
)
_ALIGNMENT = re.compile(r"\b(?:__align__|alignas)\s*\([^)]*\)")
_LOCK = threading.Lock()  # the runtime has one set of fibers


def missing() -> str | None:
    """What this machine lacks for the emulated device, in words; None if nothing."""
    return None if COMPILER and shutil.which("objcopy") else "the emulated CUDA device needs g++ and objcopy"


@dataclass(frozen=True)
class EmulatedCudaDevice:
    """The facts are those of an H100 of four multiprocessors; only the results are real."""

    arch: str = "sm_90a"
    seconds: float = 60.0
    """CPU time after which a launch has failed."""

    target: str = "cuda"
    name: str = "emulated"
    threads: int = 1
    multiprocessors: int = 4
    max_threads: int = 1024
    shared_bytes: int = 227 << 10
    has_f64: bool = True
    bandwidth: float = 3.0e12

    def peak_flops(self, dtype: str) -> float:
        return (33.5e12 if compute_dtype(dtype) == "f64" else 67e12) * self.multiprocessors / 132

    def tensor_flops(self, dtype: str) -> float:
        rates = {"f16": 600e12, "bf16": 600e12, "f32": 300e12, "i8": 1200e12}
        return rates.get(dtype, 0.0) * self.multiprocessors / 132

    def compile(self, source: Source) -> bytes:
        """The path of the compiled source. Raises CompileError."""
        return os.fsencode(_compiled(source, self.arch))

    def kernel(
        self,
        source: Source,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int] = (),
        floats: Sequence[float] = (),
    ) -> EmulatedKernel:
        return EmulatedKernel(self, source, launches, pointers, extras, floats)

    def allocate(self, size: int) -> HostMemory:
        return HostMemory(size)

    def write(self, pointer: int, data: Any, stream: Any = None) -> None:
        ctypes.memmove(pointer, data.ctypes.data, data.nbytes)

    def read(self, data: Any, pointer: int, stream: Any = None) -> None:
        ctypes.memmove(data.ctypes.data, pointer, data.nbytes)

    def synchronize(self, stream: Any = None) -> None:
        """Every launch is over when its call returns."""


class HostMemory:
    """Memory aligned to 256 bytes, as an allocation of CUDA is."""

    def __init__(self, size: int) -> None:
        self._bytes = np.empty(size + 256, np.uint8)
        self.pointer, self.size = self._bytes.ctypes.data + 255 & ~255, size


class EmulatedKernel:
    def __init__(
        self, device: EmulatedCudaDevice, source: Source, launches: Sequence[Launch], pointers: int,
        extras: Sequence[int], floats: Sequence[float],
    ) -> None:  # fmt: skip
        self._device, self._source, self._launches = device, source, tuple(launches)
        self._pointers, self._extras, self._floats = pointers, tuple(extras), tuple(floats)
        self._library = _library(os.fsdecode(device.compile(source)))
        for launch in self._launches:
            self._check(launch)

    def _check(self, launch: Launch) -> None:
        """What the driver would refuse, and what it would not see."""
        name, device = launch.function, self._device
        if not hasattr(self._library, f"emulation_entry_{name}"):
            raise CompileError(f"{self._source.name} has no kernel {name}")
        takes = getattr(self._library, f"emulation_arity_{name}")()
        gets = self._pointers + 3 + len(self._extras) + len(self._floats)
        if takes != gets:
            raise CompileError(f"{name} takes {takes} arguments and is launched with {gets}")
        declared = getattr(self._library, f"emulation_threads_{name}", None)
        if declared is not None and declared() != launch.threads:
            raise DeviceError(
                f"{name} is declared for {declared()} threads and launched with {launch.threads}"
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
        slots = struct.pack(
            f"{len(pointers) + 1}Q2d{len(self._extras)}q{len(self._floats)}d",
            *pointers, workspace, alpha, beta, *self._extras, *self._floats,
        )  # fmt: skip
        for launch in self._launches:
            self._run(launch, slots)

    def _run(self, launch: Launch, slots: bytes) -> None:
        library, message, fault = self._library, ctypes.create_string_buffer(2000), ctypes.c_size_t()
        with _LOCK:
            failed = _runtime().emulation_launch(
                getattr(library, f"emulation_entry_{launch.function}"), slots, (ctypes.c_uint * 3)(*launch.grid),
                launch.threads, ctypes.c_size_t(launch.shared), ctypes.c_void_p(library.emulation_shared_begin()),
                ctypes.c_void_p(library.emulation_shared_end()), ctypes.c_double(self._device.seconds),
                int(self._source.dialect == "plain"), message, len(message), ctypes.byref(fault),
            )  # fmt: skip
        if failed:
            place = _place(library, fault.value) if fault.value else ""
            raise DeviceError(
                f"{launch.function} of {self._source.name}: {message.value.decode('utf-8', 'replace')}{place}"
            )


def _text(source: Source) -> str:
    """All that g++ reads: the stand-in of CUDA, the source in a namespace of its own, and the exported kernels."""
    plain = '#define HAS_F64 1\n#line 1 "plain.h"\n' + read_text("jitdnn.kernels.gpu", "plain.h")
    text = _with_dynamic_shared(source.complete(f'{plain}\n#line 1 "{source.name}"'))
    exports = []
    for bounds, name in re.findall(
        r"(?:\bKERNEL2?\s*(\(.*?\))|__global__[^;{]*?)\s*void\s+(\w+)\s*\(", source.text
    ):
        exports.append(f"EMULATION_EXPORT({name})")
        if bounds:
            exports.append(f"EMULATION_EXPORT_THREADS({name}, {bounds[1:-1]})")
    return f'#include "cuda.h"\nnamespace {{\n{text}\n}}\n' + "\n".join(exports) + "\n"


def _with_dynamic_shared(text: str) -> str:
    """`extern __shared__ type name[];` as a pointer, which in C++ is what it can be on the CPU."""

    def replaced(found: re.Match[str]) -> str:
        kind = _ALIGNMENT.sub("", found["before"] + found["type"]).strip()
        before = re.sub(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', "", text[: found.start()], flags=re.DOTALL)
        lines = "\n" * found[0].count("\n")
        pointer = f"(({kind} *)emulation::emulation_dynamic_shared)"
        if before.count("{") > before.count("}"):
            return f"{kind} *const {found['name']} = {pointer};{lines}"
        return f"\n#define {found['name']} {pointer}\n{lines}"

    return _DYNAMIC.sub(replaced, text)


def _compiled(source: Source, arch: str) -> Path:
    capability = re.sub(r"\D", "", arch)
    options = (*_OPTIONS, f"-DEMULATION_ARCH={capability}0", f"-I{HERE}")
    return _built(source.name, _text(source), options, (HERE / "cuda.h", HERE / "runtime.h"))


@functools.cache
def _runtime() -> ctypes.CDLL:
    options = ("-std=c++17", "-O3", "-march=native", "-fno-strict-aliasing", "-fPIC", f"-I{HERE}")
    path = _built("runtime", (HERE / "runtime.cpp").read_text(), options, (HERE / "runtime.h",))
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    _runtime()  # whose names the kernels use
    library = ctypes.CDLL(path)
    library.emulation_shared_begin.restype = library.emulation_shared_end.restype = ctypes.c_void_p
    return library


def _built(name: str, text: str, options: Sequence[str], headers: Sequence[Path]) -> Path:
    """The shared library of a text, from the cache if it is there. Raises CompileError."""
    if reason := missing():
        raise DeviceError(reason)
    digest = hashlib.sha256("\0".join([text, *options, _machine()]).encode())
    for header in headers:
        digest.update(header.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"jitdnn-emulation-{os.getuid()}"
    path = folder / f"{name}-{digest.hexdigest()[:24]}.so"
    if path.exists():
        return path
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        stem = Path(scratch) / name
        source, compiled, linked = (stem.with_suffix(suffix) for suffix in (".cpp", ".o", ".so"))
        source.write_text(text)
        # in steps: static arrays get a section of their own, and linking must not know of the sanitizer, whose
        # functions the runtime has
        for command in (
            [str(COMPILER), *options, "-c", str(source), "-o", str(compiled)],
            ["objcopy", "--rename-section", ".bss=shared_arrays", str(compiled)],
            [str(COMPILER), "-shared", str(compiled), "-o", str(linked)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileError(f"{name} does not compile with g++:\n{done.stderr[:8000]}")
        linked.rename(path)
    return path


@functools.cache
def _machine() -> str:
    """The compiler and the instructions of this machine."""
    version = subprocess.run([str(COMPILER), "--version"], capture_output=True, text=True, check=True).stdout
    try:
        flags = re.search(r"^(?:flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    return version + (flags[0] if flags else "")


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
