"""An array of our own in the memory of a GPU, for programs without a framework that has one."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from jitdnn import targets
from jitdnn.errors import DeviceError, InvalidArgument, InvalidShape
from jitdnn.locks import lock
from jitdnn.retention import Recent
from jitdnn.tensor.borrowed import DeviceId
from jitdnn.tensor.descriptor import TensorDescriptor, packed_strides
from jitdnn.tensor.dlpack import make_capsule
from jitdnn.tensor.dtypes import DTYPES, foreign_name, numpy_dtype
from jitdnn.tensor.operators import Operators


class Memory(Protocol):
    """Memory of a GPU, freed with the last reference, after what `streams` were given."""

    streams: frozenset[Any]

    @property
    def pointer(self) -> int: ...

    @property
    def size(self) -> int: ...


class Gpu(Protocol):
    """What an array needs of its device."""

    @property
    def device_id(self) -> DeviceId: ...

    def allocate(self, size: int, stream: Any = None) -> Any: ...

    def write(self, pointer: int, data: Any, stream: Any = None) -> None: ...

    def read(self, data: Any, pointer: int, stream: Any = None) -> None: ...

    def synchronize(self, stream: Any = None) -> None: ...

    def order(self, stream: Any, after: Any) -> None: ...


_lock = lock()
# numbers of what arrays may be alike in, never given twice
_numbers = itertools.count(1)
_known_layouts: Recent[tuple[DeviceId, TensorDescriptor], int] = Recent(8192)


def layout_number(device_id: DeviceId, descriptor: TensorDescriptor) -> int:
    """The number that arrays of this descriptor on this GPU have in common: quicker to compare than the two."""
    key = device_id, descriptor
    found = _known_layouts.recall(key)
    return _known_layouts.put(key, next(_numbers)) if found is None else found


#: by the number of the object that is the memory: expressions that read it and are not computed yet, by theirs, since
#: their == is one of elements
_readers: dict[int, dict[int, weakref.ref[Any]]] = {}
#: memory that others may write to at any time
_lent: weakref.WeakSet[Any] = weakref.WeakSet()
_MOST_READ = 4096


def note_reader(reader: Any, memory: Memory) -> None:
    """Have an expression computed (`reader.compute()`) before this memory is written to."""
    with _lock:
        if len(_readers) > _MOST_READ:  # those whose expressions are gone
            for key, readers in list(_readers.items()):
                if all(reader() is None for reader in readers.values()):
                    del _readers[key]
        _readers.setdefault(id(memory), {})[id(reader)] = weakref.ref(reader)


def compute_readers(memory: Memory | None = None) -> None:
    """Compute the expressions that read a memory, or all that wait to be."""
    if not _readers:
        return
    with _lock:
        keys = list(_readers) if memory is None else [id(memory)]
        waiting = [reader() for key in keys for reader in _readers.pop(key, {}).values()]
    for reader in waiting:
        if reader is not None:
            reader.compute()


def lend(memory: Memory) -> None:
    """Note that others may write to a memory at any time: its readers are computed, and those to come at once."""
    compute_readers(memory)
    _lent.add(memory)


def is_lent(memory: Memory) -> bool:
    """Whether others may write to a memory at any time."""
    return memory in _lent


class DeviceArray(Operators):
    """An array in the memory of a GPU: `jd.to_device` and `jd.empty` make one.

    Operators, NumPy's functions and those of this package (`jd.exp`, `jd.where`) give arrays that are computed when
    their elements are wanted, by one kernel for a whole expression: docs/arrays.md says when that is.

    `shape`, `strides` (in bytes), `dtype`, `ndim`, `size` and `nbytes` are as NumPy's, and so are slices and
    `transpose`, which are views of the same memory. `numpy()` copies to the host. PyTorch, CuPy and others take it
    through `__cuda_array_interface__` and DLPack without a copy.

    The memory knows which streams it was used on by calls: a call on another stream waits for what was written, and it
    is freed in the order of the stream, after the last use.
    """

    __slots__ = ("__weakref__", "descriptor", "gpu", "layout", "memory", "pointer")

    def __init__(
        self, gpu: Gpu, memory: Memory, pointer: int, descriptor: TensorDescriptor, layout: int = 0
    ) -> None:
        self.gpu, self.memory = gpu, memory
        #: its `layout_number`; 0 until somebody asks
        self.layout = layout
        #: the address of the element at index 0
        self.pointer = pointer
        self.descriptor = descriptor

    @classmethod
    def empty(cls, gpu: Gpu, descriptor: TensorDescriptor, stream: Any = None) -> DeviceArray:
        """Memory that holds anything, of this kind; `stream` is where it is used first."""
        low, high = descriptor.span() if descriptor.size else (0, -1)
        itemsize = DTYPES[descriptor.dtype]
        memory = gpu.allocate((high - low + 1) * itemsize, stream)
        return cls(gpu, memory, memory.pointer - low * itemsize, descriptor)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.descriptor.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes, as NumPy's."""
        itemsize = DTYPES[self.descriptor.dtype]
        return tuple(stride * itemsize for stride in self.descriptor.strides)

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.descriptor.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return self.descriptor.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * DTYPES[self.descriptor.dtype]

    @property
    def device(self) -> str:
        """Where it is: `cuda:0`."""
        target, index = self.gpu.device_id
        return f"{target}:{index}"

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.descriptor.dtype} {self.shape} on {self.device}>"

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view: integers, slices and one `...`, as NumPy's."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if parts.count(Ellipsis) > 1:
            raise InvalidArgument("an index has one ... at most")
        if Ellipsis in parts:
            first = parts.index(Ellipsis)
            parts[first : first + 1] = [slice(None)] * (self.ndim - len(parts) + 1)
        parts += [slice(None)] * (self.ndim - len(parts))
        if len(parts) != self.ndim:
            raise InvalidShape(f"{len(parts)} indices for {self.ndim} axes")
        shape, strides, start = [], [], 0
        for part, extent, stride in zip(parts, self.shape, self.descriptor.strides, strict=True):
            if isinstance(part, slice):
                first, last, step = part.indices(extent)
                count = len(range(first, last, step))
                start += first * stride if count else 0
                shape.append(count)
                strides.append(stride * step)
            else:
                number = int(part)
                if not -extent <= number < extent:
                    raise InvalidArgument(f"index {number} is beyond an axis of {extent}")
                start += number % extent * stride
        if not shape:
            raise InvalidShape("an element is no array: fetch it with .numpy()")
        dtype = self.descriptor.dtype
        view = TensorDescriptor(tuple(shape), tuple(strides), dtype).normalized()
        return DeviceArray(self.gpu, self.memory, self.pointer + start * DTYPES[dtype], view)

    def transpose(self, *axes: int | Sequence[int]) -> DeviceArray:
        """A view with its axes in another order, the reverse one by default."""
        given: Any = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        order = tuple(given) or tuple(reversed(range(self.ndim)))
        view = self.descriptor.transpose(order).normalized()
        return DeviceArray(self.gpu, self.memory, self.pointer, view)

    @property
    def T(self) -> DeviceArray:  # noqa: N802 - as NumPy's
        return self.transpose()

    def reshape(self, *shape: int | Sequence[int]) -> DeviceArray:
        """A view of the same elements in another shape, one extent of which may be -1; only of a packed array.

        Raises InvalidShape.
        """
        given: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        wanted: tuple[int, ...] = tuple(given)
        if any(extent < -1 for extent in wanted):
            raise InvalidShape(f"shape {wanted}: extents are 0 or more, one of them may be -1")
        extents = list(check_sizes(tuple(max(extent, 0) for extent in wanted)))
        descriptor = self.descriptor
        if -1 in wanted:
            known = math.prod(extent for extent in wanted if extent != -1)
            extents[wanted.index(-1)] = self.size // known if known else 0
        if math.prod(extents) != self.size or wanted.count(-1) > 1:
            raise InvalidShape(f"an array of shape {self.shape} cannot be viewed as {wanted}")
        if descriptor.strides != packed_strides(self.shape):
            raise InvalidShape(f"an array of strides {descriptor.strides} cannot be reshaped without a copy")
        view = TensorDescriptor(tuple(extents), packed_strides(extents), descriptor.dtype)
        return DeviceArray(self.gpu, self.memory, self.pointer, view)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory, once all that was to be written is written; its axes lie in the same order."""
        descriptor = self.descriptor
        if not descriptor.size:
            return np.empty(self.shape, self.dtype)
        self.wait()
        low, high = descriptor.span()
        raw = np.empty(high - low + 1, self.dtype)
        itemsize = DTYPES[descriptor.dtype]
        self.gpu.read(raw, self.pointer + low * itemsize)
        whole: np.ndarray[Any, Any] = np.ndarray(
            self.shape, self.dtype, raw, -low * itemsize, tuple(s * itemsize for s in descriptor.strides)
        )
        # what lies between the elements of a view is not kept
        return whole if raw.size == descriptor.size else whole.copy(order="K")

    def fill_from(self, values: Any) -> None:
        """Overwrite the elements with those of a NumPy array of the same shape."""
        given = np.asarray(values)
        if given.shape != self.shape:
            raise InvalidShape(f"values of shape {given.shape}: the array has {self.shape}")
        if not self.size:
            return
        compute_readers(self.memory)
        low, high = self.descriptor.span()
        itemsize, count = DTYPES[self.descriptor.dtype], high - low + 1
        start = self.pointer + low * itemsize
        raw = np.empty(count, self.dtype)
        self.wait()
        if count != self.size:
            self.gpu.read(raw, start)  # what lies between the elements stays
        steps = tuple(s * itemsize for s in self.descriptor.strides)
        np.ndarray(self.shape, self.dtype, raw, -low * itemsize, steps)[...] = given
        self.gpu.write(start, raw)

    def wait(self) -> None:
        """Wait until what calls were given to do with this memory is done."""
        for stream in self.memory.streams:
            self.gpu.synchronize(stream)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"{self!r} is on a GPU: it cannot be in host memory without a copy")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def used_on(self, stream: Any, writes: bool) -> None:
        """Before work on a stream: it waits for work of other streams on this memory.

        Readers may go side by side: a stream waits at its first use since the last write, and not again.
        """
        if writes:
            compute_readers(self.memory)
        streams = self.memory.streams
        if stream in streams and (not writes or len(streams) == 1):
            return
        with _lock:
            streams = self.memory.streams
            for other in streams:
                if other != stream:
                    self.gpu.order(stream, other)
            # a new set: another thread may be looking at the old one
            self.memory.streams = frozenset((stream,)) if writes else streams | {stream}

    def _memory_space(self) -> targets.MemorySpace:
        """How other libraries name this memory. Raises AttributeError where they do not."""
        target = targets.find(self.gpu.device_id[0])
        if target is None or not target.memory.dlpack:
            raise AttributeError(f"{self!r} is not in CUDA memory")
        return target.memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._memory_space().locate is None:
            raise AttributeError(f"{self!r} is not in CUDA memory")
        foreign = foreign_name(self.descriptor.dtype)
        if foreign is not None:
            raise AttributeError(f"{foreign} has no type string: use DLPack")
        lend(self.memory)
        streams = self.memory.streams
        if len(streams) != 1:
            self.wait()
        # the driver's 0 is called 1 here
        stream = next(iter(streams)) or 1 if len(streams) == 1 else None
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer if self.size else 0, False),
            "strides": self.strides,
            "stream": stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory_space().dlpack[0], self.gpu.device_id[1]

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule, as the array API standard has it; `stream` of the consumer waits for what was written."""
        kind = self._memory_space().dlpack[0]
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"{self!r} is handed out where it is, without a copy")
        lend(self.memory)
        if stream != -1:  # which asks for no order
            self.used_on(0 if stream in (None, 1) else stream, writes=True)
        d = self.descriptor
        return make_capsule(self.pointer, d.shape, d.strides, d.dtype, (kind, self.gpu.device_id[1]), self)


def check_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """The extents of a shape as integers. Raises InvalidShape."""
    try:
        extents = tuple(int(extent) for extent in shape)
    except (TypeError, ValueError):
        raise InvalidShape(f"the shape is {shape!r}: it must be a sequence of integers") from None
    if not 1 <= len(extents) <= 8 or min(extents) < 0:
        raise InvalidShape(f"the shape is {extents}: it must have 1 to 8 extents of 0 or more")
    return extents


__all__ = ["DeviceArray", "DeviceError", "Gpu", "Memory", "check_sizes"]
