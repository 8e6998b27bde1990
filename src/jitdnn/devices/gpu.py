"""What the devices of GPU targets have in common: kernels as text, and how they are launched.

A kernel is a `Source` and some `Launch`es of its functions, one after the other on one stream. Every function takes the
same arguments:

    pointers of the operands, workspace, alpha, beta, integers (i64), reals (SCALE)

so that a launch is one block of bytes; before them, in the "hopper" dialect, a structure of tensor maps and integers
(`devices/tensor_map.py`). Nothing here needs a driver, a compiler or a device.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol

from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.devices.tensor_map import Tables
from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.tensor import DeviceId

MOST_GROUPS = (2**31 - 1, 65535, 65535)
"""Thread blocks along each axis that every device can launch."""
SENT = 1 << 16
"""Bytes that a driver takes from ordinary memory at once, and copies in its own time."""


Argument = int | bytes
"""What a kernel of a user's text is handed: an address, or the bytes of a value."""


@dataclass(frozen=True)
class LocalMemory:
    """Shared memory of a launch for a parameter of OpenCL's, in bytes."""

    bytes: int


class OutOfMemory(DeviceError, MemoryError):
    """A GPU has no room for what was to be allocated."""


def read_text(folder: str, *names: str) -> str:
    """Files of a folder of `jitdnn/kernels`, one after the other."""
    return "\n".join(_file(folder, name) for name in names)


@functools.cache
def _file(folder: str, name: str) -> str:
    return files("jitdnn.kernels").joinpath(folder, name).read_text("utf-8")


def plain_prelude(has_f64: bool = True, language: str | None = None) -> str:
    """What comes before a plain source: the names of the target's language, and the types of storage made of them.

    `language`: the text of a target whose language is neither CUDA C++ nor OpenCL C; see `dialects.h`.
    """
    names = read_text("gpu/prelude", "dialects.h") if language is None else language
    return f"#define HAS_F64 {int(has_f64)}\n{names}\n" + read_text("gpu/prelude", "plain.h")


@dataclass(frozen=True)
class Source:
    """The text of some kernels.

    `text` is complete but for what every kernel of its dialect has in front: `plain_prelude` before "plain" text, which
    is in the C that all targets share; `instructions.cuh` and that before "cuda" text, which is CUDA C++; `hopper.cuh`
    too before "hopper" text, which is for sm_90a alone. `defines` come before everything. Registers that spill are
    logged, and an error in tests, unless `spills` says that they are known and accepted. `keeps_order`: the assembler
    leaves instructions nearly as they are written, where their order is worth more than what it would do (CUDA only).
    """

    name: str
    text: str
    defines: tuple[tuple[str, object], ...] = ()
    dialect: str = "plain"
    spills: bool = False
    keeps_order: bool = False

    @functools.cached_property
    def keys(self) -> dict[tuple[str, str], str]:
        """What its code is named, by architecture and compiler, once that is known: hashing the text takes longer than
        making it."""
        return {}

    def complete(self, prelude: str) -> str:
        """All that the compiler reads."""
        defines = "".join(f"#define {name} {value}\n" for name, value in self.defines)
        return f"{defines}{prelude}\n{self.text}"


@dataclass(frozen=True)
class Launch:
    """One function of a source, run by `groups` thread blocks (on up to three axes) of `threads` threads each.

    `shared`: bytes of shared memory requested at launch (CUDA only), beside what the text declares. `is_cooperative`:
    thread blocks wait for each other, so that all must be resident at once; a device that has no room for them
    refuses the launch (CUDA only; `GpuDevice.cooperates`). `cluster`: blocks of a cluster, as the text declares it
    or, with `sets_cluster`, leaves to the launch (sm_90a only): more than 8 need the driver's leave, and enough
    multiprocessors next to each other. `is_early`: it may begin before the launch in front of it is done, for which its
    text waits itself (sm_90 and later; see instructions.cuh).
    """

    function: str
    groups: int | tuple[int, ...]
    threads: int
    shared: int = 0
    is_cooperative: bool = False
    cluster: int = 1
    sets_cluster: bool = False
    is_early: bool = False

    @property
    def grid(self) -> tuple[int, int, int]:
        """Thread blocks along three axes. Raises InvalidArgument for more than every device can launch."""
        axes = (self.groups,) if isinstance(self.groups, int) else tuple(self.groups)
        grid = (*axes, *(1,) * (3 - len(axes)))
        for count, most in zip(grid, MOST_GROUPS, strict=True):
            if not 1 <= count <= most:
                raise InvalidArgument(
                    f"{self.function} in {grid} groups: there must be 1 to {MOST_GROUPS} along the axes"
                )
        return grid  # type: ignore[return-value]


