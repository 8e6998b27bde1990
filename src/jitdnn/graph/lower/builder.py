"""What lowering of all nodes shares: arrays of values, where results are to be written, and what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

import jitdnn
from jitdnn.graph.arena import Arenas
from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.ir import AnyArray, Graph, Node, Value
from jitdnn.graph.memory import Buffer, Reserved, as_array, descriptor_of
from jitdnn.graph.originals import Originals
from jitdnn.graph.passes.memo import Memo
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.tensor import Array, TensorDescriptor
from jitdnn.tensor.array import allocating

if TYPE_CHECKING:
    from jitdnn.devices.launch_list import Recorder

_identity = trace(lambda v: v)


class Shared:
    """What plans of one engine share: filters as kernels read them, and constants as they lie in memory."""

    def __init__(self, originals: Originals | None = None) -> None:
        self.filters: dict[Any, KeptFilter] = {}
        self.arrays: dict[Any, tuple[AnyArray, AnyArray]] = {}
        self.kernels: dict[Expression, Any] = {}
        self.arenas = Arenas()
        self.originals = originals or Originals()
        self.memo = Memo(self.originals)

    def filter(self, value: Value, shape: Callable[[AnyArray], AnyArray], form: str) -> KeptFilter:
        """The filter of a constant, seen through `shape`, which `form` tells from other ways to see it."""
        assert value.array is not None
        given = value.array
        key = (given.__array_interface__["data"][0], given.shape, given.strides, given.dtype, form)
        found = self.filters.get(key)
        if found is None:
            array = shape(np.asarray(value.array))
            if 0 in array.strides:  # spread out, or a matrix as a filter: its columns are to lie densely
                spread, array = array, np.ascontiguousarray(array)
                self.originals.add([array], lambda: [np.ascontiguousarray(spread)], is_sure=True)
            self.arrays[key] = (value.array, array)
            found = self.filters[key] = KeptFilter(array)
        return found

    def weights(self, arrays: Sequence[AnyArray]) -> KeptFilter:
        """The constant weights of a recurrent layer."""
        key = ("weights", *((a.__array_interface__["data"][0], a.shape, a.strides, a.dtype) for a in arrays))
        found = self.filters.get(key)
        if found is None:
            found = self.filters[key] = KeptFilter(list(arrays))
        return found

    def kernel(self, expression: Expression) -> Any:
        """The elementwise kernel of a formula."""
        found = self.kernels.get(expression)
        if found is None:
            found = self.kernels[expression] = jitdnn.elementwise(expression)
        return found


@dataclass
class Event:
    """What runs in a step: launches from `first` to `last`, or a function of the host; `note` says why the host's."""

    node: Node
    first: int
    last: int
    kernels: tuple[str, ...] = ()
    seconds: float = 0.0
    host: Callable[..., Any] | None = None
    reads: tuple[AnyArray, ...] = ()
    writes: tuple[AnyArray, ...] = ()
    note: str = ""


def _recorder() -> Recorder:
    from jitdnn.devices.launch_list import Recorder  # brings a compiler along, which graphs on a GPU need not

    return Recorder()


