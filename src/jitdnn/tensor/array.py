"""Arrays borrowed from whoever owns them, and results allocated by them.

`Array` is an address plus a descriptor plus a reference that keeps the memory alive; `borrow` makes one from
a NumPy array, a PyTorch CPU tensor or anything that speaks `__array_interface__`, the buffer protocol or
DLPack, and never copies. `empty` allocates a result by the library that made an input. No framework is ever
imported here: an object of PyTorch can only exist where PyTorch has been imported already.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from jitdnn.errors import DeviceError, InvalidArgument, InvalidShape, InvalidType
from jitdnn.tensor.descriptor import MAX_DIMENSIONS, TensorDescriptor, packed_strides
from jitdnn.tensor.dtypes import DTYPES, dtype_name, numpy_dtype


class Array:
    """Borrowed memory: the address of the element at index 0, a descriptor, and what keeps it alive.

    `owner` is the object that was given (or one that holds on to its memory), `library` the name of the
    package that made it (`numpy`, `torch`, or `buffer` for the rest). `key` is the layout in the owner's
    terms: arrays of one key have one descriptor and one library, and it is cheaper to hash than a descriptor.
    Valid as long as it is referenced.
    """

    __slots__ = ("descriptor", "is_readonly", "key", "library", "owner", "pointer")

    def __init__(
        self,
        pointer: int,
        descriptor: TensorDescriptor,
        owner: object,
        library: str,
        is_readonly: bool = False,
        key: tuple[Any, ...] = (),
    ) -> None:
        self.pointer = pointer
        self.descriptor = descriptor
        self.owner = owner
        self.library = library
        self.is_readonly = is_readonly
        self.key = key

    def __repr__(self) -> str:
        d = self.descriptor
        return f"Array({self.library} {d.dtype} shape={d.shape} strides={d.strides} at {self.pointer:#x})"

    def part(self, *ranges: slice | None) -> Array:
        """Return a sub-region of the same memory: a slice, or None for all, for each axis from the first on."""
        cut = self.descriptor.slice(*ranges)
        descriptor = TensorDescriptor(cut.shape, cut.strides, cut.dtype).normalized()
        key = ("part", self.library, descriptor)
        pointer = self.pointer + cut.offset * DTYPES[cut.dtype]
        return Array(pointer, descriptor, self.owner, self.library, self.is_readonly, key)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a NumPy view of the same memory, of the logical shape. It keeps the owner alive."""
        return view(self.pointer, self.descriptor, self)


