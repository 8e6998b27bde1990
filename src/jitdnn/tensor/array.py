"""Arrays borrowed from whoever owns them, and results allocated by them.

`Array` is an address plus a descriptor plus a reference that keeps the memory alive; `borrow` makes one from
a NumPy array, a PyTorch tensor or anything that speaks `__array_interface__`, the buffer protocol or DLPack, or has
its memory on a GPU (`gpu_array.py`), and never copies. `empty` allocates a result by the library that made an input.
No framework is ever imported here: an object of PyTorch can only exist where PyTorch has been imported already.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from threading import get_ident
from typing import Any, Final

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import DeviceError, InvalidArgument, InvalidShape, InvalidType
from jitdnn.tensor.borrowed import Array, describe, known_descriptors, remember
from jitdnn.tensor.descriptor import TensorDescriptor, packed_strides
from jitdnn.tensor.device_array import DeviceArray, Gpu
from jitdnn.tensor.dtypes import ACCEPTED, DTYPES, numpy_dtype
from jitdnn.tensor.gpu_array import (
    FAST_KEYS,
    GpuAllocator,
    borrow_dlpack,
    borrow_gpu,
    borrow_own,
    borrow_torch,
    fast_key_of_torch,
    torch_dtype,
)

# `ndarray.ctypes.data` costs a microsecond, reading the field `data` of PyArrayObject (which follows the
# object header in NumPy's public C ABI) a tenth of that. It is used where it provably gives the same answer.
_LARGE_BYTES: Final = 1 << 20
_CACHE_LINE: Final = 64
_read_address: Callable[[int], ctypes.c_void_p] = ctypes.c_void_p.from_address
_DATA_FIELD: Final = object.__basicsize__


def _address_from_struct(x: np.ndarray[Any, Any]) -> int:
    return _read_address(id(x) + _DATA_FIELD).value or 0


def _address_from_attribute(x: np.ndarray[Any, Any]) -> int:
    return int(x.ctypes.data)


def _pick_address_reader() -> Callable[[np.ndarray[Any, Any]], int]:
    if sys.implementation.name != "cpython":
        return _address_from_attribute
    probe = np.zeros(5, dtype=np.float32)
    same = all(_address_from_struct(p) == _address_from_attribute(p) for p in (probe, probe[3:], probe[::-1]))
    return _address_from_struct if same else _address_from_attribute


_address: Final = _pick_address_reader()


def address_of(x: np.ndarray[Any, Any]) -> int:
    """Where the element at index 0 of an array lies."""
    return _address(x)


def _borrow_numpy(x: np.ndarray[Any, Any], owner: object, library: str) -> Array:
    key = (x.shape, x.strides, x.dtype)
    descriptor = known_descriptors.get(key)
    if descriptor is None:
        descriptor = remember(key, describe(*key))
    pointer = _address(x)
    if pointer % DTYPES[descriptor.dtype] and descriptor.size:
        raise InvalidType(
            f"data at address {pointer:#x} is not aligned to the {DTYPES[descriptor.dtype]} bytes of "
            f"{descriptor.dtype}: pass a copy (numpy.array)"
        )
    return Array(pointer, descriptor, owner, library, not x.flags.writeable, key)


def _borrow_torch(x: Any, torch: Any) -> Array:
    if x.layout is not torch.strided:
        raise InvalidType(
            f"a tensor of layout {x.layout}: only strided tensors can be borrowed, use .to_dense()"
        )
    if not x.is_cpu:
        return borrow_torch(x, torch)
    if x.is_neg():
        raise InvalidType("a tensor with the lazy negation bit set: use .resolve_neg()")
    key = ("torch", x.shape, x.stride(), x.dtype)
    descriptor = known_descriptors.get(key)
    if descriptor is None:
        name = next((name for name in DTYPES if torch_dtype(torch, name) == x.dtype), None)
        if name is None:
            raise InvalidType(f"dtype {x.dtype}: tensors must be of {ACCEPTED}")
        descriptor = remember(key, TensorDescriptor(tuple(x.shape), tuple(x.stride()), name).normalized())
    pointer = x.data_ptr()
    if not pointer and x.numel():
        raise InvalidType(
            f"a tensor without memory ({type(x).__name__}): there are no elements to compute with"
        )
    if pointer % DTYPES[descriptor.dtype]:
        raise InvalidType(
            f"data at address {pointer:#x} is not aligned to its {descriptor.dtype}: pass a copy (.clone())"
        )
    return Array(pointer, descriptor, x, "torch", False, key)


def borrow(x: Any, writable: bool = False, name: str = "array") -> Array:
    """Return the memory of `x` as an `Array`, without a copy.

    `x`: a `numpy.ndarray`, a PyTorch tensor, a `DeviceArray`, an array of CuPy or JAX, or an object with
    `__array_interface__`, the buffer protocol (`array.array`, `bytearray`, `memoryview`), `__cuda_array_interface__`
    or `__dlpack__`; in host memory or on a GPU; of real (float8_e4m3fn, float8_e5m2, float16, bfloat16,
    float32, float64), integer or bool type in native byte order, 1 to 8 dimensions, any strides that are whole
    elements, aligned to its elements. Gradients that an input asks for are not recorded.

    `writable` is for outputs: the memory must not be read-only, no two of its elements may share memory, and
    a tensor that PyTorch records gradients for is refused. `name` is what error messages call it.

    Raises InvalidType (dtype, byte order, alignment, an object of another kind), InvalidShape (rank),
    DeviceError (memory of a device of another kind), InvalidArgument (an output that cannot be written).
    """
    try:
        kind = type(x)
        array = _borrow_numpy(x, x, "numpy") if kind is np.ndarray else _BORROWERS.get(kind, _borrow_other)(x)
    except (InvalidArgument, InvalidType, DeviceError) as error:
        raise type(error)(f"{name}: {error}") from None
    except Exception as error:  # whatever an object of the caller's raises when it is looked at
        raise InvalidType(f"{name}: {shown(x)} cannot be borrowed: {shown(error)}") from error
    if writable:
        require_writable(array, name)
        descriptor = array.descriptor
        if descriptor.is_overlapping():
            raise InvalidArgument(
                f"{name} of shape {descriptor.shape} and strides {descriptor.strides} (in elements) overlaps "
                "itself: every element of an output must have a place of its own"
            )
    return array


# what is borrowed quickly: filled in as soon as one of a class is seen
_BORROWERS: dict[type, Callable[[Any], Array]] = {DeviceArray: borrow_own}


def _borrow_other(x: Any) -> Array:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        for kind in (torch.Tensor, torch.nn.Parameter):
            if type(x) is kind:
                _BORROWERS[kind], FAST_KEYS[kind] = partial(_borrow_torch, torch=torch), fast_key_of_torch
        return _borrow_torch(x, torch)
    if isinstance(x, Array):
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise InvalidType("a masked array: its mask would be ignored, pass .filled(value)")
    if isinstance(x, np.ndarray):
        return _borrow_numpy(x, x, "numpy")
    if isinstance(x, np.generic):
        raise InvalidShape(f"a NumPy scalar ({x.dtype}) has 0 dimensions: it must have 1 to 8")
    on_gpu = borrow_gpu(x)
    if on_gpu is not None:
        return on_gpu
    library = _library_of(x)
    if library is not None:
        return _borrow_of_library(x, library)
    if hasattr(x, "__array_interface__"):
        wrapped = np.asarray(x)
        return _borrow_numpy(wrapped, wrapped, "buffer")
    if isinstance(x, (bytes, str)):
        raise InvalidType(f"{type(x).__name__} holds no numbers: pass a NumPy array")
    try:
        wrapped = np.asarray(memoryview(x))
    except TypeError:
        pass
    else:
        return _borrow_numpy(wrapped, wrapped, "buffer")
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _borrow_dlpack(x)
    raise InvalidType(
        f"{type(x).__name__} cannot be borrowed: pass a NumPy array (numpy.asarray(x, dtype='float32')), a "
        "PyTorch CPU tensor, or an object with the buffer protocol or __dlpack__"
    )


#: libraries other than NumPy and PyTorch whose arrays in host memory were given: what makes one of NumPy's
_makers_of: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {}


def _library_of(x: Any) -> str | None:
    """The library of an array in host memory that its results are handed back to: JAX, or one with the array API."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        _makers_of.setdefault("jax", partial(_made_by, jax.numpy))
        return "jax"
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__array_namespace__")):
        return None
    namespace = x.__array_namespace__()
    if not hasattr(namespace, "from_dlpack"):
        return None
    library = f"namespace {getattr(namespace, '__name__', type(namespace).__name__)}"
    _makers_of[library] = partial(_made_by, namespace)
    return library


