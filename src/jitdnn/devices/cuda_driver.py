"""NVIDIA's driver: its functions, what their failures mean, and the context in which they work."""

from __future__ import annotations

import ctypes
import functools
import weakref
from contextlib import suppress
from typing import Any

from jitdnn.devices.gpu import OutOfMemory
from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.settings import format_bytes

_OUT_OF_MEMORY = 2
_STREAM_CAPTURE = range(900, 910)
# failures of kernels that ran before: the context takes no more work after any of them
_STICKY = {
    700: "a kernel read or wrote beside its memory",
    702: "a kernel took longer than the system allows",
    714: "a fault of the hardware",
    715: "a kernel met an instruction that this GPU does not have",
    716: "a kernel read or wrote at an address that is not aligned",
    717: "a kernel read or wrote in an address space that is not allowed",
    718: "a kernel jumped out of its code",
    719: "a kernel failed while it ran",
    710: "an assertion in a kernel failed",
    214: "an error of the memory that cannot be corrected",
}
_CAPTURE_IMPLICIT = (
    906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: the default stream while another one is captured
)
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_FAST_VERSION = 12000  # of CUDA, in which the functions are those that `fast_function` knows
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@functools.cache
def driver() -> Any:
    """The driver's functions, initialised. Raises DeviceError, saying what is missing."""
    try:
        from cuda.bindings import driver as functions
    except ImportError:
        raise DeviceError("the cuda target needs cuda-bindings: pip install 'jitdnn[cuda]'") from None
    try:
        (status,) = functions.cuInit(0)
    except RuntimeError:  # no libcuda.so.1
        raise DeviceError("there is no NVIDIA driver on this machine (libcuda is not found)") from None
    if int(status):
        raise DeviceError(f"the NVIDIA driver does not start: {_words(functions, status)}")
    return functions


def fast_function(name: str) -> Any:
    """A function of the driver that takes objects of ctypes as they are, and returns its status as a number.

    The bindings look at every argument, which takes longer than some functions run.
    """
    (address, *_) = check(driver().cuGetProcAddress(name.encode(), _FAST_VERSION, 0), name)
    return ctypes.CFUNCTYPE(ctypes.c_int)(int(address))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: groups along three axes, threads of a group, its memory, the stream."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("x", "y", "z", "threads_x", "threads_y", "threads_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: which one, and its value, of up to three unsigned integers."""

    COOPERATIVE = 2  # all thread blocks are to be resident at once
    CLUSTER = 4  # how many thread blocks a cluster has along three axes, of a kernel that does not say so
    EARLY = 6  # the launch may begin early: programmatic stream serialization

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_uint * 3),
        ("rest", ctypes.c_char * 52),
    )

    def __init__(self, which: int, *value: int) -> None:
        super().__init__(which, b"", value)


@functools.cache
def has_early_launches() -> bool:
    """Whether launches may begin early, those that are captured into a graph too: since CUDA 12.3."""
    (version,) = check(driver().cuDriverGetVersion(), "the driver's version")
    return int(version) >= 12030


@functools.cache
def launcher() -> Any:
    """cuLaunchKernelEx(a LaunchConfig by reference, function, addresses of the arguments, None)."""
    return fast_function("cuLaunchKernelEx")


def launch_address() -> int:
    """Where that function begins, for generated code."""
    return ctypes.cast(launcher(), ctypes.c_void_p).value or 0


@functools.cache
def _current_context() -> Any:
    return fast_function("cuCtxGetCurrent")


@functools.cache
def _stream_state() -> Any:
    return fast_function("cuStreamIsCapturing")


@functools.cache
def _pointer_attribute() -> Any:
    return fast_function("cuPointerGetAttribute")


def _words(functions: Any, status: Any) -> str:
    try:
        status = functions.CUresult(int(status))
    except ValueError:
        return f"CUDA error {int(status)}"
    _, name = functions.cuGetErrorName(status)
    _, text = functions.cuGetErrorString(status)
    return f"{(name or b'?').decode()}, {(text or b'?').decode()}"


def check(result: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
    """What a function of the driver returned beside its status. Raises DeviceError if that is not success."""
    if int(result[0]):
        raise failure(result[0], doing)
    return result[1:]


def failure(status: Any, doing: str) -> DeviceError:
    """The error that says what failed, in the driver's words and ours."""
    words = f"{doing}: {_words(driver(), status)}"
    number = int(status)
    if number in _STICKY:
        return DeviceError(
            f"{words}: {_STICKY[number]}, maybe one of an earlier call, and this process can use the GPU no more. "
            "With CUDA_LAUNCH_BLOCKING=1 in the environment the call that is to blame raises the error"
        )
    if number in _STREAM_CAPTURE:
        return DeviceError(f"{words} (the stream, or another one, is being captured into a graph)")
    return DeviceError(words)


