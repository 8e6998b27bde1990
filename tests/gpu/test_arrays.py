"""`DeviceArray`, `to_device` and `empty`: values, views, streams, and what others take of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitdnn as jd
from examples import examples
from jitdnn.devices import cuda
from jitdnn.errors import InvalidShape
from jitdnn.tensor import DTYPES, DeviceArray, borrow, numpy_dtype

DTYPE_NAMES = sorted(DTYPES)


def values(shape: tuple[int, ...], dtype: str = "f32") -> Any:
    return np.random.default_rng(0).integers(0, 2, shape).astype(numpy_dtype(dtype))


class TestToDevice:
    @pytest.mark.parametrize("dtype", DTYPE_NAMES)
    def test_every_dtype(self, device: Any, dtype: str) -> None:
        x = values((3, 4, 5), dtype)
        array = jd.to_device(x, device.target)
        assert (array.dtype, array.shape, array.strides) == (x.dtype, x.shape, x.strides)
        assert (array.ndim, array.size, array.nbytes, len(array)) == (3, 60, x.nbytes, 3)
        assert array.device == f"{device.target}:0"
        back = array.numpy()
        assert back.dtype == x.dtype
        np.testing.assert_array_equal(back, x)
        np.testing.assert_array_equal(np.asarray(array), x)

    def test_the_order_of_axes_in_memory_stays(self, device: Any) -> None:
        x = values((2, 3, 4, 5)).transpose(0, 3, 1, 2)[:, :, ::-1]
        array = jd.to_device(x, device.target)
        assert array.descriptor.order == borrow(x).descriptor.order
        np.testing.assert_array_equal(array.numpy(), x)

    def test_whatever_ops_take(self, device: Any) -> None:
        torch = pytest.importorskip("torch")
        for x in (torch.arange(6.0), memoryview(np.arange(6.0)), np.broadcast_to(np.float32(2), (3, 4))):
            np.testing.assert_array_equal(jd.to_device(x, device.target).numpy(), np.asarray(x))
        np.testing.assert_array_equal(jd.to_device([1, 2, 3], device.target).numpy(), [1, 2, 3])

    def test_what_is_there_already(self, device: Any) -> None:
        array = jd.to_device(values((3,)), device.target)
        assert jd.to_device(array, device.target) is array
        assert jd.to_device(array, f"{device.target}:0") is array

    def test_by_default_where_the_handle_is(self, device: Any) -> None:
        place = f"{device.target}:0"
        assert jd.to_device(values((3,)), handle=jd.Handle(place)).device == place
        with jd.settings(target=device.target):
            assert jd.to_device(values((3,))).device == place
        with jd.Handle(device):
            assert jd.empty(3).device == place

    def test_mistakes(self, device: Any) -> None:
        for name in ("cpu", "gpu", "cuda:x", "opencl:-1"):
            with pytest.raises(jd.InvalidArgument, match="the device is"):
                jd.to_device(values((3,)), name)
        with pytest.raises(jd.DeviceError, match=r"there is no .* 99"):
            jd.to_device(values((3,)), f"{device.target}:99")
        with pytest.raises(jd.InvalidType, match="complex64"):
            jd.to_device(np.zeros(3, np.complex64), device.target)
        for shape in ((), (-1,), (1,) * 9, "ab"):
            with pytest.raises(jd.InvalidShape, match="shape is"):
                jd.empty(shape, device=device.target)
        with pytest.raises(jd.InvalidType):
            jd.empty(3, "complex64", device.target)

    def test_empty(self, device: Any) -> None:
        array = jd.empty((2, 0, 3), np.float16, device.target)
        assert (array.shape, array.dtype, array.size) == ((2, 0, 3), np.float16, 0)
        assert array.numpy().shape == (2, 0, 3)
        assert jd.empty((2, 3), ml_dtypes.bfloat16, device.target).dtype == ml_dtypes.bfloat16
        assert jd.to_device(np.empty((0, 3), np.float32), device.target).numpy().shape == (0, 3)


class TestViews:
    def test_the_memory_lives_as_long_as_its_views(self, device: Any) -> None:
        x = values((4, 6))
        view = jd.to_device(x, device.target)[1:, ::2]
        others = [jd.to_device(np.zeros((4, 6), np.float32), device.target) for _ in range(10)]
        np.testing.assert_array_equal(view.numpy(), x[1:, ::2])
        assert len(others) == 10

    @settings(max_examples=examples(25), deadline=None)
    @given(st.data())
    def test_as_numpys(self, data: st.DataObject) -> None:
        device = _any_device()
        extents = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        whole = np.arange(np.prod(extents), dtype=np.float32).reshape(extents)
        order = data.draw(st.permutations(range(len(extents))))
        x = whole.transpose(order)
        index: list[Any] = []
        for extent in x.shape:
            bounds = st.one_of(st.none(), st.integers(-extent - 1, extent + 1))
            step = data.draw(st.sampled_from([None, 1, 2, -1, -3]))
            index.append(slice(data.draw(bounds), data.draw(bounds), step))
        if x.ndim > 1 and data.draw(st.booleans()):
            axis = data.draw(st.integers(0, x.ndim - 1))
            index[axis] = data.draw(st.integers(-x.shape[axis], x.shape[axis] - 1))
        if data.draw(st.booleans()):
            cut = data.draw(st.integers(0, len(index)))
            index = [..., *index[cut:]]
        array = jd.to_device(whole, device).transpose(*order)[tuple(index)]
        assert array.shape == x[tuple(index)].shape
        np.testing.assert_array_equal(array.numpy(), x[tuple(index)])

    def test_mistakes(self, device: Any) -> None:
        array = jd.to_device(values((3, 4)), device.target)
        with pytest.raises(jd.InvalidArgument, match="index 3 is beyond an axis of 3"):
            array[3]
        with pytest.raises(jd.InvalidShape, match="3 indices for 2 axes"):
            array[0, 0, 0]
        with pytest.raises(jd.InvalidShape, match="an element is no array"):
            array[0, 0]
        with pytest.raises(jd.InvalidArgument, match=r"one \.\.\. at most"):
            array[..., ...]
        assert array.T.shape == (4, 3)
        assert "f32 (3, 4)" in repr(array)

    def test_values_are_overwritten_in_place(self, device: Any) -> None:
        x = values((4, 6))
        array = jd.to_device(x, device.target)
        part = array[1:3, ::-2]
        part.fill_from(np.full((2, 3), 7.0))
        x[1:3, ::-2] = 7
        np.testing.assert_array_equal(array.numpy(), x)
        with pytest.raises(jd.InvalidShape, match="the array has"):
            part.fill_from(np.zeros((3, 2)))

    def test_no_copy_where_none_is_wanted(self, device: Any) -> None:
        array = jd.to_device(values((3,)), device.target)
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(array, copy=False)
        assert np.asarray(array, np.float64).dtype == np.float64


def _any_device() -> str:
    from jitdnn.devices import opencl

    if opencl.device_count():
        return "opencl"
    return "cuda" if cuda.device_count() else pytest.skip("no GPU and no OpenCL device")


def test_only_cuda_memory_is_said_to_be_cuda(device: Any) -> None:
    array = jd.to_device(values((3, 4)), device.target)
    assert hasattr(array, "__cuda_array_interface__") == (device.target == "cuda")
    if device.target == "opencl":
        with pytest.raises(AttributeError, match="not in CUDA memory"):
            array.__dlpack_device__()


def test_the_host_reads_no_memory_of_a_gpu(device: Any) -> None:
    array = borrow(jd.to_device(values((3, 4)), device.target))
    with pytest.raises(jd.DeviceError, match=f"an array on {device.target}:0 is read by the host"):
        array.numpy()
    part = array.part(slice(1, 3))
    assert part.device_id == (device.target, 0)
    assert part.pointer == array.pointer + 16


def test_sums_of_many_streams(device: Any) -> None:
    """One array read and written by calls on streams of several handles, in the order of the calls."""
    handles = [jd.Handle(device, held) for held in (device.own_stream() for _ in range(3))]
    x = jd.to_device(np.zeros(1 << 16, np.float32), device.target)
    one = jd.to_device(np.ones(1 << 16, np.float32), device.target)
    for step in range(30):
        jd.add(x, one, out=x, handle=handles[step % 3])
    assert (x.numpy() == 30).all()


@pytest.mark.skipif(not cuda.device_count(), reason="no NVIDIA GPU")
class TestWithOthers:
    def test_torch_takes_it_without_a_copy(self) -> None:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no GPU that PyTorch sees")
        x = values((3, 4))
        array = jd.to_device(x, "cuda")
        for tensor in (torch.from_dlpack(array), torch.as_tensor(array, device="cuda")):
            assert tensor.data_ptr() == array.pointer
            np.testing.assert_array_equal(tensor.cpu().numpy(), x)
        kept = torch.from_dlpack(jd.to_device(x, "cuda"))
        np.testing.assert_array_equal(kept.cpu().numpy(), x)

    def test_torch_gives_it_without_a_copy(self) -> None:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no GPU that PyTorch sees")
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool):
            x = torch.ones(3, 4, dtype=dtype, device="cuda")[:, ::2]
            borrowed = borrow(x)
            assert (borrowed.pointer, borrowed.device_id, borrowed.library) == (
                x.data_ptr(),
                ("cuda", 0),
                "torch",
            )

        class OnlyDlpack:
            def __init__(self, x: Any) -> None:
                self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__

        x = torch.randn(3, 4, device="cuda").T
        borrowed = borrow(OnlyDlpack(x))
        assert (borrowed.pointer, borrowed.descriptor.strides) == (x.data_ptr(), (1, 4))
        result = jd.relu(OnlyDlpack(x))
        assert type(result) is DeviceArray
        np.testing.assert_array_equal(result.numpy(), x.relu().cpu().numpy())


def test_views_in_other_shapes_and_orders(device: Any) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    array = jd.to_device(values, f"{device.target}:{device.index}")
    for shape in ((24,), (6, 4), (2, -1), (1, 24, 1), [3, 8]):
        view = array.reshape(shape)
        assert view.memory is array.memory
        np.testing.assert_array_equal(view.numpy(), values.reshape(shape))
    np.testing.assert_array_equal(array.reshape(4, 6).numpy(), values.reshape(4, 6))
    np.testing.assert_array_equal(array.transpose((2, 0, 1)).numpy(), values.transpose(2, 0, 1))
    for shape in ((5, 5), (-1, -1), (7, -1), (0, -1)):
        with pytest.raises(InvalidShape, match="cannot be viewed as"):
            array.reshape(shape)
    with pytest.raises(InvalidShape, match="without a copy"):
        array.T.reshape(24)
    with pytest.raises(InvalidShape, match="without a copy"):
        array[:, 1:].reshape(16)
