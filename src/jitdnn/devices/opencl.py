"""OpenCL devices: plain C kernels compiled by the vendor's driver, over shared virtual memory.

Memory is shared virtual memory (OpenCL 2.0 and later), in which an address is a number as everywhere else in the
library. Devices without it are refused by name.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitdnn import retention
from jitdnn.devices.gpu import Kernel, Launch, Memory, OutOfMemory, Source, plain_prelude, source_key
from jitdnn.devices.gpu_facts import FromFacts, GpuFacts
from jitdnn.devices.tensor_map import Tables
from jitdnn.errors import CompileError, DeviceError, InvalidArgument
from jitdnn.rtcg.cache import CodeCache, Origin
from jitdnn.rtcg.recording import Generated, records
from jitdnn.rtcg.use import note_compiled
from jitdnn.settings import current as current_settings
from jitdnn.settings import format_bytes
from jitdnn.tensor import DeviceId, strided_view

_SCHEMA = "2"
_POCL = "Portable Computing Language"
_POCL_BYTES = 5 << 18  # of a program, resident: 40 of them took 46 to 52 MiB with PoCL 3.1
_ALIGNMENT = 128  # the most that every OpenCL device grants
_NO_PACKAGE = "the opencl target needs pyopencl: pip install 'jitdnn[opencl]'"
# what no driver tells: bytes a second, operations a clock of a compute unit, and what is resident in it at a time
_BYTES_PER_SECOND, _FLOPS_A_CLOCK = 55e9, 32
_REGISTERS, _RESIDENT_THREADS, _RESIDENT_BLOCKS = 65536, 2048, 32


@dataclass(frozen=True)
class OpenClDevice(FromFacts):
    """A device by its number among those of all platforms, in the order in which they are listed."""

    index: int
    name: str
    handle: Any = field(compare=False, repr=False)
    context: Any = field(compare=False, repr=False)
    queue: Any = field(compare=False, repr=False)
    facts: GpuFacts

    target = "opencl"
    arch = ""
    threads = 1

    @property
    def device_id(self) -> DeviceId:
        return self.target, self.index

    @property
    def max_threads(self) -> int:
        return min(1024, int(self.handle.max_work_group_size))

    @property
    def has_f64(self) -> bool:
        return bool(self.handle.double_fp_config)

    def kernel(
        self,
        source: Source,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int] = (),
        floats: Sequence[float] = (),
        tables: Tables | None = None,
    ) -> Kernel:
        if tables is not None:
            raise DeviceError(f"{source.name} takes tensor maps, which OpenCL does not have")
        return OpenClKernel(self, source, launches, pointers, extras, floats)

    @property
    def default_stream(self) -> Any:
        return self.queue

    def stream(self, given: Any) -> Any:
        import pyopencl as cl

        if not isinstance(given, cl.CommandQueue):
            raise InvalidArgument(
                f"the stream is a {type(given).__name__}: on opencl it must be a pyopencl.CommandQueue"
            )
        return given

    def own_stream(self) -> Any:
        import pyopencl as cl

        return cl.CommandQueue(self.context)

    def order(self, stream: Any, after: Any) -> None:
        import pyopencl as cl

        cl.enqueue_barrier(stream, [cl.enqueue_marker(after)])
        after.flush()  # what was not sent to the device is not waited for

    def is_capturing(self, stream: Any) -> bool:
        return False

    def measure(self, stream: Any, run: Callable[[], None]) -> float:
        stream.finish()
        start = time.perf_counter()
        run()
        stream.finish()
        return time.perf_counter() - start

    def compile(self, source: Source) -> Any:
        return _program(self, source)

    def allocate(self, size: int, stream: Any = None) -> Memory:
        return _SharedMemory(self, size, stream or self.queue)

    def trim(self) -> None:
        """Nothing is kept."""

    def write(self, pointer: int, data: Any, stream: Any = None) -> None:
        if data.nbytes:
            if not data.flags.writeable:
                data = data.copy()  # pyopencl takes no memory that it could not write to
            self._copy(_memory_at(pointer, data.nbytes), data.reshape(-1).view(np.uint8), stream)

    send = write

    def copy(self, target: int, source: int, size: int, stream: Any = None) -> None:
        if size:
            self._copy(_memory_at(target, size), _memory_at(source, size), stream)

    def read(self, data: Any, pointer: int, stream: Any = None) -> None:
        if data.nbytes:
            self._copy(data.reshape(-1).view(np.uint8), _memory_at(pointer, data.nbytes), stream)

    def _copy(self, target: Any, source: Any, stream: Any) -> None:
        import pyopencl as cl

        cl.enqueue_copy(stream or self.queue, target, source).wait()

    def synchronize(self, stream: Any = None) -> None:
        (stream or self.queue).finish()

    def release(self, stream: Any, *held: object) -> None:
        self.synchronize(stream)


class OpenClKernel:
    """Launches of one source's functions, with the numbers that they always get."""

    def __init__(
        self, device: OpenClDevice, source: Source, launches: Sequence[Launch], pointers: int,
        extras: Sequence[int], floats: Sequence[float],
    ) -> None:  # fmt: skip
        self._device, self._name, self._pointers = device, source.name, pointers
        self._scale = np.float64 if device.has_f64 else np.float32
        self._program, size = _program(device, source)
        self._charge = retention.code.charge(size, current_settings().code_limit)
        self._source = tuple(launches)
        self._numbers = [*(np.int64(n) for n in extras), *(self._scale(x) for x in floats)]
        # arguments belong to the kernel object, not to the launch: each caller has its own, signal handlers too
        self._free = [self._new_launches()]

    def _new_launches(self) -> list[tuple[Any, tuple[int, int, int], tuple[int, int, int]]]:
        import pyopencl as cl

        made = []
        for launch in self._source:
            kernel = cl.Kernel(self._program, launch.function)
            for number, value in enumerate(self._numbers, self._pointers + 3):
                kernel.set_arg(number, value)
            x, y, z = launch.grid
            made.append((kernel, (x * launch.threads, y, z), (launch.threads, 1, 1)))
        return made

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        import pyopencl as cl

        queue = stream or self._device.queue
        nothing = nothing_at(self._device)
        addresses = [address_argument(p or nothing) for p in (*pointers, workspace)]
        try:
            launches = self._free.pop()  # atomic
        except IndexError:
            launches = self._new_launches()
        for kernel, whole, group in launches:
            for number, address in enumerate(addresses):
                kernel.set_arg(number, address)
            kernel.set_arg(self._pointers + 1, self._scale(alpha))
            kernel.set_arg(self._pointers + 2, self._scale(beta))
            try:
                cl.enqueue_nd_range_kernel(queue, kernel, whole, group)
            except cl.Error as error:
                raise DeviceError(f"launch of {self._name}: {error}") from None
        self._free.append(launches)


