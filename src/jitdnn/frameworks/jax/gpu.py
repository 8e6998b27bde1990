"""A call on a GPU as launches on whatever memory and stream XLA comes with.

Kernels are chosen and compiled when a program is traced; a run of the program hands them to XLA's stream and returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from jitdnn import targets
from jitdnn.devices.gpu_launches import GpuRecorder
from jitdnn.errors import JitdnnError
from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.lower.gpu import Nowhere, Placed
from jitdnn.graph.memory import Reserved, descriptor_of
from jitdnn.recorders import NotRecordable
from jitdnn.settings import Settings, in_force

Kind = tuple[tuple[int, ...], Any]
"""Shape and type of an array."""

_TARGET = "cuda"


class GpuCall:
    """`function` of arrays of these kinds, on any GPU of the process: `run` is given where the arrays lie.

    Raises NotRecordable, or what the function raises, where it cannot be run so.
    """

    def __init__(
        self, function: Callable[..., Any], kinds: Sequence[Kind], result: Kind, values: Settings
    ) -> None:
        self._function, self._kinds, self._values = function, (*kinds, result), values
        self._on = lru_cache(maxsize=None)(self._noted)
        self._on(0)

    def _noted(self, index: int) -> _Launches:
        with in_force(self._values):
            return _Launches(self._function, self._kinds, index)

    def run(self, addresses: list[int], stream: int) -> None:
        """Give the launches to a stream."""
        self._on(_gpu_of(addresses[0])).run(addresses, stream)


@cache
def _is_alone() -> bool:
    """Whether there is one GPU."""
    return len(targets.get(_TARGET).states()) == 1


def _gpu_of(address: int) -> int:
    """The driver's number of the GPU that has an address."""
    locate = targets.get(_TARGET).memory.locate
    assert locate is not None
    return 0 if _is_alone() else locate(address)


class _Launches:
    """Those of one GPU."""

    def __init__(self, function: Callable[..., Any], kinds: Sequence[Kind], index: int) -> None:
        handle = EngineHandle(device=f"{_TARGET}:{index}")
        self._handle, gpu = handle, handle.on_gpu
        recorder, reserved = GpuRecorder(), Reserved()
        arrays = []
        for shape, dtype in kinds:
            descriptor = descriptor_of(shape, dtype)
            buffer = reserved.take("input", descriptor.nbytes)
            recorder.memory(buffer.address, buffer.bytes)
            arrays.append(Placed(gpu, Nowhere(gpu.default_stream), buffer.address, descriptor))
        with handle.noting(recorder), handle:
            function(*arrays[:-1], out=arrays[-1])
        count = len(recorder)
        if not count:
            raise NotRecordable("it is no launch of a kernel")
        self._recorder = recorder  # which keeps constants
        self._launches = recorder.part(0, count, {number: (number, 0) for number in range(len(kinds))})
        self._scratch = max(one.workspace for one in self._launches)

    def run(self, addresses: Sequence[int], number: int) -> None:
        stream = self._handle.on_gpu.stream(number)
        if not self._scratch:
            self._launch(stream, addresses, 0)
            return
        with self._handle.workspace(self._scratch, stream) as workspace:
            self._launch(stream, addresses, workspace)

    def _launch(self, stream: Any, addresses: Sequence[int], workspace: int) -> None:
        for one in self._launches:
            room = workspace if one.workspace else 0
            one.kernel(stream, one.pointers_at(addresses), one.alpha, one.beta, room)


def missing() -> str | None:
    """Why no call of JAX's programs can run on a GPU by this library, in one line; None where it can."""
    try:
        return targets.get(_TARGET).missing()
    except JitdnnError as error:
        return str(error)
