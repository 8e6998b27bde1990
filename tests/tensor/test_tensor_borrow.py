"""Borrowing arrays from everybody, allocating results, and refusing what cannot be borrowed."""

from __future__ import annotations

import array
import ctypes
import gc
import subprocess
import sys
import warnings
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.errors import DeviceError, InvalidArgument, InvalidShape, InvalidType
from jitdnn.tensor import DTYPES, TensorDescriptor, allocator, borrow, empty, numpy_dtype, view

dtypes = st.sampled_from(sorted(DTYPES))
shapes = st.lists(st.integers(0, 4), min_size=1, max_size=5).map(tuple)


def filled(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(numpy_dtype(dtype))


def region(data: st.DataObject, x: Any) -> Any:
    """A view of `x`: sliced, stepped, transposed."""
    parts = tuple(
        slice(
            data.draw(st.integers(0, 2)),
            data.draw(st.none() | st.integers(1, 4)),
            data.draw(st.integers(1, 3)),
        )
        for _ in range(x.ndim)
    )
    axes = data.draw(st.permutations(range(x.ndim)))
    return x[parts].transpose(axes) if isinstance(x, np.ndarray) else x[parts].permute(axes)


def as_torch(x: np.ndarray[Any, Any]) -> torch.Tensor:
    """The array as a tensor; types of ml_dtypes, which PyTorch does not take from NumPy, go through their bits."""
    if hasattr(ml_dtypes, x.dtype.name):
        return torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))
    return torch.from_numpy(x)


def as_numpy(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, torch.Tensor):
        name = str(x.dtype).removeprefix("torch.")
        if hasattr(ml_dtypes, name):
            bits = torch.int16 if x.itemsize == 2 else torch.int8
            return x.contiguous().view(bits).numpy().view(getattr(ml_dtypes, name))
    return np.asarray(x)


@given(shapes, dtypes, st.data())
def test_numpy_views_are_borrowed_in_place(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x = region(data, filled(shape, dtype))
    flips = tuple(slice(None, None, data.draw(st.sampled_from([1, -1]))) for _ in shape)
    x = x[flips]
    borrowed = borrow(x)
    assert (borrowed.library, borrowed.owner is x, borrowed.is_readonly) == ("numpy", True, False)
    assert (borrowed.descriptor.shape, borrowed.descriptor.dtype) == (x.shape, dtype)
    assert borrowed.descriptor.offset == 0
    np.testing.assert_array_equal(borrowed.numpy(), x)
    if x.size:
        assert borrowed.pointer == x.ctypes.data
        first = (0,) * x.ndim
        value = not x[first] if dtype == "bool" else 77
        borrowed.numpy()[first] = value
        assert x[first] == value


@given(shapes, dtypes, st.data())
def test_torch_views_are_borrowed_in_place(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    x = region(data, as_torch(filled(shape, dtype)))
    borrowed = borrow(x)
    assert (borrowed.library, borrowed.owner is x) == ("torch", True)
    assert (borrowed.descriptor.shape, borrowed.descriptor.dtype) == (tuple(x.shape), dtype)
    np.testing.assert_array_equal(borrowed.numpy(), as_numpy(x))
    if x.numel():
        assert borrowed.pointer == x.data_ptr()


def test_arrays_of_one_kind_share_a_descriptor_and_a_key() -> None:
    first, second = borrow(np.zeros((3, 4), np.float32)), borrow(np.ones((3, 4), np.float32))
    assert first.descriptor is second.descriptor
    assert first.key == second.key
    assert first.key != borrow(np.zeros((3, 4), np.float64)).key
    assert first.key != borrow(np.zeros((4, 3), np.float32).T).key
    assert first.key != borrow(torch.zeros(3, 4)).key


def test_ever_new_shapes_do_not_grow_memory_without_end() -> None:
    from jitdnn.tensor.borrowed import known_descriptors

    memory = np.zeros(20_000, np.float32)
    for n in range(1, 10_000):
        assert borrow(memory[:n]).descriptor.shape == (n,)
    assert len(known_descriptors) <= known_descriptors.limit


def test_broadcast_and_overlapping_inputs_are_legal() -> None:
    x = np.broadcast_to(np.arange(3, dtype=np.float32), (4, 3))
    assert borrow(x).descriptor.strides == (0, 1)
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3)
    borrowed = borrow(windows)
    assert borrowed.descriptor.strides == (1, 1)
    assert borrowed.is_readonly
    np.testing.assert_array_equal(borrowed.numpy(), windows)


def test_the_memory_lives_as_long_as_the_array() -> None:
    x = np.arange(5.0)
    alive = weakref.ref(x)
    borrowed = borrow(x)
    looking = borrowed.numpy()
    del x, borrowed
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(looking, np.arange(5.0))
    del looking
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("make", "expected", "is_readonly"),
    [
        (lambda: array.array("f", [1, 2, 3]), [1, 2, 3], False),
        (lambda: array.array("d", [1, 2, 3]), [1, 2, 3], False),
        (lambda: bytearray(b"abc"), [97, 98, 99], False),
        (lambda: memoryview(b"abc"), [97, 98, 99], True),
        (lambda: memoryview(np.arange(6.0).reshape(2, 3)), [[0, 1, 2], [3, 4, 5]], False),
        (lambda: memoryview(np.arange(6, dtype=np.float32))[::-2], [5, 3, 1], False),
        (lambda: (ctypes.c_float * 2)(4.0, 5.0), [4, 5], False),
    ],
)
def test_the_buffer_protocol(make: Any, expected: list[Any], is_readonly: bool) -> None:
    owner = make()
    borrowed = borrow(owner)
    assert (borrowed.library, borrowed.is_readonly) == ("buffer", is_readonly)
    np.testing.assert_array_equal(borrowed.numpy(), expected)
    if not is_readonly:
        borrowed.numpy()[...] = 7
        assert np.all(np.asarray(memoryview(owner)) == 7)


