"""Arrays in the memory of a GPU: borrowed from PyTorch, CuPy, JAX and others, and results that are allocated by them.

Objects are known by `__cuda_array_interface__` or DLPack, those of PyTorch and CuPy by their classes because that is
quicker. No framework is imported: what is not in `sys.modules` has made no array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from jitdnn import targets
from jitdnn.errors import DeviceError, InvalidType
from jitdnn.tensor.borrowed import Array, DeviceId, describe, known_descriptors, remember
from jitdnn.tensor.descriptor import TensorDescriptor
from jitdnn.tensor.device_array import DeviceArray, Gpu, layout_number
from jitdnn.tensor.dlpack import open_capsule
from jitdnn.tensor.dtypes import ACCEPTED, DTYPES, foreign_name, numpy_dtype

_DLPACK_NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA", 14: "oneAPI"}


class GpuArray(Array):
    """Borrowed memory of a GPU.

    `stream`: the one on which its owner says that it is used; None where the owner's library has a stream in force
    (PyTorch, CuPy) or the memory keeps account itself (`DeviceArray`).
    """

    __slots__ = ("device_id", "stream")

    def __init__(
        self,
        pointer: int,
        descriptor: TensorDescriptor,
        owner: object,
        library: str,
        is_readonly: bool,
        key: tuple[Any, ...],
        device_id: DeviceId,
        stream: Any = None,
    ) -> None:
        # not by super(): one is made for every array of every call
        self.pointer = pointer
        self.descriptor = descriptor
        self.owner = owner
        self.library = library
        self.is_readonly = is_readonly
        self.key = key
        self.device_id: DeviceId | None = device_id
        self.stream = stream

    def part(self, *ranges: slice | None) -> Array:
        part = super().part(*ranges)
        assert self.device_id is not None
        key = (*part.key, self.device_id)
        return GpuArray(
            part.pointer,
            part.descriptor,
            self.owner,
            self.library,
            self.is_readonly,
            key,
            self.device_id,
            self.stream,
        )

    def numpy(self) -> np.ndarray[Any, Any]:
        target, index = self.device_id or ("", 0)
        raise DeviceError(f"an array on {target}:{index} is read by the host here: pass one in host memory")


#: the target of PyTorch's tensors and of CuPy's arrays, once there was one: their builds have GPUs of one kind
_target_of: dict[str, str] = {}


def _target_of_torch(x: Any, torch: Any) -> str:
    """The target in whose memory a tensor lies. Raises DeviceError if no target takes it."""
    for target in targets.registered():
        if target.memory.torch is not None:
            kind, build = target.memory.torch
            if x.device.type == kind and getattr(torch.version, build, None) is not None:
                return target.name
    raise DeviceError(
        f"a tensor on {x.device}: tensors must be in host memory or on an NVIDIA GPU, use .cpu() or .cuda()"
    )


def borrow_torch(x: Any, torch: Any) -> GpuArray:
    """Borrow a tensor of PyTorch in the memory of a GPU."""
    index: int = x.get_device()
    key = ("torch", index, x.shape, x.stride(), x.dtype)
    descriptor = known_descriptors.get(key)
    if descriptor is None:
        # once for each kind of tensor
        _target_of["torch"] = _target_of_torch(x, torch)
        name = next((name for name in DTYPES if torch_dtype(torch, name) == x.dtype), None)
        if name is None:
            raise _no_dtype(x.dtype)
        descriptor = remember(key, TensorDescriptor(tuple(x.shape), tuple(x.stride()), name).normalized())
    if x.is_neg():
        raise InvalidType("a tensor with the lazy negation bit set: use .resolve_neg()")
    pointer: int = x.data_ptr()
    _require_aligned(pointer, descriptor, ".clone()")
    return GpuArray(pointer, descriptor, x, "torch", False, key, (_target_of["torch"], index))


FastKey = tuple[int, Any]
"""The address of an array on a GPU, and its layout in the owner's terms, which is None in host memory."""


def fast_key_of_torch(x: Any) -> FastKey:
    """The key of a PyTorch tensor, from as few of its attributes as tell known calls apart.

    What must not be used differs in its layout from all that was, or raises RuntimeError.
    """
    index: int = x.get_device()
    if index < 0:
        return 0, None
    pointer: int = x.data_ptr()
    # `& 7`: what is not aligned to its elements is not what was used before
    return pointer, (index, pointer & 7, x.shape, x.stride(), x.dtype, x.is_neg())


def fast_key_of_own(x: DeviceArray) -> FastKey:
    """The key of an array of our own."""
    if not x.layout:
        x.layout = layout_number(x.gpu.device_id, x.descriptor)
    return x.pointer, x.layout


