"""NVIDIA GPUs: CUDA C++ compiled by NVRTC, launched through the driver on the caller's stream.

`offline(arch)` is a device that exists on paper: it compiles, and launches nothing, so that all code can be checked on
machines without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import io
import re
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from jitdnn.devices.gpu import Kernel, Launch, Memory, Source, read_text, source_key
from jitdnn.errors import CompileError, DeviceError
from jitdnn.rtcg.cache import CodeCache
from jitdnn.tensor import compute_dtype

_SCHEMA = "1"  # raise when the meaning of a cached binary changes without a change of its text
_STATIC_SHARED = 48 << 10  # bytes of dynamic group memory that need no leave
OLDEST = 80  # compute capability 8.0: asynchronous copies, bf16

# operations a clock of one multiprocessor, by compute capability: ordinary f32, f64, and 16-bit `mma` with f32 sums. On
# Hopper and later `mma.sync` reaches three fifths of what the newer instructions do.
_RATES = {
    80: (128, 64, 2048), 86: (256, 4, 512), 87: (256, 4, 1024), 89: (256, 4, 1024), 90: (256, 128, 2560),
    100: (256, 128, 2560), 103: (256, 4, 2560), 110: (256, 4, 1024), 120: (256, 4, 1024), 121: (256, 4, 1024),
}  # fmt: skip
_TENSOR_SHARE = {"f16": 1.0, "bf16": 1.0, "f32": 0.5, "i8": 2.0}  # f32 stands for tf32


@dataclass(frozen=True)
class Facts:
    """What the driver says of a GPU."""

    model: str
    capability: int
    multiprocessors: int
    clock: float  # Hz
    bytes_per_second: float  # of the memory's pins
    cache: int  # bytes of L2
    shared: int  # most bytes that a group may have
    memory: int


# an H100 SXM: what an offline device is estimated as
_PAPER = Facts("offline", 90, 132, 1.755e9, 3.35e12, 50 << 20, 227 << 10, 80 << 30)


@dataclass(frozen=True)
class CudaDevice:
    """A GPU by its number among those that the driver shows, or one on paper (`index` -1)."""

    index: int
    facts: Facts = field(compare=False)
    arch: str

    target = "cuda"
    threads = 1
    max_threads = 1024
    has_f64 = True

    @property
    def name(self) -> str:
        """Model and architecture: what measurements are filed under."""
        return f"{self.facts.model} {self.arch}"

    @property
    def multiprocessors(self) -> int:
        return self.facts.multiprocessors

    @property
    def shared_bytes(self) -> int:
        return self.facts.shared

    @property
    def bandwidth(self) -> float:
        return 0.9 * self.facts.bytes_per_second

    def peak_flops(self, dtype: str) -> float:
        single, double, _ = _rates(self.facts.capability)
        rate = double if compute_dtype(dtype) == "f64" else single
        return rate * self.multiprocessors * self.facts.clock

    def tensor_flops(self, dtype: str) -> float:
        rate = _rates(self.facts.capability)[2] * _TENSOR_SHARE.get(dtype, 0.0)
        return rate * self.multiprocessors * self.facts.clock

    def compile(self, source: Source) -> bytes:
        """The machine code of a source, from the disk cache if it is there. Raises CompileError."""
        return _compiled(source, self.arch)

    def kernel(
        self,
        source: Source,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int] = (),
        floats: Sequence[float] = (),
    ) -> Kernel:
        return CudaKernel(self, source, launches, pointers, extras, floats)

    def allocate(self, size: int) -> Memory:
        return _DeviceMemory(self, size)

    def write(self, pointer: int, data: Any, stream: Any = None) -> None:
        with _current(self.index):
            _check(_driver().cuMemcpyHtoDAsync(pointer, data.ctypes.data, data.nbytes, stream or 0), "copy")
            self.synchronize(stream)

    def read(self, data: Any, pointer: int, stream: Any = None) -> None:
        with _current(self.index):
            _check(_driver().cuMemcpyDtoHAsync(data.ctypes.data, pointer, data.nbytes, stream or 0), "copy")
            self.synchronize(stream)

    def synchronize(self, stream: Any = None) -> None:
        with _current(self.index):
            _check(_driver().cuStreamSynchronize(stream or 0), "waiting for a stream")


class CudaKernel:
    """Launches of one source's functions, with the numbers that they always get."""

    def __init__(
        self, device: CudaDevice, source: Source, launches: Sequence[Launch], pointers: int,
        extras: Sequence[int], floats: Sequence[float],
    ) -> None:  # fmt: skip
        self._device, self._source, self._launches = device, source, tuple(launches)
        self._code = device.compile(source)
        self._numbers = struct.pack(f"{len(extras)}q{len(floats)}d", *extras, *floats)
        self._head = struct.Struct(f"{pointers + 1}Q2d")
        self._count = pointers + 3 + len(extras) + len(floats)
        self._ready: list[tuple[Any, int, int, int, int, int]] | None = None
        self._free: list[_Block] = []
        self._lock = threading.Lock()

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        ready = self._ready or self._load()
        try:
            # list.pop is atomic: threads never share a block
            block = self._free.pop()
        except IndexError:
            block = _Block(self._count, self._head.size, self._numbers)
        self._head.pack_into(block.memory, 0, *pointers, workspace, alpha, beta)
        launch = _driver().cuLaunchKernel
        for function, x, y, z, threads, shared in ready:
            (status,) = launch(function, x, y, z, threads, 1, 1, shared, stream or 0, block.parameters, 0)
            if status:
                _check((status,), f"launch of {self._source.name}")
        self._free.append(block)

    def _load(self) -> list[tuple[Any, int, int, int, int, int]]:
        with self._lock:
            if self._ready is None:
                library = _library(self._device.index, self._code)
                self._ready = [
                    (library.function(one), *one.grid, one.threads, one.shared) for one in self._launches
                ]
            return self._ready


