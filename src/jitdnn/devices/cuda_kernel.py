"""Kernels of CUDA: launches of loaded machine code, which is unloaded when the GPU is done with it."""

from __future__ import annotations

import ctypes
import functools
import struct
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jitdnn import retention
from jitdnn.devices.cuda_compile import code_key
from jitdnn.devices.cuda_driver import (
    LaunchAttribute,
    LaunchConfig,
    check,
    current,
    driver,
    failure,
    is_capturing,
    is_current,
    launcher,
    relaxed,
)
from jitdnn.devices.cuda_tensor_map import EncodedTables
from jitdnn.devices.gpu import Launch, Source
from jitdnn.devices.tensor_map import Tables, tables_of
from jitdnn.errors import DeviceError
from jitdnn.locks import lock
from jitdnn.rtcg.cache import CodeCache
from jitdnn.settings import current as current_settings

_PORTABLE_CLUSTER = 8  # blocks that every device has room for
_STATIC_SHARED = 48 << 10  # bytes of dynamic group memory that need no leave
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NOT_READY = 600
_NO_CONTEXT = (201, 400)  # CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE


class Frozen(NamedTuple):
    """A call of a kernel, for generated code: what the driver is given, but for addresses.

    `arguments`: 8 bytes each, first the addresses of the operands, `order` says which, and that of workspace; `table`:
    what the kernels take before them, if anything, in which `places` (word, argument, offset) are to be addresses too;
    `launches`: the driver's configuration of each on the default stream, and its function. What it refers to is there
    as long as `owner`. Addresses must be multiples of `alignment`, a power of two. Where the GPU `is_alone` no other
    one can be the current one.
    """

    arguments: bytes
    table: bytes
    places: tuple[tuple[int, int, int], ...]
    launches: tuple[tuple[bytes, int], ...]
    owner: object
    order: tuple[int, ...]
    alignment: int = 1
    is_alone: bool = True


#: in place of the number of an operand
WORKSPACE = -1


class FrozenPart(NamedTuple):
    """A kernel of a plan: where the addresses of its operands are, each (operand of the plan or `WORKSPACE`, bytes
    behind its address), and its workspace in that of the plan."""

    frozen: Frozen
    places: tuple[tuple[int, int], ...]
    workspace: int


def frozen_parts(kernel: Any, pointers: int) -> tuple[FrozenPart, ...] | None:
    """The kernels that a plan on so many addresses consists of, as its last call was; None where a call is more than
    launches with other addresses."""
    several = getattr(kernel, "several", None)
    own = tuple((number, 0) for number in range(pointers))
    found = []
    for one, places, workspace in ((kernel, own, 0),) if several is None else several(pointers):
        frozen: Frozen | None = getattr(one, "frozen", lambda: None)()
        if frozen is None:
            return None
        found.append(FrozenPart(frozen, places, workspace))
    return tuple(found)


