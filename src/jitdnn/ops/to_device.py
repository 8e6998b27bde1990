"""Arrays of our own in the memory of a GPU: moved there, or made there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn import targets
from jitdnn.arguments import shape as settled_shape
from jitdnn.arguments import shown
from jitdnn.devices.gpu import SENT
from jitdnn.errors import DeviceError, InvalidArgument, InvalidType
from jitdnn.handle import Handle, find_device, settled_handle
from jitdnn.ops.gpu_call import GpuCall, where
from jitdnn.retention import Recent
from jitdnn.tensor import Array, DeviceArray, TensorDescriptor, borrow, dtype_of, packed_strides


def to_device(x: Any, device: str | None = None, handle: Handle | None = None) -> DeviceArray:
    """Return x as an array in the memory of a GPU, a copy of one in host memory.

    `x`: what `jd.conv` and the others take, or a list of numbers. `device`: `cuda`, `cuda:1`, `opencl:0`, ...; by
    default that of the handle, of the `target` setting, or `cuda`. The copy is packed, with its axes in the same order
    in memory, and is complete when this returns. An array that is there already is returned as it is if it is a
    `DeviceArray`.

    Raises DeviceError for a device that is not there, or without room for it, and for an array on another GPU.
    """
    gpu = _gpu(device, handle)
    array = borrow(_listed(x) if isinstance(x, (list, tuple)) else x, False, "x")
    if array.device_id is not None:
        if isinstance(x, DeviceArray) and x.gpu.device_id == gpu.device_id:
            return x
        raise DeviceError(
            f"x is on {where(array.device_id)}: to_device takes arrays of the host, and ops take this one where it is"
        )
    return moved(array, gpu)


def _listed(x: Any) -> Any:
    try:
        return np.asarray(x)
    except Exception:  # rows of different lengths, what objects in it raise
        raise InvalidType(
            f"x is {shown(x)}: it must be an array, or lists of numbers of equal lengths"
        ) from None


def moved(array: Array, gpu: Any, stream: Any = None, is_awaited: bool = True) -> DeviceArray:
    """A packed copy of an array in host memory, for use on a stream first.

    Unless it `is_awaited`, a small one may still be on its way, for which other streams wait; the memory of `array`
    must be ordinary.
    """
    d = array.descriptor
    descriptor = TensorDescriptor(d.shape, packed_strides(d.shape, d.order), d.dtype)
    made = DeviceArray.empty(gpu, descriptor, stream)
    if d.size:
        # in the order in memory, in which the copy has no gaps
        whole = np.ascontiguousarray(array.numpy().transpose(d.order))
        raw = whole.reshape(-1).view(np.uint8)
        if not is_awaited and raw.nbytes <= SENT:
            gpu.send(made.pointer, raw, stream)
            return made
        gpu.write(made.pointer, raw, stream)
    made.memory.streams = frozenset()  # it is written: nobody needs to wait
    return made


def empty(
    shape: Sequence[int] | int, dtype: Any = "f32", device: str | None = None, handle: Handle | None = None
) -> DeviceArray:
    """Return an array in the memory of a GPU that holds anything; `device` as for `to_device`.

    `dtype`: a name such as "f32", or NumPy's. Raises InvalidShape, InvalidType, and DeviceError as `to_device` does.
    """
    extents = settled_shape((shape,) if isinstance(shape, int) else shape)
    gpu = _gpu(device, handle)
    owner = settled_handle(handle)
    stream = owner.gpu_stream if owner.on_gpu is gpu else None
    descriptor = TensorDescriptor(extents, packed_strides(extents), dtype_of(dtype))
    return DeviceArray.empty(gpu, descriptor, stream)


def _gpu(device: str | None, handle: Handle | None) -> Any:
    """The GPU that is meant."""
    owner = settled_handle(handle)
    if device is None:
        if owner.on_gpu is not None:
            return owner.on_gpu
        target = owner.settings.target
        device = target if targets.is_gpu(target) else targets.gpu_names()[0]
    if not isinstance(device, str) or not targets.is_gpu(device.partition(":")[0]):
        raise InvalidArgument(
            f"the device is {shown(device)}: it must be {' or '.join(targets.gpu_names())}, or one of them by "
            "number, cuda:1"
        )
    return find_device(device)


def is_for_gpu(handle: Handle | None) -> bool:
    """Whether calls without arrays are for a GPU."""
    owner = settled_handle(handle)
    return owner.on_gpu is not None or targets.is_gpu(owner.settings.target)


def beside(values: np.ndarray[Any, Any], like: Any) -> Any:
    """A small array as one of the library's own where a call with `like` wants it: on the same device."""
    device_id = borrow(like).device_id
    if device_id is None:
        return values
    return moved(borrow(values.copy()), find_device(f"{device_id[0]}:{device_id[1]}"), is_awaited=False)


# numbers that are kept on a GPU: most programs pass the same ones again and again
_numbers: Recent[tuple[Any, ...], Array] = Recent(2048)


def number_on(gpu: GpuCall | None, value: float, dtype: np.dtype[Any], name: str) -> Array:
    """A number in memory, where a kernel can read it. Raises InvalidArgument where the arithmetic is in integers and
    the number is none of those."""
    number = _in_memory(value, dtype, name)
    if gpu is None:
        return borrow(number)
    key = (gpu.gpu.device_id, dtype, number.tobytes())
    found = _numbers.recall(key)
    if found is None:
        found = _numbers.put(key, borrow(moved(borrow(number), gpu.gpu)))
    return found


def _in_memory(value: float, dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # beyond the type's range there is infinity
            return np.array([value], dtype)
    limits = np.iinfo(dtype)
    if not limits.min <= value <= limits.max or value != int(value):  # NaN is in no range
        raise InvalidArgument(
            f"{name} is {shown(value)}: where all arrays are integers the arithmetic is too, in {dtype.name}: give a "
            "integer that it holds, or an array of real numbers"
        )
    return np.array([int(value)], dtype)
