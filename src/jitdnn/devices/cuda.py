"""NVIDIA GPUs: CUDA C++ compiled by NVRTC, launched through the driver on the caller's stream.

`offline(arch)` is a device that exists on paper: it compiles, and launches nothing, so that all code can be checked on
machines without a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from jitdnn.devices.cuda_compile import compiled, compiler_version, known_capabilities, no_compiler
from jitdnn.devices.cuda_compile import prelude as _prelude  # noqa: F401 - for tools that compile by hand
from jitdnn.devices.cuda_driver import (
    check,
    current,
    driver,
    ended_streams,
    has_early_launches,
    is_capturing,
    pointer_device,
    stream_number,
)
from jitdnn.devices.cuda_graph import Graph, Stream
from jitdnn.devices.cuda_kernel import CudaKernel, Event, device_count, unload_unused
from jitdnn.devices.cuda_memory import DeviceMemory, release, trim
from jitdnn.devices.cuda_staging import CopyAhead, StagedCopy, page_locked
from jitdnn.devices.gpu import Kernel, Launch, Memory, Source
from jitdnn.devices.gpu_facts import OLDEST, FromFacts, GpuFacts, architecture, as_stated, mma_rate, on_paper
from jitdnn.devices.tensor_map import Tables
from jitdnn.errors import DeviceError
from jitdnn.rtcg.cache import Origin
from jitdnn.tensor import DeviceId

__all__ = ["CudaDevice", "Graph", "device", "device_count", "missing", "offline", "pointer_device"]

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_EARLY_LAUNCHES = 90  # the compute capability from which on launches may begin early


@dataclass(frozen=True)
class CudaDevice(FromFacts):
    """A GPU by its number among those that the driver shows, or one on paper (`index` -1).

    `version`: of CUDA, as the driver has it. `has_pools`: memory can be allocated and freed in the order of a stream.
    `efficiency`: estimated over measured seconds by "algorithm kind", where a device file states them.
    """

    index: int
    facts: GpuFacts
    arch: str
    version: str = ""
    has_pools: bool = False
    efficiency: tuple[tuple[str, float], ...] = ()

    target = "cuda"
    threads = 1
    max_threads = 1024
    has_f64 = True
    cooperates = True

    @property
    def device_id(self) -> DeviceId:
        return self.target, self.index

    @property
    def name(self) -> str:
        """Model, architecture and driver: what measurements are filed under."""
        return f"{self.facts.model} {self.arch}{self.version}"

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
        tables: Tables | None = None,
    ) -> Kernel:
        if self.facts.capability < _EARLY_LAUNCHES or (self.index >= 0 and not has_early_launches()):
            launches = [replace(launch, is_early=False) for launch in launches]
        return CudaKernel(
            self.index, self.compile(source), source, launches, pointers, extras, floats, tables
        )

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

    def staged_copy(self, size: int) -> StagedCopy:
        """Memory of the host from which copies run beside what the GPU computes."""
        return StagedCopy(self.index, self.facts.model, size)

    def copy_ahead(self, size: int) -> CopyAhead:
        """Memory of the GPU to which page-locked memory is copied beside what the GPU computes."""
        return CopyAhead(self.index, self.facts.model, size)

    def page_locked(self, size: int) -> Any:
        """Bytes of the host's memory that `send` and `read` copy without the driver's taking them first: what is sent
        from there must stay as it is until it has arrived."""
        return page_locked(self.index, size)

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
        return DeviceMemory(self.index, self.has_pools, size, stream or 0, self.facts.model)

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

    def release(self, stream: int, *held: object) -> None:
        release(self.index, stream, *held)


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
    """The GPU of this number, whatever the settings are, but for what a device file states of it.

    Raises DeviceError, in one line, if it is not there or too old.
    """
    return _as_stated(_found(index))


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
    by_capability = architecture(capability)
    facts = GpuFacts(
        text,
        capability,
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        clock=1e3 * attribute("CLOCK_RATE"),
        bytes_per_second=2e3 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8,
        memory_bytes=int(memory),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        reserved_shared_bytes=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        registers=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        resident_threads=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        resident_blocks=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        f32_rate=by_capability["f32_rate"],
        f64_rate=by_capability["f64_rate"],
        mma_rate=mma_rate(text, capability),
    )
    return CudaDevice(
        index,
        facts,
        # code for 9.0 may use what only 9.0 has
        f"sm_{capability}{'a' if capability == 90 else ''}",
        f" CUDA {int(version) // 1000}.{int(version) % 1000 // 10}",
        bool(attribute("MEMORY_POOLS_SUPPORTED")),
    )


def origins() -> list[Origin]:
    """Of the code that this machine's GPUs run and its compiler makes."""
    if missing() is not None:
        return []
    version, found = compiler_version(), []
    for index in range(device_count()):
        with suppress(DeviceError):  # one that is too old
            found.append(Origin("cuda", device(index).arch, version))
    return found


def offline(arch: str) -> CudaDevice:
    """A device on paper: kernels are compiled for `arch` (`sm_80`, `sm_90a`, ...) and cannot be launched.

    Raises DeviceError for one that is too old, or that NVRTC does not know.
    """
    capability = int(arch.removeprefix("sm_").rstrip("a"))
    if capability < OLDEST:
        raise DeviceError(f"{arch} is too old: sm_{OLDEST} (A100) or later is needed")
    if known_capabilities() and capability not in known_capabilities():
        names = ", ".join(f"sm_{known}" for known in known_capabilities() if known >= OLDEST)
        raise DeviceError(f"{compiler_version()} does not compile for {arch}: it knows {names}")
    return _as_stated(CudaDevice(-1, on_paper(capability), arch, " on paper"))


def _as_stated(found: CudaDevice) -> CudaDevice:
    """The device with the facts that the device file states; itself if that states none."""
    facts, efficiency = as_stated(found.facts)
    if facts is found.facts and not efficiency:
        return found
    return replace(found, facts=facts, efficiency=efficiency)
