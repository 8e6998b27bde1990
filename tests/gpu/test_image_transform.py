"""Batches of images of bytes: the kernel's results are those of the data layers' transform on the host, bit by bit."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import jitdnn as jd
from cases import Buffer
from examples import examples
from harness import _Mirror
from jitdnn.caffe.schema_layers import TransformationParameter
from jitdnn.caffe.transform import Transformer
from jitdnn.kernels.tables import image_transform_kernel
from jitdnn.ops.image_transform import ImageTransform
from jitdnn.tensor import DeviceArray, TensorDescriptor

WAYS = ("none", "number", "numbers", "image")


def lying(images: np.ndarray, order: str) -> np.ndarray:
    """The same images (n, C, H, W) as they lie in a database, in a decoded file, or there with red first."""
    if order == "channels first":
        return np.ascontiguousarray(images)
    if order == "channels last":
        return np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images[:, ::-1].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)[:, ::-1]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_results_are_those_of_the_host(data: st.DataObject, device: Any) -> None:
    check(data, device)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_results_of_cuda_are_those_of_the_host(data: st.DataObject, cuda_device: Any) -> None:
    check(data, cuda_device)


def check(data: st.DataObject, device: Any) -> None:
    """Images of a drawn size, layout and transform on a device."""
    count = data.draw(st.integers(1, 5))
    channels = data.draw(st.sampled_from([1, 2, 3, 4]))
    height, width = (data.draw(st.sampled_from([1, 2, 5, 17, 33])) for _ in range(2))
    dtype = data.draw(st.sampled_from(["f32", "f64"] if device.has_f64 else ["f32"]))
    way, scale = data.draw(st.sampled_from(WAYS)), data.draw(st.sampled_from([1.0, 0.00390625, -1.7, 0.017]))
    last = data.draw(st.booleans())
    order = data.draw(st.sampled_from(["channels first", "channels last", "red first"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    images = lying(rng.integers(0, 256, (count, channels, height, width), np.uint8), order)
    rows, columns = (data.draw(st.integers(0, 9)) for _ in range(2))
    precision = np.dtype(np.float64 if dtype == "f64" else np.float32)
    mean = {
        "none": None,
        "number": rng.normal(100, 30, (1, 1, 1)),
        "numbers": rng.normal(100, 30, (channels, 1, 1)),
        "image": rng.normal(100, 30, (channels, height + rows, width + columns)),
    }[way]
    table = np.zeros((count, 3), np.int32)
    table[:, 0] = rng.integers(0, rows + 1, count)
    table[:, 1] = rng.integers(0, columns + 1, count)
    table[:, 2] = rng.integers(0, 2, count)
    wanted = np.empty((count, channels, height, width), precision)
    transformer = Transformer(
        TransformationParameter(scale=scale), None, "TRAIN", (channels, height, width), precision
    )
    for image, (top, left, mirrored), out in zip(images, table, wanted, strict=True):
        less = None if mean is None else mean.astype(precision)
        if way == "image" and less is not None:
            less = less[:, top : top + height, left : left + width]
        transformer._scaled(image, less, out[..., ::-1] if mirrored else out)

    memory = images.base if images.base is not None else images
    while memory.base is not None:
        memory = memory.base
    offset = images.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    sent = _Mirror(device, memory, memory.__array_interface__["data"][0])
    entries = _Mirror(device, table, table.__array_interface__["data"][0])
    less = None if mean is None else on(device, mean.astype(precision))
    out = Buffer(TensorDescriptor.packed(wanted.shape, dtype, "nhwc" if last else "nchw"))
    outside, target = out.outside(), _Mirror(device, out.memory, out.pointer)
    transform = ImageTransform(device, images.shape[1:], less, scale, dtype)
    transform.check(table)
    pointers = [sent.pointer + offset, entries.pointer, 0 if less is None else less.pointer, target.pointer]
    transform.kernel(images.strides, out.descriptor)(None, pointers, 1.0, 0.0, 0)
    device.synchronize()
    target.fetch()
    assert out.values.tobytes() == wanted.tobytes()
    assert (out.outside() == outside).all(), "wrote beside its output"


def on(device: Any, values: np.ndarray) -> DeviceArray:
    """An array on a device that need not have a stream."""
    mirror = _Mirror(device, values, values.ctypes.data)
    descriptor = TensorDescriptor.packed(values.shape, f"f{8 * values.itemsize}")
    return DeviceArray(device, mirror.memory, mirror.pointer, descriptor)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_precision_is_rounded_once(device: Any, dtype: str, name: str) -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (3, 3, 5, 7), np.uint8)
    mean = rng.normal(100, 30, (3, 1, 1)).astype(np.float32)
    table = np.zeros((3, 3), np.int32)
    out = jd.empty((3, 3, 5, 7), dtype, name)
    sent, entries = jd.to_device(images, name), jd.to_device(table, name)
    transform = ImageTransform(device, images.shape[1:], jd.to_device(mean, name), 0.017, dtype)
    transform(device.default_stream, sent.pointer, images.strides, entries.pointer, out)
    wanted = (images - mean) * np.float32(0.017)
    bits = wanted.view(np.uint32)
    even = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to the nearest, ties to even
    rounded = wanted.astype(np.float16).view(np.uint16) if dtype == "f16" else even.astype(np.uint16)
    assert out.numpy().tobytes() == rounded.tobytes()


def test_an_empty_batch(device: Any, name: str) -> None:
    transform = ImageTransform(device, (3, 5, 7), None, 1.0, "f32")
    transform.check(np.zeros((0, 3), np.int32))
    transform(device.default_stream, 0, (105, 35, 7, 1), 0, jd.empty((0, 3, 5, 7), "f32", name))


def test_tables_that_read_beyond_the_mean_are_refused(device: Any, name: str) -> None:
    mean = jd.to_device(np.zeros((3, 8, 9), np.float32), name)
    transform = ImageTransform(device, (3, 5, 7), mean, 1.0, "f32")
    transform.check(np.array([[3, 2, 1], [0, 0, 0]], np.int32))
    for row in ([4, 0, 0], [0, 3, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 2], [0, 0, -1]):
        with pytest.raises(jd.InvalidArgument, match="row 1 of the table") as caught:
            transform.check(np.array([[3, 2, 1], row], np.int32))
        assert "0 to 3 and 0 to 2" in str(caught.value)
        assert str(tuple(row)) in str(caught.value)
    with pytest.raises(jd.InvalidType, match="int64"):
        transform.check(np.zeros((2, 3), np.int64))
    with pytest.raises(jd.InvalidShape, match=r"\(2, 4\)"):
        transform.check(np.zeros((2, 4), np.int32))


def test_what_does_not_fit_is_refused(device: Any, name: str) -> None:
    with pytest.raises(jd.InvalidShape, match="positive"):
        ImageTransform(device, (3, 0, 7), None, 1.0, "f32")
    with pytest.raises(jd.InvalidShape, match="pixels"):
        ImageTransform(device, (1, 1 << 16, 1 << 16), None, 1.0, "f32")
    with pytest.raises(jd.InvalidType, match="'u8'"):
        ImageTransform(device, (3, 5, 7), None, 1.0, "u8")
    for shape in ((2, 1, 1), (3, 4, 7), (3, 5, 6), (1, 5, 7), (3, 1)):
        with pytest.raises(jd.InvalidShape, match="the mean has shape"):
            ImageTransform(device, (3, 5, 7), jd.empty(shape, "f32", name), 1.0, "f32")
    with pytest.raises(jd.InvalidType, match="the mean is f16"):
        ImageTransform(device, (3, 5, 7), jd.empty((3, 1, 1), "f16", name), 1.0, "f32")
    transform = ImageTransform(device, (3, 5, 7), None, 1.0, "f32")
    for out, strides in (((2, 3, 5, 8), (1, 1, 1, 1)), ((3, 5, 7), (1, 1, 1)), ((2, 3, 5, 7), (1, 1))):
        with pytest.raises(jd.InvalidShape, match="out has shape"):
            transform(device.default_stream, 0, strides, 0, jd.empty(out, "f32", name))
    with pytest.raises(jd.InvalidType, match="out is f16"):
        transform(device.default_stream, 0, (1, 1, 1, 1), 0, jd.empty((2, 3, 5, 7), "f16", name))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_cuda_compiles_it(architecture: Any, dtype: str) -> None:
    out = TensorDescriptor.packed((70000, 3, 227, 227), dtype)
    mean = TensorDescriptor.packed((3, 256, 256), "f64" if dtype == "f64" else "f32")
    for less in (None, mean):
        image_transform_kernel((154587, 1, 681, 3), less, 0.5, out, architecture)