class _Block:
    """The arguments of a launch, and the addresses of each."""

    __slots__ = ("_addresses", "memory", "parameters")

    def __init__(self, count: int, head: int, numbers: bytes) -> None:
        self.memory = ctypes.create_string_buffer(8 * count)
        start = ctypes.addressof(self.memory)
        ctypes.memmove(start + head, numbers, len(numbers))
        self._addresses = (ctypes.c_void_p * count)(*(start + 8 * n for n in range(count)))
        self.parameters = ctypes.addressof(self._addresses)


class _Library:
    """Machine code loaded on one GPU; it stays loaded as long as this object lives."""

    def __init__(self, index: int, code: bytes) -> None:
        self._driver, self._index = _driver(), index
        with _current(index):
            (self._library,) = _check(
                self._driver.cuLibraryLoadData(code, None, None, 0, None, None, 0), "loading code"
            )

    def function(self, launch: Launch) -> Any:
        driver = self._driver
        with _current(self._index):
            (kernel,) = _check(
                driver.cuLibraryGetKernel(self._library, launch.function.encode()), launch.function
            )
            (function,) = _check(driver.cuKernelGetFunction(kernel), launch.function)
            if launch.shared > _STATIC_SHARED:
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _check(
                    driver.cuFuncSetAttribute(function, attribute, launch.shared),
                    f"{launch.function} with {launch.shared} bytes of shared memory",
                )
            return function

    def __del__(self) -> None:
        with suppress(Exception):  # the driver may be gone already when Python ends
            self._driver.cuLibraryUnload(self._library)


_libraries: dict[tuple[int, bytes], _Library] = {}


def _library(index: int, code: bytes) -> _Library:
    found = _libraries.get((index, code))
    return found or _libraries.setdefault((index, code), _Library(index, code))


class _DeviceMemory:
    def __init__(self, device: CudaDevice, size: int) -> None:
        self.pointer, self.size = 0, size
        self._index = device.index
        if size:
            with _current(device.index):
                (pointer,) = _check(
                    _driver().cuMemAlloc(size), f"{size} bytes on {device.facts.model} {device.index}"
                )
            self.pointer = int(pointer)

    def __del__(self) -> None:
        if self.pointer:
            with suppress(Exception), _current(self._index):
                _driver().cuMemFree(self.pointer)


class _current:  # noqa: N801 - used as a function
    """A block of code for which a GPU's primary context is the thread's current one."""

    __slots__ = ("_context", "_is_pushed")

    def __init__(self, index: int) -> None:
        self._context = _context(index)

    def __enter__(self) -> None:
        driver = _driver()
        status, now = driver.cuCtxGetCurrent()
        self._is_pushed = int(status) != 0 or int(now) != int(self._context)
        if self._is_pushed:
            _check(driver.cuCtxPushCurrent(self._context), "making a GPU current")

    def __exit__(self, *_: object) -> None:
        if self._is_pushed:
            _driver().cuCtxPopCurrent()