#: keys of arrays of classes that were borrowed before: that of PyTorch is filled in with its first tensor
FAST_KEYS: dict[type, Callable[[Any], FastKey]] = {DeviceArray: fast_key_of_own}


def torch_dtype(torch: Any, name: str) -> Any:
    """The PyTorch dtype of a name in `DTYPES`; None where this PyTorch lacks it."""
    return getattr(torch, foreign_name(name) or numpy_dtype(name).name, None)


def borrow_gpu(x: Any) -> Array | None:
    """Borrow an object that has its memory on a GPU; None if this is none that is known.

    A tensor of PyTorch has been asked for before.
    """
    if isinstance(x, DeviceArray):
        return borrow_own(x)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return _borrow_cupy(x)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return _borrow_jax(x)
    if hasattr(x, "__cuda_array_interface__"):
        return _borrow_interface(x)
    return None


def borrow_own(x: DeviceArray) -> GpuArray:
    """Borrow an array of our own."""
    device_id = x.gpu.device_id
    key = ("jitdnn", device_id, x.descriptor)
    return GpuArray(x.pointer, x.descriptor, x, "jitdnn", False, key, device_id)


def _borrow_cupy(x: Any) -> GpuArray:
    index: int = x.device.id
    key = ("cupy", index, x.shape, x.strides, x.dtype)
    descriptor = known_descriptors.get(key)
    if descriptor is None:
        _target_of["cupy"] = _target_of_cupy()
        descriptor = remember(key, describe(x.shape, x.strides, x.dtype))
    pointer: int = x.data.ptr
    _require_aligned(pointer, descriptor, ".copy()")
    return GpuArray(pointer, descriptor, x, "cupy", False, key, (_target_of["cupy"], index))


def _target_of_cupy() -> str:
    """The target of CuPy's arrays: that of CUDA, unless CuPy was built for ROCm."""
    runtime = getattr(sys.modules["cupy"].cuda, "runtime", None)
    return _taking(lambda memory: memory.cupy == bool(getattr(runtime, "is_hip", False)), "an array of CuPy")


def _taking(is_taken: Callable[[targets.MemorySpace], bool], what: str) -> str:
    """The first target whose memory is so. Raises DeviceError if there is none."""
    for target in targets.registered():
        if is_taken(target.memory):
            return target.name
    raise DeviceError(f"{what} is in the memory of a device that no target is for")


def _borrow_jax(x: Any) -> Array | None:
    """An array of JAX on one GPU. JAX does not say which stream it uses, so its result is waited for."""
    if not hasattr(x, "__dlpack_device__") or len(x.devices()) > 1:
        raise DeviceError(f"an array of JAX spread over {len(x.devices())} devices: pass the part of one")
    kind, _ = x.__dlpack_device__()
    if _target_of_dlpack(kind) is None:
        return None
    x.block_until_ready()
    return borrow_dlpack(x, "jax")


def _borrow_interface(x: Any) -> GpuArray:
    about = x.__cuda_array_interface__
    shape = tuple(about["shape"])
    pointer, is_readonly = about["data"]
    try:
        dtype = np.dtype(about["typestr"])
    except TypeError:
        raise _no_dtype(about["typestr"]) from None
    if about.get("mask") is not None:
        raise InvalidType("an array with a mask: it would be ignored, pass a plain one")
    steps = about.get("strides") or _packed_steps(shape, dtype.itemsize)
    target = _taking(lambda memory: memory.locate is not None, "an array with __cuda_array_interface__")
    locate = targets.get(target).memory.locate
    index = locate(pointer) if pointer and locate else 0
    key = ("interface", index, shape, steps, dtype)
    descriptor = known_descriptors.get(key)
    if descriptor is None:
        descriptor = remember(key, describe(shape, steps, dtype))
    _require_aligned(pointer, descriptor, "a copy")
    stream = about.get("stream")
    if stream == 0:
        raise InvalidType(
            "__cuda_array_interface__ has the stream 0, which may mean two of them: it must be 1 or 2"
        )
    # 1 is the legacy default stream, which the driver calls 0
    stream = None if stream is None else 0 if stream == 1 else int(stream)
    return GpuArray(pointer, descriptor, x, "interface", bool(is_readonly), key, (target, index), stream)


