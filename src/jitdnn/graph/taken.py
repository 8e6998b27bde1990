"""Inputs of graphs that are in a GPU's memory, and results that are handed out there."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from jitdnn.errors import DeviceError
from jitdnn.handle import find_device
from jitdnn.ops.gpu_call import stream_of_library
from jitdnn.tensor import Array, DeviceArray, borrow, numpy_dtype

_HOST = (1, 3)  # device types of DLPack: the host's memory, and what is page-locked of it


class OnGpu:
    """An array in the memory of a GPU, as engines see it: `shape` and `dtype` are NumPy's."""

    __slots__ = ("array", "dtype", "shape")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape: tuple[int, ...] = array.descriptor.shape
        self.dtype: np.dtype[Any] = numpy_dtype(array.descriptor.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in the host's memory."""
        array = self.array
        if isinstance(array.owner, DeviceArray):
            return array.owner.numpy()
        target, index = array.device_id or ("", 0)
        gpu: Any = find_device(f"{target}:{index}")
        in_force = stream_of_library([array.library], index)
        gpu.synchronize(getattr(array, "stream", None) if in_force is None else in_force())
        return DeviceArray(gpu, _Waited(), array.pointer, array.descriptor).numpy()


class _Waited:
    """Memory of somebody else, for whose stream one has waited."""

    streams: frozenset[Any] = frozenset()
    pointer = size = 0


def is_on_gpu(value: Any) -> bool:
    """Whether an object is an array in the memory of a GPU."""
    if value is None or isinstance(value, (np.ndarray, int, float, str, list, tuple)):
        return False
    if isinstance(value, (DeviceArray, OnGpu)):
        return True
    try:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return not value.is_cpu
        if hasattr(value, "__cuda_array_interface__"):
            return True
        return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] not in _HOST
    except Exception:  # of an object that raises when it is looked at
        return False


def taken(value: Any, name: str) -> Any:
    """An array of a GPU as `OnGpu`, anything else as it is. Raises what `borrow` raises."""
    if isinstance(value, OnGpu) or not is_on_gpu(value):
        return value
    return OnGpu(borrow(value, False, name))


def require_on(value: OnGpu, device_id: Any, name: str) -> None:
    """Raises DeviceError for an input that is not where the graph is prepared for."""
    if value.array.device_id != device_id:
        where = "the processor" if device_id is None else "{}:{}".format(*device_id)
        own = "{}:{}".format(*(value.array.device_id or ("", 0)))
        raise DeviceError(
            f"input {name!r} is on {own}, and the graph is prepared for {where}: prepare it for {own}, or copy the "
            "input to the host"
        )


__all__ = ["OnGpu", "is_on_gpu", "require_on", "taken"]
