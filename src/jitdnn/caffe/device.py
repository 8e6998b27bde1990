"""The GPU of a net: where its blobs are, the handle and the stream of its calls, copies to and from the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn import log, targets
from jitdnn.caffe.schema import SolverParameter
from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.handle import Handle, find_device
from jitdnn.tensor import DeviceArray, TensorDescriptor, dtype_of, packed_strides

KERNEL_AXES = 8  # of arrays that kernels take; blobs of more are handed to layers with one axis


class NetDevice:
    """A GPU as a net uses it: all calls go to one stream of `handle`, in the order in which they are made.

    Nets that share weights share it too. Nothing is waited for but what is copied to the host.
    """

    def __init__(self, name: str) -> None:
        """Take the GPU called `name`: "cuda", "cuda:1", "opencl", ...

        Raises InvalidArgument for the name of no GPU, DeviceError if it is not there.
        """
        if not targets.is_gpu(name.partition(":")[0]):
            raise InvalidArgument(
                f"device is {name!r}: it must be cpu, {' or '.join(targets.gpu_names())}, or one of those by number, "
                "cuda:1"
            )
        gpu: Any = find_device(name)
        self.gpu = gpu
        self._stream = gpu.own_stream()
        self.handle = Handle(self.gpu, stream=self._stream)

    @property
    def name(self) -> str:
        """As it is given: cuda:0."""
        target, index = self.gpu.device_id
        return f"{target}:{index}"

    @property
    def stream(self) -> Any:
        """The stream of all calls, in the driver's terms."""
        return self.handle.gpu_stream

    def empty(
        self, shape: Sequence[int], dtype: np.dtype[Any], is_channels_last: bool = False
    ) -> DeviceArray:
        """Packed memory of any contents. A scalar has shape (1,), what has more axes than kernels take one axis.

        With `is_channels_last` an array (N, C, H, W) lies as (N, H, W, C).
        """
        return DeviceArray.empty(self.gpu, _descriptor(shape, dtype, is_channels_last), self.stream)

    def block(self, size: int) -> Any:
        """Memory of so many bytes, of any contents, in which arrays lie by `within`."""
        return self.gpu.allocate(size, self.stream)

    def within(
        self, block: Any, start: int, shape: Sequence[int], dtype: np.dtype[Any], is_channels_last: bool
    ) -> DeviceArray:
        """An array as `empty` makes it, `start` bytes behind the beginning of a block."""
        descriptor = _descriptor(shape, dtype, is_channels_last)
        return DeviceArray(self.gpu, block, block.pointer + start, descriptor)

    def upload(self, array: DeviceArray, values: np.ndarray[Any, Any]) -> None:
        """Copy packed values of the host; they may be changed when this returns."""
        if values.size:
            array.used_on(self.stream, writes=True)
            self.gpu.write(array.pointer, values.reshape(-1), self.stream)

    def send(self, array: DeviceArray, values: np.ndarray[Any, Any]) -> None:
        """Copy a few packed values for the calls that follow, and wait for nothing."""
        array.used_on(self.stream, writes=True)
        self.gpu.send(array.pointer, values, self.stream)

    def staged_copy(self, size: int) -> Any:
        """Page-locked memory of the host for so many bytes, from which copies run ahead; None where there is none."""
        make = getattr(self.gpu, "staged_copy", None)
        return None if make is None or not size else make(size)

    def host_memory(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Memory of the host for so many bytes from which copies run ahead: page-locked where there is such memory."""
        make = getattr(self.gpu, "page_locked", None)
        return np.empty(size, np.uint8) if make is None or not size else make(size)

    def copy_ahead(self, size: int) -> Any:
        """Memory on the GPU, at `pointer`, for so many bytes. `send` copies them from `host_memory` for calls that
        follow, beside what the GPU computes where it can; `taken` says that these have read them, and `wait` returns
        when the host's memory may be written again.
        """
        make = getattr(self.gpu, "copy_ahead", None)
        return _CopyAtOnce(self.gpu, size, self.stream) if make is None else make(size)

    def download(self, array: DeviceArray, values: np.ndarray[Any, Any]) -> None:
        """Copy to packed memory of the host, once all that was to be written is written."""
        if values.size:
            array.used_on(self.stream, writes=False)
            self.gpu.read(values.reshape(-1), array.pointer, self.stream)

    def synchronize(self) -> None:
        """Wait for all calls so far."""
        self.gpu.synchronize(self.stream)

    def __repr__(self) -> str:
        return f"NetDevice({self.name!r})"


class _CopyAtOnce:
    """The same on a GPU that copies when it is told to: nothing is under way when `send` returns."""

    def __init__(self, gpu: Any, size: int, stream: Any) -> None:
        self._gpu, self._memory = gpu, gpu.allocate(size, stream)

    @property
    def pointer(self) -> int:
        pointer: int = self._memory.pointer
        return pointer

    def send(self, source: np.ndarray[Any, Any], stream: Any) -> None:
        self._gpu.write(self.pointer, source, stream)

    def taken(self, stream: Any) -> None:
        """The stream does one thing after the other."""

    def wait(self) -> None:
        """Nothing is under way."""


def _descriptor(shape: Sequence[int], dtype: np.dtype[Any], is_channels_last: bool) -> TensorDescriptor:
    extents = view_shape(tuple(shape))
    strides = packed_strides(extents)
    if is_channels_last:
        _, c, h, w = extents
        strides = (c * h * w, 1, w * c, c)
    return TensorDescriptor(extents, strides, dtype_of(dtype))


class SharedNumbers:
    """A few numbers that kernels read: themselves on the processor, on a GPU float32 in memory that stays where it is,
    so that a graph of its calls reads what was set last.
    """

    def __init__(self, device: NetDevice | None) -> None:
        self._device = device
        self._numbers: list[float] = []
        self._array: Any = None

    def set(self, numbers: list[float]) -> None:
        """Take these for the calls that follow, and wait for nothing."""
        if self._device is not None and numbers and numbers != self._numbers:
            if self._array is None or self._array.size != len(numbers):
                self._array = self._device.empty((len(numbers),), np.dtype(np.float32))
            self._device.send(self._array, np.array(numbers, np.float32))
        self._numbers = list(numbers)

    def __getitem__(self, index: int) -> Any:
        return self._numbers[index] if self._device is None else self._array[index : index + 1]


def view_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which layers are given an array: that of the blob, where kernels take it."""
    return shape if 1 <= len(shape) <= KERNEL_AXES else (math.prod(shape),)


def settled(device: str | NetDevice | None) -> NetDevice | None:
    """The GPU that is meant; None for the processor. Raises as NetDevice does."""
    if isinstance(device, NetDevice):
        return device
    if device is None or device.strip().lower() == "cpu":
        return None
    return NetDevice(device)


def device_of(solver: SolverParameter, given: str | NetDevice | None) -> NetDevice | None:
    """The GPU that a solver trains on: the one given, else what solver_mode and device_id say; None for the processor.

    Where the file wants a GPU and there is none, that is logged. Raises as `settled` does for what is given.
    """
    if given is not None or not solver.has("solver_mode") or solver.solver_mode != "GPU":
        return settled(given)
    try:
        return NetDevice(f"cuda:{solver.device_id}")
    except DeviceError as error:
        log.fallback_once(
            ("caffe solver_mode", solver.device_id),
            f"solver_mode: GPU{solver.where('solver_mode')}, and device {solver.device_id} is not there: {error}; "
            "training on the processor, which takes many times as long",
        )
        return None