class Interface:
    """A library that speaks only `__array_interface__`."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.__array_interface__ = x.__array_interface__


class DLPack:
    """A library that speaks only DLPack; `device` is what it says about where its memory is."""

    def __init__(self, x: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.x, self.device = x, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Unwilling(DLPack):
    def __init__(self) -> None:
        super().__init__(None)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not today")


@pytest.mark.parametrize("wrap", [Interface, DLPack])
def test_other_libraries_by_their_protocols(wrap: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    borrowed = borrow(wrap(x))
    assert (borrowed.library, borrowed.pointer) == ("buffer", x.ctypes.data)
    assert borrowed.descriptor == borrow(x).descriptor
    np.testing.assert_array_equal(borrowed.numpy(), x)


def test_memory_of_another_device_is_refused_by_name() -> None:
    with pytest.raises(DeviceError, match=r"x: DLPack is on DLPack device \(8, 1\), Metal"):
        borrow(DLPack(None, (8, 1)), name="x")
    with pytest.raises(DeviceError, match=r"meta.*\.cpu\(\)"):
        borrow(torch.empty(3, device="meta"))
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about the address that is asked for
        with pytest.raises(InvalidType, match="without memory"):
            borrow(fake)


def misaligned() -> np.ndarray:
    return np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32)


def uneven_strides() -> np.ndarray:
    return np.zeros(4, np.dtype([("a", np.float32), ("b", np.uint8)]))["a"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: np.zeros(3, complex),
            InvalidType,
            "dtype complex128: arrays must be of real, integer or bool type",
        ),
        (lambda: np.zeros(3, np.longdouble), InvalidType, "dtype float128|dtype longdouble"),
        (lambda: np.zeros(3, np.complex64), InvalidType, "dtype complex64"),
        (lambda: np.zeros(3, "datetime64[s]"), InvalidType, "dtype datetime64"),
        (lambda: np.zeros(3, object), InvalidType, "dtype object"),
        (lambda: np.zeros(3, ">f4"), InvalidType, "foreign byte order"),
        (misaligned, InvalidType, "not aligned to the 4 bytes of f32"),
        (uneven_strides, InvalidType, "no multiples of the 4 bytes"),
        (lambda: np.zeros((), np.float32), InvalidShape, "0 dimensions: it must have 1 to 8"),
        (lambda: np.zeros((1,) * 9, np.float32), InvalidShape, "9 dimensions"),
        (lambda: np.float32(3), InvalidShape, "0 dimensions"),
        (lambda: np.ma.masked_array([1.0, 2.0], [True, False]), InvalidType, "mask would be ignored"),
        (lambda: [1.0, 2.0], InvalidType, "list cannot be borrowed"),
        (lambda: 3.5, InvalidType, "float cannot be borrowed"),
        (lambda: None, InvalidType, "NoneType cannot be borrowed"),
        (lambda: "abc", InvalidType, "str holds no numbers"),
        (lambda: b"abc", InvalidType, "bytes holds no numbers"),
        (
            lambda: torch.zeros(3, dtype=torch.complex64),
            InvalidType,
            r"dtype torch.complex64: tensors must be",
        ),
        (lambda: torch.zeros(3).to_sparse(), InvalidType, r"use \.to_dense\(\)"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj().imag, InvalidType, r"resolve_neg\(\)"),
        (lambda: torch.tensor(1.0), InvalidShape, "0 dimensions"),
        (lambda: memoryview(np.zeros(3, complex)), InvalidType, "dtype complex128"),
        (Unwilling, InvalidType, "does not hand out its memory through DLPack: not today"),
    ],
)
def test_what_cannot_be_borrowed_is_refused_with_its_name(
    make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        borrow(make(), name="residual")
    assert str(caught.value).startswith("residual: ")


def test_empty_arrays_are_borrowed_whatever_their_address() -> None:
    x = np.frombuffer(bytearray(17), np.uint8)[1:1].view(np.float32).reshape(0, 3)
    assert borrow(x).descriptor == TensorDescriptor.packed((0, 3), "f32")
    assert borrow(torch.zeros(2, 0, 3)).descriptor == TensorDescriptor.packed((2, 0, 3), "f32")


def test_gradients_do_not_stand_in_the_way_of_inputs() -> None:
    x = torch.arange(6.0).requires_grad_()
    np.testing.assert_array_equal(borrow(x).numpy(), np.arange(6))
    np.testing.assert_array_equal(borrow(x * 2).numpy(), np.arange(6) * 2)


def read_only() -> np.ndarray:
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (read_only, "out is read-only"),
        (lambda: memoryview(b"abcd"), "out is read-only"),
        (lambda: np.lib.stride_tricks.as_strided(np.zeros(9, "f"), (3, 3), (4, 4)), "overlaps itself"),
        (lambda: np.lib.stride_tricks.as_strided(np.zeros(9, "f"), (3, 3), (0, 4)), r"strides \(0, 1\)"),
        (lambda: torch.zeros(4).expand(3, 4), "overlaps itself"),
        (lambda: torch.zeros(4, requires_grad=True), r"records gradients.*no_grad\(\)"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(make: Any, message: str) -> None:
    x = make()
    borrow(x)
    with pytest.raises(InvalidArgument, match=message):
        borrow(x, writable=True, name="out")


def test_outputs_may_be_any_view_without_overlap() -> None:
    x = np.zeros((4, 6), np.float32)
    assert not borrow(x[::-2, 1::3].T, writable=True).is_readonly
    leaf = torch.zeros(4, requires_grad=True)
    with torch.no_grad():
        assert borrow(leaf, writable=True).owner is leaf
    borrow(leaf.detach(), writable=True)


@given(shapes, dtypes, st.sampled_from(["nchw", "nhwc"]), st.sampled_from(["numpy", "torch", "buffer"]))
def test_results_come_from_the_library_of_the_input(
    shape: tuple[int, ...], dtype: str, layout: str, library: str
) -> None:
    like: Any = {"numpy": np.zeros(1), "torch": torch.zeros(1), "buffer": bytearray(1)}[library]
    owner, made = empty(borrow(like), shape, dtype, layout=layout)
    assert type(owner) is (torch.Tensor if library == "torch" else np.ndarray)
    assert tuple(owner.shape) == shape
    assert made.descriptor == TensorDescriptor.packed(shape, dtype, layout)
    again = borrow(owner, writable=True)
    assert again.descriptor.normalized().dtype == dtype
    if made.descriptor.size:
        assert again.pointer == made.pointer
        made.numpy()[...] = filled(shape, dtype)
        np.testing.assert_array_equal(as_numpy(owner), filled(shape, dtype))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("strides", [(12, 4, 1), (1, 3, 9), (20, 5, 1), (30, 9, 2)])
def test_results_with_strides(library: str, strides: tuple[int, int, int]) -> None:
    like = borrow(np.zeros(1) if library == "numpy" else torch.zeros(1))
    shape = (2, 3, 4)
    owner, made = empty(like, shape, "f32", strides=strides)
    assert made.descriptor.strides == strides
    assert borrow(owner).descriptor.strides == strides
    made.numpy()[...] = filled(shape, "f32")
    np.testing.assert_array_equal(np.asarray(owner), filled(shape, "f32"))


@pytest.mark.parametrize("strides", [(4, 4), (0, 1), (-4, 1)])
def test_results_never_overlap(strides: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match="place of its own"):
        empty(borrow(np.zeros(1)), (3, 4), "f32", strides=strides)


def test_every_result_is_new_memory() -> None:
    make = allocator("numpy", TensorDescriptor.packed((3, 4), "f32", "nhwc"))
    (first, a), (second, b) = make(), make()
    assert not np.shares_memory(first, second)
    assert a.pointer != b.pointer


def test_views_of_raw_memory_start_at_the_offset() -> None:
    memory = np.arange(10.0)
    got = view(memory.ctypes.data, TensorDescriptor((2, 3), (-3, 1), "f64", 4), memory)
    np.testing.assert_array_equal(got, [[4, 5, 6], [1, 2, 3]])
    assert view(0, TensorDescriptor((2, 0), (1, 1), "f32")).shape == (2, 0)


def test_borrowing_imports_no_framework() -> None:
    program = (
        "import sys, array, numpy as np\n"
        "from jitdnn.tensor import borrow, empty\n"
        "class D:\n"
        "    def __init__(self, x): self.x = x\n"
        "    def __dlpack__(self, **o): return self.x.__dlpack__(**o)\n"
        "    def __dlpack_device__(self): return self.x.__dlpack_device__()\n"
        "for x in (np.zeros(3, 'f'), array.array('f', [1]), D(np.zeros(3))):\n"
        "    empty(borrow(x), (2, 3), 'f32')\n"
        "try: borrow([1.0])\n"
        "except TypeError: pass\n"
        "else: raise AssertionError('a list was borrowed')\n"
        "print(sorted({'torch', 'jax', 'cupy', 'tensorflow', 'llvmlite'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
