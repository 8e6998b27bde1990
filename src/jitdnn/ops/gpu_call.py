"""What calls on a GPU need beside those on the processor: the device of all arrays, the stream to run on, little time.

Kernels of small problems take a few microseconds, and the host must be quicker than they are. So a call that was made
before takes a cached fast path: its key is made of what the arrays say of themselves, without borrowing any, and what
follows the look-up is what every call must do: order the streams, keep results apart from inputs, allocate, launch.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from jitdnn.errors import DeviceError
from jitdnn.handle import Handle
from jitdnn.settings import current
from jitdnn.tensor import Array, DeviceArray, DeviceId
from jitdnn.tensor.device_array import lend
from jitdnn.tensor.gpu_array import FAST_KEYS

# their memory may be used for something else, on streams that nobody tells, as soon as the last reference is gone
_UNORDERED = ("jax", "dlpack", "interface")


def common_device(named: Sequence[tuple[str, Array]]) -> DeviceId | None:
    """Where all arrays are: a GPU, or None for host memory. Raises DeviceError that names which is where."""
    if not named:
        return None
    device_id = named[0][1].device_id
    if any(array.device_id != device_id for _, array in named):
        found = ", ".join(f"{name} is on {where(array.device_id)}" for name, array in named)
        raise DeviceError(
            f"{found}: the arrays of a call must be on one device (jitdnn.to_device moves them)"
        )
    return device_id


def where(device_id: DeviceId | None) -> str:
    """A device in words."""
    return "the host" if device_id is None else f"{device_id[0]}:{device_id[1]}"


class GpuCall:
    """How calls of one kind run on a GPU: found once, used by each.

    `handle` is the one that was asked, `runner` the one that runs them; `other` is that one if they differ.
    `keeps_account`: some of the arrays are of our own, and remember the streams that use them. `stream_in_force` gives
    the stream of the library of the arrays, the default one if it has none.
    """

    __slots__ = (
        "_are_ordered", "_has_stream", "gpu", "holds", "keeps_account", "makes_jax", "other", "stream_in_force",
    )  # fmt: skip

    def __init__(self, handle: Handle, runner: Handle, libraries: Sequence[str]) -> None:
        # no reference from what a handle remembers to the handle itself
        self.other = None if runner is handle else runner
        self.gpu = runner.on_gpu
        in_force = stream_of_library(libraries, self.gpu.device_id[1])
        self._has_stream = in_force is not None
        self.stream_in_force = in_force or partial(getattr, self.gpu, "default_stream")
        self._are_ordered = all(library in ("torch", "cupy") for library in libraries)
        self.keeps_account = "jitdnn" in libraries
        self.holds = any(library in _UNORDERED for library in libraries)
        self.makes_jax = bool(libraries) and libraries[0] == "jax"

    def runner(self, handle: Handle) -> Handle:
        """The handle that runs calls given to `handle`."""
        return self.other or handle

    def stream(self, handle: Handle, inputs: Sequence[Array], targets: Sequence[Array | None]) -> Any:
        """The stream to run on, which waits for what others are still to do with the arrays.

        It is that of the handle if it was given one, else the stream in force in PyTorch or CuPy if an array is theirs,
        else what an array says, else the default stream.
        """
        stream = (self.other or handle).gpu_stream
        if stream is None and self._has_stream:
            stream = self.stream_in_force()
        if self._are_ordered:
            return stream
        given = [target for target in targets if target is not None]
        if stream is None:
            told = (getattr(array, "stream", None) for array in (*inputs, *given))
            stream = next((one for one in told if one is not None), self.gpu.default_stream)
        for number, array in enumerate((*inputs, *given)):
            owner = array.owner
            if isinstance(owner, DeviceArray):
                owner.used_on(stream, writes=number >= len(inputs))
            else:
                own = getattr(array, "stream", None)
                if own is not None and own != stream:
                    self.gpu.order(stream, own)
        return stream

    def account(self, stream: Any, inputs: Sequence[Any], out: Any) -> None:
        """Tell the arrays of our own among these objects which stream is about to use them."""
        for array in inputs:
            if type(array) is DeviceArray:
                array.used_on(stream, False)
        if type(out) is DeviceArray:
            out.used_on(stream, True)

    def after(self, handle: Handle, stream: Any, arrays: Sequence[Array | None]) -> None:
        """Keep alive what must not be freed before the call is done."""
        graph = self.runner(handle).graph
        if graph is not None:
            for array in arrays:
                if array is not None and isinstance(array.owner, DeviceArray):
                    lend(array.owner.memory)  # replays write to it, of which nobody tells
            graph.keep(*(array.owner for array in arrays if array is not None))
        elif self.holds and not self.gpu.is_capturing(stream):
            _hold(self.gpu.event(stream), arrays)

    def result(self, owner: Any) -> Any:
        """A result in the terms of the library that made the first input."""
        return _as_jax(owner) if self.makes_jax and isinstance(owner, DeviceArray) else owner


def fast_call_key(
    op: Hashable,
    arrays: Sequence[Any],
    arguments: tuple[Any, ...],
    algorithm: str | None,
    workspace_limit: Any,
    out: Any,
    pointers: list[int],
) -> Hashable:
    """What tells a call over arrays of a GPU from others; `pointers` get the addresses, that of `out` last.

    None for arrays of other kinds, in host memory, or such as no call can use.
    """
    key: list[Any] = [op, current().serial, arguments, algorithm, workspace_limit, out is None]
    try:
        for x in arrays if out is None else (*arrays, out):
            pointer, layout = FAST_KEYS[type(x)](x)
            if layout is None:
                return None
            pointers.append(pointer)
            key.append(layout)
    except (KeyError, RuntimeError):
        return None
    return tuple(key)


def run_again(
    op: Hashable,
    arrays: Sequence[Any],
    arguments: tuple[Any, ...],
    algorithm: str | None,
    workspace_limit: Any,
    out: Any,
    alpha: float,
    beta: float,
    handle: Handle,
) -> Any:
    """The result of a call on a GPU that was made before; None if there was none, or if it needs a closer look."""
    pointers: list[int] = []
    try:
        key = fast_call_key(op, arrays, arguments, algorithm, workspace_limit, out, pointers)
        known = handle.fast_calls.get(key)
        if known is None:
            known = handle.fast_calls.older(key)
    except Exception:  # lists as arguments, or objects that raise when they are hashed or compared
        return None
    if known is None:
        return None
    gpu, plan = known.gpu, known.plan
    runner = gpu.other or handle
    if runner.graph is not None or (out is None and beta != 0.0):
        return None
    if out is not None:
        target = pointers.pop()
        if type(out) is not DeviceArray and out.requires_grad:
            return None
        for pointer, (low, high, cleared) in zip(pointers, known.near[0]):  # noqa: B905 - the time that it takes
            if low < target - pointer < high and target - pointer not in cleared:
                return None
    stream = runner.gpu_stream
    if stream is None:
        stream = gpu.stream_in_force()
    if gpu.keeps_account:
        gpu.account(stream, arrays, out)
    if out is None:
        out, target = known.allocate[0].make(stream)
    pointers.insert(known.inputs, target)
    if plan.is_simple:
        try:
            plan.run(stream, pointers, alpha, beta, 0)
        except DeviceError as error:
            raise runner.explained(error, plan) from None
    else:
        runner.run_on_gpu(stream, plan, pointers, alpha, beta)
    return out


def stream_of_library(libraries: Sequence[str], index: int) -> Callable[[], int] | None:
    """What gives the stream in force in the first library that has such a thing."""
    for library in libraries:
        if library == "torch":
            torch = sys.modules["torch"]
            raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # without an object around the number
            return partial(raw, index) if raw is not None else partial(_torch_stream, torch, index)
        if library == "cupy":
            return partial(_cupy_stream, sys.modules["cupy"], index)
    return None


def _torch_stream(torch: Any, index: int) -> int:
    number: int = torch.cuda.current_stream(index).cuda_stream
    return number


def _cupy_stream(cupy: Any, index: int) -> int:
    number: int = cupy.cuda.get_current_stream(index).ptr
    return number


_held: deque[tuple[Any, Sequence[Array | None]]] = deque()


def _hold(event: Any, arrays: Sequence[Array | None]) -> None:
    with suppress(IndexError):  # another thread was here
        while _held and _held[0][0].is_done:
            _held.popleft()
    _held.append((event, arrays))


def _as_jax(owner: DeviceArray) -> Any:
    try:
        return sys.modules["jax"].dlpack.from_dlpack(owner)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return owner  # an order of axes that this JAX does not take