class _Memory:
    """What NumPy needs to make an array of memory that it does not own."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def strided_view(
    pointer: int, shape: Sequence[int], strides: Sequence[int], dtype: str, owner: object = None
) -> np.ndarray[Any, Any]:
    """Return a NumPy view of raw memory; its element at index 0 is at `pointer`, `strides` are in elements.

    It keeps `owner` alive; without one the caller vouches that the memory lives as long as the view.
    """
    if 0 in shape:
        return np.empty(shape, numpy_dtype(dtype))
    itemsize, element = DTYPES[dtype], numpy_dtype(dtype)
    # bfloat16 has no type string: it comes as plain 16 bits and is given its type afterwards
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "strides": tuple(stride * itemsize for stride in strides),
        "typestr": "<u2" if dtype == "bf16" else element.str,
        "data": (pointer, False),
    }
    array = np.asarray(_Memory(interface, owner))
    return array.view(element) if dtype == "bf16" else array


def view(pointer: int, descriptor: TensorDescriptor, owner: object = None) -> np.ndarray[Any, Any]:
    """Return a NumPy view of raw memory at `pointer`, plus its offset; it keeps `owner` alive."""
    start = pointer + descriptor.offset * DTYPES[descriptor.dtype]
    return strided_view(start, descriptor.shape, descriptor.strides, descriptor.dtype, owner)


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

_descriptors: dict[tuple[Any, ...], TensorDescriptor] = {}


def _remember(key: tuple[Any, ...], descriptor: TensorDescriptor) -> TensorDescriptor:
    # bounded: a program with ever new shapes must not grow without end
    if len(_descriptors) >= 4096:
        _descriptors.clear()
    _descriptors[key] = descriptor
    return descriptor


def _describe(
    shape: tuple[int, ...], byte_strides: tuple[int, ...], dtype: np.dtype[Any]
) -> TensorDescriptor:
    """Return the normalized descriptor of a NumPy array, made once for each kind of array."""
    name = dtype_name(dtype)
    if name is None:
        order = "" if dtype.isnative else " in foreign byte order"
        raise InvalidType(
            f"dtype {dtype}{order}: arrays must be of real, integer or bool type (float16, bfloat16, float32, "
            "float64, int8 to int64, uint8 to uint64, bool) in native byte order"
        )
    if not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise InvalidShape(f"an array of shape {shape} has {len(shape)} dimensions: it must have 1 to 8")
    itemsize = dtype.itemsize
    strides = []
    for extent, step in zip(shape, byte_strides, strict=True):
        if step % itemsize and extent > 1:
            raise InvalidType(
                f"byte strides {byte_strides} are no multiples of the {itemsize} bytes of {dtype}: pass "
                "a copy (numpy.ascontiguousarray)"
            )
        strides.append(step // itemsize)
    return TensorDescriptor(shape, tuple(strides), name).normalized()


def _borrow_numpy(x: np.ndarray[Any, Any], owner: object, library: str) -> Array:
    key = (x.shape, x.strides, x.dtype)
    descriptor = _descriptors.get(key)
    if descriptor is None:
        descriptor = _remember(key, _describe(*key))
    pointer = _address(x)
    if pointer % DTYPES[descriptor.dtype] and descriptor.size:
        raise InvalidType(
            f"data at address {pointer:#x} is not aligned to the {DTYPES[descriptor.dtype]} bytes of "
            f"{descriptor.dtype}: pass a copy (numpy.array)"
        )
    return Array(pointer, descriptor, owner, library, not x.flags.writeable, key)


def _borrow_torch(x: Any, torch: Any) -> Array:
    if x.device.type != "cpu":
        raise DeviceError(f"a tensor on {x.device}: the cpu target takes tensors in host memory, use .cpu()")
    if x.layout is not torch.strided:
        raise InvalidType(
            f"a tensor of layout {x.layout}: only strided tensors can be borrowed, use .to_dense()"
        )
    if x.is_neg():
        raise InvalidType("a tensor with the lazy negation bit set: use .resolve_neg()")
    key = ("torch", x.shape, x.stride(), x.dtype)
    descriptor = _descriptors.get(key)
    if descriptor is None:
        name = next((name for name in DTYPES if _torch_dtype(torch, name) == x.dtype), None)
        if name is None:
            raise InvalidType(
                f"dtype {x.dtype}: tensors must be of real, integer or bool type (float16, bfloat16, float32, "
                "float64, int8 to int64, uint8 to uint64, bool)"
            )
        descriptor = _remember(key, TensorDescriptor(tuple(x.shape), tuple(x.stride()), name).normalized())
    pointer = x.data_ptr()
    if pointer % DTYPES[descriptor.dtype]:
        raise InvalidType(
            f"data at address {pointer:#x} is not aligned to its {descriptor.dtype}: pass a copy (.clone())"
        )
    return Array(pointer, descriptor, x, "torch", False, key)


def _torch_dtype(torch: Any, name: str) -> Any:
    """The PyTorch dtype of a name in `DTYPES`; None where this PyTorch lacks it."""
    if name == "bf16":
        return torch.bfloat16
    return getattr(torch, numpy_dtype(name).name, None)


def borrow(x: Any, writable: bool = False, name: str = "array") -> Array:
    """Return the memory of `x` as an `Array`, without a copy.

    `x`: a `numpy.ndarray`, a PyTorch CPU tensor, or an object with `__array_interface__`, the buffer protocol
    (`array.array`, `bytearray`, `memoryview`) or `__dlpack__` on the CPU; of real (float16, bfloat16, float32,
    float64), integer or bool type in native byte order, 1 to 8 dimensions, any strides that are whole elements,
    aligned to its elements. Gradients that an input asks for are not recorded.

    `writable` is for outputs: the memory must not be read-only, no two of its elements may share memory, and
    a tensor that PyTorch records gradients for is refused. `name` is what error messages call it.

    Raises InvalidType (dtype, byte order, alignment, an object of another kind), InvalidShape (rank),
    DeviceError (memory of another device), InvalidArgument (an output that cannot be written).
    """
    try:
        array = _borrow_numpy(x, x, "numpy") if type(x) is np.ndarray else _borrow_other(x)
    except (InvalidArgument, InvalidType, DeviceError) as error:
        raise type(error)(f"{name}: {error}") from None
    if writable:
        require_writable(array, name)
        descriptor = array.descriptor
        if descriptor.is_overlapping():
            raise InvalidArgument(
                f"{name} of shape {descriptor.shape} and strides {descriptor.strides} (in elements) overlaps "
                "itself: every element of an output must have a place of its own"
            )
    return array


def _borrow_other(x: Any) -> Array:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _borrow_torch(x, torch)
    if isinstance(x, Array):
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise InvalidType("a masked array: its mask would be ignored, pass .filled(value)")
    if isinstance(x, np.ndarray):
        return _borrow_numpy(x, x, "numpy")
    if isinstance(x, np.generic):
        raise InvalidShape(f"a NumPy scalar ({x.dtype}) has 0 dimensions: it must have 1 to 8")
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
    if hasattr(x, "__cuda_array_interface__"):
        raise DeviceError(f"{type(x).__name__} is in CUDA memory: the cpu target takes arrays in host memory")
    raise InvalidType(
        f"{type(x).__name__} cannot be borrowed: pass a NumPy array (numpy.asarray(x, dtype='float32')), a "
        "PyTorch CPU tensor, or an object with the buffer protocol or __dlpack__"
    )


def _borrow_dlpack(x: Any) -> Array:
    kind, index = x.__dlpack_device__()
    # 1 is kDLCPU, 3 kDLCUDAHost: pinned memory of the host
    if kind not in (1, 3):
        raise DeviceError(
            f"{type(x).__name__} is on DLPack device ({int(kind)}, {int(index)}): the cpu target takes arrays"
            "in host memory"
        )
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
    first. The object has the logical `shape`, whatever its order in memory. A PyTorch result lies on the CPU
    and records no gradient. Raises InvalidArgument for strides that overlap or that are negative.
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


def allocator(library: str, descriptor: TensorDescriptor) -> Callable[[], tuple[Any, Array]]:
    """Return a function that allocates a tensor of this kind, as (object, array), for calls that repeat.

    `descriptor` is trusted: strides of 0 or more, no overlap. What can be worked out once is worked out here.
    """
    shape, order = descriptor.shape, descriptor.order
    place = TensorDescriptor(shape, descriptor.strides, descriptor.dtype)
    if library == "torch":
        torch = sys.modules["torch"]
        torch_dtype = _torch_dtype(torch, place.dtype)

        def from_torch() -> tuple[Any, Array]:
            owner = torch.empty_strided(shape, place.strides, dtype=torch_dtype, device="cpu")
            return owner, Array(owner.data_ptr(), place, owner, "torch")

        return from_torch

    dtype = numpy_dtype(place.dtype)
    if place.strides == packed_strides(shape):

        def from_numpy() -> tuple[Any, Array]:
            owner = _empty(shape, dtype)
            return owner, Array(_address(owner), place, owner, "numpy")

        return from_numpy

    if place.strides == packed_strides(shape, order):
        stored_shape = tuple(shape[axis] for axis in order)
        back = tuple(order.index(axis) for axis in range(len(shape)))

        def from_numpy_permuted() -> tuple[Any, Array]:
            owner = _empty(stored_shape, dtype).transpose(back)
            return owner, Array(_address(owner), place, owner, "numpy")

        return from_numpy_permuted

    elements = place.span()[1] + 1
    byte_strides = tuple(s * dtype.itemsize for s in place.strides)

    def from_numpy_with_gaps() -> tuple[Any, Array]:
        owner: np.ndarray[Any, Any] = np.ndarray(shape, dtype, np.empty(elements, dtype), 0, byte_strides)
        return owner, Array(_address(owner), place, owner, "numpy")

    return from_numpy_with_gaps