class CudaKernel:
    """Launches of one source's functions on a GPU, with the numbers that they always get.

    `code` is the source compiled; `index` the number of the GPU, -1 for one on paper. `key`: what the code is kept
    under in the cache, where the source itself is not known.
    """

    def __init__(
        self, index: int, code: bytes, source: Source, launches: Sequence[Launch], pointers: int,
        extras: Sequence[int], floats: Sequence[float], tables: Tables | None = None, key: str | None = None,
    ) -> None:  # fmt: skip
        self._tables, self._pointers, self._key = tables, pointers, key
        self._extras, self._floats = tuple(extras), tuple(floats)
        self._index, self._code, self._source, self._launches = index, code, source, tuple(launches)
        self._numbers = struct.pack(f"{len(extras)}q{len(floats)}d", *extras, *floats)
        self._head = struct.Struct(f"{pointers + 1}Q2d")
        self._pack = self._head.pack_into
        self._count = pointers + 3 + len(extras) + len(floats)
        self._functions: list[int] = []
        self._library: LoadedLibrary | None = None
        self._launch: Any = None
        # with one GPU its context is mostly the current one already: where it is not, the driver refuses and says so
        self._is_alone = False
        self._free: list[_Block] = []
        self._lock = lock()

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        try:
            # list.pop is atomic: threads never share a block
            block = self._free.pop()
        except IndexError:
            block = self._new_block()
        self._pack(block.memory, 0, *pointers, workspace, alpha, beta)
        if block.tables is not None:
            block.addresses[0] = block.tables.at(pointers, workspace)
        if stream != block.stream:
            block.set_stream(stream)
        if self._is_alone or is_current(self._index):
            for config, function in block.launches:
                status = self._launch(config, function, block.parameters, None)
                if status:
                    self._launch_again(status, block, config, function)
        else:
            with current(self._index):
                for config, function in block.launches:
                    status = self._launch(config, function, block.parameters, None)
                    if status:
                        self._launch_again(status, block, config, function)
        self._free.append(block)

    def frozen(self) -> Frozen | None:
        """What a call is, once there was one; None where calls need more than addresses: the driver for tensor maps,
        or workspace there."""
        try:
            block = self._free.pop()
        except IndexError:
            return None
        # another caller's may be left there: a result that is neither scaled nor added to
        self._pack(block.memory, 0, *[0] * (self._pointers + 1), 1.0, 0.0)
        found = block.frozen(self._pointers)
        if found is None:
            self._free.append(block)
            return None
        return found._replace(is_alone=self._is_alone)

    def record(self, arch: str) -> dict[str, Any]:
        """What another process makes the kernel of again by `from_record`, and JSON can hold."""
        return {
            "name": self._source.name,
            "key": self._key or code_key(self._source, arch),
            "launches": [tuple(vars(one).values()) for one in self._launches],
            "pointers": self._pointers,
            "extras": self._extras,
            "floats": self._floats,
            "tables": None if self._tables is None else self._tables.record,
        }

    @staticmethod
    def from_record(index: int, record: Mapping[str, Any]) -> CudaKernel | None:
        """The kernel of a record; None if its code is no longer in the cache.

        Raises ValueError, TypeError and KeyError for what is no record.
        """
        code = CodeCache.default().get(record["key"])
        if code is None:
            return None
        launches = [
            Launch(function, groups if isinstance(groups, int) else tuple(groups), *others)
            for function, groups, *others in record["launches"]
        ]
        return CudaKernel(
            index, code, Source(record["name"], ""), launches, record["pointers"], record["extras"],
            record["floats"], None if record["tables"] is None else tables_of(record["tables"]), record["key"],
        )  # fmt: skip

    def _launch_again(self, status: int, block: _Block, config: Any, function: Any) -> None:
        """What the driver refused, with the GPU's context as the current one. Raises DeviceError if that is not why."""
        if status in _NO_CONTEXT:
            with current(self._index):
                status = self._launch(config, function, block.parameters, None)
        if status:
            name = self._launches[block.launches.index((config, function))].function
            raise failure(status, f"launch of {name} ({self._source.name})")

    def _new_block(self) -> _Block:
        if not self._functions:
            self._load()
        assert self._library is not None
        tables = EncodedTables(self._tables, self._index) if self._tables else None
        return _Block(
            self._count,
            self._head.size,
            self._numbers,
            self._launches,
            self._functions,
            self._library,
            tables,
        )

    def _load(self) -> None:
        if self._index < 0:
            raise DeviceError(
                f"{self._source.name} was compiled for a device on paper: it cannot be launched"
            )
        with self._lock:
            if not self._functions:
                self._library = _library(self._index, self._code, self._source.name)
                self._launch, self._is_alone = launcher(), _gpus() == 1
                self._functions = [int(self._library.function(one)) for one in self._launches]


