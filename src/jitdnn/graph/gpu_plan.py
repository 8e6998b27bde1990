"""What runs on a GPU for one kind of inputs: graphs of launches, and functions of the host in between.

Inputs and outputs have places of their own beside the arena, so that all addresses are known: inputs are copied there,
and outputs from there to the caller, on the stream on which the launches run. Where the target has graphs, launches are
captured into one when they run for the second time; the first time loads their code.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from jitdnn import log, targets
from jitdnn.devices.gpu import Graph as CapturedGraph
from jitdnn.devices.gpu_launches import GpuLaunch, placed
from jitdnn.errors import DeviceError, NotSupported
from jitdnn.graph.ir import AnyArray, Graph
from jitdnn.graph.lower.builder import Builder
from jitdnn.graph.lower.gpu import GpuBuilder, lowered
from jitdnn.graph.memory import descriptor_of
from jitdnn.graph.plan import MOST_IDLE, Host, Plan
from jitdnn.graph.taken import OnGpu
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.gpu_call import GpuCall
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import DeviceArray, numpy_dtype
from jitdnn.tensor.gpu_array import GpuAllocator

_ALIGNMENT = 256
_identity = elementwise(trace(lambda v: v))


class _List:
    """Launches between two functions of the host."""

    def __init__(self, launches: Sequence[GpuLaunch]) -> None:
        self.launches = list(launches)
        self.scratch = max((one.workspace for one in launches), default=0)

    def __len__(self) -> int:
        return len(self.launches)

    def hollow(self) -> _List:
        """None of them."""
        return _List(())


class GpuPlan(Plan):
    """A graph ready to run on a GPU, by any number of threads at once."""

    def __init__(self, graph: Graph, builder: GpuBuilder) -> None:
        self.gpu = builder.gpu
        self.handle = builder.handle
        super().__init__(graph, builder)
        self._inputs = [(tuple(value.shape), value.dtype) for value in graph.inputs]
        #: of each input as it lies here
        self.dense = [descriptor_of(shape or (1,), dtype).normalized() for shape, dtype in self._inputs]
        self._callers: dict[str, _Caller] = {}
        target = targets.find(self.gpu.target)
        self.has_graphs = target is not None and target.has_graphs
        self._places: list[_Place] = []  # those that no run is using
        self.has_run = False
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in (*self._inputs, *self._outputs)]
        starts = np.cumsum([0, *(_rounded(size) for size in sizes)]).tolist()
        self.sizes = sizes
        count = len(self._inputs)
        self.starts, self.split, self.end = starts[:-1], starts[count], starts[-1]
        self.inputs, self.outputs = self.starts[:count], self.starts[count:]

    def _lowered(self, builder: Builder) -> Builder:
        assert isinstance(builder, GpuBuilder)
        return lowered(builder)

    def _add_launches(self, b: Builder, first: int, last: int, where: Any, pieces: int) -> None:
        if last > first:
            self._program.append(_List(b.recorder.part(first, last, where)))

    @property
    def program(self) -> list[Any]:
        """Lists of launches and functions of the host, in order."""
        return self._program

    @property
    def scratch(self) -> int:
        """Where in the arena the workspace begins."""
        return _rounded(self._scratch)

    @property
    def workspace(self) -> int:
        """Bytes of it."""
        return self.nbytes - self._scratch

    def run(
        self, inputs: Sequence[Any], bodies: Any = None, out: Sequence[Any] | None = None, like: Any = None
    ) -> list[Any]:
        """The outputs for inputs that lie densely in the host's memory, or anywhere in the GPU's (`OnGpu`), in the
        order of the graph. They are NumPy's; with `like`, such an array, of its library and on the GPU."""
        try:
            place = self._places.pop()  # atomic, so threads never get the same
        except IndexError:
            place = _Place(self)
        stream = place.stream if like is None else self.caller(like).stream(like)
        place.order(stream)
        place.take(inputs, stream)
        for step in place.steps:
            step(stream, bodies)
        found = place.fetched(stream) if like is None else place.handed_out(stream, like)
        self._done(place)
        return found

    def _done(self, place: _Place) -> None:
        self.has_run = True
        if len(self._places) < MOST_IDLE:
            self._places.append(place)

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int], stream: Any) -> None:
        """Run on a stream for inputs that lie densely at these addresses of the GPU; outputs are written to others."""
        try:
            place = self._places.pop()
        except IndexError:
            place = _Place(self)
        place.order(stream)
        place.copied_in(inputs, stream)
        for step in place.steps:
            step(stream, None)
        place.copied_out(outputs, stream)
        self._done(place)

    @property
    def arena_bytes(self) -> int:
        """Of memory that `run_at_once` takes."""
        return self.scratch + self.workspace + _ALIGNMENT

    def run_at_once(self, inputs: Sequence[int], outputs: Sequence[int], arena: int, stream: Any) -> None:
        """The same without a copy, for a stream that is being captured: launches are made one by one where inputs,
        outputs and this memory are, which begin at multiples of 256. Raises NotSupported for functions of the host, and
        before the first run, which loads the code of the kernels."""
        if not self.has_run or any(isinstance(step, Host) for step in self._program):
            raise NotSupported(
                "a graph that did not run before, or of which the host runs a part, cannot be captured: call it once "
                "with inputs of the same kind before"
            )
        start = arena + -arena % _ALIGNMENT
        for step in self._program:
            _launch(placed(step.launches, [start, *inputs, *outputs], start + self.scratch), stream)

    def caller(self, like: OnGpu) -> _Caller:
        """What is to be known of the library of an array."""
        found = self._callers.get(like.array.library)
        if found is None:
            found = self._callers[like.array.library] = _Caller(self, like.array.library)
        return found

    def allocate(self) -> list[AnyArray]:
        return [np.empty(shape, dtype) for shape, dtype in self._outputs]

    @property
    def kinds(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shapes and types of the outputs."""
        return self._outputs

    def hollow(self) -> GpuPlan:
        found = copy.copy(self)
        found._program = [step.hollow() for step in self._program if not isinstance(step, Host)]
        found._places = []
        return found

    def times(self, inputs: Sequence[Any], bodies: Any = None) -> list[float]:
        place = _Place(self)
        stream = place.stream
        place.take(inputs, stream)
        for step in place.steps:
            step(stream, bodies)  # loads all code
        self.gpu.synchronize(stream)
        launches = [launch for step in place.steps if isinstance(step, _Launches) for launch in step.each]
        hosts = [step for step in place.steps if isinstance(step, _HostCall)]
        found = []
        for event in self.events:
            if event.host is not None:
                begun = time.perf_counter()
                hosts.pop(0)(stream, bodies)
                found.append(time.perf_counter() - begun)
            elif event.last > event.first:
                chosen = launches[event.first : event.last]
                found.append(self.gpu.measure(stream, lambda chosen=chosen: _launch(chosen, stream)))
            else:
                found.append(0.0)
        return found


class _Caller:
    """Arrays of one library on the GPU: their stream, and outputs that it allocates."""

    def __init__(self, plan: GpuPlan, library: str) -> None:
        self._handle = plan.handle
        self.call = GpuCall(plan.handle, plan.handle, [library])
        kinds = [descriptor_of(shape or (1,), dtype) for shape, dtype in plan.kinds]
        self.makers = [GpuAllocator(library, kind, plan.gpu).make for kind in kinds]
        self.sizes = [kind.nbytes for kind in kinds]

    def stream(self, given: OnGpu) -> Any:
        """Where the array is used."""
        return self.call.stream(self._handle, [given.array], [])


def _launch(launches: Sequence[Any], stream: Any) -> None:
    for launch in launches:
        launch(stream)


class _Launches:
    """Launches at their addresses; captured when they run again."""

    def __init__(self, place: _Place, launches: Sequence[Any]) -> None:
        self.each, self._place = launches, place
        self._graph: CapturedGraph | None = None
        self._has_run = False

    def __call__(self, stream: Any, bodies: Any) -> None:
        if self._graph is not None:
            self._graph.replay(stream)
        elif not self._has_run or not self._place.captures:
            _launch(self.each, stream)
            self._has_run = True
        else:
            self._capture()
            self(stream, bodies)

    def _capture(self) -> None:
        place = self._place
        try:
            graph = place.plan.gpu.capture(place.stream, place.held)
            graph.begin()
            try:
                _launch(self.each, place.stream)
            except BaseException:
                graph.end(is_failed=True)
                raise
            graph.end()
        except DeviceError as error:
            place.captures = False
            log.fallback_once(
                ("graph capture", place.plan.gpu.name, str(error)),
                f"a list of launches is no CUDA graph: {error}; every kernel is launched on its own",
            )
            return
        self._graph = graph


class _HostCall:
    """A function of the host, over copies."""

    def __init__(self, place: _Place, step: Host) -> None:
        self._place, self._step = place, step

    def __call__(self, stream: Any, bodies: Any) -> None:
        gpu, place = self._place.plan.gpu, self._place
        reads, like = ([_empty(one) for one in each] for each in (self._step.reads, self._step.writes))
        for array, one in zip(reads, self._step.reads, strict=True):
            if array is not one:
                gpu.read(array, place.address(one), stream)
        results = self._step.results(reads, bodies, like)
        for result, one in zip(results, self._step.writes, strict=True):
            if result.size:
                gpu.write(place.address(one), np.ascontiguousarray(result), stream)


def _empty(described: Any) -> AnyArray:
    """Memory of the host for an array of the plan; a constant as it is."""
    if isinstance(described, np.ndarray):
        return described
    return np.empty(described[2], numpy_dtype(described[4]))


class _Place:
    """Memory of the GPU for one run at a time, a stream, and the launches at these addresses."""

    def __init__(self, plan: GpuPlan) -> None:
        self.plan = plan
        gpu = plan.gpu
        self.held = gpu.own_stream()
        self.stream = self.last = gpu.stream(self.held)
        self.captures = plan.has_graphs
        self._memory = gpu.allocate(plan.end + plan.scratch + plan.workspace + _ALIGNMENT, self.stream)
        start = self._memory.pointer + -self._memory.pointer % _ALIGNMENT
        self._start = start
        self._bases = [start + plan.end, *(start + offset for offset in plan.starts)]
        scratch = start + plan.end + plan.scratch
        self.steps: list[Callable[[Any, Any], None]] = [
            _HostCall(self, step)
            if isinstance(step, Host)
            else _Launches(self, placed(step.launches, self._bases, scratch))
            for step in plan.program
        ]
        locked = getattr(gpu, "page_locked", None)
        #: memory of the host from which, and to which, copies need not be taken by the driver first
        self._staged: AnyArray | None = None if locked is None or not plan.end else locked(plan.end)
        #: the stream by which inputs were sent from there, until it was waited for
        self._sender: Any = None

    def address(self, described: Any) -> int:
        """Of an array of the plan."""
        base: int = self._bases[described[0]]
        return base + int(described[1])

    def order(self, stream: Any) -> None:
        """Have a stream wait for the last run, on another one."""
        if stream != self.last:
            self.plan.gpu.order(stream, self.last)
            self.last = stream

    def copied_in(self, inputs: Sequence[int], stream: Any) -> None:
        """Copy dense inputs from these addresses to their place."""
        plan = self.plan
        for pointer, offset, nbytes in zip(inputs, plan.inputs, plan.sizes, strict=False):
            plan.gpu.copy(self._start + offset, pointer, nbytes, stream)

    def copied_out(self, outputs: Sequence[int], stream: Any) -> None:
        """Copy the outputs to these addresses."""
        plan = self.plan
        for pointer, offset, nbytes in zip(
            outputs, plan.outputs, plan.sizes[len(plan.inputs) :], strict=True
        ):
            plan.gpu.copy(pointer, self._start + offset, nbytes, stream)

    def take(self, inputs: Sequence[Any], stream: Any) -> None:
        """Copy the inputs to their place."""
        gpu, staged, sent = self.plan.gpu, self._staged, False
        for number, (given, offset) in enumerate(zip(inputs, self.plan.inputs, strict=True)):
            if isinstance(given, OnGpu):
                self._copied(given, number, self._start + offset, stream)
            elif not given.nbytes:
                continue
            elif staged is None:
                gpu.write(self._start + offset, given, stream)
            else:
                if self._sender is not None:
                    gpu.synchronize(self._sender)  # which may not have taken what lies there
                    self._sender = None
                part = staged[offset : offset + given.nbytes]
                part.view(given.dtype).reshape(given.shape)[...] = given
                gpu.send(self._start + offset, part, stream)
                sent = True
        if sent:
            self._sender = stream

    def _copied(self, given: OnGpu, number: int, target: int, stream: Any) -> None:
        array, gpu, handle = given.array, self.plan.gpu, self.plan.handle
        if not array.descriptor.size:
            return
        caller = self.plan.caller(given)
        own = caller.stream(given)
        dense, pointer = self.plan.dense[number], array.pointer
        held = None
        if array.descriptor.strides != dense.strides:
            held = DeviceArray.empty(gpu, dense, own)
            _identity(array, out=held, handle=handle)
            pointer = held.pointer
        if own != stream:
            gpu.order(stream, own)
        gpu.copy(target, pointer, array.descriptor.nbytes, stream)
        if own != stream:
            gpu.order(own, stream)  # whose owner may write to it next, or free it
        if caller.call.holds:
            caller.call.after(handle, stream, [array])

    def fetched(self, stream: Any) -> list[AnyArray]:
        """The outputs in new memory of the host."""
        plan, staged = self.plan, self._staged
        made = plan.allocate()
        if staged is None:
            for array, offset in zip(made, plan.outputs, strict=True):
                if array.nbytes:
                    plan.gpu.read(array.reshape(array.shape or (1,)), self._start + offset, stream)
            return made
        plan.gpu.read(staged[plan.split : plan.end], self._start + plan.split, stream)
        self._sender = None  # all that the stream was given is done
        for array, offset in zip(made, plan.outputs, strict=True):
            if array.nbytes:
                array[...] = staged[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        return made

    def handed_out(self, stream: Any, like: OnGpu) -> list[Any]:
        """The outputs in new memory of the GPU."""
        plan, caller, found = self.plan, self.plan.caller(like), []
        for make, nbytes, offset in zip(caller.makers, caller.sizes, plan.outputs, strict=True):
            owner, pointer = make(stream)
            if nbytes:
                plan.gpu.copy(pointer, self._start + offset, nbytes, stream)
            found.append(caller.call.result(owner))
        return found

    def __del__(self) -> None:
        with suppress(Exception):  # it could not be made, or Python ends
            self.plan.gpu.release(self.last, self._memory, self._staged)


def on_device(result: AnyArray, like: OnGpu, handle: Any) -> Any:
    """A copy of the host's array on the GPU, by the library of an array there."""
    gpu = handle.on_gpu
    call = GpuCall(handle, handle, [like.array.library])
    stream = call.stream(handle, [like.array], [])
    descriptor = descriptor_of(result.shape or (1,), result.dtype)
    owner, array = GpuAllocator(like.array.library, descriptor, gpu)(stream)
    if result.nbytes:
        gpu.write(array.pointer, np.ascontiguousarray(result), stream)
    return call.result(owner)


def _rounded(size: int) -> int:
    return size + -size % _ALIGNMENT


__all__ = ["GpuPlan", "on_device"]
