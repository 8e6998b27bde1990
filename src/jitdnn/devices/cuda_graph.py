"""Graphs of CUDA: calls that were captured once, and are launched again as one."""

from __future__ import annotations

from typing import Any

from jitdnn.devices.cuda_driver import check, current, driver, own_streams, relaxed, stream_number
from jitdnn.errors import DeviceError
from jitdnn.tensor import DeviceArray

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: a stream that does not wait for the default stream
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on allocating


#: streams that nobody uses, by GPU. They are never destroyed: memory may still wait to be freed in their order
_idle: dict[int, list[int]] = {}


class Stream:
    """A stream of our own, which waits for no other."""

    def __init__(self, index: int) -> None:
        self._index = index
        try:
            # list.pop is atomic: nobody else gets the same stream
            self.handle = _idle.setdefault(index, []).pop()
        except IndexError:
            with current(index):
                (stream,) = check(driver().cuStreamCreate(_NON_BLOCKING), "making a stream")
            self.handle = int(stream)
            own_streams.add(self.handle)

    def __del__(self) -> None:
        try:
            _idle[self._index].append(self.handle)
        except Exception:
            return  # it could not be made, or Python ends


class Graph:
    """What `Handle.capture` gives: the calls of its block, to be run again by `replay`.

    They use the memory that they were given then, so new values are written into the same arrays, and results are read
    from the same `out`. The graph keeps that memory alive. It also uses the handle's scratch memory, so that graphs of
    one handle must not run side by side.
    """

    def __init__(self, index: int, stream: int, owner: object) -> None:
        self._index, self._stream, self._owner = index, stream, owner
        self._executable: Any = None
        self._kept: dict[int, object] = {}
        self._arrays: dict[int, DeviceArray] = {}

    def keep(self, *owners: object) -> None:
        """Hold on to memory that the captured calls use."""
        for owner in owners:
            self._kept[id(owner)] = owner
            if isinstance(owner, DeviceArray):
                self._arrays[id(owner.memory)] = owner

    def begin(self) -> None:
        with current(self._index):
            check(driver().cuCtxSynchronize(), "before a capture")
            mode = driver().CUstreamCaptureMode(_THREAD_LOCAL)
            check(driver().cuStreamBeginCapture(self._stream, mode), "beginning a capture")

    def end(self, is_failed: bool = False) -> None:
        """Make the graph, or give it up."""
        functions = driver()
        with current(self._index):
            result = functions.cuStreamEndCapture(self._stream)
            if is_failed:
                if not int(result[0]) and int(result[1]):
                    functions.cuGraphDestroy(result[1])
                return
            (graph,) = check(result, "capturing calls")
            try:
                (self._executable,) = check(functions.cuGraphInstantiate(graph, 0), "making a graph")
            finally:
                functions.cuGraphDestroy(graph)

    def replay(self, stream: Any = None) -> None:
        """Run the calls again, on the stream of the capture or another one. Returns before they are done.

        `DeviceArray`s see to it that what other streams were given to do with them comes first. For arrays of others
        see to that yourself: replay on their stream.
        """
        if self._executable is None:
            raise DeviceError(
                "the graph has no calls yet: it can be replayed after the block that captures them"
            )
        number = self._stream if stream is None else stream_number(stream)
        for array in self._arrays.values():
            array.used_on(number, writes=True)  # which of them are written is not known any more
        with current(self._index):
            check(driver().cuGraphLaunch(self._executable, number), "launch of a graph")

    def synchronize(self) -> None:
        """Wait for what the stream of the capture was given, replays among it."""
        with current(self._index):
            check(driver().cuStreamSynchronize(self._stream), "waiting for a graph")

    def __del__(self) -> None:
        if self._executable is not None:
            try:
                with current(self._index), relaxed():  # this may be a collection within a capture
                    driver().cuGraphExecDestroy(self._executable)
            except Exception:
                return  # when Python ends, names and the driver may be gone