class _Block:
    """What the driver is given for the launches of a kernel, for one caller at a time."""

    __slots__ = (
        "_attributes",
        "_configs",
        "_functions",
        "_library",
        "addresses",
        "launches",
        "memory",
        "parameters",
        "stream",
        "tables",
    )

    def __init__(
        self, count: int, head: int, numbers: bytes, launches: Sequence[Launch], functions: Sequence[int],
        library: LoadedLibrary, tables: EncodedTables | None,
    ) -> None:  # fmt: skip
        self._library, self._functions, self.tables = library, functions, tables
        #: the arguments: 8 bytes each, those that change first
        self.memory = ctypes.create_string_buffer(8 * count)
        start = ctypes.addressof(self.memory)
        ctypes.memmove(start + head, numbers, len(numbers))
        #: of the arguments; where there are tables, theirs comes first, which is another one for other operands
        addresses = [0] if tables else []
        addresses += [start + 8 * n for n in range(count)]
        self.addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self.parameters = ctypes.byref(self.addresses)
        self._configs = [LaunchConfig(*one.grid, one.threads, 1, 1, one.shared) for one in launches]
        self._attributes = [_attributes(one) for one in launches]
        for config, attributes in zip(self._configs, self._attributes, strict=True):
            config.attributes, config.attribute_count = ctypes.addressof(attributes), len(attributes)
        self.launches = [
            (ctypes.byref(config), ctypes.c_void_p(function))
            for config, function in zip(self._configs, functions, strict=True)
        ]
        self.stream: Any = None  # the default one

    def frozen(self, pointers: int) -> Frozen | None:
        """What its launches are, on the default stream; None where its tables cannot be written so."""
        table, places = b"", tuple[tuple[int, int, int], ...]()
        if self.tables is not None:
            known = self.tables.frozen()
            if known is None:
                return None
            table, places = known
        self.set_stream(0)
        launches = (bytes(config) for config in self._configs)
        functions = tuple(zip(launches, self._functions, strict=True))
        return Frozen(bytes(self.memory), table, places, functions, self, tuple(range(pointers)))

    def set_stream(self, stream: Any) -> None:
        if stream not in NEVER_CAPTURED:
            self._library.keep()
        for config in self._configs:
            config.stream = stream
        self.stream = stream


def _attributes(launch: Launch) -> Any:
    """An array of what the driver is told of a launch besides its sizes."""
    found = []
    if launch.is_cooperative:
        found.append(LaunchAttribute(LaunchAttribute.COOPERATIVE, 1))
    if launch.sets_cluster:
        found.append(LaunchAttribute(LaunchAttribute.CLUSTER, launch.cluster, 1, 1))
    if launch.is_early:
        found.append(LaunchAttribute(LaunchAttribute.EARLY, 1))
    return (LaunchAttribute * len(found))(*found)


#: code that no kernel has any more: GPU, library, and when the GPU is done with it, once that was asked
_unused: deque[tuple[int, Any, Event | None]] = deque()


