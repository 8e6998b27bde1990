"""Descriptors against NumPy: what NumPy says about a view of an array, a descriptor must say too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.tensor import TensorDescriptor, canonical_layout, layout_order, packed_strides

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=5).map(tuple)
slices = st.builds(
    slice,
    st.none() | st.integers(-6, 6),
    st.none() | st.integers(-6, 6),
    st.none() | st.integers(-3, 3).filter(bool),
)


def places(descriptor: TensorDescriptor) -> np.ndarray:
    """The element that each index touches, written as the sum over axes that the definition is."""
    at = np.full(descriptor.shape, descriptor.offset)
    for axis, (extent, stride) in enumerate(zip(descriptor.shape, descriptor.strides, strict=True)):
        steps = np.arange(extent) * stride
        at += steps.reshape([-1 if a == axis else 1 for a in range(len(descriptor.shape))])
    return at


@given(shapes, st.sampled_from(["nchw", "nhwc"]))
def test_packed_descriptors_number_elements_in_memory_order(shape: tuple[int, ...], layout: str) -> None:
    descriptor = TensorDescriptor.packed(shape, "f32", layout)
    order = layout_order(layout, len(shape))
    in_memory = places(descriptor).transpose(order).ravel()
    assert in_memory.tolist() == list(range(descriptor.size))
    assert descriptor.is_dense
    assert descriptor.nbytes == 4 * descriptor.size


@given(shapes, st.data())
def test_slices_touch_what_numpy_touches(shape: tuple[int, ...], data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.none() | slices, max_size=len(shape)))
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = whole[tuple(part or slice(None) for part in parts)]
    got = TensorDescriptor.packed(shape, "f64").slice(*parts)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(places(got), expected)


@given(shapes, st.data())
def test_span_is_the_range_of_touched_elements(shape: tuple[int, ...], data: st.DataObject) -> None:
    strides = tuple(data.draw(st.integers(-7, 7)) for _ in shape)
    descriptor = TensorDescriptor(shape, strides, "f32", data.draw(st.integers(-5, 50)))
    touched = places(descriptor)
    if touched.size:
        assert descriptor.span() == (touched.min(), touched.max())
    else:
        assert descriptor.span() == (descriptor.offset, descriptor.offset - 1)


@given(shapes, st.data())
def test_overlap_is_found_exactly_where_two_indices_share_an_element(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    strides = tuple(data.draw(st.integers(-12, 12)) for _ in shape)
    descriptor = TensorDescriptor(shape, strides, "f32")
    touched = places(descriptor)
    assert descriptor.is_overlapping() == (np.unique(touched).size < touched.size)


def test_large_slices_and_transposes_are_cleared_without_a_search() -> None:
    image = TensorDescriptor.packed((64, 3, 1024, 1024), "f32", "nhwc")
    assert not image.slice(None, slice(0, 2), slice(None, None, -2)).is_overlapping()
    assert not image.transpose((3, 1, 0, 2)).is_overlapping()
    assert TensorDescriptor((1 << 20, 8), (1, 0), "f32").is_overlapping()
    assert TensorDescriptor((1 << 20, 8), (1, 1 << 19), "f32").is_overlapping()


def test_interleaved_strides_beyond_the_search_count_as_overlapping() -> None:
    # even places for j = 0, odd ones for j = 1: distinct, but the reach of one axis covers the other
    assert TensorDescriptor((1 << 22, 2), (2, 3), "f32").is_overlapping()


@given(shapes, st.data())
def test_transpose_permutes_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    descriptor = TensorDescriptor.packed(shape, "f32").slice(slice(None, None, -1))
    np.testing.assert_array_equal(places(descriptor.transpose(axes)), places(descriptor).transpose(axes))


def test_transpose_refuses_what_is_no_permutation() -> None:
    with pytest.raises(InvalidArgument, match="permutation of 0 to 2"):
        TensorDescriptor.packed((2, 3, 4), "f32").transpose((0, 1, 1))


@given(shapes, st.data())
def test_broadcast_repeats_as_numpy_does(shape: tuple[int, ...], data: st.DataObject) -> None:
    repeats = [data.draw(st.integers(0, 4)) if n == 1 else n for n in shape]
    target = (*data.draw(st.lists(st.integers(1, 3), max_size=2)), *repeats)
    descriptor = TensorDescriptor.packed(shape, "f32")
    np.testing.assert_array_equal(
        places(descriptor.broadcast_to(target)), np.broadcast_to(places(descriptor), target)
    )


def test_broadcast_names_the_extent_that_does_not_fit() -> None:
    with pytest.raises(InvalidShape, match=r"\(2, 3\) cannot be broadcast to \(2, 4\): 3 is neither 1 nor 4"):
        TensorDescriptor.packed((2, 3), "f32").broadcast_to((2, 4))
    with pytest.raises(InvalidShape, match="fewer dimensions"):
        TensorDescriptor.packed((2, 3), "f32").broadcast_to((3,))


@given(shapes, st.data())
def test_insert_axis_keeps_elements_and_density(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape)))
    descriptor = TensorDescriptor.packed(shape, "f32")
    wider = descriptor.insert_axis(axis)
    np.testing.assert_array_equal(places(wider), np.expand_dims(places(descriptor), axis))
    assert wider.is_dense


@pytest.mark.parametrize(
    ("shape", "strides", "layout", "nearest", "order"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), "nchw", "nchw", (0, 1, 2, 3)),
        ((2, 3, 4, 5), (60, 1, 15, 3), "nhwc", "nhwc", (0, 2, 3, 1)),
        ((2, 3, 4), (12, 1, 3), "nhwc", "nhwc", (0, 2, 1)),
        ((2, 3, 4, 5, 6), (360, 1, 90, 18, 3), "nhwc", "nhwc", (0, 2, 3, 4, 1)),
        ((2, 3), (3, 1), "nchw", "nchw", (0, 1)),
        ((7,), (1,), "nchw", "nchw", (0,)),
        # a region of an image keeps the order of the image
        ((2, 3, 2, 2), (60, 20, 5, 1), None, "nchw", (0, 1, 2, 3)),
        ((2, 3, 2, 2), (60, 1, 15, 3), None, "nhwc", (0, 2, 3, 1)),
        ((2, 3, 2, 2), (60, 1, -15, -3), None, "nhwc", (0, 2, 3, 1)),
        # batch innermost
        ((2, 3, 4, 5), (1, 40, 10, 2), None, "nchw", (1, 2, 3, 0)),
        # repeated elements have no order
        ((2, 3, 4, 5), (0, 1, 0, 0), None, "nchw", (0, 1, 2, 3)),
        ((2, 3, 4, 5), (0, 20, 5, 1), None, "nchw", (0, 1, 2, 3)),
        # one channel: the exact strides tell the layout that was meant
        ((2, 1, 4, 5), (20, 20, 5, 1), "nchw", "nchw", (0, 1, 2, 3)),
        ((2, 1, 4, 5), (20, 1, 5, 1), "nhwc", "nhwc", (0, 2, 3, 1)),
        ((0, 3, 4, 5), (60, 20, 5, 1), "nchw", "nchw", (0, 1, 2, 3)),
    ],
)
def test_layouts(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    layout: str | None,
    nearest: str,
    order: tuple[int, ...],
) -> None:
    descriptor = TensorDescriptor(shape, strides, "f32")
    assert (descriptor.layout, descriptor.nearest_layout, descriptor.order) == (layout, nearest, order)


@given(shapes, st.sampled_from(["nchw", "nhwc"]), st.data())
def test_strides_of_unit_axes_do_not_matter_once_normalized(
    shape: tuple[int, ...], layout: str, data: st.DataObject
) -> None:
    packed = TensorDescriptor.packed(shape, "f32", layout)
    strides = tuple(
        data.draw(st.integers(-9, 9)) if n == 1 else s for n, s in zip(shape, packed.strides, strict=True)
    )
    normal = TensorDescriptor(shape, strides, "f32").normalized()
    assert normal.layout is not None
    np.testing.assert_array_equal(places(normal), places(packed))


@given(shapes, st.data())
def test_normalizing_never_moves_an_element(shape: tuple[int, ...], data: st.DataObject) -> None:
    descriptor = TensorDescriptor(shape, tuple(data.draw(st.integers(-9, 9)) for _ in shape), "f32")
    np.testing.assert_array_equal(places(descriptor.normalized()), places(descriptor))


@given(shapes, st.data())
def test_dense_means_every_place_from_lowest_to_highest_once(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    packed = TensorDescriptor.packed(shape, "f32")
    taken = packed.slice(*(data.draw(st.none() | slices) for _ in shape))
    descriptor = taken.transpose(data.draw(st.permutations(range(len(shape)))))
    low, high = descriptor.span()
    assert descriptor.is_dense == (sorted(places(descriptor).ravel()) == list(range(low, high + 1)))
    assert not TensorDescriptor((3, 3), (1, 1), "f32").is_dense


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TensorDescriptor((), (), "f32"), InvalidShape, "0 dimensions: it must have 1 to 8"),
        (lambda: TensorDescriptor((1,) * 9, (1,) * 9, "f32"), InvalidShape, "9 dimensions"),
        (lambda: TensorDescriptor((2, -1), (1, 1), "f32"), InvalidShape, "every extent must be 0 or more"),
        (lambda: TensorDescriptor((2, 2), (1,), "f32"), InvalidShape, "equally long"),
        (lambda: TensorDescriptor((2,), (1,), "f8"), InvalidType, "there are f16, bf16, f32, f64, i8"),
        (lambda: TensorDescriptor.packed((2, 3, 4), "f32", "nhw"), InvalidArgument, "use nchw or nhwc"),
        (lambda: TensorDescriptor.packed((2, 3, 4), "f32", "ncdhw"), InvalidArgument, "3 dimensions"),
    ],
)
def test_bad_descriptors_are_refused(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_layout_names_of_each_rank() -> None:
    assert [canonical_layout(name, n) for name, n in [("NCW", 3), ("ncdhw", 5), ("nc", 2), ("nchw", 6)]] == [
        "nchw"
    ] * 4
    assert [canonical_layout(name, n) for name, n in [("nwc", 3), ("NDHWC", 5), ("nhwc", 3)]] == ["nhwc"] * 3


@given(shapes)
def test_packed_strides_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    expected = np.empty([max(n, 1) for n in shape], np.uint8).strides
    assert packed_strides(shape) == expected


@given(st.data())
def test_strides_mean_what_numpy_means_by_them(data: st.DataObject) -> None:
    memory = np.arange(200)
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple))
    descriptor = TensorDescriptor(shape, tuple(data.draw(st.integers(-8, 8)) for _ in shape), "f64", 100)
    base = memory[descriptor.offset :]
    expected = as_strided(base, shape, [8 * s for s in descriptor.strides])
    np.testing.assert_array_equal(places(descriptor), expected)
