"""Where problems run: the CPU, an OpenCL device, a CUDA device, or the emulator of one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import jitdnn as jd
from fuzz.draw import Draw
from fuzz.memory import Block, Place, Room, Rooms, empty, span
from fuzz.problem import Array
from fuzz.values import numpy_dtype
from jitdnn import targets
from jitdnn.devices.host_scratch import HostScratch
from jitdnn.tensor import DeviceArray, TensorDescriptor
from jitdnn.tensor import array as arrays


class Target:
    """The CPU: arrays of NumPy, and some of PyTorch or of nobody in particular."""

    name = "cpu"
    has_all = True
    has_tensor_cores = False

    def __init__(self) -> None:
        self._rooms = Rooms()
        torch.set_num_threads(1)
        # scratch memory and results that the library allocates lie between forbidden pages too
        HostScratch._made = lambda self, size: Block(size)  # type: ignore[assignment,method-assign]
        arrays._empty = empty

    def begin(self) -> None:
        """Before the arrays of a problem are placed."""
        self._rooms.begin()

    def place(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], at: float
    ) -> Place:
        """Memory for a tensor; `strides` in bytes, `at` 0 for the start of a room and 1 for its end."""
        low, high = span(shape, strides, dtype.itemsize)
        return Place(self._rooms.next(high - low), shape, strides, dtype, at)

    def wrap(self, place: Place, draw: Draw, is_input: bool = False) -> Any:
        """The object that a call is given for a place."""
        array = place.view()
        kind = draw.weighted((16, "numpy"), (2, "torch"), (1, "interface"))
        if kind == "torch" and min(array.strides, default=0) >= 0:
            return as_torch(array)
        if kind == "interface" and is_input and array.dtype != numpy_dtype("bf16"):
            return _Interface(array)
        if is_input and kind == "numpy":
            array.flags.writeable = False
        return array

    def send(self, places: Sequence[Place]) -> None:
        """Before the call: what is in the places gets where the call will look for it."""

    def finish(self, places: Sequence[Place] = ()) -> None:
        """Wait for the call, and have what it wrote in the places."""

    def fetch(self, result: Any) -> Array:
        """A result that the library allocated, as an array of NumPy."""
        if isinstance(result, torch.Tensor):
            if result.dtype == torch.bfloat16:
                return result.view(torch.int16).numpy().view(numpy_dtype("bf16"))
            return result.numpy()
        assert isinstance(result, np.ndarray), f"a result is {type(result).__name__}"
        return result

    def active(self, settings: dict[str, Any]) -> AbstractContextManager[Any]:
        """The settings of a problem, in force."""
        return jd.settings(**settings) if settings else nullcontext()


def as_torch(array: Array) -> torch.Tensor:
    """A tensor of the same memory."""
    if array.dtype == numpy_dtype("bf16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class _Interface:
    """An array of no library: it says where it is, and no more."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


class _Memory:
    """Memory that a `DeviceArray` is told about."""

    def __init__(self, pointer: int, size: int) -> None:
        self.pointer, self.size = pointer, size
        self.streams: frozenset[Any] = frozenset()


class _OnDevice(Target):
    """A GPU target over arrays of this library; the rooms' host memory is the device's own memory."""

    has_all = False

    def __init__(self, gpu: Any) -> None:
        super().__init__()
        self.gpu = gpu

    def _address(self, place: Place) -> int:
        return place.pointer

    def wrap(self, place: Place, draw: Draw, is_input: bool = False) -> Any:
        draw.weighted((16, "numpy"), (2, "torch"), (1, "interface"))  # as many choices as on the CPU
        name = next(name for name in _NAMES if numpy_dtype(name) == place.dtype)
        steps = tuple(stride // place.dtype.itemsize for stride in place.strides)
        descriptor = TensorDescriptor(place.shape, steps, name).normalized()
        memory: Any = _Memory(place.room.start, place.room.bytes.size)
        return DeviceArray(self.gpu, memory, self._address(place), descriptor)

    def finish(self, places: Sequence[Place] = ()) -> None:
        self.gpu.synchronize()

    def fetch(self, result: Any) -> Array:
        assert isinstance(result, DeviceArray), f"a result is {type(result).__name__}"
        return result.numpy()


_NAMES = ("f16", "bf16", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool")


class _Cuda(_OnDevice):
    """A CUDA device. Its rooms have a copy on the device, NaN on both sides of a tensor in place of guard pages."""

    name = "cuda"
    has_tensor_cores = True

    def __init__(self) -> None:
        from jitdnn.devices import cuda

        super().__init__(cuda.device())
        self._copies: dict[int, Any] = {}

    def _address(self, place: Place) -> int:
        return self._copy(place.room) + place.first

    def _copy(self, room: Room) -> int:
        found = self._copies.get(id(room))
        if found is None:
            found = self._copies[id(room)] = self.gpu.allocate(room.bytes.size)
        return int(found.pointer)

    def send(self, places: Sequence[Place]) -> None:
        for place in places:
            window = place.room.bytes[place.window]
            self.gpu.write(self._copy(place.room) + place.window.start, np.ascontiguousarray(window))

    def finish(self, places: Sequence[Place] = ()) -> None:
        self.gpu.synchronize()
        for place in places:
            self.gpu.read(place.room.bytes[place.window], self._copy(place.room) + place.window.start)


class _OpenCl(_OnDevice):
    name = "opencl"

    def __init__(self) -> None:
        from jitdnn.devices import opencl

        super().__init__(opencl.device())


class _Emulated(_OnDevice):
    """CUDA kernels run thread by thread on the CPU (tests/gpu/emulation), under the library's own calls."""

    name = "emulated"
    has_tensor_cores = True

    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gpu"))
        from emulation.device import EmulatedCudaDevice, missing

        if reason := missing():
            raise jd.DeviceError(reason)

        class Device(EmulatedCudaDevice):
            device_id = ("cuda", 0)
            index = 0
            default_stream = 0
            cache_bytes = 50 << 20

            def stream(self, given: Any) -> Any:
                return given

            def is_capturing(self, stream: Any) -> bool:
                return False

            def order(self, stream: Any, after: Any) -> None: ...

            def allocate(self, size: int, stream: Any = None) -> Any:
                memory = super().allocate(size)
                memory.streams = frozenset((stream,))
                memory.free = lambda: None
                return memory

        device = Device()
        devices: Any = SimpleNamespace(device=lambda index=0, values=None: device)
        targets.register(replace(targets.get("cuda"), devices=lambda: devices), replace=True)
        super().__init__(device)


TARGETS = {"cpu": Target, "opencl": _OpenCl, "cuda": _Cuda, "emulated": _Emulated}


@functools.cache
def target(name: str) -> Target:
    """The target of this name. Raises DeviceError where there is none."""
    made: Target = TARGETS[name]()
    return made