class Memory(Protocol):
    """Memory of a device, freed with the last reference to this object, when what `streams` were given is done."""

    streams: frozenset[Any]
    """Those that use it; the one that it was allocated on at first."""

    @property
    def pointer(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes."""

    def free(self) -> None:
        """Free it now, without waiting: nobody uses it any more, and its streams are all still there."""


class Graph(Protocol):
    """Calls that are captured between `begin` and `end`, and run again as one by `replay`."""

    def begin(self) -> None:
        """Capture what the stream is given from now on."""

    def end(self, is_failed: bool = False) -> None:
        """Make the graph; if the calls failed, drop what was captured."""

    def keep(self, *owners: object) -> None:
        """Keep memory alive that the captured calls use."""

    def replay(self, stream: Any = None) -> None:
        """Run the calls again, on the stream of the capture or another one. Returns before they are done."""

    def synchronize(self) -> None:
        """Wait for what the stream of the capture was given."""


class Kernel(Protocol):
    """Launches ready to run over addresses of the device's memory."""

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None: ...


class GpuDevice(Protocol):
    """A device that runs kernels given as text."""

    @property
    def target(self) -> str:
        """The name of the target: `cuda`, `opencl`, ..."""

    @property
    def device_id(self) -> DeviceId:
        """The target and the number of the device."""

    @property
    def name(self) -> str:
        """The name under which measurements are stored: the driver is part of it, since it compiles."""

    @property
    def arch(self) -> str:
        """What CUDA code is compiled for, `sm_90a` for one; empty on OpenCL."""

    @property
    def threads(self) -> int:
        """Host threads that a call uses: one."""

    @property
    def facts(self) -> GpuFacts:
        """Its sizes, clock and rates, which the properties below repeat or follow from (`FromFacts`)."""

    @property
    def multiprocessors(self) -> int:
        """Units that run thread blocks side by side."""

    @property
    def max_threads(self) -> int:
        """Most threads of a thread block."""

    @property
    def shared_bytes(self) -> int:
        """Most bytes of shared memory of a thread block."""

    @property
    def has_f64(self) -> bool:
        """Whether there is double precision."""

    @property
    def cooperates(self) -> bool:
        """Whether thread blocks of a launch can wait for each other (`Launch.is_cooperative`)."""

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth in bytes a second, read and written together, as a copy reaches it."""

    def peak_flops(self, dtype: str) -> float:
        """Peak rate of the ordinary units in operations a second, with products of this type."""

    def tensor_flops(self, dtype: str) -> float:
        """Rate that `mma` instructions reach on products of this type, in operations a second; 0 if there are none."""

    @property
    def cache_bytes(self) -> int:
        """The cache that all multiprocessors share."""

    @property
    def default_stream(self) -> Any:
        """The stream of calls for which nobody names one. Streams are the driver's numbers, on opencl queues."""

    def stream(self, given: Any) -> Any:
        """The stream that an object of some library stands for. Raises InvalidArgument."""

    def __hash__(self) -> int:
        """Plans are kept by the device that they are for."""

    def own_stream(self) -> Any:
        """A new stream that nobody else uses, as an object that `stream` takes; it ends with the last reference."""

    def order(self, stream: Any, after: Any) -> None:
        """Let a stream wait for what another one has been given so far; the host does not wait."""

    def is_capturing(self, stream: Any) -> bool:
        """Whether the stream's work goes into a graph and does not run now."""

    def measure(self, stream: Any, run: Callable[[], None]) -> float:
        """Seconds that the device takes for what `run` gives to the stream."""

    def allocate(self, size: int, stream: Any = None) -> Memory:
        """`size` bytes of the device's memory, used by `stream` first, freed with the last reference.

        While that stream is captured they stay where they are as long as the object lives. Raises OutOfMemory.
        """

    def trim(self) -> None:
        """Give memory that is kept for later allocations back to the driver."""

    def write(self, pointer: int, data: Any, stream: Any = None) -> None:
        """Copy the bytes of a contiguous NumPy array to the device. Returns when the array may be changed."""

    def send(self, pointer: int, data: Any, stream: Any = None) -> None:
        """The same for at most `SENT` bytes of ordinary memory, which are there for what `stream` is given after."""

    def copy(self, target: int, source: int, size: int, stream: Any = None) -> None:
        """Copy bytes of the device to an address that does not overlap, for what `stream` is given after."""

    def read(self, data: Any, pointer: int, stream: Any = None) -> None:
        """Copy bytes of the device into a contiguous NumPy array, when what `stream` was given before is done."""

    def synchronize(self, stream: Any = None) -> None:
        """Wait for all that `stream` was given. Raises DeviceError if any of it failed."""

    def release(self, stream: Any, *held: object) -> None:
        """Hold on to memory until `stream` is done with it. For finalizers, which may run within a capture."""

    def compile(self, source: Source) -> Any:
        """The machine code of a source, through the cache on disk. Raises CompileError."""

    def kernel(
        self,
        source: Source,
        launches: Sequence[Launch],
        pointers: int,
        extras: Sequence[int] = (),
        floats: Sequence[float] = (),
        tables: Tables | None = None,
    ) -> Kernel:
        """Compile a source, or take it from the cache, and bind launches of it with their integers and reals.

        `tables`: the first argument of functions of the "hopper" dialect.

        Raises CompileError with the compiler's words.
        """


def source_key(source: Source, text: str, *others: str) -> str:
    """The hex sha256 that names compiled code: of the whole text and of everything else that it depends on."""
    return key_of(source.name, text, *others)


def key_of(*parts: str) -> str:
    """The hex sha256 of some texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()