def _made_by(namespace: Any, values: np.ndarray[Any, Any]) -> Any:
    """NumPy's array as one of another library, in the same memory where that library takes it."""
    try:
        return namespace.from_dlpack(values)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return namespace.asarray(values)  # a dtype of `ml_dtypes`, or an order of axes that it does not have


def maker_of(library: str) -> Callable[[np.ndarray[Any, Any]], Any] | None:
    """What makes arrays of a library of results in host memory, which NumPy allocates; None for NumPy and PyTorch."""
    return _makers_of.get(library)


def _borrow_of_library(x: Any, library: str) -> Array:
    if library == "jax":
        wrapped = np.asarray(x)  # of JAX in host memory this is a view
        array = _borrow_numpy(wrapped, wrapped, library)
    else:
        array = _borrow_dlpack(x)
        array.library = library
    array.key = (library, *array.key)
    return array


def _borrow_dlpack(x: Any) -> Array:
    kind, _ = x.__dlpack_device__()
    # 1 is kDLCPU, 3 kDLCUDAHost: pinned memory of the host
    if kind not in (1, 3):
        return borrow_dlpack(x)
    try:
        wrapped = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidType(
            f"{type(x).__name__} does not hand out its memory through DLPack: {error}"
        ) from None
    return _borrow_numpy(wrapped, wrapped, "buffer")