class LoadedLibrary:
    """Machine code loaded on one GPU. It is unloaded some time after this object is gone, once the GPU is done with it.

    Not if it was launched on a stream that can be captured: a graph may refer to it, of which nobody tells.
    """

    _library: Any = None  # until it is loaded
    _left = _unused  # the module's own name of it is gone when Python ends

    def __init__(self, index: int, code: bytes, name: str) -> None:
        self._driver, self._index = driver(), index
        #: most bytes of shared memory that launches of a function have leave for
        self._shared: dict[str, int] = {}
        unload_unused()
        self._charge: retention.Charge | None = retention.code.charge(
            len(code), current_settings().code_limit
        )
        with current(index), relaxed():
            result = self._driver.cuLibraryLoadData(code, None, None, 0, None, None, 0)
            (self._library,) = check(result, f"loading {name}")

    @property
    def library(self) -> Any:
        """The driver's own object."""
        return self._library

    def symbol(self, name: str) -> Any:
        """The kernel that the code calls so."""
        functions = self._driver
        with current(self._index), relaxed():
            (kernel,) = check(functions.cuLibraryGetKernel(self._library, name.encode()), name)
            return check(functions.cuKernelGetFunction(kernel), name)[0]

    def function(self, launch: Launch) -> Any:
        """The kernel of a launch, with leave to use the shared memory that it asks for."""
        function, functions = self.symbol(launch.function), self._driver
        with current(self._index), relaxed():
            # other kernels of the same code may be about to ask for more than this one
            if launch.shared > max(_STATIC_SHARED, self._shared.get(launch.function, 0)):
                attribute = functions.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                check(
                    functions.cuFuncSetAttribute(function, attribute, launch.shared),
                    f"{launch.function} with {launch.shared} bytes of shared memory",
                )
                self._shared[launch.function] = launch.shared
            if launch.cluster > _PORTABLE_CLUSTER:
                attribute = functions.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                check(
                    functions.cuFuncSetAttribute(function, attribute, 1),
                    f"{launch.function} in clusters of {launch.cluster} blocks",
                )
            return function

    def keep(self) -> None:
        """Have the code loaded as long as the process."""
        if self._charge is not None:
            _kept_for_graphs[id(self)] = self
            self._charge = None

    def __del__(self) -> None:
        # work that the GPU was given may still run it, and this may be a collection in the middle of anything
        if self._library is not None:
            self._left.append((self._index, self._library, None))


#: streams that nobody can capture: the default one, by both of its names
NEVER_CAPTURED = (None, 0, 1)
_libraries: weakref.WeakValueDictionary[tuple[int, bytes], LoadedLibrary] = weakref.WeakValueDictionary()
_kept_for_graphs: dict[int, LoadedLibrary] = {}


def _library(index: int, code: bytes, name: str) -> LoadedLibrary:
    found = _libraries.get((index, code))
    return found or _libraries.setdefault((index, code), LoadedLibrary(index, code, name))


def unload_unused() -> int:
    """Unload the code that no kernel has any more and the GPU is done with; the number of libraries.

    It was launched on the default stream alone, so an event there tells. Nothing is waited for.
    """
    count = 0
    for _ in range(len(_unused)):
        try:
            index, library, done = _unused.popleft()
        except IndexError:  # another thread was here
            break
        try:
            with current(index), relaxed():
                if done is None and not is_capturing(0):
                    done = Event(index, 0)
                if done is not None and done.is_done:
                    driver().cuLibraryUnload(library)
                    count += 1
                    continue
        except DeviceError:  # a capture of somebody else is in the way, or the GPU is lost
            pass
        _unused.append((index, library, done))
    return count


class Event:
    """A point in a stream's work."""

    def __init__(self, index: int, stream: int) -> None:
        self._index = index
        with current(index):
            (self._event,) = check(driver().cuEventCreate(_NO_TIMING), "an event")
            check(driver().cuEventRecord(self._event, stream), "an event")

    @property
    def is_done(self) -> bool:
        """Whether the stream got here. Failures count: they are raised by the next call."""
        (status,) = driver().cuEventQuery(self._event)
        return int(status) != _NOT_READY

    def wait(self) -> None:
        """Wait until the stream got here."""
        check(driver().cuEventSynchronize(self._event), "waiting for an event")

    def hold(self, stream: int) -> None:
        """Let another stream wait until this one got here."""
        check(driver().cuStreamWaitEvent(stream, self._event, 0), "waiting for an event")

    def __del__(self) -> None:
        try:
            with current(self._index):
                driver().cuEventDestroy(self._event)
        except Exception:
            return  # when Python ends, names and the driver may be gone


def device_count() -> int:
    """GPUs that the driver shows; 0 without a driver or the packages that call it."""
    try:
        (count,) = check(driver().cuDeviceGetCount(), "counting GPUs")
    except DeviceError:
        return 0
    return int(count)


@functools.cache
def _gpus() -> int:
    return device_count()