def out_of_memory(size: int, where: str) -> OutOfMemory:
    """One line with what was wanted and what is free; the GPU's context is the current one."""
    status, free, total = driver().cuMemGetInfo()
    room = "" if int(status) else f", {format_bytes(int(free))} of {format_bytes(int(total))} are free"
    return OutOfMemory(f"no memory for {format_bytes(size)} on {where}{room}")


def allocated(result: tuple[Any, ...], size: int, where: str) -> int:
    """The address that an allocation gave. Raises OutOfMemory."""
    if int(result[0]) == _OUT_OF_MEMORY:
        raise out_of_memory(size, where)
    return int(check(result, f"{format_bytes(size)} of memory on {where}")[0])


@functools.cache
def context(index: int) -> tuple[Any, int]:
    """The primary context of a GPU, which all libraries share, and its number."""
    functions = driver()
    (device,) = check(functions.cuDeviceGet(index), f"GPU {index}")
    (found,) = check(functions.cuDevicePrimaryCtxRetain(device), f"GPU {index}")
    return found, int(found)


def is_current(index: int) -> bool:
    """Whether the GPU's primary context is the current one of this thread."""
    now = ctypes.c_void_p()
    status = _current_context()(ctypes.byref(now))
    return not status and now.value == context(index)[1]


class current:  # noqa: N801 - used as a function
    """A block of code for which a GPU's primary context is the thread's current one."""

    __slots__ = ("_index", "_is_pushed")

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        self._is_pushed = not is_current(self._index)
        if self._is_pushed:
            check(driver().cuCtxPushCurrent(context(self._index)[0]), "making a GPU current")

    def __exit__(self, *_: object) -> None:
        if self._is_pushed:
            driver().cuCtxPopCurrent()


class relaxed:  # noqa: N801 - used as a function
    """A block of code in which this thread may do what a capture into a graph would forbid: allocate, load code."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        functions = driver()
        mode = functions.CUstreamCaptureMode(_RELAXED)
        (self._before,) = check(functions.cuThreadExchangeStreamCaptureMode(mode), "capture mode")

    def __exit__(self, *_: object) -> None:
        driver().cuThreadExchangeStreamCaptureMode(self._before)


#: streams that are there as long as the process: the default ones, and our own
own_streams = {0, 1, 2}


def is_capturing(stream: int) -> bool:
    """Whether what the stream is given now goes into a graph, or nothing can be given to it because of one.

    The GPU of the stream must be the current one.
    """
    state = ctypes.c_int()
    status = _stream_state()(ctypes.c_void_p(stream), ctypes.byref(state))
    return bool(status == _CAPTURE_IMPLICIT or (not status and state.value))


#: numbers of streams whose objects are gone, and they with them, perhaps: to name one to the driver may end the process
ended_streams: set[int] = set()
#: and of those whose objects are there, somebody else's
alive_streams: set[int] = set()


def _ended(number: int) -> None:
    alive_streams.discard(number)
    ended_streams.add(number)


def stream_number(stream: Any) -> int:
    """The driver's number of a stream of PyTorch, CuPy, cuda-core, Numba, or anybody with `__cuda_stream__`.

    Raises InvalidArgument for anything else.
    """
    if isinstance(stream, int):
        return stream
    number = _number_of(stream)
    if type(stream).__module__.split(".")[0] == "torch":
        own_streams.add(number)  # PyTorch never destroys its streams
    elif number not in own_streams and number not in alive_streams:
        ended_streams.discard(number)
        with suppress(TypeError):  # what cannot be watched is the caller's to keep
            weakref.finalize(stream, _ended, number).atexit = False
            alive_streams.add(number)
    return number


def _number_of(stream: Any) -> int:
    own = getattr(stream, "__cuda_stream__", None)
    if own is not None:
        return int((own() if callable(own) else own)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        found = getattr(stream, name, None)
        found = getattr(found, "value", found)  # of ctypes
        if found is not None:
            return int(found)
    raise InvalidArgument(
        f"the stream is a {type(stream).__name__}: it must be a number, a stream of PyTorch, CuPy or cuda-core, or an "
        "object with __cuda_stream__"
    )


def pointer_device(pointer: int) -> int:
    """The number of the GPU that has an address. Raises DeviceError if none has."""
    index = ctypes.c_int()
    with current(0):
        # cuda-bindings 13.2 and 13.3 say 0 of every address
        status = _pointer_attribute()(
            ctypes.byref(index), ctypes.c_int(_DEVICE_ORDINAL), ctypes.c_uint64(pointer)
        )
        if status:
            raise failure(status, f"address {pointer:#x}")
    return index.value