def require_writable(array: Array, name: str = "out") -> None:
    """Raise InvalidArgument unless its owner lets `array` be written: not read-only, no gradient recorded."""
    if array.is_readonly:
        raise InvalidArgument(f"{name} is read-only: an output must be writable")
    if array.library == "torch":
        torch = sys.modules["torch"]
        owner: Any = array.owner
        if owner.requires_grad and torch.is_grad_enabled():
            raise InvalidArgument(f"{name} records gradients: write into .detach(), or under torch.no_grad()")


def empty(
    like: Array,
    shape: Sequence[int],
    dtype: str,
    strides: Sequence[int] | None = None,
    layout: str | None = None,
) -> tuple[Any, Array]:
    """Return (object, array): uninitialised memory from the library that made `like`, else from NumPy.

    `strides` in elements, none of them negative, or a `layout` (`canonical_layout`), or neither for channels
    first. The object has the logical `shape`, whatever its order in memory. It lies in host memory, and a PyTorch
    result records no gradient. Raises InvalidArgument for strides that overlap or that are negative.
    """
    extents = tuple(shape)
    if strides is not None:
        descriptor = TensorDescriptor(extents, tuple(strides), dtype)
        if any(s < 0 for s in descriptor.strides) or descriptor.is_overlapping():
            raise InvalidArgument(
                f"strides {descriptor.strides} for shape {extents}: they must be 0 or more and give every "
                "element of an output a place of its own"
            )
    else:
        descriptor = TensorDescriptor.packed(extents, dtype, layout or "nchw")
    return allocator(like.library, descriptor)()


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array that holds anything. A large one begins at a cache line, so that kernels may write past the caches:
    NumPy's own begin 16 bytes behind one."""
    size = prod(shape) * dtype.itemsize
    if size < _LARGE_BYTES:
        return np.empty(shape, dtype)
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    start = -_address(memory) % _CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


# by the number of the thread; empty at nearly all times
_makers: dict[int, Callable[[TensorDescriptor], tuple[Any, Array]]] = {}


@contextmanager
def allocating(maker: Callable[[TensorDescriptor], tuple[Any, Array]]) -> Iterator[None]:
    """For the time of a `with` block, calls of this thread that are made for the first time get their results' memory
    from `maker`, now and whenever they are made again (which must be in such a block, too)."""
    _makers[get_ident()] = maker
    try:
        yield
    finally:
        del _makers[get_ident()]


def allocator(
    library: str, descriptor: TensorDescriptor, gpu: Gpu | None = None
) -> Callable[..., tuple[Any, Array]]:
    """Return a function that allocates a tensor of this kind, as (object, array), for calls that repeat.

    `descriptor` is trusted: strides of 0 or more, no overlap. What can be worked out once is worked out here. On a
    `gpu` the function is given the stream on which the tensor is used first; in host memory it may be given None.
    """
    shape, order = descriptor.shape, descriptor.order
    layout = TensorDescriptor(shape, descriptor.strides, descriptor.dtype)
    if get_ident() in _makers:
        return lambda stream=None: _makers[get_ident()](layout)
    if gpu is not None:
        return GpuAllocator(library, layout, gpu)
    if library == "torch":
        torch = sys.modules["torch"]
        element = torch_dtype(torch, layout.dtype)

        def from_torch(stream: None = None) -> tuple[Any, Array]:
            owner = torch.empty_strided(shape, layout.strides, dtype=element, device="cpu")
            return owner, Array(owner.data_ptr(), layout, owner, "torch")

        return from_torch

    dtype = numpy_dtype(layout.dtype)
    if layout.strides == packed_strides(shape):

        def from_numpy(stream: None = None) -> tuple[Any, Array]:
            owner = _empty(shape, dtype)
            return owner, Array(_address(owner), layout, owner, "numpy")

        return from_numpy

    if layout.strides == packed_strides(shape, order):
        stored_shape = tuple(shape[axis] for axis in order)
        back = tuple(order.index(axis) for axis in range(len(shape)))

        def from_numpy_permuted(stream: None = None) -> tuple[Any, Array]:
            owner = _empty(stored_shape, dtype).transpose(back)
            return owner, Array(_address(owner), layout, owner, "numpy")

        return from_numpy_permuted

    elements = layout.span()[1] + 1
    byte_strides = tuple(s * dtype.itemsize for s in layout.strides)

    def from_numpy_with_gaps(stream: None = None) -> tuple[Any, Array]:
        owner: np.ndarray[Any, Any] = np.ndarray(shape, dtype, np.empty(elements, dtype), 0, byte_strides)
        return owner, Array(_address(owner), layout, owner, "numpy")

    return from_numpy_with_gaps