@functools.lru_cache(8192)
def address_argument(pointer: int) -> Any:
    """An argument of a kernel: only the number counts, so it may be kept."""
    return _memory_at(pointer, 1)


def _memory_at(pointer: int, size: int) -> Any:
    """`size` bytes of shared virtual memory as pyopencl takes them."""
    import pyopencl as cl

    return cl.SVM(strided_view(pointer, (size,), (1,), "u8"))


class _SharedMemory:
    def __init__(self, device: OpenClDevice, size: int, stream: Any) -> None:
        import pyopencl as cl

        self.size, self.pointer, self._memory = size, 0, None
        self.streams, self._queue = frozenset((stream,)), device.queue
        if size:
            flags = cl.svm_mem_flags.READ_WRITE
            # some drivers want whole multiples of the alignment
            whole = -(-size // _ALIGNMENT) * _ALIGNMENT
            try:
                self._memory = cl.SVMAllocation(device.context, whole, _ALIGNMENT, flags)
            except (cl.Error, MemoryError):
                total = format_bytes(int(device.handle.global_mem_size))
                raise OutOfMemory(
                    f"no memory for {format_bytes(size)} on {device.name} opencl:{device.index}, which has {total}"
                ) from None
            self.pointer = int(self._memory.svm_ptr)

    def free(self) -> None:
        if self._memory is not None:
            *others, last = self.streams or (self._queue,)
            for other in others:
                other.finish()
            self._memory.enqueue_release(last)
            self._memory = None

    def __del__(self) -> None:
        if self._memory is not None:
            try:
                self.free()
            except Exception:
                return  # when Python ends, names and the driver may be gone


@functools.cache
def _nothing_memory(device: OpenClDevice) -> Memory:
    return device.allocate(64)


def nothing_at(device: OpenClDevice) -> int:
    """The address of memory that nobody uses: some drivers refuse a null pointer."""
    return _nothing_memory(device).pointer


_prelude = functools.cache(plain_prelude)


def _program(device: OpenClDevice, source: Source) -> tuple[Any, int]:
    """The built program: from the disk cache, or from its text; and its bytes. Raises CompileError.

    PoCL keeps what it compiles itself; asked for a binary it compiles everything once more. So its bytes are not known:
    they count as what its programs were seen to take, LLVM's module of the text above all.
    """
    if source.dialect != "plain":
        raise CompileError(f"{source.name} is {source.dialect} code, which OpenCL does not take")
    text = source.complete(_prelude(device.has_f64))
    made = records()
    if made is not None:
        made.append(Generated(source.name, "opencl", text, "", str))
    key = source_key(source, text, *origin_of(device), _SCHEMA)

    def failure(error: Exception) -> CompileError:
        return CompileError(f"{source.name} does not compile for {device.name}: {error}")

    return built(device, source.name, key, text, ("-cl-std=CL1.2",), failure)


def built(
    device: OpenClDevice,
    name: str,
    key: str,
    text: str,
    options: Sequence[str],
    failure: Callable[[Exception], CompileError],
) -> tuple[Any, int]:
    """The built program of a text, from the disk cache where it keeps the driver's binary, and its bytes."""
    import pyopencl as cl

    is_kept_by_driver = device.handle.platform.name == _POCL
    cache = CodeCache.default()
    binary = None if is_kept_by_driver else cache.get(key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers' notes on code that compiles
        if binary is not None:
            try:
                return cl.Program(device.context, [device.handle], [binary]).build(), len(binary)
            except cl.Error:  # a driver that was changed and kept its version
                pass
        try:
            program = cl.Program(device.context, text).build(
                options=list(options), cache_dir=False if "-I" in options else None
            )
        except cl.Error as error:
            raise failure(error) from None
    note_compiled(name)
    if not is_kept_by_driver:
        (binary,) = program.get_info(cl.program_info.BINARIES)
        cache.put(key, binary, origin_of(device))
    return program, _POCL_BYTES if binary is None else len(binary)


def origin_of(device: OpenClDevice) -> Origin:
    return Origin("opencl", device.name, f"{device.handle.version} {device.handle.driver_version}")


def origins() -> list[Origin]:
    """Of the code that this machine's devices run, and whose drivers would make it."""
    found = []
    for index in range(device_count()):
        with suppress(DeviceError):  # one that cannot be used
            found.append(origin_of(device(index)))
    return found


@functools.cache
def _all() -> tuple[Any, ...]:
    """Every device of every platform; none where pyopencl or a driver is missing."""
    try:
        import pyopencl as cl
    except ImportError:
        return ()
    try:
        return tuple(one for platform in cl.get_platforms() for one in platform.get_devices())
    except cl.Error:
        return ()


def missing() -> str | None:
    """Why there is no OpenCL device to use, in one line; None where there is one."""
    try:
        import pyopencl as cl
    except ImportError:
        return _NO_PACKAGE
    try:
        cl.get_platforms()
    except cl.Error:
        return "no OpenCL driver is installed (Debian's pocl-opencl-icd is one, which runs on the processor)"
    if not _all():
        return "the OpenCL drivers show no device"
    reasons = []
    for index in range(len(_all())):
        try:
            device(index)
        except DeviceError as error:
            reasons.append(str(error))
    return "; ".join(reasons) if len(reasons) == len(_all()) else None


def device_count() -> int:
    """OpenCL devices that there are."""
    return len(_all())


def device(index: int = 0, values: object = None) -> OpenClDevice:
    """The OpenCL device of this number, whatever the settings are.

    Raises DeviceError, in one line, if it is not there or cannot be used.
    """
    return _found(index)


@functools.cache
def _found(index: int) -> OpenClDevice:
    try:
        import pyopencl as cl
    except ImportError:
        raise DeviceError(_NO_PACKAGE) from None
    found = _all()
    if not 0 <= index < len(found):
        raise DeviceError(f"there is no OpenCL device {index}: the drivers installed show {len(found)}")
    handle = found[index]
    name = f"{handle.name.strip()} {handle.version.strip()}"
    try:
        has_shared_memory = bool(handle.svm_capabilities)
    except cl.Error:
        has_shared_memory = False
    if not has_shared_memory:
        raise DeviceError(f"{name} has no shared virtual memory (OpenCL 2.0), which the opencl target needs")
    context = cl.Context([handle])
    return OpenClDevice(index, name, handle, context, cl.CommandQueue(context), _facts(name, handle))


def _facts(name: str, handle: Any) -> GpuFacts:
    """What a driver tells, and guesses for the rest."""
    return GpuFacts(
        name,
        capability=0,
        multiprocessors=int(handle.max_compute_units),
        clock=1e6 * float(handle.max_clock_frequency),
        bytes_per_second=_BYTES_PER_SECOND,
        memory_bytes=int(handle.global_mem_size),
        l2_bytes=int(handle.global_mem_cache_size),
        shared_bytes=int(handle.local_mem_size),
        reserved_shared_bytes=0,
        registers=_REGISTERS,
        resident_threads=_RESIDENT_THREADS,
        resident_blocks=_RESIDENT_BLOCKS,
        f32_rate=_FLOPS_A_CLOCK,
        f64_rate=_FLOPS_A_CLOCK // 2,
        mma_rate=0,
    )
