"""NVIDIA GPUs: CUDA C++ compiled by NVRTC, launched through the driver on the caller's stream.

`offline(arch)` is a device that exists on paper: it compiles, and launches nothing, so that all code can be checked on
machines without a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitdnn.devices.cuda_compile import compiled, compiler_version, no_compiler
from jitdnn.devices.cuda_compile import prelude as _prelude  # noqa: F401 - for tools that compile by hand
from jitdnn.devices.cuda_driver import (
    check,
    current,
    driver,
    ended_streams,
    is_capturing,
    pointer_device,
    stream_number,
)
from jitdnn.devices.cuda_graph import Graph, Stream
from jitdnn.devices.cuda_kernel import CudaKernel, Event, device_count, unload_unused
from jitdnn.devices.cuda_memory import DeviceMemory, trim
from jitdnn.devices.gpu import Kernel, Launch, Memory, Source
from jitdnn.errors import DeviceError
from jitdnn.tensor import DeviceId, compute_dtype

__all__ = ["CudaDevice", "Graph", "device", "device_count", "missing", "offline", "pointer_device"]

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
OLDEST = 80  # compute capability 8.0: asynchronous copies, bf16

# operations a clock of one multiprocessor, by compute capability: ordinary f32, f64, and 16-bit `mma` with f32 sums. On
# Hopper and later `mma.sync` reaches less than what the newer instructions do; on an H100 the best kernels were seen at
# 445 TFLOP/s.
_RATES = {
    80: (128, 64, 2048), 86: (256, 4, 512), 87: (256, 4, 1024), 89: (256, 4, 1024), 90: (256, 128, 1800),
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
    version: str = ""  # of CUDA, as the driver has it
    has_pools: bool = False  # memory allocated and freed in the order of a stream


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
    def device_id(self) -> DeviceId:
        return self.target, self.index

    @property
    def name(self) -> str:
        """Model, architecture and driver: what measurements are filed under."""
        return f"{self.facts.model} {self.arch}{self.facts.version}"

    @property
    def multiprocessors(self) -> int:
        return self.facts.multiprocessors

    @property
    def shared_bytes(self) -> int:
        return self.facts.shared

    @property
    def cache_bytes(self) -> int:
        return self.facts.cache

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
        return compiled(source, self.arch)

    def kernel(
        self,
        source: Source,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int] = (),
        floats: Sequence[float] = (),
    ) -> Kernel:
        return CudaKernel(self.index, self.compile(source), source, launches, pointers, extras, floats)

    @property
    def default_stream(self) -> int:
        return 0

    def stream(self, given: Any) -> int:
        return stream_number(given)

    def own_stream(self) -> Stream:
        return Stream(self.index)

    def order(self, stream: int, after: int) -> None:
        functions = driver()
        with current(self.index):
            if after in ended_streams:
                if not is_capturing(stream):
                    check(functions.cuCtxSynchronize(), "waiting for the GPU")
                return
            if is_capturing(stream) or is_capturing(after):
                return  # a graph knows its own order, and nothing outside of it can wait
            (event,) = check(functions.cuEventCreate(_NO_TIMING), "an event")
            check(functions.cuEventRecord(event, after), "an event")
            check(functions.cuStreamWaitEvent(stream, event, 0), "waiting for an event")
            functions.cuEventDestroy(event)  # which happens once it was waited for

    def is_capturing(self, stream: int) -> bool:
        if stream <= 1:
            return False  # the default stream, of which there are no graphs
        with current(self.index):
            return is_capturing(stream)

    def capture(self, stream: int, owner: object) -> Graph:
        """A graph that captures what this stream is given between its `begin` and `end`."""
        return Graph(self.index, stream, owner)

    def event(self, stream: int) -> Event:
        """What tells when all that a stream was given is done."""
        return Event(self.index, stream)

    def measure(self, stream: int, run: Callable[[], None]) -> float:
        functions = driver()
        with current(self.index):
            (start,) = check(functions.cuEventCreate(0), "an event")
            (end,) = check(functions.cuEventCreate(0), "an event")
            try:
                check(functions.cuEventRecord(start, stream), "an event")
                run()
                check(functions.cuEventRecord(end, stream), "an event")
                check(functions.cuEventSynchronize(end), "waiting for what is measured")
                (milliseconds,) = check(functions.cuEventElapsedTime(start, end), "measuring")
            finally:
                functions.cuEventDestroy(start)
                functions.cuEventDestroy(end)
        return 1e-3 * float(milliseconds)

    def allocate(self, size: int, stream: int | None = None) -> Memory:
        facts = self.facts
        return DeviceMemory(self.index, facts.has_pools, size, stream or 0, facts.model)

    def trim(self) -> None:
        unload_unused()
        trim(self.index)

    def write(self, pointer: int, data: Any, stream: int | None = None) -> None:
        if data.nbytes:
            self.send(pointer, data, stream)
            self.synchronize(stream)

    def send(self, pointer: int, data: Any, stream: int | None = None) -> None:
        # the driver has taken the bytes when it returns, if the memory is not page-locked
        with current(self.index):
            result = driver().cuMemcpyHtoDAsync(pointer, data.ctypes.data, data.nbytes, stream or 0)
            check(result, "copying to the GPU")

    def copy(self, target: int, source: int, size: int, stream: int | None = None) -> None:
        with current(self.index):
            check(driver().cuMemcpyDtoDAsync(target, source, size, stream or 0), "copying on the GPU")

    def read(self, data: Any, pointer: int, stream: int | None = None) -> None:
        if data.nbytes:
            with current(self.index):
                result = driver().cuMemcpyDtoHAsync(data.ctypes.data, pointer, data.nbytes, stream or 0)
                check(result, "copying from the GPU")
                self.synchronize(stream)

    def synchronize(self, stream: int | None = None) -> None:
        with current(self.index):
            if stream in ended_streams:
                check(driver().cuCtxSynchronize(), "waiting for the GPU")
            else:
                check(driver().cuStreamSynchronize(stream or 0), "waiting for a stream")


def missing() -> str | None:
    """Why there is no GPU to use, in one line; None where there is one."""
    try:
        (count,) = check(driver().cuDeviceGetCount(), "counting GPUs")
        if not int(count):
            return "the NVIDIA driver shows no GPU"
        compiler_version()
    except DeviceError as error:
        return str(error)
    except (ImportError, RuntimeError) as error:
        return no_compiler(error)
    return None


def device(index: int = 0, values: object = None) -> CudaDevice:
    """The GPU of this number, whatever the settings are.

    Raises DeviceError, in one line, if it is not there or too old.
    """
    return _found(index)


@functools.cache
def _found(index: int) -> CudaDevice:
    functions = driver()
    (count,) = check(functions.cuDeviceGetCount(), "counting GPUs")
    if not 0 <= index < int(count):
        raise DeviceError(f"there is no GPU {index}: the NVIDIA driver shows {int(count) or 'none'}")
    (handle,) = check(functions.cuDeviceGet(index), f"GPU {index}")

    def attribute(name: str) -> int:
        key = getattr(functions.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(functions.cuDeviceGetAttribute(key, handle), name)[0])

    (model,) = check(functions.cuDeviceGetName(128, handle), f"GPU {index}")
    (memory,) = check(functions.cuDeviceTotalMem(handle), f"GPU {index}")
    (version,) = check(functions.cuDriverGetVersion(), f"GPU {index}")
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
        f" CUDA {int(version) // 1000}.{int(version) % 1000 // 10}",
        bool(attribute("MEMORY_POOLS_SUPPORTED")),
    )
    # code for 9.0 may use what only 9.0 has
    return CudaDevice(index, facts, f"sm_{capability}{'a' if capability == 90 else ''}")


def offline(arch: str) -> CudaDevice:
    """A device on paper: kernels are compiled for `arch` (`sm_80`, `sm_90a`, ...) and cannot be launched."""
    return CudaDevice(-1, _PAPER, arch)


def _rates(capability: int) -> tuple[int, int, int]:
    return _RATES[max((known for known in _RATES if known <= capability), default=80)]