def _packed_steps(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def borrow_dlpack(x: Any, library: str = "dlpack") -> GpuArray:
    """Borrow through DLPack what lies in a GPU's memory; it is kept alive as long as the array is referenced."""
    kind, index = (int(part) for part in x.__dlpack_device__())
    target = _target_of_dlpack(kind)
    if target is None:
        where = _DLPACK_NAMES.get(kind, "an unknown kind of device")
        raise DeviceError(
            f"{type(x).__name__} is on DLPack device ({kind}, {index}), {where}: arrays must be in host memory or on "
            "an NVIDIA GPU"
        )
    try:
        # made ready for the legacy default stream
        capsule = x.__dlpack__(stream=1)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidType(
            f"{type(x).__name__} does not hand out its memory through DLPack: {error}"
        ) from None
    held = open_capsule(capsule, x)
    key = ("dlpack", library, index, held.shape, held.strides, held.dtype)
    descriptor = known_descriptors.get(key)
    if descriptor is None:
        if not held.shape:
            raise describe_scalar()
        descriptor = remember(key, TensorDescriptor(held.shape, held.strides, held.dtype).normalized())
    _require_aligned(held.pointer, descriptor, "a copy")
    # arrays of JAX never change
    return GpuArray(held.pointer, descriptor, held, library, library == "jax", key, (target, index), 0)


def _target_of_dlpack(kind: int) -> str | None:
    """The target that takes memory of this device type of DLPack; None if none does."""
    return next((target.name for target in targets.registered() if kind in target.memory.dlpack), None)


def describe_scalar() -> InvalidType:
    return InvalidType("an array of 0 dimensions: it must have 1 to 8")


def _require_aligned(pointer: int, descriptor: TensorDescriptor, copy: str) -> None:
    if pointer % DTYPES[descriptor.dtype]:
        raise InvalidType(
            f"data at address {pointer:#x} is not aligned to its {descriptor.dtype}: pass a copy ({copy})"
        )


def _no_dtype(dtype: Any) -> InvalidType:
    return InvalidType(f"dtype {dtype}: arrays must be of {ACCEPTED}")


class GpuAllocator:
    """Allocates results on a GPU, given the stream on which they are written.

    `make` gives the object and its address. PyTorch and CuPy allocate their own; the others get a `DeviceArray`.
    """

    def __init__(self, library: str, descriptor: TensorDescriptor, gpu: Gpu) -> None:
        self._descriptor, self._library, self._device_id = descriptor, library, gpu.device_id
        self._key = ("result", library, gpu.device_id, descriptor)
        maker = {"torch": _torch_maker, "cupy": _cupy_maker}.get(library, _own_maker)
        self.make: Callable[[Any], tuple[Any, int]] = maker(descriptor, gpu)

    def __call__(self, stream: Any) -> tuple[Any, Array]:
        owner, pointer = self.make(stream)
        array = GpuArray(pointer, self._descriptor, owner, self._library, False, self._key, self._device_id)
        return owner, array


def _torch_maker(descriptor: TensorDescriptor, gpu: Gpu) -> Callable[[Any], tuple[Any, int]]:
    torch, index = sys.modules["torch"], gpu.device_id[1]
    shape, strides, dtype = (
        descriptor.shape,
        descriptor.strides,
        torch_dtype(sys.modules["torch"], descriptor.dtype),
    )
    kind, _ = targets.get(gpu.device_id[0]).memory.torch or ("cuda", "")
    where = torch.device(kind, index)
    # what code compiled by PyTorch itself calls: a third of the time, on the GPU that is the current one
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    quick = getattr(guards, f"_empty_strided_{kind}", None)

    def make(stream: Any) -> tuple[Any, int]:
        if quick is not None:
            owner = quick(shape, strides, dtype)
            if owner.get_device() == index:
                return owner, owner.data_ptr()
        owner = torch.empty_strided(shape, strides, dtype=dtype, device=where)
        return owner, owner.data_ptr()

    return make


def _cupy_maker(descriptor: TensorDescriptor, gpu: Gpu) -> Callable[[Any], tuple[Any, int]]:
    cupy, index, kind = sys.modules["cupy"], gpu.device_id[1], DTYPES[descriptor.dtype]
    elements = descriptor.span()[1] + 1 if descriptor.size else 0
    steps = tuple(stride * kind for stride in descriptor.strides)
    dtype = numpy_dtype(descriptor.dtype)

    def make(stream: Any) -> tuple[Any, int]:
        with cupy.cuda.Device(index):
            memory = cupy.cuda.alloc(elements * kind)
        owner = cupy.ndarray(descriptor.shape, dtype, memory, steps)
        return owner, owner.data.ptr

    return make


def _own_maker(descriptor: TensorDescriptor, gpu: Gpu) -> Callable[[Any], tuple[Any, int]]:
    size = (descriptor.span()[1] + 1) * DTYPES[descriptor.dtype] if descriptor.size else 0
    layout = layout_number(gpu.device_id, descriptor)

    def make(stream: Any) -> tuple[Any, int]:
        memory = gpu.allocate(size, stream)
        pointer = memory.pointer
        return DeviceArray(gpu, memory, pointer, descriptor, layout), pointer

    return make
