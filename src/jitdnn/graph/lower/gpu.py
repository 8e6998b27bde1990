"""Lowering for GPUs: the same nodes, whose arrays are of the device's where the public functions are called.

While a graph is lowered, arrays are NumPy's at addresses where nothing is (`graph/memory.py`). Where a public function
is called they become arrays of the device at the same addresses, and constants copies in the device's memory. What a
GPU has no kernels for is lowered for the processor, and the host runs it between two lists of launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from textwrap import shorten
from typing import Any

import numpy as np

from jitdnn import log
from jitdnn.devices.gpu import OutOfMemory
from jitdnn.devices.gpu_launches import GpuRecorder
from jitdnn.errors import DeviceError, JitdnnError
from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.ir import AnyArray, Graph, Node, Value
from jitdnn.graph.lower.builder import Builder, Event, Shared
from jitdnn.graph.lower.nodes import channels_last
from jitdnn.graph.lower.schedule import lower
from jitdnn.graph.originals import Originals
from jitdnn.ops.to_device import moved
from jitdnn.planner.compiling import begin
from jitdnn.recorders import NotRecordable
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.missing import gathering
from jitdnn.tensor import Array, DeviceArray, TensorDescriptor, borrow
from jitdnn.tensor.array import address_of
from jitdnn.tensor.borrowed import describe, view
from jitdnn.tensor.gpu_array import GpuArray

_MOST_REASON = 120  # characters


class Placed(DeviceArray):
    """An array of a recording: its memory is there when the launches are made again."""

    __slots__ = ()

    def numpy(self) -> AnyArray:
        raise NotRecordable("the host looks at the memory of an operand, which a replay would leave out")


class Nowhere:
    """Memory that streams need not be ordered for."""

    def __init__(self, stream: Any) -> None:
        self.streams = frozenset((stream,))
        self.pointer = self.size = 0


class GpuShared(Shared):
    """What plans of one engine on a GPU share: constants in its memory."""

    def __init__(self, originals: Originals | None = None) -> None:
        super().__init__(originals)
        self.host = Shared()
        self._uploaded: dict[Any, tuple[AnyArray, DeviceArray]] = {}
        self._ordered: dict[Any, tuple[AnyArray, AnyArray]] = {}

    def uploaded(self, array: AnyArray, gpu: Any) -> DeviceArray:
        """A constant in the memory of a GPU, with its axes in the same order; one that is broadcast stays so."""
        key = (address_of(array), array.shape, array.strides, array.dtype)
        found = self._uploaded.get(key)
        if found is None:
            small = array[tuple(slice(0, 1) if not s else slice(None) for s in array.strides)]
            made = moved(borrow(small), gpu)
            steps = tuple(
                0 if not step else own
                for step, own in zip(array.strides, made.descriptor.strides, strict=True)
            )
            descriptor = TensorDescriptor(array.shape, steps, made.descriptor.dtype).normalized()
            found = self._uploaded[key] = array, DeviceArray(gpu, made.memory, made.pointer, descriptor)
        return found[1]

    def ordered(self, value: Value, shape: Callable[[AnyArray], AnyArray], form: str) -> AnyArray:
        """A constant filter, channels innermost."""
        assert value.array is not None
        given = value.array
        key = (address_of(given), given.shape, given.strides, given.dtype, form)
        found = self._ordered.get(key)
        if found is None:
            seen = np.moveaxis(shape(np.asarray(given)), 1, -1)
            dense = np.ascontiguousarray(seen)
            self.originals.add([dense], lambda: [np.array(seen, order="C")], is_sure=True)
            found = self._ordered[key] = given, np.moveaxis(dense, -1, 1)
        return found[1]


@dataclass
class GpuBuilder(Builder):
    """A graph being lowered for a GPU."""

    recorder: GpuRecorder = field(default_factory=GpuRecorder)
    _dense_images: dict[Value, AnyArray] = field(default_factory=dict)

    @property
    def gpu(self) -> Any:
        """The device."""
        return self.handle.on_gpu

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self.handle.noting(self.recorder), self.handle:
            yield

    @cached_property
    def turned(self) -> set[Value]:
        return self._images()

    def array(self, value: Value) -> AnyArray:
        return self.given(value)  # of constants the device has a copy

    def _constant(self, array: AnyArray) -> None:
        pass

    def filter(self, value: Value, shape: Callable[[AnyArray], AnyArray], form: str) -> AnyArray:
        return self._shared.ordered(value, shape, form)

    def weights(self, arrays: Sequence[AnyArray]) -> Sequence[AnyArray]:
        return arrays

    def image(self, value: Value) -> AnyArray:
        array = self.array(value)
        if not self.is_last or array.ndim < 3 or not array.size:
            return array
        found = self._dense_images.get(value)
        if found is None:
            found = self._dense_images[value] = self.dense(array, channels_last(array.ndim))
        return found

    @property
    def _shared(self) -> GpuShared:
        assert isinstance(self.shared, GpuShared)
        return self.shared

    def placed(self, given: Any) -> Any:
        """An argument with arrays of the device in the place of NumPy's."""
        if isinstance(given, np.ndarray):
            pointer = address_of(given)
            if given.size and self.recorder.number(pointer) is None:
                held = self._shared.uploaded(given, self.gpu)
                return Placed(self.gpu, held.memory, held.pointer, held.descriptor)
            descriptor = describe(given.shape, given.strides, given.dtype)
            return Placed(self.gpu, Nowhere(self.gpu.default_stream), pointer, descriptor)
        if isinstance(given, (list, tuple)) and not hasattr(given, "_fields"):
            return type(given)(self.placed(one) for one in given)
        return given

    def make(self, descriptor: TensorDescriptor) -> tuple[Any, Array]:
        array = self.place("arena", descriptor)[1]
        owner = self.placed(array)
        key = ("result", "jitdnn", self.gpu.device_id, descriptor)
        return owner, GpuArray(owner.pointer, descriptor, owner, "jitdnn", False, key, self.gpu.device_id)

    def run(self, expression: Expression, arrays: Sequence[AnyArray], out: AnyArray) -> None:
        if out.size:
            wide = [self.placed(a.reshape(1) if a.ndim == 0 else a) for a in arrays]
            target = self.placed(out.reshape(1) if out.ndim == 0 else out)
            self.shared.kernel(expression)(*wide, out=target, handle=self.handle)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = {key: self.placed(value) for key, value in kwargs.items()}
        found = super().call(function, *self.placed(args), **given)
        return tuple(map(self._seen, found)) if isinstance(found, tuple) else self._seen(found)

    def _seen(self, made: Any) -> AnyArray:
        """A result as an array of NumPy's at the same address."""
        if self.recorder.number(made.pointer) is None:
            raise NotRecordable("a function returned one of its constants")
        return view(made.pointer, made.descriptor, self.memory)

    def node(self, node: Node, lower: Callable[[Builder, Node], None]) -> None:
        first, count = len(self.recorder), len(self.events)
        try:
            lower(self, node)
        except OutOfMemory:
            raise
        except JitdnnError as error:
            self.recorder.drop(first)
            del self.events[count:]
            self._by_host(node, shorten(str(error).splitlines()[0], _MOST_REASON, placeholder="..."))

    def _by_host(self, node: Node, reason: str) -> None:
        """A node as a plan of its own for the processor."""
        title = " + ".join(node.origin) or node.attributes.get("name", node.op)
        log.fallback_once(
            ("graph on the host", self.gpu.name, reason),
            f"{title} is computed by the host, and its operands are copied there and back: {reason}",
        )
        inputs = tuple(dict.fromkeys(value for value in node.inputs if value.array is None))
        graph = Graph(inputs, node.outputs, (node,))
        try:
            from jitdnn.graph.plan import Plan

            settings = {**self.handle.overrides, "target": "cpu"}
            plan = Plan(graph, Builder(graph, self._shared.host, EngineHandle(**settings)))
        except ImportError as error:
            raise DeviceError(
                f"{title}: {reason}; and for the processor it needs llvmlite ({error})"
            ) from error

        def run(arrays: Sequence[AnyArray], bodies: Any = None) -> Sequence[AnyArray]:
            return plan.run(arrays)

        call = node.replaced(op="call", inputs=inputs, attributes={"title": title})
        self.host_call(call, run, reason)

    def host_call(self, node: Node, run: Callable[..., Any], note: str = "") -> None:
        """The host takes its operands densely and writes results so: others are copied on the device."""
        first = len(self.recorder)
        reads = tuple(
            self.array(value) if value.array is not None else self.dense(self.array(value))
            for value in node.inputs
        )
        self._copies(node, first)
        at = len(self.recorder)
        writes = tuple(self.new(value.shape, value.dtype) for value in node.outputs)
        self.events.append(Event(node, at, at, ("host",), host=run, reads=reads, writes=writes, note=note))
        for value, made in zip(node.outputs, writes, strict=True):
            target = self.targets.get(value)
            if target is not None:
                self.copy(made, target)
            self.arrays[value] = made if target is None else target
        self._copies(node, at)

    def _copies(self, node: Node, first: int) -> None:
        last = len(self.recorder)
        if last > first:
            self.events.append(Event(node.replaced(op="copy"), first, last, ("elementwise",)))


def lowered(b: GpuBuilder) -> GpuBuilder:
    """A builder of the same graph after lowering: this one, or another where kernels had to be compiled, which several
    threads do at once."""
    if not b.handle.settings.cache or b.handle.settings.choice == "find":
        lower(b)
        return b
    with gathering() as missing, b.handle.looking() as lacking:
        try:
            lower(b)
        except DeviceError:  # raised once more below, unless it comes of code that is not there yet
            if not (missing or lacking):
                raise
    if not (missing or lacking):
        return b
    b.handle.calls.clear()  # whose kernels have no code
    for task in begin([*missing, *lacking]):
        task.wait()  # what failed is found out when the plan is made
    fresh = GpuBuilder(b.graph, b.shared, b.handle, b.is_last)
    lower(fresh)
    return fresh


__all__ = ["GpuBuilder", "GpuShared", "lowered"]