@dataclass
class Builder:
    """A graph being lowered."""

    graph: Graph
    shared: Shared
    handle: EngineHandle
    is_last: bool = True
    memory: Reserved = field(default_factory=Reserved)
    recorder: Any = field(default_factory=_recorder)
    arrays: dict[Value, AnyArray] = field(default_factory=dict)
    targets: dict[Value, AnyArray] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[tuple[Buffer, AnyArray]] = field(default_factory=list)
    pieces: list[Buffer] = field(default_factory=list)  # by their numbers in the recorder
    reads: set[int] = field(default_factory=set)  # addresses of constants
    _known: set[int] = field(default_factory=set)

    @cached_property
    def turned(self) -> set[Value]:
        """What convolutions read of 8-bit integers, their filters aside."""
        return {value for value in self._images() if value.dtype.itemsize == 1}

    def _images(self) -> set[Value]:
        """What convolutions read, their filters aside."""
        convolutions = [node for node in self.graph.nodes if node.op == "conv" and len(node.output.shape) > 2]
        return {
            value
            for node in convolutions
            for value in node.inputs
            if value.array is None and len(value.shape) == len(node.output.shape)
        }

    def place(self, kind: str, descriptor: TensorDescriptor) -> tuple[Buffer, AnyArray]:
        """A new array of this kind."""
        spread = descriptor.span()[1] + 1 if descriptor.size else 0
        itemsize = np.dtype(jitdnn.tensor.numpy_dtype(descriptor.dtype)).itemsize
        buffer = self.memory.take(kind, spread * itemsize)
        array = self.memory.array(buffer, descriptor)
        self.recorder.memory(buffer.address, buffer.bytes)
        self.pieces.append(buffer)
        return buffer, array

    def new(self, shape: Sequence[int], dtype: Any, order: tuple[int, ...] | None = None) -> AnyArray:
        """A dense array in the arena, with its axes in this order; one of no axes has one of one element."""
        return self.place("arena", descriptor_of(tuple(shape) or (1,), dtype, order))[1].reshape(shape)

    def make(self, descriptor: TensorDescriptor) -> tuple[Any, Array]:
        """A result that a function of this package allocates."""
        array = self.place("arena", descriptor)[1]
        return array, as_array(array, descriptor)

    def array(self, value: Value) -> AnyArray:
        """The array of a value that is there by now, or a constant, which stays as it is."""
        if value.array is not None and value.array.size:
            self.reads.add(np.lib.array_utils.byte_bounds(value.array)[0])
        return self.given(value)

    def given(self, value: Value) -> AnyArray:
        """The same for a function that may read what it keeps of a constant instead."""
        if value.array is None:
            return self.arrays[value]
        self._constant(value.array)
        return value.array

    def _constant(self, array: AnyArray) -> None:
        if id(array) not in self._known and array.size:
            self._known.add(id(array))
            low, high = np.lib.array_utils.byte_bounds(array)
            self.recorder.constant(low, high - low, array)

    def filter(self, value: Value, shape: Callable[[AnyArray], AnyArray], form: str) -> Any:
        """The filter of a constant: see `Shared.filter`."""
        found = self.shared.filter(value, shape, form)
        self._constant(found.w)
        return found

    def weights(self, arrays: Sequence[AnyArray]) -> Any:
        """The constant weights of a recurrent layer."""
        return self.shared.weights(arrays)

    def image(self, value: Value) -> AnyArray:
        """The array of a value that a convolution reads."""
        return self.array(value)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Have launches of calls by the handle noted in a `with` block."""
        with self.recorder, self.handle:
            yield

    def kernel_array(self, value: Value) -> AnyArray:
        """The same with at least one axis, as kernels take it."""
        array = self.array(value)
        return array.reshape(1) if array.ndim == 0 else array

    def result(self, value: Value, order: tuple[int, ...] | None = None) -> AnyArray:
        """Where a node is to write a value: where somebody waits for it, or a new array in this order."""
        found = self.targets.get(value)
        if found is None:
            found = self.new(value.shape, value.dtype, order)
        self.arrays[value] = found
        return found

    def copy(self, source: AnyArray, out: AnyArray) -> None:
        """Have the elements copied; types may differ."""
        if source.size:
            self.run(_identity, [source], out)

    def run(self, expression: Expression, arrays: Sequence[AnyArray], out: AnyArray) -> None:
        """Have a formula computed over arrays."""
        if not out.size:
            return
        wide = [a.reshape(1) if a.ndim == 0 else a for a in arrays]
        self.shared.kernel(expression)(
            *wide, out=out.reshape(1) if out.ndim == 0 else out, handle=self.handle
        )

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A public function by the engine's handle, its results in the arena."""
        with allocating(self.make):
            return function(*args, handle=self.handle, **kwargs)

    def host_call(self, node: Node, run: Callable[..., Any]) -> None:
        """Have the host run a function of the node's inputs between two lists of launches."""
        first = len(self.recorder)
        reads = tuple(self.array(value) for value in node.inputs)
        writes = tuple(self.result(value) for value in node.outputs)
        self.events.append(Event(node, first, first, ("host",), host=run, reads=reads, writes=writes))

    def node(self, node: Node, lower: Callable[[Builder, Node], None]) -> None:
        """Have a node lowered."""
        lower(self, node)

    def dense(self, array: AnyArray, order: tuple[int, ...] | None = None) -> AnyArray:
        """The array, or a copy with its axes in this order in memory and no gaps."""
        wanted = descriptor_of(array.shape or (1,), array.dtype, order).strides
        own = tuple(s // array.itemsize for s in array.strides) or (1,)
        if all(a == b for a, b, n in zip(wanted, own, array.shape or (1,), strict=True) if n > 1):
            return array
        copy = self.new(array.shape, array.dtype, order)
        self.copy(array, copy)
        return copy


def order_of(array: AnyArray) -> tuple[int, ...]:
    """The axes from the outermost in memory to the innermost."""
    return tuple(sorted(range(array.ndim), key=lambda axis: (-abs(array.strides[axis]), axis)))


def viewed(array: AnyArray, shape: Sequence[int]) -> AnyArray | None:
    """The array under another shape without a copy, None if there is no such view."""
    try:
        return np.reshape(array, tuple(shape), copy=False)
    except (ValueError, AttributeError):
        return None