@functools.cache
def _driver() -> Any:
    """The driver's functions, initialised. Raises DeviceError, saying what is missing."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise DeviceError(
            "the cuda target needs cuda-core and cuda-bindings: pip install 'jitdnn[cuda]'"
        ) from None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # no libcuda.so.1
        raise DeviceError(f"no NVIDIA driver on this machine: {error}") from None
    if int(status):
        raise DeviceError(f"the NVIDIA driver does not start: {_words(driver, status)}")
    return driver


def _words(driver: Any, status: Any) -> str:
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    return f"{(name or b'?').decode()}: {(text or b'?').decode()}"


def _check(result: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
    """What a function of the driver returned beside its status. Raises DeviceError if that is none of success."""
    if int(result[0]):
        raise DeviceError(f"{doing}: {_words(_driver(), result[0])}")
    return result[1:]


@functools.cache
def _context(index: int) -> Any:
    driver = _driver()
    (device,) = _check(driver.cuDeviceGet(index), f"GPU {index}")
    (context,) = _check(driver.cuDevicePrimaryCtxRetain(device), f"GPU {index}")
    return context


def device_count() -> int:
    """GPUs that the driver shows; 0 without a driver or the packages that call it."""
    try:
        (count,) = _check(_driver().cuDeviceGetCount(), "counting GPUs")
    except DeviceError:
        return 0
    return int(count)


@functools.cache
def device(index: int = 0) -> CudaDevice:
    """The GPU of this number. Raises DeviceError, in one line, if it is not there or too old."""
    driver = _driver()
    (count,) = _check(driver.cuDeviceGetCount(), "counting GPUs")
    if not 0 <= index < int(count):
        raise DeviceError(f"there is no GPU {index}: the driver shows {int(count)}")
    (handle,) = _check(driver.cuDeviceGet(index), f"GPU {index}")

    def attribute(name: str) -> int:
        key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_check(driver.cuDeviceGetAttribute(key, handle), name)[0])

    (model,) = _check(driver.cuDeviceGetName(128, handle), f"GPU {index}")
    (memory,) = _check(driver.cuDeviceTotalMem(handle), f"GPU {index}")
    capability = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
    text = model.split(b"\0", 1)[0].decode()
    if capability < OLDEST:
        raise DeviceError(
            f"GPU {index}, {text}, has compute capability {capability / 10}: 8.0 (A100, RTX 30) or later is needed"
        )
    facts = Facts(
        text,
        capability,
        attribute("MULTIPROCESSOR_COUNT"),
        1e3 * attribute("CLOCK_RATE"),
        2e3 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8,
        attribute("L2_CACHE_SIZE"),
        attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        int(memory),
    )
    # code for 9.0 may use what only 9.0 has
    return CudaDevice(index, facts, f"sm_{capability}{'a' if capability == 90 else ''}")


def offline(arch: str) -> CudaDevice:
    """A device on paper: kernels are compiled for `arch` (`sm_80`, `sm_90a`, ...) and cannot be launched."""
    return CudaDevice(-1, _PAPER, arch)


def _rates(capability: int) -> tuple[int, int, int]:
    return _RATES[max((known for known in _RATES if known <= capability), default=80)]


@functools.cache
def _prelude(dialect: str) -> str:
    plain = "#define HAS_F64 1\n" + read_text("jitdnn.kernels.gpu", "plain.h")
    return plain if dialect == "plain" else read_text("jitdnn.kernels.cuda", "instructions.cuh") + plain


@functools.cache
def _compiler_version() -> str:
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    return f"nvrtc {major}.{minor}" if not int(status) else "nvrtc"


def _compiled(source: Source, arch: str) -> bytes:
    try:
        version = _compiler_version()
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            f"the cuda target needs NVRTC: pip install 'jitdnn[cuda]' brings it ({error})"
        ) from None
    text = source.complete(_prelude(source.dialect))
    key = source_key(source, text, "cuda", arch, version, str(source.spills), _SCHEMA)
    cache = CodeCache.default()
    code = cache.get(key)
    if code is None:
        code = _compile(source, text, arch)
        cache.put(key, code)
    return code


def _compile(source: Source, text: str, arch: str) -> bytes:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=f"{source.name}.cu", arch=arch, std="c++17", ptxas_options="-v", diag_suppress=177
    )
    log = io.StringIO()
    try:
        code: bytes = Program(text, "c++", options).compile("cubin", logs=log).code
    except Exception as error:
        raise CompileError(f"{source.name} does not compile for {arch}: {error}\n{log.getvalue()}") from None
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log.getvalue())]
    if any(spilled) and not source.spills:
        raise CompileError(
            f"{source.name} for {arch} spills {max(spilled)} bytes of registers, which it does not declare"
        )
    return code
